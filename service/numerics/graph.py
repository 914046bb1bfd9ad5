"""The graph that leads from each row to its k nearest other rows, and its shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from service.errors import Fault, TooFewRows
from service.numerics import pairs
from service.numerics.coded import Coded, chunks
from service.numerics.neighbours import QUERY_BLOCK, Ids, Queries, Search, Step, lengths_of
from service.numerics.rows import Floats, ordered_map

Counts = NDArray[np.int64]

LISTED_ROWS = 1 << 16
"""Rows searched at a time: what a search lists beyond k is held for these only."""


@dataclass(frozen=True)
class Graph:
    """
    The k nearest other rows of each row, by score descending and row ascending.

    Attributes
    ----------
    ids : (n, k) int32
    scores : (n, k) float64
    gap : (n,) float64
        Score of the last place minus that of the first row left out.
    slack : (n,) float64
        Scores that differ by no more are within the rounding of float64.
    """

    ids: Ids
    scores: Floats
    gap: Floats
    slack: Floats

    @property
    def tied(self) -> int:
        """Rows whose last neighbour scores exactly as the first row left out."""
        return int(np.count_nonzero(self.gap == 0))

    @property
    def unresolved(self) -> int:
        """Rows where the two are within rounding, ties among them."""
        return int(np.count_nonzero(self.gap <= self.slack))


def nearest_graph(
    rows: Coded, k: int, threads: int, step: Step, asking: Coded | None = None
) -> Graph:
    """
    The exact graph of all rows; see `Search`.

    Parameters
    ----------
    rows : Coded
    k : int
    threads : int
    step : progress, called with rows searched and all of them
    asking : Coded or None
        The rows as they ask, where they are read another way than they are found.

    Notes
    -----
    Time O(n^2 d), memory O(n k) and the lists of `LISTED_ROWS` rows.
    """
    if rows.n <= k:
        raise TooFewRows(
            f"There are {rows.n} rows; {k} neighbours of each need at least {k + 1}.",
            [Fault(pointer="/params/k", message=f"at most {rows.n - 1} for these rows")],
        )
    search, queries = Search(rows, threads), Queries(asking or rows, own=True)
    ids, scores = np.empty((rows.n, k), np.int32), np.empty((rows.n, k))
    gap, slack = np.empty(rows.n), np.empty(rows.n)
    for part in chunks(rows.n, LISTED_ROWS):

        def searched(done: int, total: int, part: slice = part) -> None:
            step(part.start + (part.stop - part.start) * done // total, rows.n)

        which = np.arange(part.start, part.stop)
        found = search.nearest(queries, which, k, searched)
        ids[part], scores[part], gap[part] = found.ids, found.scores, found.gap
        slack[part] = search.tau(lengths_of(queries.rows, which))
    return Graph(ids, scores, gap, slack)


def shared(graph: Graph, ids: Ids, rows: Coded, asking: Coded, threads: int) -> Counts:
    """
    How many listed rows belong to the k nearest of a graph, (n,).

    A row that scores as the last place does, up to rounding, belongs to them: a tie may be listed in
    any order.

    Parameters
    ----------
    graph : Graph of `rows` and `asking`
    ids : (n, k) the lists
    """
    counts = np.empty(len(ids), np.int64)

    def count(part: slice) -> None:
        scores = np.empty(ids[part].shape)
        pairs.score_listed(
            asking.take(part), asking.divisors[part], ids[part], *rows.form, rows.divisors, scores
        )
        last = graph.scores[part, -1] - graph.slack[part]
        counts[part] = (scores >= last[:, None]).sum(axis=1)

    for _ in ordered_map(count, chunks(len(ids), QUERY_BLOCK), threads):
        pass
    return counts


def occurrences(ids: Ids) -> Counts:
    """In how many lists each row stands, (n,)."""
    return np.bincount(ids.ravel(), minlength=len(ids))


def skewness(values: Counts) -> float | None:
    """Third central moment over the second to 3/2, both ddof 0; None where nothing varies."""
    apart = values - values.mean()
    variance = float(np.square(apart).mean())
    return None if variance == 0 else float((apart**3).mean()) / variance**1.5


def largest_share(values: Counts, percent: float) -> float:
    """Share of the sum that the largest `percent` of the values hold, at least one of them."""
    few = max(1, round(len(values) * percent / 100))
    return float(np.sort(values)[-few:].sum() / values.sum())


def components(first: NDArray[np.integer], second: NDArray[np.integer], n: int) -> Counts:
    """The component of each of n rows, (n,), numbered by first appearance, where pairs are joined."""
    joined = sparse.coo_array((np.ones(len(first), np.int8), (first, second)), shape=(n, n))
    _, component = sparse.csgraph.connected_components(joined, directed=False)
    _, at, found = np.unique(component, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(at))[found])


def mutual_pairs(ids: Ids) -> tuple[Counts, Counts]:
    """Pairs i < j of rows that list each other."""
    n, k = ids.shape
    i, j = np.repeat(np.arange(n), k), ids.ravel().astype(np.int64)
    low, high = np.minimum(i, j), np.maximum(i, j)
    both, times = np.unique(low * n + high, return_counts=True)
    return both[times == 2] // n, both[times == 2] % n
