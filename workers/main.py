"""
The worker process: one queue, one forked process per job, or per shard.

The parent imports numpy, faiss and the kernels, so that a fork starts in a third of a second, and
calls none of them: a child of a parent that has searched with faiss hangs in its first search.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from rq import Worker
from rq.job import Job as QueuedJob

import service.checks
import workers.tasks
from service import logs
from service.job import Pool
from service.settings import Settings
from service.storage.queue import LEASE_S, LeasedQueue, open_queue
from service.storage.redis import connect
from workers.processes import die_with_parent

MONITORING_S = 5
WORKER_TTL_S = 20
SHARD_NICENESS = 5
"""Shards use what whole jobs leave."""
PRELOADED = (service.checks, workers.tasks)


class IsolatedWorker(Worker):
    """A worker whose lost jobs are found within its lease and whose jobs have a memory limit."""

    def get_heartbeat_ttl(self, job: QueuedJob, working_time: float = 0.0) -> int:
        return LEASE_S

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        # RQ registers a worker once: one whose server has lost everything would work unseen
        if pipeline is None and not self.connection.sismember(self.redis_workers_keys, self.key):
            self.connection.delete(self.key)
            self.register_birth()  # type: ignore[no-untyped-call]
        super().heartbeat(timeout, pipeline)

    def kill_horse(self, sig: signal.Signals = signal.SIGKILL) -> None:
        # RQ takes 0 for "no process"; to the system it is this worker's own group, and an order to
        # stop that comes twice, or just as the job ends, finds no process
        if self.horse_pid:
            super().kill_horse(sig)

    def main_work_horse(self, job: QueuedJob, queue: Any) -> None:
        die_with_parent()
        if more := job.meta.get("memory_bytes"):
            limit = _address_space() + int(more)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        super().main_work_horse(job, queue)


def _address_space() -> int:
    """Bytes of address space in use; the limit counts from here, because RLIMIT_AS counts all of it."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0
    return int(statm.read_text().split()[0]) * resource.getpagesize()


def main(pool: Pool) -> None:
    """Work for a pool until told to stop."""
    if pool is Pool.shards:
        os.nice(SHARD_NICENESS)
    settings = Settings.read()
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    logs.configure(level)
    logging.getLogger("rq").setLevel(logging.ERROR)  # our own log says what happens to jobs
    if settings.redis_url is None:
        sys.exit("REDIS_URL is not set; `assay serve` starts a server and workers by itself.")
    redis = connect(settings.redis_url)
    worker = IsolatedWorker(
        [open_queue(redis, pool)],
        queue_class=LeasedQueue,
        connection=redis,
        serializer="json",
        job_monitoring_interval=MONITORING_S,
        maintenance_interval=MONITORING_S,
        worker_ttl=WORKER_TTL_S,
        log_job_description=False,
    )
    worker.work(with_scheduler=False, logging_level="ERROR")


if __name__ == "__main__":
    main(Pool(sys.argv[1]))
