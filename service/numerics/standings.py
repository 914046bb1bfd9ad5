# mypy: disable-error-code="arg-type, no-any-return, return-value"
# Scalars are machine words once compiled.
"""
Where relevant rows stand: how many score above each, how many the same, and the best of the others.

One pass over the gallery. A float32 product says on which side of a relevant row's score a row lies,
or that it is too near to say; then its float64 score decides. The same bound thins out the rows that
may be among the best, until the float64 scores of a few decide. So counts and lists are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.numerics import pairs
from service.numerics.coded import Coded, chunks
from service.numerics.compiled import Floats, compiled
from service.numerics.neighbours import (
    GALLERY_BLOCK_BYTES,
    Queries,
    Search,
    Step,
    lengths_of,
    silent,
)
from service.numerics.rows import ordered_map

Rows64 = NDArray[np.int64]
Ids = NDArray[np.int32]
QUERIES = 256
TILE = 4096
CHUNK = 64
FEW_LEVELS = 8
"""Up to so many levels, a chunk of rows is compared with each at once."""
POOL = 64
"""Room in a pool beside twice the rows asked for."""


@dataclass(frozen=True)
class Relevant:
    """
    Rows that are relevant to each query.

    Attributes
    ----------
    starts : (m + 1,) int64
        Where the rows of each query begin; every query has one.
    rows : (p,) int64, ascending within a query
    """

    starts: Rows64
    rows: Rows64

    @property
    def counts(self) -> Rows64:
        """Relevant rows of each query, (m,)."""
        return np.diff(self.starts)

    @property
    def queries(self) -> Rows64:
        """The query of each relevant row, (p,)."""
        return np.repeat(np.arange(len(self.starts) - 1), self.counts)

    def places(self, which: Rows64) -> Rows64:
        """Where the relevant rows of chosen queries are."""
        counts = self.counts[which]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.asarray(np.repeat(self.starts[which], counts) + within)

    def of(self, which: Rows64) -> Relevant:
        """The same of chosen queries."""
        starts = np.concatenate([[0], np.cumsum(self.counts[which])])
        return Relevant(starts, self.rows[self.places(which)])


@dataclass(frozen=True)
class Standings:
    """
    Scores that relevant rows have, each with the rows above it and at it, and the best other rows.

    Attributes
    ----------
    scores : (p,) float64
        Score of each relevant row.
    tie : (p,) int64
        The entry in `above`, `tied` and `relevant` of each relevant row.
    starts : (m + 1,) int64
        Where the entries of each query begin, highest score first.
    above, tied, relevant : (t,) int64
        Rows with a higher score; with the same score; and how many of those are relevant.
    ids, best : (m, depth) int32 and float64
        The best rows that are not relevant, by score descending and row ascending; -1 and -inf where
        there are no more.
    """

    scores: Floats
    tie: Rows64
    starts: Rows64
    above: Rows64
    tied: Rows64
    relevant: Rows64
    ids: Ids
    best: Floats


@compiled
def score_relevant(
    queries: Floats,
    divisors: Floats,
    starts: Rows64,
    rows: Rows64,
    codes: Any,
    low: Floats,
    scale: Floats,
    row_scale: Floats,
    by: Floats,
    out: Floats,
) -> None:
    """Score the relevant rows of each query in float64; `out` (p,) begins where `starts[0]` says."""
    row = np.empty(codes.shape[1])
    for i in range(len(queries)):
        for p in range(starts[i], starts[i + 1]):
            g = rows[p]
            pairs.read(codes[g], low, scale, row_scale[g], row)
            out[p - starts[0]] = pairs.dot(queries[i], row) / (divisors[i] * by[g])


@compiled
def score_all(
    query: Floats,
    divisor: float,
    codes: Any,
    low: Floats,
    scale: Floats,
    row_scale: Floats,
    by: Floats,
    out: Floats,
) -> None:
    """Score all rows for one query in float64, (n,)."""
    row = np.empty(codes.shape[1])
    for g in range(len(codes)):
        pairs.read(codes[g], low, scale, row_scale[g], row)
        out[g] = pairs.dot(query, row) / (divisor * by[g])


@compiled
def _first_at_least(values: Floats, wanted: float) -> int:
    """Values below `wanted`; they are in ascending order."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _holds(rows: Rows64, item: int) -> bool:
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        if rows[middle] < item:
            low = middle + 1
        else:
            high = middle
    return low < len(rows) and rows[low] == item


