"""How much data decides a rule, against closed forms, scipy and brute force."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from service.checks.drift import drift
from service.estimates import rescaled
from service.gate.judging import judge_estimate
from service.gate.needed import needed_for_interval, needed_to_decide, spreadless
from service.gate.rule import Region
from service.numerics.changes import change_of_classes, change_of_rows
from service.numerics.moments import Units
from service.numerics.power import (
    groups_for_band,
    trials_for_share,
    units_without_spread,
    without_spread,
)
from service.numerics.resampling import (
    Interval,
    clopper_pearson,
    share_interval,
)
from service.results import Estimate, Params, PValue, Undefined

SHARES = (0, 1)
ANY = (None, None)


def of_share(perfect: int, units: int, level: float = 0.95) -> Estimate:
    """A share over units that are 0 or 1, with the interval every check gives it."""
    values = np.r_[np.ones(perfect), np.zeros(units - perfect)]
    mean = float(values.mean())
    deleted = (values.sum() - values) / (units - 1)
    return Estimate(estimate=mean, interval=share_interval(mean, deleted, mean, level, "group"))


def of_p(exceedances: int, permutations: int, level: float = 0.95) -> PValue:
    low, high = clopper_pearson(exceedances, permutations, level)
    return PValue(
        estimate=(exceedances + 1) / (permutations + 1),
        interval=Interval(
            low=low, high=high, level=level, method="clopper_pearson", unit="permutation",
            resamples=permutations,
        ),
        exceedances=exceedances, permutations=permutations, exact=False,
        p_min=1 / (permutations + 1),
    )  # fmt: skip


def of_mean(estimate: float, half: float, units: int, level: float = 0.95) -> Estimate:
    interval = Interval(
        low=estimate - half, high=estimate + half, level=level, method="jackknife_t", unit="group",
        resamples=units,
    )  # fmt: skip
    return Estimate(estimate=estimate, interval=interval)


def of_pairs(mean: float, sd: float, pairs: int, level: float = 0.95) -> Estimate:
    low, high = stats.t.interval(level, pairs - 1, loc=mean, scale=sd / math.sqrt(pairs))
    interval = Interval(
        low=low, high=high, level=level, method="student_t", unit="seed", resamples=pairs
    )
    return Estimate(estimate=mean, interval=interval)


@pytest.mark.parametrize("level", [0.95, 0.99])
@pytest.mark.parametrize(
    ("mean", "sd", "bound"), [(1.0, 1.0, 0.0), (0.5, 1.0, 0.2), (-1.0, 0.9, 0.0)]
)
def test_a_mean_over_few_seeds_takes_as_many_as_the_noncentral_t_says(
    level: float, mean: float, sd: float, bound: float
) -> None:
    """Compared with statsmodels: .8 is reached by the seeds named, and by no fewer."""
    region = Region(bound, math.inf) if mean > bound else Region(-math.inf, bound)
    value = of_pairs(mean, sd, 4, level)
    assert value.interval is not None
    found = needed_to_decide(value, value.interval, region, ANY)
    assert found is not None
    assert found.unit == "seeds"
    test, effect = TTestPower(), abs(mean - bound) / sd
    assert (
        test.power(effect, found.count, 1 - level)
        >= 0.8
        > test.power(effect, found.count - 1, 1 - level)
    )


def needed(
    value: Estimate, region: Region, limits: tuple[float | None, float | None]
) -> int | None:
    assert value.interval is not None
    found = needed_to_decide(value, value.interval, region, limits)
    return None if found is None else found.count


@pytest.mark.parametrize(("threshold", "groups"), [(0.97, 122), (0.999, 3688), (0.9, 36)])
@pytest.mark.parametrize("units", [5, 20, 30])
def test_perfect_shares_need_the_published_number_of_groups(
    threshold: float, groups: int, units: int
) -> None:
    """The smallest G with .025^(1/G) >= threshold, found by counting; no cap: the number is exact."""
    counted = next(g for g in range(1, 10_000) if 0.025 ** (1 / g) >= threshold)
    assert counted == groups
    assert needed(of_share(units, units), Region(low=threshold), SHARES) == groups
    enough = of_share(groups, groups)
    assert enough.interval is not None
    assert enough.interval.low >= threshold
    one_less = of_share(groups - 1, groups - 1)
    assert one_less.interval is not None
    assert one_less.interval.low < threshold


def test_a_share_that_changes_nowhere_is_counted_as_none_of_so_many() -> None:
    """Within .03: the smallest G with 1 - .025^(1/G) <= .03, which its interval then reaches."""
    counted = next(g for g in range(1, 1000) if 1 - 0.025 ** (1 / g) <= 0.03)

    def unchanged(units: int) -> Estimate:
        codes = np.repeat(np.arange(units), 3)
        interval = change_of_rows(np.zeros(3 * units), Units.groups(codes)).interval(0.95, "group")
        return Estimate(estimate=0.0, interval=interval)

    assert needed(unchanged(20), Region(low=-0.03), (-1, 1)) == counted
    for units, reached in ((counted, True), (counted - 1, False)):
        interval = unchanged(units).interval
        assert interval is not None
        assert (interval.low >= -0.03) is reached


@pytest.mark.parametrize("level", [0.95, 0.99])
@pytest.mark.parametrize(("sizes", "bound"), [((9, 1), 0.05), ((5, 3, 2), 0.03), ((1, 1), 0.05)])
def test_no_change_over_classes_is_counted_as_the_smallest_class_allows(
    sizes: tuple[int, ...], bound: float, level: float
) -> None:
    """Compared with brute force: whole multiples of the same classes until the interval is inside."""

    def unchanged(times: int) -> Estimate:
        codes = np.repeat(np.arange(len(sizes)), np.array(sizes) * times)
        change = change_of_classes(np.zeros(len(codes)), codes, np.arange(len(codes)))
        return Estimate(estimate=0.0, interval=change.interval(level, "row"))

    def inside(times: int) -> bool:
        interval = unchanged(times).interval
        return interval is not None and interval.low >= -bound

    first = next(times for times in range(10, 500) if inside(times))
    some = unchanged(10)
    assert some.interval is not None
    assert spreadless(0.0, some.interval, (-1, 1))
    found = needed(some, Region(low=-bound), (-1, 1))
    assert found is not None
    assert (first - 1) * sum(sizes) < found <= first * sum(sizes)


@pytest.mark.parametrize("of_classes", [False, True])
def test_gains_that_losses_undo_are_no_lack_of_change(of_classes: bool) -> None:
    """The estimate is 0 and the interval has one reach, yet units differ."""
    values = np.zeros(100)
    values[:6] = [1, -1, 1, -1, 1, -1]
    codes = np.arange(100) // 90
    for changes in range(2, 7, 2):
        some = np.where(np.arange(100) < changes, values, 0.0)
        change = (
            change_of_classes(some, codes, np.arange(100))
            if of_classes
            else change_of_rows(some, Units.rows(100))
        )
        assert change.value == 0
        assert not spreadless(0.0, change.interval(0.95, "row"), (-1, 1))


def test_the_bound_of_a_collapsed_batch_names_no_number(run: Any) -> None:
    """It falls as 1 / n, and the baseline's share of it as its root: nothing is said of either."""
    rng = np.random.default_rng(8)
    base, batch = rng.normal(size=(60, 5)), np.tile(np.ones(5), (60, 1))
    found, _ = run(drift, baseline=base, batch=batch, params={"permutations": 19})
    ratio = found.spread_ratio
    assert ratio.interval.low == 0 < ratio.interval.high
    measure = next(one for one in drift.measures if one.path == "spread_ratio")
    seen = judge_estimate(Region(high=ratio.interval.high / 2), measure, ratio, ratio, Params())
    assert (seen.verdict, seen.needed) == ("inconclusive", None)
    assert seen.reason == "the interval lies on both sides of the threshold"


