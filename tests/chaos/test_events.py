"""A listener hears a job to its end, once and in order, whatever is killed beside it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from service.storage.queue import LEASE_S

from .processes import alive, kill, until
from .stack import ENDED, Stack, free_port

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

RECOVERED_S = LEASE_S + 20
LONG_S = 600
FSYNC_S = 1.5
"""What is older than that a killed server has kept."""
SEEDS = itertools.count(1)


class Listener:
    """Follows a job on a thread, and comes back with the last id wherever it is cut off."""

    def __init__(self, stack: Stack, job: str, port: int | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self.cuts = 0
        self._url = f"http://127.0.0.1:{port or stack.port}/v1/jobs/{job}/events"
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self.ended:
            headers = {"Last-Event-ID": self.events[-1]["id"]} if self.events else {}
            try:
                with httpx.stream("GET", self._url, headers=headers, timeout=30) as answer:
                    if answer.status_code == 200:
                        self._listen(answer)
                    else:
                        assert answer.status_code == 503
            except httpx.TransportError:
                self.cuts += 1
            time.sleep(0.1)

    def _listen(self, answer: httpx.Response) -> None:
        fields: dict[str, str] = {}
        for line in answer.iter_lines():
            if line.startswith(":"):
                continue
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                data = json.loads(fields["data"])
                self.events.append({"id": fields["id"], "event": fields["event"], "data": data})
                fields = {}

    @property
    def ended(self) -> bool:
        return bool(self.events) and self.events[-1]["event"] == "done"

    def states(self) -> list[tuple[str, int]]:
        """States it has heard, each with the attempts until then."""
        return [
            (one["data"]["state"], one["data"]["attempts"])
            for one in self.events
            if one["event"] == "state"
        ]

    def hears(self, state: str, attempts: int, seconds: float = 20) -> None:
        """Wait until it has heard that."""
        until(lambda: (state, attempts) in self.states(), seconds, f"{state}, {attempts}")

    def finished(self, seconds: float) -> list[dict[str, Any]]:
        """All it has heard, once the job has ended."""
        until(lambda: self.ended, seconds, f"the end; heard {self.states()}")
        self._thread.join()
        return self.events


@pytest.fixture(scope="module")
def stack(serve: Callable[..., Stack]) -> Stack:
    return serve(workers=2)


@pytest.fixture(scope="module")
def dataset(stack: Stack, rows: Any) -> str:
    return stack.upload(rows)


@pytest.fixture
def seed() -> int:
    return next(SEEDS)


def stuck(stack: Stack, dataset: str, seed: int) -> str:
    """A job that a process is inside of."""
    stack.hold(seed, LONG_S)
    job = stack.submit("stuck", {"vectors": dataset}, seed)
    stack.inside(seed)
    return job


def agree(stack: Stack, job: str, heard: list[dict[str, Any]]) -> None:
    """Nothing was missed or heard twice: it is what who comes after the end hears at once."""
    late = Listener(stack, job).finished(10)
    assert [one["id"] for one in heard] == [one["id"] for one in late]
    assert heard == late
    assert heard[-1]["data"] == stack.job(job)


def test_a_killed_worker_is_heard_and_so_is_who_takes_over(
    stack: Stack, dataset: str, seed: int
) -> None:
    """The worker and its process die: `running` comes again, with one more attempt."""
    job = stuck(stack, dataset, seed)
    listener = Listener(stack, job)
    listener.hears("running", 1)
    process = stack.inside(seed)
    stack.hold(seed, 0)
    kill(stack.worker_of(process), process)

    heard = listener.finished(RECOVERED_S)

    assert listener.states() == [("queued", 0), ("running", 1), ("running", 2), ("succeeded", 2)]
    assert listener.cuts == 0
    agree(stack, job, heard)


def test_a_listener_outlives_the_api_and_the_server(stack: Stack, dataset: str, seed: int) -> None:
    """Both are killed one after the other under an open stream."""
    job = stuck(stack, dataset, seed)
    listener = Listener(stack, job)
    listener.hears("running", 1)
    time.sleep(FSYNC_S)
    kill(stack.api())
    until(lambda: listener.cuts > 0, 10, "the stream was cut")
    until(lambda: stack.ask("GET", "/healthz").status_code == 200, 20, "the API again")
    server = stack.server()
    kill(server)
    until(lambda: not alive(server), 5, "the server gone")
    stack.hold(seed, 0)
    kill(stack.inside(seed))

    heard = listener.finished(RECOVERED_S)

    assert listener.states()[:2] == [("queued", 0), ("running", 1)]
    assert listener.states()[-1][0] == "succeeded"
    agree(stack, job, heard)


def test_another_api_process_tells_the_same(stack: Stack, dataset: str, seed: int) -> None:
    """Ids are the job's, not the process's: what one has told, the other goes on from."""
    port = free_port()
    command = [
        sys.executable, "-m", "uvicorn", "api.main:from_environment", "--factory",
        "--port", str(port), "--log-level", "critical",
    ]  # fmt: skip
    env = stack.env | {"REDIS_URL": stack.redis_url}
    other = subprocess.Popen(command, cwd=stack.tree, env=env)
    try:
        job = stuck(stack, dataset, seed)
        here, there = Listener(stack, job), Listener(stack, job, port)
        there.hears("running", 1)
        stack.hold(seed, 0)
        kill(stack.inside(seed))
        assert here.finished(RECOVERED_S) == there.finished(RECOVERED_S)
        agree(stack, job, here.events)
    finally:
        other.terminate()
        assert other.wait(15) in (0, -15)


def test_a_job_in_shards_is_heard_from_all_of_them(stack: Stack, dataset: str, seed: int) -> None:
    """One sequence, whichever worker speaks; each warning once, by whoever combines."""
    wanted = {"jobs": 2, "shards": 2}
    until(lambda: stack.ask("GET", "/readyz").json()["workers"] == wanted, 30, f"{wanted}")
    for block in range(4):
        stack.hold(f"{seed}-{block}", 1)
    job = stack.submit("nearest", {"vectors": dataset}, seed, params={"block_rows": 5})
    listener = Listener(stack, job)
    heard = listener.finished(RECOVERED_S)
    assert listener.states() == [("queued", 0), ("running", 1), ("succeeded", 1)]
    done = [one["data"]["done"] for one in heard if one["event"] == "progress"]
    assert any(0 < one < 100 for one in done)
    said = [one["data"]["code"] for one in heard if one["event"] == "warning"]
    assert sorted(said) == ["combined", "searched"]
    assert said == [one["code"] for one in stack.report(job)["warnings"]]
    agree(stack, job, heard)


def test_a_cancelled_job_ends_its_streams(stack: Stack, dataset: str, seed: int) -> None:
    """At once, though its process was inside a C call."""
    job = stuck(stack, dataset, seed)
    listener = Listener(stack, job)
    listener.hears("running", 1)
    stack.cancel(job)
    heard = listener.finished(5)
    assert listener.states()[-1] == ("cancelled", 1)
    agree(stack, job, heard)


@contextmanager
def streams(stack: Stack, job: str, count: int) -> Iterator[list[httpx.Response]]:
    """So many open streams, each of which has said something."""
    with httpx.Client(timeout=30, limits=httpx.Limits(max_connections=None)) as client:
        request = client.build_request("GET", f"http://127.0.0.1:{stack.port}/v1/jobs/{job}/events")
        opened = [client.send(request, stream=True) for _ in range(count)]
        yield opened
        for one in opened:
            one.close()


def test_open_streams_do_not_hold_up_the_end_of_the_service(
    stack: Stack, dataset: str, seed: int
) -> None:
    """SIGTERM ends them in order, well before uvicorn would cut them; listeners come back later."""
    job = stuck(stack, dataset, seed)
    listener = Listener(stack, job)
    listener.hears("running", 1)
    api = stack.api()
    with streams(stack, job, 30) as opened:
        pieces = [one.iter_text() for one in opened]
        assert all("queued" in next(one) for one in pieces)
        ended: dict[int, float] = {}

        def drain(i: int) -> None:
            for _ in pieces[i]:  # a stream that were cut off would raise
                pass
            ended[i] = time.monotonic()

        readers = [threading.Thread(target=drain, args=(i,)) for i in range(len(pieces))]
        for reader in readers:
            reader.start()
        began = time.monotonic()
        subprocess.run(["kill", "-TERM", str(api)], check=True)
        until(lambda: not alive(api), 10, "the API gone")
        gone = time.monotonic() - began
        for reader in readers:
            reader.join()
    assert len(ended) == 30
    assert max(ended.values()) - began < 1
    assert gone < 2.5, "uvicorn gives answers three seconds"
    assert "graceful shutdown exceeded" not in stack.log.read_text()
    stack.hold(seed, 0)
    kill(stack.inside(seed))
    agree(stack, job, listener.finished(RECOVERED_S))


def test_a_job_that_the_sweeper_ends_is_heard_to_its_end(
    serve: Callable[..., Stack], rows: Any
) -> None:
    """Its deadline passes while its process is inside a C call."""
    stack = serve(ASSAY_JOB_DEADLINE_S="2")
    job = stuck(stack, stack.upload(rows), 1)
    heard = Listener(stack, job).finished(30)
    assert heard[-1]["data"]["problem"]["code"] == "timed-out"
    assert heard[-1]["data"]["state"] in ENDED
    agree(stack, job, heard)