@compiled
def settle(
    query: Floats,
    divisor: float,
    codes: Any,
    low: Floats,
    scale: Floats,
    row_scale: Floats,
    by: Floats,
    pool: Ids,
    pooled: int,
    best: Ids,
    best_scores: Floats,
    filled: int,
) -> int:
    """Score pooled rows of a query in float64 and keep the best; returns how many places are filled."""
    row = np.empty(codes.shape[1])
    for c in range(pooled):
        g = pool[c]
        pairs.read(codes[g], low, scale, row_scale[g], row)
        score = pairs.dot(query, row) / (divisor * by[g])
        filled = pairs.keep(score, g, best_scores, best, filled)
    return filled


@compiled
def _thinned(pool: Ids, singles: NDArray[np.float32], room: int, band: float) -> tuple[int, float]:
    """
    Drop pooled rows that cannot be among the `room` best; how many stay, and what they have to reach.

    Float32 scores within `band` of one another may stand in either order.
    """
    ordered = np.sort(singles)
    entry = np.float64(ordered[len(ordered) - room]) - band
    kept = 0
    for c in range(len(pool)):
        if np.float64(singles[c]) >= entry:
            pool[kept], singles[kept] = pool[c], singles[c]
            kept += 1
    return kept, entry


@compiled
def _reaches(chunk: NDArray[np.float32], floor: float) -> bool:
    """Whether any score is not below `floor`."""
    some = np.uint8(0)  # a byte: the loop fills vector registers
    for j in range(len(chunk)):
        some = np.uint8(some | np.uint8(not (chunk[j] < floor)))
    return some != 0


@compiled
def _decided(
    chunk: NDArray[np.float32],
    below: NDArray[np.float32],
    beyond: NDArray[np.float32],
    counts: Rows64,
) -> bool:
    """Count a chunk whose scores are all surely above or below each level; whether it was one."""
    for u in range(len(below)):
        apart = np.uint8(0)
        for j in range(len(chunk)):
            apart = np.uint8(apart + np.uint8(chunk[j] < below[u]) + np.uint8(chunk[j] > beyond[u]))
        if apart != len(chunk):
            return False
    left = len(chunk)
    for u in range(len(below)):
        above = np.uint8(0)
        for j in range(len(chunk)):
            above = np.uint8(above + np.uint8(chunk[j] > beyond[u]))
        counts[u] += left - above
        left = int(above)
    counts[len(below)] += left
    return True


