"""
A job in shards ends once, with one report and the digest of one process, whatever is killed.

Twenty rows in blocks of five are four shards on two workers; a file holds each inside a C call.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from service.storage.queue import LEASE_S, RqQueue

from .processes import alive, children, kill, until, words
from .stack import Stack

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(180),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

PARAMS = {"block_rows": 5}
SHARDS = 4
STOPPED_S = 5
RECOVERED_S = LEASE_S + 20
LONG_S = 600
ATTEMPTS = 3
MANY = 20
SEEDS = itertools.count(1)
Digests = Callable[[Sequence[int]], list[str]]


def with_shard_workers(stack: Stack, jobs: int = 2) -> Stack:
    """A service is ready without them, and would not cut a job."""
    wanted = {"jobs": jobs, "shards": 2}
    until(lambda: stack.ask("GET", "/readyz").json()["workers"] == wanted, 30, f"{wanted}")
    return stack


@pytest.fixture(scope="module")
def stack(serve: Callable[..., Stack]) -> Stack:
    return with_shard_workers(serve(workers=2))


@pytest.fixture(scope="module")
def dataset(stack: Stack, rows: Any) -> str:
    return stack.upload(rows)


@pytest.fixture
def seed() -> int:
    return next(SEEDS)


@pytest.fixture(scope="module")
def digests(undisturbed: Callable[..., list[str]], rows: Any) -> Digests:
    """Digests of jobs by seed, from one process without queue or worker."""

    def run(seeds: Sequence[int]) -> list[str]:
        return undisturbed(
            {"rows": rows},
            [
                {
                    "kind": "nearest",
                    "inputs": {"vectors": {"path": "rows.npy"}},
                    "params": PARAMS,
                    "seed": seed,
                }
                for seed in seeds
            ],
        )

    return run


def submit(stack: Stack, dataset: str, seed: int, **params: Any) -> str:
    return stack.submit("nearest", {"vectors": dataset}, seed, params=PARAMS | params)


def parts(stack: Stack, job: str | None = None) -> list[Path]:
    """Stored parts."""
    return sorted((stack.home / "store" / "_parts").glob(f"{job or '*'}/*"))


def starts(stack: Stack, seed: int) -> list[int]:
    """How often each shard has begun, then how often they were combined."""
    return [len(stack.book(f"{seed}-{place}")) for place in (*range(SHARDS), "combine")]


def succeeds(
    stack: Stack, job: str, digests: Digests, seed: int, seconds: float = RECOVERED_S
) -> dict[str, Any]:
    """The report of a job, which has to be the one of one process, stored once."""
    ended = stack.ended(job, seconds)
    assert ended["state"] == "succeeded", ended
    report = stack.report(job)
    assert report["digest"] == digests([seed])[0]
    assert stack.stored_reports().count(report["request_digest"]) == 1
    return report


def test_shards_are_computed_by_other_processes_and_their_parts_are_removed(
    stack: Stack, dataset: str, digests: Digests, seed: int
) -> None:
    """Each shard and the combination once; niced workers; progress on the way."""
    stack.hold(f"{seed}-3", LONG_S)
    job = submit(stack, dataset, seed)
    last = stack.inside(f"{seed}-3")
    until(lambda: len(parts(stack, job)) == 3, 10, "three parts")
    progress = until(lambda: stack.job(job)["progress"], 5, "progress")
    assert (progress["stage"], progress["total"]) == ("shards", 100)
    until(lambda: stack.job(job)["progress"]["done"] == 75, 5, "three quarters done")
    assert stack.job(job)["state"] == "running"
    shard_worker = stack.worker_of(last)
    assert shard_worker in stack.worker_processes("shards")
    own = os.getpriority(os.PRIO_PROCESS, stack.worker_processes("jobs")[0])
    assert os.getpriority(os.PRIO_PROCESS, last) == min(own + 5, 19)
    stack.hold(f"{seed}-3", 0)
    kill(last)

    report = succeeds(stack, job, digests, seed)
    assert report["timing"]["shards"] == SHARDS
    assert [one["code"] for one in report["warnings"]] == ["searched", "combined"]
    assert starts(stack, seed) == [1, 1, 1, 2, 1]
    until(lambda: not parts(stack, job), 15, "the parts removed")


def test_a_worker_killed_in_a_shard_loses_only_that_shard(
    stack: Stack, dataset: str, digests: Digests, seed: int
) -> None:
    """The other shards go on; this one begins again within its lease."""
    stack.hold(f"{seed}-1", LONG_S)
    job = submit(stack, dataset, seed)
    process = stack.inside(f"{seed}-1")
    stack.hold(f"{seed}-1", 0)
    kill(stack.worker_of(process))
    until(lambda: not alive(process), STOPPED_S, "the shard gone with its worker")
    succeeds(stack, job, digests, seed)
    assert starts(stack, seed) == [1, 2, 1, 1, 1]


@pytest.mark.parametrize("queued", [0, 3])
def test_a_parent_killed_after_its_plan_is_continued(
    stack: Stack, dataset: str, digests: Digests, seed: int, queued: int
) -> None:
    """With no shard in the queue, or all but one: the next parent queues what is missing."""
    (stack.chaos / "die_queueing").write_text(str(queued))
    job = submit(stack, dataset, seed)
    succeeds(stack, job, digests, seed)
    assert (stack.chaos / "die_queueing.done").exists()
    assert starts(stack, seed) == [1, 1, 1, 1, 1]
    assert stack.job(job)["attempts"] == 2


def test_a_process_killed_while_it_combines_is_replaced(
    stack: Stack, dataset: str, digests: Digests, seed: int
) -> None:
    """From the same parts."""
    stack.hold(f"{seed}-combine", LONG_S)
    job = submit(stack, dataset, seed)
    process = stack.inside(f"{seed}-combine")
    assert stack.worker_of(process) in stack.worker_processes("jobs")
    stack.hold(f"{seed}-combine", 0)
    kill(process)
    succeeds(stack, job, digests, seed)
    assert starts(stack, seed) == [1, 1, 1, 1, 2]


def test_a_shard_whose_process_dies_every_time_fails_the_job(
    stack: Stack, dataset: str, seed: int
) -> None:
    """Three processes; the job ends with `worker-lost` and leaves no part."""
    stack.hold(f"{seed}-2", LONG_S)
    job = submit(stack, dataset, seed)
    for attempt in range(1, ATTEMPTS + 1):
        kill(stack.inside(f"{seed}-2", attempt))
    ended = stack.ended(job, RECOVERED_S)
    assert (ended["state"], ended["problem"]["code"]) == ("failed", "worker-lost")
    assert starts(stack, seed) == [1, 1, ATTEMPTS, 1, 0]
    until(lambda: not parts(stack, job), 15, "the parts removed")


def test_a_shard_that_is_refused_fails_the_job_and_stops_the_others(
    stack: Stack, dataset: str, seed: int
) -> None:
    """The job has the problem of that shard; a sibling inside a C call is stopped."""
    stack.hold(f"{seed}-0", LONG_S)
    job = submit(stack, dataset, seed, refused_block=1)
    process = stack.inside(f"{seed}-0")
    ended = stack.ended(job, 10)
    assert (ended["state"], ended["problem"]["detail"]) == ("failed", "Block 1 is refused.")
    until(lambda: not alive(process), STOPPED_S, "the sibling stopped")


def test_a_shard_the_queue_has_lost_is_queued_again(
    stack: Stack, dataset: str, digests: Digests, seed: int
) -> None:
    """The sweeper compares the record with the queue."""
    for place in (0, 1):
        stack.hold(f"{seed}-{place}", LONG_S)
    job = submit(stack, dataset, seed)
    held = [stack.inside(f"{seed}-{place}") for place in (0, 1)]
    with Redis.from_url(stack.redis_url) as redis:
        queue = RqQueue(redis, attempts=ATTEMPTS)
        until(lambda: queue.holds(f"{job}-s3"), 5, "the last shard queued")
        queue.forget(f"{job}-s3")
    for place, process in enumerate(held):
        stack.hold(f"{seed}-{place}", 0)
        kill(process)
    succeeds(stack, job, digests, seed)
    assert starts(stack, seed) == [2, 2, 1, 1, 1]


def test_a_job_cancelled_in_its_shards_stops_at_once(
    stack: Stack, dataset: str, digests: Digests, seed: int
) -> None:
    """Two shards are inside C calls, two wait: all end within 5 s, and the workers go on."""
    for place in range(SHARDS):
        stack.hold(f"{seed}-{place}", LONG_S)
    job = submit(stack, dataset, seed)
    inside = [stack.inside(f"{seed}-{place}") for place in (0, 1)]
    workers = stack.worker_processes("shards")

    assert stack.cancel(job)["state"] == "cancelled"
    until(lambda: not any(map(alive, inside)), STOPPED_S, "the shards gone")

    after = next(SEEDS)
    succeeds(stack, submit(stack, dataset, after), digests, after)
    assert starts(stack, seed) == [1, 1, 0, 0, 0]
    assert stack.worker_processes("shards") == workers
    assert stack.job(job)["state"] == "cancelled"
    until(lambda: not parts(stack), 15, "all parts removed")


def test_a_job_in_shards_outlives_its_service(
    stack: Stack, dataset: str, digests: Digests, seed: int
) -> None:
    """Everything is killed with two shards running and two waiting, and started again."""
    for place in (0, 1):
        stack.hold(f"{seed}-{place}", LONG_S)
    job = submit(stack, dataset, seed)
    for place in (0, 1):
        stack.inside(f"{seed}-{place}")
    for place in (0, 1):
        stack.hold(f"{seed}-{place}", 0)
    stack.kill()
    stack.started()
    succeeds(stack, job, digests, seed, RECOVERED_S + 20)
    begun = starts(stack, seed)
    assert (begun[:2], begun[2:]) == ([2, 2], [1, 1, 1])


def test_twenty_jobs_in_shards_end_once_each_while_processes_die(
    stack: Stack, dataset: str, digests: Digests, measured: Callable[[str, object], None]
) -> None:
    """At once, with a worker of each pool killed among them."""
    seeds = [next(SEEDS) for _ in range(MANY)]
    jobs = [submit(stack, dataset, seed) for seed in seeds]
    kill(stack.worker_processes("shards")[0])
    kill(stack.worker_processes("jobs")[0])
    ended = [stack.ended(job, 2 * RECOVERED_S) for job in jobs]
    assert {job["state"] for job in ended} == {"succeeded"}
    reports = [stack.report(job) for job in jobs]
    assert [report["digest"] for report in reports] == digests(seeds)
    wanted = {report["request_digest"] for report in reports}
    assert len(wanted) == MANY
    assert wanted <= set(stack.stored_reports())
    shards = [report["timing"]["shards"] for report in reports]
    measured("shards of twenty jobs at once", shards)
    assert max(shards) == SHARDS
    until(lambda: not parts(stack), 15, "all parts removed")


def test_a_job_in_shards_is_stopped_at_its_deadline(serve: Callable[..., Stack], rows: Any) -> None:
    """Which counts from its first shard; processes of all its shards end."""
    stack = with_shard_workers(serve(workers=2, ASSAY_JOB_DEADLINE_S="2"))
    for place in range(SHARDS):
        stack.hold(f"0-{place}", LONG_S)
    job = submit(stack, stack.upload(rows), 0)
    inside = [stack.inside(f"0-{place}") for place in (0, 1)]
    ended = stack.ended(job, 10)
    assert (ended["state"], ended["problem"]["code"]) == ("failed", "timed-out")
    until(lambda: not any(map(alive, inside)), STOPPED_S, "the shards gone")
    assert starts(stack, 0) == [1, 1, 0, 0, 0]


def test_a_machine_of_shard_workers_makes_jobs_cut(
    serve: Callable[..., Stack], rows: Any, digests: Digests
) -> None:
    """One worker for shards is too few; `assay worker --shards` beside it brings the second."""
    stack = serve(workers=1)
    dataset, (alone, cut) = stack.upload(rows), (next(SEEDS), next(SEEDS))
    assert succeeds(stack, submit(stack, dataset, alone), digests, alone)["timing"]["shards"] == 1
    more = subprocess.Popen(
        [sys.executable, "-m", "assay_client.cli", "worker", "--shards"],
        cwd=stack.tree,
        env=stack.env | {"REDIS_URL": stack.redis_url},
    )
    try:
        with_shard_workers(stack, jobs=1)
        report = succeeds(stack, submit(stack, dataset, cut), digests, cut)
        assert report["timing"]["shards"] == SHARDS
        assert [words(pid).split()[-1] for pid in children(more.pid)] == ["shards"]
    finally:
        more.terminate()
        assert more.wait(15) == 0
