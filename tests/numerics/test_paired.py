"""Matched pairs against scipy, statsmodels, simulation and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from statsmodels.stats.power import TTestPower

from service.numerics.paired import effect_for_pairs, paired_t, pairs_for_effect, power_of_pairs

Array = NDArray[np.float64]
values = st.lists(
    st.tuples(*[st.floats(-100, 100, allow_nan=False, width=32)] * 2), min_size=2, max_size=12
).map(lambda pairs: np.array(pairs, dtype=np.float64).T)


@given(pair=values, level=st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_mean_interval_and_p_are_those_of_scipy(pair: Array, level: float) -> None:
    """scipy.stats.ttest_rel and its own interval; d_z from numpy."""
    a, b = pair
    apart = a - b
    assume(np.std(apart) > 1e-6 * (1 + np.abs(pair).max()))
    found, expected = paired_t(a, b), stats.ttest_rel(a, b)
    assert found.mean == pytest.approx(apart.mean(), rel=1e-9, abs=1e-12)
    assert found.sd == pytest.approx(np.std(apart, ddof=1), rel=1e-9)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-7)
    limits = expected.confidence_interval(level)
    assert found.interval(level) == pytest.approx((limits.low, limits.high), rel=1e-8, abs=1e-9)
    assert found.effect == pytest.approx(expected.statistic / math.sqrt(len(a)), rel=1e-8, abs=1e-9)


@given(pair=values, seed=st.integers(0, 99), power=st.integers(-300, 300))
def test_order_units_and_sides_move_nothing_else(pair: Array, seed: int, power: int) -> None:
    """Bit for bit: another order of pairs, a power of two as unit, and the difference turned round."""
    a, b = pair
    found = paired_t(a, b)
    order = np.random.default_rng(seed).permutation(len(a))
    assert paired_t(a[order], b[order]) == found
    assert paired_t(b, a).p == found.p
    assert paired_t(b, a).mean == -found.mean
    scaled = paired_t(np.ldexp(a, power), np.ldexp(b, power))
    assert scaled.mean == math.ldexp(found.mean, power)
    assert scaled.p == found.p


@pytest.mark.parametrize("size", [1e-200, 1e-9, 1.0, 1e9, 1e149])
def test_rounding_is_no_spread(size: float) -> None:
    """.3 - .1 and .4 - .2 differ in the last bit: there is no error to test with, at any scale."""
    found = paired_t(size * np.array([0.3, 0.4, 0.5]), size * np.array([0.1, 0.2, 0.3]))
    assert (found.sd, found.p, found.effect, found.interval(0.95)) == (0, None, None, None)
    assert found.mean == pytest.approx(0.2 * size)
    assert paired_t(np.zeros(3), np.zeros(3)).p is None
    tiny = paired_t(size * np.array([1.0, 1 + 1e-9]), np.zeros(2))
    assert tiny.sd == pytest.approx(size * 1e-9 / math.sqrt(2), rel=1e-6)


@pytest.mark.parametrize(("effect", "pairs"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_pairs_for_an_effect_are_the_published_ones(effect: float, pairs: int) -> None:
    """G*Power's matched pairs, two-sided .05 at power .8, of Cohen's small, medium, large effect."""
    assert pairs_for_effect(effect, 0.05) == pairs
    assert pairs_for_effect(-effect, 0.05) == pairs


@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.5])
@pytest.mark.parametrize("pairs", [2, 3, 5, 20, 300])
@pytest.mark.parametrize("errors", [0.0, 0.5, 2.0, 4.0])
def test_power_is_that_of_statsmodels(alpha: float, pairs: int, errors: float) -> None:
    """An effect of so many standard errors; theirs is scipy's noncentral t, ours an integral."""
    effect = errors / math.sqrt(pairs)
    expected = TTestPower().power(effect, pairs, alpha)
    assert power_of_pairs(pairs, effect, alpha) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("pairs", "effect"), [(2, 30.0), (2, 11.55), (5, 1.682), (5, 100.0)])
def test_power_of_large_effects_is_what_simulation_finds(pairs: int, effect: float) -> None:
    """Where scipy's noncentral t is NaN too; within four Monte Carlo errors of 200,000 draws."""
    rng = np.random.default_rng(7)
    drawn = rng.normal(effect, 1, size=(200_000, pairs))
    t = drawn.mean(axis=1) / (drawn.std(axis=1, ddof=1) / math.sqrt(pairs))
    share = float((np.abs(t) > stats.t.ppf(0.975, pairs - 1)).mean())
    error = math.sqrt(max(share * (1 - share), 1e-5) / 200_000)
    assert power_of_pairs(pairs, effect, 0.05) == pytest.approx(share, abs=4 * error + 1e-9)


@pytest.mark.parametrize("pairs", [2, 3, 5, 50])
def test_the_effect_for_pairs_is_the_inverse(pairs: int) -> None:
    """Power is .8 there; half of it needs more pairs."""
    effect = effect_for_pairs(pairs, 0.05)
    assert power_of_pairs(pairs, effect, 0.05) == pytest.approx(0.8, abs=1e-9)
    fewer = pairs_for_effect(effect / 2, 0.05)
    assert fewer is not None
    assert fewer > pairs


def test_no_number_of_pairs_shows_nothing() -> None:
    """Above a million there is no answer."""
    assert pairs_for_effect(0.0, 0.05) is None
    assert pairs_for_effect(1e-6, 0.05) is None


def test_differences_of_the_smallest_size_have_a_p() -> None:
    """By hand: t does not change with the unit, down to where numbers end."""
    large = paired_t(np.array([2.0, 0, 4, 0]), np.zeros(4))
    small = paired_t(np.array([2.0, 0, 4, 0]) * 2.0**-1060, np.zeros(4))
    assert small.p == pytest.approx(large.p, rel=1e-3)
    tiny = paired_t(np.array([5e-324, 0, 1e-323, 0]), np.zeros(4))
    assert tiny.p is None or 0 < tiny.p <= 1
