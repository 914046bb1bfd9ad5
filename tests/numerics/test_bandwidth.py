"""The median squared distance, against scipy's matrix of distances."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from service.numerics import bandwidth
from service.numerics.bandwidth import median_distance
from service.numerics.rows import Stored


def test_few_rows_take_all_pairs() -> None:
    """scipy's pdist."""
    x = np.random.default_rng(0).normal(size=(40, 6))
    found = median_distance(Stored(x), 3, 2)
    assert found.squared == pytest.approx(np.median(pdist(x, "sqeuclidean")))
    assert (found.pairs, found.exact) == (780, True)


def test_drawn_pairs_lie_at_the_middle_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank of the drawn median among all of scipy's, within four standard errors."""
    x = np.random.default_rng(1).normal(size=(300, 4))
    monkeypatch.setattr(bandwidth, "DRAWN_PAIRS", 4096)
    every = np.sort(pdist(x, "sqeuclidean"))
    drawn = {median_distance(Stored(x), seed, 1).squared for seed in range(3)}
    assert len(drawn) == 3
    for value in drawn:
        rank = np.searchsorted(every, value) / len(every)
        assert abs(rank - 0.5) < 4 * 0.5 / np.sqrt(4096)


def test_no_row_is_paired_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed form: on a basis every pair of different rows is at squared distance 2."""
    monkeypatch.setattr(bandwidth, "DRAWN_PAIRS", 2)
    found = [median_distance(Stored(np.eye(3)), seed, 1) for seed in range(30)]
    assert {one.squared for one in found} == {2.0}
    assert {(one.pairs, one.exact) for one in found} == {(2, False)}


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with one thread, over many blocks."""
    x = np.random.default_rng(2).normal(size=(60, 5))
    monkeypatch.setattr(bandwidth, "DRAWN_PAIRS", 512)
    monkeypatch.setattr(bandwidth, "BLOCK_ELEMENTS", 90)
    one, other = (median_distance(Stored(x), 5, threads) for threads in (1, 3))
    assert one == other


def test_equal_rows_have_no_bandwidth() -> None:
    """Closed form: distances come from differences, so they are exactly 0."""
    assert median_distance(Stored(np.full((30, 4), 0.1)), 0, 1).squared == 0
