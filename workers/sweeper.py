"""The sweeper: makes the queue agree with the job records, which are the truth."""

from __future__ import annotations

from datetime import timedelta

import structlog

from service.errors import TimedOut
from service.job import Job, State, now
from service.operations import Services, fail
from service.storage.queue import RqQueue
from service.storage.redis import RedisJobs

EVERY_S = 2.0
SETTLING = timedelta(seconds=5)
"""A younger job may be between its record and the queue."""

log = structlog.get_logger()


class Sweeper:
    """One pass at a time over all jobs that have not ended."""

    def __init__(self, services: Services, jobs: RedisJobs, queue: RqQueue) -> None:
        self._services, self._jobs, self._queue = services, jobs, queue
        self._missing: set[str] = set()

    def sweep(self) -> None:
        """Enforce deadlines, requeue what the queue has lost, stop what should not run."""
        missing: set[str] = set()
        active = self._jobs.active()
        jobs, held = self._jobs.find_all(active), self._queue.holding(active)
        for job_id, job in zip(active, jobs, strict=True):
            if job is None or job.state.terminal:
                self._jobs.retire(job_id)
            elif _late(job):
                fail(self._services, job_id, TimedOut(f"The job ran over {job.deadline_s} s."))
                self._queue.stop(job_id)
                log.warning("job timed out", job=job_id)
            elif now() - job.created_at > SETTLING and job_id not in held:
                missing.add(job_id)
        for job_id in missing & self._missing:  # seen twice: not a task that is just ending
            self._requeue(job_id)
        self._missing = missing
        self._stop_ended()

    def _requeue(self, job_id: str) -> None:
        job = self._jobs.find(job_id)
        if job is None or job.state.terminal or self._queue.holds(job_id):
            return
        log.warning("job was lost by the queue", job=job_id, attempts=job.attempts)
        self._queue.forget(job_id)
        self._queue.enqueue(job)

    def _stop_ended(self) -> None:
        for job_id in self._queue.started():
            job = self._jobs.find(job_id)
            if job is not None and job.state in (State.cancelled, State.failed):
                self._queue.stop(job_id)


def _late(job: Job) -> bool:
    if job.state is not State.running or job.started_at is None:
        return False
    return now() - job.started_at > timedelta(seconds=job.deadline_s)
