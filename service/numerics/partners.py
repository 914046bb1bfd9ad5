"""Whether each row's partner is its nearest row, exactly, with ties averaged over orders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.numerics.rows import Directions, Floats, blocks, ordered_map, row_classes, row_dots

TILE = 1024
CHUNK_ELEMENTS = 1 << 20
REFINE = 1 << 14
Bound = NDArray[np.floating]


@dataclass(frozen=True)
class Partners:
    """
    Per row: probability that its partner is ranked first when tied rows are in random order.

    Attributes
    ----------
    a_to_b, b_to_a : (n,) float64
        1 first, 0 not first, 1/t tied for first with t - 1 others.
    matched : (n,) float64
        Cosine of each pair.
    """

    a_to_b: Floats
    b_to_a: Floats
    matched: Floats


def partners_first(
    a: Directions, b: Directions, threads: int, step: Callable[[int, int], None]
) -> Partners:
    """
    Rank of the partner among all rows of the other side, decided exactly in both directions at once.

    A float32 product of tiles proposes: a score further from the matched cosine than the rounding
    bound of float32 decides at once. Everything nearer is scored again by the per-pair float64
    kernel, which is a function of the two rows only, so equal rows tie and thread count is irrelevant.
    Where float32 leaves many pairs of a tile open, a float64 product narrows them first, and pairs of
    equal rows are scored once: a collapsed space costs a few times a healthy one.

    Parameters
    ----------
    a, b : Directions of the same shape (n, d)

    Notes
    -----
    Time O(n^2 d), about that of one float32 matrix product; memory two (n, d) float32 arrays and a
    few (1024, 1024) tiles. Bound: gamma_{d+3}(2^-24) on unit rows, Higham, "Accuracy and Stability
    of Numerical Algorithms", 2002, section 3.1.
    """
    n, d = a.n, a.d
    matched, a32, b32 = np.empty(n), np.empty((n, d), np.float32), np.empty((n, d), np.float32)

    def prepare(which: slice) -> None:
        x, y = a.take(which), b.take(which)
        matched[which] = row_dots(x, y)
        a32[which], b32[which] = x, y

    for _ in ordered_map(prepare, blocks(n, d), threads):
        pass

    u = (d + 3) * 2.0**-24
    bound = u / (1 - u) + 2.0**-50
    fine = (d + 3) * 2.0**-52
    low = np.nextafter((matched - bound).astype(np.float32), np.float32(-np.inf))
    high = np.nextafter((matched + bound).astype(np.float32), np.float32(np.inf))
    beaten_a, beaten_b = np.zeros(n, bool), np.zeros(n, bool)
    ties_a, ties_b = np.zeros(n, np.int64), np.zeros(n, np.int64)

    classes = _Classes(a, b, threads)

    def judge(tile: tuple[slice, slice]) -> _Verdict:
        rows, columns = tile
        s = a32[rows] @ b32[columns].T
        i, j, hit_a, hit_b = near(s, rows, columns, low, high)
        if (
            len(i) > REFINE
        ):  # float32 cannot tell rows of a collapsed space apart: float64 tells more
            s64 = a.take(rows) @ b.take(columns).T
            i, j, hit_a, hit_b = near(s64, rows, columns, matched - fine, matched + fine)
        return _Verdict(rows, columns, hit_a, hit_b, *classes.score(i, j))

    def near(
        s: NDArray[np.floating], rows: slice, columns: slice, under: Bound, over: Bound
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Pairs that may tie with or beat a partner, and who is surely beaten in this tile."""
        if rows == columns:
            np.fill_diagonal(s, -np.inf)
        hit_a = beaten_a[rows] | (s > over[rows, None]).any(axis=1)
        hit_b = beaten_b[columns] | (s > over[None, columns]).any(axis=0)
        close = (s >= under[rows, None]) & ~hit_a[:, None]
        close |= (s >= under[None, columns]) & ~hit_b[None, :]
        i, j = np.nonzero(close)
        return i + rows.start, j + columns.start, hit_a, hit_b

    edges = [slice(start, min(start + TILE, n)) for start in range(0, n, TILE)]
    tiles = [(rows, columns) for rows in edges for columns in edges]
    for done, found in enumerate(ordered_map(judge, tiles, threads), start=1):
        i, j, scores = found.i, found.j, found.scores
        beaten_a[found.rows] |= found.hit_a
        beaten_b[found.columns] |= found.hit_b
        beaten_a[i[scores > matched[i]]] = True
        beaten_b[j[scores > matched[j]]] = True
        np.add.at(ties_a, i, scores == matched[i])
        np.add.at(ties_b, j, scores == matched[j])
        step(done, len(tiles))
    return Partners(
        np.where(beaten_a, 0.0, 1 / (1 + ties_a)),
        np.where(beaten_b, 0.0, 1 / (1 + ties_b)),
        matched,
    )


@dataclass(frozen=True)
class _Verdict:
    """A tile: who is surely beaten in it, and the exact scores of pairs too near to tell."""

    rows: slice
    columns: slice
    hit_a: NDArray[np.bool_]
    hit_b: NDArray[np.bool_]
    i: NDArray[np.int64]
    j: NDArray[np.int64]
    scores: Floats


class _Classes:
    """Scores pairs by the exact kernel, once for each pair of distinct rows."""

    def __init__(self, a: Directions, b: Directions, threads: int) -> None:
        self._a, self._b = a, b
        self._of_a = row_classes(a.rows, threads)
        self._of_b = self._of_a if b.rows is a.rows else row_classes(b.rows, threads)
        rows = np.arange(a.n)
        self._repeated = bool((self._of_a != rows).any() or (self._of_b != rows).any())

    def score(
        self, i: NDArray[np.int64], j: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
        """The pairs with their float64 scores."""
        if not self._repeated or len(i) < 2:
            return i, j, self._exact(i, j)
        n = len(self._of_a)
        distinct, place = np.unique(self._of_a[i] * n + self._of_b[j], return_inverse=True)
        return i, j, self._exact(distinct // n, distinct % n)[place]

    def _exact(self, i: NDArray[np.int64], j: NDArray[np.int64]) -> Floats:
        """A bounded number of rows at a time."""
        size = max(1, CHUNK_ELEMENTS // self._a.d)
        scores = np.empty(len(i))
        for start in range(0, len(i), size):
            part = slice(start, start + size)
            scores[part] = row_dots(self._a.take(i[part]), self._b.take(j[part]))
        return scores
