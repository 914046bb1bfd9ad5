"""The verbs of the service. The door, the workers and the command line translate and call these."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import structlog

from service.check import Check, Context, Slot
from service.dataset import Dataset, Labels
from service.dataset_record import (
    ColumnFacts,
    DatasetRecord,
    hash_dataset,
    hash_ids,
)
from service.errors import (
    AssayError,
    Cancelled,
    Internal,
    InvalidRequest,
    OutOfMemory,
    QueueFull,
    ReportNotReady,
    Unavailable,
    WorkerLost,
)
from service.formats import Limits, Options, Parsed, Reader, reader_for
from service.formats.json_body import inline_rows
from service.inputs import Given, Loaded, Store, prepare, refuse
from service.job import Failure, Job, Progress, State, StoredInputs, new_id, now
from service.ports import Datasets, Draft, Gates, Jobs, Queue, Reports
from service.references import (
    ColumnRef,
    DatasetRef,
    InlineColumn,
    InlineVectors,
    NamedDataset,
    Spec,
)
from service.report import (
    REPORT_VERSION,
    REPORTS,
    ReportBase,
    ReportedColumn,
    ReportedModel,
    ReportedVectors,
    Timing,
    environment,
    load_report,
    result_digest,
)
from service.request import RequestBase, check_of, request_digest

GIB = 1 << 30
PROGRESS_EVERY_S = 0.5
log = structlog.get_logger()


@dataclass(frozen=True)
class Services:
    """Everything operations need: ports and the numbers an operator sets."""

    datasets: Datasets
    reports: Reports
    jobs: Jobs
    gates: Gates
    queue: Queue
    limits: Limits = field(default_factory=Limits)
    threads: int = 1
    deadline_s: int = 3600
    queue_depth: int = 10_000
    attempts: int = 3
    outages: tuple[type[Exception], ...] = ()
    """What the parts raise when they do not answer."""
    pauses_s: tuple[float, ...] = (1.0, 5.0, 15.0)
    """Before a job that met an outage is run again."""


class Upload:
    """A dataset on its way in: feed it the body as it arrives, then finish or abort."""

    def __init__(
        self,
        services: Services,
        project: str,
        content_type: str,
        options: Options | None = None,
        name: str | None = None,
        spec: Spec | None = None,
    ) -> None:
        self._services, self._name, self._spec = services, name, spec
        self._draft = services.datasets.draft(project)
        try:
            self._reader: Reader = reader_for(
                content_type, self._draft, services.limits, options or Options()
            )
        except AssayError:
            services.datasets.discard(self._draft)
            raise

    def feed(self, data: bytes) -> None:
        """Take some bytes of the body."""
        self._reader.feed(data)

    def finish(self) -> tuple[DatasetRecord, bool]:
        """The stored dataset, and whether it is new."""
        try:
            parsed = self._reader.finish()
            return _commit(self._services, self._draft, parsed, self._name, self._spec)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Forget it."""
        self._reader.close()
        self._services.datasets.discard(self._draft)


def _commit(
    services: Services, draft: Draft, parsed: Parsed, name: str | None, spec: Spec | None
) -> tuple[DatasetRecord, bool]:
    ids_hash = hash_ids(parsed.ids)
    given = {} if spec is None else spec.model_dump(exclude_none=True)
    described = parsed.spec.model_copy(update=given)
    _validate(parsed)
    columns = dict(parsed.columns)
    record = DatasetRecord(
        id=draft.id,
        name=name or parsed.name,
        n=parsed.n,
        d=parsed.d,
        dtype=parsed.dtype,
        bytes=parsed.bytes,
        sha256=hash_dataset(parsed.n, parsed.vectors_sha256, ids_hash, columns, described),
        vectors_sha256=parsed.vectors_sha256,
        ids_sha256=ids_hash,
        columns={name: ColumnFacts.of(column) for name, column in columns.items()},
        spec=described,
        facts=parsed.facts,
        created_at=now(),
    )
    return services.datasets.commit(draft, record, parsed.ids, columns)


def _validate(parsed: Parsed) -> None:
    """Lengths and ids, by the one place that knows: a Dataset over rows that take no memory."""
    if parsed.d is not None:
        rows = np.broadcast_to(np.zeros((), np.float32), (parsed.n, parsed.d))
        Dataset(rows, parsed.ids, parsed.columns)
    else:
        Dataset(None, parsed.ids, parsed.columns)


def submit(services: Services, project: str, request: RequestBase) -> Job:
    """
    Accept a job: store inline data, refuse what metadata forbids, answer from a stored report or queue.
    """
    check = check_of(request.kind)
    resolved = _store_inline(services, project, check, request)
    given = _given(services, project, check, resolved)
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
        id=new_id("job"),
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
        services.jobs.create(job)
        return job
    if services.queue.depth() >= services.queue_depth:
        raise QueueFull(f"{services.queue_depth} jobs are waiting; try again later.")
    services.jobs.create(job)
    services.queue.enqueue(job)
    log.info("job queued", job=job.id, kind=job.kind, project=project)
    return job


