"""A small real server that answers as it is told and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest
from assay_client.cli import run


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    """What to answer; `body` is sent as JSON unless it is bytes."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


class FakeServer:
    """Answers in the order they are told for a route; the last is repeated."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.routes: dict[tuple[str, str], list[Answer]] = {}
        self.uploads = 0
        handler = type("Handler", (_Handler,), {"fake": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def on(self, route: str, *answers: Answer) -> None:
        """`server.on("GET /v1/jobs/job_1", Answer(...), ...)`."""
        method, path = route.split(" ")
        self.routes[method, path] = list(answers)

    def calls(self, route: str) -> list[Asked]:
        method, path = route.split(" ")
        return [one for one in self.asked if (one.method, one.path) == (method, path)]

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        answers = self.routes.get((asked.method, asked.path))
        if answers:
            return answers.pop(0) if len(answers) > 1 else answers[0]
        if (asked.method, asked.path) == ("POST", "/v1/datasets"):
            self.uploads += 1
            return Answer(201, {"id": f"ds_{self.uploads}", "bytes": len(asked.body)})
        if (asked.method, asked.path) == ("POST", "/v1/gates/validate"):
            policy = asked.json["policy"]
            return Answer(200, {"policy": "rows", "inputs": policy.get("inputs", {})})
        return problem(404, "unknown-route", f"nothing at {asked.method} {asked.path}")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeServer

    def _handle(self) -> None:
        url = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        query = dict(parse_qsl(url.query))
        answer = self.fake.answer(Asked(self.command, url.path, query, headers, self._body()))
        data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        data = b"" if answer.status == 304 else data
        self.send_response(answer.status)
        if "Content-Type" not in answer.headers:
            self.send_header("Content-Type", "application/json")
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    do_GET = do_POST = do_PUT = do_DELETE = _handle

    def log_message(self, *args: object) -> None:
        pass


def problem(status: int, code: str, detail: str, **more: Any) -> Answer:
    """A problem+json answer; keyword `headers` adds some."""
    headers = {"Content-Type": "application/problem+json", **more.pop("headers", {})}
    body = {"type": f"/problems/{code}", "title": code, "status": status, "detail": detail}
    return Answer(status, {**body, "code": code, "errors": [], **more}, headers)


def job(state: str = "succeeded", **more: Any) -> dict[str, Any]:
    """A job record."""
    return {
        "id": "job_1",
        "kind": "geometry",
        "kind_version": 1,
        "project": "default",
        "state": state,
        "inputs": {"vectors": {"dataset": "ds_1"}},
        "params": {},
        "seed": 0,
        "tags": {},
        "created_at": "2026-01-01T00:00:00Z",
        "started_at": None,
        "finished_at": None,
        "deadline_s": 3600,
        "progress": None,
        "attempts": 1,
        "cached": False,
        "result": None,
        "problem": None,
        "links": {},
        **more,
    }


def report() -> dict[str, Any]:
    """A short report."""
    return {
        "report_version": "1.0",
        "kind": "geometry",
        "kind_version": 1,
        "request_digest": "a" * 64,
        "digest": "b" * 64,
        "created_at": "2026-01-01T00:00:00Z",
        "inputs": {"vectors": {"dataset": "ds_1", "n": 3, "d": 2, "dtype": "float32", "spec": {}}},
        "params": {"level": 0.95},
        "seed": 0,
        "results": {"anisotropy": 0.25},
        "readings": ["Two different rows have a mean cosine of 0.25."],
        "warnings": [],
        "scope": [],
        "environment": {},
        "timing": {"run_s": 0.5, "stages": {"pairs": 0.5}},
    }


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.close()


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test stands in an empty folder, without settings from outside."""
    for name in ("ASSAY_SERVER", "ASSAY_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """A .npy file of 3 MB, so that it takes several chunks."""
    file = tmp_path / "rows.npy"
    np.save(file, np.arange(750_000, dtype=np.float32).reshape(-1, 100))
    return file


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    file = tmp_path / "rows.csv"
    file.write_text("id,intent\n0,greet\n1,leave\n", encoding="utf-8")
    return file


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def assay(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run the command line in this process."""

    def call(*words: object) -> Ran:
        capfd.readouterr()
        code = run([str(word) for word in words])
        captured = capfd.readouterr()
        return Ran(code, captured.out, captured.err)

    return call
