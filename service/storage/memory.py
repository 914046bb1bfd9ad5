"""What Redis keeps, in memory, and all services so: for tests and for a check in one process."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Generic

from service.allowance import WINDOW_S, Allowance
from service.context import Warned
from service.errors import (
    IdempotencyConflict,
    IdempotencyInFlight,
    UnknownGate,
    UnknownJob,
)
from service.events import (
    MOST,
    After,
    Event,
    EventId,
    Kind,
    first_of,
    of_progress,
    of_warning,
    shortened,
    told_by,
)
from service.job import (
    EVERY_JOB,
    WHOLE,
    GateRun,
    Job,
    Pool,
    Progress,
    Step,
    Wanted,
    tagged,
)
from service.once import ANOTHER_BODY, HELD_S, KEPT_S, STILL_ANSWERED
from service.ports import Page, Record
from service.services import Services
from service.storage.listing import cut, position
from service.storage.memory_objects import (
    MemoryBaselines,
    MemoryDatasets,
    MemoryParts,
    MemoryReports,
)


class _Records(Generic[Record]):
    """Records by id, changed one at a time."""

    def __init__(self) -> None:
        self._stored: dict[str, Record] = {}
        self._lock = threading.Lock()

    def create(self, record: Record) -> bool:
        with self._lock:
            created = self._stored.setdefault(record.id, record) is record
            if created:
                self._changed(record, None)
            return created

    def _changed(self, new: Record, old: Record | None) -> None:
        """Called with each new record and the one before, in order."""

    def find(self, record_id: str) -> Record | None:
        return self._stored.get(record_id)

    def change(self, record_id: str, move: Callable[[Record], Record | None]) -> Record | None:
        with self._lock:
            old = self._stored.get(record_id)
            new = None if old is None else move(old)
            if new is None or old is None:
                return None
            self._stored[record_id] = new = new.model_copy(update={"version": old.version + 1})
            self._changed(new, old)
            return new

    def _page(
        self, project: str, limit: int, cursor: str | None, wanted: Callable[[Record], bool]
    ) -> Page[Record]:
        ours = [one for one in list(self._stored.values()) if one.project == project]
        return cut([one for one in ours if wanted(one)], limit, cursor, position)


class MemoryJobs(_Records[Job]):
    """Job records."""

    def __init__(self, most: int = MOST) -> None:
        super().__init__()
        self._most = most
        self._events: dict[str, list[Event]] = {}
        self._progress: dict[str, Progress] = {}
        self._starts: Counter[str] = Counter()
        self._done: dict[str, dict[int, float]] = {}

    def get(self, project: str, job_id: str) -> Job:
        job = self.find(job_id)
        if job is None or job.project != project:
            raise UnknownJob(f"There is no job `{job_id}`.")
        return job

    def page(
        self, project: str, limit: int, cursor: str | None, wanted: Wanted = EVERY_JOB
    ) -> Page[Job]:
        return self._page(project, limit, cursor, wanted.admits)

    def active(self) -> list[str]:
        return [job.id for job in self._stored.values() if not job.state.terminal]

    def unfinished(self, project: str) -> int:
        jobs = list(self._stored.values())
        return sum(1 for job in jobs if job.project == project and not job.state.terminal)

    def ended(self) -> dict[tuple[str, str], int]:
        return dict(
            Counter(
                (job.kind, job.state.value) for job in self._stored.values() if job.state.terminal
            )
        )

    def report_progress(self, job_id: str, progress: Progress) -> None:
        self._progress[job_id] = progress
        self._report(job_id, *of_progress(progress))

    def report_warning(self, job_id: str, warned: Warned) -> None:
        self._report(job_id, *of_warning(warned))

    def _changed(self, new: Job, old: Job | None) -> None:
        if (event := told_by(new, old)) is not None:
            self._events.setdefault(new.id, []).append(event)

    def _report(self, job_id: str, kind: Kind, data: str) -> None:
        with self._lock:
            job = self._stored.get(job_id)
            if job is None or job.state.terminal:
                return
            told = self._events.setdefault(job_id, [])
            before = max([first_of(job), *(event.id for event in told[-1:])])
            event = Event(EventId(before.change, before.place + 1), kind, data)
            told[:] = shortened([*told, event], self._most)

    def events(self, after: After) -> dict[str, list[Event]]:
        with self._lock:
            new = {
                job_id: [event for event in self._events.get(job_id, []) if event.id > known]
                for job_id, known in after.items()
            }
        return {job_id: events for job_id, events in new.items() if events}

    def progress(self, job_id: str) -> Progress | None:
        return self._progress.get(job_id)

    def begin(self, job_id: str, step: Step) -> int:
        with self._lock:
            self._starts[step.of(job_id)] += 1
            return self._starts[step.of(job_id)]

    def report_done(self, job_id: str, shard: int, done: float) -> dict[int, float]:
        with self._lock:
            known = self._done.setdefault(job_id, {})
            known[shard] = max(done, known.get(shard, 0.0))
            return dict(known)

    def done(self, job_id: str) -> dict[int, float]:
        with self._lock:
            return dict(self._done.get(job_id, {}))


class MemoryGates(_Records[GateRun]):
    """Gate runs."""

    def get(self, project: str, run_id: str) -> GateRun:
        run = self.find(run_id)
        if run is None or run.project != project:
            raise UnknownGate(f"There is no gate run `{run_id}`.")
        return run

    def page(
        self, project: str, limit: int, cursor: str | None, tag: tuple[str, str] | None
    ) -> Page[GateRun]:
        return self._page(project, limit, cursor, lambda run: tagged(run, tag))


class MemoryClaims:
    """Idempotency keys."""

    def __init__(self, kept_s: float = KEPT_S, held_s: float = HELD_S) -> None:
        self._kept_s, self._held_s = kept_s, held_s
        self._bound: dict[str, tuple[float, str, str]] = {}
        self._held: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()

    def claim(self, key: str, body_sha256: str, new_id: str, holder: str) -> str:
        with self._lock:
            at = time.monotonic()
            until, body, bound = self._bound.get(key, (at, "", ""))
            if until > at and body != body_sha256:
                raise IdempotencyConflict(ANOTHER_BODY)
            if self._held.get(key, (at, ""))[0] > at:
                raise IdempotencyInFlight(STILL_ANSWERED)
            self._held[key] = (at + self._held_s, holder)
            if until <= at:
                bound = new_id
                self._bound[key] = (at + self._kept_s, body_sha256, new_id)
            return bound

    def release(self, key: str, holder: str, *, forget: bool) -> None:
        with self._lock:
            if self._held.get(key, (0.0, ""))[1] != holder:
                return
            del self._held[key]
            if forget:
                self._bound.pop(key, None)


class MemoryRates:
    """Counts requests, by a clock of seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, bucket: str, per_minute: int) -> Allowance:
        with self._lock:
            at = self._clock()
            tokens, since = self._buckets.get(bucket, (float(per_minute), at))
            tokens = min(per_minute, tokens + (at - since) * per_minute / WINDOW_S)
            granted = tokens >= 1
            tokens -= granted
            self._buckets[bucket] = (tokens, at)
            return Allowance.of(granted, tokens, per_minute)


