"""A job in shards: whoever computes its blocks, in whatever order and however often, one answer."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from service import report, request
from service.blocks import Plan
from service.errors import Internal, QueueFull
from service.job import COMBINE, Job, State, Step, now, steps
from service.operations import (
    Services,
    cancel,
    combine,
    fail,
    hand_out,
    perform,
    perform_shard,
    report_bytes,
    submit,
)
from service.progress import ShardThrottle, of_shards
from service.storage.memory import MemoryQueue
from tests.chaos.checks.nearest import nearest

X = np.random.default_rng(30).normal(size=(61, 5)).astype(np.float32)
BLOCKS = 8
WORKERS = 3


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of these tests is in the catalogue."""
    monkeypatch.setitem(request.BY_KIND, "nearest", nearest)
    monkeypatch.setattr(request, "_ADAPTER", TypeAdapter(request.request_model(nearest)))
    monkeypatch.setitem(report.REPORTS, "nearest", report.report_model(nearest))
    monkeypatch.setattr(report, "_ADAPTER", TypeAdapter(report.report_model(nearest)))


@pytest.fixture
def queue(services: Services) -> MemoryQueue:
    """The queue, behind which several workers for shards live."""
    assert isinstance(services.queue, MemoryQueue)
    services.queue.shard_workers = WORKERS
    return services.queue


@pytest.fixture
def queued(services: Services, store: Any) -> Callable[..., Job]:
    """A job in the queue."""

    def make(**more: Any) -> Job:
        body = {"kind": "nearest", "inputs": {"vectors": {"dataset": store(X).id}}, **more}
        return submit(services, "default", request.parse_request(body))

    return make


@pytest.fixture
def handed_out(queued: Callable[..., Job], services: Services, queue: MemoryQueue) -> Job:
    """A job whose shards are in the queue."""
    job = queued()
    queue.waiting.remove(job.id)
    perform(services, job.id)
    return found(services, job)


def found(services: Services, job: Job) -> Job:
    return services.jobs.get("default", job.id)


def answered(services: Services, job: Job) -> dict[str, Any]:
    return dict(json.loads(report_bytes(services, "default", job.id)))


def alone(services: Services, queue: MemoryQueue, queued: Callable[..., Job]) -> dict[str, Any]:
    """The report of the same request, made by one process."""
    workers, queue.shard_workers = queue.shard_workers, 0
    job = queued(cache=False)
    queue.waiting.remove(job.id)
    perform(services, job.id)
    queue.shard_workers = workers
    done = found(services, job)
    assert (done.state, done.plan) == (State.succeeded, None)
    return answered(services, job)


def numbered(task: str) -> int:
    return int(task.rpartition("-s")[2])


# the steps of a job


def test_a_job_in_shards_has_the_report_of_one_process(
    services: Services, queue: MemoryQueue, queued: Any
) -> None:
    """The same digest, warnings once each, seconds by stage, and how many shards there were."""
    job = queued()
    perform(services, queue.waiting.pop())
    planned = found(services, job)
    assert planned.plan == Plan(blocks=BLOCKS, shards=2 * WORKERS)
    assert (planned.state, queue.waiting) == (State.running, [])
    assert queue.shards == [f"{job.id}-s{shard}" for shard in range(6)]

    for task in reversed(queue.shards):
        assert queue.waiting == []
        perform_shard(services, job.id, numbered(task))
    assert queue.waiting == [f"{job.id}-c"]
    combine(services, job.id)

    assert found(services, job).state is State.succeeded
    answer, single = answered(services, job), None
    assert [one["code"] for one in answer["warnings"]] == ["searched", "combined"]
    assert answer["timing"]["shards"] == 6
    assert 0 < answer["timing"]["stages"]["search"] < answer["timing"]["run_s"]
    services.reports._stored.clear()  # type: ignore[attr-defined]
    single = alone(services, queue, queued)
    assert single["timing"]["shards"] == 1
    for field in ("digest", "results", "warnings", "scope", "environment", "readings"):
        assert single[field] == answer[field]


