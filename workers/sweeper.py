"""The sweeper: makes the queue agree with the job records, which are the truth."""

from __future__ import annotations

from datetime import timedelta

import structlog
from pydantic import ValidationError

from service.errors import TimedOut
from service.job import Job, State, now
from service.operations import Services, fail
from service.storage.queue import RqQueue
from service.storage.redis import RedisJobs

EVERY_S = 2.0
SWEEPS_PER_TRIM = 1800
SETTLING = timedelta(seconds=5)
"""A younger job may be between its record and the queue."""

log = structlog.get_logger()


class Sweeper:
    """One pass at a time over all jobs that have not ended."""

    def __init__(
        self, services: Services, jobs: RedisJobs, queue: RqQueue, retention_s: int
    ) -> None:
        self._services, self._jobs, self._queue = services, jobs, queue
        self._retention_s = retention_s + services.deadline_s
        self._missing: set[str] = set()
        self._sweeps = 0

    def sweep(self) -> None:
        """Enforce deadlines, requeue what the queue has lost, stop what should not run."""
        active = self._jobs.active()
        held, started = self._queue.holding(active), set(self._queue.started())
        missing: set[str] = set()
        for job_id in active:
            try:
                self._look(job_id, job_id in held, job_id in started, missing)
            except ValidationError:  # a record of another version stops no other job
                log.exception("job record cannot be read", job=job_id)
        for job_id in missing & self._missing:  # seen twice: not a task that is just ending
            self._requeue(job_id)
        self._missing = missing
        self._stop_ended(started)
        self._sweeps += 1
        if self._sweeps % SWEEPS_PER_TRIM == 1:
            self._jobs.trim(now() - timedelta(seconds=self._retention_s))

    def _look(self, job_id: str, held: bool, started: bool, missing: set[str]) -> None:
        job = self._jobs.find(job_id)
        if job is None or job.state.terminal:
            self._jobs.retire(job_id)
        elif started and _late(job):
            fail(self._services, job_id, TimedOut(f"The job ran over {job.deadline_s} s."))
            self._queue.stop(job_id)
            log.warning("job timed out", job=job_id)
        elif now() - job.created_at > SETTLING and not held:
            missing.add(job_id)

    def _requeue(self, job_id: str) -> None:
        job = self._jobs.find(job_id)
        if job is None or job.state.terminal or self._queue.holds(job_id):
            return
        log.warning("job was lost by the queue", job=job_id, attempts=job.attempts)
        self._queue.forget(job_id)
        self._queue.enqueue(job)

    def _stop_ended(self, started: set[str]) -> None:
        for job_id in started:
            job = self._jobs.find(job_id)
            if job is not None and job.state in (State.cancelled, State.failed):
                self._queue.stop(job_id)


def _late(job: Job) -> bool:
    if job.state is not State.running or job.attempt_started_at is None:
        return False
    return now() - job.attempt_started_at > timedelta(seconds=job.deadline_s)
