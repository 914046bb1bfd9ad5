"""Gates: a policy bound to data, judged once its checks have ended."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import ValidationError

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
from api.negotiation import JSON, MARKDOWN, VARY, negotiated
from api.problems import RETRY_AFTER_S, guarded
from service.baseline import Baseline, BaselineName
from service.check import Warned
from service.errors import InvalidRequest
from service.gate import (
    InputKind,
    RuleResult,
    Verdict,
    VerdictWarning,
    cautions,
    read_policy,
    verdict_page,
)
from service.gating import cancel_gate, promote, read_gate, run_gate
from service.job import GateRun, Progress, State
from service.once import once
from service.operations import Services
from service.references import ColumnRef, DatasetRef, Model
from service.request import invalid

router = APIRouter(prefix="/v1/gates", tags=["gates"])
GateId = Annotated[str, Path(description="Id returned by `POST /v1/gates`.")]


class GateLinks(Model):
    self: str
    jobs: dict[str, str]
    imports: dict[str, str]


class PolicyView(Model):
    """A policy that can be run."""

    policy: str
    """Its name."""
    inputs: dict[str, InputKind]
    """What to bind, and to what."""
    checks: dict[str, str]
    """Kind by check."""
    rules: int
    """How many, blocking or not."""
    warnings: list[Warned]
    """What its author may not have meant, and what a reader of its verdict should know."""


class Promotion(Model):
    """What a passed gate should make of one of its inputs."""

    input: str
    """A vectors input of the policy."""
    baseline: BaselineName


class CheckState(Model):
    """How far the job of a check is."""

    state: State
    progress: Progress | None
    """Null while it waits."""


class GateView(Model):
    """A gate run and, once its jobs have ended, its verdict."""

    id: str
    policy: str
    """Name of the policy."""
    state: Literal["running", "done", "cancelled"]
    inputs: dict[str, DatasetRef | ColumnRef]
    """Stored data by input; what a source gave once the run is judged."""
    imports: dict[str, str]
    """Import job by input that is read from a source; the jobs of its checks wait for it."""
    baselines: dict[str, str]
    """Baselines by the inputs they were named for."""
    tags: dict[str, str]
    jobs: dict[str, str]
    """Job id by check of the policy."""
    fail_jobs: dict[str, str]
    """Job id by check, of the wider intervals that `fail` is judged on (`familywise`)."""
    unfinished: dict[str, CheckState]
    """While it runs, what it waits for, by check."""
    verdict: Verdict | None
    """`pass`, `fail`, `inconclusive`, or `invalid` when a check has no report."""
    rules: list[RuleResult]
    warnings: list[VerdictWarning]
    """What a reader of the verdict should know: of the reports, each code once, and of the policy."""
    digest: str | None
    """Hash of the verdict, the rules and the digests of the reports."""
    created_at: datetime
    links: GateLinks


def view(services: Services, run: GateRun) -> GateView:
    """The public face of a gate run."""
    fields = run.model_dump(include=set(GateView.model_fields) - {"policy"})
    jobs, imports = (
        {name: f"/v1/jobs/{job_id}" for name, job_id in some.items()}
        for some in (run.jobs, run.imports)
    )
    return GateView.model_validate(
        {
            **fields,
            "policy": run.policy.name,
            "unfinished": _unfinished(services, run) if run.state == "running" else {},
            "links": {"self": f"{router.prefix}/{run.id}", "jobs": jobs, "imports": imports},
        }
    )


def _unfinished(services: Services, run: GateRun) -> dict[str, CheckState]:
    found = {}
    for ids in (run.fail_jobs, run.jobs):
        for check, job_id in ids.items():
            job = services.jobs.find(job_id)
            if job is not None and not job.state.terminal:
                progress = services.jobs.progress(job_id) if job.state is State.running else None
                found[check] = CheckState(state=job.state, progress=progress)
    return found


class GatePage(Model):
    """Some gate runs, newest first."""

    items: list[GateView]
    next_cursor: str | None
    """Pass it as `cursor` for the next page; null on the last."""


def _ended(run: GateView) -> bool:
    return run.state != "running"


def _headers(run: GateView) -> dict[str, str]:
    return {} if _ended(run) else {"Retry-After": str(RETRY_AFTER_S)}


@router.post(
    "",
    status_code=202,
    response_model=GateView,
    responses={
        200: {"model": GateView, "description": "Judged already."},
        **guarded(
            "invalid-request", "malformed-payload", "unknown-check", "unknown-dataset",
            "damaged-dataset", "shape-mismatch", "queue-full", "source-denied", "payload-too-large",
            "body-stalled", "unsupported-format", "idempotency-conflict", "idempotency-in-flight"),
    },
)  # fmt: skip
async def start_gate(request: Request, services: Use, caller: Submitter, key: Once) -> Response:
    """
    Run a policy on data: `{"policy": {...}, "inputs": {name: value}}`, values as those of a job.

    Every check is an ordinary job, answered from a stored report where there is one; a source is
    read once, however many checks it is bound to. With an
    `Idempotency-Key` a repeat answers with the gate run as it is now.
    """
    wait = wanted_wait(request)
    body = await json_body(request, services.limits.text_bytes)
    if not isinstance(body, dict) or not body.keys() <= {"policy", "inputs", "tags"}:
        raise InvalidRequest("A gate request is an object with `policy`, `inputs` and `tags`.")

    def start() -> GateView:
        policy, inputs, tags = body.get("policy"), body.get("inputs", {}), body.get("tags", {})
        with once(services.claims, caller.project, router.prefix, key, body, "gate") as run_id:
            return view(services, run_gate(services, caller.project, policy, inputs, tags, run_id))

    run = await asyncio.to_thread(start)
    if wait and not _ended(run):
        run = await wait_for(
            lambda: view(services, read_gate(services, caller.project, run.id)), _ended, wait
        )
    return conditional(
        request,
        run,
        status=200 if _ended(run) else 202,
        headers={"Location": run.links.self, **_headers(run), **applied(wait)},
    )


@router.post(
    "/validate",
    response_model=PolicyView,
    responses=guarded(
        "invalid-request",
        "malformed-payload",
        "unknown-check",
        "payload-too-large",
        "body-stalled",
        "unsupported-format",
    ),
)
async def validate_policy(request: Request, services: Use, caller: Reader) -> PolicyView:
    """Read a policy, `{"policy": {...}}`, as starting a gate does; nothing runs and nothing is kept."""
    body = await json_body(request, services.limits.text_bytes)
    if not isinstance(body, dict) or body.keys() != {"policy"}:
        raise InvalidRequest("Send an object with `policy`.")
    policy = await asyncio.to_thread(read_policy, body["policy"])
    return PolicyView(
        policy=policy.name,
        inputs=policy.inputs,
        checks={name: check.kind for name, check in policy.checks.items()},
        rules=len(policy.rules),
        warnings=list(cautions(policy)),
    )


@router.get("", responses=guarded("invalid-request"))
def list_gates(
    services: Use,
    caller: Reader,
    tag: Annotated[str | None, Query(description="Only runs with this tag, `name:value`.")] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Most runs to list.")] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
) -> GatePage:
    """Gate runs of this project, newest first."""
    page = services.gates.page(caller.project, limit, cursor, wanted_tag(tag))
    runs = [read_gate(services, caller.project, run.id) for run in page.items]
    return GatePage(items=[view(services, run) for run in runs], next_cursor=page.next_cursor)


@router.get(
    "/{gate_id}",
    response_model=GateView,
    responses={
        200: {"content": {MARKDOWN: {"schema": {"type": "string"}}}},
        304: {"description": "Nothing has changed since this ETag."},
        **guarded("unknown-gate", "not-acceptable"),
    },
)
async def get_gate(request: Request, gate_id: GateId, services: Use, caller: Reader) -> Response:
    """
    A gate run; `Prefer: wait=N` holds the answer until it is judged or N seconds.

    `Accept: text/markdown` gives it as a comment for a pull request.
    """
    wait, wanted = wanted_wait(request), negotiated(request, JSON, MARKDOWN)
    run = await wait_for(
        lambda: view(services, read_gate(services, caller.project, gate_id)), _ended, wait
    )
    headers = {**_headers(run), **applied(wait), **VARY}
    if wanted == JSON:
        return conditional(request, run, headers=headers)
    page = verdict_page(run.policy, run.state, run.verdict, run.rules, run.warnings, run.digest)
    return conditional(request, page.encode(), headers=headers, media_type=MARKDOWN)


@router.post(
    "/{gate_id}/promote",
    response_model=Baseline,
    responses=guarded(
        "invalid-request",
        "malformed-payload",
        "unknown-gate",
        "gate-not-passed",
        "payload-too-large",
        "body-stalled",
        "unsupported-format",
    ),
)
async def promote_input(
    request: Request, gate_id: GateId, services: Use, caller: Submitter
) -> Response:
    """Let a baseline stand for an input of a run that passed: `{"input", "baseline"}`."""
    body = await json_body(request, services.limits.text_bytes)
    try:
        wanted = Promotion.model_validate(body)
    except ValidationError as error:
        raise invalid(error, body, kind=Promotion) from None
    found = await asyncio.to_thread(
        promote, services, caller.project, gate_id, wanted.input, wanted.baseline
    )
    return conditional(request, found)


@router.delete(
    "/{gate_id}",
    response_model=GateView,
    responses=guarded("unknown-gate"),
)
def stop_gate(request: Request, gate_id: GateId, services: Use, caller: Submitter) -> Response:
    """Cancel a gate and its jobs; a judged gate stays as it is."""
    return conditional(request, view(services, cancel_gate(services, caller.project, gate_id)))
