"""
What is told of a job while it goes on, in order, for those who listen.

    state      its record has come to another state, or another process has begun it
    progress   how far it is
    warning    what a reader of its report should know, when a process comes upon it
    done       it has ended; nothing follows

An id is the number of changes of the record until then, its creation counted, and a place among what
was told before the next change. So the record alone says how its story ends, for as long as there is
a record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from service.context import Warned
from service.job import Job, Progress, State
from service.references import Model

MOST = 256
"""Events kept of one job."""
PINNED = 64
"""States and warnings that stay while there is progress to be forgotten instead."""
ID = re.compile(r"(\d{1,15})-(\d{1,15})", re.ASCII)


class Kind(StrEnum):
    state = "state"
    progress = "progress"
    warning = "warning"
    done = "done"


class EventId(NamedTuple):
    """Orders the events of a job."""

    change: int
    place: int

    def __str__(self) -> str:
        return f"{self.change}-{self.place}"

    @classmethod
    def parse(cls, text: str) -> EventId | None:
        """What `str` has written; None if it has not."""
        match = ID.fullmatch(text)
        return cls(int(match[1]), int(match[2])) if match else None


START = EventId(0, 0)
"""Before all of them."""


class StateTold(Model):
    """A job has come to a state, or another process has begun it."""

    state: State
    attempts: int
    """Processes that have started it."""
    at: datetime


@dataclass(frozen=True)
class Event:
    """One of them, with its data in JSON (ASCII)."""

    id: EventId
    kind: Kind
    data: str


def written(data: Model) -> str:
    """JSON that no reader of lines cuts, whatever it takes for the end of one."""
    return data.model_dump_json(ensure_ascii=True)


def first_of(job: Job) -> EventId:
    """Id of what is told of the newest change of a record."""
    return EventId(job.version + 1, 0)


def last_of(job: Job) -> EventId:
    """Id of the end of a job that has ended."""
    return EventId(job.version + 1, 1)


def told_by(job: Job, before: Job | None = None) -> Event | None:
    """What a new record tells to those who know the one before."""
    if before is not None and (before.state, before.attempts) == (job.state, job.attempts):
        return None
    at = job.finished_at or job.attempt_started_at or job.created_at
    data = StateTold(state=job.state, attempts=job.attempts, at=at)
    return Event(first_of(job), Kind.state, written(data))


def of_progress(progress: Progress) -> tuple[Kind, str]:
    """How progress is told."""
    return Kind.progress, written(progress)


def of_warning(warned: Warned) -> tuple[Kind, str]:
    """How a warning is told."""
    return Kind.warning, written(warned)


def shortened(events: list[Event], most: int = MOST) -> list[Event]:
    """What is kept of them: the oldest progress is forgotten first, the last event never."""
    kept = list(events)
    while len(kept) > most:
        oldest = kept[: min(PINNED, len(kept) - 1)]
        kept.remove(next((one for one in oldest if one.kind is Kind.progress), oldest[0]))
    return kept


After = Mapping[str, EventId]
"""What a listener knows already, by job."""
