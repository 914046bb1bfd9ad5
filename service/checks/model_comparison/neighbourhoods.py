"""The neighbours of each row in two models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.numerics.coded import Coded, chunks
from service.numerics.neighbours import Ids, Queries, Search
from service.numerics.rows import Floats, ordered_map

BLOCK = 1 << 22
BATCH = 1 << 16


@dataclass(frozen=True)
class Neighbourhoods:
    """
    Exact neighbours of every row among the others.

    Attributes
    ----------
    ids : (n, k) int32
    reciprocal : (n, k) bool
        The neighbour lists the row, too.
    unresolved : int
        Rows with a tie after the last place.
    """

    ids: Ids
    reciprocal: NDArray[np.bool_]
    unresolved: int


@dataclass(frozen=True)
class Agreement:
    """
    What the sets of neighbours of each row share, (n,) each.

    Attributes
    ----------
    shared : neighbours in both models
    mutual : reciprocal neighbours in both over those in either; NaN without any
    """

    shared: NDArray[np.int64]
    mutual: Floats


def neighbourhoods(
    rows: Coded, k: int, threads: int, step: Callable[[int, int], None]
) -> Neighbourhoods:
    """Time of one exact search of n rows among n; memory O(n k)."""
    search, n = Search(rows, threads), rows.n
    queries = Queries(rows, own=True)
    ids, unresolved = np.empty((n, k), np.int32), 0
    batches = list(chunks(n, BATCH))
    for number, part in enumerate(batches):

        def tell(done: int, total: int, before: int = number) -> None:
            step(before * total + done, len(batches) * total)

        which = np.arange(part.start, part.stop)
        found = search.nearest(queries, which, k, tell)
        ids[part] = found.ids
        unresolved += int((found.gap <= search.tau(search.norms[part])).sum())
    reciprocal = np.empty((n, k), bool)

    def mark(part: slice) -> None:
        own = np.arange(part.start, part.stop)[:, None, None]
        reciprocal[part] = (ids[ids[part]] == own).any(axis=2)

    _by_block(mark, n, k, threads)
    return Neighbourhoods(ids, reciprocal, unresolved)


def agreement(one: Neighbourhoods, other: Neighbourhoods, threads: int) -> Agreement:
    """Time O(n k^2), memory O(n) and a block."""
    n, k = one.ids.shape
    shared, mutual = np.empty(n, np.int64), np.empty(n)

    def compare(part: slice) -> None:
        same = one.ids[part, :, None] == other.ids[part, None, :]
        shared[part] = np.count_nonzero(same.any(axis=2), axis=1)
        a, b = one.reciprocal[part], other.reciprocal[part]
        both = np.count_nonzero(same & a[:, :, None] & b[:, None, :], axis=(1, 2))
        either = np.count_nonzero(a, axis=1) + np.count_nonzero(b, axis=1) - both
        mutual[part] = np.divide(both, either, out=np.full(len(a), np.nan), where=either > 0)

    _by_block(compare, n, k, threads)
    return Agreement(shared, mutual)


def _by_block(function: Callable[[slice], None], n: int, k: int, threads: int) -> None:
    for _ in ordered_map(function, chunks(n, max(1, BLOCK // k**2)), threads):
        pass
