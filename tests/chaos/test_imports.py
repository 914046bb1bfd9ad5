"""An import whose process is killed is read again; one that is cancelled leaves nothing."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .processes import alive, children, descendants, kill, until
from .stack import Stack, npy

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

SECRET = "s3cr3t-of-the-operator"
ROWS = np.random.default_rng(8).normal(size=(500, 16)).astype(np.float32)


class Slow(http.server.BaseHTTPRequestHandler):
    """Half a file, and the rest once `go` is set."""

    go = threading.Event()
    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        body = npy(ROWS)
        self.asked.append(self.path)
        self.send_response(200 if SECRET in self.headers.get("Authorization", "") else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2])
        self.go.wait(60)
        self.wfile.write(body[len(body) // 2 :])

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def stack(serve: Callable[..., Stack]) -> Iterator[Stack]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        connection = {
            "url": f"http://127.0.0.1:{server.server_port}/files",
            "private": True,
            "options": {"token": SECRET},
        }
        try:
            yield serve(ASSAY_CONNECTIONS=json.dumps({"lake": connection}), ASSAY_LOG_LEVEL="info")
        finally:
            Slow.go.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def reading(stack: Stack) -> tuple[str, int]:
    """An import in the middle of its file: its id and its process."""
    Slow.go.clear()
    Slow.asked.clear()
    source = {"kind": "npy", "connection": "lake", "path": "a.npy"}
    answer = stack.ask("POST", "/v1/datasets", json={"name": "slow", "source": source})
    assert answer.status_code == 202, answer.text
    until(lambda: Slow.asked, 30, "a request for the file")
    worker = stack.worker_processes()[0]
    return str(answer.json()["id"]), until(lambda: children(worker), 10, "a job process")[0]


def stored(stack: Stack) -> list[Path]:
    """Every file that belongs to a dataset, or to one on its way in."""
    folder = stack.home / "store" / "default" / "datasets"
    return [path for path in folder.rglob("*") if path.is_file()]


def test_an_import_is_cancelled_in_the_middle_and_leaves_nothing(
    stack: Stack, reading: tuple[str, int]
) -> None:
    job, process = reading
    assert stack.cancel(job)["state"] == "cancelled"
    until(lambda: not alive(process), 5, "the end of the process")
    assert stored(stack) == []
    assert stack.ask("GET", "/v1/datasets").json()["items"] == []


def test_an_import_whose_process_is_killed_is_read_again(
    stack: Stack, reading: tuple[str, int]
) -> None:
    job, process = reading
    kill(process, *descendants(process))
    until(lambda: len(Slow.asked) > 1, 60, "a second request")
    assert stack.ask("GET", "/v1/datasets").json()["items"] == []
    Slow.go.set()
    done = stack.ended(job, 30)
    assert done["state"] == "succeeded", done
    dataset = done["result"]["dataset"]
    answer = stack.ask("GET", f"/v1/datasets/{dataset}/vectors")
    assert answer.content == npy(ROWS)
    record = stack.ask("GET", f"/v1/datasets/{dataset}").json()
    assert record["spec"]["source"]["connection"] == "lake"
    seen = stack.log.read_text() + json.dumps([done, record])
    seen += stack.ask("GET", "/metrics").text
    assert SECRET not in seen
    for path in stored(stack):
        assert SECRET.encode() not in path.read_bytes()


def test_a_gate_whose_import_is_killed_is_judged_on_rows_read_once(stack: Stack) -> None:
    """Its checks wait for the second reading, without a process of their own meanwhile."""
    Slow.go.clear()
    Slow.asked.clear()
    checks = {
        name: {"kind": "geometry", "inputs": {"vectors": "rows"}, "seed": seed}
        for seed, name in enumerate(("one", "other"))
    }
    policy = {
        "version": 1, "name": "elsewhere", "inputs": {"rows": "vectors"}, "checks": checks,
        "rules": [{"measure": f"{name}.duplicates.rows", "at_most": 0} for name in checks],
    }  # fmt: skip
    source = {"kind": "npy", "connection": "lake", "path": "gate.npy"}
    body = {"policy": policy, "inputs": {"rows": {"source": source}}}
    run = stack.ask("POST", "/v1/gates", json=body).json()
    until(lambda: Slow.asked, 30, "a request for the file")
    process = until(lambda: children(stack.worker_processes()[0]), 10, "a job process")[0]
    kill(process, *descendants(process))
    until(lambda: len(Slow.asked) > 1, 60, "a second request")
    for job in run["links"]["jobs"].values():
        assert stack.ask("GET", job).json()["state"] == "queued"
    Slow.go.set()
    place = run["links"]["self"]
    until(lambda: stack.ask("GET", place).json()["state"] == "done", 60, "a verdict")
    judged = stack.ask("GET", place).json()
    assert judged["verdict"] == "pass", judged["rules"]
    assert Slow.asked == ["/files/gate.npy"] * 2
