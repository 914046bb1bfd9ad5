"""A job that takes too much memory, too much time or too many processes fails; its worker lives."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .processes import alive, until
from .stack import Stack

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

DEADLINE_S = 3
SWEPT_S = 4
"""Two rounds of the sweeper."""
ATTEMPTS = 3
KILLED_S = 5


@pytest.fixture(scope="module")
def stack(serve: Callable[..., Stack]) -> Stack:
    return serve(ASSAY_JOB_DEADLINE_S=str(DEADLINE_S), ASSAY_JOB_ATTEMPTS=str(ATTEMPTS))


@pytest.fixture(scope="module")
def dataset(stack: Stack, rows: Any) -> str:
    return stack.upload(rows)


@pytest.fixture(autouse=True)
def same_worker(stack: Stack, dataset: str) -> Iterator[None]:
    """The one worker is the same process afterwards, and runs the next job."""
    workers = stack.worker_processes()
    yield
    job = stack.submit("stuck", {"vectors": dataset}, seed=1, cache=False)
    assert stack.ended(job, 10)["state"] == "succeeded"
    assert stack.worker_processes() == workers


def problem_of(stack: Stack, job: dict[str, Any]) -> str:
    """Code of a failed job, in the job and in place of its report."""
    assert job["state"] == "failed"
    refused = stack.ask("GET", f"/v1/jobs/{job['id']}/report")
    assert (refused.status_code, refused.json()["code"]) == (409, job["problem"]["code"])
    assert stack.stored_reports() == [] or job["result"] is None
    return str(job["problem"]["code"])


def test_a_job_over_its_memory_fails_out_of_memory(stack: Stack, dataset: str) -> None:
    """The refused allocation is the job's own problem, and no reason to try again."""
    job = stack.ended(stack.submit("hungry", {"vectors": dataset}), 20)

    assert problem_of(stack, job) == "out-of-memory"
    assert job["attempts"] == 1


def test_a_job_over_its_deadline_inside_a_c_call_fails_timed_out(
    stack: Stack, dataset: str
) -> None:
    """The C call hears no signal but kill: the job ends, and so does its process."""
    stack.hold(2, 600)
    job_id = stack.submit("stuck", {"vectors": dataset}, seed=2)
    process = stack.inside(2)
    began = time.monotonic()

    job = stack.ended(job_id, DEADLINE_S + SWEPT_S)
    assert time.monotonic() - began > DEADLINE_S - 1
    assert problem_of(stack, job) == "timed-out"
    until(lambda: not alive(process), KILLED_S, "the job process gone")
    assert stack.book(2) == [process]


def test_a_job_whose_process_always_dies_is_given_up_as_worker_lost(
    stack: Stack, dataset: str
) -> None:
    """As many processes as the operator allows die on it, and no more."""
    job = stack.ended(stack.submit("dying", {"vectors": dataset}, seed=3), 20)

    assert problem_of(stack, job) == "worker-lost"
    assert len(stack.book(3)) == ATTEMPTS
