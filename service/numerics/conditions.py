"""Neighbours under a condition: rows, queries or arithmetic a little unlike those as given."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from service.numerics import pairs, stability
from service.numerics.coded import Coded, chunks, distances
from service.numerics.neighbours import (
    EXTRA,
    FLOAT32,
    QUERY_BLOCK,
    Effort,
    Listed,
    Neighbours,
    Queries,
    Rows64,
    Search,
    cut,
    gamma,
    lengths_of,
    resolution,
)
from service.numerics.rows import Floats, ordered_map
from service.numerics.stability import CANDIDATES_ONLY, CERTIFIED

FULL_ROWS = 1 << 22
"""Pairs held at once where a certificate needs every row."""


@dataclass(frozen=True)
class Outcome:
    """
    What became of each query's neighbours.

    Attributes
    ----------
    ids : (m, k) int32
        Neighbours under the condition.
    error : (m,) float64
        The most that the score of one of the neighbours as given moved.
    certified : (m,) bool
        No rounding of this size can change the set.
    unresolved : (m,) bool
        The gap after the last place is within the rounding of float64 scores.
    """

    ids: NDArray[np.int32]
    error: Floats
    certified: NDArray[np.bool_]
    unresolved: NDArray[np.bool_]


@dataclass(frozen=True)
class Given:
    """
    A search of rows as given, and what it listed for a range of queries.

    Attributes
    ----------
    search : Search
    queries : Queries
    which : (m,) rows of the queries
    listed : Listed
    found : Neighbours
    """

    search: Search
    queries: Queries
    which: Rows64
    listed: Listed
    found: Neighbours

    @property
    def k(self) -> int:
        return int(self.found.ids.shape[1])

    @cached_property
    def query_norms(self) -> Floats:
        """Lengths of the queries, (m,)."""
        return lengths_of(self.queries.rows, self.which)


@dataclass(frozen=True)
class Condition:
    """
    Rows and queries under a condition.

    Attributes
    ----------
    given : Search
        Of the rows as given.
    gallery, queries : Coded
    single : bool
        Products are summed in float32.
    threads : int
    """

    given: Search
    gallery: Coded
    queries: Queries
    single: bool = False
    threads: int = 1

    @cached_property
    def moved(self) -> Floats:
        """How far each row moves at most, (n,); for float32 sums, how far a unit score does."""
        d, longest = self.gallery.d, self.given.longest
        if self.single:
            return np.full(self.gallery.n, gamma(2 * d + 4, FLOAT32) * longest)
        apart = distances(self.given.rows, self.gallery, self.threads)
        return np.asarray(apart + resolution(d) * longest)

    @cached_property
    def search(self) -> Search:
        return Search(self.gallery, self.threads)

    def outcome(self, given: Given) -> tuple[Outcome, Effort]:
        """
        Neighbours of a range of queries under this condition.

        Time: rescoring of the candidates within reach of the last place, and a search of its own for
        the queries that leaves unproved.
        """
        m, k = len(given.which), given.k
        ids = np.empty((m, k + 1), np.int32)
        scores = np.empty((m, k + 1))
        error = np.empty(m)
        proved = np.zeros(m, bool)
        status = np.empty(m, np.int8)
        slack = np.empty(m)
        moved, furthest = self.moved, float(self.moved.max())
        listed, found, rows = given.listed, given.found, given.search.rows

        def decide(part: slice) -> None:
            which = given.which[part]
            query_norms = given.query_norms[part]
            weight, turned = self._queries(given, which, query_norms)
            common, drift = self._drift(given, which, turned)
            longest = given.search.longest + furthest
            slack[part] = resolution(rows.d) * np.maximum(weight, query_norms) * longest
            asked, divisors = self.queries.take(which)
            last, last_id = found.scores[part, -1], found.ids[part, -1]
            stability.move(
                asked, divisors, self.single, *self.gallery.form, self.gallery.divisors,
                listed.ids[part], listed.scores[part], listed.tail[part], last, last_id, moved,
                weight, common, drift, slack[part], furthest, ids[part], scores[part], error[part],
                proved[part],
            )  # fmt: skip
            stability.certify(
                listed.ids[part], listed.scores[part], listed.tail[part], last, last_id,
                found.gap[part], moved, given.search.norms, query_norms, weight, turned,
                slack[part], furthest, given.search.widest, *rows.form, rows.divisors, status[part],
            )  # fmt: skip

        for _ in ordered_map(decide, chunks(m, QUERY_BLOCK), self.threads):
            pass
        self._certify_against_all(given, status, slack)
        effort = self._complete(given, ids, scores, proved)
        moved_found = cut(ids, scores, k)
        return (
            Outcome(
                ids=moved_found.ids,
                error=error,
                certified=status == CERTIFIED,
                unresolved=np.minimum(moved_found.gap, found.gap) <= slack,
            ),
            effort,
        )

    def _queries(self, given: Given, which: Rows64, norms: Floats) -> tuple[Floats, Floats]:
        """Length of each moved query, and how far it moved."""
        if self.single or self.queries.rows is given.queries.rows:
            return norms, np.zeros(len(which))
        if self.queries.own:
            return lengths_of(self.queries.rows, which), self.moved[which]
        gap = self.queries.rows.points(which) - given.queries.rows.points(which)
        apart = np.sqrt(np.einsum("ij,ij->i", gap, gap))
        return lengths_of(self.queries.rows, which), apart + resolution(self.gallery.d) * norms

    def _drift(self, given: Given, which: Rows64, turned: Floats) -> tuple[Floats, Floats]:
        """See `Search.drift`."""
        if not turned.any():
            return turned, turned
        gap = self.queries.rows.points(which) - given.queries.rows.points(which)
        return given.search.drift(gap, turned)

    def _certify_against_all(self, given: Given, status: NDArray[np.int8], slack: Floats) -> None:
        """Decide what only the rows that are not listed leave open, in place."""
        rows, n = given.search.rows, given.search.rows.n
        open_ = np.flatnonzero(status == CANDIDATES_ONLY)

        def decide(part: slice) -> None:
            chosen = open_[part]
            which = given.which[chosen]
            own = given.queries.excluded(which)
            ids = np.tile(np.arange(n, dtype=np.int32), (len(chosen), 1))
            ids[ids == own[:, None]] = -1
            asked, divisors = given.queries.take(which)
            scores = np.empty(ids.shape)
            pairs.score_listed(asked, divisors, ids, *rows.form, rows.divisors, scores)
            norms = given.query_norms[chosen]
            weight, turned = self._queries(given, which, norms)
            found = np.empty(len(chosen), np.int8)
            stability.certify(
                ids, scores, np.full(len(chosen), -np.inf), given.found.scores[chosen, -1],
                given.found.ids[chosen, -1], given.found.gap[chosen], self.moved,
                given.search.norms, norms, weight, turned, slack[chosen], float(self.moved.max()),
                given.search.widest, *rows.form, rows.divisors, found,
            )  # fmt: skip
            status[chosen] = found

        for _ in ordered_map(decide, chunks(len(open_), max(1, FULL_ROWS // n)), self.threads):
            pass

    def _complete(
        self, given: Given, ids: NDArray[np.int32], scores: Floats, proved: NDArray[np.bool_]
    ) -> Effort:
        """Search again for what the candidates leave unproved, in place."""
        k, m = given.k, len(proved)
        open_ = np.flatnonzero(~proved)
        if not len(open_):
            return Effort(listed=m)
        which = given.which[open_]
        if self.single:
            ids[open_], scores[open_] = self.search.scored(self.queries, which, k + 1, single=True)
            return Effort(listed=m - len(open_), scored=len(open_))
        listed = self.search.listed(self.queries, which, k + EXTRA)
        ids[open_], scores[open_], effort = self.search.proved(self.queries, which, listed, k)
        return Effort(listed=m - len(open_), searched=effort.listed, scored=effort.scored)