@compiled
def scan(
    scores: NDArray[np.float32],
    first: int,
    queries: Floats,
    divisors: Floats,
    reading: Floats,
    starts: Rows64,
    levels: Floats,
    relevant_starts: Rows64,
    relevant_rows: Rows64,
    codes: Any,
    low: Floats,
    scale: Floats,
    row_scale: Floats,
    by: Floats,
    passed: Rows64,
    equal: Rows64,
    pool: Ids,
    singles: NDArray[np.float32],
    pooled: Rows64,
    entry: Floats,
    best: Ids,
    best_scores: Floats,
    filled: Rows64,
) -> None:
    """
    Count a tile of rows against the levels of each query, and pool those that may be among the best.

    Parameters
    ----------
    scores : (m, w) float32
        Scores of rows first, first + 1, ... as a float32 product gives them.
    queries, divisors : (m, d) and (m,) float64
    reading : (m, 4) float64
        Unit, middle, slack and underflow of a query: a row scores less than s in float64 if its
        float32 score is below (s - middle - slack) unit - underflow, and more if it is above
        (s - middle + slack) unit + underflow.
    starts, levels : (m + 1,), (t,)
        Scores of relevant rows, each once, ascending within a query.
    relevant_starts, relevant_rows : (m + 1,), (p,)
    codes, low, scale, row_scale, by : rows and their divisors
    passed : (t + m,) int64, added to
        Of a query with u levels u + 1 counts: rows whose score is above exactly 0, 1, ..., u of them.
    equal : (t,) int64, added to
        Rows whose score is the level.
    pool, singles, pooled : (m, c), (m, c), (m,)
        Rows that are not relevant and may be among the best, with their float32 scores.
    entry : (m,)
        The float32 score that such a row must reach.
    best, best_scores, filled : (m, k), (m, k), (m,)
        The best of those that have left the pool.

    Notes
    -----
    Time O(m w) beside the product; a float64 score, O(d), for each row that is near a level.
    """
    width = scores.shape[1]
    room, capacity = best.shape[1], pool.shape[1]
    row = np.empty(codes.shape[1])
    for i in range(len(queries)):
        unit, middle, slack, underflow = reading[i]
        band = 2 * (slack * unit + underflow)
        own = levels[starts[i] : starts[i + 1]]
        below = (own - middle - slack) * unit - underflow
        beyond = (own - middle + slack) * unit + underflow
        counts = passed[starts[i] + i : starts[i + 1] + i + 1]
        relevant = relevant_rows[relevant_starts[i] : relevant_starts[i + 1]]
        few = len(own) <= FEW_LEVELS
        lower, higher = below.astype(np.float32), beyond.astype(np.float32)
        for u in range(len(own)):
            lower[u] = np.nextafter(lower[u], np.float32(-np.inf))
            higher[u] = np.nextafter(higher[u], np.float32(np.inf))
        for start in range(0, width, CHUNK):
            chunk = scores[i, start : start + CHUNK]
            floor = np.nextafter(np.float32(entry[i]), np.float32(-np.inf))
            if not _reaches(chunk, min(floor, lower[0])):
                counts[0] += len(chunk)
                continue
            if few and not _reaches(chunk, floor) and _decided(chunk, lower, higher, counts):
                continue
            for j in range(len(chunk)):
                f = np.float64(chunk[j])
                g = first + start + j
                sure = _first_at_least(beyond, f)
                if sure < len(own) and not (f < below[sure]):
                    pairs.read(codes[g], low, scale, row_scale[g], row)
                    score = pairs.dot(queries[i], row) / (divisors[i] * by[g])
                    sure = _first_at_least(own, score)
                    if sure < len(own) and own[sure] == score:
                        equal[starts[i] + sure] += 1
                counts[sure] += 1
                if f < entry[i] or _holds(relevant, g):
                    continue
                pool[i, pooled[i]], singles[i, pooled[i]] = g, chunk[j]
                pooled[i] += 1
                if pooled[i] == capacity:
                    kept, reach = _thinned(pool[i], singles[i], room, band)
                    entry[i] = max(entry[i], reach)
                    if 4 * kept > 3 * capacity:
                        filled[i] = settle(
                            queries[i], divisors[i], codes, low, scale, row_scale, by,
                            pool[i], kept, best[i], best_scores[i], filled[i],
                        )  # fmt: skip
                        kept = 0
                        last = (best_scores[i, room - 1] - middle - slack) * unit - underflow
                        entry[i] = max(entry[i], last)
                    pooled[i] = kept


