"""Paired changes against closed forms, scipy's exact interval and test, and exact coverage."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from service.numerics.changes import (
    PairedChange,
    change_of_classes,
    change_of_rows,
    change_of_units,
)
from service.numerics.moments import Units

Array = NDArray[Any]


def of_rows(gained: int, lost: int, n: int) -> PairedChange:
    """So many rows for the better and for the worse, each a unit."""
    values = np.repeat([1.0, -1.0, 0.0], [gained, lost, n - gained - lost])
    return change_of_rows(values, Units.rows(n))


def closed_form(gained: int, lost: int, n: int, level: float) -> tuple[float, float]:
    """Student's t, and scipy's exact intervals joined by the correlation of a multinomial."""
    p, q = gained / n, lost / n
    (gain_low, gain_high), (loss_low, loss_high) = (
        stats.binomtest(count, n).proportion_ci(level) for count in (gained, lost)
    )
    rho = -math.sqrt(p * q / ((1 - p) * (1 - q))) if 0 < p < 1 and 0 < q < 1 else 0.0

    def together(a: float, b: float) -> float:
        return math.sqrt(max(a * a + b * b - 2 * rho * a * b, 0))

    se = math.sqrt((p + q - (p - q) ** 2) / (n - 1))
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * se
    low = p - q - max(half, together(p - gain_low, loss_high - q))
    high = p - q + max(half, together(gain_high - p, q - loss_low))
    return max(low, -1), min(high, 1)


@pytest.mark.parametrize("level", [0.9, 0.95, 0.999])
@pytest.mark.parametrize(
    ("gained", "lost", "n"),
    [(0, 0, 100), (5, 0, 100), (3, 3, 50), (40, 10, 60), (30, 30, 60), (7, 0, 7), (300, 210, 1500)],
)
def test_independent_rows_have_the_closed_form(
    gained: int, lost: int, n: int, level: float
) -> None:
    found = of_rows(gained, lost, n).interval(level, "row")
    assert (found.low, found.high) == pytest.approx(closed_form(gained, lost, n, level), abs=1e-9)
    assert (found.method, found.unit, found.resamples) == ("jackknife_t+mover", "row", n)


def test_no_change_anywhere_has_width() -> None:
    """By hand: none of 100 gained and none lost leave 1 - .025^(1/100) on either side."""
    found = of_rows(0, 0, 100).interval(0.95, "row")
    assert (found.low, found.high) == pytest.approx((-0.036217, 0.036217), abs=1e-6)
    assert of_rows(0, 0, 100).p() == 1


@given(
    st.integers(5, 300).flatmap(
        lambda n: st.tuples(st.integers(0, n), st.integers(0, n), st.just(n))
    )
)
def test_p_is_the_level_at_which_the_interval_reaches_0(counts: tuple[int, int, int]) -> None:
    """From the interval alone: it holds 0 just above level 1 - p and leaves it out just below."""
    gained, lost, n = counts
    assume(gained + lost <= n)
    change = of_rows(gained, lost, n)
    p = change.p()
    assert 0 < p <= 1
    if p > 1e-12:
        held = change.interval(1 - p * (1 - 1e-3), "row")
        assert held.low <= 0 <= held.high
    if 1e-12 < p < 0.999:
        out = change.interval(1 - p * (1 + 1e-3), "row")
        assert out.low > 0 or out.high < 0
    values = np.repeat([1.0, -1.0, 0.0], [gained, lost, n - gained - lost])
    if values.std() > 0:
        assert p >= stats.ttest_1samp(values, 0).pvalue * (1 - 1e-9)


@pytest.mark.parametrize(("gained", "lost"), [(5, 0), (6, 1), (9, 2), (12, 4), (30, 12), (60, 40)])
def test_p_is_near_mcnemars_exact_one_where_few_rows_change(gained: int, lost: int) -> None:
    """Of 400 rows; the sign test of those that changed (scipy), which looks at nothing else."""
    p = of_rows(gained, lost, 400).p()
    exact = stats.binomtest(gained, gained + lost).pvalue
    assert 0.4 * exact < p < 1.5 * exact


def multinomial(n: int, p: float, q: float) -> list[tuple[int, int, float]]:
    """Each count of gains and of losses with its probability."""
    return [
        (a, b, float(stats.multinomial.pmf([a, b, n - a - b], n, [p, q, 1 - p - q])))
        for a in range(n + 1)
        for b in range(n + 1 - a)
    ]


@pytest.mark.parametrize("n", [8, 30])
@pytest.mark.parametrize(
    ("p", "q"), [(0.02, 0.0), (0.1, 0.0), (0.05, 0.05), (0.3, 0.1), (0.5, 0.45), (0.9, 0.02)]
)
def test_each_end_misses_the_truth_as_rarely_as_it_says(n: int, p: float, q: float) -> None:
    """Summed over all outcomes, not simulated: one-sided .025 on either side."""
    above = below = 0.0
    for gained, lost, probability in multinomial(n, p, q):
        if probability > 1e-12:
            found = of_rows(gained, lost, n).interval(0.95, "row")
            above += probability * (found.low > p - q + 1e-12)
            below += probability * (found.high < p - q - 1e-12)
    assert max(above, below) <= 0.025


def drawn(random: Any, groups: int, size: int, p: float, q: float, within: float) -> Array:
    """(groups, size) changes; a group copies one of its rows with the square root of `within`."""
    values = random.choice([1.0, -1.0, 0.0], p=[p, q, 1 - p - q], size=(groups, size))
    copied = random.random((groups, size)) < math.sqrt(within)
    own = random.choice([1.0, -1.0, 0.0], p=[p, q, 1 - p - q], size=(groups, 1))
    return np.asarray(np.where(copied, own, values))


@pytest.mark.parametrize(
    ("groups", "size", "p", "q", "within"),
    [(5, 12, 0.2, 0.1, 0.1), (20, 10, 0.05, 0.0, 0.5), (50, 10, 0.02, 0.0, 0.9),
     (50, 4, 0.2, 0.1, 0.3), (200, 5, 0.03, 0.0, 0.7)],
)  # fmt: skip
def test_groups_are_covered_however_alike_their_rows_are(
    groups: int, size: int, p: float, q: float, within: float
) -> None:
    """600 samples: no end misses more than one-sided .025 with its Monte Carlo error."""
    random = np.random.default_rng([groups, size])
    units = Units.groups(np.repeat(np.arange(groups), size))
    missed = np.zeros(2)
    for _ in range(600):
        values = drawn(random, groups, size, p, q, within).ravel()
        found = change_of_rows(values, units).interval(0.95, "group")
        missed += [found.high < p - q, found.low > p - q]
    assert missed.max() / 600 <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / 600)


def by_definition(values: Array, codes: Array, level: float) -> tuple[float, float]:
    """Gains and losses refitted without each group, scipy's quantiles, joined as independent errors."""
    names, tail = np.unique(codes), (1 - level) / 2
    parts = []
    for part in (np.maximum(values, 0), np.maximum(-values, 0)):
        without = np.array([part[codes != name].mean() for name in names])
        share, groups = part.mean(), len(names)
        variance = (groups - 1) / groups * ((without - without.mean()) ** 2).sum()
        some = sum((part[codes == name] > 0).any() for name in names)
        less = sum((part[codes == name] < 1).any() for name in names)
        trials = float(groups)
        if min(some, less) >= 2:
            ratio = stats.norm.ppf(tail) / stats.t.ppf(tail, min(some, less) - 1)
            trials = np.clip(share * (1 - share) / variance * ratio**2, groups, len(values))
        k = share * trials
        low = stats.beta.ppf(tail, k, trials - k + 1) if k > 0 else 0.0
        high = stats.beta.ppf(1 - tail, k + 1, trials - k) if k < trials else 1.0
        parts.append((share, low, high, without))
    (p, gain_low, gain_high, one), (q, loss_low, loss_high, other) = parts
    rho = np.corrcoef(one, other)[0, 1] if np.ptp(one) * np.ptp(other) else 0.0
    ends = []
    for a, b in ((p - gain_low, loss_high - q), (gain_high - p, q - loss_low)):
        ends.append(float(np.sqrt(a * a + b * b - 2 * rho * a * b)))
    return p - q - ends[0], p - q + ends[1]


