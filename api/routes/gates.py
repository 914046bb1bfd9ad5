"""Gates: a policy bound to data, judged once its checks have ended."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request, Response

from api.deps import (
    Once,
    Reader,
    Submitter,
    Use,
    applied,
    conditional,
    json_body,
    wait_for,
    wanted_wait,
)
from api.problems import RETRY_AFTER_S, guarded
from service.errors import InvalidRequest
from service.gate import RuleResult, Verdict
from service.gating import cancel_gate, read_gate, run_gate
from service.job import GateRun
from service.once import once
from service.references import ColumnRef, DatasetRef, Model

router = APIRouter(prefix="/v1/gates", tags=["gates"])
GateId = Annotated[str, Path(description="Id returned by `POST /v1/gates`.")]


class GateLinks(Model):
    self: str
    jobs: dict[str, str]


class GateView(Model):
    """A gate run and, once its jobs have ended, its verdict."""

    id: str
    policy: str
    """Name of the policy."""
    state: Literal["running", "done", "cancelled"]
    inputs: dict[str, DatasetRef | ColumnRef]
    tags: dict[str, str]
    jobs: dict[str, str]
    """Job id by check of the policy."""
    verdict: Verdict | None
    """`pass`, `fail`, `inconclusive`, or `invalid` when a check has no report."""
    rules: list[RuleResult]
    digest: str | None
    """Hash of the verdict, the rules and the digests of the reports."""
    created_at: datetime
    links: GateLinks


def view(run: GateRun) -> GateView:
    """The public face of a gate run."""
    fields = run.model_dump(include=set(GateView.model_fields) - {"policy"})
    jobs = {name: f"/v1/jobs/{job_id}" for name, job_id in run.jobs.items()}
    return GateView.model_validate(
        {
            **fields,
            "policy": run.policy.name,
            "links": {"self": f"{router.prefix}/{run.id}", "jobs": jobs},
        }
    )


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
            "shape-mismatch", "queue-full", "payload-too-large", "idempotency-conflict",
            "idempotency-in-flight"),
    },
)  # fmt: skip
async def start_gate(request: Request, services: Use, caller: Submitter, key: Once) -> Response:
    """
    Run a policy on data: `{"policy": {...}, "inputs": {name: {"dataset": id, "column"?}}}`.

    With an `Idempotency-Key` a repeat answers with the gate run as it is now.
    """
    wait = wanted_wait(request)
    body = await json_body(request, services.limits.text_bytes)
    if not isinstance(body, dict) or not body.keys() <= {"policy", "inputs", "tags"}:
        raise InvalidRequest("A gate request is an object with `policy`, `inputs` and `tags`.")
    tags = body.get("tags", {})
    if not isinstance(tags, dict) or not all(isinstance(v, str) for v in tags.values()):
        raise InvalidRequest("`tags` is an object of strings.")

    def start() -> GateView:
        policy, inputs = body.get("policy"), body.get("inputs", {})
        with once(services.claims, caller.project, router.prefix, key, body, "gate") as run_id:
            return view(run_gate(services, caller.project, policy, inputs, tags, run_id))

    run = await asyncio.to_thread(start)
    if wait and not _ended(run):
        run = await wait_for(
            lambda: view(read_gate(services, caller.project, run.id)), _ended, wait
        )
    return conditional(
        request,
        run,
        status=200 if _ended(run) else 202,
        headers={"Location": run.links.self, **_headers(run), **applied(wait)},
    )


@router.get(
    "/{gate_id}",
    response_model=GateView,
    responses={
        304: {"description": "Nothing has changed since this ETag."},
        **guarded("unknown-gate"),
    },
)
async def get_gate(request: Request, gate_id: GateId, services: Use, caller: Reader) -> Response:
    """A gate run; `Prefer: wait=N` holds the answer until it is judged or N seconds."""
    wait = wanted_wait(request)
    run = await wait_for(lambda: view(read_gate(services, caller.project, gate_id)), _ended, wait)
    return conditional(request, run, headers={**_headers(run), **applied(wait)})


@router.delete(
    "/{gate_id}",
    response_model=GateView,
    responses=guarded("unknown-gate"),
)
def stop_gate(request: Request, gate_id: GateId, services: Use, caller: Submitter) -> Response:
    """Cancel a gate and its jobs; a judged gate stays as it is."""
    return conditional(request, view(cancel_gate(services, caller.project, gate_id)))
