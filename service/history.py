"""Measures of many reports over time, from the records of jobs and the reports they lead to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from service.check import Check, Results
from service.checks import CATALOGUE
from service.errors import Fault, InvalidRequest, did_you_mean
from service.job import Job, StoredInputs, Wanted
from service.measured import Measured, declares, matches, measured
from service.numerics.resampling import Interval
from service.ports import Page
from service.references import Model
from service.report import load_report
from service.request import check_of
from service.services import Services


class MeasureValue(Results):
    """One measure of a report."""

    measure: str
    """Its path in `results`."""
    unit: str
    estimate: int | float | None
    interval: Interval | None


class ReportPoint(Model):
    """What one job reported."""

    job: str
    kind: str
    kind_version: int
    created_at: datetime
    """When the job was accepted: what the listing is ordered by."""
    tags: dict[str, str]
    inputs: StoredInputs
    cached: bool
    """Answered from a report that was there already; no worker ran."""
    digest: str | None
    """Of the report; null where it has been deleted."""
    measures: list[MeasureValue]
    """Those that were asked for and that it has; all without a wish."""


def history(
    services: Services,
    project: str,
    limit: int,
    cursor: str | None = None,
    kind: str | None = None,
    tag: tuple[str, str] | None = None,
    dataset: str | None = None,
    measures: Sequence[str] = (),
    computed: bool = False,
) -> Page[ReportPoint]:
    """
    Reports of a project, newest first, as far as they are of this kind, tag and dataset.

    A measure is a path of results, or a declared path, which stands for all its names. Reports of
    checks that have none of them are not listed; with `computed`, none that only repeats another.
    """
    checks = CATALOGUE if kind is None else (check_of(kind),)
    kinds = _kinds(checks, measures)
    wanted = Wanted(kinds=kinds, tag=tag, dataset=dataset, reported=True, computed=computed)
    page = services.jobs.page(project, limit, cursor, wanted)
    return Page([_point(services, job, measures) for job in page.items], page.next_cursor)


def _kinds(checks: Iterable[Check], measures: Sequence[str]) -> frozenset[str]:
    """Kinds of the checks that have one of the measures; each measure must be of one."""
    checks = list(checks)
    known = list(dict.fromkeys(one.path for check in checks for one in check.measures))
    faults = [
        Fault(pointer="/query/measure", message=f"no measure `{path}`; {did_you_mean(path, known)}")
        for path in measures
        if not any(declares(check, path) for check in checks)
    ]
    if faults:
        raise InvalidRequest("No such measure is declared.", faults)
    return frozenset(
        check.kind
        for check in checks
        if not measures or any(declares(check, path) for path in measures)
    )


def _point(services: Services, job: Job, measures: Sequence[str]) -> ReportPoint:
    data = services.reports.get(job.project, job.request_digest)
    report = None if data is None else load_report(data)
    found = () if report is None else measured(report)
    return ReportPoint(
        job=job.id,
        kind=job.kind,
        kind_version=job.kind_version,
        created_at=job.created_at,
        tags=job.tags,
        inputs=job.inputs,
        cached=job.cached,
        digest=None if report is None else report.digest,
        measures=[
            _value(one)
            for one in found
            if not measures or any(matches(one.path, path) for path in measures)
        ],
    )


def _value(one: Measured) -> MeasureValue:
    return MeasureValue(
        measure=one.path,
        unit=one.measure.unit,
        estimate=one.estimate,
        interval=one.interval,
        undefined=dict(one.undefined),
    )
