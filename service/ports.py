"""What operations need from the outside; every storage is one of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Generic, Protocol, TypeVar

from service.allowance import Allowance
from service.baseline import Baseline
from service.context import Warned
from service.dataset import Dataset, Labels
from service.dataset_record import DatasetRecord
from service.events import After, Event
from service.formats import Sink
from service.job import EVERY_JOB, WHOLE, GateRun, Job, Pool, Progress, Step, Wanted
from service.source_page import SourcePage
from service.source_reference import Provenance, Reference

Record = TypeVar("Record", Job, GateRun)
Tell = Callable[[str, int, int], None]
"""Takes a stage, how much of it is done, and how much there is of it."""


Item = TypeVar("Item")


@dataclass(frozen=True)
class Page(Generic[Item]):
    """Some items, newest first, and where the next page starts."""

    items: list[Item]
    next_cursor: str | None


class Draft(Sink, Protocol):
    """A dataset on its way in: vectors are written to it, then it is committed or discarded."""

    @property
    def id(self) -> str: ...

    @property
    def project(self) -> str: ...


class Datasets(Protocol):
    """Immutable datasets by project."""

    def draft(self, project: str, job: str | None = None) -> Draft:
        """Rows that are to become a dataset; those of a job can be forgotten when it has ended."""
        ...

    def commit(
        self,
        draft: Draft,
        record: DatasetRecord,
        ids: tuple[str, ...] | None,
        columns: Mapping[str, Labels],
    ) -> tuple[DatasetRecord, bool]:
        """Keep it; if the project already has this content, keep the old one and return False."""
        ...

    def discard(self, draft: Draft) -> None:
        """Forget a draft."""
        ...

    def record(self, project: str, dataset: str) -> DatasetRecord:
        """Metadata, or UnknownDataset."""
        ...

    def usable(self, project: str, dataset: str) -> DatasetRecord:
        """Metadata for what will need it, a use; UnknownDataset also while it may be about to go."""
        ...

    def page(self, project: str, limit: int, cursor: str | None) -> Page[DatasetRecord]:
        """Records of a project, newest first."""
        ...

    def remember_body(self, project: str, body: str, dataset: str) -> None:
        """A body of this hash became this dataset."""
        ...

    def of_body(self, project: str, body: str) -> DatasetRecord | None:
        """The dataset a body of this hash would become, if it is known to be there."""
        ...

    def load(self, project: str, dataset: str) -> Dataset:
        """Rows (memory-mapped where that is possible), ids and columns."""
        ...

    def open_vectors(self, project: str, dataset: str) -> IO[bytes]:
        """The canonical .npy of its rows, to be read and closed; the dataset has vectors."""
        ...

    def remove(self, project: str, dataset: str, keep: Callable[[], bool]) -> bool:
        """
        Let nothing new use a dataset, then ask `keep` whether something needs it: leave or delete it.

        Whether it is gone; UnknownDataset if there is none. It stays readable until that is known, and
        stays if `keep` raises or the process dies.
        """
        ...

    def drafting(self) -> list[str]:
        """Jobs that have, or may have left, drafts."""
        ...

    def abandon(self, job: str) -> None:
        """Forget the drafts of a job, of which nobody writes any more."""
        ...

    def unused(self, since: datetime) -> list[tuple[str, str]]:
        """Project and id of datasets whose last use, or coming, was before that time."""
        ...

    def used(self, project: str, dataset: str) -> datetime:
        """When a dataset was used last, or came."""
        ...

    def tidy(self, older_than: datetime) -> int:
        """Delete what uploads and imports that died before that time have left; how many."""
        ...

    def ids(self, project: str, dataset: str) -> tuple[str, ...] | None:
        """Ids alone."""
        ...

    def column(self, project: str, dataset: str, name: str) -> Labels:
        """One column alone."""
        ...

    def stored_bytes(self, project: str) -> int:
        """Size of all datasets of a project."""
        ...

    def reachable(self) -> bool:
        """Whether the store can be written now."""
        ...


class Reports(Protocol):
    """Immutable report bytes by project and request digest."""

    def get(self, project: str, request_digest: str) -> bytes | None: ...

    def put(self, project: str, request_digest: str, data: bytes) -> bytes:
        """Store unless there is one; returns what is stored."""
        ...


class Parts(Protocol):
    """Immutable parts of jobs that are not done yet, by job and shard."""

    def put(self, job_id: str, shard: int, data: bytes | memoryview) -> None:
        """Store unless there is one."""
        ...

    def open(self, job_id: str, shard: int) -> IO[bytes] | None:
        """A stored part, to be read from any place and closed; None if there is none."""
        ...

    def jobs(self) -> list[str]:
        """Ids of jobs that have parts."""
        ...

    def remove(self, job_id: str) -> None:
        """Forget all parts of a job."""
        ...


class Jobs(Protocol):
    """Job records, changed by compare-and-set."""

    def create(self, job: Job) -> bool:
        """Keep a new record; False where there is one of this id, which stays as it is."""
        ...

    def get(self, project: str, job_id: str) -> Job:
        """A job of this project, or UnknownJob."""
        ...

    def find(self, job_id: str) -> Job | None:
        """A job of any project: for workers and the sweeper."""
        ...

    def change(self, job_id: str, move: Callable[[Job], Job | None]) -> Job | None:
        """Apply `move` to the newest record; None if there is no record or `move` declines."""
        ...

    def page(
        self, project: str, limit: int, cursor: str | None, wanted: Wanted = EVERY_JOB
    ) -> Page[Job]: ...

    def active(self) -> list[str]:
        """Ids of all jobs that have not ended."""
        ...

    def unfinished(self, project: str) -> int:
        """Number of jobs of this project that have not ended."""
        ...

    def ended(self) -> dict[tuple[str, str], int]:
        """Number of jobs that have ended, by kind and state."""
        ...

    def report_progress(self, job_id: str, progress: Progress) -> None: ...

    def report_warning(self, job_id: str, warned: Warned) -> None:
        """Tell those who listen to a job that has not ended."""
        ...

    def events(self, after: After) -> dict[str, list[Event]]:
        """
        What was told of these jobs after these ids, in order; jobs of which nothing was are left out.

        At most so many events of a job are kept (`shortened`), and for a day once it has ended.
        """
        ...

    def progress(self, job_id: str) -> Progress | None: ...

    def begin(self, job_id: str, step: Step) -> int:
        """Count a start of a step of a job; how many there have been."""
        ...

    def report_done(self, job_id: str, shard: int, done: float) -> dict[int, float]:
        """Note how much of a shard is done, never less than before; all that is known."""
        ...

    def done(self, job_id: str) -> dict[int, float]:
        """How much is done of each shard that has said so; 1 where its part is stored."""
        ...


class Gates(Protocol):
    """Gate runs, changed by compare-and-set."""

    def create(self, run: GateRun) -> bool:
        """Keep a new record; False where there is one of this id, which stays as it is."""
        ...

    def find(self, run_id: str) -> GateRun | None:
        """A gate run of any project."""
        ...

    def get(self, project: str, run_id: str) -> GateRun: ...

    def change(self, run_id: str, move: Callable[[GateRun], GateRun | None]) -> GateRun | None: ...

    def page(
        self, project: str, limit: int, cursor: str | None, tag: tuple[str, str] | None
    ) -> Page[GateRun]: ...


class Baselines(Protocol):
    """Names of approved datasets, each with all it has stood for."""

    def set(self, project: str, name: str, dataset: str, gate: str | None) -> Baseline:
        """Let a name stand for a dataset; if it does already, nothing changes."""
        ...

    def get(self, project: str, name: str) -> Baseline:
        """What it stands for, or UnknownBaseline."""
        ...

    def history(self, project: str, name: str, limit: int) -> list[Baseline]:
        """What it stands and stood for, newest first, or UnknownBaseline."""
        ...

    def names(self, project: str) -> list[str]:
        """All names, in order."""
        ...


class Claims(Protocol):
    """Which resource an idempotency key stands for, for as long as keys are kept."""

    def claim(self, key: str, body_sha256: str, new_id: str, holder: str) -> str:
        """
        Bind the key to `new_id` and this body, in one step, and hold it; the id it is bound to.

        IdempotencyConflict if it is bound to another body, IdempotencyInFlight while another holds
        it. A holder that dies loses its hold after a few seconds; the binding stays.
        """
        ...

    def release(self, key: str, holder: str, *, forget: bool) -> None:
        """Let go of the key; `forget` undoes the binding too. Nothing happens to another's hold."""
        ...


