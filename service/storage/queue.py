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

from service.job import Job

NAME = "assay"
TASK = "workers.tasks.perform"
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


def open_queue(redis: Redis) -> LeasedQueue:
    """The one queue, without pickle."""
    return LeasedQueue(NAME, connection=redis, serializer="json")


class RqQueue:
    """Carries job ids through RQ."""

    def __init__(self, redis: Redis, attempts: int) -> None:
        self._redis, self._attempts = redis, attempts
        self._queue = open_queue(redis)

    def enqueue(self, job: Job) -> None:
        try:
            self._queue.enqueue(
                TASK,
                job.id,
                job_id=job.id,
                unique=True,
                retry=Retry(max=self._attempts),
                job_timeout=-1,  # the sweeper keeps deadlines: RQ's limit cannot interrupt C code
                result_ttl=KEPT_S,
                failure_ttl=KEPT_S,
                meta={"memory_bytes": job.memory_bytes},
            )
        except DuplicateJobError:
            return

    def _fetch(self, job_id: str) -> QueuedJob | None:
        try:
            return QueuedJob.fetch(job_id, connection=self._redis, serializer="json")
        except NoSuchJobError:
            return None

    def stop(self, job_id: str) -> None:
        queued = self._fetch(job_id)
        if queued is None:
            return
        try:
            if queued.get_status() == JobStatus.STARTED:
                send_stop_job_command(self._redis, job_id, serializer="json")
            else:
                queued.delete()
        except (InvalidJobOperation, NoSuchJobError):
            return  # it ended in between; the sweeper stops it if it is started again

    def holds(self, job_id: str) -> bool:
        return bool(self.holding([job_id]))

    def holding(self, job_ids: Sequence[str]) -> set[str]:
        """Which of these it holds, in one round trip."""
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hget(QueuedJob.key_for(job_id), "status")
            found = pipe.execute()
        return {job for job, status in zip(job_ids, found, strict=True) if status in HELD}

    def forget(self, job_id: str) -> None:
        queued = self._fetch(job_id)
        if queued is not None:
            queued.delete()

    def started(self) -> list[str]:
        """Ids of jobs that some worker has started."""
        registry = StartedJobRegistry(NAME, self._redis, serializer="json")
        return [str(job_id) for job_id in registry.get_job_ids(cleanup=False)]

    def depth(self) -> int:
        return int(self._queue.count)

    def workers(self) -> int:
        oldest = datetime.now(UTC) - timedelta(seconds=ALIVE_S)
        return sum(1 for worker in self._all() if _beat(worker) >= oldest)

    def _all(self) -> list[Any]:
        return list(Worker.all(queue=self._queue, serializer="json"))


def _beat(worker: Any) -> datetime:
    at: datetime | None = worker.last_heartbeat
    if at is None:
        return datetime.min.replace(tzinfo=UTC)
    return at if at.tzinfo else at.replace(tzinfo=UTC)
