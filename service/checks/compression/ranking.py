"""How queries with fewer dimensions or bits rank the rows that have as few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from service.check import Estimate, Undefined, mean_of_means
from service.checks.compression.declared import (
    CompressionInputs,
    CompressionParams,
    Retrieved,
    RetrievedChange,
)
from service.numerics.coded import Coded, chunks
from service.numerics.neighbours import Queries, Search, Step
from service.numerics.ranking import measures
from service.numerics.resampling import Unit
from service.numerics.rows import Floats, Rows
from service.numerics.standings import Relevant, standings
from service.relevance import Relevance

BATCH = 1 << 16
NO_QUERIES = Undefined(code="no_queries", message="No queries were given.")


@dataclass(frozen=True)
class Ranked:
    """Measures of each query, (m,)."""

    hit: Floats
    ndcg: Floats
    mrr: Floats


@dataclass(frozen=True)
class Ranking:
    """
    Queries and what is right for them, the same for every variant.

    Attributes
    ----------
    of_row : (m,) unit of each query
    """

    params: CompressionParams
    queries: Rows
    relevance: Relevance
    of_row: NDArray[np.int64]
    unit: Unit

    @classmethod
    def of(cls, inputs: CompressionInputs, params: CompressionParams) -> Ranking | None:
        """None where there are no queries."""
        if inputs.queries is None or inputs.relevance is None:
            return None
        groups = inputs.query_groups
        return cls(
            params,
            inputs.queries.vectors,
            inputs.relevance,
            np.arange(inputs.queries.n) if groups is None else groups.dense,
            "row" if groups is None else "group",
        )

    def ranked(self, search: Search, queries: Coded, step: Step) -> Ranked:
        """Exact, ties averaged over their orders."""
        asked, k = Queries(queries, own=False), self.params.k
        relevant = Relevant(self.relevance.starts, self.relevance.rows)
        batches = list(chunks(queries.n, BATCH))
        found = []
        for number, batch in enumerate(batches):

            def tell(done: int, total: int, before: int = number) -> None:
                step(before * total + done, len(batches) * total)

            which = np.arange(batch.start, batch.stop)
            of = relevant.of(which)
            stand = standings(search, asked, which, of, 1, tell)
            read = measures(
                stand.starts, stand.above, stand.tied, stand.relevant, stand.tie,
                of.starts, self.relevance.grades[relevant.places(which)], [k],
            )  # fmt: skip
            found.append((read.hit[:, 0], read.ndcg[:, 0], read.reciprocal_rank))
        return Ranked(*(np.concatenate(part) for part in zip(*found, strict=True)))

    def read(self, ranked: Ranked) -> Retrieved:
        return Retrieved(**self._means(ranked, "share"))

    def change(self, before: Ranked, after: Ranked) -> RetrievedChange:
        moved = Ranked(after.hit - before.hit, after.ndcg - before.ndcg, after.mrr - before.mrr)
        return RetrievedChange(**self._means(moved, "change"))

    def _means(self, ranked: Ranked, kind: Literal["share", "change"]) -> dict[str, Any]:
        k = self.params.k
        hit, ndcg, mrr = (self._mean(v, kind) for v in (ranked.hit, ranked.ndcg, ranked.mrr))
        return {"hit": {k: hit}, "ndcg": {k: ndcg}, "mrr": mrr}

    def _mean(self, values: Floats, kind: Literal["share", "change"]) -> Estimate:
        """Mean of each group, then over groups, as check `retrieval` does."""
        return mean_of_means(values, self.of_row, self.of_row, self.params, self.unit, kind)
