"""Rules on differences of two models, on intervals at two levels, and on units that do not vary."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.gate import RuleResult, judge, read_policy
from service.operations import perform, submit
from service.report import ReportBase, load_report
from service.request import parse_request
from service.storage.memory import memory_services

POLICY: dict[str, Any] = {
    "version": 1,
    "name": "upgrade",
    "inputs": {"left": "vectors", "right": "vectors", "topics": "column"},
    "checks": {
        "groups": {
            "kind": "group_structure",
            "inputs": {
                "models": [{"name": "old", "vectors": "left"}, {"name": "new", "vectors": "right"}],
                "groups": "topics",
            },
        }
    },
}
NEW, OLD = "groups.differences.new.old", "groups.differences.old.new"
Judged = Callable[..., tuple[str, list[RuleResult]]]


@pytest.fixture(scope="module")
def real() -> Any:
    """A report of two models over eight groups."""
    services = memory_services()
    rng = np.random.default_rng(5)
    groups = np.repeat(np.arange(8), 6)
    means = rng.normal(size=(8, 4))
    models = [
        {"name": name, "vectors": (means[groups] + noise * rng.normal(size=(48, 4))).tolist()}
        for name, noise in (("old", 0.5), ("new", 0.8))
    ]
    inputs = {"models": models, "groups": {"values": groups.tolist()}}
    job = submit(services, "p", parse_request({"kind": "group_structure", "inputs": inputs}))
    perform(services, job.id)
    return json.loads(services.reports.get("p", job.request_digest) or b"")


@pytest.fixture
def judged(real: Any) -> Judged:
    """The verdict on the real report with this difference of one measure, at one level or two."""

    def report(measure: str, value: Any) -> ReportBase:
        changed = copy.deepcopy(real)
        if value is not None:
            changed["results"]["differences"]["new"]["old"][measure] = value
        return load_report(json.dumps(changed).encode())

    def run(
        *rules: dict[str, Any],
        measure: str = "r2",
        value: Any = None,
        wide: Any = None,
        **policy: Any,
    ) -> tuple[str, list[RuleResult]]:
        read = read_policy({**POLICY, "rules": list(rules), **policy})
        wider = None if wide is None else {"groups": report(measure, wide)}
        return judge(read, {"groups": report(measure, value)}, wider)

    return run


def interval(low: float, high: float, level: float = 0.95, units: int = 8) -> dict[str, Any]:
    return {
        "estimate": (low + high) / 2,
        "interval": {
            "low": low, "high": high, "level": level, "method": "jackknife_t", "unit": "group",
            "resamples": units,
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "measure", "low", "high", "verdict"),
    [
        ({"not_worse_by": 0.1}, "r2", -0.10, 0.30, "pass"),
        ({"not_worse_by": 0.1}, "r2", -0.11, 0.30, "inconclusive"),
        ({"not_worse_by": 0.1}, "r2", -0.30, -0.11, "fail"),
        ({"not_worse_by": 0.1}, "within_share", -0.30, 0.10, "pass"),
        ({"not_worse_by": 0.1}, "within_share", -0.30, 0.11, "inconclusive"),
        ({"not_worse_by": 0.1}, "within_share", 0.11, 0.30, "fail"),
        ({"unchanged_within": 0.1}, "v", -0.10, 0.10, "pass"),
        ({"unchanged_within": 0.1}, "v", -0.11, 0.10, "inconclusive"),
        ({"unchanged_within": 0.1}, "v", -0.30, 0.30, "inconclusive"),
        ({"unchanged_within": 0.1}, "v", 0.11, 0.30, "fail"),
        ({"unchanged_within": 0.1}, "v", -0.30, -0.11, "fail"),
        ({"within": [0.1, 0.3]}, "r2", 0.1, 0.3, "pass"),
        ({"within": [0.1, 0.3]}, "r2", 0.0, 0.4, "inconclusive"),
        ({"within": [0.1, 0.3]}, "r2", 0.31, 0.4, "fail"),
        ({"within": [0.1, 0.3]}, "r2", -0.1, 0.09, "fail"),
    ],
    ids=str,
)  # fmt: skip
def test_a_margin_is_judged_on_the_whole_interval(
    rule: dict[str, Any], measure: str, low: float, high: float, verdict: str, judged: Judged
) -> None:
    """Worse is downwards where higher is better, upwards where lower is; an interval over a band on
    both sides is open, not broken."""
    _, (one,) = judged(
        {"measure": f"{NEW}.{measure}", **rule}, measure=measure, value=interval(low, high)
    )
    assert one.verdict == verdict
    assert one.interval is not None
    assert (one.interval.low, one.interval.high) == (low, high)


@pytest.mark.parametrize(
    "rule", [{"not_worse_by": 0.1}, {"unchanged_within": 0.1}, {"at_least": 0}]
)
def test_the_other_order_is_the_other_sign(rule: dict[str, Any], judged: Judged) -> None:
    """new - old in [-.3, -.11] is old - new in [.11, .3]."""
    value = interval(-0.3, -0.11)
    _, (one,) = judged({"measure": f"{OLD}.r2", **rule}, value=value)
    assert one.interval is not None
    assert (one.interval.low, one.interval.high, one.observed) == (0.11, 0.3, 0.205)
    assert one.verdict == ("fail" if "unchanged_within" in rule else "pass")


def test_a_p_value_is_the_same_in_either_order(judged: Judged, real: Any) -> None:
    """A two-sided test has no sign: turned round, p stays p."""
    p = real["results"]["differences"]["new"]["old"]["r2_test"]["p"]
    assert 0 < p < 1
    rules = [{"measure": f"{pair}.r2_test.p", "at_most": p * 0.9} for pair in (NEW, OLD)]
    _, results = judged(*rules)
    assert [one.observed for one in results] == [p, p]
    assert [one.verdict for one in results] == ["fail", "fail"]


def test_thresholds_are_shown_in_the_measure_s_own_terms(judged: Judged) -> None:
    """A margin of .1 is -.1 where higher is better and +.1 where lower is."""
    rules = [
        {"measure": f"{NEW}.r2", "not_worse_by": 0.1},
        {"measure": f"{NEW}.within_share", "not_worse_by": 0.1},
        {"measure": f"{NEW}.r2", "unchanged_within": 0.1},
        {"measure": f"{NEW}.r2", "within": [0, 1]},
    ]
    _, results = judged(*rules)
    assert [one.threshold for one in results] == [-0.1, 0.1, (-0.1, 0.1), (0, 1)]
    assert all(one.measured for one in results)


def test_fail_is_said_on_the_wider_interval_and_pass_on_the_narrower(judged: Judged) -> None:
    """With `familywise`; the interval shown is the one that decided."""
    rule, other = (
        {"measure": f"{NEW}.r2", "at_least": 0.1},
        {"measure": f"{NEW}.icc1", "at_least": -1.99},
    )
    for value, wide, verdict, level in (
        ((-0.2, 0.09), (-0.3, 0.2), "inconclusive", 0.975),
        ((-0.2, 0.05), (-0.3, 0.09), "fail", 0.975),
        ((0.11, 0.3), (0.0, 0.4), "pass", 0.95),
        ((0.05, 0.3), (0.0, 0.4), "inconclusive", 0.95),
    ):
        _, (one, _) = judged(
            rule, other, value=interval(*value), wide=interval(*wide, level=0.975), familywise=True
        )
        assert one.verdict == verdict
        assert one.interval is not None
        assert one.interval.level == level
        assert (one.needed is not None) == (verdict == "inconclusive")


def test_a_warned_rule_is_no_member_of_the_family(judged: Judged) -> None:
    """It decides nothing, and is shown at its own level."""
    rule = {"measure": f"{NEW}.r2", "at_least": 0.1, "level": "warn"}
    rules = [rule, *({"measure": f"{NEW}.icc1", "at_least": -1.99} for _ in range(2))]
    _, (one, *_) = judged(
        *rules, value=interval(-0.2, 0.09), wide=interval(-0.3, 0.2, level=0.975), familywise=True
    )
    assert one.verdict == "fail"


def test_a_wider_report_that_is_missing_is_invalid(judged: Judged, real: Any) -> None:
    """Half of a check is no check."""
    read = read_policy(
        {**POLICY, "rules": [{"measure": f"{NEW}.r2", "at_least": -0.99}] * 2, "familywise": True}
    )
    report = load_report(json.dumps(real).encode())
    verdict, rules = judge(read, {"groups": report}, {"groups": "timed-out"})
    assert verdict == "invalid"
    assert "timed-out" in rules[0].reason


def test_units_that_do_not_vary_prove_no_more_than_their_number(judged: Judged) -> None:
    """
    A difference of 0 in every one of G groups leaves 1 - .025^(1/G) of others possible.

    Within .01 that takes 368 groups on a measure in [-1, 1], whatever the estimate's own spread.
    """
    counted = next(g for g in range(1, 1000) if 1 - 0.025 ** (1 / g) <= 0.01)
    assert counted == 368
    rule = {"measure": f"{NEW}.r2", "not_worse_by": 0.01}
    for units, verdict in ((8, "inconclusive"), (367, "inconclusive"), (368, "pass")):
        _, (one,) = judged(rule, value=interval(0.0, 0.0, units=units))
        assert one.verdict == verdict
        assert one.interval is not None
        assert one.interval.low == pytest.approx(-(1 - 0.025 ** (1 / units)), rel=1e-12)
        assert "gave the same value" in one.reason
        assert (one.needed and one.needed.count) == (None if verdict == "pass" else 368)


def test_units_that_do_not_vary_never_decide_a_measure_without_limits(judged: Judged) -> None:
    """V has no upper bound: what other groups might do is unknown."""
    for rule in ({"unchanged_within": 100}, {"at_most": 100}, {"at_least": 1}):
        _, (one,) = judged(
            {"measure": f"{NEW}.v", **rule}, measure="v", value=interval(0.0, 0.0, units=10_000)
        )
        assert (one.verdict, one.needed) == ("inconclusive", None)
        assert "no sample bounds the measure" in one.reason
        assert one.interval is not None
        assert (one.interval.low, one.interval.high) == (0.0, 0.0)


def test_too_few_groups_are_told_how_many_make_an_interval(judged: Judged) -> None:
    """Four groups: no interval, so no verdict, and five is where intervals start."""
    value = {
        "estimate": 0.2, "interval": None,
        "undefined": {"interval": {"code": "too_few_groups", "message": "4 groups."}},
    }  # fmt: skip
    _, (one,) = judged({"measure": f"{NEW}.r2", "at_least": 0.1}, value=value)
    assert one.verdict == "inconclusive"
    assert one.needed is not None
    assert (one.needed.unit, one.needed.count) == ("groups", 5)
    assert "4 groups." in one.reason


def test_an_estimate_at_the_threshold_says_so(judged: Judged) -> None:
    """No number of groups helps where there is nothing to find."""
    _, (one,) = judged({"measure": f"{NEW}.r2", "at_least": 0.1}, value=interval(0.0, 0.2))
    assert (one.verdict, one.needed) == ("inconclusive", None)
    assert "at_threshold" in one.reason


@pytest.mark.parametrize("threshold", [0.5, 0.05, 0.001])
def test_a_permutation_p_value_is_judged_on_its_monte_carlo_error(
    threshold: float, judged: Judged, real: Any
) -> None:
    """
    999 permutations without an exceedance: p <= .0037 at most, so .001 is open.

    The policy asks for more, or it would be at fault.
    """
    checks = {"groups": {**POLICY["checks"]["groups"], "params": {"permutations": 9999}}}
    p = real["results"]["models"]["old"]["p"]
    assert (p["exceedances"], p["permutations"]) == (0, 999)
    _, (one,) = judged({"measure": "groups.models.old.p", "at_most": threshold}, checks=checks)
    assert one.verdict == ("inconclusive" if threshold == 0.001 else "pass")
    if one.needed is not None:
        assert (one.needed.unit, one.needed.count) == ("permutations", 3688)


def test_vectors_do_not_differ_from_themselves(judged: Judged, real: Any) -> None:
    """An unchanged encoder passes with eight groups; what only agrees on eight is open (above)."""
    value = interval(0.0, 0.0)
    rule = {"measure": f"{NEW}.r2", "not_worse_by": 0.01}
    models = real["inputs"]["models"]
    kept = models[1]["vectors_sha256"]
    models[1]["vectors_sha256"] = models[0]["vectors_sha256"]
    try:
        _, (one,) = judged(rule, value=value)
    finally:
        models[1]["vectors_sha256"] = kept
    assert (one.verdict, one.interval) == ("pass", None)
    assert "the same vectors" in one.reason
