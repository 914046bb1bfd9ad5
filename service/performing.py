"""Run a job to its end, once, whatever dies on the way."""

from __future__ import annotations

import time
from typing import Any

import structlog

from service.check import Check, Context
from service.errors import (
    AssayError,
    Internal,
    OutOfMemory,
    Unavailable,
    WorkerLost,
)
from service.inputs import Loaded, prepare
from service.job import Failure, Job, Progress, State, now
from service.ports import Jobs
from service.references import (
    ColumnRef,
    NamedDataset,
)
from service.report import (
    REPORT_VERSION,
    REPORTS,
    ReportedColumn,
    ReportedModel,
    ReportedVectors,
    Timing,
    environment,
    load_report,
    result_digest,
)
from service.request import check_of
from service.services import Services

PROGRESS_EVERY_S = 0.5
log = structlog.get_logger()


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
    for slot in check.slots_of(job.inputs):
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
