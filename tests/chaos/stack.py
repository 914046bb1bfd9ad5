"""One real `assay serve` in a process of its own, run from a copy of the sources."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from workers import embedded

from .processes import alive, children, descendants, kill, process_parents, until, words

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("service", "api", "workers", "client/assay_client")
CATALOGUE = Path("service/checks/__init__.py")
OPENING = "CATALOGUE: tuple[Check, ...] = (\n"
READY_S = 60.0
ENDED = ("succeeded", "failed", "cancelled")
SERVE = """
import service, sys, pathlib
assert pathlib.Path(service.__file__).is_relative_to(pathlib.Path.cwd()), service.__file__
from workers.commands import serve
serve("{host}", {port}, {workers})
"""


def copy_tree(tree: Path) -> Path:
    """The sources with the checks of these tests: one file and one line each."""
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    source = (tree / CATALOGUE).read_text()
    assert OPENING in source
    imports, lines = "", ""
    for check in sorted((Path(__file__).parent / "checks").glob("*.py")):
        shutil.copy(check, tree / CATALOGUE.parent)
        imports += f"from service.checks.{check.stem} import {check.stem}\n"
        lines += f"    {check.stem},\n"
    source = source.replace(OPENING, imports + OPENING + lines)
    (tree / CATALOGUE).write_text(source)
    return tree


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def npy(rows: NDArray[Any]) -> bytes:
    """Rows as a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, rows)
    return buffer.getvalue()


def environment(tree: Path, home: Path) -> dict[str, str]:
    """Variables for a process of that tree and home, and no setting of whoever runs the tests."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ASSAY_", "REDIS_", "OMP_", "OPENBLAS_"))
        and name != "PYTHONDONTWRITEBYTECODE"
    }
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "client")]),
        "ASSAY_HOME": str(home),
        "ASSAY_LOG_LEVEL": "warning",
        "CHAOS_FOLDER": str(home / "chaos"),
    }


class Stack:
    """One `assay serve`: its processes, its HTTP door, its files."""

    def __init__(self, tree: Path, home: Path, workers: int = 1, **settings: str) -> None:
        self.tree, self.home, self.workers = tree, home, workers
        self.env = environment(tree, home) | settings
        self.chaos = home / "chaos"
        self.chaos.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)
        self.log = home / "log"
        self._process: subprocess.Popen[bytes] | None = None

    # the process and what it started

    def start(self, host: str = "127.0.0.1") -> subprocess.Popen[bytes]:
        """Start `serve` without waiting."""
        code = SERVE.format(host=host, port=self.port, workers=self.workers)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], cwd=self.tree, env=self.env, stdout=log, stderr=log
            )
        return self._process

    def started(self) -> Stack:
        """Start `serve` and wait until it takes jobs."""
        process = self.start()

        def ready() -> bool:
            assert process.poll() is None, self.log.read_text()
            with suppress(httpx.TransportError):
                return self.http.get("/readyz").status_code == 200
            return False

        until(ready, READY_S, "ready")
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _child(self, word: str) -> list[int]:
        return sorted(pid for pid in children(self.pid) if word in words(pid))

    def api(self) -> int:
        return until(lambda: self._child("uvicorn"), 15, "an API process")[0]

    def server(self) -> int:
        return until(lambda: self._child("server.sock"), 15, "a server process")[0]

    def worker_processes(self, pool: str = "jobs") -> list[int]:
        """All workers of a pool, once there are as many as wanted."""

        def all_of_them() -> list[int]:
            found = self._child(f"workers.main {pool}")
            return found if len(found) == self.workers else []

        return until(all_of_them, 30, f"{self.workers} workers")

    def worker_of(self, job_process: int) -> int:
        return process_parents()[job_process]

    def stop(self, seconds: float = 15) -> tuple[int, float]:
        """SIGTERM; exit code, and seconds until everything is gone, which are at most `seconds`."""
        if self._process is None or (code := self._process.poll()) is not None:
            return code or 0, 0.0
        started = [self.pid, *descendants(self.pid)]
        began = time.monotonic()
        self._process.terminate()
        code = self._process.wait(seconds)
        left = began + seconds - time.monotonic()
        until(lambda: not any(map(alive, started)), left, f"{started} gone")
        return code, time.monotonic() - began

    def kill(self) -> None:
        """`kill -9` of the supervisor; waits until what it started is gone too."""
        assert self._process is not None
        started = descendants(self.pid)
        self._process.kill()
        self._process.wait()
        try:
            until(lambda: not any(map(alive, started)), 10, f"{started} gone")
        finally:
            kill(*started)

    def close(self) -> None:
        """Stop in order, and leave nothing behind even if that fails."""
        started = [] if self._process is None else [self.pid, *descendants(self.pid)]
        try:
            self.stop()
        finally:
            kill(*started)
            self.http.close()
            shutil.rmtree(self.home / "store", ignore_errors=True)

    # the door

    def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        """An answer of the service, however often it takes to reach it."""
        end = time.monotonic() + 30
        while True:
            try:
                answer = self.http.request(method, path, **given)
                if answer.status_code != 503 or time.monotonic() > end:
                    return answer
            except httpx.TransportError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.1)

    def upload(self, rows: NDArray[Any]) -> str:
        """Id of the stored rows."""
        answer = self.ask(
            "POST",
            "/v1/datasets",
            content=npy(rows),
            headers={"content-type": "application/x-npy"},
        )
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["id"])

    def submit(self, kind: str, inputs: dict[str, str], seed: int = 0, **more: Any) -> str:
        """Id of a job over datasets by role."""
        roles = {role: {"dataset": dataset} for role, dataset in inputs.items()}
        request = {"kind": kind, "inputs": roles, "seed": seed, **more}
        answer = self.ask("POST", "/v1/jobs", json=request)
        assert answer.status_code in (200, 202), answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        answer = self.ask("GET", f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def cancel(self, job_id: str) -> dict[str, Any]:
        answer = self.ask("DELETE", f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def ended(self, job_id: str, seconds: float) -> dict[str, Any]:
        """The job, which has to end within `seconds`."""

        def look() -> dict[str, Any] | None:
            job = self.job(job_id)
            return job if job["state"] in ENDED else None

        try:
            return until(look, seconds, f"the end of {job_id}")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.job(job_id)}\n{self.log.read_text()}") from None

    def report(self, job_id: str) -> dict[str, Any]:
        answer = self.ask("GET", f"/v1/jobs/{job_id}/report")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    # files

    def stored_reports(self) -> list[str]:
        """Names of all files among the reports."""
        folder = self.home / "store" / "default" / "reports"
        return sorted(path.name for path in folder.rglob("*") if path.is_file())

    @property
    def redis_url(self) -> str:
        return embedded.url(self.home / "server")

    # the checks `stuck` (whose place is its seed) and `nearest` (seed and first block)

    def hold(self, place: int | str, seconds: float) -> None:
        """From now on processes stay inside the C call of this place for `seconds`."""
        new = self.chaos / f"{place}.new"
        new.write_text(str(seconds))
        new.rename(self.chaos / f"{place}.seconds")

    def book(self, place: int | str) -> list[int]:
        """Processes that have gone into the C call, in order."""
        path = self.chaos / f"{place}.book"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def inside(self, place: int | str, attempt: int = 1, seconds: float = 30) -> int:
        """The process that is inside the C call for the `attempt`th time."""
        return until(
            lambda: self.book(place)[attempt - 1 : attempt],
            seconds,
            f"attempt {attempt} of {place}",
        )[0]
