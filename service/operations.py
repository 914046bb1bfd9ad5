"""The verbs of the service. The door, the workers and the command line translate and call these."""

from __future__ import annotations

from typing import Any

import structlog

from service.binding import column_of, vectors_of
from service.check import BARE, Check, Slot
from service.errors import (
    AssayError,
    Cancelled,
    Fault,
    Internal,
    InvalidRequest,
    QueueFull,
    ReportNotReady,
)
from service.inputs import Given, Store, refuse
from service.job import Failure, Job, Pool, State, StoredInputs, new_id, now, steps
from service.performing import combine, complete, fail, hand_out, perform, perform_shard
from service.references import (
    BaselineRef,
    ColumnRef,
    DatasetRef,
    InlineVectors,
    NamedDataset,
    NamedParts,
)
from service.report import (
    ReportBase,
    load_report,
)
from service.request import RequestBase, check_of, request_digest
from service.services import Services
from service.uploads import Upload

GIB = 1 << 30
log = structlog.get_logger()

__all__ = [
    "JobFailed",
    "Services",
    "Upload",
    "cancel",
    "combine",
    "complete",
    "fail",
    "hand_out",
    "perform",
    "perform_shard",
    "report_bytes",
    "report_of",
    "submit",
]


def submit(
    services: Services, project: str, request: RequestBase, job_id: str | None = None
) -> Job:
    """
    Accept a job: store inline data, refuse what metadata forbids, answer from a stored report or queue.

    If there is a job of this id already, nothing is done: it is the answer.
    """
    job_id = job_id or new_id("job")
    if (known := services.jobs.find(job_id)) is not None:
        if known.state is State.queued:  # whoever created it may have died before this
            services.queue.enqueue(known)
        return known
    check = check_of(request.kind)
    resolved = _stored(services, project, check, request)
    bare = {role for role, value in request.inputs if value is not None} - set(resolved)
    given = _given(services, project, check, resolved, bool(bare))
    store = Store(
        ids=lambda record: services.datasets.ids(project, record.id),
        column=lambda record, name: services.datasets.column(project, record.id, name),
    )
    refuse(check, given, request.params, store)
    digest = request_digest(
        check.kind,
        check.version,
        {name: one.sha256 for name, one in given.items()},
        request.params,
        request.seed,
    )
    input_bytes = sum(one.record.bytes for one in given.values() if one.column is None)
    job = Job(
        id=job_id,
        project=project,
        kind=check.kind,
        kind_version=check.version,
        state=State.queued,
        inputs=resolved,
        params=request.params.model_dump(mode="json"),
        seed=request.seed,
        cache=request.cache,
        tags=request.tags,
        request_digest=digest,
        deadline_s=services.deadline_s,
        memory_bytes=input_bytes + check.memory_bytes(input_bytes) + GIB,
        created_at=now(),
    )
    if request.cache and services.reports.get(project, digest) is not None:
        job = job.model_copy(
            update={"state": State.succeeded, "cached": True, "finished_at": job.created_at}
        )
        return _created(services, job)
    if (waiting := services.jobs.unfinished(project)) >= services.quotas.project_jobs:
        raise QueueFull(
            f"Project `{project}` has {waiting} jobs that have not ended; it may have "
            f"{services.quotas.project_jobs}. Wait for some, or cancel them."
        )
    if sum(services.queue.depth(pool) for pool in Pool) >= services.queue_depth:
        raise QueueFull(f"{services.queue_depth} jobs are waiting; try again later.")
    job = _created(services, job)
    services.queue.enqueue(job)
    log.info("job queued", job=job.id, kind=job.kind, project=project)
    return job


def _created(services: Services, job: Job) -> Job:
    """The job of this id, whoever was first to create it."""
    return job if services.jobs.create(job) else services.jobs.get(job.project, job.id)


def _stored(services: Services, project: str, check: Check, request: RequestBase) -> StoredInputs:
    """Inputs as references to stored data only."""
    result: StoredInputs = {}
    asked = {name: value for name, value in request.inputs if value is not None}
    for slot in check.slots_of(asked):
        value = asked.get(slot.name)
        if slot.several:
            result[slot.name] = _parts(services, project, slot, value, asked)
        elif isinstance(value, list):
            names = _names(slot, value)
            result[slot.name] = [
                NamedDataset(dataset=vectors_of(services, project, one), name=name)
                for name, one in zip(names, value, strict=True)
            ]
        elif isinstance(value, (DatasetRef, BaselineRef, InlineVectors)):
            result[slot.name] = DatasetRef(dataset=vectors_of(services, project, value))
        elif value is not None:
            default = _default_dataset(slot, result)
            result[slot.name] = column_of(services, project, slot.name, value, default)
    return result


