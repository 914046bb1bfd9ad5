"""
Exact nearest neighbours: float32 proposes, float64 decides, and every list is proved complete.

faiss lists the best rows of a float32 inner product, deeper than asked. Their scores are computed again
in float64, pair by pair. What was not listed scores at most the last listed float32 score plus a bound
on its rounding; where that stays below the score of the last place asked for, the list is exact. Where
it does not, every row is scored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import faiss
import numpy as np
from numpy.typing import NDArray

from service.numerics import pairs
from service.numerics.coded import Coded, chunks, lengths
from service.numerics.rows import Floats, blocks, ordered_map

Ids = NDArray[np.int32]
Single = NDArray[np.float32]
Rows64 = NDArray[np.int64]
Step = Callable[[int, int], None]

EXTRA = 64
"""Rows listed beyond those asked for: on the real rows of the tests they prove every query."""
GALLERY_BLOCK_BYTES = 64 << 20
QUERY_BLOCK = 1024
SCORED_BLOCK = 64
FLOAT32 = 2.0**-24
FLOAT64 = 2.0**-53
FLUSHED = 2.0**-125
"""More than a float32 product can lose by underflow, flushed to zero or not."""


def silent(done: int, total: int) -> None:
    """Progress that nobody watches."""


def gamma(operations: int, unit: float) -> float:
    """Bound n u / (1 - n u) of the relative rounding of n operations (Higham 2002, lemma 3.1)."""
    return operations * unit / (1 - operations * unit)


def resolution(d: int) -> float:
    """Gaps up to this, for rows of length one, are within the rounding of float64 scores."""
    return 4 * gamma(2 * d + 4, FLOAT64)


@dataclass
class Effort:
    """How lists were proved, in queries; the same result takes another path on another machine."""

    listed: int = 0
    """By the float32 list of the search they share."""
    searched: int = 0
    """By a float32 search of their own."""
    scored: int = 0
    """By scoring every row."""

    def add(self, other: Effort) -> None:
        self.listed += other.listed
        self.searched += other.searched
        self.scored += other.scored


@dataclass(frozen=True)
class Neighbours:
    """
    The best rows of each query, ordered by score descending and row ascending.

    Attributes
    ----------
    ids : (m, k) int32
    scores : (m, k) float64
    gap : (m,) float64
        Score of the last place minus the score of the place after it; inf where no row is left.
    """

    ids: Ids
    scores: Floats
    gap: Floats


@dataclass(frozen=True)
class Listed:
    """
    Rows that a float32 search proposes, scored in float64, and what the others can reach at most.

    Attributes
    ----------
    ids : (m, c) int32, -1 where no row is
    scores : (m, c) float64
    tail : (m,) float64
        No row that is not listed scores above it by more than the rounding of a float64 score
        (`Search.tau`); -inf where all are listed, inf where nothing is known.
    """

    ids: Ids
    scores: Floats
    tail: Floats

    def settle(self, which: Rows64, ids: Ids, scores: Floats) -> None:
        """List the best k + 1 of all rows for some queries, in place; no other is above the last."""
        width = min(self.ids.shape[1], ids.shape[1])
        self.ids[which], self.scores[which] = -1, -np.inf
        self.ids[which, :width], self.scores[which, :width] = ids[:, :width], scores[:, :width]
        self.tail[which] = scores[:, -1]


@dataclass(frozen=True)
class Queries:
    """
    Queries of a search.

    Attributes
    ----------
    rows : Coded
    own : bool
        They are the rows of the gallery, and no row is its own neighbour.
    """

    rows: Coded
    own: bool

    def take(self, which: Rows64) -> tuple[Floats, Floats]:
        """Rows and divisors of chosen queries."""
        return self.rows.take(which), self.rows.divisors[which]

    def excluded(self, which: Rows64) -> Rows64:
        """The row of the gallery that each query may not find; -1 for none."""
        return which if self.own else np.full(len(which), -1)


def cut(ids: Ids, scores: Floats, k: int) -> Neighbours:
    """Lists of k + 1 as lists of k and the gap after them."""
    return Neighbours(ids[:, :k].copy(), scores[:, :k].copy(), scores[:, k - 1] - scores[:, k])


def lengths_of(rows: Coded, which: Rows64) -> Floats:
    """Lengths of chosen points, (m,)."""
    norms = [
        np.sqrt(np.einsum("ij,ij->i", points, points))
        for part in chunks(len(which), QUERY_BLOCK)
        for points in (rows.points(which[part]),)
    ]
    return np.concatenate([np.empty(0), *norms])


@dataclass
class Search:
    """
    A gallery made ready to be searched.

    Points are rows over their divisors. Searched is (q - mean, 1) with (g - mean, mean.(g - mean)),
    which ranks as q.g does, or q with g where that rounds less.

    Parameters
    ----------
    rows : Coded
    threads : int
    """

    rows: Coded
    threads: int
    norms: Floats = field(init=False)
    """Lengths of the points, (n,)."""
    longest: float = field(init=False)
    centre: Floats = field(init=False)
    """Mean of the points."""
    spread: float = field(init=False)
    """No point is further from the centre."""
    mean: Floats = field(init=False)
    """What is subtracted before the search: the centre, or nothing."""
    radius: float = field(init=False)
    """Longest of the rows searched."""
    shift: float = field(init=False)
    """Largest |mean.(g - mean)|."""

    def __post_init__(self) -> None:
        grid = blocks(self.rows.n, self.rows.d)
        self.norms = lengths(self.rows, self.threads) / self.rows.divisors
        self.longest = float(self.norms.max())
        self.centre = np.zeros(self.rows.d)
        for part in ordered_map(
            lambda which: self.rows.points(which).sum(axis=0), grid, self.threads
        ):
            self.centre += part
        self.centre /= self.rows.n

        def reach(which: slice) -> tuple[float, float]:
            centred = self.rows.points(which) - self.centre
            squares = np.einsum("ij,ij->i", centred, centred)
            return float(np.sqrt(squares.max())), float(np.abs(centred @ self.centre).max())

        found = list(ordered_map(reach, grid, self.threads))
        self.spread = max(radius for radius, _ in found) * (1 + 1e-9)
        self.mean, self.radius = self.centre, self.spread
        self.shift = max(shift for _, shift in found)
        if self.radius**2 + self.shift >= self.longest**2:
            self.mean, self.radius, self.shift = np.zeros(self.rows.d), self.longest, 0.0

    @property
    def widest(self) -> float:
        """No two points are further apart."""
        return 2 * min(self.spread, self.longest) * (1 + 1e-9)

    def drift(self, turned: Floats, distance: Floats) -> tuple[Floats, Floats]:
        """
        By how much, and how much more at most, the scores of all rows move with a query.

        Parameters
        ----------
        turned : (m, d) moved minus given queries
        distance : (m,) at least their lengths
        """
        if self.spread < self.longest:
            return turned @ self.centre, distance * self.spread
        return np.zeros(len(turned)), distance * self.longest

    def tau(self, query_norms: Floats) -> Floats:
        """Gaps up to this are unresolved, (m,)."""
        return resolution(self.rows.d) * query_norms * self.longest

    def listed(self, queries: Queries, which: Rows64, depth: int, step: Step = silent) -> Listed:
        """
        The `depth` best rows of chosen queries by float32, with their float64 scores.

        Parameters
        ----------
        queries : Queries
        which : (m,) rows of the queries
        depth : int
        step : progress, called with pairs of blocks done and all of them

        Notes
        -----
        Time of one faiss search; memory a float32 block of the gallery and lists (m, depth).
        """
        n = self.rows.n
        wanted = min(depth + int(queries.own), n)
        ids, lowest = self._proposed(queries, which, wanted, step)
        if queries.own:
            ids = _without(ids, which)
        scores = np.empty(ids.shape)
        tail = np.full(len(which), -np.inf)

        def decide(part: slice) -> None:
            rows, divisors = queries.take(which[part])
            pairs.score_listed(
                rows, divisors, ids[part], *self.rows.form, self.rows.divisors, scores[part]
            )
            if wanted < n:
                tail[part] = self._reached(rows / divisors[:, None], lowest[part])

        self._by_query_block(decide, len(which))
        return Listed(ids, scores, tail)

    def nearest(self, queries: Queries, which: Rows64, k: int, step: Step = silent) -> Neighbours:
        """
        Exact neighbours of chosen queries; see `Listed`.

        Parameters
        ----------
        queries : Queries
        which : (m,) rows of the queries
        k : int, at most the rows there are to find
        """
        listed = self.listed(queries, which, k + EXTRA, step)
        ids, scores, _ = self.proved(queries, which, listed, k)
        return cut(ids, scores, k)

    def proved(
        self, queries: Queries, which: Rows64, listed: Listed, k: int
    ) -> tuple[Ids, Floats, Effort]:
        """
        Exact lists of k + 1, and how they were proved: by what is listed, or by scoring every row.

        What is listed is replaced by the exact lists where it proved nothing.

        Parameters
        ----------
        queries, which : as for `listed`
        listed : Listed
        k : int
        """
        m = len(which)
        ids = np.empty((m, k + 1), np.int32)
        scores = np.empty((m, k + 1))

        def decide(part: slice) -> None:
            pairs.best_listed(listed.ids[part], listed.scores[part], ids[part], scores[part])

        self._by_query_block(decide, m)
        reach = listed.tail + self.tau(lengths_of(queries.rows, which))
        open_ = np.flatnonzero((listed.tail != -np.inf) & ~(reach < scores[:, k]))
        if len(open_):
            ids[open_], scores[open_] = self.scored(queries, which[open_], k + 1)
            listed.settle(open_, ids[open_], scores[open_])
        return ids, scores, Effort(listed=m - len(open_), scored=len(open_))

    def scored(
        self, queries: Queries, which: Rows64, k: int, *, single: bool = False
    ) -> tuple[Ids, Floats]:
        """
        The best rows of chosen queries by scoring all rows: (m, k) ids and scores.

        Time O(m n d): 3.3 times a float32 search of 1,000 queries in 20,000 x 384, two cores.
        """
        ids = np.empty((len(which), k), np.int32)
        scores = np.empty((len(which), k))

        def decide(part: slice) -> None:
            rows, divisors = queries.take(which[part])
            own = queries.excluded(which[part])
            pairs.best_of_all(
                rows, divisors, own, single, *self.rows.form, self.rows.divisors, ids[part],
                scores[part],
            )  # fmt: skip

        for _ in ordered_map(decide, chunks(len(which), SCORED_BLOCK), self.threads):
            pass
        return ids, scores

    def _by_query_block(self, decide: Callable[[slice], None], m: int) -> None:
        for _ in ordered_map(decide, chunks(m, QUERY_BLOCK), self.threads):
            pass

    def _reached(self, points: Floats, lowest: Floats) -> Floats:
        """The most that a row can score whose float32 score is at most `lowest`."""
        unit, along, rounding = self.single(points)
        reached: Floats = (lowest + self.flushed) / unit + rounding + along
        return reached

    def single(self, points: Floats) -> tuple[Floats, Floats, Floats]:
        """
        How float32 scores of queries are read: (f +- flushed) / unit + along, give or take rounding.

        Parameters
        ----------
        points : (m, d) float64

        Returns
        -------
        unit, along, rounding : (m,)
        """
        centred = points - self.mean
        norms = np.sqrt(np.einsum("ij,ij->i", centred, centred))
        rounding = gamma(self.rows.d + 4, FLOAT32) * (norms * self.radius + self.shift)
        return self.unit * self._query_units(centred), points @ self.mean, rounding

    @property
    def flushed(self) -> float:
        """What a float32 score can lose by underflow."""
        return (self.rows.d + 3) * FLUSHED

    def _query_units(self, centred: Floats) -> Floats:
        """A power of two for each query that brings (q - mean, 1 / unit) to about 1; exact."""
        largest = np.maximum(np.abs(centred).max(axis=1), 1 / self.unit)
        return np.asarray(2.0 ** -np.floor(np.log2(largest)))

    def _proposed(
        self, queries: Queries, which: Rows64, wanted: int, step: Step
    ) -> tuple[Ids, Floats]:
        """The `wanted` best rows of the float32 search, (m, wanted), and the lowest score of each."""
        m, d = len(which), self.rows.d
        size = max(GALLERY_BLOCK_BYTES // (4 * (d + 1)), wanted)
        gallery_blocks = list(chunks(self.rows.n, size))
        query_blocks = list(chunks(m, QUERY_BLOCK))
        ids = np.full((m, wanted), -1, np.int32)
        scores = np.full((m, wanted), -np.inf, np.float32)
        unknown = np.zeros(m, bool)
        for b, block in enumerate(gallery_blocks):
            searched = self.searched(block)

            def search(part: slice, first: int = block.start, rows: Single = searched) -> None:
                faiss.omp_set_num_threads(1)
                found, places = faiss.knn(
                    self.searching(queries, which[part]),
                    rows,
                    min(wanted, len(rows)),
                    metric=faiss.METRIC_INNER_PRODUCT,
                )
                unknown[part] |= (places < 0).any(axis=1)  # faiss lists no NaN
                _merge(scores[part], ids[part], found, places, first)

            for done, _ in enumerate(ordered_map(search, query_blocks, self.threads)):
                step(b * len(query_blocks) + done + 1, len(gallery_blocks) * len(query_blocks))
        ids[unknown] = -1
        return ids, np.where(unknown, np.inf, scores.min(axis=1).astype(np.float64))

    @property
    def unit(self) -> float:
        """A power of two that brings the longest point to about 1, where float32 is at home."""
        return float(2.0 ** -np.floor(np.log2(self.longest))) if self.longest > 0 else 1.0

    def searched(self, block: slice) -> Single:
        """(g - mean, mean.(g - mean)) of a block of the gallery."""
        out = np.empty((block.stop - block.start, self.rows.d + 1), np.float32)

        def fill(which: slice) -> None:
            rows = slice(block.start + which.start, block.start + which.stop)
            centred = (self.rows.points(rows) - self.mean) * self.unit
            out[which, :-1] = centred
            out[which, -1] = centred @ self.mean * self.unit

        for _ in ordered_map(fill, blocks(*out.shape), self.threads):
            pass
        return out

    def searching(self, queries: Queries, which: Rows64) -> Single:
        """(q - mean, 1 / unit) of chosen queries, each times its own power of two."""
        out = np.empty((len(which), self.rows.d + 1), np.float32)
        rows, divisors = queries.take(which)
        centred = rows / divisors[:, None] - self.mean
        units = self._query_units(centred)
        out[:, :-1] = centred * units[:, None]
        out[:, -1] = units / self.unit
        return out


def _without(ids: Ids, own: Rows64) -> Ids:
    """Lists without the query's own row, or without their last where it is not among them."""
    place = np.argmax(ids == own[:, None], axis=1)
    place[ids[np.arange(len(ids)), place] != own] = ids.shape[1] - 1
    kept = np.ones(ids.shape, bool)
    kept[np.arange(len(ids)), place] = False
    return ids[kept].reshape(len(ids), -1)


def _merge(scores: Single, ids: Ids, found: Single, places: Rows64, first: int) -> None:
    """Keep the best of the lists so far and of one more block's, in place, the lowest last."""
    if (ids == -1).all() and found.shape == scores.shape:
        scores[:], ids[:] = found, places + first
        return
    every = np.concatenate([scores, found], axis=1)
    item = np.concatenate([ids, (places + first).astype(np.int32)], axis=1)
    best = np.argpartition(-every, scores.shape[1] - 1, axis=1)[:, : scores.shape[1]]
    scores[:] = np.take_along_axis(every, best, axis=1)
    ids[:] = np.take_along_axis(item, best, axis=1)
