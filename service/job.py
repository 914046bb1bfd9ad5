"""Jobs and gate runs: their records, states and allowed transitions."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from service.blocks import Plan
from service.errors import AssayError, Fault
from service.gate import Policy, RuleResult, Verdict, VerdictWarning
from service.references import ColumnRef, DatasetRef, Model, NamedDataset, NamedParts

IMPORT = "import"
"""Kind of a job whose result is a dataset."""
IMPORTED = "dataset"
"""Its one input: a source before, a dataset after."""
StoredInputs = dict[str, DatasetRef | ColumnRef | list[NamedDataset | NamedParts]]


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


class JobFailed(AssayError):
    """What a job was to give is needed, and it failed: the job's own problem, in its own code."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail, failure.errors)
        self.code, self.title = failure.code, failure.title
        self.failure = failure


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
    """Start of the newest attempt, or of the first shard: what the deadline counts from."""
    attempts: int = 0
    awaiting: dict[str, Any] | None = None
    """Inputs as they were asked for, while some are sources that have to be imported first."""
    imports: dict[str, str] = Field(default_factory=dict)
    """Import jobs by the sources they read for this one; it reads other sources itself."""
    imported: dict[str, str] = Field(default_factory=dict)
    """Datasets by the sources it has read itself so far."""
    followers: list[str] = Field(default_factory=list)
    """Of an import, the jobs that wait for it."""
    plan: Plan | None = None
    """How its blocks are dealt to shards; written once, null where one process does all."""
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


@dataclass(frozen=True)
class Wanted:
    """Which jobs a listing shows; None asks for nothing."""

    state: State | None = None
    kinds: frozenset[str] | None = None
    tag: tuple[str, str] | None = None
    dataset: str | None = None
    """One they need, or needed."""
    reported: bool = False
    """Only those with a report."""
    computed: bool = False
    """Only those that no report was there for already."""

    def admits(self, job: Job) -> bool:
        """Whether the listing shows this job."""
        if self.reported and (job.state is not State.succeeded or job.kind == IMPORT):
            return False
        if self.computed and job.cached:
            return False
        return (
            self.state in (None, job.state)
            and (self.kinds is None or job.kind in self.kinds)
            and tagged(job, self.tag)
            and (self.dataset is None or self.dataset in datasets_of(job))
        )


EVERY_JOB = Wanted()


def datasets_of(job: Job) -> set[str]:
    """Ids of every dataset a job needs."""
    return {*_datasets(job.model_dump(include={"inputs", "awaiting"})), *job.imported.values()}


def datasets_by_role(job: Job) -> Iterator[tuple[str, str]]:
    """Each role of a job with each dataset it is given."""
    for role, value in job.model_dump(include={"inputs"})["inputs"].items():
        yield from ((role, dataset) for dataset in dict.fromkeys(_datasets(value)))


def _datasets(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(dataset := value.get("dataset"), str):
            yield dataset
        for one in value.values():
            yield from _datasets(one)
    elif isinstance(value, list):
        for one in value:
            yield from _datasets(one)


class Pool(StrEnum):
    """Workers that do one kind of work, behind a queue of their own."""

    jobs = "jobs"
    """Whole jobs, what comes before shards, and what comes after them."""
    shards = "shards"
    """Shards alone, so that no job waits behind its own parts."""


@dataclass(frozen=True)
class Step:
    """What one process does for a job."""

    name: Literal["perform", "fetch", "shard", "combine"] = "perform"
    shard: int | None = None

    @property
    def pool(self) -> Pool:
        return Pool.shards if self.name == "shard" else Pool.jobs

    def of(self, job_id: str) -> str:
        """Its id in the queue."""
        if self.name == "perform":
            return job_id
        return f"{job_id}-s{self.shard}" if self.name == "shard" else f"{job_id}-{self.name[0]}"


WHOLE = Step()
COMBINE = Step("combine")
FETCH = Step("fetch")
"""Import of the sources of a job, before all others."""


def first_step(job: Job) -> Step:
    """What a job begins with."""
    return WHOLE if job.awaiting is None else FETCH


def steps(job: Job) -> list[Step]:
    """Every step there may be for a job."""
    shards = range(job.plan.shards) if job.plan else ()
    if job.awaiting is not None:
        return [FETCH]
    return [WHOLE, *(Step("shard", shard) for shard in shards), *([COMBINE] if job.plan else [])]


def job_of(task_id: str) -> str:
    """The job a queued step belongs to."""
    return task_id.partition("-")[0]


class GateRun(Model):
    """A policy bound to data, its jobs, and, once they have ended, its verdict."""

    id: str
    project: str
    policy: Policy
    inputs: dict[str, DatasetRef | ColumnRef]
    """Stored data by the policy's names; what a source gave once the run is judged."""
    imports: dict[str, str] = Field(default_factory=dict)
    """Import jobs by the inputs whose sources they read."""
    baselines: dict[str, str] = Field(default_factory=dict)
    """Baselines by the inputs they were named for."""
    tags: dict[str, str]
    jobs: dict[str, str]
    """Job id by check of the policy."""
    fail_jobs: dict[str, str] = Field(default_factory=dict)
    """Job id by check, of the wider intervals that `fail` is judged on (`familywise`)."""
    state: Literal["running", "done", "cancelled"]
    verdict: Verdict | None = None
    rules: list[RuleResult] = Field(default_factory=list)
    warnings: list[VerdictWarning] = Field(default_factory=list)
    """What a reader of the verdict should know: of the reports, and of the policy."""
    digest: str | None = None
    created_at: datetime
    version: int = 0


def tagged(record: Job | GateRun, tag: tuple[str, str] | None) -> bool:
    """Whether a listing of this tag shows the record."""
    return tag is None or record.tags.get(tag[0]) == tag[1]


def now() -> datetime:
    """This instant, UTC, whole microseconds."""
    return datetime.now(UTC)


def new_id(prefix: str) -> str:
    """An id nobody can guess."""
    return f"{prefix}_{secrets.token_hex(12)}"
