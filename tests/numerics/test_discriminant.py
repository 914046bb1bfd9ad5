"""The discriminant, against the definition of its covariance and a dense solution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.numerics.discriminant import Halves, discriminant
from service.numerics.moments import Units
from service.numerics.rows import Stored

Array = NDArray[Any]


def by_definition(x: Array, codes: Array) -> tuple[float, Array]:
    """Ledoit and Wolf's shrinkage from their sums over matrices, and the direction by a dense solve."""
    m, d = x.shape
    centres = np.stack([x[codes == side].mean(axis=0) for side in (0, 1)])
    errors = x - centres[codes]
    s = errors.T @ errors / m
    sphere = np.trace(s) / d * np.eye(d)
    b2 = sum(np.sum((np.outer(e, e) - s) ** 2) for e in errors) / m**2
    shrinkage = min(1.0, b2 / np.sum((s - sphere) ** 2))
    w = np.linalg.solve((1 - shrinkage) * s + shrinkage * sphere, centres[1] - centres[0])
    return shrinkage, w / np.linalg.norm(w)


@given(st.integers(0, 10**6), st.sampled_from([(40, 5), (12, 30), (200, 8), (9, 9)]))
def test_the_direction_is_that_of_the_definition(seed: int, shape: tuple[int, int]) -> None:
    """Sums of outer products and a dense solve; fewer rows than dimensions as well as more."""
    rng = np.random.default_rng(seed)
    m, d = shape
    x = rng.normal(size=shape) * np.geomspace(0.2, 3, d) + 50
    codes = (np.arange(m) % 3 == 0).astype(np.int64)
    x[codes == 1] += rng.normal(size=d)
    found = discriminant(Stored(x), np.arange(m), codes, 2)
    shrinkage, direction = by_definition(x, codes)
    assert found.shrinkage == pytest.approx(shrinkage, rel=1e-6)
    assert found.direction == pytest.approx(direction, abs=1e-7)
    scores = found.scores(Stored(x), np.arange(m), 1)
    assert scores - scores[0] == pytest.approx((x - x[0]) @ direction, abs=1e-6)


def test_blocks_and_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with each other; and with one block within rounding."""
    x = np.random.default_rng(2).normal(size=(60, 4))
    codes = np.repeat([0, 1], 30)
    whole = discriminant(Stored(x), np.arange(60), codes, 1)
    monkeypatch.setattr("service.numerics.rows.BLOCK_ELEMENTS", 28)
    cut = [discriminant(Stored(x), np.arange(60), codes, threads) for threads in (1, 3)]
    assert np.array_equal(cut[0].direction, cut[1].direction)
    assert cut[0].direction == pytest.approx(whole.direction)


def test_equal_rows_score_alike_wherever_they_stand() -> None:
    """Bit for bit, so that ranks see a tie."""
    x = np.random.default_rng(3).normal(size=(3000, 384))
    x[2990] = x[7]
    codes = np.arange(3000) % 2
    found = discriminant(Stored(x), np.arange(100), codes[:100], 1)
    scores = found.scores(Stored(x), np.arange(3000), 2)
    assert scores[7] == scores[2990]


@pytest.mark.parametrize("x", [np.ones((6, 3)), np.repeat(np.eye(2), 3, axis=0)])
def test_rows_without_spread_are_told_apart_by_their_means(x: Array) -> None:
    """Closed form: nothing varies inside, so the direction is that of the means, or none."""
    codes = np.repeat([0, 1], 3)
    found = discriminant(Stored(x), np.arange(6), codes, 1)
    gap = x[5] - x[0]
    assert found.direction == pytest.approx(gap / max(float(np.linalg.norm(gap)), 1e-300))


def test_halves_keep_units_whole_and_both_samples_on_either_side() -> None:
    """Sets; another seed deals otherwise."""
    owner = np.array([0, 1, 1, 0, 2, 3, 4, 4, 5, 6, 6, 6])
    units, sample = Units.groups(owner), np.array([0, 0, 0, 1, 1, 1, 1])
    dealt = set()
    for seed in range(20):
        halves = Halves.of(units, sample, seed)
        train, test = set(owner[halves.train]), set(owner[halves.test])
        assert not train & test
        assert train | test == set(range(7))
        assert [sum(sample[list(train)] == side) for side in (0, 1)] == [1, 2]
        assert sorted([*halves.train, *halves.test]) == list(range(12))
        dealt.add(tuple(halves.train))
    assert len(dealt) > 10
    assert np.array_equal(Halves.of(units, sample, 3).train, Halves.of(units, sample, 3).train)