class Rates(Protocol):
    """Counts requests."""

    def take(self, bucket: str, per_minute: int) -> Allowance:
        """Take one request out of a bucket, in one step."""
        ...


class Queue(Protocol):
    """Carries steps of jobs to workers, as ids; that of a job's first step is the job's."""

    def enqueue(self, job: Job, step: Step = WHOLE) -> None:
        """Hand over a step of a job; doing it twice is harmless."""
        ...

    def stop(self, task_id: str) -> None:
        """Take it from the queue, or kill the process that runs it."""
        ...

    def holds(self, task_id: str) -> bool:
        """Whether the queue still means to run it, or a worker is running it."""
        ...

    def forget(self, task_id: str) -> None:
        """Drop what the queue remembers of a step, so that it can be enqueued again."""
        ...

    def depth(self, pool: Pool = Pool.jobs) -> int:
        """Steps waiting."""
        ...

    def workers(self, pool: Pool = Pool.jobs) -> int:
        """Live workers."""
        ...


@dataclass
class Opened:
    """A store that is being read."""

    count: int | None
    """The rows that will come, by the store's own count before reading; None where it has none."""
    about: Provenance
    """What is read; counts are filled in by who reads. Adapters may replace it while reading."""
    pages: Iterator[SourcePage]
    recount: Callable[[], int | None]
    """The same count after reading."""
    snapshot: bool = False
    """Whether all of it is one state of the store, so that an id that comes twice is there twice."""


class Sources(Protocol):
    """Rows that live elsewhere."""

    def refuse(self, project: str, reference: Reference) -> None:
        """Refuse what can never be read: no such connection here, or a package that is not there."""
        ...

    def open(
        self, project: str, reference: Reference, tell: Tell
    ) -> AbstractContextManager[Opened]:
        """Start to read; who waits is told of what has to be fetched first."""
        ...
