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

from service.numerics.coded import Coded, chunks
from service.numerics.neighbours import (
    GALLERY_BLOCK_BYTES,
    Queries,
    Search,
    Step,
    lengths_of,
    silent,
)
from service.numerics.rows import Floats, ordered_map
from service.numerics.tallies import scan, score_all, score_relevant, settle

Rows64 = NDArray[np.int64]
Ids = NDArray[np.int32]
QUERIES = 256
TILE = 4096
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
    Time of one float32 product of all pairs, and more where relevant rows rank in the middle.
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
