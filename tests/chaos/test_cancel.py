"""A cancelled job stops at once, wherever it is, and nothing else does."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from redis import Redis

from service.storage.queue import RqQueue

from .processes import alive, children, kill, until
from .stack import Stack

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

STOPPED_S = 5
LONG_S = 600
SEEDS = itertools.count(100)


@pytest.fixture(scope="module")
def stack(serve: Callable[..., Stack]) -> Stack:
    return serve()


@pytest.fixture(scope="module")
def dataset(stack: Stack, rows: Any) -> str:
    return stack.upload(rows)


@pytest.fixture
def running(stack: Stack, dataset: str) -> tuple[str, int, int]:
    """A job inside the C call: its id, its seed and its process."""
    seed = next(SEEDS)
    stack.hold(seed, LONG_S)
    job = stack.submit("stuck", {"vectors": dataset}, seed)
    return job, seed, stack.inside(seed)


def next_job_runs(stack: Stack, dataset: str) -> None:
    job = stack.submit("stuck", {"vectors": dataset}, seed=1, cache=False)
    assert stack.ended(job, 10)["state"] == "succeeded"


def test_a_job_inside_a_c_call_is_cancelled_and_its_worker_lives(
    stack: Stack, dataset: str, running: tuple[str, int, int]
) -> None:
    """The state changes with the answer, the process is gone within 5 s, the worker goes on."""
    job, seed, process = running
    workers = stack.worker_processes()

    assert stack.cancel(job)["state"] == "cancelled"
    until(lambda: not alive(process), STOPPED_S, "the job process gone")
    next_job_runs(stack, dataset)

    assert stack.worker_processes() == workers
    assert stack.book(seed) == [process]
    assert stack.job(job)["state"] == "cancelled"
    refused = stack.ask("GET", f"/v1/jobs/{job}/report")
    assert (refused.status_code, refused.json()["code"]) == (409, "cancelled")


def test_a_search_inside_faiss_is_cancelled(stack: Stack) -> None:
    """Real rows, a real search: it is told how far it is, and is gone within 5 s."""
    many = np.random.default_rng(0).standard_normal((100_000, 64)).astype(np.float32)
    dataset = stack.upload(many)
    request = {"kind": "neighbour_stability", "inputs": {"gallery": {"dataset": dataset}}}
    job = stack.ask("POST", "/v1/jobs", json=request).json()["id"]

    def searching() -> bool:
        progress = stack.job(job)["progress"]
        return bool(progress and progress["done"] > 0)

    until(searching, 50, "progress of the search")
    (process,) = children(stack.worker_processes()[0])
    assert stack.cancel(job)["state"] == "cancelled"
    until(lambda: not alive(process), STOPPED_S, "the job process gone")
    next_job_runs(stack, stack.upload(many[:9]))


def test_cancelling_twice_changes_nothing(
    stack: Stack, dataset: str, running: tuple[str, int, int]
) -> None:
    """The second answer is the first; an ended job cannot be cancelled any more."""
    job, _, process = running
    first = stack.cancel(job)
    until(lambda: not alive(process), STOPPED_S, "the job process gone")

    assert stack.cancel(job) == first == stack.job(job)

    done = stack.submit("stuck", {"vectors": dataset}, seed=2)
    before = stack.ended(done, 10)
    assert stack.cancel(done) == before
    assert before["state"] == "succeeded"


def test_a_queued_job_that_is_cancelled_never_starts(
    stack: Stack, dataset: str, running: tuple[str, int, int]
) -> None:
    """It leaves the queue while the worker is busy; the job behind it runs."""
    occupying, _, _ = running
    queued = stack.submit("stuck", {"vectors": dataset}, seed=3)
    behind = stack.submit("stuck", {"vectors": dataset}, seed=4)

    assert stack.cancel(queued)["state"] == "cancelled"
    stack.cancel(occupying)
    assert stack.ended(behind, 10)["state"] == "succeeded"

    job = stack.job(queued)
    assert (job["state"], job["attempts"], job["started_at"]) == ("cancelled", 0, None)
    assert stack.book(3) == []


def test_an_order_to_stop_that_comes_again_and_again_leaves_the_worker_alone(
    stack: Stack, dataset: str
) -> None:
    """RQ would signal process 0, the worker's own group, once the job process was gone."""
    workers = stack.worker_processes()
    with Redis.from_url(stack.redis_url) as redis:
        queue = RqQueue(redis, attempts=3)
        for seed in range(10, 20):
            stack.hold(seed, LONG_S)
            job = stack.submit("stuck", {"vectors": dataset}, seed)
            process = stack.inside(seed)
            stack.cancel(job)
            for _ in range(10):
                queue.stop(job)
            until(lambda gone=process: not alive(gone), STOPPED_S, "the job process gone")
        next_job_runs(stack, dataset)

    assert stack.worker_processes() == workers


def test_a_job_can_be_cancelled_after_the_server_was_killed(
    stack: Stack, dataset: str, running: tuple[str, int, int]
) -> None:
    """The worker hears orders again once the server is back, or the sweeper repeats them."""
    job, _, process = running
    kill(stack.server())
    until(lambda: stack.ask("GET", "/readyz").status_code == 200, 15, "ready again")

    assert stack.cancel(job)["state"] == "cancelled"
    until(lambda: not alive(process), STOPPED_S, "the job process gone")
    next_job_runs(stack, dataset)
