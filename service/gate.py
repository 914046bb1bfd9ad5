"""A policy and reports make a verdict; nothing else does."""

from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from scipy import special

from service.check import Estimate, Params
from service.errors import Fault, InvalidRequest
from service.numerics.resampling import Interval, t_quantile
from service.references import Model
from service.report import ReportBase, canonical
from service.request import LARGEST_INTEGER, check_of, invalid

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


class PolicyCheck(Model):
    """A check to run, with its roles bound to names of the policy's inputs."""

    kind: str
    inputs: dict[str, Name]
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

    unit: Literal["groups", "rows"]
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
        raise invalid(error) from None
    faults: list[Fault] = []
    for name, wanted in policy.checks.items():
        check = check_of(wanted.kind)
        try:
            check.params.model_validate(wanted.params)
        except ValidationError as error:
            faults += [
                Fault(pointer=f"/checks/{name}/params{fault.pointer}", message=fault.message)
                for fault in invalid(error).faults
            ]
        slots = {slot.name: slot for slot in check.slots}
        for role, bound in wanted.inputs.items():
            at = f"/checks/{name}/inputs/{role}"
            if role not in slots:
                faults.append(Fault(pointer=at, message=_unknown("role", role, list(slots))))
            elif bound not in policy.inputs:
                faults.append(Fault(pointer=at, message=_unknown("input", bound, policy.inputs)))
            elif policy.inputs[bound] != slots[role].kind:
                faults.append(
                    Fault(
                        pointer=at,
                        message=f"`{bound}` is declared as {policy.inputs[bound]}; this role takes "
                        f"{slots[role].kind}",
                    )
                )
        faults += [
            Fault(pointer=f"/checks/{name}/inputs", message=f"role `{slot.name}` is required")
            for slot in slots.values()
            if slot.required and slot.name not in wanted.inputs
        ]
    for i, rule in enumerate(policy.rules):
        name, _, path = rule.measure.partition(".")
        if name not in policy.checks:
            message = _unknown("check", name, policy.checks)
        else:
            known = [measure.path for measure in check_of(policy.checks[name].kind).measures]
            if path in known:
                continue
            message = _unknown("measure", path, known)
        faults.append(Fault(pointer=f"/rules/{i}/measure", message=message))
    if faults:
        raise InvalidRequest(f"The policy has {len(faults)} faults.", faults)
    return policy


def _unknown(what: str, name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    hint = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(known) or 'none'}"
    return f"there is no {what} `{name}`; {hint}"


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
    return _Seen(verdict, reason, value.estimate, bounds, needed)


def _satisfies(rule: Rule, value: float) -> bool:
    return value >= rule.threshold if rule.at_least is not None else value <= rule.threshold


def _needed(estimate: float, threshold: float, interval: Interval) -> Needed | None:
    """Units for 80 % power if the truth equals the estimate; None at the threshold."""
    units, distance = interval.resamples, abs(estimate - threshold)
    if interval.method != "jackknife_t" or distance == 0:
        return None
    half = (interval.high - interval.low) / 2
    se = half / t_quantile((1 + interval.level) / 2, units - 1)
    z = float(special.ndtri((1 + interval.level) / 2) + special.ndtri(POWER))
    count = math.ceil(units * (z * se / distance) ** 2)
    if count > MOST_NEEDED * units:
        return None
    return Needed(unit="groups" if interval.unit == "group" else "rows", count=count)


def _find(report: ReportBase, path: str) -> tuple[Any, str]:
    """The value at a path of the results, or the reason why it is null."""
    node: Any = report.results
    for key in path.split("."):
        value = getattr(node, key)
        if value is None:
            reason = node.undefined.get(key)
            return None, reason.message if reason else "no reason given"
        node = value
    return node, ""
