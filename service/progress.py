"""How far a job is, told at a pace a store can bear."""

from __future__ import annotations

import time

from service.job import Job, Progress, now
from service.ports import Jobs

EVERY_S = 0.5
ALMOST = 0.999
"""Most a shard may say before its part is stored."""


class Throttle:
    """Passes on progress at most twice a second, with the time left at the pace so far."""

    def __init__(self, jobs: Jobs, job: Job) -> None:
        self._jobs, self._job = jobs, job
        self._stage, self._began, self._told = "", 0.0, -EVERY_S

    def __call__(self, stage: str, done: int, total: int) -> None:
        at = time.monotonic()
        if stage != self._stage:
            self._stage, self._began = stage, at
        if at - self._told < EVERY_S:
            return
        self._told = at
        self._tell(stage, done, total, at - self._began)

    def _tell(self, stage: str, done: int, total: int, seconds: float) -> None:
        eta = seconds * (total - done) / done if done else None
        self._jobs.report_progress(
            self._job.id, Progress(stage=stage, done=done, total=total, eta_s=eta)
        )


class ShardThrottle(Throttle):
    """The same for a shard."""

    def __init__(self, jobs: Jobs, job: Job, shard: int) -> None:
        super().__init__(jobs, job)
        self._shard = shard

    def _tell(self, stage: str, done: int, total: int, seconds: float) -> None:
        tell_shard(self._jobs, self._job, self._shard, min(done / total, ALMOST) if total else 0.0)


def tell_shard(jobs: Jobs, job: Job, shard: int, done: float) -> dict[int, float]:
    """Note how far a shard is; its job is as far as its shards are on average. All that is known."""
    known = jobs.report_done(job.id, shard, done)
    share = sum(known.values()) / (job.plan.shards if job.plan else 1)
    jobs.report_progress(job.id, of_shards(job, share))
    return known


def of_shards(job: Job, share: float) -> Progress:
    """Progress of a job in shards, in percent."""
    eta = None
    if share and job.attempt_started_at:
        eta = (now() - job.attempt_started_at).total_seconds() * (1 - share) / share
    return Progress(stage="shards", done=int(100 * share), total=100, eta_s=eta)
