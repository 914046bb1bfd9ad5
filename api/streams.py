"""
One reader for all who listen to jobs in this process.

It reads what is new of every job that is listened to, in one request to the store, several times a
second, on a thread of its own. What it has read of a job stands in one log; each listener has no more
than a place in it, so what a slow one costs is bounded, and what it has missed and what happens now are
the same to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from service.errors import Unavailable
from service.events import START, Event, EventId, Kind, first_of, shortened, told_by
from service.job import Job
from service.operations import Services
from service.wiring import OUTAGES

log = structlog.get_logger()


@dataclass(frozen=True)
class Pace:
    """Times of streams, in seconds, and how many there may be."""

    look_s: float = 0.2
    """Between two looks at what is new."""
    check_s: float = 5.0
    """Between two looks at the record of a job: the store may have lost what was told of it."""
    heartbeat_s: float = 15.0
    """Silence before a comment; also between two looks at a listener's key."""
    send_s: float = 30.0
    """How long a listener may take nothing."""
    longest_s: float = 3600.0
    """After that long listeners have to come again, to whichever process they are sent then."""
    most: int = 400
    """Streams of one process; it takes 512 connections in all."""


@dataclass
class Log:
    """What has been told of one job."""

    events: list[Event] = field(default_factory=list)
    over: Job | None = None
    """Its record, once it has ended and all that was told is here."""
    gone: bool = False
    """There is no record any more."""
    listeners: int = 0
    check_at: float = 0.0
    """When to look at the record."""
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def last(self) -> EventId:
        return self.events[-1].id if self.events else START

    def after(self, known: EventId) -> list[Event]:
        """What was told after this."""
        return [event for event in self.events if event.id > known]

    def add(self, new: list[Event]) -> None:
        self.events = shortened([*self.events, *new])

    def end(self, job: Job) -> None:
        """All was told; what the store has forgotten of the end stands in the record."""
        if self.last < first_of(job) and (event := told_by(job)) is not None:
            self.add([event])
        self.over = job

    def wake(self) -> None:
        """Tell the listeners that there is news."""
        self._news.set()
        self._news = asyncio.Event()

    async def news(self, seconds: float) -> None:
        """Wait until there is news, for so many seconds at most."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), seconds)


@dataclass(frozen=True)
class Sight:
    """What one look at the store has shown."""

    records: Mapping[str, Job | None]
    """Of jobs whose records were due."""
    events: Mapping[str, list[Event]]


class Streams:
    """The logs of jobs that are listened to, and who reads for them."""

    def __init__(self, services: Services, pace: Pace | None = None) -> None:
        self.pace = pace or Pace()
        self.closing = False
        self._services = services
        self._logs: dict[str, Log] = {}
        self._reader: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="events")

    @property
    def open(self) -> int:
        """Streams that are open now."""
        return sum(one.listeners for one in self._logs.values())

    def refuse_more(self) -> None:
        """Refuse a stream where there are too many, or none for long."""
        if self.closing:
            raise Unavailable("This process is about to end; ask again.")
        if self.open >= self.pace.most:
            raise Unavailable(
                f"{self.pace.most} streams are open here; poll `GET /v1/jobs/{{job_id}}` or try again."
            )

    def close(self) -> None:
        """End every stream; listeners come again where they stopped."""
        self.closing = True
        for one in self._logs.values():
            one.wake()

    @contextmanager
    def listening(self, job_id: str) -> Iterator[Log]:
        """The log of a job, kept up to date meanwhile."""
        found = self._logs.setdefault(job_id, Log())
        found.listeners += 1
        self._wanted.set()
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        try:
            yield found
        finally:
            found.listeners -= 1
            if not found.listeners:
                del self._logs[job_id]

    async def follow(self, job_id: str, known: EventId) -> AsyncGenerator[list[Event] | Job, None]:
        """
        What is told of a job after `known`, in batches, an empty one where nothing is for a while;
        then its record, unless the stream has to end before the job.
        """
        spoke_at = time.monotonic()
        ends_at = spoke_at + self.pace.longest_s
        with self.listening(job_id) as told:
            while True:
                new = told.after(known)
                now = time.monotonic()
                if new or now >= spoke_at + self.pace.heartbeat_s:
                    known = new[-1].id if new else known
                    spoke_at = now
                    yield new  # and more may be told while the listener takes it
                elif told.over is not None:
                    yield told.over
                    return
                elif told.gone or self.closing or now >= ends_at:
                    return
                else:
                    await told.news(min(spoke_at + self.pace.heartbeat_s, ends_at) - now)

    async def _read(self) -> None:
        """Look again and again, while anybody listens."""
        try:
            while self._logs:
                self._wanted.clear()
                await self._look()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), self.pace.look_s)
        finally:
            self._reader = None
            for one in self._logs.values():  # nobody waits for a reader that broke
                one.gone = True
                one.wake()

    async def _look(self) -> None:
        logs = {job_id: one for job_id, one in self._logs.items() if one.over is None}
        now = time.monotonic()
        due = [job_id for job_id, one in logs.items() if now >= one.check_at]
        known = {job_id: one.last for job_id, one in logs.items()}
        loop = asyncio.get_running_loop()
        try:
            sight = await loop.run_in_executor(self._thread, self._see, known, due)
        except OUTAGES as error:
            log.warning("events cannot be read", error=type(error).__name__)
            return
        for job_id, job in sight.records.items():
            logs[job_id].check_at = now + self.pace.check_s
            logs[job_id].gone = job is None
        for job_id, new in sight.events.items():
            logs[job_id].add(new)
            if any(event.kind is Kind.state for event in new):  # perhaps the last
                logs[job_id].check_at = now
                self._wanted.set()
        for job_id, job in sight.records.items():
            if job is not None and job.state.terminal:
                logs[job_id].end(job)
        for job_id in {*sight.events, *sight.records}:
            logs[job_id].wake()

    def _see(self, known: Mapping[str, EventId], due: list[str]) -> Sight:
        """Records first: of a job that has ended by then, everything has been told."""
        records = {job_id: self._services.jobs.find(job_id) for job_id in due}
        return Sight(records, self._services.jobs.events(known))
