"""Standings of relevant rows against the whole matrix of exact scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.numerics import standings as module
from service.numerics.coded import as_given
from service.numerics.neighbours import Queries, Search
from service.numerics.standings import Relevant, all_scores, standings

from .per_pair import lanes

Array = NDArray[Any]


def exact(queries: Array, gallery: Array, cosine: bool) -> Array:
    """Every score in the stated order of summation."""
    q, g = queries.astype(np.float64), gallery.astype(np.float64)
    products = lanes(q[:, None], g[None])
    if not cosine:
        return products
    lengths = [np.sqrt(lanes(rows, rows)) for rows in (q, g)]
    return np.asarray(products / np.multiply.outer(*lengths))


def agree(
    queries: Array, gallery: Array, relevant: list[list[int]], depth: int, cosine: bool
) -> None:
    """Counts, ties and lists equal those of sorting the whole matrix."""
    search = Search(as_given(gallery, cosine=cosine), 1)
    asked = Queries(as_given(queries, cosine=cosine), own=False)
    starts = np.cumsum([0, *map(len, relevant)])
    rows = np.array([row for some in relevant for row in some], np.int64)
    found = standings(search, asked, np.arange(len(queries)), Relevant(starts, rows), depth)
    scores = exact(queries, gallery, cosine)
    for i, some in enumerate(relevant):
        levels = sorted({scores[i, j] for j in some}, reverse=True)
        here = slice(found.starts[i], found.starts[i + 1])
        assert found.above[here].tolist() == [(scores[i] > level).sum() for level in levels]
        assert found.tied[here].tolist() == [(scores[i] == level).sum() for level in levels]
        assert found.relevant[here].tolist() == [
            sum(scores[i, j] == level for j in some) for level in levels
        ]
        mine = slice(starts[i], starts[i + 1])
        assert found.scores[mine].tolist() == [scores[i, j] for j in some]
        assert (found.tie[mine] - found.starts[i]).tolist() == [
            levels.index(scores[i, j]) for j in some
        ]
        others = [j for j in range(len(gallery)) if j not in some]
        others.sort(key=lambda j: (-scores[i, j], j))
        wanted = others[:depth]
        assert found.ids[i].tolist() == wanted + [-1] * (depth - len(wanted))
        assert found.best[i, : len(wanted)].tolist() == [scores[i, j] for j in wanted]
        assert all_scores(search.rows, asked, i).tolist() == scores[i].tolist()


def some_of(random: np.random.Generator, m: int, n: int, most: int) -> list[list[int]]:
    return [
        sorted(random.choice(n, size=random.integers(1, most + 1), replace=False).tolist())
        for _ in range(m)
    ]


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8"])
def test_counts_and_lists_are_those_of_the_whole_matrix(
    dtype: str, cosine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over many tiles and blocks of queries."""
    monkeypatch.setattr(module, "QUERIES", 7)
    monkeypatch.setattr(module, "TILE", 50)
    random = np.random.default_rng(3)
    gallery = (4 * random.normal(0.3, 1, size=(230, 9))).astype(dtype)
    queries = (4 * random.normal(0.3, 1, size=(20, 9))).astype(dtype)
    gallery[np.abs(gallery).max(axis=1) == 0] = 1
    queries[np.abs(queries).max(axis=1) == 0] = 1
    gallery[10:30] = gallery[40:60]  # equal rows
    agree(queries, gallery, some_of(random, 20, 230, 12), 11, cosine)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), noise=st.sampled_from([0.0, 1e-16, 1e-12, 1e-8, 1e-7, 1e-5]))
def test_scores_that_float32_cannot_tell_apart_are_decided(seed: int, noise: float) -> None:
    """Rows nearly all alike: every comparison lies within the rounding of float32."""
    random = np.random.default_rng(seed)
    gallery = random.normal(size=6) + noise * random.normal(size=(80, 6))
    queries = gallery[:3] + noise * random.normal(size=(3, 6))
    agree(queries, gallery, some_of(random, 3, 80, 4), 5, cosine=True)


@pytest.mark.parametrize("offset", [0, 10, 1000])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_a_common_offset_or_another_unit_changes_nothing(offset: float, size: float) -> None:
    """Rows with a mean far longer than their spread, very short, and very long."""
    random = np.random.default_rng(5)
    gallery = size * (offset + random.normal(size=(150, 8)))
    queries = size * (offset + random.normal(size=(6, 8)))
    for cosine in (True, False):
        agree(queries, gallery, some_of(random, 6, 150, 5), 7, cosine)


def test_fewer_other_rows_than_asked_for_are_all_listed() -> None:
    """Up to a query for which everything is relevant."""
    random = np.random.default_rng(6)
    gallery, queries = random.normal(size=(9, 4)), random.normal(size=(3, 4))
    agree(queries, gallery, [[0], list(range(9)), [1, 2, 8]], 12, cosine=True)


def test_float32_decides_most_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its bound every pair is scored in float64; the counts are the same, and slower."""
    random = np.random.default_rng(7)
    gallery, queries = random.normal(size=(400, 16)), random.normal(size=(5, 16))
    relevant = some_of(random, 5, 400, 3)
    agree(queries, gallery, relevant, 5, cosine=True)
    monkeypatch.setattr("service.numerics.neighbours.FLOAT32", 1e-3)
    agree(queries, gallery, relevant, 5, cosine=True)
