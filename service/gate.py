"""A policy and reports make a verdict; nothing else does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from service.check import Estimate, Params, PValue
from service.errors import Fault, InvalidRequest, pointer_to
from service.numerics.power import groups_for_rule
from service.numerics.resampling import Interval, t_quantile
from service.references import Model, ModelName
from service.report import ReportBase, canonical
from service.request import LARGEST_INTEGER, check_of, did_you_mean, invalid

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{1,64}$")]
POWER = 0.8
MOST_NEEDED = 100
"""Above this many times the groups there are, no useful number can be named."""


class Verdict(StrEnum):
    passed = "pass"
    failed = "fail"
    inconclusive = "inconclusive"
    invalid = "invalid"


SEVERITY = [Verdict.passed, Verdict.inconclusive, Verdict.failed, Verdict.invalid]


class PolicyModel(Model):
    """One of several models: the name its results go by, and the input it is bound to."""

    name: ModelName
    vectors: Name


class PolicyCheck(Model):
    """A check to run, with its roles bound to names of the policy's inputs."""

    kind: str
    inputs: dict[str, Name | list[PolicyModel]]
    """A name, or, for a role of several models, a list of `{name, vectors}`."""
    params: dict[str, Any] = Field(default_factory=dict)
    seed: int = Field(default=0, ge=0, le=LARGEST_INTEGER)


class Rule(Model):
    """A bound on one measure. Exactly one of `at_least` and `at_most`."""

    measure: str
    """`<check>.<key>.<key>...`: where the measure stands in that check's results."""
    at_least: float | None = None
    at_most: float | None = None
    level: Literal["block", "warn"] = "block"
    """Rules at `warn` are shown and never decide."""

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("give exactly one of `at_least` and `at_most`")
        return self

    @property
    def threshold(self) -> float:
        return self.at_least if self.at_least is not None else float(self.at_most or 0.0)


class Policy(Model):
    """What must hold before a release."""

    version: Literal[1]
    name: Annotated[str, Field(min_length=1, max_length=200)]
    inputs: dict[Name, Literal["vectors", "column"]]
    """Names that are bound to data when the gate is run."""
    checks: dict[Name, PolicyCheck] = Field(min_length=1, max_length=50)
    rules: list[Rule] = Field(min_length=1, max_length=500)


class Needed(Model):
    """How much more data would probably decide."""

    unit: Literal["groups", "rows", "units"]
    count: int


class Bounds(Model):
    low: float
    high: float


class RuleResult(Model):
    """One rule against what was observed."""

    rule: Rule
    observed: float | None
    interval: Bounds | None
    threshold: float
    verdict: Verdict
    reason: str
    needed: Needed | None


def read_policy(body: Any) -> Policy:
    """A policy whose names, roles, params and measures all exist."""
    try:
        policy = Policy.model_validate(body)
    except ValidationError as error:
        raise invalid(error, {"policy": body}, ("policy",)) from None
    faults: list[Fault] = []
    for name, wanted in policy.checks.items():
        faults += _check_faults(policy, f"/policy/checks/{name}", wanted)
    for i, rule in enumerate(policy.rules):
        if message := _rule_fault(policy, rule):
            faults.append(Fault(pointer=f"/policy/rules/{i}/measure", message=message))
    if faults:
        raise InvalidRequest(f"The policy has {len(faults)} faults.", faults)
    return policy


def _check_faults(policy: Policy, at: str, wanted: PolicyCheck) -> Iterator[Fault]:
    check = check_of(wanted.kind)
    try:
        check.params.model_validate(wanted.params)
    except ValidationError as error:
        for fault in invalid(error, wanted.params).faults:
            yield Fault(pointer=f"{at}/params{fault.pointer}", message=fault.message)
    slots = {slot.name: slot for slot in check.slots}
    for role, bound in wanted.inputs.items():
        here = at + pointer_to("inputs", role)
        if role not in slots:
            yield Fault(pointer=here, message=_unknown("role", role, list(slots)))
            continue
        several = slots[role].most is not None
        if several != isinstance(bound, list):
            message = "takes a list of {name, vectors}" if several else "takes one name"
            yield Fault(pointer=here, message=message)
            continue
        for name in [bound] if isinstance(bound, str) else [one.vectors for one in bound]:
            if name not in policy.inputs:
                yield Fault(pointer=here, message=_unknown("input", name, policy.inputs))
            elif policy.inputs[name] != slots[role].kind:
                message = (
                    f"`{name}` is declared as {policy.inputs[name]}; this role takes "
                    f"{slots[role].kind}"
                )
                yield Fault(pointer=here, message=message)
    for slot in slots.values():
        if slot.required and slot.name not in wanted.inputs:
            yield Fault(pointer=f"{at}/inputs", message=f"role `{slot.name}` is required")


def _rule_fault(policy: Policy, rule: Rule) -> str | None:
    name, _, path = rule.measure.partition(".")
    if name not in policy.checks:
        return _unknown("check", name, policy.checks)
    wanted = policy.checks[name]
    models = [
        one.name for bound in wanted.inputs.values() if isinstance(bound, list) for one in bound
    ]
    known = {
        filled: measure.shape
        for measure in check_of(wanted.kind).measures
        for filled in _with_names(measure.path, models, _names(wanted))
    }
    if path not in known:
        return _unknown("measure", path, known)
    if known[path] == "p_value" and rule.at_most is None:
        return "a p-value can only have an `at_most` rule: a large one shows nothing"
    return None


def _names(wanted: PolicyCheck) -> dict[str, list[str]]:
    """What the other places in braces stand for; none where the parameters are at fault."""
    try:
        return check_of(wanted.kind).params.model_validate(wanted.params).names()
    except ValidationError:
        return {}


