"""Sources become datasets: pages to a draft, every row once, nothing visible before all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import structlog

from service.accepting import settled, source_key, sources_of
from service.dataset_record import DatasetRecord
from service.errors import Cancelled, DuplicateIds, Fault, Internal, SourceInconsistent
from service.formats import PageWriter, Parsed
from service.job import FETCH, IMPORT, IMPORTED, WHOLE, Job, JobFailed, State, now
from service.performing import carefully, fail, lost
from service.ports import Opened, Tell
from service.progress import Throttle
from service.references import DatasetRef, SourceRef, Spec
from service.request import parse_request
from service.services import Services
from service.source_page import SourcePage
from service.source_reference import Provenance
from service.uploads import commit, room

IMPORT_VERSION = 1
IMPORT_BYTES = 4 << 30
"""Memory of an import: pages, and ids and labels of all rows."""
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

    asked = services.jobs.find(job_id)
    if asked is None or not ready(services, asked):
        return
    start = services.jobs.begin(job_id, FETCH)
    if start > services.attempts:
        fail(services, job_id, lost(services))
    elif (job := services.jobs.change(job_id, begin)) is not None:
        carefully(services, job, FETCH, start, lambda: _fetch(services, job))
    release(services, asked)


def ready(services: Services, job: Job) -> bool:
    """Whether every import a job waits for has ended."""
    if job.awaiting is None:
        return True
    imports = (services.jobs.find(one) for one in job.imports.values())
    return all(one is None or one.state.terminal for one in imports)


def release(services: Services, job: Job) -> None:
    """Queue the jobs that waited for this one alone; the sweeper finds those nobody released."""
    for job_id in job.followers:
        waiting = services.jobs.find(job_id)
        if waiting is not None and not waiting.state.terminal and ready(services, waiting):
            services.queue.enqueue(waiting, FETCH)


def _fetch(services: Services, job: Job) -> None:
    tell = Throttle(services.jobs, job)
    services.datasets.abandon(job.id)  # of an attempt that died
    if job.kind == IMPORT:
        value = SourceRef.model_validate((job.awaiting or {})[IMPORTED])
        record = read(services, job, value, tell)
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
    imported = dict(job.imported)
    for value in sources_of(request):
        key = source_key(value)
        if key in job.imports:
            imported[key] = _result(services, job.imports[key])
        elif key not in imported:
            imported[key] = read(services, job, value, tell).id
            _note(services, job, key, imported[key])
    changes = settled(services, job.project, request, imported)
    if job.cache and services.reports.get(job.project, changes["request_digest"]) is not None:
        _change(services, job, State.succeeded, {**changes, "cached": True})
        return
    changed = _change(services, job, State.running, changes)
    if changed is not None:
        services.queue.enqueue(changed, WHOLE)


def _result(services: Services, job_id: str) -> str:
    """The dataset of an import that has ended."""
    job = services.jobs.find(job_id)
    if job is not None and job.problem is not None:
        raise JobFailed(job.problem)
    if job is not None and job.state is State.cancelled:
        raise Cancelled(f"The import {job_id} was cancelled.")
    dataset = imported_by(job)
    if dataset is None:
        raise Internal(f"The import {job_id} has left no dataset.")
    return dataset


def imported_by(job: Job | None) -> str | None:
    """The dataset an import has made, if it has."""
    made = None if job is None or job.state is not State.succeeded else job.inputs.get(IMPORTED)
    return made.dataset if isinstance(made, DatasetRef) else None


def _change(services: Services, job: Job, state: State, changes: dict[str, Any]) -> Job | None:
    """End the waiting of a job, unless it has ended, or somebody else has done so, in between."""

    def move(newest: Job) -> Job | None:
        return None if newest.awaiting is None else newest.moved(state, awaiting=None, **changes)

    return services.jobs.change(job.id, move)


def _note(services: Services, job: Job, key: str, dataset: str) -> None:
    """Let nobody delete what a job has imported while it waits for the rest."""

    def move(newest: Job) -> Job | None:
        if newest.awaiting is None:
            return None
        return newest.moved(State.running, imported={**newest.imported, key: dataset})

    services.jobs.change(job.id, move)


def read(services: Services, job: Job, value: SourceRef, tell: Tell) -> DatasetRecord:
    """The dataset of a source; the same as before if it still holds the same."""
    project = job.project
    draft = services.datasets.draft(project, job.id)
    limits = replace(services.limits, room_bytes=room(services, project))
    try:
        writer = PageWriter(draft, limits)
        with services.sources.open(project, value.source, tell) as opened:
            for done in _written(opened.pages, writer):
                tell("import", done, max(done, opened.count or 0))
                if opened.count is not None and done > opened.count:
                    break  # a store that repeats itself may do so for ever
            after = opened.recount()
        refuse_gaps(opened, writer, after)
        about = _about(opened, writer, after)
        parsed = Parsed(**{**vars(writer.finish()), "spec": _spec(value.spec, about)})
        name = job.params.get("name") if job.kind == IMPORT else None
        record, new = commit(services, draft, parsed, name or about.location, None)
    except BaseException:
        services.datasets.discard(draft)
        raise
    log.info("source imported", dataset=record.id, rows=record.n, new=new, kind=about.kind)
    return record


def _written(pages: Iterable[SourcePage], writer: PageWriter) -> Iterator[int]:
    """Write each page while the next is read; how many rows have come, once for each."""
    with ThreadPoolExecutor(1) as pool:
        writing: Future[None] | None = None
        for page in pages:
            if writing is not None:
                writing.result()
                yield writer.rows + writer.missing
            writing = pool.submit(writer.add, page)
        if writing is not None:
            writing.result()
            yield writer.rows + writer.missing


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
    repeats = writer.repeats()
    fetched = writer.rows + writer.missing
    distinct = fetched - repeats.count
    short = 0 if opened.count is None else opened.count - distinct
    told = (
        f"fetched {fetched}, distinct {distinct}, repeated {repeats.count}, "
        f"{'short by' if short >= 0 else 'beyond the count by'} {abs(short)}; the store counted "
        f"{opened.count} before and {after} after"
    )
    faults = []
    if repeats.count:
        faults.append(
            Fault(
                pointer="/source",
                message="these ids came more than once",
                count=repeats.count,
                rows=repeats.ids,
            )
        )
    if repeats.count and (short == 0 or (opened.snapshot and fetched == opened.count)):
        raise DuplicateIds(
            f"Ids are not unique: {told}. Name a column that tells every row from the others.",
            faults,
        )
    if short or repeats.count:
        raise SourceInconsistent(
            f"The source did not give each of its rows once: {told}. Import again while nothing is "
            "written to it.",
            faults,
        )
    if opened.count != after:
        raise SourceInconsistent(f"The source changed while it was read: {told}.")
