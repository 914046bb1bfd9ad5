"""Planning numbers against published ones, scipy's distributions and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from service.numerics.power import (
    correlation_for_groups,
    groups_for_correlation,
    groups_for_half_width,
    groups_for_perfect_share,
    groups_for_rule,
    permutations_for_p,
)
from service.numerics.resampling import clopper_pearson


@pytest.mark.parametrize(("rho", "groups"), [(0.5, 29), (0.3, 85), (-0.5, 29), (-0.3, 85)])
def test_a_correlation_needs_the_published_number_of_groups(rho: float, groups: int) -> None:
    """Published: .5 takes 29 groups and .3 takes 85, of either sign."""
    assert groups_for_correlation(rho) == groups


def test_twenty_groups_show_a_correlation_of_just_under_six_tenths() -> None:
    """Published: .59."""
    assert round(correlation_for_groups(20), 2) == 0.59


@given(st.floats(0.02, 0.98), st.sampled_from([0.01, 0.05, 0.1]), st.sampled_from([0.8, 0.9]))
def test_the_number_is_fishers_formula_rounded_half_up(
    rho: float, alpha: float, power: float
) -> None:
    """Compared with ((z_{1-a/2} + z_b) / artanh rho)^2 + 3 by scipy.stats.norm."""
    z = stats.norm.isf(alpha / 2) + stats.norm.ppf(power)
    exact = (z / np.arctanh(rho)) ** 2 + 3
    assert abs(groups_for_correlation(rho, alpha, power) - exact) <= 0.5 + 1e-9
    assert groups_for_correlation(rho, alpha, power) == math.floor(exact + 0.5)


@given(st.integers(4, 5000), st.sampled_from([0.01, 0.05]), st.sampled_from([0.8, 0.9]))
def test_the_correlation_of_so_many_groups_needs_so_many_groups(
    groups: int, alpha: float, power: float
) -> None:
    """Compared with the formula turned round: it takes back the same number."""
    rho = correlation_for_groups(groups, alpha, power)
    assert 0 < rho < 1
    if rho < 0.999:
        assert groups_for_correlation(rho, alpha, power) == groups


def test_the_published_numbers_have_their_power() -> None:
    """Simulated: 4,000 samples of 29 pairs with correlation .5; Fisher's test at .05 shows 80 %."""
    rng = np.random.default_rng(1)
    pairs = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], size=(4000, 29))
    x, y = pairs[..., 0], pairs[..., 1]
    x, y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    r = (x * y).sum(axis=1) / np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    found = np.mean(np.abs(np.arctanh(r)) * np.sqrt(26) > stats.norm.isf(0.025))
    assert found == pytest.approx(0.8, abs=0.025)


@given(
    st.integers(5, 200),
    st.floats(1e-4, 1),
    st.floats(1e-3, 1),
    st.sampled_from([0.8, 0.95, 0.99]),
)
def test_the_half_width_is_reached_there_and_not_before(
    groups: int, error: float, half_width: float, level: float
) -> None:
    """Compared with scipy's t interval at the number found and one fewer."""
    found = groups_for_half_width(groups, error, half_width, level)

    def width(count: int) -> float:
        return float(stats.t.ppf((1 + level) / 2, count - 1) * error * np.sqrt(groups / count))

    assert width(found) <= half_width * (1 + 1e-9)
    assert found == 2 or width(found - 1) > half_width * (1 - 1e-9)


def test_an_interval_as_wide_as_the_one_there_is_needs_the_groups_there_are() -> None:
    """Closed form: half of t_9 error with 10 groups is about four times as many."""
    t9 = stats.t.ppf(0.975, 9)
    assert groups_for_half_width(10, 0.1, t9 * 0.1, 0.95) == 10
    assert 30 < groups_for_half_width(10, 0.1, t9 * 0.05, 0.95) < 40


@given(st.floats(1e-6, 0.5))
def test_a_resolution_needs_its_permutations(resolution: float) -> None:
    """Compared with the definition 1/(B + 1) <= resolution, and not with one permutation fewer."""
    found = permutations_for_p(resolution)
    assert 1 / (found + 1) <= resolution * (1 + 1e-8)
    assert 1 / found > resolution * (1 - 1e-8)


@pytest.mark.parametrize(("resolution", "permutations"), [(0.05, 19), (0.01, 99), (0.001, 999)])
def test_round_resolutions_need_round_numbers(resolution: float, permutations: int) -> None:
    """Closed form: 19, 99 and 999."""
    assert permutations_for_p(resolution) == permutations


@given(
    st.integers(5, 500),
    st.floats(0.001, 0.3),
    st.floats(0.002, 0.5),
    st.sampled_from([0.025, 0.05]),
)
def test_a_rule_is_decided_by_the_groups_of_the_formula(
    groups: int, error: float, distance: float, alpha: float
) -> None:
    """Compared with ceil(G ((z_{1-a} + z_.8) SE / distance)^2) by scipy.stats.norm."""
    z = stats.norm.isf(alpha) + stats.norm.ppf(0.8)
    exact = groups * (z * error / distance) ** 2
    assert groups_for_rule(groups, error, distance, alpha) == math.ceil(exact * (1 - 1e-12))


@pytest.mark.parametrize(("threshold", "groups"), [(0.97, 122), (0.999, 3688)])
def test_a_share_near_one_needs_the_published_number_of_perfect_groups(
    threshold: float, groups: int
) -> None:
    """Published: 122 and 3,688; compared with the exact binomial bound at that number and one fewer."""
    assert groups_for_perfect_share(threshold, 0.025) == groups
    assert clopper_pearson(groups, groups, 0.95)[0] >= threshold
    assert clopper_pearson(groups - 1, groups - 1, 0.95)[0] < threshold
    assert stats.binomtest(groups, groups).proportion_ci(0.95).low >= threshold
