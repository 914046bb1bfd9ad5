"""One run of a check for a job: what it needs is loaded and prepared, and its report is stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from service.check import Check, Inputs, Params, Results
from service.context import Context
from service.errors import Internal
from service.imported import warnings_of
from service.job import Job, datasets_by_role, now
from service.part import Notes, shared_environment
from service.preparing import Loaded, prepare
from service.references import ColumnRef, NamedDataset, NamedParts
from service.report import (
    REPORT_VERSION,
    REPORTS,
    ReportedColumn,
    ReportedInputs,
    ReportedModel,
    ReportedParts,
    ReportedTable,
    ReportedVectors,
    Timing,
    environment,
    load_report,
    result_digest,
)
from service.request import check_of
from service.services import Services


@dataclass(frozen=True)
class Work:
    """A job with its check and what that needs."""

    job: Job
    check: Check
    inputs: Inputs
    params: Params
    context: Context


def load(services: Services, job: Job, progress: Callable[[str, int, int], None]) -> Work:
    """Map the data of a job and prepare it; the context holds the warnings this gives rise to."""
    check = check_of(job.kind)
    if check.version != job.kind_version:
        raise Internal(
            f"Accepted for version {job.kind_version} of `{job.kind}`, met by a worker of version "
            f"{check.version}; submit it again."
        )
    params = check.params.model_validate(job.params)
    inputs, dropped = prepare(check, _load(services, job, check), params)
    records = (
        (role, services.datasets.record(job.project, dataset))
        for role, dataset in datasets_by_role(job)
    )
    context = Context(
        seed=job.seed,
        threads=services.threads,
        progress=progress,
        warnings=[*warnings_of(records), *dropped],
    )
    return Work(job, check, inputs, params, context)


def answer(
    services: Services,
    work: Work,
    compute: Callable[[], Results],
    parts: Sequence[Notes] = (),
) -> None:
    """Compute the results and store their report; `parts` are notes of parts they are made from."""
    job, context = work.job, work.context
    context.tell = partial(services.jobs.report_warning, job.id)
    for warned in context.warnings:
        context.tell(warned)
    for notes in parts:
        notes.add_to(context)
    started = time.perf_counter()
    results = compute()
    run_s = time.perf_counter() - started + sum(notes.run_s for notes in parts)
    report = REPORTS[job.kind].model_validate(
        {
            "report_version": REPORT_VERSION,
            "kind": job.kind,
            "kind_version": job.kind_version,
            "request_digest": job.request_digest,
            "digest": result_digest(job.request_digest, results),
            "created_at": now(),
            "inputs": _reported(services, job),
            "params": work.params,
            "seed": job.seed,
            "results": results,
            "readings": results.readings(),
            "warnings": context.warnings,
            "scope": [*work.check.scope, *context.scope],
            "environment": shared_environment(
                [environment(), *(notes.environment for notes in parts)]
            ),
            "timing": Timing(
                run_s=run_s,
                stages=context.stages,
                effort=context.effort,
                shards=max(1, len(parts)),
            ),
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
                if isinstance(one, NamedParts):
                    for part, ref in one.parts.items():
                        data = services.datasets.load(job.project, ref.dataset)
                        loaded[f"{slot.name}/{one.name}/{part}"] = Loaded(
                            slot.part(part), data, data.ids, one.name, part
                        )
                    continue
                data = services.datasets.load(job.project, one.dataset)
                model = one.name if isinstance(one, NamedDataset) else None
                name = slot.name if model is None else f"{slot.name}/{model}"
                loaded[name] = Loaded(slot, data, data.ids, model)
    return loaded


def _reported(services: Services, job: Job) -> ReportedInputs:
    def about(dataset: str) -> dict[str, Any]:
        record = services.datasets.record(job.project, dataset)
        return {
            **record.model_dump(include=set(ReportedVectors.model_fields)),
            "dataset": record.id,
        }

    def named(one: NamedDataset | NamedParts) -> ReportedModel | ReportedParts:
        if isinstance(one, NamedParts):
            parts = {part: about(ref.dataset) for part, ref in one.parts.items()}
            return ReportedParts.model_validate({**parts, "name": one.name})
        return ReportedModel.model_validate({**about(one.dataset), "name": one.name})

    tables = {slot.name for slot in check_of(job.kind).slots if slot.kind == "table"}
    result: ReportedInputs = {}
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
            result[name] = [named(one) for one in value]
        elif name in tables:
            record = services.datasets.record(job.project, value.dataset)
            result[name] = ReportedTable(
                dataset=record.id, sha256=record.sha256, n=record.n, columns=list(record.columns)
            )
        else:
            result[name] = ReportedVectors.model_validate(about(value.dataset))
    return result
