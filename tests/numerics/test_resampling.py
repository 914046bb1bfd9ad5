"""Intervals against scipy, closed forms and simulated coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from service.numerics.moments import Units, deviations
from service.numerics.resampling import (
    clopper_pearson,
    jackknife_se,
    jackknife_t,
    share_interval,
    t_quantile,
)
from service.numerics.rows import Directions

levels = st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99])


@given(st.lists(st.floats(-100, 100), min_size=5, max_size=30), levels)
def test_the_jackknife_of_a_mean_is_students_t(values: list[float], level: float) -> None:
    """Closed form: for a mean it is the classical t interval, computed by scipy."""
    x = np.array(values)
    without = (x.sum() - x) / (len(x) - 1)
    error = stats.sem(x) if np.ptp(x) else 0.0
    scale = max(1e-12, abs(x).max() * 1e-12)
    assert jackknife_se(without) == pytest.approx(error, rel=1e-7, abs=scale)

    got = jackknife_t(float(x.mean()), without, level, "row")
    half = stats.t(df=len(x) - 1).isf((1 - level) / 2) * error
    assert got.low == pytest.approx(x.mean() - half, rel=1e-7, abs=1e3 * scale)
    assert got.high == pytest.approx(x.mean() + half, rel=1e-7, abs=1e3 * scale)
    assert (got.level, got.method, got.unit, got.resamples) == (
        level,
        "jackknife_t",
        "row",
        len(x),
    )


@pytest.mark.parametrize(("units", "t"), [(5, 2.7764451), (10, 2.2621572), (20, 2.0930241)])
def test_the_factor_is_the_tabulated_t_of_one_degree_less(units: int, t: float) -> None:
    """Printed table: t_.975 with 4, 9 and 19 degrees of freedom."""
    without = np.arange(units, dtype=np.float64)
    se = np.sqrt((units - 1) / units * (units * (units**2 - 1) / 12))  # sum of squares of 1..G
    got = jackknife_t(0.0, without, 0.95, "group")
    assert got.high == -got.low == pytest.approx(t * se, rel=1e-7)


@pytest.mark.parametrize("df", [1, 2, 4, 9, 19, 121, 2999, 10**6])
@pytest.mark.parametrize("p", [0.5, 0.75, 0.9, 0.975, 0.995, 0.99999])
def test_the_quantile_of_t_is_where_its_distribution_reaches_p(df: int, p: float) -> None:
    """Compared with scipy's distribution function, the other way round."""
    assert stats.t.cdf(t_quantile(p, df), df) == pytest.approx(p, rel=1e-12)


@pytest.mark.parametrize("magnitude", [1e-300, 1e-160, 1e160, 1e300])
def test_a_standard_error_has_no_preferred_magnitude(magnitude: float) -> None:
    """Closed form: it scales with the values, where their squares cannot be represented."""
    without = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    expected = magnitude * np.sqrt(4 / 5 * ((without - without.mean()) ** 2).sum())
    assert jackknife_se(magnitude * without) == pytest.approx(expected, rel=1e-13)
    assert jackknife_se(np.full(7, magnitude)) == pytest.approx(0, abs=1e-14 * magnitude)
    assert jackknife_se(np.full(7, 0.5)) == jackknife_se(np.zeros(7)) == 0


def test_the_jackknife_of_a_variance_has_its_textbook_form() -> None:
    """Closed form: n^2 (m4 - m2^2) / ((n-1)(n-2)^2) for the sample variance, refits by numpy."""
    x = np.random.default_rng(1).exponential(size=25)
    without = np.array([np.var(np.delete(x, i), ddof=1) for i in range(25)])
    m4, m2 = ((x - x.mean()) ** 4).mean(), x.var()
    assert jackknife_se(without) == pytest.approx(np.sqrt(625 * (m4 - m2**2) / (24 * 23**2)))


@given(st.integers(1, 400), st.floats(0, 1), levels)
def test_clopper_pearson_is_scipys_exact_interval(n: int, share: float, level: float) -> None:
    """Compared with scipy.stats.binomtest."""
    k = round(share * n)
    expected = stats.binomtest(k, n).proportion_ci(level, method="exact")
    assert clopper_pearson(k, n, level) == pytest.approx(
        (expected.low, expected.high), rel=1e-9, abs=1e-12
    )


@given(st.integers(1, 5000), levels)
def test_all_perfect_units_leave_the_closed_form(n: int, level: float) -> None:
    """Closed form: low = ((1-level)/2)^(1/n), high = 1; and mirrored for none."""
    low, high = clopper_pearson(n, n, level)
    assert (low, high) == (pytest.approx(((1 - level) / 2) ** (1 / n), rel=1e-10), 1)
    assert clopper_pearson(0, n, level) == (0, pytest.approx(1 - low, abs=1e-12))


