"""Gate runs: bind a policy to data, run its checks as ordinary jobs, judge once all have ended."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from pydantic import TypeAdapter, ValidationError

from service.errors import Fault, InvalidRequest, pointer_to
from service.gate import Policy, PolicyModel, judge, read_policy, verdict_digest
from service.job import GateRun, Job, State, new_id, now
from service.once import part_of
from service.operations import Services, cancel, report_of, submit
from service.references import ColumnRef, DatasetRef
from service.report import ReportBase
from service.request import RequestBase, invalid, parse_request

_BOUND: TypeAdapter[dict[str, DatasetRef | ColumnRef]] = TypeAdapter(
    dict[str, DatasetRef | ColumnRef]
)


def run_gate(
    services: Services,
    project: str,
    policy_body: Any,
    inputs_body: Any,
    tags: dict[str, str],
    run_id: str | None = None,
) -> GateRun:
    """
    Start a gate: every check of the policy becomes a job, cached where its report exists.

    If there is a run of this id already, it is the answer; jobs of an attempt that died are taken over.
    """
    run_id = run_id or new_id("gate")
    if services.gates.find(run_id) is not None:
        return read_gate(services, project, run_id)
    policy = read_policy(policy_body)
    inputs = _bind(policy, inputs_body)
    requests = {}
    for name, wanted in policy.checks.items():
        body = {
            "kind": wanted.kind,
            "inputs": {role: _value(inputs, bound) for role, bound in wanted.inputs.items()},
            "params": wanted.params,
            "seed": wanted.seed,
            "tags": tags,
        }
        requests[name] = parse_request(body)
    jobs: dict[str, str] = {}
    with ExitStack() as undo:  # every job is cancelled, also if cancelling another fails
        for name, request in requests.items():
            jobs[name] = _job(services, project, request, part_of(run_id, name, "job"))
            undo.callback(_withdraw, services, project, run_id, jobs[name])
        run = _started(services, project, policy, inputs, tags, jobs, run_id)
        undo.pop_all()
    return run


def _started(
    services: Services,
    project: str,
    policy: Policy,
    inputs: dict[str, DatasetRef | ColumnRef],
    tags: dict[str, str],
    jobs: dict[str, str],
    run_id: str,
) -> GateRun:
    run = GateRun(
        id=run_id,
        project=project,
        policy=policy,
        inputs=inputs,
        tags=tags,
        jobs=jobs,
        state="running",
        created_at=now(),
    )
    services.gates.create(run)
    return read_gate(services, project, run.id)


def _job(services: Services, project: str, request: RequestBase, job_id: str) -> str:
    """The job of a check; one that an attempt without a run has cancelled is replaced."""
    job = submit(services, project, request, job_id)
    return job.id if job.state is not State.cancelled else submit(services, project, request).id


def _withdraw(services: Services, project: str, run_id: str, job_id: str) -> None:
    """Cancel a job of a run that was not stored; the answer of a store may be lost on its way."""
    if services.gates.find(run_id) is None:
        cancel(services, project, job_id)


def _value(
    inputs: dict[str, DatasetRef | ColumnRef], bound: str | list[PolicyModel]
) -> dict[str, Any] | list[dict[str, Any]]:
    """The value of a role from the data its names are bound to."""
    if isinstance(bound, str):
        return inputs[bound].model_dump()
    return [{**inputs[one.vectors].model_dump(), "name": one.name} for one in bound]


def _bind(policy: Policy, body: Any) -> dict[str, DatasetRef | ColumnRef]:
    try:
        inputs = _BOUND.validate_python(body)
    except ValidationError as error:
        raise invalid(error, {"inputs": body}, ("inputs",)) from None
    faults = [
        Fault(pointer=pointer_to("inputs", name), message="the policy has no such input")
        for name in inputs.keys() - policy.inputs.keys()
    ]
    faults += [
        Fault(pointer=pointer_to("inputs", name), message=f"bind this input to {kind}")
        for name, kind in policy.inputs.items()
        if not isinstance(inputs.get(name), ColumnRef if kind == "column" else DatasetRef)
    ]
    faults += [
        Fault(pointer=pointer_to("inputs", name), message="name the dataset of this column")
        for name, value in inputs.items()
        if value.dataset is None
    ]
    if faults:
        raise InvalidRequest("The inputs do not fit the policy.", faults)
    return inputs


def read_gate(services: Services, project: str, run_id: str) -> GateRun:
    """A gate run; whoever first reads it with all jobs ended judges it, and that verdict stays."""
    run = services.gates.get(project, run_id)
    if run.state != "running":
        return run
    jobs = {name: services.jobs.get(project, job_id) for name, job_id in run.jobs.items()}
    if not all(job.state.terminal for job in jobs.values()):
        return run
    judged = _judged(services, run, jobs)
    services.gates.change(run_id, lambda newest: judged if newest.state == "running" else None)
    return services.gates.get(project, run_id)


def _judged(services: Services, run: GateRun, jobs: dict[str, Job]) -> GateRun:
    reports: dict[str, ReportBase | str] = {
        name: report_of(services, job) for name, job in jobs.items()
    }
    verdict, rules = judge(run.policy, reports)
    digests = {
        name: report if isinstance(report, str) else report.digest
        for name, report in reports.items()
    }
    return run.model_copy(
        update={
            "state": "done",
            "verdict": verdict,
            "rules": rules,
            "digest": verdict_digest(verdict, rules, digests),
        }
    )


def cancel_gate(services: Services, project: str, run_id: str) -> GateRun:
    """Cancel a gate and its jobs; a judged gate stays as it is."""
    run = services.gates.get(project, run_id)
    services.gates.change(
        run_id,
        lambda newest: (
            newest.model_copy(update={"state": "cancelled"}) if newest.state == "running" else None
        ),
    )
    run = services.gates.get(project, run_id)
    if run.state == "cancelled":
        for job_id in run.jobs.values():
            cancel(services, project, job_id)
    return run
