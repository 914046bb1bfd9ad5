"""Assay: upload, submit, wait, read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self
from urllib.parse import quote

from assay_client import requests
from assay_client.http import Transport, items_of, object_of, retry_after
from assay_client.problems import Mistake
from assay_client.requests import Json

if TYPE_CHECKING:
    import httpx

DEFAULT_SERVER = "http://127.0.0.1:8000"
CHUNK_BYTES = 1 << 20
HOLD_S = 30
HOLD_WATCHED_S = 2
"""How long the server may hold an answer while somebody watches the progress."""
SHORTEST_ROUND_S = 0.2
OUTAGE_S = 120.0
"""How long the server may be away while a job is waited for: the job is safe."""

JOB_ENDED = ("succeeded", "failed", "cancelled")
GATE_ENDED = ("done", "cancelled")

CONTENT_TYPES = {".npy": "application/x-npy", ".csv": "text/csv"}
NPY_MAGIC = b"\x93NUMPY"

UploadProgress = Callable[[str, int, int], None]
"""Called with the name, the bytes sent and all bytes (0 where unknown)."""
Watch = Callable[[Json], None]
"""Called with a job or gate run each time it has changed."""


class Assay:
    """A server, as a pipeline uses it."""

    def __init__(
        self,
        server: str | None = None,
        api_key: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """
        Server and key come from ASSAY_SERVER and ASSAY_API_KEY where they are not given.

        `tell` is called with a line for people when the server has to be waited for.
        """
        self._http = Transport(
            server or os.environ.get("ASSAY_SERVER") or DEFAULT_SERVER,
            api_key or os.environ.get("ASSAY_API_KEY"),
            transport,
            tell,
        )

    @property
    def server(self) -> str:
        """Address of the server."""
        return self._http.server

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def upload(
        self,
        source: str | Path | BinaryIO,
        name: str | None = None,
        progress: UploadProgress | None = None,
    ) -> Json:
        """Store a .npy or .csv file, or an open binary file of either kind; the dataset."""
        if isinstance(source, (str, Path)):
            path = Path(source)
            content_type = content_type_of(path)
            with path.open("rb") as file:
                return self._upload(file, content_type, name or path.name, progress)
        start = source.tell()
        content_type = "application/x-npy" if source.read(6) == NPY_MAGIC else "text/csv"
        source.seek(start)
        return self._upload(source, content_type, name, progress)

    def _upload(
        self,
        file: BinaryIO,
        content_type: str,
        name: str | None,
        progress: UploadProgress | None,
    ) -> Json:
        start = file.tell()
        total = file.seek(0, os.SEEK_END) - start

        def body() -> Iterator[bytes]:
            file.seek(start)
            sent = 0
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
                sent += len(chunk)
                if progress is not None:
                    progress(name or "upload", sent, total)

        answer = self._http.send(
            "POST",
            "/v1/datasets",
            headers={"Content-Type": content_type, "Content-Length": str(total)},
            params={"name": name} if name else None,
            body=body,
        )
        return object_of(answer)

    def upload_files(
        self, inputs: Any, base: Path | None = None, progress: UploadProgress | None = None
    ) -> Any:
        """The inputs with every `{"path": ...}` uploaded and named by its dataset, each file once."""
        files = requests.files(inputs, base or Path())
        for file in files:
            content_type_of(file)
        ids = {file: str(self.upload(file, progress=progress)["id"]) for file in files}
        return requests.resolve(inputs, base or Path(), ids)

    def dataset(self, dataset: str) -> Json:
        """What is known of a stored dataset."""
        return self._get(f"/v1/datasets/{_part(dataset)}")

    def checks(self) -> list[Json]:
        """The catalogue."""
        return items_of(self._http.send("GET", "/v1/checks"))

    def check(self, kind: str) -> Json:
        """One check of the catalogue: roles, schemas of params and results, measures."""
        return self._get(f"/v1/checks/{_part(kind)}")

    def submit(self, request: Mapping[str, Any]) -> Json:
        """
        Start a job; `request` is the body of `POST /v1/jobs`.

        Files named by `{"path": ...}`, relative to the working directory, are uploaded first.
        """
        body = {**request, "inputs": self.upload_files(request.get("inputs", {}))}
        return object_of(self._http.send("POST", "/v1/jobs", json=body, repeatable=False))

    def job(self, job: str | Json) -> Json:
        """The job as it is now."""
        return self._get(f"/v1/jobs/{_id(job)}")

    def jobs(
        self, *, state: str | None = None, kind: str | None = None, limit: int = 20
    ) -> list[Json]:
        """The newest jobs."""
        query: dict[str, str | int] = {"limit": limit}
        query |= {key: value for key, value in (("state", state), ("kind", kind)) if value}
        found: list[Json] = []
        while True:
            page = self._http.send("GET", "/v1/jobs", params=query)
            items = items_of(page)
            found += items
            cursor = object_of(page).get("next_cursor")
            if len(found) >= limit or not cursor or not items:
                return found[:limit]
            query["cursor"] = cursor

    def cancel(self, job: str | Json) -> Json:
        """Stop a job; one that has ended stays as it is."""
        answer = self._http.send("DELETE", f"/v1/jobs/{_id(job)}")
        return object_of(answer) if answer.content else self.job(job)

    def wait(self, job: str | Json, progress: Watch | None = None) -> Json:
        """The job once it has ended, however it ended."""
        return self._follow(f"/v1/jobs/{_id(job)}", job, JOB_ENDED, progress)

    def report(self, job: str | Json) -> Json:
        """The report of a job that succeeded."""
        return object_of(self._report(job))

    def report_bytes(self, job: str | Json) -> bytes:
        """The same as stored, byte for byte."""
        return self._report(job).content

    def start_gate(self, policy: Mapping[str, Any], inputs: Mapping[str, Any]) -> Json:
        """Start the jobs of a policy on these inputs."""
        body = {"policy": policy, "inputs": self.upload_files(inputs)}
        return object_of(self._http.send("POST", "/v1/gates", json=body, repeatable=False))

    def wait_gate(self, run: str | Json, progress: Watch | None = None) -> Json:
        """The gate run once it is judged or cancelled."""
        return self._follow(f"/v1/gates/{_id(run)}", run, GATE_ENDED, progress)

    def gate(
        self,
        policy: Mapping[str, Any],
        inputs: Mapping[str, Any],
        progress: Watch | None = None,
    ) -> Json:
        """Judge a policy: start it and wait; the gate run with its verdict."""
        return self.wait_gate(self.start_gate(policy, inputs), progress)

    def _get(self, path: str) -> Json:
        return object_of(self._http.send("GET", path))

    def _report(self, job: str | Json) -> httpx.Response:
        return self._http.send("GET", f"/v1/jobs/{_id(job)}/report")

    def _follow(
        self, path: str, record: str | Json, ended: tuple[str, ...], watch: Watch | None
    ) -> Json:
        """Ask until the record has ended, each time only for what has changed."""
        prefer = f"wait={HOLD_S if watch is None else HOLD_WATCHED_S}"
        headers = {"Prefer": prefer}
        current: Json | None = None if isinstance(record, str) else record
        while current is None or current["state"] not in ended:
            started = time.monotonic()
            answer = self._http.send("GET", path, headers=headers, patience_s=OUTAGE_S)
            if answer.is_success:
                current = object_of(answer)
                if watch is not None:
                    watch(current)
                if etag := answer.headers.get("ETag"):
                    headers["If-None-Match"] = etag
                if current["state"] in ended:
                    break
            pause = max(SHORTEST_ROUND_S, retry_after(answer) or 0)
            time.sleep(max(0.0, started + pause - time.monotonic()))
        return current


def content_type_of(path: Path) -> str:
    """How the file is sent, by its name."""
    if not path.is_file():
        raise Mistake(f"there is no file `{path}`")
    known = CONTENT_TYPES.get(path.suffix.lower())
    if known is None:
        raise Mistake(
            f"`{path}` cannot be uploaded: {path.suffix or 'a file without suffix'} is not "
            f"supported, only {' and '.join(CONTENT_TYPES)}",
            code="unsupported-format",
        )
    return known


def _id(record: str | Json) -> str:
    return _part(record if isinstance(record, str) else str(record["id"]))


def _part(text: str) -> str:
    return quote(text, safe="")
