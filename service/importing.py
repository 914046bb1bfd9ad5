"""Sources become datasets: pages to a draft, every row once, nothing visible before all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from service.accepting import settled, source_key, sources_of
from service.dataset_record import DatasetRecord
from service.errors import DuplicateIds, Fault, SourceInconsistent
from service.formats import PageWriter, Parsed
from service.job import FETCH, IMPORT, IMPORTED, WHOLE, Job, State, now
from service.performing import carefully, fail, lost
from service.ports import Opened
from service.progress import Throttle
from service.references import DatasetRef, SourceRef, Spec
from service.request import parse_request
from service.services import Services
from service.source_reference import Provenance
from service.uploads import commit

IMPORT_VERSION = 1
IMPORT_BYTES = 4 << 30
"""Memory of an import: pages, and ids and labels of all rows."""
Tell = Callable[[str, int, int], None]
log = structlog.get_logger()


def fetch(services: Services, job_id: str) -> None:
    """
    Import the sources of a job, then end it or queue what comes next. Safe to call any number of times.
    """

    def begin(newest: Job) -> Job | None:
        if newest.awaiting is None:
            return None
        return newest.moved(
            State.running, started_at=newest.started_at or now(), attempt_started_at=now()
        )

    start = services.jobs.begin(job_id, FETCH)
    if start > services.attempts:
        fail(services, job_id, lost(services))
        return
    job = services.jobs.change(job_id, begin)
    if job is not None:
        carefully(services, job, FETCH, start, lambda: _fetch(services, job))


def _fetch(services: Services, job: Job) -> None:
    tell = Throttle(services.jobs, job)
    if job.kind == IMPORT:
        value = SourceRef.model_validate((job.awaiting or {})[IMPORTED])
        record = read(services, job.project, value, job.params.get("name"), tell)
        _change(
            services,
            job,
            State.succeeded,
            {"inputs": {IMPORTED: DatasetRef(dataset=record.id)}},
        )
        return
    request = parse_request(
        {"kind": job.kind, "inputs": job.awaiting, "params": job.params, "seed": job.seed}
    )
    imported: dict[str, str] = {}
    for value in sources_of(request):
        if (key := source_key(value)) not in imported:
            imported[key] = read(services, job.project, value, None, tell).id
    changes = settled(services, job.project, request, imported)
    if job.cache and services.reports.get(job.project, changes["request_digest"]) is not None:
        _change(services, job, State.succeeded, {**changes, "cached": True})
        return
    changed = _change(services, job, State.running, changes)
    if changed is not None:
        services.queue.enqueue(changed, WHOLE)


def _change(services: Services, job: Job, state: State, changes: dict[str, Any]) -> Job | None:
    """End the waiting of a job, unless it has ended, or somebody else has done so, in between."""

    def move(newest: Job) -> Job | None:
        return None if newest.awaiting is None else newest.moved(state, awaiting=None, **changes)

    return services.jobs.change(job.id, move)


def read(
    services: Services, project: str, value: SourceRef, name: str | None, tell: Tell
) -> DatasetRecord:
    """The dataset of a source; the same as before if it still holds the same."""
    draft = services.datasets.draft(project)
    try:
        writer = PageWriter(draft, services.limits)
        with services.sources.open(project, value.source) as opened:
            for page in opened.pages:
                writer.add(page)
                done = writer.rows + writer.missing
                tell("import", done, max(done, opened.count or 0))
            after = opened.recount()
        refuse_gaps(opened, writer, after)
        about = _about(opened, writer, after)
        parsed = Parsed(**{**vars(writer.finish()), "spec": _spec(value.spec, about)})
        record, new = commit(services, draft, parsed, name, None)
    except BaseException:
        services.datasets.discard(draft)
        raise
    log.info("source imported", dataset=record.id, rows=record.n, new=new, kind=about.kind)
    return record


def _spec(given: Spec, about: Provenance) -> Spec:
    return given.model_copy(update={"source": about})


def _about(opened: Opened, writer: PageWriter, after: int | None) -> Provenance:
    return opened.about.model_copy(
        update={
            "rows": writer.rows,
            "missing_vectors": writer.missing,
            "missing_ids": writer.missing_ids,
            "count_before": opened.count,
            "count_after": after,
        }
    )


def refuse_gaps(opened: Opened, writer: PageWriter, after: int | None) -> None:
    """Every row of the store must have come, and come once."""
    fetched = writer.rows + writer.missing
    distinct = writer.distinct + writer.missing
    short = 0 if opened.count is None else opened.count - distinct
    told = (
        f"fetched {fetched}, distinct {distinct}, repeated {writer.repeated}, "
        f"{'short by' if short >= 0 else 'beyond the count by'} {abs(short)}; the store counted "
        f"{opened.count} before and {after} after"
    )
    faults = []
    if writer.repeated:
        faults.append(
            Fault(
                pointer="/source",
                message="these ids came more than once",
                count=writer.repeated,
                rows=writer.repeated_ids,
            )
        )
    if short == 0 and writer.repeated:
        raise DuplicateIds(f"Ids are not unique: {told}.", faults)
    if short or writer.repeated:
        raise SourceInconsistent(
            f"The source did not give each of its rows once: {told}. Import again while nothing is "
            "written to it.",
            faults,
        )
    if opened.count != after:
        raise SourceInconsistent(f"The source changed while it was read: {told}.")
