"""Intervals against scipy, closed forms and simulated coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats._resampling import BootstrapResult

from service.numerics.moments import Units, deviations
from service.numerics.resampling import (
    bca,
    clopper_pearson,
    fisher_z,
    holm,
    jackknife_bias,
    jackknife_se,
    jackknife_t,
    share_interval,
    simultaneous,
    t_quantile,
    t_test,
    two_sample_jackknife_t,
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
    got = jackknife_t(float(without.mean()), without, 0.95, "group")
    half = (got.high - got.low) / 2
    assert half == pytest.approx(t * se, rel=1e-7)


@given(st.lists(st.floats(-100, 100), min_size=5, max_size=30), levels)
def test_an_interval_reaches_out_from_the_corrected_value_too(
    values: list[float], level: float
) -> None:
    """
    Closed form: the jackknife corrects the variance by n (ddof 0) to that by n - 1, exactly.

    The interval starts at the former, which is smaller, and ends at the latter.
    """
    x = np.array(values)
    n = len(x)
    without = np.array([np.var(np.delete(x, i)) for i in range(n)])
    scale = max(1e-9, np.square(x).max() * 1e-10)
    assert np.var(x) - jackknife_bias(float(np.var(x)), without) == pytest.approx(
        np.var(x, ddof=1), rel=1e-7, abs=n * scale
    )
    got = jackknife_t(float(np.var(x)), without, level, "row")
    half = stats.t.ppf((1 + level) / 2, n - 1) * np.sqrt((n - 1) * np.var(without))
    assert got.low == pytest.approx(np.var(x) - half, rel=1e-7, abs=1e3 * scale)
    assert got.high == pytest.approx(np.var(x, ddof=1) + half, rel=1e-7, abs=1e3 * scale)
    turned = jackknife_t(-float(np.var(x)), -without, level, "row")
    assert (turned.low, turned.high) == pytest.approx((-got.high, -got.low), rel=1e-12)


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


@given(st.integers(6, 40), st.integers(0, 10**6), levels)
def test_bca_is_scipys_on_the_same_resamples(n: int, seed: int, level: float) -> None:
    """Compared with scipy.stats.bootstrap(method="BCa") given our resamples, skew data."""
    rng = np.random.default_rng(seed)
    x = rng.exponential(size=n)
    resampled = np.var(x[rng.integers(0, n, size=(999, n))], axis=1)
    before = BootstrapResult(
        confidence_interval=None, bootstrap_distribution=resampled, standard_error=0.0
    )
    expected = stats.bootstrap(
        (x,), np.var, n_resamples=0, confidence_level=level, method="BCa", bootstrap_result=before
    ).confidence_interval
    deleted = np.array([np.var(np.delete(x, i)) for i in range(n)])
    got = bca(float(np.var(x)), resampled, deleted, level)
    assert got is not None
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert (got.method, got.level, got.unit, got.resamples) == ("bca", level, "group", 999)


def test_bca_without_bias_and_acceleration_is_the_percentile_interval() -> None:
    """Closed form: symmetric resamples and symmetric deleted values leave plain quantiles."""
    resampled = np.linspace(-1, 1, 2001)
    got = bca(0.0, resampled, np.array([-2.0, -1, 0, 1, 2]), 0.9)
    assert got is not None
    assert (got.low, got.high) == pytest.approx((-0.9, 0.9), abs=1e-12)


def test_bca_counts_resamples_that_equal_the_estimate_half() -> None:
    """Closed form: a third below, a third equal, a third above have no bias."""
    resampled = np.repeat([0.0, 1.0, 2.0], 100)
    got = bca(1.0, resampled, np.array([-1.0, 0, 1]), 0.5)
    assert got is not None
    assert (got.low, got.high) == (0, 2)


@pytest.mark.parametrize(
    ("resampled", "deleted"),
    [
        (np.ones(99), np.arange(5.0)),  # all above the estimate
        (-np.ones(99), np.arange(5.0)),
        (np.linspace(-1, 1, 99), np.ones(5)),
        (np.linspace(-1, 1, 99), np.array([1.0, 2.0, np.nan, 0.0])),
        (np.where(np.arange(99) % 9 == 0, np.nan, np.linspace(-1, 1, 99)), np.arange(5.0)),
    ],
)
def test_bca_needs_variation_and_defined_values(resampled: np.ndarray, deleted: np.ndarray) -> None:
    """Compared with the definition: an infinite bias, 0/0 acceleration, or undefined values."""
    assert bca(0.0, resampled, deleted, 0.95) is None


def test_bca_leaves_out_a_few_undefined_resamples() -> None:
    """Compared with itself on the defined resamples alone."""
    rng = np.random.default_rng(0)
    resampled = rng.gamma(3, size=1000)
    deleted = rng.gamma(3, size=12)
    without = bca(3.0, resampled[5:], deleted, 0.95)
    resampled[:5] = np.nan
    assert bca(3.0, resampled, deleted, 0.95) == without is not None


@given(st.integers(1, 5), st.integers(0, 10**6), levels)
def test_simultaneous_intervals_cover_the_share_of_resamples_they_promise(
    k: int, seed: int, level: float
) -> None:
    """Compared with a count: the largest |t| of that share of resamples lies inside all intervals."""
    rng = np.random.default_rng(seed)
    estimates, errors = rng.normal(size=k), rng.uniform(0.1, 2, size=k)
    mixing = rng.normal(size=(k, k))
    resampled = estimates + rng.normal(size=(801, k)) @ mixing
    got = simultaneous(estimates, resampled, errors, np.zeros(k), 9, level, "group")
    assert got is not None
    low, high = (np.array([getattr(i, end) for i in got]) for end in ("low", "high"))
    inside = ((resampled >= low - 1e-12) & (resampled <= high + 1e-12)).all(axis=1)
    promised = np.floor(800 * level + 1e-9) + 1
    alone = stats.t.ppf((1 + level) / 2, 8)
    critical = ((high - low) / 2 / errors)[0]
    assert critical >= alone * (1 - 1e-12)  # never narrower than one estimate alone
    assert inside.sum() == promised or (inside.sum() > promised and np.isclose(critical, alone))
    assert (high + low) / 2 == pytest.approx(estimates)
    assert np.ptp((high - low) / errors) < 1e-9  # one critical value for all
    assert {(i.method, i.level, i.unit, i.resamples) for i in got} == {
        ("max_t", level, "group", 801)
    }


def test_simultaneous_intervals_by_hand() -> None:
    """By hand: |t| of three resamples are (1, 2), (3, 1), (0, 2.5): maxima 2, 3, 2.5."""
    resampled = np.array([[1.0, 24], [3, 22], [0, 15]])
    values, errors = np.array([0.0, 20]), np.array([1.0, 2])
    got = simultaneous(values, resampled, errors, np.zeros(2), 50, 0.5, "group")
    assert got is not None
    assert [(i.low, i.high) for i in got] == [(-2.5, 2.5), (15, 25)]
    off = simultaneous(values, resampled, errors, np.array([-1.0, 3]), 50, 0.5, "group")
    assert off is not None
    assert [(i.low, i.high) for i in off] == [(-2.5, 3.5), (12, 25)]
    assert (
        simultaneous(values, resampled, np.array([1.0, 0]), np.zeros(2), 50, 0.5, "group") is None
    )


@given(st.floats(-3, 3), st.floats(0.01, 2), st.integers(5, 60))
def test_the_t_test_is_scipys_of_a_mean(mean: float, sd: float, n: int) -> None:
    """Compared with scipy.stats.ttest_1samp on a sample with that mean and spread."""
    x = np.linspace(-1, 1, n) * sd + mean
    p = t_test(float(x.mean()), float(stats.sem(x)), n)
    assert p == pytest.approx(stats.ttest_1samp(x, 0).pvalue, rel=1e-8)
    assert t_test(mean, 0.0, n) is None


def plain_holm(p_values: list[float]) -> list[float]:
    """Holm 1979 by its definition: smallest level at which each hypothesis falls."""
    m = len(p_values)
    order = sorted(range(m), key=lambda i: p_values[i])
    adjusted = [0.0] * m
    for rank, i in enumerate(order):
        adjusted[i] = min(1.0, max((m - r) * p_values[order[r]] for r in range(rank + 1)))
    return adjusted


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=12))
def test_holm_steps_down_over_all_that_was_asked(p_values: list[float | None]) -> None:
    """Compared with the definition, what could not be tested counting as p = 1."""
    expected = plain_holm([1.0 if p is None else p for p in p_values])
    wanted = [None if p is None else q for p, q in zip(p_values, expected, strict=True)]
    assert holm(p_values) == pytest.approx(wanted)


def test_holm_by_hand() -> None:
    """By hand: .01, .04, .03, .005 become .03, .06, .06, .02."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([None, 0.2]) == [None, 0.4]