@pytest.mark.parametrize(("perfect", "threshold"), [(20, 0.97), (80, 0.7), (40, 0.5)])
def test_a_share_of_what_is_attainable_takes_what_the_share_takes(
    perfect: int, threshold: float
) -> None:
    """Closed form: precision@10 of one relevant document is a tenth of hit@10, and so is its rule."""
    hit = of_share(perfect, 20 if perfect == 20 else 100)
    precision = rescaled(hit, 0.1)
    expected = needed(hit, Region(low=threshold), SHARES)
    assert expected is not None
    assert needed(precision, Region(low=threshold / 10), SHARES) == pytest.approx(expected, abs=1)
    assert precision.interval is not None
    assert precision.interval.attainable == 0.1
    assert precision.estimate is not None
    assert spreadless(precision.estimate, precision.interval, SHARES) is (perfect == 20)


def test_a_share_of_nothing_mirrors_a_perfect_one() -> None:
    """At most .03 of groups with none in 20: the same 122."""
    assert needed(of_share(0, 20), Region(high=0.03), SHARES) == 122


@pytest.mark.parametrize(
    ("share", "threshold", "side"),
    [(0.99, 0.97, 1), (0.95, 0.9, 1), (0.8, 0.9, -1), (0.3, 0.5, -1), (0.97, 0.99, -1)],
)
def test_a_share_with_so_many_groups_is_decided_four_times_in_five(
    share: float, threshold: float, side: int
) -> None:
    """The exact power: binomial counts whose Clopper-Pearson bound is past the threshold."""
    groups = trials_for_share(share, threshold, 0.025)
    counts = np.arange(groups + 1)
    low = np.nan_to_num(stats.beta.ppf(0.025, counts, groups - counts + 1), nan=0.0)
    high = np.nan_to_num(stats.beta.ppf(0.975, counts + 1, groups - counts), nan=1.0)
    decided = low >= threshold if side > 0 else high <= threshold
    power = stats.binom.pmf(counts, groups, share)[decided].sum()
    assert 0.72 < power < 0.9, "the binomial moves in steps"


