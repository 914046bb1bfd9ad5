"""Reports to verdict, rule by rule."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from service.check import Estimate, Measure, Params, PValue
from service.gate.needed import (
    MOST_NEEDED,
    Needed,
    cut_at_limit,
    needed_for_interval,
    needed_to_decide,
    says_how_many,
    spreadless,
)
from service.gate.policy import Policy
from service.gate.rule import Region, Rule
from service.gate.warned import PLACE, counted, going_on
from service.numerics.power import without_spread
from service.numerics.resampling import Interval
from service.references import Model
from service.report import ReportBase, canonical


class Verdict(StrEnum):
    passed = "pass"
    failed = "fail"
    inconclusive = "inconclusive"
    invalid = "invalid"


SEVERITY = [Verdict.passed, Verdict.inconclusive, Verdict.failed, Verdict.invalid]

Reports = Mapping[str, ReportBase | str]
"""By check of the policy, its report or why there is none."""


class Bounds(Model):
    """The interval a rule was judged on."""

    low: float
    high: float
    level: float
    """Its coverage, two-sided."""


class RuleResult(Model):
    """One rule against what was observed."""

    rule: Rule
    measured: str
    """What the measure is, in one sentence."""
    observed: float | None
    interval: Bounds | None
    threshold: float | tuple[float, float]
    """What the value is held against: one bound, or `[low, high]`."""
    verdict: Verdict
    reason: str
    needed: Needed | None


def judge(
    policy: Policy, reports: Reports, wide: Reports | None = None
) -> tuple[Verdict, list[RuleResult]]:
    """
    The verdict of a policy.

    Parameters
    ----------
    policy : Policy
    reports : at the level of each check
    wide : at the level `fail` is judged at, where that is another
    """
    results = [_judge_rule(policy, rule, reports, wide or {}) for rule in policy.rules]
    deciding = [result.verdict for result in results if result.rule.blocks]
    return max(deciding, key=SEVERITY.index), results


def verdict_digest(verdict: Verdict, rules: list[RuleResult], reports: Mapping[str, str]) -> str:
    """Hash of a verdict with the digests of the reports it rests on."""
    content = {
        "verdict": verdict.value,
        "rules": [rule.model_dump(mode="json") for rule in rules],
        "reports": dict(reports),
    }
    return hashlib.sha256(canonical(content)).hexdigest()


@dataclass(frozen=True)
class Seen:
    verdict: Verdict
    reason: str
    observed: float | None = None
    interval: Bounds | None = None
    needed: Needed | None = None


def _judge_rule(policy: Policy, rule: Rule, reports: Reports, wide: Reports) -> RuleResult:
    measure = policy.measure_of(rule)
    region = rule.region(measure.better)
    seen = _look(rule, measure, region, reports, wide if rule.blocks else {})
    return RuleResult(
        rule=rule,
        measured=measure.description,
        observed=seen.observed,
        interval=seen.interval,
        threshold=region.threshold,
        verdict=seen.verdict,
        reason=seen.reason,
        needed=None if seen.needed is None else seen.needed.of(measure.drawn),
    )


def _look(rule: Rule, measure: Measure, region: Region, reports: Reports, wide: Reports) -> Seen:
    name, _, path = rule.measure.partition(".")
    report, wider = reports[name], wide.get(name, reports[name])
    if isinstance(report, str) or isinstance(wider, str):
        code = report if isinstance(report, str) else wider
        return Seen(Verdict.invalid, f"check `{name}` has no report: {code}")
    if path.startswith(PLACE):
        count, said = counted(report, path)
        return _judge_number(region, count, going_on(said))
    value, why = _find(report, path, measure)
    if value is None:
        return Seen(Verdict.inconclusive, f"the measure is undefined: {why}")
    if not isinstance(value, Estimate):
        return _judge_number(region, float(value), "this measure has no interval")
    if value.estimate == 0 and _same_vectors(report, path):
        return _judge_number(region, 0.0, "both models are the same vectors: nothing can differ")
    for_fail, _ = _find(wider, path, measure)
    return judge_estimate(region, measure, value, for_fail, report.params)


def _judge_number(region: Region, value: float, note: str) -> Seen:
    if value in region:
        return Seen(Verdict.passed, f"satisfies the rule; {note}", value)
    return Seen(Verdict.failed, f"breaks the rule; {note}", value)


def judge_estimate(
    region: Region, measure: Measure, value: Estimate, for_fail: Estimate, params: Params
) -> Seen:
    if value.estimate is None:
        return Seen(Verdict.inconclusive, f"not estimable: {value.undefined['estimate'].message}")
    if value.interval is None or for_fail.interval is None:
        if params.census:
            return _judge_number(region, value.estimate, "the rows are a census")
        if isinstance(value, PValue) and value.exact:
            return _judge_number(region, value.estimate, "this p-value is exact")
        missing = (value if value.interval is None else for_fail).undefined["interval"]
        reason, needed = f"no interval: {missing.message}", needed_for_interval(missing)
        return Seen(Verdict.inconclusive, reason, value.estimate, needed=needed)
    narrow, wide = (
        _supported(value.estimate, one, measure) for one in (value.interval, for_fail.interval)
    )
    limits = (measure.low, measure.high)
    note = ""
    if spreadless(value.estimate, value.interval, limits):
        note = f"; all {narrow.resamples} {narrow.unit}s gave the same value, other ones need not"
    elif cut_at_limit(value.estimate, value.interval, limits):
        note = f"; both its ends are cut at {value.estimate:g}, which the measure cannot pass"
    if region.holds(narrow.low, narrow.high):
        return Seen(
            Verdict.passed, f"all of the interval satisfies the rule{note}", value.estimate,
            _shown(narrow, value.interval),
        )  # fmt: skip
    if region.misses(wide.low, wide.high):
        return Seen(
            Verdict.failed, f"none of the interval satisfies the rule{note}", value.estimate,
            _shown(wide, for_fail.interval),
        )  # fmt: skip
    inside = value.estimate in region
    decisive, reported = (narrow, value.interval) if inside else (wide, for_fail.interval)
    return _open(region, limits, value, decisive, reported, note)


def _open(
    region: Region,
    limits: tuple[float | None, float | None],
    value: Estimate,
    judged: Interval,
    reported: Interval,
    note: str,
) -> Seen:
    reason = f"the interval lies on both sides of the threshold{note}"
    needed = needed_to_decide(value, reported, region, limits)
    if math.isinf(judged.low) or math.isinf(judged.high):
        reason = f"no sample bounds the measure{note}, and it has no limit of its own"
    elif needed is None and says_how_many(value, reported):
        reason += (
            f"; at_threshold: the estimate is too near for {MOST_NEEDED} times the data to decide"
        )
    return Seen(Verdict.inconclusive, reason, value.estimate, _shown(judged, reported), needed)


def _supported(estimate: float, interval: Interval, measure: Measure) -> Interval:
    """The interval, or, where nothing varied, what so many equal units leave possible."""
    if interval.method != "jackknife_t" or not spreadless(estimate, interval, (None, None)):
        return interval
    alpha = (1 - interval.level) / 2
    low, high = (
        open_end if limit is None else without_spread(estimate, limit, alpha, interval.resamples)
        for limit, open_end in ((measure.low, -math.inf), (measure.high, math.inf))
    )
    return interval.model_copy(update={"low": low, "high": high})


def _shown(judged: Interval, reported: Interval) -> Bounds:
    low, high = (
        one if math.isfinite(one) else given
        for one, given in ((judged.low, reported.low), (judged.high, reported.high))
    )
    return Bounds(low=low, high=high, level=judged.level)


def _find(report: ReportBase, path: str, measure: Measure) -> tuple[Any, str]:
    """The value at a path of the results, or the reason why it is null."""
    keys = path.split(".")
    if keys[0] != "differences":
        return _walk(report.results, keys)
    later, earlier, *rest = keys[1:]
    if earlier in report.results.differences.get(later, {}):  # type: ignore[attr-defined]
        return _walk(report.results, keys)
    value, why = _walk(report.results, ["differences", earlier, later, *rest])
    return (value if value is None or measure.is_p_value else -value), why


def _same_vectors(report: ReportBase, path: str) -> bool:
    """Whether a difference is one between a set of vectors and itself, not between two that agree."""
    keys = path.split(".")
    hashes = {
        one.hashes
        for models in report.inputs.values()
        if isinstance(models, list)
        for one in models
        if one.name in keys[1:3]
    }
    return keys[0] == "differences" and len(hashes) == 1


def _walk(node: Any, keys: list[str]) -> tuple[Any, str]:
    for key in keys:
        value = node[key] if isinstance(node, dict) else node.value(key)
        if value is None:
            reason = node.undefined.get(key)
            return None, reason.message if reason else "no reason given"
        node = value
    return node, ""
