"""Shift and spread of two samples, against loops over pairs and refits without each unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.numerics.moments import Units
from service.numerics.partition import partition
from service.numerics.rows import Stored
from service.numerics.shift import Shift, Sums, shift, shift_without_each, sums

Array = NDArray[Any]


def by_loops(x: Array, codes: Array, owner: Array) -> tuple[float, float, float, float]:
    """distance2, both spreads and R2 from their definitions."""
    halves: list[list[float]] = [[], []]
    across = []
    for i in range(len(x)):
        for j in range(len(x)):
            apart = float(np.sum((x[i] - x[j]) ** 2))
            if codes[i] != codes[j]:
                across.append(apart)
            elif owner[i] != owner[j]:
                halves[codes[i]].append(apart / 2)
    spread = [float(np.mean(one)) if one else np.nan for one in halves]
    total = np.sum((x - x.mean(axis=0)) ** 2)
    within = sum(np.sum((x[codes == s] - x[codes == s].mean(axis=0)) ** 2) for s in (0, 1))
    return float(np.mean(across)) - sum(spread), *spread, float(1 - within / total)


def summed(x: Array, codes: Array, units: Units, threads: int = 1) -> Sums:
    parts = partition(Stored(x), Units.groups(codes), 1)
    return sums(Stored(x), parts, codes, units, threads)


def flat(found: Shift) -> Array:
    return np.array([found.distance2, *found.spread, found.r2])


def sample(seed: int, grouped: bool) -> tuple[Array, Array, Array, Units]:
    rng = np.random.default_rng(seed)
    n, m = rng.integers(4, 12, size=2)
    x = rng.normal(size=(n + m, 3)) * rng.uniform(0.1, 10) + 100 * rng.normal(size=3)
    codes = np.repeat([0, 1], [n, m])
    x[codes == 1] += rng.normal(size=3)
    if not grouped:
        return x, codes, np.arange(n + m), Units.rows(n + m)
    owner = np.concatenate([np.arange(n) % 3, 3 + np.arange(m) % 4])
    return x, codes, owner, Units.groups(owner)


@given(st.integers(0, 10**6), st.booleans())
def test_the_sums_are_those_over_all_pairs(seed: int, grouped: bool) -> None:
    """A double loop over rows; pairs of one unit count nowhere."""
    x, codes, owner, units = sample(seed, grouped)
    found = flat(shift(summed(x, codes, units)))
    scale = float(np.var(x, axis=0).sum())
    assert found == pytest.approx(by_loops(x, codes, owner), rel=1e-9, abs=1e-10 * scale)


@given(st.integers(0, 10**6), st.booleans())
def test_leaving_out_a_unit_is_a_loop_without_its_rows(seed: int, grouped: bool) -> None:
    """The same double loop without each unit in turn."""
    x, codes, owner, units = sample(seed, grouped)
    without = shift_without_each(summed(x, codes, units))
    scale = float(np.var(x, axis=0).sum())
    for unit in range(owner.max() + 1):
        kept = owner != unit
        wanted = by_loops(x[kept], codes[kept], owner[kept])
        got = [without.distance2[unit], *(one[unit] for one in without.spread), without.r2[unit]]
        assert got == pytest.approx(wanted, rel=1e-9, abs=1e-10 * scale)


@pytest.mark.parametrize("grouped", [True, False])
def test_blocks_threads_and_large_units_change_nothing(grouped: bool, small_blocks: Any) -> None:
    """Compared with one block: a unit of many blocks is summed piece by piece."""
    x, codes, _, units = sample(5, grouped)
    whole = summed(x, codes, units)
    small_blocks(6)
    pieces = [summed(x, codes, units, threads) for threads in (1, 3)]
    for name in ("squares", "length2", "along"):
        one, other = (getattr(found, name) for found in pieces)
        assert np.array_equal(one, other)
        assert one == pytest.approx(getattr(whole, name), rel=1e-9, abs=1e-9)


def test_the_spread_of_single_rows_is_the_trace_of_the_covariance() -> None:
    """numpy's cov."""
    x, codes, _, units = sample(8, False)
    found = shift(summed(x, codes, units))
    for side in (0, 1):
        covariance = np.cov(x[codes == side], rowvar=False)
        assert found.spread[side] == pytest.approx(np.trace(covariance))


def test_a_sample_of_one_unit_has_no_spread() -> None:
    """Closed form: there is no pair."""
    x = np.random.default_rng(0).normal(size=(6, 2))
    codes, owner = np.array([0, 0, 1, 1, 1, 1]), np.array([0, 0, 1, 1, 2, 2])
    found = shift(summed(x, codes, Units.groups(owner)))
    assert np.isnan(found.spread[0])
    assert np.isnan(found.distance2)
    assert found.spread[1] > 0