def _store_inline(
    services: Services, project: str, check: Check, request: RequestBase
) -> StoredInputs:
    """Inputs as references to stored data only."""
    result: StoredInputs = {}
    for slot in check.slots:
        value = getattr(request.inputs, slot.name)
        if isinstance(value, list):
            names = [one.name or f"model_{i}" for i, one in enumerate(value, start=1)]
            if len(set(names)) != len(names):
                raise InvalidRequest(f"The names in `{slot.name}` are not unique: {names}.")
            result[slot.name] = [
                NamedDataset(dataset=_dataset_id(services, project, one), name=name)
                for name, one in zip(names, value, strict=True)
            ]
        elif isinstance(value, (DatasetRef, InlineVectors)):
            result[slot.name] = DatasetRef(dataset=_dataset_id(services, project, value))
        elif isinstance(value, InlineColumn):
            result[slot.name] = _store_column(services, project, slot.name, value)
        elif isinstance(value, ColumnRef):
            result[slot.name] = ColumnRef(
                dataset=value.dataset or _default_dataset(slot, result), column=value.column
            )
    return result


def _dataset_id(services: Services, project: str, value: DatasetRef | InlineVectors) -> str:
    if isinstance(value, DatasetRef):
        return value.dataset
    draft = services.datasets.draft(project)
    try:
        parsed = inline_rows(value, draft, services.limits)
        record, _ = _commit(services, draft, parsed, None, None)
    except BaseException:
        services.datasets.discard(draft)
        raise
    return record.id


def _store_column(services: Services, project: str, name: str, value: InlineColumn) -> ColumnRef:
    column = Labels.from_json(value.values)
    if not len(column):
        raise InvalidRequest(f"`{name}` has no values.")
    services.limits.refuse_rows(len(column))
    draft = services.datasets.draft(project)
    parsed = Parsed(len(column), None, None, 0, None, None, columns={"values": column})
    try:
        record, _ = _commit(services, draft, parsed, None, None)
    except BaseException:
        services.datasets.discard(draft)
        raise
    return ColumnRef(dataset=record.id, column="values")


def _default_dataset(slot: Slot, result: StoredInputs) -> str:
    """The dataset of the role a column belongs to; of several models, the first."""
    source = result.get(slot.of or "")
    if isinstance(source, list):
        source = source[0]
    if source is None or source.dataset is None:
        raise InvalidRequest(f"`{slot.name}` needs a `dataset` to read its column from.")
    return source.dataset


def _given(
    services: Services, project: str, check: Check, inputs: StoredInputs
) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for slot in check.slots:
        value = inputs.get(slot.name)
        if isinstance(value, list):
            for place, one in enumerate(value):
                record = services.datasets.record(project, one.dataset)
                given[f"{slot.name}/{place}/{one.name}"] = Given(slot, record, place=place)
        elif value is not None:
            record = services.datasets.record(project, value.dataset or "")
            column = value.column if isinstance(value, ColumnRef) else None
            given[slot.name] = Given(slot, record, column)
    return given


def perform(services: Services, job_id: str) -> None:
    """
    Run a job to its end. Safe to call any number of times, at once or after any crash.

    The report is stored before the job succeeds, and only once; a job that has ended is left alone.
    """
    lost = WorkerLost(f"{services.attempts} processes died while running it.")

    def begin(newest: Job) -> Job | None:
        if newest.attempts < services.attempts:
            return _begin(newest)
        return newest.moved(State.failed, problem=Failure.of(lost))

    job = services.jobs.change(job_id, begin)
    if job is None or job.state is not State.running:
        return
    bound = log.bind(job=job.id, kind=job.kind, attempt=job.attempts)
    try:
        _answer(services, job)
    except AssayError as error:
        bound.info("job failed", code=error.code)
        fail(services, job_id, error)
    except services.outages as error:
        bound.exception("a part did not answer")
        if job.attempts < services.attempts:  # the queue runs it again
            time.sleep(services.pauses_s[min(job.attempts, len(services.pauses_s)) - 1])
            raise
        fail(services, job_id, Unavailable(f"{type(error).__name__}, {job.attempts} times."))
    except MemoryError:
        bound.warning("job out of memory", memory_bytes=job.memory_bytes)
        fail(services, job_id, OutOfMemory(f"The job may use {job.memory_bytes} bytes."))
    except Exception as error:
        bound.exception("job broke")
        fail(services, job_id, Internal(f"{type(error).__name__} in `{job.kind}`."))
    else:
        services.jobs.change(job_id, lambda newest: newest.moved(State.succeeded))
        bound.info("job succeeded")


def _begin(job: Job) -> Job | None:
    return job.moved(
        State.running,
        started_at=job.started_at or now(),
        attempt_started_at=now(),
        attempts=job.attempts + 1,
    )


