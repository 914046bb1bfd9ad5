"""How a range of queries ranks the documents, model by model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.check import Arrays, Context
from service.checks.retrieval.declared import RetrievalInputs, RetrievalParams
from service.dataset import Dataset
from service.numerics.coded import Coded, as_given, chunks
from service.numerics.extremes import refuse_extremes
from service.numerics.neighbours import Queries, Search, Step
from service.numerics.ranking import cutoffs, measures
from service.numerics.rows import Floats
from service.numerics.standings import (
    Relevant,
    Standings,
    all_scores,
    bytes_a_query,
    standings,
)

BLOCK = 512
"""Queries of a block: the grid that shards share."""
BATCH_BYTES = 128 << 20
"""Memory of the lists of the queries that are ranked in one pass over the documents."""
POINTS = 4096
COINCIDENT = 1e-28
"""Squared distance of unit rows that rounding alone can make."""
Rows64 = NDArray[np.int64]


def plan(inputs: RetrievalInputs, params: RetrievalParams) -> int:
    """Blocks of queries."""
    return -(-len(inputs.relevance) // BLOCK)


def part(
    context: Context, inputs: RetrievalInputs, params: RetrievalParams, blocks: range
) -> Arrays:
    """Numbers of each query in these blocks, named `<model>.<what>`."""
    judged = Judged.of(inputs)
    queries = np.arange(blocks.start * BLOCK, min(blocks.stop * BLOCK, len(inputs.relevance)))
    size = max(BATCH_BYTES // bytes_a_query(params.ks[-1] + 1), 1)
    batches = [queries[which] for which in chunks(len(queries), size)]
    found: dict[str, NDArray[Any]] = {}
    steps = len(inputs.models) * len(batches)
    with context.stage("ranks") as step:
        for place, (name, model) in enumerate(inputs.models.items()):
            ranking = _Ranking.of(context, name, model, params)
            each = []
            for number, batch in enumerate(batches):
                before = place * len(batches) + number

                def tell(done: int, total: int, before: int = before) -> None:
                    step(1000 * before + 1000 * done // total, 1000 * steps)

                each.append(ranking.numbers(judged, batch, tell))
            for what in each[0]:
                found[f"{name}.{what}"] = np.concatenate([one[what] for one in each])
    return found


@dataclass(frozen=True)
class Judged:
    """
    Relevant documents, and the sets they form.

    Attributes
    ----------
    relevant : Relevant
    grades : (p,)
    own : (m,) int64
        The set of each query: queries with the same relevant documents have the same.
    classes : (n,) int64
        The set of each document; -1 for those that are relevant to none.
    sets : int
    disjoint : bool
        No document belongs to two sets.
    """

    relevant: Relevant
    grades: Floats
    own: Rows64
    classes: Rows64
    sets: int
    disjoint: bool

    @classmethod
    def of(cls, inputs: RetrievalInputs) -> Judged:
        found = inputs.relevance
        relevant = Relevant(found.starts, found.rows)
        seen: dict[bytes, int] = {}
        own = np.array(
            [
                seen.setdefault(found.rows[start:stop].tobytes(), len(seen))
                for start, stop in zip(found.starts[:-1], found.starts[1:], strict=True)
            ],
            np.int64,
        )
        classes = np.full(next(iter(inputs.models.values()))["documents"].n, -1, np.int64)
        classes[found.rows] = own[relevant.queries]
        disjoint = bool((classes[found.rows] == own[relevant.queries]).all())
        return cls(relevant, found.grades, own, classes, len(seen), disjoint)

    @property
    def exchangeable(self) -> bool:
        """Whether sets can be exchanged among queries."""
        return self.disjoint and self.sets > 1


@dataclass(frozen=True)
class _Ranking:
    """One model made ready to rank documents."""

    search: Search
    queries: Queries
    params: RetrievalParams

    @classmethod
    def of(
        cls, context: Context, name: str, model: dict[str, Dataset], params: RetrievalParams
    ) -> _Ranking:
        def rows(what: str) -> Coded:
            if params.scoring == "dot":
                way_out = "scale the rows, or score by cosine"
                refuse_extremes(model[what], f"/inputs/models/{name}/{what}", way_out)
            cosine = params.scoring == "cosine"
            return as_given(model[what].vectors, cosine=cosine, threads=context.threads)

        search = Search(rows("documents"), context.threads)
        return cls(search, Queries(rows("queries"), own=False), params)

    def numbers(self, judged: Judged, which: Rows64, tell: Step) -> dict[str, NDArray[Any]]:
        """What is said of each of these queries."""
        relevant, ks = judged.relevant.of(which), self.params.ks
        found = standings(self.search, self.queries, which, relevant, ks[-1] + 1, tell)
        ranked = measures(
            found.starts, found.above, found.tied, found.relevant, found.tie,
            relevant.starts, judged.grades[judged.relevant.places(which)], ks,
        )  # fmt: skip
        tied, others = self._at_cutoffs(judged, which, relevant, found)
        margin, ahead, coincident = self._margins(which, relevant, found)
        return {
            "hit": ranked.hit,
            "recall": ranked.recall,
            "precision": ranked.precision,
            "ndcg": ranked.ndcg,
            "mrr": ranked.reciprocal_rank,
            "map": ranked.average_precision,
            "first_rank": ranked.first_rank,
            "margin_mean": margin,
            "margin_positive": ahead,
            "coincident": coincident,
            "tied": tied,
            "others": others,
        }

    def _at_cutoffs(
        self, judged: Judged, which: Rows64, relevant: Relevant, found: Standings
    ) -> tuple[NDArray[np.bool_], Floats]:
        """Ties at the cutoffs, and the sets of other queries above them."""
        order = np.lexsort((-found.scores, relevant.queries))
        scores, starts, ks = found.scores[order], relevant.starts, self.params.ks
        left = self.search.rows.n - relevant.counts
        own = judged.own[which]
        tied, others, open_ = cutoffs(
            starts,
            scores,
            found.ids,
            found.best,
            left > found.ids.shape[1],
            own,
            judged.classes,
            ks,
        )
        if judged.exchangeable:
            for i in np.flatnonzero(open_):
                mine = slice(starts[i], starts[i + 1])
                ids, best = self._all_others(which[i], relevant.rows[mine], found.best[i, -1])
                _, others[i : i + 1], _ = cutoffs(
                    starts[i : i + 2] - starts[i], scores[mine], ids, best, np.zeros(1, bool),
                    own[i : i + 1], judged.classes, ks,
                )  # fmt: skip
        return tied, others

    def _all_others(
        self, query: int, relevant: Rows64, least: float
    ) -> tuple[NDArray[np.int32], Floats]:
        """Every document that is not relevant and scores no less, best first."""
        scores = all_scores(self.search.rows, self.queries, query)
        scores[relevant] = -np.inf
        ids = np.flatnonzero(scores >= least)
        ids = ids[np.argsort(-scores[ids], kind="stable")]
        return ids[None].astype(np.int32), scores[ids][None]

    def _margins(
        self, which: Rows64, relevant: Relevant, found: Standings
    ) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Margin of each query, whether a relevant document is ahead, and whether both coincide."""
        order = np.lexsort((-found.scores, relevant.queries))
        first = order[relevant.starts[:-1]]
        nearest, other = relevant.rows[first], found.ids[:, 0].astype(np.int64)
        lead = found.scores[first] - found.best[:, 0]
        there = other >= 0
        margin, coincident = np.full(len(which), np.nan), np.zeros(len(which), bool)
        if self.params.scoring == "cosine":
            chosen = np.flatnonzero(there)
            own, off = (self._squares(which[chosen], rows[chosen]) for rows in (nearest, other))
            total = own + off
            near = total <= COINCIDENT
            with np.errstate(invalid="ignore", divide="ignore"):
                margin[chosen] = np.where(near, np.nan, (off - own) / total)
            margin[chosen[lead[chosen] == 0]] *= 0.0
            coincident[chosen] = near
        ahead = np.where(there, (lead > 0).astype(np.float64), np.nan)
        return margin, ahead, coincident

    def _squares(self, queries: Rows64, documents: Rows64) -> Floats:
        """Squared distance of each query's unit row to that of a document."""
        out = np.empty(len(queries))
        for which in chunks(len(queries), POINTS):
            gap = self.queries.rows.points(queries[which])
            gap -= self.search.rows.points(documents[which])
            out[which] = np.einsum("ij,ij->i", gap, gap)
        return out