@given(st.integers(0, 2**32 - 1), st.floats(0.5, 0.99))
def test_groups_have_the_interval_of_the_definition(seed: int, level: float) -> None:
    """Of any sizes, beside Student's t of the groups left out one by one."""
    random = np.random.default_rng(seed)
    codes = np.concatenate([np.arange(8), random.integers(8, size=40)])
    values = random.choice([1.0, -1.0, 0.0, 0.5], p=[0.15, 0.1, 0.7, 0.05], size=48)
    low, high = by_definition(values, codes, level)
    without = np.array([values[codes != group].mean() for group in range(8)])
    error = np.sqrt(7 / 8 * ((without - without.mean()) ** 2).sum())
    half = stats.t.ppf((1 + level) / 2, 7) * error
    corrected = values.mean() - 7 * (without.mean() - values.mean())
    found = change_of_rows(values, Units.groups(codes)).interval(level, "group")
    assert found.low == pytest.approx(min(low, min(values.mean(), corrected) - half), abs=1e-9)
    assert found.high == pytest.approx(max(high, max(values.mean(), corrected) + half), abs=1e-9)


def test_many_groups_leave_little_more_than_students_t() -> None:
    """Rows of 200 groups that change often: within a tenth of the t interval of the group means."""
    random = np.random.default_rng(3)
    values = drawn(random, 200, 5, 0.25, 0.15, 0.3)
    change = change_of_rows(values.ravel(), Units.groups(np.repeat(np.arange(200), 5)))
    found = change.interval(0.95, "group")
    low, high = stats.t.interval(0.95, 199, values.mean(), stats.sem(values.mean(axis=1)))
    assert found.low <= low
    assert high <= found.high
    assert found.high - found.low < 1.1 * (high - low)


