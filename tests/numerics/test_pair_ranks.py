"""Rank correlation of pairs against scipy, pairs against their definition, drawn pairs against all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from service.numerics import pair_ranks
from service.numerics.coded import as_given
from service.numerics.moments import Units
from service.numerics.pair_ranks import LeftOut, Pairs, ranks, sampling_error, spearman

Array = NDArray[Any]
seeds = st.integers(0, 10**6)


def cosines(x: Array, pairs: Pairs) -> Array:
    """Cosines of listed pairs, equal ones made equal."""
    z = x / np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(np.round((z @ z.T)[pairs.first, pairs.second], 11))


def made(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Two models with ties: rows that repeat, and rows with few values."""
    x = rng.normal(size=(n, 6))
    x[n // 2 : n // 2 + 2] = x[:2]
    y = rng.integers(-1, 2, size=(n, 3)) + 0.0
    y[~y.any(axis=1)] = 1
    return x, y + (rng.random() < 0.5) * 0.3 * x[:, :3]


@given(n=st.integers(2, 40))
def test_all_pairs_are_those_above_the_diagonal(n: int) -> None:
    """Compared with numpy."""
    pairs = Pairs.of(n, 0)
    first, second = np.triu_indices(n, 1)
    assert pairs.exact
    np.testing.assert_array_equal(pairs.first, first)
    np.testing.assert_array_equal(pairs.second, second)


@given(n=st.integers(5, 26), grouped=st.booleans(), threads=st.integers(1, 3), seed=seeds)
def test_correlation_and_every_deletion_are_scipys(
    n: int, grouped: bool, threads: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x, y = made(rng, n)
    codes = np.unique(rng.integers(0, 6, n) if grouped else np.arange(n), return_inverse=True)[1]
    units = Units.groups(codes) if grouped else Units.rows(n)
    pairs = Pairs.of(n, 0)
    s, t = cosines(x, pairs), cosines(y, pairs)
    found = [ranks(as_given(rows, cosine=True), pairs, threads) for rows in (x, y)]
    for got, scores in zip(found, (s, t), strict=True):
        np.testing.assert_array_equal(got, 2 * stats.rankdata(scores))
    value, deleted = spearman(*found, LeftOut.of(units, pairs, seed), 2)
    if np.ptp(s) > 0 and np.ptp(t) > 0:
        assert value == pytest.approx(stats.spearmanr(s, t).statistic, abs=1e-12)
    assert len(deleted) == len(units.counts)
    for unit, got in enumerate(deleted):
        left = (codes[pairs.first] != unit) & (codes[pairs.second] != unit)
        if left.sum() < 2 or np.ptp(s[left]) == 0 or np.ptp(t[left]) == 0:
            assert np.isnan(got)
        else:
            wanted = stats.spearmanr(s[left], t[left]).statistic
            assert got == pytest.approx(wanted, abs=1e-12)


@given(groups=st.integers(1, 200), seed=seeds)
def test_many_units_are_left_out_in_blocks_of_equal_number(groups: int, seed: int) -> None:
    """Closed form: whole units, at most 32 blocks, whose numbers of units differ by one at most."""
    codes = np.repeat(np.arange(groups), 2)
    pairs = Pairs.of(len(codes), 0)
    left_out = LeftOut.of(Units.groups(codes), pairs, seed)
    block = np.zeros(len(codes), int)
    block[pairs.first], block[pairs.second] = left_out.first, left_out.second
    np.testing.assert_array_equal(block[::2], block[1::2])
    sizes = np.bincount(block[::2])
    assert len(sizes) == left_out.count == min(groups, 32)
    assert np.ptp(sizes) <= 1
    if groups <= 32:
        np.testing.assert_array_equal(block[::2], np.arange(groups))


def test_drawn_pairs_are_of_different_rows_and_all_are_as_likely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chi-squared over the 30 ordered pairs of six rows."""
    monkeypatch.setattr(pair_ranks, "EXACT_ROWS", 5)
    pairs = Pairs.of(6, 3)
    assert not pairs.exact
    assert len(pairs) == 1 << 20
    counts = np.zeros((6, 6))
    np.add.at(counts, (pairs.first, pairs.second), 1)
    assert not counts.diagonal().any()
    assert stats.chisquare(counts[~np.eye(6, dtype=bool)]).pvalue > 1e-3


def test_the_error_of_drawn_pairs_is_the_spread_over_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with 40 draws and with the correlation of all pairs."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(300, 4))
    models = [as_given(rows, cosine=True) for rows in (x, x + rng.normal(size=x.shape))]
    pairs = Pairs.of(300, 0)
    no_units = LeftOut(np.zeros(len(pairs), np.uint8), np.zeros(len(pairs), np.uint8), 0)
    exact = [ranks(rows, pairs, 1) for rows in models]
    wanted, _ = spearman(*exact, no_units, 2)
    monkeypatch.setattr(pair_ranks, "EXACT_ROWS", 5)
    monkeypatch.setattr(pair_ranks, "SAMPLED_PAIRS", 1 << 12)
    values, errors = [], []
    for seed in range(40):
        drawn = Pairs.of(300, seed)
        found = [ranks(rows, drawn, 1) for rows in models]
        zeros = np.zeros(len(drawn), np.uint8)
        values.append(spearman(*found, LeftOut(zeros, zeros, 0), 2)[0])
        errors.append(sampling_error(*found))
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.35)
    assert abs(np.mean(values) - wanted) < 4 * np.std(values) / np.sqrt(40)


def test_equal_cosines_tie_however_they_were_rounded() -> None:
    """Pairs of equal rows score 1 within rounding; their ranks are one."""
    x = np.repeat(np.random.default_rng(6).normal(size=(1, 50)), 4, axis=0)
    x *= np.array([[1.0], [1 / 3], [7.0], [0.1]])
    pairs = Pairs.of(4, 0)
    assert len(set(ranks(as_given(x, cosine=True), pairs, 1))) == 1