class MemoryQueue:
    """Ids of steps in order; whoever owns the queue takes them out."""

    def __init__(self, shard_workers: int = 0) -> None:
        self.waiting: list[str] = []
        self.shards: list[str] = []
        self.shard_workers = shard_workers

    def _of(self, pool: Pool) -> list[str]:
        return self.shards if pool is Pool.shards else self.waiting

    def enqueue(self, job: Job, step: Step = WHOLE) -> None:
        if not self.holds(step.of(job.id)):
            self._of(step.pool).append(step.of(job.id))

    def stop(self, task_id: str) -> None:
        self.forget(task_id)

    def holds(self, task_id: str) -> bool:
        return task_id in self.waiting or task_id in self.shards

    def forget(self, task_id: str) -> None:
        for pool in Pool:
            if task_id in self._of(pool):
                self._of(pool).remove(task_id)

    def depth(self, pool: Pool = Pool.jobs) -> int:
        return len(self._of(pool))

    def workers(self, pool: Pool = Pool.jobs) -> int:
        return self.shard_workers if pool is Pool.shards else 1


def memory_services(**others: Any) -> Services:
    """Services that hold everything in memory, but for these."""
    ports = {
        "datasets": MemoryDatasets(),
        "reports": MemoryReports(),
        "jobs": MemoryJobs(),
        "gates": MemoryGates(),
        "claims": MemoryClaims(),
        "rates": MemoryRates(),
        "queue": MemoryQueue(),
        "parts": MemoryParts(),
        "baselines": MemoryBaselines(),
    }
    return Services(**{**ports, **others})