def fail(services: Services, job_id: str, error: AssayError) -> None:
    """End a job without a report, unless it has ended already."""
    services.jobs.change(job_id, lambda job: job.moved(State.failed, problem=Failure.of(error)))


def _answer(services: Services, job: Job) -> None:
    check = check_of(job.kind)
    if check.version != job.kind_version:
        raise Internal(
            f"Accepted for version {job.kind_version} of `{job.kind}`, met by a worker of version "
            f"{check.version}; submit it again."
        )
    params = check.params.model_validate(job.params)
    loaded = _load(services, job, check)
    inputs, dropped = prepare(check, loaded, params)
    context = Context(
        seed=job.seed,
        threads=services.threads,
        progress=_Throttle(services.jobs, job.id),
        warnings=dropped,
    )
    started = time.perf_counter()
    results = check.run(context, inputs, params)
    run_s = time.perf_counter() - started
    report = REPORTS[job.kind].model_validate(
        {
            "report_version": REPORT_VERSION,
            "kind": job.kind,
            "kind_version": job.kind_version,
            "request_digest": job.request_digest,
            "digest": result_digest(job.request_digest, results),
            "created_at": now(),
            "inputs": _reported(services, job),
            "params": params,
            "seed": job.seed,
            "results": results,
            "readings": results.readings(),
            "warnings": context.warnings,
            "scope": [*check.scope, *context.scope],
            "environment": environment(),
            "timing": Timing(run_s=run_s, stages=context.stages),
        }
    )
    data = report.model_dump_json().encode()
    stored = load_report(services.reports.put(job.project, job.request_digest, data))
    same_place = stored.environment == report.environment
    if not job.cache and same_place and stored.digest != report.digest:
        raise Internal(
            f"Recomputing gave digest {report.digest}, not the stored {stored.digest}, in the same "
            "environment."
        )


def _load(services: Services, job: Job, check: Check) -> dict[str, Loaded]:
    loaded: dict[str, Loaded] = {}
    for slot in check.slots:
        value = job.inputs.get(slot.name)
        if isinstance(value, ColumnRef):
            dataset = value.dataset or ""
            column = services.datasets.column(job.project, dataset, value.column)
            loaded[slot.name] = Loaded(slot, column, services.datasets.ids(job.project, dataset))
        elif value is not None:
            for one in value if isinstance(value, list) else [value]:
                data = services.datasets.load(job.project, one.dataset)
                model = one.name if isinstance(one, NamedDataset) else None
                name = slot.name if model is None else f"{slot.name}/{model}"
                loaded[name] = Loaded(slot, data, data.ids, model)
    return loaded


def _reported(
    services: Services, job: Job
) -> dict[str, ReportedVectors | ReportedColumn | list[ReportedModel]]:
    def about(dataset: str) -> dict[str, Any]:
        record = services.datasets.record(job.project, dataset)
        return {
            **record.model_dump(include=set(ReportedVectors.model_fields)),
            "dataset": record.id,
        }

    result: dict[str, ReportedVectors | ReportedColumn | list[ReportedModel]] = {}
    for name, value in job.inputs.items():
        if isinstance(value, ColumnRef):
            record = services.datasets.record(job.project, value.dataset or "")
            result[name] = ReportedColumn(
                dataset=record.id,
                column=value.column,
                sha256=record.columns[value.column].sha256,
                ids_sha256=record.ids_sha256,
                n=record.n,
            )
        elif isinstance(value, list):
            result[name] = [
                ReportedModel.model_validate({**about(one.dataset), "name": one.name})
                for one in value
            ]
        else:
            result[name] = ReportedVectors.model_validate(about(value.dataset))
    return result


class _Throttle:
    """Passes on progress at most twice a second, with the time left at the pace so far."""

    def __init__(self, jobs: Jobs, job_id: str) -> None:
        self._jobs, self._job_id = jobs, job_id
        self._stage, self._began, self._told = "", 0.0, -PROGRESS_EVERY_S

    def __call__(self, stage: str, done: int, total: int) -> None:
        at = time.monotonic()
        if stage != self._stage:
            self._stage, self._began = stage, at
        if at - self._told < PROGRESS_EVERY_S:
            return
        self._told = at
        eta = (at - self._began) * (total - done) / done if done else None
        self._jobs.report_progress(
            self._job_id, Progress(stage=stage, done=done, total=total, eta_s=eta)
        )


def cancel(services: Services, project: str, job_id: str) -> Job:
    """Mark a job cancelled, then stop it wherever it is; a job that has ended stays as it is."""
    services.jobs.get(project, job_id)
    services.jobs.change(job_id, lambda job: job.moved(State.cancelled))
    job = services.jobs.get(project, job_id)
    if job.state is State.cancelled:
        services.queue.stop(job_id)
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
        self.failure = failure


def report_of(services: Services, job: Job) -> ReportBase | str:
    """The typed report of an ended job, or the code it ended with."""
    if job.state is not State.succeeded:
        return job.problem.code if job.problem else job.state.value
    return load_report(report_bytes(services, job.project, job.id))
