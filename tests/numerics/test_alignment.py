"""Orthogonal maps against scipy, known rotations, and splits against their definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes
from scipy.stats import ortho_group

from service.numerics.alignment import PairSplit, map_held_out, procrustes, similarity
from service.numerics.moments import Units
from service.numerics.rows import Directions, Stored

Array = NDArray[Any]


@pytest.mark.parametrize("elements", [1, 30, 1 << 20])
@given(n=st.integers(6, 40), d=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_the_map_is_scipys(elements: int, n: int, d: int, seed: int) -> None:
    """Compared with scipy.linalg.orthogonal_procrustes on the same unit rows."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, n, d))
    a, b = Directions(x), Directions(y)
    chosen = np.sort(rng.permutation(n)[: max(d, n // 2)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.numerics.alignment.BLOCK_ELEMENTS", elements)
        got = procrustes(a, b, chosen)
    expected, _ = orthogonal_procrustes(b.take(chosen), a.take(chosen))
    np.testing.assert_allclose(got, expected, atol=1e-9)
    np.testing.assert_allclose(got @ got.T, np.eye(d), atol=1e-13)


def test_a_rotation_is_undone_on_pairs_the_map_never_saw() -> None:
    """Closed form: b is a after a known rotation, so every held-out pair meets again."""
    x = np.random.default_rng(1).normal(size=(60, 7))
    turn = ortho_group.rvs(7, random_state=2)
    a, b = Directions(x), Directions(3 * x @ turn.T)
    split = PairSplit.of(Units.rows(60), 0, 60)
    held_a, held_b = map_held_out(a, b, split)
    np.testing.assert_allclose(procrustes(a, b, split.train), turn, atol=1e-12)
    rows = slice(0, len(split.test))
    np.testing.assert_allclose(held_b.take(rows), held_a.take(rows), atol=1e-12)
    np.testing.assert_allclose(held_a.take(rows), a.take(split.test), atol=0)


def test_fewer_pairs_than_dimensions_still_give_an_orthogonal_map() -> None:
    """Closed form: W W' = 1, and the fitted pairs meet when a rotation relates them."""
    x = np.random.default_rng(3).normal(size=(4, 9))
    turn = ortho_group.rvs(9, random_state=4)
    a, b = Directions(x), Directions(x @ turn.T)
    got = procrustes(a, b, slice(0, 4))
    np.testing.assert_allclose(got @ got.T, np.eye(9), atol=1e-13)
    np.testing.assert_allclose(b.take(slice(0, 4)) @ got, a.take(slice(0, 4)), atol=1e-12)


def test_no_orthogonal_map_does_better() -> None:
    """Compared with two thousand random orthogonal maps and small turns of the fitted one."""
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(2, 30, 4))
    a, b = Directions(x), Directions(y)
    u, v = a.take(slice(0, 30)), b.take(slice(0, 30))
    best = procrustes(a, b, slice(0, 30))

    def fit(turn: Array) -> float:
        return float(np.square(v @ turn - u).sum())

    assert all(fit(best) <= fit(t) for t in ortho_group.rvs(4, size=2000, random_state=rng))
    for i in range(4):
        for j in range(i):
            small = np.eye(4)
            small[[i, j], [i, j]] = np.cos(1e-3)
            small[i, j], small[j, i] = np.sin(1e-3), -np.sin(1e-3)
            assert fit(best) < fit(best @ small)


@given(
    codes=st.lists(st.integers(0, 6), min_size=2, max_size=60),
    most=st.integers(2, 80),
    seed=st.integers(0, 2**64 - 1),
)
def test_a_split_keeps_units_whole_and_apart(codes: list[int], most: int, seed: int) -> None:
    """Compared with the definition: two disjoint sets of whole units, about half of the rows each."""
    key = np.unique(codes, return_inverse=True)[1]
    units = Units.groups(key)
    split = PairSplit.of(units, seed, most)
    train, test = split.train.tolist(), split.test.tolist()

    assert train == sorted(set(train))
    assert test == sorted(set(test))
    assert not set(key[split.train]) & set(key[split.test])
    for part in (train, test):
        assert set(part) == set(np.flatnonzero(np.isin(key, key[part])).tolist())
    n, largest, wanted = len(key), int(units.counts.max()), min(len(key), most)
    assert wanted / 2 <= len(train) < wanted / 2 + largest
    assert wanted <= len(train) + len(test) < wanted + largest
    if most >= n:
        assert sorted(train + test) == list(range(n))


@given(n=st.integers(2, 80), most=st.integers(2, 100), seed=st.integers(0, 2**64 - 1))
def test_a_split_of_single_rows_is_even(n: int, most: int, seed: int) -> None:
    """Closed form: ceil(m/2) rows to fit on and floor(m/2) to judge by, m = min(n, most)."""
    split = PairSplit.of(Units.rows(n), seed, most)
    wanted = min(n, most)
    assert (len(split.train), len(split.test)) == (wanted - wanted // 2, wanted // 2)
    assert len({*split.train.tolist(), *split.test.tolist()}) == wanted


def test_splits_differ_by_seed_and_repeat_for_the_same_seed() -> None:
    """Compared with themselves."""
    units = Units.rows(100)
    first, again, other = (PairSplit.of(units, seed, 100) for seed in (1, 1, 2))
    assert first.train.tolist() == again.train.tolist()
    assert first.train.tolist() != other.train.tolist()


@pytest.mark.parametrize("elements", [1, 30, 1 << 20])
@given(n=st.integers(16, 40), d=st.integers(1, 6), e=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_rotation_scale_and_shift_are_scipys_on_rows_padded_with_zeros(
    elements: int, n: int, d: int, e: int, seed: int
) -> None:
    """Compared with scipy.linalg.orthogonal_procrustes, whose scale is of unscaled rows."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(0.5, 1, (n, d)), rng.normal(-0.2, 0.3, (n, e))
    train, test = np.arange(0, n, 2), np.arange(1, n, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.numerics.rows.BLOCK_ELEMENTS", elements)
        fitted = similarity(Stored(x), Stored(y), train)
        missed, around = fitted.residuals(Stored(x), Stored(y), test)
    wide = max(d, e)
    a = np.pad(x - x[train].mean(axis=0), ((0, 0), (0, wide - d)))
    b = np.pad(y - y[train].mean(axis=0), ((0, 0), (0, wide - e)))
    turn, total = orthogonal_procrustes(b[train], a[train])
    scale = total / np.square(b[train]).sum()
    assert fitted.varies
    assert fitted.scale == pytest.approx(scale)
    off = a[test] - scale * b[test] @ turn
    np.testing.assert_allclose(missed, np.square(off).sum(axis=1), atol=1e-9)
    np.testing.assert_allclose(around, np.square(a[test]).sum(axis=1))


def test_a_similarity_is_undone_on_rows_it_never_saw() -> None:
    """Closed form, also where the narrower side is the wider one without empty coordinates."""
    x = np.random.default_rng(7).normal(size=(50, 6))
    turned = np.pad(x, ((0, 0), (0, 3))) @ ortho_group.rvs(9, random_state=8)
    y = 0.2 * turned - 4
    train, test = np.arange(30), np.arange(30, 50)
    for a, b in ((x, y), (y, x)):
        fitted = similarity(Stored(a), Stored(b), train)
        missed, around = fitted.residuals(Stored(a), Stored(b), test)
        assert missed.max() < 1e-24 * max(1, around.max())
        assert fitted.scale == pytest.approx(5 if a is x else 0.2)


def test_rows_that_do_not_vary_have_no_map_worth_judging() -> None:
    x = np.random.default_rng(9).normal(size=(10, 3))
    same = np.full((10, 3), 0.1)
    assert not similarity(Stored(x), Stored(same), np.arange(10)).varies
    assert not similarity(Stored(same), Stored(x), np.arange(10)).varies
