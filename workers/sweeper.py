"""The sweeper: makes the queue agree with the job records, which are the truth."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import structlog
from pydantic import ValidationError

from service.errors import DatasetInUse, TimedOut, UnknownDataset
from service.importing import ready
from service.job import COMBINE, Job, Pool, State, Step, first_step, job_of, now, steps
from service.operations import Services, complete, fail, remove_dataset
from service.storage.queue import RqQueue
from service.storage.redis import RedisJobs

EVERY_S = 2.0
SWEEPS_PER_TRIM = 1800
SWEEPS_PER_CLEANING = 5
SWEEPS_WITHOUT_SHARD_WORKERS = 15
"""After that long a job worker does what is left of jobs that were handed out in shards."""
DRAFT_RETENTION_S = 86_400
"""No upload and no import takes longer between two writes."""
STOPPING = timedelta(seconds=30)
"""A job that ended before that has no process any more."""
SETTLING = timedelta(seconds=5)
"""A younger job may be between its record and the queue."""

Task = tuple[str, Step]
log = structlog.get_logger()


class Sweeper:
    """One pass at a time over all jobs that have not ended."""

    def __init__(
        self, services: Services, jobs: RedisJobs, queue: RqQueue, retention_s: int
    ) -> None:
        self._services, self._jobs, self._queue = services, jobs, queue
        self._retention_s = retention_s + services.deadline_s
        self._missing: set[Task] = set()
        self._sweeps = self._deserted = 0

    def sweep(self) -> None:
        """
        Enforce deadlines, requeue what the queue has lost, stop what should not run, and remove parts
        of jobs that have ended.
        """
        active = self._jobs.active()
        held, started = self._queue.holding(active), self._queue.started()
        running = {job_of(task) for task in started}
        deserted = bool(active) and not self._queue.workers(Pool.shards)
        self._deserted = self._deserted + 1 if deserted else 0
        missing: set[Task] = set()
        for job_id in active:
            try:
                missing |= self._look(job_id, job_id in held, job_id in running)
            except ValidationError:  # a record of another version stops no other job
                log.exception("job record cannot be read", job=job_id)
        for job_id, step in missing & self._missing:  # seen twice: not a task that is just ending
            self._requeue(job_id, step)
        self._missing = missing
        self._stop_ended(started)
        self._sweeps += 1
        if self._sweeps % SWEEPS_PER_CLEANING == 1:
            self._remove_parts()
            self._remove_drafts()
        if self._sweeps % SWEEPS_PER_TRIM == 1:
            if dead := self._services.datasets.tidy(now() - timedelta(seconds=DRAFT_RETENTION_S)):
                log.info("drafts removed", count=dead)
            self._remove_unused()
            self._jobs.trim(now() - timedelta(seconds=self._retention_s))

    def _look(self, job_id: str, held: bool, running: bool) -> set[Task]:
        """What the queue should hold of a job, and does not."""
        job = self._jobs.find(job_id)
        if job is None or job.state.terminal:
            self._jobs.retire(job_id)
            return set()
        if running and _late(job):
            fail(self._services, job_id, TimedOut(f"The job ran over {job.deadline_s} s."))
            for step in steps(job):
                self._queue.stop(step.of(job_id))
            log.warning("job timed out", job=job_id)
            return set()
        if held or now() - job.created_at <= SETTLING:
            return set()
        wanted = self._wanted(job)
        holding = self._queue.holding([step.of(job_id) for step in wanted])
        return {(job_id, step) for step in wanted if step.of(job_id) not in holding}

    def _wanted(self, job: Job) -> list[Step]:
        """The steps that come next."""
        if job.plan is None:
            return [first_step(job)] if ready(self._services, job) else []
        done = self._jobs.done(job.id)
        if complete(job, done) or self._deserted >= SWEEPS_WITHOUT_SHARD_WORKERS:
            return [COMBINE]
        return [
            Step("shard", shard) for shard in range(job.plan.shards) if done.get(shard, 0.0) < 1
        ]

    def _requeue(self, job_id: str, step: Step) -> None:
        job, task = self._jobs.find(job_id), step.of(job_id)
        if job is None or job.state.terminal or self._queue.holds(task):
            return
        log.warning("step of a job was lost by the queue", task=task, attempts=job.attempts)
        self._queue.forget(task)
        self._queue.enqueue(job, step)

    def _stop_ended(self, started: list[str]) -> None:
        for task in started:
            job = self._jobs.find(job_of(task))
            if job is not None and job.state in (State.cancelled, State.failed):
                self._queue.stop(task)

    def _remove_parts(self) -> None:
        for job_id in self._services.parts.jobs():
            with suppress(ValidationError):  # a record of another version, which `_look` names
                job = self._jobs.find(job_id)
                if job is None or job.state.terminal:
                    self._services.parts.remove(job_id)

    def _remove_unused(self) -> None:
        kept_s = self._services.quotas.dataset_retention_s
        if kept_s is None:
            return
        since = now() - timedelta(seconds=kept_s)
        for project, dataset in self._services.datasets.unused(since):
            with suppress(DatasetInUse, UnknownDataset, ValidationError):  # who may need it
                remove_dataset(self._services, project, dataset, since)

    def _remove_drafts(self) -> None:
        """Those of jobs that were stopped, once their process has surely gone."""
        for job_id in self._services.datasets.drafting():
            with suppress(ValidationError):
                job = self._jobs.find(job_id)
                ended = None if job is None else job.finished_at
                if job is None or (ended is not None and now() - ended > STOPPING):
                    self._services.datasets.abandon(job_id)


def _late(job: Job) -> bool:
    if job.state is not State.running or job.attempt_started_at is None:
        return False
    return now() - job.attempt_started_at > timedelta(seconds=job.deadline_s)
