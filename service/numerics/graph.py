"""The graph that leads from each row to its k nearest other rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.errors import Fault, TooFewRows
from service.numerics.coded import Coded, chunks
from service.numerics.neighbours import Ids, Queries, Search, Step
from service.numerics.rows import Floats

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
    tied : int
        Rows whose last neighbour scores exactly as the first row left out.
    unresolved : int
        Rows where the two are within the rounding of float64, ties among them.
    """

    ids: Ids
    scores: Floats
    tied: int
    unresolved: int


def nearest_graph(rows: Coded, k: int, threads: int, step: Step) -> Graph:
    """
    The exact graph of all rows; see `Search`.

    Parameters
    ----------
    rows : Coded
    k : int
    threads : int
    step : progress, called with rows searched and all of them

    Notes
    -----
    Time O(n^2 d), memory O(n k) and the lists of `LISTED_ROWS` rows.
    """
    if rows.n <= k:
        raise TooFewRows(
            f"There are {rows.n} rows; {k} neighbours of each need at least {k + 1}.",
            [Fault(pointer="/params/k", message=f"at most {rows.n - 1} for these rows")],
        )
    search, queries = Search(rows, threads), Queries(rows, own=True)
    ids, scores = np.empty((rows.n, k), np.int32), np.empty((rows.n, k))
    tied = unresolved = 0
    for part in chunks(rows.n, LISTED_ROWS):

        def searched(done: int, total: int, part: slice = part) -> None:
            step(part.start + (part.stop - part.start) * done // total, rows.n)

        found = search.nearest(queries, np.arange(part.start, part.stop), k, searched)
        ids[part], scores[part] = found.ids, found.scores
        tied += int(np.count_nonzero(found.gap == 0))
        within = found.gap <= search.tau(search.norms[part])
        unresolved += int(np.count_nonzero(within))
    return Graph(ids, scores, tied, unresolved)