@given(st.integers(5, 60), st.integers(0, 10**6), levels)
def test_fishers_interval_is_scipys_of_a_correlation(n: int, seed: int, level: float) -> None:
    """Compared with scipy.stats.pearsonr(...).confidence_interval."""
    x, y = np.random.default_rng(seed).normal(size=(2, n))
    found = stats.pearsonr(x, y)
    expected = found.confidence_interval(level)
    got = fisher_z(float(found.statistic), n, level, "group")
    assert got is not None
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert (got.method, got.level, got.unit, got.resamples) == ("fisher_z", level, "group", n)


def test_fishers_interval_needs_four_units_and_less_than_one() -> None:
    """Closed form: 1/sqrt(n - 3) and artanh 1 are infinite."""
    assert fisher_z(0.5, 3, 0.95, "group") is None
    assert fisher_z(1.0, 30, 0.95, "group") is None
    assert fisher_z(-1.0, 30, 0.95, "group") is None
    assert fisher_z(0.5, 4, 0.95, "group") is not None


@given(
    st.lists(st.floats(-100, 100), min_size=2, max_size=12),
    st.lists(st.floats(-100, 100), min_size=2, max_size=12),
    levels,
)
def test_the_two_sample_jackknife_of_a_difference_of_means_is_welchs_t(
    first: list[float], second: list[float], level: float
) -> None:
    """Closed form: scipy's confidence interval of the t test with unequal variances."""
    x, y = np.array(first), np.array(second)
    assume(np.ptp(x) > 1e-3 and np.ptp(y) > 1e-3)
    value = y.mean() - x.mean()
    without = (y.mean() - (x.sum() - x) / (len(x) - 1), (y.sum() - y) / (len(y) - 1) - x.mean())
    got = two_sample_jackknife_t(float(value), *without, level, "row")
    wanted = stats.ttest_ind(y, x, equal_var=False).confidence_interval(level)
    assert (got.low, got.high) == pytest.approx((wanted.low, wanted.high), rel=1e-6, abs=1e-9)
    assert (got.method, got.resamples) == ("two_sample_jackknife_t", len(x) + len(y))


def test_two_samples_without_spread_have_an_interval_without_width() -> None:
    """Closed form."""
    got = two_sample_jackknife_t(1.0, np.ones(5), np.ones(6), 0.95, "row")
    assert (got.low, got.high) == (1, 1)


def test_units_that_all_change_alike_have_no_p() -> None:
    """By hand: their spread is rounding, and a t of 1e15 would be no finding."""
    same = np.full(10, 1 / 3)
    deleted = (same.sum() - same) / 9
    assert t_test(1 / 3, jackknife_se(deleted + 1e-16 * np.arange(10)), 10) is None
    assert t_test(1 / 3, 1e-4, 10) is not None
