"""How far a job is, told at a pace a store can bear."""

from __future__ import annotations

import time

from service.job import Job, Progress
from service.ports import Jobs

EVERY_S = 0.5
ALMOST = 0.999
"""Most a shard may say before its part is stored."""


class Throttle:
    """Passes on progress at most twice a second, with the time left at the pace so far."""

    def __init__(self, jobs: Jobs, job_id: str) -> None:
        self._jobs, self._job_id = jobs, job_id
        self._stage, self._began, self._told = "", 0.0, -EVERY_S

    def __call__(self, stage: str, done: int, total: int) -> None:
        at = time.monotonic()
        if stage != self._stage:
            self._stage, self._began = stage, at
        if at - self._told < EVERY_S:
            return
        self._told = at
        self.tell(stage, done, total, at - self._began)

    def tell(self, stage: str, done: int, total: int, seconds: float) -> None:
        eta = seconds * (total - done) / done if done else None
        self._jobs.report_progress(
            self._job_id, Progress(stage=stage, done=done, total=total, eta_s=eta)
        )


class ShardThrottle(Throttle):
    """The same for a shard: a job is as far as its shards are on average."""

    def __init__(self, jobs: Jobs, job: Job, shard: int) -> None:
        super().__init__(jobs, job.id)
        self._shards, self._shard = job.plan.shards if job.plan else 1, shard
        self._first = time.monotonic()

    def tell(self, stage: str, done: int, total: int, seconds: float) -> None:
        share = min(done / total, ALMOST) if total else 0.0
        known = self._jobs.report_done(self._job_id, self._shard, share)
        percent = int(100 * sum(known.values()) / self._shards)
        super().tell(stage, percent, 100, time.monotonic() - self._first)
