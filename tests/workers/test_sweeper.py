"""The sweeper against a real server: what it queues, stops and removes of jobs in shards."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rq import Worker

from service.allowance import Quotas
from service.blocks import Plan
from service.job import COMBINE, FETCH, WHOLE, Job, Pool, State, Step, new_id, now
from service.operations import Services, Upload
from service.storage.memory import memory_services
from service.storage.object_reports import ObjectParts
from service.storage.objects import ObjectDatasets
from service.storage.queue import RqQueue, open_queue
from service.storage.redis import RedisGates, RedisJobs
from workers.sweeper import (
    SETTLING,
    STOPPING,
    SWEEPS_PER_CLEANING,
    SWEEPS_WITHOUT_SHARD_WORKERS,
    Sweeper,
)

SHARDS = 3
DEADLINE_S = 60


@pytest.fixture
def queue(redis: Redis) -> RqQueue:
    return RqQueue(redis, attempts=3)


@pytest.fixture
def jobs(redis: Redis) -> RedisJobs:
    return RedisJobs(redis, 3600)


@pytest.fixture
def parts(tmp_path: Path) -> ObjectParts:
    return ObjectParts(tmp_path)


@pytest.fixture
def datasets(tmp_path: Path) -> ObjectDatasets:
    return ObjectDatasets(tmp_path)


@pytest.fixture
def services(
    redis: Redis, queue: RqQueue, jobs: RedisJobs, parts: ObjectParts, datasets: ObjectDatasets
) -> Services:
    return memory_services(
        jobs=jobs, gates=RedisGates(redis, 3600), queue=queue, parts=parts, datasets=datasets
    )


@pytest.fixture
def sweep(services: Services, queue: RqQueue, jobs: RedisJobs) -> Callable[[int], None]:
    """Sweep so many times."""
    sweeper = Sweeper(services, jobs, queue, 3600)

    def several(times: int) -> None:
        for _ in range(times):
            sweeper.sweep()

    return several


@pytest.fixture
def shard_worker(redis: Redis) -> Any:
    """A worker for shards that lives, and works on nothing."""
    worker = Worker([open_queue(redis, Pool.shards)], connection=redis, serializer="json")
    worker.register_birth()
    return worker


@pytest.fixture
def planned(jobs: RedisJobs) -> Callable[..., Job]:
    """A job that was handed out, and of which the queue knows nothing."""

    def make(**changes: Any) -> Job:
        fields: dict[str, Any] = {
            "id": new_id("job"), "project": "p", "kind": "k", "kind_version": 1,
            "state": State.running, "inputs": {}, "params": {}, "seed": 0, "cache": True,
            "tags": {}, "request_digest": "0" * 64, "deadline_s": DEADLINE_S, "memory_bytes": 1,
            "created_at": now() - 2 * SETTLING, "attempts": 1,
            "plan": Plan(blocks=9, shards=SHARDS), **changes,
        }  # fmt: skip
        one = Job(**fields)
        jobs.create(one)
        return one

    return make


def held(queue: RqQueue, one: Job) -> list[str]:
    """Steps the queue holds of a job."""
    ids = [WHOLE, *(Step("shard", shard) for shard in range(SHARDS)), COMBINE]
    names = {step.of(one.id): step.of("") for step in ids}
    return sorted(names[task] for task in queue.holding(list(names)))


@pytest.mark.usefixtures("shard_worker")
def test_shards_that_are_not_done_are_queued_again(
    sweep: Any, queue: RqQueue, jobs: RedisJobs, planned: Any
) -> None:
    """The parent died between plan and queue, one part is stored: seen twice, two are queued."""
    one = planned()
    jobs.report_done(one.id, 0, 1.0)
    jobs.report_done(one.id, 1, 0.999)
    sweep(1)
    assert held(queue, one) == []
    sweep(1)
    assert held(queue, one) == ["-s1", "-s2"]
    queue.forget(f"{one.id}-s2")
    sweep(2)
    assert held(queue, one) == ["-s1", "-s2"]
    assert queue.depth(Pool.shards) == 2


@pytest.mark.parametrize("end", [State.succeeded, State.failed, State.cancelled, None])
def test_a_job_waits_for_its_import_however_that_ends(
    end: State | None, sweep: Any, redis: Redis, queue: RqQueue, jobs: RedisJobs, planned: Any
) -> None:
    """Nobody released it: it is queued once the import has ended, or its record has expired."""
    imported = planned(kind="import", plan=None)
    source = {"plan": None, "state": State.queued, "awaiting": {"vectors": {}}}
    one = planned(**source, imports={"source": imported.id})
    sweep(3)
    assert not queue.holds(FETCH.of(one.id))
    if end is None:
        jobs.change(imported.id, lambda job: job.moved(State.cancelled))
        redis.delete(f"assay:job:{imported.id}")
    else:
        jobs.change(imported.id, lambda job: job.moved(end))
    sweep(2)
    assert queue.holds(FETCH.of(one.id))


@pytest.mark.usefixtures("shard_worker")
def test_a_job_whose_parts_are_all_stored_is_combined(
    sweep: Any, queue: RqQueue, jobs: RedisJobs, planned: Any
) -> None:
    """Whoever stored the last died before it said so to the queue."""
    one = planned()
    for shard in range(SHARDS):
        jobs.report_done(one.id, shard, 1.0)
    sweep(2)
    assert held(queue, one) == ["-c"]


@pytest.mark.usefixtures("shard_worker")
def test_a_young_job_and_one_whose_parent_runs_again_are_left_alone(
    sweep: Any, queue: RqQueue, planned: Any
) -> None:
    """They may be between the record and the queue."""
    young, parent = planned(created_at=now()), planned()
    queue.enqueue(parent)
    sweep(3)
    assert held(queue, young) == []
    assert held(queue, parent) == [""]


def test_a_job_that_shard_workers_have_deserted_is_finished_by_a_job_worker(
    sweep: Any, queue: RqQueue, planned: Any
) -> None:
    """Its shards wait; after half a minute without anybody for them it is combined as it is."""
    one = planned()
    sweep(SWEEPS_WITHOUT_SHARD_WORKERS - 1)
    assert held(queue, one) == ["-s0", "-s1", "-s2"]
    sweep(2)
    assert held(queue, one) == ["-c", "-s0", "-s1", "-s2"]
    assert queue.depth(Pool.jobs) == 1


def test_a_worker_that_comes_back_starts_the_count_again(
    sweep: Any, queue: RqQueue, planned: Any, shard_worker: Any
) -> None:
    """A restart is no desertion."""
    one = planned()
    shard_worker.register_death()
    sweep(SWEEPS_WITHOUT_SHARD_WORKERS - 1)
    shard_worker.register_birth()
    sweep(1)
    shard_worker.register_death()
    sweep(SWEEPS_WITHOUT_SHARD_WORKERS - 1)
    assert "-c" not in held(queue, one)


def test_parts_are_removed_once_their_job_has_ended(
    sweep: Any, jobs: RedisJobs, parts: ObjectParts, planned: Any
) -> None:
    """Or is unknown; those of a running job stay."""
    running, ended = planned(), planned()
    for job_id in (running.id, ended.id, "job_unknown"):
        parts.put(job_id, 0, b"x")
    sweep(SWEEPS_PER_CLEANING)
    assert sorted(parts.jobs()) == sorted([running.id, ended.id])
    jobs.change(ended.id, lambda job: job.moved(State.succeeded))
    sweep(SWEEPS_PER_CLEANING)
    assert parts.jobs() == [running.id]


def test_a_record_that_cannot_be_read_stops_no_other_cleaning(
    sweep: Any, redis: Redis, datasets: ObjectDatasets, parts: ObjectParts
) -> None:
    redis.hset("assay:job:job_odd", mapping={"version": 1, "json": b"{}"})
    datasets.draft("p", "job_odd").spool().close()
    datasets.draft("p", "job_unknown").spool().close()
    parts.put("job_odd", 0, b"x")
    for _ in range(2):
        sweep(SWEEPS_PER_CLEANING)
    assert datasets.drafting() == ["job_odd"]


@pytest.mark.parametrize("kept_s", [None, 60])
def test_datasets_that_nothing_needs_go_when_their_time_is_up(
    kept_s: int | None, services: Services, queue: RqQueue, jobs: RedisJobs, tmp_path: Path
) -> None:
    """Where the operator has set one; a baseline stays, and what was used since."""
    ids = {}
    for name, value in (("idle", 1), ("baseline", 2), ("used", 3)):
        upload = Upload(services, "p", "application/json")
        upload.feed(json.dumps({"vectors": [[value, 1]]}).encode())
        ids[name] = upload.finish()[0].id
        shown = tmp_path / "p" / "datasets" / ids[name] / "dataset.json"
        os.utime(shown, (past := time.time() - 61, past))
    services.baselines.set("p", "prod", ids["baseline"], None)
    services.datasets.usable("p", ids["used"])
    kept = replace(services, quotas=Quotas(dataset_retention_s=kept_s))
    Sweeper(kept, jobs, queue, 3600).sweep()
    left = {one.id for one in services.datasets.page("p", 10, None).items}
    assert left == set(ids.values()) - ({ids["idle"]} if kept_s else set())


def test_drafts_are_removed_some_time_after_their_job_was_stopped(
    sweep: Any, jobs: RedisJobs, datasets: ObjectDatasets, planned: Any, tmp_path: Path
) -> None:
    """Its process may write for a moment yet."""
    running, stopped = planned(), planned()
    for job_id in (running.id, stopped.id, "job_unknown"):
        datasets.draft("p", job_id).spool().close()
    sweep(SWEEPS_PER_CLEANING)
    assert sorted(datasets.drafting()) == sorted([running.id, stopped.id])
    jobs.change(stopped.id, lambda job: job.moved(State.cancelled))
    sweep(SWEEPS_PER_CLEANING)
    assert len(datasets.drafting()) == 2
    jobs.change(
        stopped.id, lambda job: job.model_copy(update={"finished_at": now() - STOPPING * 2})
    )
    sweep(SWEEPS_PER_CLEANING)
    assert datasets.drafting() == [running.id]
    assert len(list((tmp_path / "p" / "datasets").iterdir())) == 1


@pytest.mark.parametrize(("started", "state"), [(None, "running"), (30, "running"), (90, "failed")])
def test_a_deadline_counts_from_the_first_shard_and_while_a_step_runs(
    started: int | None, state: str, sweep: Any, redis: Redis, queue: RqQueue, jobs: RedisJobs,
    planned: Any, shard_worker: Any,
) -> None:  # fmt: skip
    """Waiting behind others is not running."""
    since = None if started is None else now() - timedelta(seconds=started)
    one = planned(attempt_started_at=since)
    queue.enqueue(one, Step("shard", 0))
    sweep(1)
    assert jobs.get("p", one.id).state is State.running, "no step runs"
    shards = open_queue(redis, Pool.shards)
    shard = shards.fetch_job(f"{one.id}-s0")
    assert shard is not None
    shard_worker.prepare_execution(shard)
    sweep(1)
    assert jobs.get("p", one.id).state.value == state
