"""The gate: a policy and reports make a verdict, by rules that can be recomputed by hand."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from service.gate import Verdict, judge, read_policy, verdict_digest
from service.report import ReportBase, load_report
from tests.inside import inside

POLICY: dict[str, Any] = {
    "version": 1,
    "name": "release",
    "inputs": {"rows": "vectors", "left": "vectors", "right": "vectors", "topics": "column"},
    "checks": {
        "shape": {"kind": "geometry", "inputs": {"vectors": "rows", "groups": "topics"}},
        "floor": {
            "kind": "cosine_floor",
            "inputs": {"a": "left", "b": "right"},
            "params": {"align": "procrustes"},
        },
    },
    "rules": [{"measure": "shape.anisotropy", "at_most": 0.3}],
}
Judged = Callable[..., tuple[Verdict, list[Any]]]


def policy(*rules: dict[str, Any]) -> Any:
    return read_policy({**POLICY, "rules": list(rules)})


def estimated(
    estimate: float | None, low: float = 0.0, high: float = 0.0, *, units: int = 20,
    method: str = "jackknife_t", unit: str = "group", level: float = 0.95,
) -> dict[str, Any]:  # fmt: skip
    """An estimate with an interval."""
    return {
        "estimate": estimate,
        "interval": {
            "low": low, "high": high, "level": level, "method": method, "unit": unit,
            "resamples": units,
        },
    }  # fmt: skip


def undefined(code: str, estimate: float | None = None) -> dict[str, Any]:
    """An estimate, or only its interval, that is not there."""
    reason = {"code": code, "message": f"Because {code}."}
    keys = ["interval"] if estimate is not None else ["estimate", "interval"]
    return {"estimate": estimate, "interval": None, "undefined": dict.fromkeys(keys, reason)}


@pytest.fixture(scope="module")
def real() -> Any:
    """Real reports of both checks, made once."""
    from service.operations import perform, submit
    from service.request import parse_request
    from service.storage.memory import memory_services

    services = memory_services()
    a, b = np.random.default_rng(9).normal(size=(2, 30, 4)).tolist()
    made = {}
    for name, inputs in (
        ("geometry", {"vectors": {"vectors": a}}),
        ("cosine_floor", {"a": {"vectors": a}, "b": {"vectors": b}}),
    ):
        job = submit(services, "p", parse_request({"kind": name, "inputs": inputs}))
        perform(services, job.id)
        made[name] = json.loads(services.reports.get("p", job.request_digest) or b"")
    return made


@pytest.fixture
def constructed(real: Any) -> Callable[..., ReportBase]:
    """A real geometry report with these results, and params, in place of its own."""

    def build(params: dict[str, Any] | None = None, **results: Any) -> ReportBase:
        changed = copy.deepcopy(real["geometry"])
        changed["results"].update(results)
        changed["params"].update(params or {})
        for name, value in results.items():
            if value is None:
                reason = {"code": "zero_spectrum", "message": "Nothing varies."}
                changed["results"].setdefault("undefined", {})[name] = reason
        return load_report(json.dumps(changed).encode())

    return build


@pytest.fixture
def judged(constructed: Any, real: Any) -> Judged:
    """The verdict on a constructed geometry report and a real cosine_floor one."""

    def run(
        *rules: dict[str, Any],
        params: dict[str, Any] | None = None,
        floor: ReportBase | str | None = None,
        shape: str | None = None,
        **results: Any,
    ) -> tuple[Verdict, list[Any]]:
        reports = {
            "shape": shape or constructed(params, **results),
            "floor": floor or load_report(json.dumps(real["cosine_floor"]).encode()),
        }
        return judge(policy(*rules), reports)

    return run


@pytest.mark.parametrize(
    ("bound", "low", "high", "verdict"),
    [
        ({"at_most": 0.3}, 0.1, 0.29, "pass"),
        ({"at_most": 0.3}, 0.1, 0.3, "pass"),
        ({"at_most": 0.3}, 0.1, 0.31, "inconclusive"),
        ({"at_most": 0.3}, 0.3, 0.5, "inconclusive"),
        ({"at_most": 0.3}, 0.31, 0.5, "fail"),
        ({"at_least": 0.3}, 0.31, 0.5, "pass"),
        ({"at_least": 0.3}, 0.3, 0.5, "pass"),
        ({"at_least": 0.3}, 0.29, 0.5, "inconclusive"),
        ({"at_least": 0.3}, 0.1, 0.29, "fail"),
        ({"at_least": 0.0}, -0.1, -0.05, "fail"),
        ({"at_most": 0.0}, -0.1, 0.0, "pass"),
        ({"at_least": -0.5}, -0.5, -0.4, "pass"),
    ],
)
def test_a_measure_is_judged_on_its_whole_interval(
    bound: dict[str, float], low: float, high: float, verdict: str, judged: Judged
) -> None:
    """All of it, none of it, or both; bounds belong to the good side; 0 is a threshold."""
    middle = (low + high) / 2
    found, (rule,) = judged(
        {"measure": "shape.anisotropy", **bound}, anisotropy=estimated(middle, low, high)
    )
    assert (found, rule.verdict) == (verdict, verdict)
    assert (rule.observed, rule.interval.low, rule.interval.high) == (middle, low, high)
    assert rule.threshold == next(iter(bound.values()))
    assert rule.reason


@pytest.mark.parametrize(
    ("bound", "value", "verdict"),
    [
        ({"at_most": 3}, 3, "pass"), ({"at_most": 3}, 4, "fail"), ({"at_least": 3}, 3, "pass"),
        ({"at_least": 3}, 2, "fail"), ({"at_most": 0}, 0, "pass"), ({"at_most": 0}, 1, "fail"),
    ],
)  # fmt: skip
def test_a_number_without_interval_passes_or_fails(
    bound: dict[str, float], value: int, verdict: str, judged: Judged
) -> None:
    """A count is what it is."""
    found, (rule,) = judged(
        {"measure": "shape.duplicates.rows", **bound}, duplicates={"rows": value, "groups": 0}
    )
    assert (found, rule.observed, rule.interval, rule.needed) == (verdict, value, None, None)


@pytest.mark.parametrize("bound", ["at_least", "at_most"])
def test_what_is_null_never_passes(bound: str, judged: Judged) -> None:
    """CASES P02: a null statistic, a null estimate, a missing interval, and null below null.

    Rules that nearly every value satisfies.
    """
    wide = {
        "shape.anisotropy": (-0.999, 0.999),
        "shape.dispersion_v": (0.001, 0.999),
        "shape.rankme": (1.001, 9e9),
        "floor.aligned.gap_all": (-1.999, 1.999),
        "floor.aligned.partner_ranked_first.tied": (1, 9e9),
    }
    nothing: dict[str, Any] = {
        "anisotropy": undefined("too_few_rows"),
        "dispersion_v": undefined("too_few_groups", 0.5),
        "rankme": None,
    }
    found, rules = judged(
        *({"measure": name, bound: ends[bound == "at_most"]} for name, ends in wide.items()),
        **nothing,
    )
    assert found == "inconclusive"
    assert [rule.verdict for rule in rules] == ["inconclusive"] * 5
    assert [rule.observed for rule in rules] == [None, 0.5, None, None, None]
    assert "Because too_few_rows." in rules[0].reason
    assert "Because too_few_groups." in rules[1].reason
    assert "Nothing varies." in rules[2].reason
    assert "Ask for it with `align`." in rules[3].reason


def test_a_census_is_judged_on_its_values(judged: Judged) -> None:
    """The caller declares that there is no population beyond the rows."""
    rule = {"measure": "shape.anisotropy", "at_most": 0.3}
    census = {"census": True}
    assert judged(rule, params=census, anisotropy=undefined("census", 0.2))[0] == "pass"
    assert judged(rule, params=census, anisotropy=undefined("census", 0.4))[0] == "fail"
    assert judged(rule, params=census, anisotropy=undefined("too_few_rows"))[0] == "inconclusive"


@pytest.mark.parametrize("code", ["zero-rows", "internal", "cancelled", "timed-out"])
def test_a_check_without_a_report_is_invalid(code: str, judged: Judged) -> None:
    """With the code it ended in; nothing else can outweigh it."""
    found, (rule, other) = judged(
        {"measure": "shape.anisotropy", "at_most": 0.3},
        {"measure": "floor.raw.gap_all", "at_least": 1.9},
        shape=code,
    )
    assert (found, rule.verdict, other.verdict) == ("invalid", "invalid", "fail")
    assert code in rule.reason
    assert "`shape`" in rule.reason


PASS = {"measure": "shape.norms.min", "at_least": 1e-9}
FAIL = {"measure": "shape.norms.min", "at_most": 0}
UNSURE = {"measure": "floor.aligned.gap_all", "at_least": 0}


@pytest.mark.parametrize(
    ("rules", "verdict"),
    [
        ([PASS], "pass"), ([PASS, PASS], "pass"), ([PASS, FAIL], "fail"), ([FAIL, PASS], "fail"),
        ([PASS, UNSURE], "inconclusive"), ([UNSURE, FAIL], "fail"), ([FAIL, UNSURE], "fail"),
        ([UNSURE, UNSURE, PASS], "inconclusive"),
    ],
)  # fmt: skip
def test_the_worst_rule_decides(rules: list[Any], verdict: str, judged: Judged) -> None:
    """pass < inconclusive < fail < invalid, in any order."""
    found, results = judged(*rules)
    assert found == verdict
    assert [result.rule.measure for result in results] == [rule["measure"] for rule in rules]


def test_warned_rules_are_shown_and_never_decide(judged: Judged) -> None:
    """Each keeps its own verdict."""
    warned = [{**rule, "level": "warn"} for rule in (FAIL, UNSURE, PASS)]
    found, rules = judged(PASS, *warned)
    assert found == "pass"
    assert [rule.verdict for rule in rules] == ["pass", "fail", "inconclusive", "pass"]
    assert judged(FAIL, *warned)[0] == "fail"
    assert judged(UNSURE, *warned)[0] == "inconclusive"


@pytest.mark.parametrize(
    ("estimate", "half", "threshold", "units", "level"),
    [
        (0.25, 0.10, 0.30, 20, 0.95),
        (0.25, 0.06, 0.30, 5, 0.95),
        (0.50, 0.20, 0.45, 100, 0.90),
        (0.10, 0.05, 0.07, 12, 0.99),
        (0.29, 0.05, 0.30, 30, 0.95),
    ],
)
def test_needed_is_the_formula_of_rule_three(
    estimate: float, half: float, threshold: float, units: int, level: float, judged: Judged
) -> None:
    """
    ceil(G ((z_{1-a} + z_.8) SE / |estimate - threshold|)^2), a one-sided, by scipy.

    SE from the half-width of the jackknife-t interval.
    """
    a = (1 - level) / 2
    se = half / stats.t.ppf(1 - a, df=units - 1)
    z = stats.norm.ppf(1 - a) + stats.norm.ppf(0.8)
    expected = math.ceil(units * (z * se / abs(estimate - threshold)) ** 2)
    interval = estimated(estimate, estimate - half, estimate + half, units=units, level=level)

    bound = "at_most" if estimate < threshold else "at_least"
    found, (rule,) = judged({"measure": "shape.anisotropy", bound: threshold}, anisotropy=interval)
    assert found == "inconclusive"
    assert (rule.needed.unit, rule.needed.count) == ("groups", expected)
    assert expected > units

    turned = "at_least" if bound == "at_most" else "at_most"
    _, (rule,) = judged({"measure": "shape.anisotropy", turned: threshold}, anisotropy=interval)
    assert rule.needed.count == expected, "towards failing it is the same distance"


def test_needed_counts_rows_where_rows_were_left_out(judged: Judged) -> None:
    """The unit of the interval is the unit of the advice."""
    interval = estimated(0.25, 0.15, 0.35, units=40, unit="row")
    _, (rule,) = judged({"measure": "shape.anisotropy", "at_most": 0.3}, anisotropy=interval)
    assert rule.needed.unit == "rows"


def test_needed_is_null_at_the_threshold(judged: Judged) -> None:
    """More than a hundred times the groups is no advice; nor is anything when nothing is open."""
    rule = {"measure": "shape.anisotropy", "at_most": 0.3}
    for estimate in (0.3, 0.2999):
        interval = estimated(estimate, 0.2, 0.4)
        found, (result,) = judged(rule, anisotropy=interval)
        assert (found, result.needed) == ("inconclusive", None)
    assert judged(rule, anisotropy=estimated(0.1, 0.05, 0.15))[1][0].needed is None
    assert judged(rule, anisotropy=estimated(0.6, 0.55, 0.65))[1][0].needed is None


def test_the_digest_of_a_verdict_follows_rules_and_reports(judged: Judged) -> None:
    """Equal for equal runs; other with another threshold, verdict or report."""
    first, same = judged(PASS, FAIL), judged(PASS, FAIL)
    other = judged(PASS, {**FAIL, "at_most": 0.001})
    reports = {"shape": "a", "floor": "b"}
    digests = [
        verdict_digest(*first, reports), verdict_digest(*other, reports),
        verdict_digest(*first, {**reports, "floor": "c"}),
        verdict_digest(Verdict.passed, first[1], reports),
    ]  # fmt: skip
    assert len(set(digests)) == 4
    assert verdict_digest(*same, dict(reversed(reports.items()))) == digests[0]


def test_every_measure_can_be_judged(judged: Judged) -> None:
    """Whatever its type, on real reports: a verdict with a reason, and no exception."""
    from service.request import BY_KIND

    rules = [
        {"measure": f"{name}.{measure.path}", "at_most": inside(measure)}
        for name, kind in (("shape", "geometry"), ("floor", "cosine_floor"))
        for measure in BY_KIND[kind].measures
    ]
    _, results = judged(*rules)
    assert len(results) == len(rules)
    for result in results:
        assert result.reason
        assert result.observed is None or math.isfinite(result.observed)


@pytest.fixture
def warned(real: Any) -> Callable[..., Judged]:
    """The verdict on a real geometry report with these warnings in place of its own."""

    def run(
        rule: dict[str, Any], *messages: str, beside: dict[str, Any] | None = None
    ) -> tuple[Verdict, list[Any]]:
        shape = copy.deepcopy(real["geometry"])
        shape["warnings"] = [
            {"code": code, "message": message, "where": "results"}
            for code, message in (
                ("rank_limited_by_n", "Few."),
                *(("duplicates", m) for m in messages),
            )
        ]
        floor = load_report(json.dumps(real["cosine_floor"]).encode())
        rules = [rule] if beside is None else [rule, beside]
        reports = {"shape": load_report(json.dumps(shape).encode()), "floor": floor}
        return judge(policy(*rules), reports)

    return run


def test_a_rule_about_a_warning_counts_those_of_its_code(warned: Any) -> None:
    """None passes, one breaks it with its own words, which go on; of several the first speaks."""
    rule = {"measure": "shape.warnings.duplicates", "at_most": 0}
    verdict, (one,) = warned(rule)
    assert (verdict, one.observed, one.interval) == ("pass", 0, None)
    assert one.reason == "satisfies the rule; the report has no such warning"
    verdict, (one,) = warned(rule, "7 rows equal an earlier row.")
    assert (verdict, one.observed, one.threshold) == ("fail", 1, 0)
    assert one.reason == "breaks the rule; 7 rows equal an earlier row."
    assert one.measured == "Warnings `duplicates` of the report. Rows equal an earlier row."
    for message, going_on in (
        ("All rows are alike.", "all rows are alike."), ("A few are.", "a few are."),
        ("MMD is 0.", "MMD is 0."), ("R2 is 0.", "R2 is 0."), ("`All` is 0.", "`All` is 0."),
    ):  # fmt: skip
        _, (one,) = warned(rule, message)
        assert one.reason == f"breaks the rule; {going_on}"
    verdict, (one,) = warned({**rule, "at_most": 1}, "First.", "Second.", "Third.")
    assert (verdict, one.observed) == ("fail", 3)
    assert one.reason == "breaks the rule; first. Warnings like it in the report: 2 more."


def test_a_rule_about_a_warning_may_only_warn_or_be_invalid(warned: Any, judged: Judged) -> None:
    """As any other rule."""
    rule = {"measure": "shape.warnings.duplicates", "at_most": 0}
    blocking = {"measure": "shape.warnings.rows_dropped", "at_most": 0}
    verdict, (shown, _) = warned({**rule, "level": "warn"}, "Twice.", beside=blocking)
    assert (verdict, shown.verdict, shown.observed) == ("pass", "fail", 1)
    verdict, (one,) = judged(rule, shape="timed-out: The job ran out of time.")
    assert (verdict, one.verdict, one.observed) == ("invalid", "invalid", None)