@pytest.mark.parametrize(("workers", "rows", "planned"), [(1, 8, 0), (2, 61, 0), (2, 31, 2)])
def test_nothing_is_cut_without_two_workers_and_two_blocks(
    workers: int, rows: int, planned: int, services: Services, queue: MemoryQueue, queued: Any
) -> None:
    """One process computes the whole and succeeds."""
    queue.shard_workers = workers
    job = queued(params={"block_rows": rows})
    perform(services, job.id)
    plan = found(services, job).plan
    assert (plan.shards if plan else 0) == planned == len(queue.shards)
    assert found(services, job).state is (State.running if planned else State.succeeded)


def test_the_plan_is_written_once(services: Services, queue: MemoryQueue, handed_out: Job) -> None:
    """A second parent, with more workers alive, hands out the same shards, each once."""
    queue.shard_workers = 100
    perform(services, handed_out.id)
    again = found(services, handed_out)
    assert (again.plan, again.attempts) == (handed_out.plan, 2)
    assert len(queue.shards) == len(set(queue.shards)) == 6


def test_two_parents_at_once_agree_on_one_plan(
    services: Services, queue: MemoryQueue, queued: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have loaded the data before either writes, and see another number of workers."""
    job = queued()
    ready, workers = threading.Barrier(2), itertools.count(2)

    def count(_: object) -> int:
        ready.wait(10)
        return next(workers)

    monkeypatch.setattr(queue, "workers", count)
    plans: list[Plan | None] = []

    def note(services: Services, job: Job) -> None:
        plans.append(job.plan)
        hand_out(services, job)

    monkeypatch.setattr("service.performing.hand_out", note)
    parents = [threading.Thread(target=perform, args=(services, job.id)) for _ in range(2)]
    for parent in parents:
        parent.start()
    for parent in parents:
        parent.join()
    plan = found(services, job).plan
    assert plan is not None
    assert plans == [plan, plan]
    assert queue.shards == [f"{job.id}-s{shard}" for shard in range(plan.shards)]


def test_a_parent_that_died_after_the_plan_is_continued(
    services: Services, queue: MemoryQueue, queued: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two shards were queued; the next parent queues the rest, without looking at the data."""
    job = queued()

    class Died(BaseException):
        pass

    enqueue, left = queue.enqueue, iter([True, True, False])

    def dying(*given: Any) -> None:
        if not next(left):
            raise Died
        enqueue(*given)

    monkeypatch.setattr(queue, "enqueue", dying)
    with pytest.raises(Died):
        perform(services, job.id)
    monkeypatch.undo()
    assert found(services, job).plan is not None
    assert len(queue.shards) == 2
    monkeypatch.setattr(services.datasets, "load", lambda *_: 1 / 0)
    perform(services, job.id)
    assert len(queue.shards) == 6


def test_a_shard_that_runs_again_counts_once(
    services: Services, queue: MemoryQueue, handed_out: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its part is not computed again, progress stays, and the job is not combined early."""
    perform_shard(services, handed_out.id, 0)
    monkeypatch.setattr(services.datasets, "load", lambda *_: 1 / 0)
    for _ in range(2):
        perform_shard(services, handed_out.id, 0)
    assert services.jobs.done(handed_out.id) == {0: 1.0}
    assert (queue.waiting, found(services, handed_out).state) == ([], State.running)


def test_a_slow_twin_cannot_take_back_what_is_done(services: Services, handed_out: Job) -> None:
    """A shard that was given up for lost and still runs reports less; the part is stored."""
    perform_shard(services, handed_out.id, 2)
    services.jobs.report_done(handed_out.id, 2, 0.25)
    assert services.jobs.done(handed_out.id)[2] == 1.0


def test_progress_is_the_mean_over_shards(services: Services, handed_out: Job) -> None:
    """Only a stored part is whole: two of six, and a third that has told 999/1000 of all there is."""

    def told() -> tuple[str, int, int]:
        progress = services.jobs.progress(handed_out.id)
        assert progress is not None
        return progress.stage, progress.done, progress.total

    assert told() == ("shards", 0, 100)
    for shard in (0, 1):
        perform_shard(services, handed_out.id, shard)
    assert told() == ("shards", 33, 100)
    ShardThrottle(services.jobs, handed_out, 2)("search", 7, 7)
    assert told() == ("shards", 49, 100)
    assert services.jobs.done(handed_out.id)[2] < 1


def test_the_time_left_counts_from_the_first_shard(services: Services, handed_out: Job) -> None:
    """A quarter done after a minute leaves three, whoever tells."""
    begun = handed_out.model_copy(update={"attempt_started_at": now() - timedelta(seconds=60)})
    left = of_shards(begun, 0.25).eta_s
    assert left == pytest.approx(180, abs=2)
    assert of_shards(begun, 0.0).eta_s is of_shards(handed_out, 0.5).eta_s is None


def test_a_job_is_combined_by_whoever_sees_it_whole(
    services: Services, queue: MemoryQueue, handed_out: Job
) -> None:
    """The last shard died between its part and the queue: it runs again, or the parent does."""
    for shard in range(6):
        perform_shard(services, handed_out.id, shard)
    queue.waiting.clear()
    perform_shard(services, handed_out.id, 3)
    assert queue.waiting == [COMBINE.of(handed_out.id)]
    queue.waiting.clear()
    perform(services, handed_out.id)
    assert queue.waiting == [COMBINE.of(handed_out.id)]
    combine(services, handed_out.id)
    report = report_bytes(services, "default", handed_out.id)
    combine(services, handed_out.id)
    assert report_bytes(services, "default", handed_out.id) == report


def test_parts_that_nobody_stored_are_computed_when_combining(
    services: Services, queue: MemoryQueue, queued: Any, handed_out: Job
) -> None:
    """The workers for shards have gone: one process still ends the job, with the same digest."""
    for shard in (1, 4):
        perform_shard(services, handed_out.id, shard)
    combine(services, handed_out.id)
    done = found(services, handed_out)
    assert done.state is State.succeeded
    digest = answered(services, handed_out)["digest"]
    services.reports._stored.clear()  # type: ignore[attr-defined]
    assert alone(services, queue, queued)["digest"] == digest


# how it ends


def test_nothing_is_begun_for_a_job_that_has_ended(
    services: Services, queue: MemoryQueue, handed_out: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step first reads the record: no data is loaded, no start counted."""
    fail(services, handed_out.id, Internal("x"))
    before = found(services, handed_out)
    monkeypatch.setattr(services.datasets, "load", lambda *_: 1 / 0)
    perform_shard(services, handed_out.id, 0)
    combine(services, handed_out.id)
    perform(services, handed_out.id)
    assert found(services, handed_out) == before
    assert services.jobs.begin(handed_out.id, Step("shard", 0)) == 1
    perform_shard(services, "job_" + "0" * 24, 0)
    combine(services, "job_" + "0" * 24)


def test_cancelling_takes_every_step_from_the_queue(
    services: Services, queue: MemoryQueue, handed_out: Job
) -> None:
    """The record first: a step that starts in between finds it."""
    stopped: list[tuple[str, State]] = []
    stop = queue.stop

    def watched(task: str) -> None:
        stopped.append((task, found(services, handed_out).state))
        stop(task)

    queue.enqueue(handed_out, COMBINE)
    queue.stop = watched  # type: ignore[method-assign]
    cancel(services, "default", handed_out.id)
    assert queue.shards == queue.waiting == []
    assert [task for task, _ in stopped] == [
        step.of(handed_out.id) for step in steps(found(services, handed_out))
    ]
    assert {state for _, state in stopped} == {State.cancelled}


def test_a_job_cancelled_while_it_is_planned_is_not_computed(
    services: Services, queue: MemoryQueue, queued: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is declined, no shard is queued, and the parent does not do it all by itself."""
    job = queued()

    def count(_: object) -> int:
        cancel(services, "default", job.id)
        return 2

    monkeypatch.setattr(queue, "workers", count)
    computed: list[object] = []
    monkeypatch.setattr("service.performing.answer", lambda *given: computed.append(given))
    perform(services, job.id)
    after = found(services, job)
    assert (after.state, after.plan, queue.shards, computed) == (State.cancelled, None, [], [])


def test_a_shard_that_is_refused_fails_the_job_with_its_problem(
    services: Services, queue: MemoryQueue, queued: Any
) -> None:
    """Its siblings find the job ended, and nothing is combined."""
    job = queued(params={"refused_block": 5})
    perform(services, job.id)
    for task in list(queue.shards):
        perform_shard(services, job.id, numbered(task))
    after = found(services, job)
    assert (after.state, after.problem.code) == (State.failed, "invalid-request")
    assert after.problem.detail == "Block 5 is refused."
    assert COMBINE.of(job.id) not in queue.waiting


@pytest.mark.parametrize("step", [Step("shard", 1), COMBINE])
def test_a_step_lost_too_often_gives_up_the_job(
    step: Step, services: Services, handed_out: Job
) -> None:
    """Three processes died on it; other steps count by themselves."""
    for _ in range(services.attempts):
        services.jobs.begin(handed_out.id, step)
    perform_shard(services, handed_out.id, 0)
    assert found(services, handed_out).state is State.running
    if step == COMBINE:
        combine(services, handed_out.id)
    else:
        perform_shard(services, handed_out.id, 1)
    after = found(services, handed_out)
    assert (after.state, after.problem.code) == (State.failed, "worker-lost")


@pytest.mark.usefixtures("quiet")
def test_a_shard_that_meets_an_outage_is_run_again(
    services: Services, handed_out: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raises for the queue, twice; the third time the job fails."""
    down = replace(services, outages=(ConnectionError,), pauses_s=(0.0,))

    def broken(*_: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr(services.parts, "put", broken)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            perform_shard(down, handed_out.id, 0)
        assert found(services, handed_out).state is State.running
    perform_shard(down, handed_out.id, 0)
    assert found(services, handed_out).problem.code == "unavailable"


def test_the_deadline_counts_from_the_first_shard(services: Services, handed_out: Job) -> None:
    """Waiting behind other jobs' shards is not running; a shard that starts again sets it anew."""
    assert handed_out.attempt_started_at is None
    perform_shard(services, handed_out.id, 0)
    first = found(services, handed_out).attempt_started_at
    assert first is not None
    assert timedelta(0) <= now() - first < timedelta(minutes=1)
    perform_shard(services, handed_out.id, 1)
    perform(services, handed_out.id)
    assert found(services, handed_out).attempt_started_at == first
    perform_shard(services, handed_out.id, 1)
    again = found(services, handed_out).attempt_started_at
    assert again is not None
    assert again > first


def test_shards_that_wait_count_for_the_limit_of_the_queue(
    services: Services, queue: MemoryQueue, queued: Any, handed_out: Job
) -> None:
    """Parents leave the queue at once; without this it would never be full."""
    full = replace(services, queue_depth=6)
    body = {"kind": "nearest", "inputs": {"vectors": {"values": 1}}, "seed": 9}
    body["inputs"] = {"vectors": {"dataset": handed_out.inputs["vectors"].dataset}}  # type: ignore[union-attr]
    with pytest.raises(QueueFull):
        submit(full, "default", request.parse_request(body))
    queue.shards.pop()
    assert submit(full, "default", request.parse_request(body)).state is State.queued