def standings(
    search: Search,
    queries: Queries,
    which: Rows64,
    relevant: Relevant,
    depth: int,
    step: Step = silent,
) -> Standings:
    """
    Exact standings of the relevant rows of chosen queries, and the `depth` best other rows.

    Parameters
    ----------
    search : Search
    queries : Queries
    which : (m,) rows of the queries
    relevant : Relevant, of these m queries in this order
    depth : int, at least 1

    Notes
    -----
    Time of one float32 product of all pairs; about a third more where relevant rows rank at random.
    Memory a float32 block of the gallery, a tile of scores for each thread, and `bytes_a_query` for
    each query.
    """
    m, rows, threads = len(which), search.rows, search.threads
    parts = list(chunks(m, QUERIES))
    scores = np.empty(len(relevant.rows))
    reading = np.empty((m, 4))

    def prepare(part: slice) -> None:
        asked, divisors = queries.take(which[part])
        starts = relevant.starts[part.start : part.stop + 1]
        out = scores[starts[0] : starts[-1]]
        score_relevant(asked, divisors, starts, relevant.rows, *rows.form, rows.divisors, out)
        unit, along, rounding = search.single(asked / divisors[:, None])
        slack = rounding + search.tau(lengths_of(queries.rows, which[part]))
        reading[part] = np.stack([unit, along, slack, np.full(len(unit), search.flushed)], axis=1)

    for _ in ordered_map(prepare, parts, threads):
        pass
    tie, starts, levels = _levels(relevant, scores)
    passed, equal = np.zeros(len(levels) + m, np.int64), np.zeros(len(levels), np.int64)
    ids, best = np.full((m, depth), -1, np.int32), np.full((m, depth), -np.inf)
    filled, pooled, entry = np.zeros(m, np.int64), np.zeros(m, np.int64), np.full(m, -np.inf)
    pool = np.empty((m, 2 * depth + POOL), np.int32)
    singles = np.empty(pool.shape, np.float32)
    blocks = list(chunks(rows.n, max(GALLERY_BLOCK_BYTES // (4 * (rows.d + 1)), TILE)))
    for number, block in enumerate(blocks):
        searched = search.searched(block)

        def count(part: slice, first: int = block.start, searched: Any = searched) -> None:
            asked, divisors = queries.take(which[part])
            single = search.searching(queries, which[part])
            of_levels = starts[part.start : part.stop + 1]
            own = slice(of_levels[0], of_levels[-1])
            counts = slice(of_levels[0] + part.start, of_levels[-1] + part.stop)
            of_relevant = relevant.starts[part.start : part.stop + 1]
            for tile in chunks(len(searched), TILE):
                scan(
                    single @ searched[tile].T, first + tile.start, asked, divisors, reading[part],
                    of_levels - of_levels[0], levels[own], of_relevant, relevant.rows,
                    *rows.form, rows.divisors,
                    passed[counts], equal[own], pool[part], singles[part], pooled[part], entry[part],
                    ids[part], best[part], filled[part],
                )  # fmt: skip

        for done, _ in enumerate(ordered_map(count, parts, threads)):
            step(number * len(parts) + done + 1, len(blocks) * len(parts))

    def finish(part: slice) -> None:
        asked, divisors = queries.take(which[part])
        for i, row in enumerate(range(part.start, part.stop)):
            settle(
                asked[i], divisors[i], *rows.form, rows.divisors,
                pool[row], pooled[row], ids[row], best[row], filled[row],
            )  # fmt: skip

    for _ in ordered_map(finish, parts, threads):
        pass
    return _counted(relevant, scores, tie, starts, passed, equal, ids, best)


def bytes_a_query(depth: int) -> int:
    """Memory of the lists of one query."""
    return 12 * depth + 8 * (2 * depth + POOL)


def _levels(relevant: Relevant, scores: Floats) -> tuple[Rows64, Rows64, Floats]:
    """Different scores of relevant rows, ascending by query: the entry of each row, starts, scores."""
    queries = relevant.queries
    order = np.lexsort((scores, queries))
    fresh = np.ones(len(order), bool)
    fresh[1:] = (np.diff(queries[order]) != 0) | (np.diff(scores[order]) != 0)
    tie = np.empty(len(order), np.int64)
    tie[order] = np.cumsum(fresh) - 1
    counts = np.bincount(queries[order][fresh], minlength=len(relevant.starts) - 1)
    return tie, np.concatenate([[0], np.cumsum(counts)]), scores[order][fresh]


def _counted(
    relevant: Relevant,
    scores: Floats,
    tie: Rows64,
    starts: Rows64,
    passed: Rows64,
    equal: Rows64,
    ids: Ids,
    best: Floats,
) -> Standings:
    """Rows above each level from the rows between levels; levels turned round, highest first."""
    m, t = len(starts) - 1, len(equal)
    query = np.repeat(np.arange(m), np.diff(starts))
    running = np.cumsum(passed)
    ends = running[starts[1:] + np.arange(m)]
    above = ends[query] - running[np.arange(t) + query]
    turned = starts[query] + starts[query + 1] - 1 - np.arange(t)
    return Standings(
        scores=scores,
        tie=turned[tie],
        starts=starts,
        above=above[turned],
        tied=equal[turned],
        relevant=np.bincount(tie, minlength=t)[turned],
        ids=ids,
        best=best,
    )


def all_scores(rows: Coded, queries: Queries, query: int) -> Floats:
    """Float64 scores of every row for one query, (n,)."""
    asked, divisors = queries.take(np.array([query]))
    out = np.empty(rows.n)
    score_all(asked[0], divisors[0], *rows.form, rows.divisors, out)
    return out
