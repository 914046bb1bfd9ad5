"""What one does with a server, as flows: upload, submit, wait, read."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

import httpx

from assay_client import located
from assay_client.exchange import (
    Exchange,
    is_stream,
    items_of,
    object_of,
    pause_before,
    problem_of,
    retry_after,
    unexpected,
)
from assay_client.located import Json
from assay_client.payload import Payload, content_type_of, payload, refuse_columns
from assay_client.problems import AssayError
from assay_client.progress import queued
from assay_client.records import Baseline, Dataset, Event, GateRun, Job, Policy, Report
from assay_client.steps import Flow, HangUp, Hear, Pause, Send, UploadProgress, Work
from assay_client.values import missing_vectors

HOLD_S = 30
HOLD_WATCHED_S = 2
"""How long the server may hold an answer while somebody watches the progress."""
SHORTEST_ROUND_S = 0.2
QUEUED_S = 10.0
"""How long something may be queued before the server is asked what it lacks."""
AWAY_S = 120.0
"""How long the server may be away while a job is waited for: the job is safe."""
SLOW_CHECKSUM_BYTES = 1 << 28
ALL = 1 << 30
PER_PAGE = 200
NOT_FOUND_OUT = {403, 404, 405}
"""A key that may not read, or a server that keeps no list: the upload has to be made."""
REFUSED = {413, 415, 422}
"""What is wrong with an upload, and not with who sends it or with the server."""

T = TypeVar("T")
JOB_ENDED = ("succeeded", "failed", "cancelled")
GATE_ENDED = ("done", "cancelled")

Watch = Callable[[Any], None]


@dataclass
class Heard:
    """A job that is listened to: the last event, and the answer that is open."""

    job: str
    last: str | None = None
    answer: httpx.Response | None = None
    ended: bool = False
    cuts: int = 0
    """Streams that have ended since the last event."""

    def note(self, event_id: str, kind: str, data: str) -> Event:
        """An event, which is the last one now."""
        self.last, self.ended, self.cuts = event_id, kind == "done", 0
        return cast("Event", {"id": event_id, "event": kind, "data": json.loads(data)})


class Flows:
    """Conversations with one server."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def upload(
        self,
        body: Payload,
        *,
        model: str | None = None,
        revision: str | None = None,
        progress: UploadProgress | None = None,
    ) -> Flow[Dataset]:
        """The stored dataset; what the project has already is not sent."""
        spec = {key: v for key, v in (("model", model), ("revision", revision)) if v is not None}
        spec |= body.options
        digest = yield Work(lambda: _sha256(body, progress))
        known = yield from self._of_body(body, digest.hex(), spec)
        if known is not None:
            if self._exchange.tell is not None:
                self._exchange.tell(f"{body.name or 'the upload'} is there already")
            return known
        headers = {
            "Content-Type": body.content_type,
            "Content-Length": str(body.size),
            "Content-Digest": f"sha-256=:{base64.b64encode(digest).decode()}:",
        }
        query = spec if body.name is None else {"name": body.name, **spec}
        send = Send("POST", "/v1/datasets", headers, query, payload=body, progress=progress)
        return object_of((yield from self._exchange(send)), Dataset)

    def _of_body(self, body: Payload, sha256: str, spec: Mapping[str, str]) -> Flow[Dataset | None]:
        query = {"body_sha256": sha256, "content_type": body.content_type, **spec}
        try:
            answer = yield from self._exchange(Send("GET", "/v1/datasets", query=query))
        except AssayError as error:
            if error.status not in NOT_FOUND_OUT:
                raise
            return None
        found = items_of(answer, Dataset)
        return found[0] if found else None

    def import_dataset(
        self,
        source: Mapping[str, Any],
        name: str | None,
        spec: Mapping[str, str | None],
        watch: Watch | None,
    ) -> Flow[Dataset]:
        """The dataset a server has read from a store, once its job has ended."""
        given = {key: value for key, value in spec.items() if value is not None}
        body = {"source": dict(source), "name": name, "spec": given}
        job = object_of((yield from self._exchange(Send("POST", "/v1/datasets", json=body))), Job)
        job = yield from self.wait(job, watch)
        if job["state"] != "succeeded":
            raise failure(job)
        result: Any = job["result"]
        dataset = yield from self.get(Dataset, "datasets", str(result["dataset"]))
        if self._exchange.tell is not None and (missing := missing_vectors(dataset)):
            self._exchange.tell(missing)
        return dataset

    def upload_files(
        self, inputs: Any, base: Path | None = None, progress: UploadProgress | None = None
    ) -> Flow[Any]:
        base = base or Path()
        arrays = {}
        for array in located.arrays(inputs):
            stored = yield from self.upload(payload(array), progress=progress)
            arrays[id(array)] = str(stored["id"])
        inputs = located.spelled_out(located.without_arrays(inputs, arrays), base)
        files = located.files(inputs, base)
        for file in files:
            refuse_columns(content_type_of(file.path), file.options)
        ids = {}
        for file, role in files.items():
            body = payload(file.path, options=file.options)
            try:
                dataset = yield from self.upload(body, progress=progress)
            except AssayError as error:
                if error.status in REFUSED:
                    error.detail = f"`{role}` {file.path.name}: {error.detail}"
                raise
            ids[file] = str(dataset["id"])
        return located.resolve(inputs, base, ids)

    def submit(
        self, request: Mapping[str, Any], key: str | None, progress: UploadProgress | None
    ) -> Flow[Job]:
        return object_of((yield from self._start("jobs", request, key, progress)), Job)

    def start_gate(
        self, body: Mapping[str, Any], key: str | None, progress: UploadProgress | None
    ) -> Flow[GateRun]:
        return object_of((yield from self._start("gates", body, key, progress)), GateRun)

    def _start(
        self, what: str, body: Mapping[str, Any], key: str | None, progress: UploadProgress | None
    ) -> Flow[httpx.Response]:
        """POST something that may be sent again, because every repeat carries the same key."""
        inputs = yield from self.upload_files(body.get("inputs", {}), None, progress)
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        send = Send("POST", path_of(what), headers, json={**body, "inputs": inputs})
        return (yield from self._exchange(send))

    def run(
        self, request: Mapping[str, Any], watch: Watch | None, progress: UploadProgress | None
    ) -> Flow[Report]:
        job = yield from self.submit(request, None, progress)
        job = yield from self.wait(job, watch)
        if job["state"] != "succeeded":
            raise failure(job)
        return (yield from self.report(job))

    def get(self, record: type[T], *parts: str) -> Flow[T]:
        return object_of((yield from self._exchange(Send("GET", path_of(*parts)))), record)

    def checks(self) -> Flow[list[Json]]:
        return items_of((yield from self._exchange(Send("GET", path_of("checks")))), dict)

    def newest(
        self, record: type[T], what: str, limit: int, **filters: str | Sequence[str] | None
    ) -> Flow[list[T]]:
        """The newest of a listing, page by page."""
        query: dict[str, str | int | Sequence[str]] = {"limit": min(limit, PER_PAGE)}
        query |= {key: value for key, value in filters.items() if value}
        found: list[T] = []
        while True:
            page = yield from self._exchange(Send("GET", path_of(what), query=query))
            items = items_of(page, record)
            found += items
            cursor = object_of(page, dict).get("next_cursor")
            if len(found) >= limit or not cursor or not items:
                return found[:limit]
            query = {**query, "cursor": cursor}

    def named(self) -> Flow[list[Baseline]]:
        """Every baseline, by name."""
        return (yield from self.newest(Baseline, "baselines", ALL))

    def set_baseline(self, name: str, dataset: str) -> Flow[Baseline]:
        send = Send("PUT", path_of("baselines", name), json={"dataset": dataset})
        return object_of((yield from self._exchange(send)), Baseline)

    def promote(
        self, run: str | Mapping[str, Any], input_name: str, baseline: str
    ) -> Flow[Baseline]:
        body = {"input": input_name, "baseline": baseline}
        send = Send("POST", path_of("gates", id_of(run), "promote"), json=body)
        return object_of((yield from self._exchange(send)), Baseline)

    def cancel(self, record: type[T], what: str, which: str | Mapping[str, Any]) -> Flow[T]:
        answer = yield from self._exchange(Send("DELETE", path_of(what, id_of(which))))
        return object_of(answer, record)

    def delete(self, *parts: str) -> Flow[None]:
        yield from self._exchange(Send("DELETE", path_of(*parts)))

    def report_answer(self, job: str | Mapping[str, Any]) -> Flow[httpx.Response]:
        return (yield from self._exchange(Send("GET", path_of("jobs", id_of(job), "report"))))

    def report(self, job: str | Mapping[str, Any]) -> Flow[Report]:
        return object_of((yield from self.report_answer(job)), Report)

    def report_bytes(self, job: str | Mapping[str, Any]) -> Flow[bytes]:
        return (yield from self.report_answer(job)).content

    def fetched(self, media_type: str, *parts: str) -> Flow[bytes]:
        """What stands at a path, in this media type."""
        answer = yield from self._exchange(Send("GET", path_of(*parts), {"Accept": media_type}))
        if answer.headers.get("Content-Type", "").partition(";")[0] != media_type:
            raise unexpected(answer)
        return answer.content

    def history_csv(self, limit: int, **filters: str | Sequence[str] | None) -> Flow[bytes]:
        """Measures over time as one table: the head, then lines of the newest reports."""
        chosen = {key: value for key, value in filters.items() if value}
        lines: list[bytes] = []
        cursor: dict[str, str] = {}
        while True:
            asked = min(limit, PER_PAGE)
            query: dict[str, str | int | Sequence[str]] = {"limit": asked, **chosen, **cursor}
            send = Send("GET", path_of("reports"), {"Accept": "text/csv"}, query)
            answer = yield from self._exchange(send)
            if answer.headers.get("Content-Type", "").partition(";")[0] != "text/csv":
                raise unexpected(answer)
            head, *rest = answer.content.splitlines(keepends=True)
            lines += rest if lines else [head, *rest]
            limit -= asked
            following = answer.links.get("next", {}).get("url")
            if limit <= 0 or following is None:
                return b"".join(lines)
            cursor = {"cursor": httpx.URL(following).params["cursor"]}

    def wait(self, job: str | Mapping[str, Any], watch: Watch | None) -> Flow[Job]:
        return (yield from self._follow(Job, "jobs", job, JOB_ENDED, watch))

    def next_event(self, heard: Heard) -> Flow[Event | None]:
        """What happens next to a job, wherever a stream was cut off; None after its end."""
        while not heard.ended:
            if heard.answer is None:
                headers = {"Accept": "text/event-stream"}
                if heard.last is not None:
                    headers["Last-Event-ID"] = heard.last
                path = path_of("jobs", heard.job, "events")
                send = Send("GET", path, headers, stream=True)
                heard.answer = yield from self._exchange(send, AWAY_S)
            if not is_stream(heard.answer):
                answer, heard.answer = heard.answer, None
                if answer.status_code != httpx.codes.NO_CONTENT:
                    raise unexpected(answer)
                return None
            try:
                said = yield Hear(heard.answer)
            except httpx.TransportError:
                said = None
            if said is not None:
                return heard.note(said.id, said.event, said.data)
            yield from self.hang_up(heard)
            yield Pause(pause_before(heard.cuts))
            heard.cuts += 1
        return None

    def hang_up(self, heard: Heard) -> Flow[None]:
        """Close what is open."""
        if heard.answer is not None:
            yield HangUp(heard.answer)
            heard.answer = None

    def wait_gate(self, run: str | Mapping[str, Any], watch: Watch | None) -> Flow[GateRun]:
        return (yield from self._follow(GateRun, "gates", run, GATE_ENDED, watch))

    def gate(
        self,
        body: Mapping[str, Any],
        key: str | None,
        watch: Watch | None,
        progress: UploadProgress | None,
    ) -> Flow[GateRun]:
        run = yield from self.start_gate(body, key, progress)
        return (yield from self.wait_gate(run, watch))

    def validate(self, policy: Mapping[str, Any]) -> Flow[Policy]:
        send = Send("POST", path_of("gates", "validate"), json={"policy": policy})
        return object_of((yield from self._exchange(send)), Policy)

    def gate_markdown(self, run: str | Mapping[str, Any]) -> Flow[bytes]:
        send = Send("GET", path_of("gates", id_of(run)), {"Accept": "text/markdown"})
        return (yield from self._exchange(send)).content

    def _follow(
        self,
        record: type[T],
        what: str,
        which: str | Mapping[str, Any],
        ended: tuple[str, ...],
        watch: Watch | None,
    ) -> Flow[T]:
        """Ask until the record has ended, each time only for what has changed."""
        headers = {"Prefer": f"wait={HOLD_S if watch is None else HOLD_WATCHED_S}"}
        path, clock = path_of(what, id_of(which)), self._exchange.clock
        current: Any = None if isinstance(which, str) else dict(which)
        look, lacks = clock() + QUEUED_S, ""
        while current is None or current["state"] not in ended:
            started = clock()
            answer = yield from self._exchange(Send("GET", path, dict(headers)), AWAY_S)
            if answer.is_success:
                current = object_of(answer, dict)
                if watch is not None:
                    watch(current)
                if etag := answer.headers.get("ETag"):
                    headers["If-None-Match"] = etag
                if current["state"] in ended:
                    break
            if not lacks and self._exchange.tell is not None and clock() >= look:
                look = clock() + QUEUED_S
                lacks = "" if current is None or not queued(current) else (yield from self._lacks())
                if lacks:
                    self._exchange.tell(f"still queued; the server says: {lacks}")
            pause = max(SHORTEST_ROUND_S, retry_after(answer) or 0)
            yield Pause(max(0.0, started + pause - clock()))
        return cast("T", current)

    def _lacks(self) -> Flow[str]:
        """Why a server that answers can work on no job."""
        try:
            answer = yield Send("GET", "/readyz")
        except httpx.TransportError:
            return ""
        unavailable = answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        return problem_of(answer).detail if unavailable else ""


def failure(job: Mapping[str, Any]) -> AssayError:
    """Why a job that has ended has no report."""
    ended = {"code": job["state"], "detail": f"job {job['id']} has ended"}
    return AssayError.of(job.get("problem") or ended)


def id_of(record: str | Mapping[str, Any]) -> str:
    """The id of a record, or the id itself."""
    return record if isinstance(record, str) else str(record["id"])


def path_of(*parts: str) -> str:
    """A path under /v1; no part can leave its place."""
    return "/".join(["/v1", *(quote(part, safe="") for part in parts)])


def _sha256(body: Payload, progress: UploadProgress | None) -> bytes:
    digest, done = hashlib.sha256(), 0
    for piece in body.pieces():
        digest.update(piece)
        done += len(piece)
        if progress is not None and body.size >= SLOW_CHECKSUM_BYTES:
            progress(f"checksum of {body.name or 'the upload'}", done, body.size)
    return digest.digest()