def _with_names(path: str, models: list[str], names: Mapping[str, list[str]]) -> list[str]:
    """The paths a measure has when models have these names; a difference may be named either way."""
    for place, values in names.items():
        if f"{{{place}}}" in path:
            filled = [path.replace(f"{{{place}}}", value) for value in values]
            return [one for part in filled for one in _with_names(part, models, names)]
    if "{model}" in path:
        return [path.replace("{model}", name) for name in models]
    if "{later}" in path:
        return [
            path.replace("{later}", one).replace("{earlier}", other)
            for one in models
            for other in models
            if one != other
        ]
    return [path]


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    return f"there is no {what} `{name}`; {did_you_mean(name, known)}"


def judge(
    policy: Policy, reports: Mapping[str, ReportBase | str]
) -> tuple[Verdict, list[RuleResult]]:
    """
    The verdict of a policy.

    Parameters
    ----------
    policy : Policy
    reports : by check of the policy, its report or the code it failed with
    """
    results = [_judge_rule(policy, rule, reports) for rule in policy.rules]
    deciding = [result.verdict for result in results if result.rule.level == "block"]
    worst = max(deciding, key=SEVERITY.index, default=Verdict.passed)
    return worst, results


def verdict_digest(verdict: Verdict, rules: list[RuleResult], reports: Mapping[str, str]) -> str:
    """Hash of a verdict with the digests of the reports it rests on."""
    content = {
        "verdict": verdict.value,
        "rules": [rule.model_dump(mode="json") for rule in rules],
        "reports": dict(reports),
    }
    return hashlib.sha256(canonical(content)).hexdigest()


def _judge_rule(policy: Policy, rule: Rule, reports: Mapping[str, ReportBase | str]) -> RuleResult:
    name, _, path = rule.measure.partition(".")
    report = reports[name]
    if isinstance(report, str):
        seen = _Seen(Verdict.invalid, f"check `{name}` has no report: {report}")
    else:
        value, why = _find(report, path)
        if value is None:
            seen = _Seen(Verdict.inconclusive, f"the measure is undefined: {why}")
        elif isinstance(value, Estimate):
            seen = _judge_estimate(rule, value, report.params)
        else:
            seen = _judge_number(rule, float(value), "this measure has no interval")
    return RuleResult(
        rule=rule,
        observed=seen.observed,
        interval=seen.interval,
        threshold=rule.threshold,
        verdict=seen.verdict,
        reason=seen.reason,
        needed=seen.needed,
    )


@dataclass(frozen=True)
class _Seen:
    verdict: Verdict
    reason: str
    observed: float | None = None
    interval: Bounds | None = None
    needed: Needed | None = None


def _judge_number(rule: Rule, value: float, note: str) -> _Seen:
    if _satisfies(rule, value):
        return _Seen(Verdict.passed, f"satisfies the rule; {note}", value)
    return _Seen(Verdict.failed, f"breaks the rule; {note}", value)


def _judge_estimate(rule: Rule, value: Estimate, params: Params) -> _Seen:
    if value.estimate is None:
        return _Seen(Verdict.inconclusive, f"not estimable: {value.undefined['estimate'].message}")
    if value.interval is None:
        if params.census:
            return _judge_number(rule, value.estimate, "the rows are a census")
        if isinstance(value, PValue) and value.exact:
            return _judge_number(rule, value.estimate, "this p-value is exact")
        reason = value.undefined["interval"].message
        return _Seen(Verdict.inconclusive, f"no interval: {reason}", value.estimate)
    bounds = Bounds(low=value.interval.low, high=value.interval.high)
    ends = (_satisfies(rule, bounds.low), _satisfies(rule, bounds.high))
    if all(ends):
        verdict, reason, needed = Verdict.passed, "all of the interval satisfies the rule", None
    elif not any(ends):
        verdict, reason, needed = Verdict.failed, "none of the interval satisfies the rule", None
    else:
        verdict, reason = Verdict.inconclusive, "the interval lies on both sides of the threshold"
        needed = _needed(value.estimate, rule.threshold, value.interval)
        if needed is None and value.interval.method == "jackknife_t":
            reason += f", too near for {MOST_NEEDED} times the data to decide"
    return _Seen(verdict, reason, value.estimate, bounds, needed)


def _satisfies(rule: Rule, value: float) -> bool:
    return value >= rule.threshold if rule.at_least is not None else value <= rule.threshold


def _needed(estimate: float, threshold: float, interval: Interval) -> Needed | None:
    """Units for 80 % power if the truth equals the estimate; None at the threshold."""
    units, distance = interval.resamples, abs(estimate - threshold)
    if interval.method != "jackknife_t" or distance == 0:
        return None
    half = (interval.high - interval.low) / 2
    error = half / t_quantile((1 + interval.level) / 2, units - 1)
    count = groups_for_rule(units, error, distance, (1 - interval.level) / 2, POWER)
    if count > MOST_NEEDED * units:
        return None
    return Needed.model_validate({"unit": f"{interval.unit}s", "count": count})


def _find(report: ReportBase, path: str) -> tuple[Any, str]:
    """The value at a path of the results, or the reason why it is null."""
    keys = path.split(".")
    if keys[0] == "differences" and keys[2] not in report.results.differences.get(keys[1], {}):  # type: ignore[attr-defined]
        value, why = _walk(report.results, ["differences", keys[2], keys[1], *keys[3:]])
        return (None if value is None else -value), why
    return _walk(report.results, keys)


def _walk(node: Any, keys: list[str]) -> tuple[Any, str]:
    for key in keys:
        value = node[key] if isinstance(node, dict) else node.value(key)
        if value is None:
            reason = node.undefined.get(key)
            return None, reason.message if reason else "no reason given"
        node = value
    return node, ""
