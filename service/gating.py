"""Gate runs: bind a policy to data, run its checks as ordinary jobs, judge once all have ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from pydantic import TypeAdapter, ValidationError

from service.accepting import source_key, sources_of
from service.baseline import Baseline
from service.binding import column_of, vectors_of
from service.errors import (
    AssayError,
    Fault,
    GateNotPassed,
    InvalidRequest,
    did_you_mean,
    pointer_to,
)
from service.gate import (
    Policy,
    PolicyModel,
    Verdict,
    cautions,
    heard,
    judge,
    read_policy,
    verdict_digest,
)
from service.importing import imported_by
from service.job import GateRun, Job, State, new_id, now
from service.once import part_of
from service.operations import Services, cancel, import_dataset, report_of, submit
from service.references import (
    BaselineColumn,
    BaselineRef,
    ColumnRef,
    DatasetRef,
    InlineColumn,
    InlineRelevance,
    SourceRef,
)
from service.report import ReportBase
from service.request import (
    SHOWN_FAULTS,
    VALUES,
    RequestBase,
    Tags,
    faults_of,
    invalid,
    parse_request,
)

Bound = DatasetRef | ColumnRef | SourceRef
VALIDATORS: dict[str, TypeAdapter[Any]] = {kind: TypeAdapter(one) for kind, one in VALUES.items()}
"""What an input of each kind is bound to."""
TAGS: TypeAdapter[dict[str, str]] = TypeAdapter(Tags)


def run_gate(
    services: Services,
    project: str,
    policy_body: Any,
    inputs_body: Any,
    tags_body: Any,
    run_id: str | None = None,
) -> GateRun:
    """
    Start a gate: every check of the policy becomes a job, cached where its report exists.

    Each source is read once, by an import that the jobs of its checks wait for. If there is a run of
    this id already, it is the answer; jobs of an attempt that died are taken over.
    """
    run_id = run_id or new_id("gate")
    if services.gates.find(run_id) is not None:
        return read_gate(services, project, run_id)
    policy = read_policy(policy_body)
    values = _bind(policy, inputs_body)
    tags = _tags(tags_body)
    inputs = _stored(services, project, values)
    baselines = {
        name: value.baseline
        for name, value in values.items()
        if isinstance(value, (BaselineRef, BaselineColumn))
    }
    bodies = {
        (name, level): _body(policy, inputs, name, level, tags)
        for name, levels in policy.runs().items()
        for level in levels
    }
    requests = {key: parse_request(body) for key, body in bodies.items()}
    # a baseline may have moved since an attempt that died: its jobs are not of these data
    jobs = {key: part_of(run_id, [*key, body["inputs"]], "job") for key, body in bodies.items()}
    waiting = _waiting(requests, jobs)
    with ExitStack() as undo:  # every job is cancelled, also if cancelling another fails
        imports: dict[str, str] = {}
        for source, value in _sources(inputs).items():
            job_id = part_of(run_id, ["import", source], "job")
            followers = waiting.get(source, [])
            imports[source] = _import(services, project, value, job_id, followers, tags)
            undo.callback(_withdraw, services, project, run_id, imports[source])
        for key, request in requests.items():
            with _placed(policy, key[0]):
                jobs[key] = _job(services, project, request, jobs[key], imports)
            undo.callback(_withdraw, services, project, run_id, jobs[key])
        run = _started(services, project, policy, inputs, baselines, tags, jobs, imports, run_id)
        undo.pop_all()
    return run


@contextmanager
def _placed(policy: Policy, check: str) -> Iterator[None]:
    """What is refused of a job is said of the check it is for, and of the inputs of the policy."""
    try:
        yield
    except AssayError as error:
        error.faults = tuple(_of_policy(policy, check, fault) for fault in error.faults)
        raise


def _of_policy(policy: Policy, check: str, fault: Fault) -> Fault:
    named = _input_at(policy.checks[check].inputs, fault.pointer)
    said = fault.message if named is None else f"input `{named}`: {fault.message}"
    at = pointer_to("policy", "checks", check) + fault.pointer
    return fault.model_copy(update={"pointer": at, "message": said})


def _input_at(roles: Mapping[str, str | list[PolicyModel]], pointer: str) -> str | None:
    """The input of a policy that stands at a place of the request made for a check."""
    section, role, place, part = (*pointer.split("/")[1:], "", "", "", "")[:4]
    bound = roles.get(role) if section == "inputs" else None
    if not isinstance(bound, list):
        return bound
    model = bound[int(place)].parts if place.isdecimal() and int(place) < len(bound) else {}
    return model.get(part or "vectors")


def _sources(inputs: dict[str, Bound]) -> dict[str, SourceRef]:
    return {source_key(one): one for one in inputs.values() if isinstance(one, SourceRef)}


def _waiting(
    requests: dict[tuple[str, float], RequestBase], jobs: dict[tuple[str, float], str]
) -> dict[str, list[str]]:
    """By source, the jobs that wait for it."""
    found: dict[str, list[str]] = {}
    for key, request in requests.items():
        for source in {source_key(value) for value in sources_of(request)}:
            found.setdefault(source, []).append(jobs[key])
    return found


def _body(
    policy: Policy,
    inputs: dict[str, Bound],
    name: str,
    level: float,
    tags: dict[str, str],
) -> dict[str, Any]:
    """A check of the policy as the body of a job."""
    wanted = policy.checks[name]
    asked = {} if level == wanted.typed_params.level else {"level": level}
    return {
        "kind": wanted.kind,
        "inputs": {role: _value(inputs, bound) for role, bound in wanted.inputs.items()},
        "params": {**wanted.params, **asked},
        "seed": wanted.seed,
        "tags": tags,
    }


def _started(
    services: Services,
    project: str,
    policy: Policy,
    inputs: dict[str, Bound],
    baselines: dict[str, str],
    tags: dict[str, str],
    jobs: dict[tuple[str, float], str],
    imports: dict[str, str],
    run_id: str,
) -> GateRun:
    sources = {name: one for name, one in inputs.items() if isinstance(one, SourceRef)}
    run = GateRun(
        id=run_id,
        project=project,
        policy=policy,
        inputs={
            name: one for name, one in inputs.items() if isinstance(one, (DatasetRef, ColumnRef))
        },
        imports={name: imports[source_key(one)] for name, one in sources.items()},
        baselines=baselines,
        tags=tags,
        jobs={name: jobs[name, policy.level(name)] for name in policy.checks},
        fail_jobs={name: job for (name, level), job in jobs.items() if level != policy.level(name)},
        state="running",
        created_at=now(),
    )
    services.gates.create(run)
    return read_gate(services, project, run.id)


def _job(
    services: Services,
    project: str,
    request: RequestBase,
    job_id: str,
    imports: Mapping[str, str],
) -> str:
    """The job of a check; one that an attempt without a run has cancelled is replaced."""
    job = submit(services, project, request, job_id, imports)
    if job.state is State.cancelled:
        job = submit(services, project, request, None, imports)
    return job.id


def _import(
    services: Services,
    project: str,
    value: SourceRef,
    job_id: str,
    followers: list[str],
    tags: dict[str, str],
) -> str:
    """The job that reads a source; one that an attempt without a run has cancelled is replaced."""
    job = import_dataset(services, project, value, None, job_id, followers, tags)
    if job.state is State.cancelled:
        job = import_dataset(services, project, value, None, None, followers, tags)
    return job.id


def _withdraw(services: Services, project: str, run_id: str, job_id: str) -> None:
    """Cancel a job of a run that was not stored; the answer of a store may be lost on its way."""
    if services.gates.find(run_id) is None:
        cancel(services, project, job_id)


def _value(
    inputs: dict[str, Bound], bound: str | list[PolicyModel]
) -> dict[str, Any] | list[dict[str, Any]]:
    """The value of a role from the data its names are bound to."""
    if isinstance(bound, str):
        return _named(inputs[bound])
    return [_model(inputs, one) for one in bound]


def _model(inputs: dict[str, Bound], model: PolicyModel) -> dict[str, Any]:
    parts = {part: _named(inputs[name]) for part, name in model.parts.items()}
    matrix = parts.pop("vectors", {})
    return {**matrix, **parts, "name": model.name}


def _named(value: Bound) -> dict[str, Any]:
    return value.model_dump(mode="json", exclude_none=True)


def _bind(policy: Policy, body: Any) -> dict[str, Any]:
    """A value of its kind for every input of the policy, and no other."""
    if not isinstance(body, Mapping):
        raise InvalidRequest("`inputs` is an object: a value for each input of the policy.")
    faults = [
        Fault(
            pointer=pointer_to("inputs", name),
            message=f"the policy has no such input; {did_you_mean(str(name), policy.inputs)}",
        )
        for name in body.keys() - policy.inputs.keys()
    ]
    values = {}
    for name, kind in policy.inputs.items():
        if name not in body:
            faults.append(
                Fault(pointer=pointer_to("inputs", name), message=f"bind this input to {kind}")
            )
            continue
        try:
            values[name] = VALIDATORS[kind].validate_python(body[name])
        except ValidationError as error:
            faults += faults_of(error, {"inputs": body}, ("inputs", name), VALUES[kind])[
                :SHOWN_FAULTS
            ]
    if faults:
        raise InvalidRequest("The inputs do not fit the policy.", faults)
    return values


def _tags(body: Any) -> dict[str, str]:
    """Tags as a job takes them."""
    try:
        return TAGS.validate_python(body)
    except ValidationError as error:
        raise invalid(error, {"tags": body}, ("tags",)) from None


def _stored(services: Services, project: str, values: dict[str, Any]) -> dict[str, Bound]:
    """The same as references to stored data, each stored once; sources, and columns of a role, stay."""
    stored: dict[str, Bound] = {}
    for name, value in values.items():
        if isinstance(value, (ColumnRef, SourceRef)):
            stored[name] = value
        elif isinstance(value, (BaselineColumn, InlineColumn, InlineRelevance)):
            stored[name] = column_of(services, project, name, value)
        else:
            stored[name] = DatasetRef(dataset=vectors_of(services, project, value))
    return stored


def read_gate(services: Services, project: str, run_id: str) -> GateRun:
    """A gate run; whoever first reads it with all jobs ended judges it, and that verdict stays."""
    run = services.gates.get(project, run_id)
    if run.state != "running":
        return run
    jobs, for_fail = (
        {name: services.jobs.get(project, job_id) for name, job_id in ids.items()}
        for ids in (run.jobs, run.fail_jobs)
    )
    if not all(job.state.terminal for job in (*jobs.values(), *for_fail.values())):
        return run
    judged = _judged(services, run, jobs, for_fail)
    services.gates.change(run_id, lambda newest: judged if newest.state == "running" else None)
    return services.gates.get(project, run_id)


def _judged(
    services: Services, run: GateRun, jobs: dict[str, Job], for_fail: dict[str, Job]
) -> GateRun:
    reports, wide = (
        {name: _report(services, job) for name, job in some.items()} for some in (jobs, for_fail)
    )
    verdict, rules = judge(run.policy, reports, wide)
    named = {**reports, **{f"{name} for fail": report for name, report in wide.items()}}
    digests = {
        name: report if isinstance(report, str) else report.digest for name, report in named.items()
    }
    return run.model_copy(
        update={
            "state": "done",
            "inputs": {**run.inputs, **_imported(services, run)},
            "warnings": [*heard(reports), *cautions(run.policy)],
            "verdict": verdict,
            "rules": rules,
            "digest": verdict_digest(verdict, rules, digests),
        }
    )


def _report(services: Services, job: Job) -> ReportBase | str:
    """The report of a job, or why there is none."""
    found = report_of(services, job)
    return found if job.problem is None else f"{job.problem.code}: {job.problem.detail}"


def _imported(services: Services, run: GateRun) -> dict[str, DatasetRef]:
    """What the sources of a run have become."""
    found = {name: imported_by(services.jobs.find(job_id)) for name, job_id in run.imports.items()}
    return {name: DatasetRef(dataset=one) for name, one in found.items() if one is not None}


def promote(services: Services, project: str, run_id: str, input_name: str, name: str) -> Baseline:
    """Let a baseline stand for what a gate has passed."""
    run = read_gate(services, project, run_id)
    value = run.inputs.get(input_name)
    if not isinstance(value, DatasetRef):
        vectors = [one for one, kind in run.policy.inputs.items() if kind == "vectors"]
        raise InvalidRequest(
            f"The policy has no vectors input `{input_name}`; {did_you_mean(input_name, vectors)}",
            [Fault(pointer="/input", message="name an input of the policy that takes vectors")],
        )
    if run.verdict is not Verdict.passed:
        state = run.state if run.verdict is None else run.verdict.value
        raise GateNotPassed(f"Gate {run_id} is {state}: only what passed becomes a baseline.")
    services.datasets.usable(project, value.dataset)
    return services.baselines.set(project, name, value.dataset, run.id)


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
        for job_id in (*run.jobs.values(), *run.fail_jobs.values(), *run.imports.values()):
            cancel(services, project, job_id)
    return run