def _names(slot: Slot, models: list[Any]) -> list[str]:
    names = [one.name or f"model_{i}" for i, one in enumerate(models, start=1)]
    if len(set(names)) != len(names):
        raise InvalidRequest(f"The names in `{slot.name}` are not unique: {names}.")
    return names


def _parts(
    services: Services, project: str, slot: Slot, models: list[Any] | None, asked: dict[str, Any]
) -> list[NamedDataset | NamedParts]:
    """Models of several matrices, listed or one by bare roles."""
    if models is None:
        given = [(BARE, {part: asked[part] for part in slot.parts})]
    else:
        given = [
            (name, {part: getattr(one, part) for part in slot.parts})
            for name, one in zip(_names(slot, models), models, strict=True)
        ]
    return [
        NamedParts.model_validate(
            {
                "name": name,
                **{
                    part: DatasetRef(dataset=vectors_of(services, project, value))
                    for part, value in parts.items()
                },
            }
        )
        for name, parts in given
    ]


def _default_dataset(slot: Slot, result: StoredInputs) -> str | None:
    """The dataset of the role a column belongs to; of several models, the first."""
    role, _, part = (slot.of or "").partition(".")
    source = result.get(role)
    if isinstance(source, list):
        one = source[0]
        return one.parts[part].dataset if isinstance(one, NamedParts) else one.dataset
    return None if source is None else source.dataset


def _given(
    services: Services, project: str, check: Check, inputs: StoredInputs, bare: bool
) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for slot in check.slots_of(inputs):
        value = inputs.get(slot.name)
        if value is not None and slot.of is not None and slot.of.partition(".")[0] not in inputs:
            raise InvalidRequest(
                f"`{slot.name}` is a column of `{slot.of}`, which is not given.",
                [Fault(pointer=f"/inputs/{slot.name}", message=f"give `{slot.of}` too")],
            )
        if isinstance(value, list):
            for place, one in enumerate(value):
                here = f"{slot.name}/{place}/{one.name}"
                if isinstance(one, NamedParts):
                    for part, ref in one.parts.items():
                        record = services.datasets.record(project, ref.dataset)
                        at = f"/inputs/{part}" if bare else f"/inputs/{slot.name}/{place}/{part}"
                        given[f"{here}/{part}"] = Given(slot.part(part), record, place=place, at=at)
                    continue
                record = services.datasets.record(project, one.dataset)
                given[here] = Given(slot, record, place=place)
        elif value is not None:
            record = services.datasets.record(project, value.dataset or "")
            column = value.column if isinstance(value, ColumnRef) else None
            given[slot.name] = Given(slot, record, column)
    return given


def cancel(services: Services, project: str, job_id: str) -> Job:
    """Mark a job cancelled, then stop it wherever it is; a job that has ended stays as it is."""
    services.jobs.get(project, job_id)
    services.jobs.change(job_id, lambda job: job.moved(State.cancelled))
    job = services.jobs.get(project, job_id)
    if job.state is State.cancelled:
        for step in steps(job):
            services.queue.stop(step.of(job_id))
        log.info("job cancelled", job=job_id)
    return job


def report_bytes(services: Services, project: str, job_id: str) -> bytes:
    """The stored report of a job."""
    job = services.jobs.get(project, job_id)
    if job.problem is not None:
        raise JobFailed(job.problem)
    if job.state is State.cancelled:
        raise Cancelled(f"Job {job_id} was cancelled; it has no report.")
    if job.state is State.succeeded:
        data = services.reports.get(project, job.request_digest)
        if data is None:
            raise Internal(f"The report of job {job_id} is not in the store.")
        return data
    raise ReportNotReady(f"Job {job_id} is {job.state.value}.")


class JobFailed(AssayError):
    """A report was asked for and the job failed: the job's own problem, in its own code."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail, failure.errors)
        self.code, self.title = failure.code, failure.title
        self.failure = failure


def report_of(services: Services, job: Job) -> ReportBase | str:
    """The typed report of an ended job, or the code it ended with."""
    if job.state is not State.succeeded:
        return job.problem.code if job.problem else job.state.value
    return load_report(report_bytes(services, job.project, job.id))
