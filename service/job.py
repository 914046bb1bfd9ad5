"""Jobs and gate runs: their records, states and allowed transitions."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from service.errors import AssayError, Fault
from service.gate import Policy, RuleResult, Verdict
from service.references import ColumnRef, DatasetRef, Model, NamedDataset

StoredInputs = dict[str, DatasetRef | ColumnRef | list[NamedDataset]]


class State(StrEnum):
    queued = "queued"
    """Accepted, not started."""
    running = "running"
    """A worker has it."""
    succeeded = "succeeded"
    """There is a report, whatever it says."""
    failed = "failed"
    """There will be no report; `problem` says why."""
    cancelled = "cancelled"
    """Stopped on request."""

    @property
    def terminal(self) -> bool:
        return self in (State.succeeded, State.failed, State.cancelled)


ALLOWED = {
    State.queued: {State.queued, State.running, State.failed, State.cancelled},
    State.running: {State.running, State.succeeded, State.failed, State.cancelled},
}


class Failure(Model):
    """Why a job has no report."""

    code: str
    title: str
    detail: str
    errors: list[Fault]

    @classmethod
    def of(cls, error: AssayError) -> Failure:
        return cls(
            code=error.code, title=error.title, detail=error.detail, errors=list(error.faults)
        )


class Progress(Model):
    """How far a running job is."""

    stage: str
    done: int
    total: int
    eta_s: float | None
    """Seconds left of this stage at its pace so far."""


class Job(Model):
    """The record of a job: the truth about it; the queue only carries its id."""

    id: str
    project: str
    kind: str
    kind_version: int
    state: State
    inputs: StoredInputs
    """Stored data by role."""
    params: dict[str, Any]
    seed: int
    cache: bool
    tags: dict[str, str]
    request_digest: str
    deadline_s: int
    memory_bytes: int
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempt_started_at: datetime | None = None
    """Start of the newest attempt: what the deadline counts from."""
    attempts: int = 0
    cached: bool = False
    problem: Failure | None = None
    version: int = 0
    """Counts changes of the record."""

    def moved(self, state: State, **changes: Any) -> Job | None:
        """The record in another state, or None if that move is not allowed any more."""
        if state not in ALLOWED.get(self.state, set()):
            return None
        if state.terminal:
            changes["finished_at"] = now()
        return self.model_copy(update={"state": state, **changes})


class GateRun(Model):
    """A policy bound to data, its jobs, and, once they have ended, its verdict."""

    id: str
    project: str
    policy: Policy
    inputs: dict[str, DatasetRef | ColumnRef]
    """Stored data by the policy's names."""
    tags: dict[str, str]
    jobs: dict[str, str]
    """Job id by check of the policy."""
    state: Literal["running", "done", "cancelled"]
    verdict: Verdict | None = None
    rules: list[RuleResult] = Field(default_factory=list)
    digest: str | None = None
    created_at: datetime
    version: int = 0


def now() -> datetime:
    """This instant, UTC, whole microseconds."""
    return datetime.now(UTC)


def new_id(prefix: str) -> str:
    """An id nobody can guess."""
    return f"{prefix}_{secrets.token_hex(12)}"