@pytest.mark.parametrize(("perfect", "threshold"), [(80, 0.9), (97, 0.9), (99, 0.95), (44, 0.5)])
def test_what_a_share_needs_takes_its_whole_envelope_past_the_threshold(
    perfect: int, threshold: float
) -> None:
    """The exact power with both intervals, from scipy's beta and t; 100 groups of 0 or 1 seen."""
    share = perfect / 100
    groups = needed(of_share(perfect, 100), Region(low=threshold), SHARES)
    assert groups is not None
    counts = np.arange(groups + 1)
    mean = counts / groups
    half = stats.t.ppf(0.975, groups - 1) * np.sqrt(mean * (1 - mean) / (groups - 1))
    low = np.minimum(stats.beta.ppf(0.025, counts, groups - counts + 1), mean - half)
    high = np.maximum(stats.beta.ppf(0.975, counts + 1, groups - counts), mean + half)
    decided = low >= threshold if share > threshold else high < threshold
    assert 0.75 < stats.binom.pmf(counts, groups, share)[decided].sum() < 0.9


def test_a_share_is_decided_by_more_groups_than_there_are() -> None:
    """Advice that says fewer than there are would be nonsense."""
    rng = np.random.default_rng(4)
    for _ in range(300):
        units = int(rng.integers(5, 200))
        value = of_share(int(rng.integers(0, units + 1)), units)
        region = Region(low=float(rng.uniform(0.01, 0.99)))
        assert value.interval is not None
        if region.holds(value.interval.low, value.interval.high):
            continue
        if region.misses(value.interval.low, value.interval.high):
            continue
        count = needed(value, region, SHARES)
        assert count is None or count > units


@pytest.mark.parametrize(
    ("below", "above", "error", "alpha"),
    [(0.02, 0.02, 0.03, 0.025), (0.01, 0.05, 0.03, 0.025), (0.02, 0.021, 0.05, 0.005)],
)
def test_a_band_is_decided_four_times_in_five(
    below: float, above: float, error: float, alpha: float
) -> None:
    """The exact power of two bounds inside, by the normal law; one group less is too few."""
    groups = groups_for_band(20, error, below, above, alpha)

    def power(n: float) -> float:
        se = error * math.sqrt(20 / n)
        z = stats.norm.ppf(1 - alpha) * se
        return float(stats.norm.cdf(above - z, scale=se) - stats.norm.cdf(z - below, scale=se))

    assert power(groups) >= 0.8 - 1e-9
    assert power(groups - 1) < 0.8


def test_one_end_is_the_formula_of_a_rule() -> None:
    """An end at infinity asks for nothing."""
    z = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    expected = math.ceil(20 * (z * 0.05 / 0.02) ** 2)
    assert groups_for_band(20, 0.05, 0.02, math.inf, 0.025) == expected
    assert groups_for_band(20, 0.05, math.inf, 0.02, 0.025) == expected


