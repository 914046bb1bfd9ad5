"""Agreement of lists against sets, scipy and cases worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from service.numerics.agreement import PERSISTENCE, compare


def compared(one: list[int], other: list[int], p: float) -> tuple[int, float, float]:
    shared, rbo, tau = np.empty(1, np.int64), np.empty(1), np.empty(1)
    compare(np.array([one], np.int32), np.array([other], np.int32), p, shared, rbo, tau)
    return int(shared[0]), float(rbo[0]), float(tau[0])


@pytest.mark.parametrize(
    ("one", "other", "shared", "rbo", "tau"),
    [
        ([5, 7], [5, 7], 2, 1.0, 1.0),
        ([1, 2], [3, 4], 0, 0.0, np.nan),
        ([1, 2], [2, 1], 2, 0.9, -1.0),  # (0/1) .9 + (2/2) .81, times .1/.9, and .81: .09 + .81
        ([1, 2], [1, 3], 1, 0.55, np.nan),  # (.9 + .405)/9 + .405
        ([1], [2], 0, 0.0, np.nan),
        ([4], [4], 1, 1.0, np.nan),
        ([1, 2, 3], [3, 2, 1], 3, 0.855, -1.0),  # (.81/2 + .729)/9 + .729
    ],
)
def test_small_lists_agree_as_worked_by_hand(
    one: list[int], other: list[int], shared: int, rbo: float, tau: float
) -> None:
    got = compared(one, other, PERSISTENCE)
    assert got[0] == shared
    assert got[1] == pytest.approx(rbo, abs=1e-14)
    assert got[2] == pytest.approx(tau, nan_ok=True)


@st.composite
def two_lists(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    k = draw(st.integers(1, 25))
    items = st.integers(0, draw(st.sampled_from([k, 2 * k, 10 * k])))
    several = st.lists(items, min_size=k, max_size=k, unique=True)
    return draw(several), draw(several)


@given(two_lists(), st.floats(0.01, 0.99))
def test_overlap_is_the_formula_over_sets_and_tau_is_scipys(
    lists: tuple[list[int], list[int]], p: float
) -> None:
    one, other = lists
    k = len(one)
    agreed = [len(set(one[:d]) & set(other[:d])) / d for d in range(1, k + 1)]
    wanted = agreed[-1] * p**k + (1 - p) / p * sum(a * p**d for d, a in enumerate(agreed, 1))
    shared, rbo, tau = compared(one, other, p)
    assert shared == len(set(one) & set(other))
    assert rbo == pytest.approx(wanted, rel=1e-12, abs=1e-15)
    kept = sorted(set(one) & set(other))
    if len(kept) < 2:
        assert np.isnan(tau)
    else:
        ranks = [[items.index(item) for item in kept] for items in (one, other)]
        assert tau == pytest.approx(kendalltau(*ranks).statistic, abs=1e-12)


@given(two_lists(), st.floats(0.01, 0.99))
def test_agreement_is_symmetric_and_one_with_itself(
    lists: tuple[list[int], list[int]], p: float
) -> None:
    one, other = lists
    assert compared(one, other, p) == pytest.approx(compared(other, one, p), nan_ok=True)
    shared, rbo, tau = compared(one, one, p)
    assert shared == len(one)
    assert rbo == pytest.approx(1, abs=1e-12)
    assert np.isnan(tau) if len(one) < 2 else tau == 1


@given(two_lists(), st.integers(0, 2**32 - 1))
def test_label_precision_moves_no_further_than_neighbours_are_replaced(
    lists: tuple[list[int], list[int]], seed: int
) -> None:
    one, other = lists
    wanted = np.random.default_rng(seed).random(max(*one, *other) + 1) < 0.5
    shared, _, _ = compared(one, other, PERSISTENCE)
    change = abs(int(wanted[one].sum()) - int(wanted[other].sum()))
    assert change <= len(one) - shared