@pytest.mark.parametrize(("threshold", "needed"), [(0.97, 122), (0.999, 3688)])
def test_so_many_perfect_groups_are_needed_for_a_threshold(threshold: float, needed: int) -> None:
    """Published counts; also ceil(ln .025 / ln threshold)."""
    assert clopper_pearson(needed, needed, 0.95)[0] >= threshold
    assert clopper_pearson(needed - 1, needed - 1, 0.95)[0] < threshold
    assert int(np.ceil(np.log(0.025) / np.log(threshold))) == needed
    perfect = share_interval(1.0, np.ones(needed), 1.0, 0.95, "group")
    assert (
        perfect.low >= threshold > share_interval(1.0, np.ones(needed - 1), 1.0, 0.95, "group").low
    )


@given(st.integers(1, 60), st.floats(0, 1), levels)
def test_fractional_totals_lie_between_the_whole_ones(n: int, share: float, level: float) -> None:
    """Compared with the whole totals on either side: bounds grow with the total."""
    total = share * n
    low, high = clopper_pearson(total, n, level)
    below, above = np.floor(total), np.ceil(total)
    assert clopper_pearson(below, n, level)[0] <= low + 1e-12
    assert low <= clopper_pearson(above, n, level)[0] + 1e-12
    assert clopper_pearson(below, n, level)[1] <= high + 1e-12
    assert high <= clopper_pearson(above, n, level)[1] + 1e-12
    assert 0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1


@given(st.lists(st.floats(0, 1), min_size=5, max_size=40), levels)
def test_a_share_gets_the_outer_envelope_inside_the_unit_interval(
    values: list[float], level: float
) -> None:
    """Compared with the two intervals it is made of, each made by scipy."""
    x = np.array(values)
    n, mean = len(x), float(x.mean())
    without = (x.sum() - x) / (n - 1)
    got = share_interval(mean, without, mean, level, "group")
    half = stats.t.ppf((1 + level) / 2, n - 1) * (stats.sem(x) if np.ptp(x) else 0.0)
    tail = (1 - level) / 2
    low = stats.beta(x.sum(), n - x.sum() + 1).ppf(tail) if x.sum() > 0 else 0.0
    high = stats.beta(x.sum() + 1, n - x.sum()).ppf(1 - tail) if x.sum() < n else 1.0
    assert got.low == pytest.approx(max(0, min(mean - half, low)), abs=1e-9)
    assert got.high == pytest.approx(min(1, max(mean + half, high)), abs=1e-9)
    assert got.method == "jackknife_t+clopper_pearson"
    assert (got.unit, got.resamples, got.level) == ("group", n, level)


def test_zero_observed_variance_never_means_zero_width() -> None:
    """Closed form: all of 100 perfect units give [.964, 1]."""
    got = share_interval(1.0, np.ones(100), 1.0, 0.95, "row")
    assert (round(got.low, 3), got.high) == (0.964, 1)
    assert got.low == pytest.approx(0.025**0.01)


@pytest.mark.parametrize("units", [10, 30])
def test_the_interval_of_a_mean_covers_at_its_level(units: int) -> None:
    """Simulated: 4,000 samples of group means with a known expectation; nominal .95."""
    rng = np.random.default_rng(20240301)
    inside = 0
    for x in rng.beta(5, 2, size=(4000, units)):
        got = jackknife_t(float(x.mean()), (x.sum() - x) / (units - 1), 0.95, "group")
        inside += got.low <= 5 / 7 <= got.high
    assert 0.93 <= inside / 4000 <= 0.965


def test_the_interval_of_a_dispersion_covers_at_its_level() -> None:
    """
    Simulated: V of 40 groups of three rows whose population value is known; nominal .95.

    Rows are unit vectors of a basis: a group prefers one of them, so E z and V = 1 - |E z|^2 are
    exact. Units are left out in closed form through the deviations.
    """
    rng = np.random.default_rng(20240302)
    shares = np.array([0.5, 0.25, 0.15, 0.1])
    mean = 0.6 * shares + 0.4 / 4
    truth = 1 - mean @ mean
    units = Units.groups(np.repeat(np.arange(40), 3))
    inside = 0
    for _ in range(1500):
        own = rng.choice(4, size=40, p=shares).repeat(3)
        chosen = np.where(rng.random(120) < 0.6, own, rng.integers(0, 4, 120))
        sums = deviations(Directions(np.eye(4)[chosen]), units, 1)
        left = 120 - sums.counts
        without = (sums.squares.sum() - sums.squares - sums.length2 / left) / left
        got = jackknife_t(float(sums.squares.sum() / 120), without, 0.95, "group")
        inside += got.low <= truth <= got.high
    assert 0.92 <= inside / 1500 <= 0.97