def test_one_group_that_changes_says_nothing_of_the_rows_of_others() -> None:
    """By scipy: 10 of 500 rows gained, all in one of 50 groups, count as one in fifty."""
    values = np.zeros((50, 10))
    values[7] = 1
    change = change_of_rows(values.ravel(), Units.groups(np.repeat(np.arange(50), 10)))
    low, high = stats.binomtest(1, 50).proportion_ci(0.95)
    none = stats.binomtest(0, 50).proportion_ci(0.95).high
    found = change.interval(0.95, "group")
    assert found.high == pytest.approx(high)
    assert found.low == pytest.approx(0.02 - math.hypot(0.02 - low, none))


@given(st.integers(0, 2**32 - 1), st.integers(5, 12), st.integers(1, 4))
def test_exchanged_models_mirror_the_interval(seed: int, groups: int, size: int) -> None:
    random = np.random.default_rng(seed)
    values = random.choice([1.0, -1.0, 0.0, 0.25], size=groups * size)
    units = Units.groups(random.permutation(np.repeat(np.arange(groups), size)))
    one, other = (change_of_rows(sign * values, units) for sign in (1, -1))
    a, b = one.interval(0.9, "group"), other.interval(0.9, "group")
    assert (a.low, a.high) == pytest.approx((-b.high, -b.low), abs=1e-12)
    assert one.p() == pytest.approx(other.p(), rel=1e-6)
    assert a.low <= one.value <= a.high


@given(st.integers(0, 2**32 - 1))
def test_means_of_one_kind_agree(seed: int) -> None:
    """Equal groups: a mean over rows, over groups of their means, and over one class are the same."""
    random = np.random.default_rng(seed)
    values = random.choice([1.0, -1.0, 0.0, 0.5], size=36)
    codes = random.permutation(np.repeat(np.arange(12), 3))
    units = Units.groups(codes)
    found = [
        change_of_rows(values, units),
        change_of_units(values, units),
        change_of_classes(values, np.zeros(36, np.int64), codes),
    ]
    first = found[0].interval(0.95, "group")
    for other in found:
        interval = other.interval(0.95, "group")
        assert (interval.low, interval.high) == pytest.approx((first.low, first.high), abs=1e-9)
        assert other.gains.value - other.losses.value == pytest.approx(other.value, abs=1e-12)


def test_rows_without_a_value_take_no_part() -> None:
    values = np.array([1.0, 0.0, -1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    codes = np.array([0, 0, 1, 2, 2, 3, 4, 4])
    wider = np.concatenate([values, [np.nan, np.nan]])
    units, more = Units.groups(codes), Units.groups(np.concatenate([codes, [1, 5]]))
    for made in (change_of_rows, change_of_units):
        assert made(wider, more).interval(0.9, "group") == made(values, units).interval(
            0.9, "group"
        )


def test_a_rare_class_keeps_its_width_whatever_the_others_tell() -> None:
    """By scipy: 990 rows without a change beside 10 without leave what 20 rows leave, not 1,000."""
    codes = np.repeat([0, 1], [990, 10])
    found = change_of_classes(np.zeros(1000), codes, np.arange(1000)).interval(0.95, "row")
    assert found.high == pytest.approx(stats.binomtest(0, 20).proportion_ci(0.95).high)
    assert found.low == pytest.approx(-found.high)


def test_units_that_all_gain_alike_have_a_p() -> None:
    """By scipy: ten of ten rows gained; the t test has no spread to divide by."""
    change = of_rows(10, 0, 10)
    alpha = change.p()
    assert change.interval(0.95, "row").low > 0
    low = stats.binomtest(10, 10).proportion_ci(1 - alpha).low
    high = stats.binomtest(0, 10).proportion_ci(1 - alpha).high
    assert 1 - math.hypot(1 - low, high) == pytest.approx(0, abs=1e-9)
