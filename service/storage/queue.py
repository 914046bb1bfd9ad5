"""
The job queue: RQ with the settings that lose nothing.

Every choice here was measured under kill -9: one queue per worker process (listening on two loses
jobs between pop and start), JSON instead of pickle, a 15 s maintenance lock (the stock one of 899 s,
held by a killed worker, stops all recovery), unique ids, and retries that RQ starts by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from redis import Redis
from rq import Queue, Retry, Worker
from rq.command import send_stop_job_command
from rq.exceptions import DuplicateJobError, InvalidJobOperation, NoSuchJobError
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job as QueuedJob
from rq.job import JobStatus
from rq.registry import StartedJobRegistry

from service.job import WHOLE, Job, Pool, Step

NAMES = {Pool.jobs: "assay", Pool.shards: "assay-shards"}
TASKS = {
    "perform": "workers.tasks.perform",
    "fetch": "workers.tasks.fetch",
    "shard": "workers.tasks.perform_shard",
    "combine": "workers.tasks.combine",
}
LEASE_S = 15
KEPT_S = 600
ALIVE_S = 60
HELD = {
    status.value.encode()
    for status in (JobStatus.QUEUED, JobStatus.STARTED, JobStatus.SCHEDULED, JobStatus.DEFERRED)
}


class PoppedJobs(IntermediateQueue):
    """Jobs a worker has taken and not started, given up after the lease (RQ waits a minute)."""

    def should_be_cleaned_up(self, job_id: str) -> bool:
        seen: datetime | None = self.get_first_seen(job_id)
        return seen is not None and datetime.now(UTC) - seen > timedelta(seconds=LEASE_S)

    def remove(self, job_id: str) -> None:
        super().remove(job_id)
        # RQ keeps this time for a day: the next worker to take the job would look late at once
        self.connection.delete(self.get_first_seen_key(job_id))


class LeasedQueue(Queue):
    """A queue whose recovery waits for leases only, never for a dead worker's lock."""

    def acquire_maintenance_lock(self) -> bool:
        return bool(self.connection.set(self.registry_cleaning_key, 1, nx=True, ex=LEASE_S))

    @property
    def intermediate_queue(self) -> PoppedJobs:
        return PoppedJobs(self.key, connection=self.connection)


def open_queue(redis: Redis, pool: Pool = Pool.jobs) -> LeasedQueue:
    """The one queue of a pool, without pickle."""
    return LeasedQueue(NAMES[pool], connection=redis, serializer="json")


class RqQueue:
    """Carries steps of jobs through RQ."""

    def __init__(self, redis: Redis, attempts: int) -> None:
        self._redis, self._attempts = redis, attempts
        self._queues = {pool: open_queue(redis, pool) for pool in Pool}

    def enqueue(self, job: Job, step: Step = WHOLE) -> None:
        try:
            self._queues[step.pool].enqueue(
                TASKS[step.name],
                args=(job.id,) if step.shard is None else (job.id, step.shard),
                job_id=step.of(job.id),
                unique=True,
                at_front=step.name == "combine",  # its job has waited for its turn already
                retry=Retry(max=self._attempts),
                job_timeout=-1,  # the sweeper keeps deadlines: RQ's limit cannot interrupt C code
                result_ttl=KEPT_S,
                failure_ttl=KEPT_S,
                meta={"memory_bytes": job.memory_bytes},
            )
        except DuplicateJobError:
            return

    def _fetch(self, task_id: str) -> QueuedJob | None:
        try:
            return QueuedJob.fetch(task_id, connection=self._redis, serializer="json")
        except NoSuchJobError:
            return None

    def stop(self, task_id: str) -> None:
        queued = self._fetch(task_id)
        if queued is None:
            return
        try:
            if queued.get_status() == JobStatus.STARTED:
                send_stop_job_command(self._redis, task_id, serializer="json")
            else:
                queued.delete()
        except (InvalidJobOperation, NoSuchJobError):
            return  # it ended in between; the sweeper stops it if it is started again

    def holds(self, task_id: str) -> bool:
        return bool(self.holding([task_id]))

    def holding(self, task_ids: Sequence[str]) -> set[str]:
        """Which of these it holds, in one round trip."""
        with self._redis.pipeline(transaction=False) as pipe:
            for task_id in task_ids:
                pipe.hget(QueuedJob.key_for(task_id), "status")
            found = pipe.execute()
        return {job for job, status in zip(task_ids, found, strict=True) if status in HELD}

    def forget(self, task_id: str) -> None:
        queued = self._fetch(task_id)
        if queued is not None:
            queued.delete()

    def started(self) -> list[str]:
        """Ids of steps that some worker has started."""
        return [
            str(task_id)
            for name in NAMES.values()
            for task_id in StartedJobRegistry(name, self._redis, serializer="json").get_job_ids(
                cleanup=False
            )
        ]

    def depth(self, pool: Pool = Pool.jobs) -> int:
        return int(self._queues[pool].count)

    def workers(self, pool: Pool = Pool.jobs) -> int:
        oldest = datetime.now(UTC) - timedelta(seconds=ALIVE_S)
        workers: list[Any] = Worker.all(queue=self._queues[pool], serializer="json")
        return sum(1 for worker in workers if _beat(worker) >= oldest)


def _beat(worker: Any) -> datetime:
    at: datetime | None = worker.last_heartbeat
    if at is None:
        return datetime.min.replace(tzinfo=UTC)
    return at if at.tzinfo else at.replace(tzinfo=UTC)
