"""Debiased CKA against the estimator written with n x n kernels, and what makes it what it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import ortho_group

from service.numerics.cka import cka, hsic
from service.numerics.moments import Units
from service.numerics.rows import Stored

Array = NDArray[Any]
seeds = st.integers(0, 10**6)


def song(x: Array, y: Array) -> float:
    """Equation 5 of Song et al. 2012, times n (n - 3), with whole kernel matrices."""
    n = len(x)
    k, l = x @ x.T, y @ y.T  # noqa: E741
    np.fill_diagonal(k, 0)
    np.fill_diagonal(l, 0)
    one = np.ones(n)
    ones = (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2))
    return float(np.trace(k @ l) + ones - 2 / (n - 2) * (one @ k @ l @ one))


def by_hand(x: Array, y: Array) -> float:
    return song(x, y) / np.sqrt(song(x, x) * song(y, y))


def units_of(codes: Array | None, n: int) -> tuple[Units, Array]:
    if codes is None:
        return Units.rows(n), np.arange(n)
    dense = np.unique(codes, return_inverse=True)[1]
    return Units.groups(dense), dense


def both(x: Array, y: Array, units: Units, threads: int = 1) -> tuple[float | None, Array]:
    a, b = Stored(x), Stored(y)
    parts = [hsic(one, other, units, threads) for one, other in ((a, b), (a, a), (b, b))]
    return cka(*parts)


@pytest.mark.parametrize("elements", [1, 40, 1 << 20])
@given(
    n=st.integers(9, 40),
    d=st.integers(1, 8),
    e=st.integers(1, 8),
    grouped=st.booleans(),
    threads=st.integers(1, 3),
    seed=seeds,
)
def test_value_and_every_deletion_are_those_of_whole_kernels(
    elements: int, n: int, d: int, e: int, grouped: bool, threads: int, seed: int
) -> None:
    """Units of one row, of a few and of more than a block; rows away from the origin."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0.7, 1, size=(n, d))
    y = rng.normal(size=(n, e)) + x[:, :1]
    units, codes = units_of(rng.integers(0, rng.integers(2, 9), n) if grouped else None, n)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("rows", "moments"):
            patch.setattr(f"service.numerics.{module}.BLOCK_ELEMENTS", elements)
        got, deleted = both(x, y, units, threads)
    assert got == pytest.approx(by_hand(x, y), rel=1e-9, abs=1e-9)
    for unit, value in enumerate(deleted):
        left = codes != unit
        if left.sum() < 4:
            assert np.isnan(value)
        elif d == 1 or e == 1 or left.sum() > 5:
            assert value == pytest.approx(by_hand(x[left], y[left]), rel=1e-7, abs=1e-7)


@given(seed=seeds, factor=st.floats(1e-3, 1), shift=st.floats(-1, 1))
def test_rotation_scale_and_shift_of_either_side_change_nothing(
    seed: int, factor: float, shift: float
) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(20, 5)), rng.normal(size=(20, 7))
    turn = ortho_group.rvs(5, random_state=seed)
    units = Units.rows(20)
    one, without = both(x, y, units)
    other, moved = both(factor * x @ turn + shift, y, units)
    assert other == pytest.approx(one, rel=1e-8, abs=1e-8)
    np.testing.assert_allclose(moved, without, rtol=1e-7, atol=1e-7)
    assert both(x, 2 * x @ turn + 1, units)[0] == pytest.approx(1)


def test_independent_features_have_a_mean_of_zero() -> None:
    """What debiasing is for: plain CKA of the same data is far from 0."""
    rng = np.random.default_rng(0)
    values, plain = [], []
    for _ in range(300):
        x, y = rng.normal(size=(2, 12, 20))
        found, _ = both(x, y, Units.rows(12))
        values.append(found)
        u, v = x - x.mean(axis=0), y - y.mean(axis=0)
        norms = np.linalg.norm(u.T @ u) * np.linalg.norm(v.T @ v)
        plain.append(np.linalg.norm(u.T @ v) ** 2 / norms)
    assert abs(np.mean(values)) < 4 * np.std(values) / np.sqrt(300)
    assert np.mean(plain) > 0.5


@pytest.mark.parametrize("rows", [np.full((8, 3), 0.1), 1 + 1e-14 * np.eye(8)])
def test_features_that_do_not_vary_have_none(rows: Array) -> None:
    other = np.random.default_rng(1).normal(size=(8, 2))
    found, deleted = both(rows, other, Units.rows(8))
    assert found is None
    assert not np.isfinite(deleted).any()


def test_one_row_apart_is_no_structure_and_two_are() -> None:
    """Closed form: no pair of rows has a product where one row alone is not zero."""
    x, y = np.zeros((9, 2)), np.random.default_rng(2).normal(size=(9, 3))
    x[4] = 1
    assert both(x, y, Units.rows(9))[0] is None
    x[5] = 1
    found, deleted = both(x, y, Units.rows(9))
    assert found is not None
    np.testing.assert_array_equal(~np.isfinite(deleted), np.isin(np.arange(9), [4, 5]))
