"""The nearest-row graph against whole matrices, scipy's statistics and networks searched by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from service.errors import TooFewRows
from service.numerics.coded import as_given
from service.numerics.graph import (
    components,
    largest_share,
    mutual_pairs,
    nearest_graph,
    occurrences,
    shared,
    skewness,
)
from service.numerics.neighbours import silent

Array = NDArray[Any]


def lattice(n: int, distinct: int, seed: int) -> Array:
    """Few different rows of small integers: products are exact in every order of summation."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, size=(distinct, 4))[rng.integers(0, distinct, n)].astype(np.float64)
    x[~x.any(axis=1)] = 1
    return x


def products(x: Array) -> Array:
    """Exact inner products, the own one left out."""
    found = x @ x.T
    np.fill_diagonal(found, -np.inf)
    return np.asarray(found)


@given(
    n=st.integers(3, 40), k=st.integers(1, 9), distinct=st.integers(2, 40),
    seed=st.integers(0, 10**6),
)  # fmt: skip
def test_lists_gaps_and_ties_are_those_of_the_whole_matrix(
    n: int, k: int, distinct: int, seed: int
) -> None:
    """Compared with a stable sort of exact products, with many ties."""
    k = min(k, n - 1)
    x = lattice(n, distinct, seed)
    graph = nearest_graph(as_given(x, cosine=False), k, 1, silent)
    scores = products(x)
    order = np.argsort(-scores, axis=1, kind="stable")
    ordered = np.take_along_axis(scores, order, axis=1)
    np.testing.assert_array_equal(graph.ids, order[:, :k])
    np.testing.assert_array_equal(graph.scores, ordered[:, :k])
    gap = ordered[:, k - 1] - ordered[:, k] if k < n - 1 else np.full(n, np.inf)
    np.testing.assert_array_equal(graph.gap, gap)
    assert graph.tied == np.count_nonzero(gap == 0)
    assert graph.unresolved == graph.tied


def test_a_row_needs_others_to_list() -> None:
    """Closed form: k rows have k - 1 others each."""
    x = np.eye(4)
    assert nearest_graph(as_given(x, cosine=True), 3, 1, silent).ids.shape == (4, 3)
    with pytest.raises(TooFewRows, match="at least 5"):
        nearest_graph(as_given(x, cosine=True), 4, 1, silent)


@given(n=st.integers(4, 30), k=st.integers(1, 6), distinct=st.integers(2, 30),
       seed=st.integers(0, 10**6))  # fmt: skip
def test_shared_rows_score_no_less_than_the_last_place(
    n: int, k: int, distinct: int, seed: int
) -> None:
    """Compared with the rows that do so in the whole matrix: ties at the cutoff belong to the list."""
    k = min(k, n - 1)
    x = lattice(n, distinct, seed)
    rng = np.random.default_rng(seed)
    lists = np.array(
        [rng.permutation(np.delete(np.arange(n), i))[:k] for i in range(n)], dtype=np.int32
    )
    rows = as_given(x, cosine=False)
    graph = nearest_graph(rows, k, 1, silent)
    scores = products(x)
    last = -np.sort(-scores, axis=1)[:, k - 1]
    expected = (np.take_along_axis(scores, lists, axis=1) >= last[:, None]).sum(axis=1)
    np.testing.assert_array_equal(shared(graph, lists, rows, rows, 2), expected)
    np.testing.assert_array_equal(shared(graph, graph.ids, rows, rows, 1), k)


def test_what_is_left_out_is_not_shared() -> None:
    """Closed form: on a line each row's nearest by product are the largest."""
    rows = as_given(np.array([[1.0], [2.0], [3.0], [4.0]]), cosine=False)
    graph = nearest_graph(rows, 2, 1, silent)
    lists = np.array([[1, 2], [0, 2], [3, 0], [0, 1]], dtype=np.int32)
    np.testing.assert_array_equal(shared(graph, lists, rows, rows, 1), [1, 1, 1, 1])


@given(n=st.integers(2, 50), k=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_occurrences_count_lists_and_their_skewness_is_scipys(n: int, k: int, seed: int) -> None:
    """Compared with counting one by one and scipy.stats.skew."""
    ids = np.random.default_rng(seed).integers(0, n, size=(n, k)).astype(np.int32)
    found = occurrences(ids)
    assert found.tolist() == [int((ids == row).sum()) for row in range(n)]
    assert found.sum() == n * k
    if np.ptp(found) == 0:
        assert skewness(found) is None
    else:
        assert skewness(found) == pytest.approx(stats.skew(found), rel=1e-9, abs=1e-12)


def test_equal_counts_have_no_skewness() -> None:
    """Closed form: nothing varies."""
    assert skewness(np.full(7, 3)) is None


@pytest.mark.parametrize(("n", "few"), [(5, 1), (100, 1), (151, 2), (250, 2), (400, 4)])
def test_the_largest_share_is_that_of_the_top_percent(n: int, few: int) -> None:
    """Closed form: of 1..n, the largest `few`."""
    values = np.random.default_rng(1).permutation(n) + 1
    expected = sum(range(n - few + 1, n + 1)) / (n * (n + 1) / 2)
    assert largest_share(values, 1.0) == pytest.approx(expected)


@given(n=st.integers(1, 25), edges=st.integers(0, 30), seed=st.integers(0, 10**6))
def test_components_are_those_reached_by_walking(n: int, edges: int, seed: int) -> None:
    """Compared with spreading from row to row by hand."""
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, n, size=(2, edges))
    found = components(first, second, n)
    reached = np.eye(n, dtype=bool)
    reached[first, second] = reached[second, first] = True
    for _ in range(n):
        reached = reached @ reached
    np.testing.assert_array_equal(found[:, None] == found[None], reached)
    fresh = [i for i in range(n) if found[i] not in found[:i]]
    assert [int(found[i]) for i in fresh] == list(range(len(fresh)))


@given(n=st.integers(2, 25), k=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_mutual_pairs_list_each_other(n: int, k: int, seed: int) -> None:
    """Compared with both lists of every pair."""
    rng = np.random.default_rng(seed)
    k = min(k, n - 1)
    ids = np.array([rng.permutation(np.delete(np.arange(n), i))[:k] for i in range(n)], np.int32)
    expected = {(i, j) for i in range(n) for j in range(i + 1, n) if j in ids[i] and i in ids[j]}
    assert set(zip(*(part.tolist() for part in mutual_pairs(ids)), strict=True)) == expected
