"""Jobs: ask for a report, watch it being made, fetch it."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from api.deps import (
    Once,
    Reader,
    Submitter,
    Use,
    applied,
    conditional,
    json_body,
    wait_for,
    wanted_tag,
    wanted_wait,
)
from api.drawing import Draw, drawings
from api.negotiation import HTML, JSON, MARKDOWN, VARY, negotiated
from api.problems import RETRY_AFTER_S, Problem, guarded, problem
from service import operations
from service.job import IMPORT, IMPORTED, Job, Progress, State, StoredInputs, Wanted
from service.once import once
from service.operations import Services
from service.references import DatasetRef, Model
from service.rendering import CONTENT_SECURITY_POLICY, report_page, report_summary
from service.report import AnyReport, load_report
from service.request import check_of, parse_request

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
SAFE_PAGE = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
JobId = Annotated[str, Path(description="Id returned by `POST /v1/jobs`.")]


class ReportLink(Model):
    report: str


class DatasetLink(Model):
    dataset: str


class JobLinks(Model):
    self: str
    report: str


class JobView(Model):
    """A job and its state."""

    id: str
    kind: str
    kind_version: int
    project: str
    state: State
    """`queued`, `running`, then `succeeded` (there is a report, whatever it says), `failed` or
    `cancelled`."""
    inputs: StoredInputs
    """Stored data by role; empty until the sources among them are imported."""
    params: dict[str, Any]
    """Every parameter, defaults filled in."""
    seed: int
    tags: dict[str, str]
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deadline_s: int
    """Seconds it may run."""
    progress: Progress | None
    """How far it is, while it runs."""
    attempts: int
    """Processes that have started it."""
    cached: bool
    """Answered from a stored report; no worker ran."""
    result: ReportLink | DatasetLink | None
    """Where the report is; of an import, the dataset."""
    problem: Problem | None
    """Why it failed."""
    links: JobLinks


class JobPage(Model):
    """Some jobs, newest first."""

    items: list[JobView]
    next_cursor: str | None
    """Pass it as `cursor` for the next page; null on the last."""


def view(services: Services, job: Job) -> JobView:
    """The public face of a job record."""
    here = f"{router.prefix}/{job.id}"
    running = job.state is State.running
    fields = job.model_dump(include=set(JobView.model_fields) - {"problem"})
    return JobView.model_validate(
        {
            **fields,
            "progress": services.jobs.progress(job.id) if running else None,
            "result": _result(job) if job.state is State.succeeded else None,
            "problem": None if job.problem is None else problem(job.problem),
            "links": {"self": here, "report": f"{here}/report"},
        }
    )


def _result(job: Job) -> ReportLink | DatasetLink:
    imported = job.inputs.get(IMPORTED) if job.kind == IMPORT else None
    if isinstance(imported, DatasetRef):
        return DatasetLink(dataset=imported.dataset)
    return ReportLink(report=f"{router.prefix}/{job.id}/report")


def ended(job: JobView) -> bool:
    """Whether nothing will change any more."""
    return job.state.terminal


def progress_headers(job: JobView) -> dict[str, str]:
    """When to look again, while it goes on."""
    return {} if job.state.terminal else {"Retry-After": str(RETRY_AFTER_S)}


@router.post(
    "",
    status_code=202,
    response_model=JobView,
    responses={
        200: {"model": JobView, "description": "The job has ended already."},
        **guarded(
            "invalid-request", "shape-mismatch", "dimension-mismatch", "ids-mismatch",
            "non-finite-rows", "zero-rows", "too-few-rows", "too-few-groups", "missing-labels",
            "malformed-payload", "unknown-check", "unknown-dataset", "damaged-dataset",
            "payload-too-large", "body-stalled", "unsupported-format", "queue-full", "source-denied",
            "idempotency-conflict", "idempotency-in-flight"),
    },
)  # fmt: skip
async def submit_job(request: Request, services: Use, caller: Submitter, key: Once) -> Response:
    """
    Ask for a report. The answer is immediate; poll `Location`, or send `Prefer: wait=N`.

    Everything that is wrong and knowable from metadata is refused here, with the rows concerned.
    With an `Idempotency-Key` a repeat answers with the job as it is now.
    """
    wait = wanted_wait(request)
    body = await json_body(request, services.limits.text_bytes)

    def accept() -> JobView:
        with once(services.claims, caller.project, router.prefix, key, body, "job") as job_id:
            job = operations.submit(services, caller.project, parse_request(body), job_id)
        return view(services, job)

    job = await asyncio.to_thread(accept)
    if wait and not ended(job):
        job = await wait_for(lambda: _read(services, caller.project, job.id), ended, wait)
    return conditional(
        request,
        job,
        status=200 if ended(job) else 202,
        headers={"Location": job.links.self, **progress_headers(job), **applied(wait)},
    )


def _read(services: Services, project: str, job_id: str) -> JobView:
    return view(services, services.jobs.get(project, job_id))


@router.get("", responses=guarded("invalid-request", "unknown-check"))
def list_jobs(
    services: Use,
    caller: Reader,
    state: Annotated[State | None, Query(description="Only jobs in this state.")] = None,
    kind: Annotated[str | None, Query(description="Only jobs of this kind.")] = None,
    tag: Annotated[str | None, Query(description="Only jobs with this tag, `name:value`.")] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Most jobs to list.")] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
) -> JobPage:
    """Jobs of this project, newest first."""
    if kind is not None and kind != IMPORT:
        check_of(kind)
    kinds = None if kind is None else frozenset({kind})
    wanted = Wanted(state=state, kinds=kinds, tag=wanted_tag(tag))
    page = services.jobs.page(caller.project, limit, cursor, wanted)
    return JobPage(items=[view(services, job) for job in page.items], next_cursor=page.next_cursor)


@router.get(
    "/{job_id}",
    response_model=JobView,
    responses={
        304: {"description": "Nothing has changed since this ETag."},
        **guarded("unknown-job"),
    },
)
async def get_job(request: Request, job_id: JobId, services: Use, caller: Reader) -> Response:
    """A job and its state; `Prefer: wait=N` holds the answer until it has ended or N seconds."""
    wait = wanted_wait(request)
    job = await wait_for(lambda: _read(services, caller.project, job_id), ended, wait)
    return conditional(request, job, headers={**progress_headers(job), **applied(wait)})


@router.delete(
    "/{job_id}",
    response_model=JobView,
    responses=guarded("unknown-job"),
)
def cancel_job(request: Request, job_id: JobId, services: Use, caller: Submitter) -> Response:
    """Stop a job, in the queue or inside a computation; a job that has ended stays as it is."""
    job = operations.cancel(services, caller.project, job_id)
    return conditional(request, view(services, job))


@router.get(
    "/{job_id}/report",
    response_model=AnyReport,
    responses={
        200: {"content": {kind: {"schema": {"type": "string"}} for kind in (MARKDOWN, HTML)}},
        304: {"description": "This representation has this ETag."},
        **guarded("unknown-job", "report-not-ready", "not-acceptable"),
    },
)
def get_report(
    request: Request, job_id: JobId, services: Use, draw: Draw, caller: Reader
) -> Response:
    """
    The report as stored; 409 while there is none, in the job's own code if it failed.

    `Accept: text/html` gives it as a page to read, with its charts; `text/markdown` its summary for a
    pull request.
    """
    wanted = negotiated(request, JSON, MARKDOWN, HTML)
    data = operations.report_bytes(services, caller.project, job_id)
    if wanted == JSON:
        return conditional(request, data, headers=VARY)
    report = load_report(data)
    if wanted == MARKDOWN:
        page = report_summary(report).encode()
        return conditional(request, page, headers=VARY, media_type=MARKDOWN)
    page = report_page(report, drawings(draw, report)).encode()
    return conditional(request, page, headers={**VARY, **SAFE_PAGE}, media_type=HTML)
