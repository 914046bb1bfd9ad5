"""Euclidean neighbours by inner product against scipy's distances and exact integer arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial import KDTree

from service.numerics.euclidean import euclidean
from service.numerics.graph import nearest_graph, shared
from service.numerics.neighbours import silent

Array = NDArray[Any]


@pytest.mark.parametrize("offset", [0.0, 1e7])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e6])
def test_neighbours_are_those_of_a_tree(offset: float, spread: float) -> None:
    """Compared with scipy's k-d tree on rows without ties, at any offset and size."""
    x = spread * (np.random.default_rng(1).normal(size=(300, 7)) + offset)
    found, asking = euclidean(x)
    graph = nearest_graph(found, 6, 2, silent, asking)
    np.testing.assert_array_equal(graph.ids, KDTree(x).query(x, 7)[1][:, 1:])
    assert graph.unresolved == 0


def test_the_published_rows_at_an_offset_have_their_neighbours() -> None:
    """Published: row 0 of float32 rows at offset 4096 has the neighbours 6, 5 and 18."""
    r = np.random.default_rng(7)
    x = r.integers(-64, 65, size=(24, 16)) / 16.0
    x[:6] += 0.5
    found, asking = euclidean((x + 4096).astype(np.float32).astype(np.float64))
    graph = nearest_graph(found, 3, 1, silent, asking)
    assert graph.ids[0].tolist() == [6, 5, 18]
    squares = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    total = np.take_along_axis(squares, graph.ids.astype(np.int64), axis=1).sum()
    assert total == 8235.2421875


@given(n=st.integers(4, 40), k=st.integers(1, 6), distinct=st.integers(3, 40),
       seed=st.integers(0, 10**6))  # fmt: skip
def test_lists_are_right_up_to_rows_that_are_equally_far(
    n: int, k: int, distinct: int, seed: int
) -> None:
    """Compared with exact integer distances: every listed row is among the nearest, ties included."""
    rng = np.random.default_rng(seed)
    k = min(k, n - 1)
    x = rng.integers(-3, 4, size=(distinct, 3))[rng.integers(0, distinct, n)].astype(np.float64)
    found, asking = euclidean(x)
    graph = nearest_graph(found, k, 1, silent, asking)
    squares = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    np.fill_diagonal(squares, np.inf)
    last = np.sort(squares, axis=1)[:, [k - 1]]
    ids = graph.ids.astype(np.int64)
    assert (np.take_along_axis(squares, ids, axis=1) <= last).all()
    after = np.sort(squares, axis=1)[:, k]
    assert graph.unresolved == np.count_nonzero(after == last[:, 0])
    nearest = np.argsort(squares, axis=1, kind="stable")[:, :k].astype(np.int32)
    np.testing.assert_array_equal(shared(graph, nearest, found, asking, 1), k)