def test_from_outside_a_band_one_end_is_enough() -> None:
    """Above the band: the interval has to clear the upper end only."""
    outside, band = of_mean(0.35, 0.1, 20), Region(0.1, 0.3)
    assert needed(outside, band, ANY) == needed(outside, Region(high=0.3), ANY)
    inside = of_mean(0.25, 0.1, 20)
    assert needed(inside, band, ANY) == needed(inside, Region(high=0.3), ANY), "0.1 is far away"


@pytest.mark.parametrize(
    ("exceedances", "permutations", "threshold"), [(44, 999, 0.05), (60, 999, 0.05), (7, 999, 0.01)]
)
def test_an_open_p_value_needs_permutations(
    exceedances: int, permutations: int, threshold: float
) -> None:
    """Fleiss' formula for one proportion, corrected for continuity, by scipy."""
    value = of_p(exceedances, permutations)
    assert value.interval is not None
    found = needed_to_decide(value, value.interval, Region(high=threshold), SHARES)
    p, t = exceedances / permutations, threshold
    spread = stats.norm.ppf(0.975) * math.sqrt(t * (1 - t)) + stats.norm.ppf(0.8) * math.sqrt(
        p * (1 - p)
    )
    n = (spread / (p - t)) ** 2
    expected = math.ceil(n / 4 * (1 + math.sqrt(1 + 2 / (n * abs(p - t)))) ** 2)
    if expected > 100 * permutations:
        assert found is None
    else:
        assert found is not None
        assert (found.unit, found.count) == ("permutations", expected)


def test_a_p_value_without_exceedances_needs_what_the_threshold_takes() -> None:
    """(1 - .001)^B <= .025 for the first time at B = 3,688; 19 permutations cannot say it."""
    assert needed(of_p(0, 19), Region(high=0.001), SHARES) == 3688
    assert 0.999**3688 <= 0.025 < 0.999**3687


def test_at_the_threshold_there_is_no_number() -> None:
    """Nor above a hundred times what there is."""
    for value, region in (
        (of_mean(0.3, 0.1, 20), Region(high=0.3)), (of_mean(0.2999, 0.1, 20), Region(high=0.3)),
        (of_share(90, 100), Region(low=0.9)), (of_p(50, 1000), Region(high=0.05)),
    ):  # fmt: skip
        assert needed(value, region, SHARES) is None


@pytest.mark.parametrize("method", ["bca", "max_t", "bonferroni_t"])
def test_a_method_that_does_not_count_units_gives_no_advice(method: str) -> None:
    """Its resamples are draws."""
    value = of_mean(0.25, 0.1, 2000)
    assert value.interval is not None
    other = value.interval.model_copy(update={"method": method})
    assert needed_to_decide(value, other, Region(high=0.3), ANY) is None


@pytest.mark.parametrize(
    ("code", "unit"), [("too_few_groups", "groups"), ("too_few_rows", "rows"), ("census", None)]
)
def test_too_few_units_need_five(code: str, unit: str | None) -> None:
    """An interval starts there."""
    found = needed_for_interval(Undefined(code=code, message=""))
    assert (found and (found.unit, found.count)) == (unit and (unit, 5))


@pytest.mark.parametrize("units", [5, 20, 122, 1000])
def test_equal_units_leave_open_what_the_binomial_does(units: int) -> None:
    """Of a share it is the Clopper-Pearson bound; 122 units reach .97."""
    low, _ = clopper_pearson(units, units, 0.95)
    assert without_spread(1.0, 0.0, 0.025, units) == pytest.approx(low, rel=1e-12)
    assert units_without_spread(0.0, -1.0, -0.03, 0.025) == 122


def test_a_wider_jackknife_needs_more_groups_than_a_binomial() -> None:
    """Rows weigh more than groups: the envelope is the jackknife's, and so is the advice."""
    value = of_share(18, 20)
    assert value.interval is not None
    plain = needed(value, Region(low=0.8), SHARES)
    wide = value.interval.model_copy(update={"low": 0.5})
    wider = needed_to_decide(value, wide, Region(low=0.8), SHARES)
    assert plain is not None
    assert wider is not None
    assert wider.count > plain
