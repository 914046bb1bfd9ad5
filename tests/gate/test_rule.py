"""What a rule accepts, whatever the numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.check import Measure, Params
from service.gate.judging import Verdict, judge_estimate
from service.gate.rule import Region, Rule
from service.numerics.resampling import Interval
from service.results import Estimate

values = st.floats(-10, 10)
comparisons = st.one_of(
    values.map(lambda x: {"at_least": x}),
    values.map(lambda x: {"at_most": x}),
    st.tuples(values, values).map(lambda ends: {"within": tuple(sorted(ends))}),
    st.floats(0, 10).map(lambda x: {"not_worse_by": x}),
    st.floats(0, 10, exclude_min=True).map(lambda x: {"unchanged_within": x}),
)
directions = st.sampled_from(["higher", "lower"])


def region_of(comparison: dict[str, Any], better: Any) -> Region:
    return Rule(measure="x.y", **comparison).region(better)


def verdict(region: Region, low: float, high: float, wider: float = 0.0) -> Verdict:
    """Of an interval, and one that reaches further by `wider` for `fail`."""

    def estimate(low: float, high: float) -> Estimate:
        interval = Interval(
            low=low, high=high, level=0.95, method="jackknife_t", unit="group", resamples=20
        )
        return Estimate(estimate=(low + high) / 2, interval=interval)

    measure = Measure(
        path="y", description="", unit="1", low=None, high=None, better="higher", invariance=[],
        needs=[], shape="estimated",
    )  # fmt: skip
    for_fail = estimate(low - wider, high + wider)
    return judge_estimate(region, measure, estimate(low, high), for_fail, Params()).verdict


@given(comparisons, directions, values, st.floats(0.01, 10))
def test_an_interval_is_judged_as_its_points_are(
    comparison: dict[str, Any], better: Any, low: float, width: float
) -> None:
    """Pass: no point of it breaks the rule. Fail: none satisfies it. By a thousand points of it."""
    region = region_of(comparison, better)
    high = low + width
    points = [low + width * i / 999 for i in range(999)] + [high]
    inside = [point in region for point in points]
    found = verdict(region, low, high)
    if found is Verdict.passed:
        assert all(inside)
    elif found is Verdict.failed:
        assert not any(inside)
    else:
        ends = [end for end in (region.low, region.high) if math.isfinite(end)]
        assert any(low <= end <= high for end in ends)


@given(comparisons, directions, values, st.floats(0.01, 10), st.floats(0, 5))
def test_less_data_never_decides_what_more_did_not(
    comparison: dict[str, Any], better: Any, low: float, width: float, more: float
) -> None:
    """A wider interval is decided the same way or not at all; a wider one for `fail` too."""
    region = region_of(comparison, better)
    narrow = verdict(region, low, low + width)
    assert verdict(region, low - more, low + width + more) in (narrow, Verdict.inconclusive)
    family = verdict(region, low, low + width, wider=more)
    assert family in (narrow, Verdict.inconclusive)
    if narrow is Verdict.passed:
        assert family is Verdict.passed, "pass is not adjusted"


@given(st.floats(0, 10), values, st.floats(0.01, 10))
def test_better_lower_is_better_higher_upside_down(margin: float, low: float, width: float) -> None:
    """The mirrored interval of a mirrored measure has the same verdict."""
    rule = {"not_worse_by": margin}
    one = verdict(region_of(rule, "higher"), low, low + width)
    assert verdict(region_of(rule, "lower"), -low - width, -low) is one


@given(comparisons, directions, values)
def test_the_nearest_end_is_where_the_region_ends(
    comparison: dict[str, Any], better: Any, value: float
) -> None:
    """No other end is nearer."""
    region = region_of(comparison, better)
    nearest = region.nearest(value)
    assert math.isfinite(nearest)
    assert abs(nearest - value) <= min(abs(region.low - value), abs(region.high - value))


@pytest.mark.parametrize(
    ("comparison", "better", "threshold"),
    [
        ({"at_least": 0.5}, "lower", 0.5), ({"at_most": 0.5}, "higher", 0.5),
        ({"within": (0.1, 0.2)}, None, (0.1, 0.2)), ({"unchanged_within": 0.1}, None, (-0.1, 0.1)),
        ({"not_worse_by": 0.1}, "higher", -0.1), ({"not_worse_by": 0.1}, "lower", 0.1),
    ],
)  # fmt: skip
def test_a_threshold_is_a_value_of_the_measure(
    comparison: dict[str, Any], better: Any, threshold: Any
) -> None:
    assert region_of(comparison, better).threshold == threshold


def test_a_rule_is_written_as_it_was_given() -> None:
    """Without the comparisons it has not."""
    rule = Rule(measure="x.y", within=(0.1, 0.2))
    assert rule.model_dump() == {"measure": "x.y", "within": (0.1, 0.2), "level": "block"}


def _two_samples(estimate: float, high: float | None) -> str:
    """The reason a rule about 0 or more gives for an interval of no width of two samples."""
    measure = Measure(
        path="y", description="", unit="1", low=0, high=high, better="lower", invariance=[],
        needs=[], shape="estimated",
    )  # fmt: skip
    interval = Interval(
        low=estimate, high=estimate, level=0.95, method="two_sample_jackknife_t", unit="row",
        resamples=400,
    )  # fmt: skip
    value = Estimate(estimate=estimate, interval=interval)
    return judge_estimate(Region(high=2.0), measure, value, value, Params()).reason


@pytest.mark.parametrize(("estimate", "high"), [(0.0, None), (0.0, 1.0), (1.0, 1.0)])
def test_an_interval_cut_at_a_limit_is_not_one_value_of_all_rows(
    estimate: float, high: float | None
) -> None:
    """Leaving a row out moved it, beyond the limit: nothing is said of the rows."""
    assert _two_samples(estimate, high) == (
        f"all of the interval satisfies the rule; both its ends are cut at {estimate:g}, which the "
        "measure cannot pass"
    )


def test_an_interval_of_no_width_inside_the_limits_is_one_value_of_all_rows() -> None:
    """Rows of length one on both sides: their ratio is 1 whatever is left out."""
    assert "; all 400 rows gave the same value" in _two_samples(1.0, None)
