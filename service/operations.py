"""The verbs of the service. The door, the workers and the command line translate and call these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from os import SEEK_END
from typing import IO

import structlog

from service.accepting import bound, settled, sources_of
from service.errors import (
    Cancelled,
    DamagedDataset,
    DatasetInUse,
    Internal,
    InvalidRequest,
    QueueFull,
    ReportNotReady,
)
from service.importing import IMPORT_BYTES, IMPORT_VERSION, fetch, imported_by, ready, release
from service.job import (
    IMPORT,
    IMPORTED,
    Job,
    JobFailed,
    Pool,
    State,
    datasets_of,
    first_step,
    new_id,
    now,
    steps,
)
from service.performing import combine, complete, fail, hand_out, perform, perform_shard
from service.references import SourceRef
from service.report import ReportBase, load_report
from service.request import RequestBase, check_of
from service.services import Services
from service.uploads import Upload

log = structlog.get_logger()

__all__ = [
    "JobFailed",
    "Services",
    "Upload",
    "cancel",
    "combine",
    "complete",
    "fail",
    "fetch",
    "hand_out",
    "import_dataset",
    "perform",
    "perform_shard",
    "remove_dataset",
    "report_bytes",
    "report_of",
    "submit",
    "vectors_file",
]


def submit(
    services: Services,
    project: str,
    request: RequestBase,
    job_id: str | None = None,
    imports: Mapping[str, str] | None = None,
) -> Job:
    """
    Accept a job: store inline data, refuse what metadata forbids, answer from a stored report or queue.

    Sources of the request are imported by a worker first; what they forbid fails the job then. Those
    in `imports` (see `source_key`) are read by another job, which this one waits for.
    If there is a job of this id already, nothing is done: it is the answer.
    """
    job_id = job_id or new_id("job")
    if (known := _known(services, job_id)) is not None:
        return known
    check = check_of(request.kind)
    request = bound(services, project, request)
    sources = list(sources_of(request))
    job = Job(
        id=job_id,
        project=project,
        kind=check.kind,
        kind_version=check.version,
        state=State.queued,
        inputs={},
        params=request.params.model_dump(mode="json"),
        seed=request.seed,
        cache=request.cache,
        tags=request.tags,
        request_digest="",
        deadline_s=services.deadline_s,
        memory_bytes=IMPORT_BYTES,
        created_at=now(),
    )
    if sources:
        for value in sources:
            services.sources.refuse(project, value.source)
        awaiting = request.inputs.model_dump(mode="json", exclude_none=True)
        waiting = {"awaiting": awaiting, "imports": dict(imports or {})}
        return _queue(services, job.model_copy(update=waiting))
    job = job.model_copy(update=settled(services, project, request, {}))
    if request.cache and services.reports.get(project, job.request_digest) is not None:
        job = job.model_copy(
            update={"state": State.succeeded, "cached": True, "finished_at": job.created_at}
        )
        return _created(services, job)
    return _queue(services, job)


def import_dataset(
    services: Services,
    project: str,
    value: SourceRef,
    name: str | None = None,
    job_id: str | None = None,
    followers: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
) -> Job:
    """
    Accept the reading of a source as a job whose result is a dataset; `followers` wait for its end.

    If there is a job of this id already, nothing is done: it is the answer.
    """
    job_id = job_id or new_id("job")
    if (known := _known(services, job_id)) is not None:
        return known
    services.sources.refuse(project, value.source)
    asked = SourceRef(source=value.source, spec=value.spec)
    job = Job(
        id=job_id,
        project=project,
        kind=IMPORT,
        kind_version=IMPORT_VERSION,
        state=State.queued,
        inputs={},
        params={"name": name},
        seed=0,
        cache=False,
        tags=dict(tags or {}),
        request_digest="",
        deadline_s=services.deadline_s,
        memory_bytes=IMPORT_BYTES,
        followers=list(followers),
        awaiting={IMPORTED: asked.model_dump(mode="json", exclude_none=True)},
        created_at=now(),
    )
    return _queue(services, job)


def _known(services: Services, job_id: str) -> Job | None:
    """A job that is there already; whoever created it may have died before it was queued."""
    known = services.jobs.find(job_id)
    if known is not None and known.state is State.queued:
        _start(services, known)
    return known


def _start(services: Services, job: Job) -> None:
    if ready(services, job):
        services.queue.enqueue(job, first_step(job))


def _queue(services: Services, job: Job) -> Job:
    if (waiting := services.jobs.unfinished(job.project)) >= services.quotas.project_jobs:
        raise QueueFull(
            f"Project `{job.project}` has {waiting} jobs that have not ended; it may have "
            f"{services.quotas.project_jobs}. Wait for some, or cancel them."
        )
    if sum(services.queue.depth(pool) for pool in Pool) >= services.queue_depth:
        raise QueueFull(f"{services.queue_depth} jobs are waiting; try again later.")
    job = _created(services, job)
    _start(services, job)
    log.info("job queued", job=job.id, kind=job.kind, project=job.project)
    return job


def _created(services: Services, job: Job) -> Job:
    """The job of this id, whoever was first to create it."""
    return job if services.jobs.create(job) else services.jobs.get(job.project, job.id)


def cancel(services: Services, project: str, job_id: str) -> Job:
    """Mark a job cancelled, then stop it wherever it is; a job that has ended stays as it is."""
    services.jobs.get(project, job_id)
    services.jobs.change(job_id, lambda job: job.moved(State.cancelled))
    job = services.jobs.get(project, job_id)
    if job.state is State.cancelled:
        for step in steps(job):
            services.queue.stop(step.of(job_id))
        release(services, job)
        log.info("job cancelled", job=job_id)
    return job


def vectors_file(services: Services, project: str, dataset: str) -> tuple[IO[bytes], int, str]:
    """(the .npy of a dataset's rows, its bytes, the hash of the rows)."""
    record = services.datasets.record(project, dataset)
    if record.vectors_sha256 is None:
        raise InvalidRequest(f"Dataset {dataset} has columns and no vectors.")
    file = services.datasets.open_vectors(project, dataset)
    size = file.seek(0, SEEK_END)
    file.seek(0)
    return file, size, record.vectors_sha256


def remove_dataset(
    services: Services, project: str, dataset: str, unused_since: datetime | None = None
) -> None:
    """
    Delete a dataset that nothing needs; asked again once nothing new can use it.

    DatasetInUse also where it was used after a given time.
    """

    def used() -> bool:
        return unused_since is not None and services.datasets.used(project, dataset) >= unused_since

    with suppress(DamagedDataset):  # it can be deleted without being read
        services.datasets.record(project, dataset)
    if user := _user(services, project, dataset):
        raise DatasetInUse(f"{user} needs dataset {dataset}.")
    if not services.datasets.remove(
        project, dataset, keep=lambda: used() or _user(services, project, dataset) is not None
    ):
        raise DatasetInUse(f"Something has just been accepted that needs dataset {dataset}.")
    log.info("dataset removed", dataset=dataset, project=project)


def _user(services: Services, project: str, dataset: str) -> str | None:
    """Who needs a dataset: a baseline, or a job that has not ended."""
    for name in services.baselines.names(project):
        if services.baselines.get(project, name).dataset == dataset:
            return f"Baseline `{name}`"
    for job_id in services.jobs.active():
        job = services.jobs.find(job_id)
        if job is not None and job.project == project and dataset in _needed(services, job):
            return f"Job {job_id}"
    return None


def _needed(services: Services, job: Job) -> set[str]:
    """What a job needs, with what others have imported for it."""
    others = (imported_by(services.jobs.find(one)) for one in job.imports.values())
    return datasets_of(job) | {dataset for dataset in others if dataset is not None}


def report_bytes(services: Services, project: str, job_id: str) -> bytes:
    """The stored report of a job."""
    job = services.jobs.get(project, job_id)
    if job.problem is not None:
        raise JobFailed(job.problem)
    if job.kind == IMPORT:
        raise ReportNotReady(f"Job {job_id} is an import: its result is a dataset, not a report.")
    if job.state is State.cancelled:
        raise Cancelled(f"Job {job_id} was cancelled; it has no report.")
    if job.state is State.succeeded:
        data = services.reports.get(project, job.request_digest)
        if data is None:
            raise Internal(f"The report of job {job_id} is not in the store.")
        return data
    raise ReportNotReady(f"Job {job_id} is {job.state.value}.")


def report_of(services: Services, job: Job) -> ReportBase | str:
    """The typed report of an ended job, or the code it ended with."""
    if job.state is not State.succeeded:
        return job.problem.code if job.problem else job.state.value
    return load_report(report_bytes(services, job.project, job.id))
