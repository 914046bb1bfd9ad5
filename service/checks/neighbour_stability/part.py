"""What happens to the neighbours of a range of queries, condition by condition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.check import Arrays, Context
from service.checks.neighbour_stability.declared import (
    NeighbourStabilityInputs,
    NeighbourStabilityParams,
    Scheme,
)
from service.dataset import Dataset
from service.errors import Internal
from service.numerics import agreement, pairs
from service.numerics.coded import Coded, as_given, chunks
from service.numerics.conditions import Condition, Given, Outcome
from service.numerics.extremes import refuse_extremes
from service.numerics.neighbours import EXTRA, Effort, Queries, Search, cut
from service.numerics.single import in_single
from service.numerics.storage_schemes import (
    Fitted,
    SchemeName,
    Stored,
    TooFewToTrain,
    fit,
    offset,
    store,
)

BLOCK = 4096
"""Queries of a block: the grid that shards share."""
BATCH_BLOCKS = 16
SHOWN = 10
FACTS = (  # NaN where the scheme could not be trained
    "clipped_coordinates",
    "clipped_rows",
    "clipped_query_coordinates",
    "overflow_coordinates",
    "query_overflow_coordinates",
    "zero_rows",
    "bytes_per_vector",
)


def plan(inputs: NeighbourStabilityInputs, params: NeighbourStabilityParams) -> int:
    """Blocks of queries."""
    return -(-(inputs.queries or inputs.gallery).n // BLOCK)


def part(
    context: Context,
    inputs: NeighbourStabilityInputs,
    params: NeighbourStabilityParams,
    blocks: range,
) -> Arrays:
    """
    Numbers of each query in these blocks, by condition, and facts of each scheme once a block.

    Names are `<what>` for the reference and `<condition>.<what>` for a condition.
    """
    grid = Grid(context, inputs, params)
    n = grid.asked.rows.n
    batches = [blocks[i : i + BATCH_BLOCKS] for i in range(0, len(blocks), BATCH_BLOCKS)]
    steps = 1 + len(params.wanted)
    found: list[dict[str, NDArray[Any]]] = []
    with context.stage("neighbours") as step:
        for number, batch in enumerate(batches):
            which = np.arange(batch.start * BLOCK, min(batch.stop * BLOCK, n))

            def tell(done: int, total: int, before: int = number * steps) -> None:
                step(100 * before + 100 * done // total, 100 * steps * len(batches))

            given = grid.given(grid.native, grid.asked, which, tell)
            arrays = grid.reference(given)
            for place, scheme in enumerate(params.wanted, start=1):
                arrays |= grid.conditions(given, scheme, len(batch))
                step(100 * (number * steps + place + 1), 100 * steps * len(batches))
            found.append(arrays)
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


@dataclass
class Grid:
    """A gallery, its queries, and what is asked of them."""

    context: Context
    inputs: NeighbourStabilityInputs
    params: NeighbourStabilityParams

    def __post_init__(self) -> None:
        self.threads = self.context.threads
        self.cosine = self.params.scoring == "cosine"
        self.unit = self.params.storage == "unit"
        gallery = self._rows(self.inputs.gallery, "gallery")
        self.native = Search(gallery, self.threads)
        given = self.inputs.queries
        rows = gallery if given is None else self._rows(given, "queries")
        self.asked = Queries(rows, own=given is None)

    def _rows(self, data: Dataset, role: str) -> Coded:
        if not self.unit:
            way_out = "scale the rows, or bring them to length one: `storage: unit`"
            refuse_extremes(data, f"/inputs/{role}", way_out)
        return as_given(data.vectors, cosine=self.cosine or self.unit, threads=self.threads)

    def given(
        self,
        search: Search,
        asked: Queries,
        which: NDArray[np.int64],
        tell: Callable[[int, int], None] = lambda done, total: None,
    ) -> Given:
        """Exact neighbours of rows as given, and the candidates they were found among."""
        k = self.params.k
        listed = search.listed(asked, which, k + EXTRA, tell)
        ids, scores, effort = search.proved(asked, which, listed, k)
        self._spent("reference", effort)
        return Given(search, asked, which, listed, cut(ids, scores, k))

    def _spent(self, name: str, effort: Effort) -> None:
        for way, queries in asdict(effort).items():
            self.context.spent(f"{name}.{way}", queries)

    def reference(self, given: Given) -> dict[str, NDArray[Any]]:
        """Numbers of the reference, by query."""
        slack = given.search.tau(given.query_norms)
        return {
            "margin": given.found.gap,
            "unresolved": given.found.gap <= slack,
            "hits": self._hits(given, given.found.ids),
        }

    def conditions(self, given: Given, scheme: Scheme, blocks: int) -> dict[str, NDArray[Any]]:
        """Numbers of a scheme's conditions, by query."""
        if scheme == "fp32_arithmetic":
            rows = in_single(given.search.rows, self.threads)
            own = self.asked.own
            asked = Queries(rows if own else in_single(self.asked.rows, self.threads), own)
            condition = Condition(given.search, rows, asked, single=True, threads=self.threads)
            return self._numbers(scheme, given, self._outcome(scheme, condition, given))
        if scheme == "offset":
            return self._offset(given, blocks)
        return dict(self._stored(scheme, scheme, given, blocks))

    def _offset(self, given: Given, blocks: int) -> dict[str, NDArray[Any]]:
        length = self.params.offset
        rows = offset(given.search.rows, length, threads=self.threads)
        asked = self.asked
        moved = Queries(
            rows if asked.own else offset(asked.rows, length, threads=self.threads), asked.own
        )
        away = self.given(Search(rows, self.threads), moved, given.which)
        arrays = self._numbers("offset_reference", given, self._moved(given, away))
        arrays["offset_reference.margin"] = away.found.gap
        return arrays | dict(self._stored("offset_fp16", "fp16", away, blocks))

    def _moved(self, given: Given, away: Given) -> Outcome:
        """The neighbours among other rows, which certify nothing of those as given."""
        m = len(given.which)
        scores = np.empty(given.found.ids.shape)
        for part in chunks(m, BLOCK):
            rows, divisors = away.queries.take(away.which[part])
            form = (*away.search.rows.form, away.search.rows.divisors)
            pairs.score_listed(rows, divisors, given.found.ids[part], *form, scores[part])
        slack = away.search.tau(away.query_norms)
        return Outcome(
            ids=away.found.ids,
            error=np.abs(scores - given.found.scores).max(axis=1),
            certified=np.zeros(m, bool),
            unresolved=np.minimum(away.found.gap, given.found.gap) <= slack,
        )

    def _stored(
        self, name: str, scheme: SchemeName, given: Given, blocks: int
    ) -> Iterator[tuple[str, NDArray[Any]]]:
        gallery, asked = given.search.rows, given.queries
        names = self.params.names()["condition"]
        ends = [end for end in ("gallery", "both") if f"{name}_{end}" in names]
        try:
            fitted = self._fitted(scheme, given)
        except TooFewToTrain:
            for end in ends:
                yield f"{name}_{end}.facts", np.full((blocks, len(FACTS)), np.nan)
            return
        kept = self._kept(fitted, gallery)
        shared = asked.own or "both" not in ends
        kept_queries = kept if shared else self._kept(fitted, asked.rows)
        for end in ends:
            both = end == "both"
            queries = Queries(kept_queries.rows, asked.own) if both else asked
            facts = _facts(kept, kept_queries if both and not asked.own else None)
            yield f"{name}_{end}.facts", np.tile([*facts, fitted.bytes_per_vector], (blocks, 1))
            yield f"{name}_{end}.overflow", _first(kept.overflow, blocks)
            yield f"{name}_{end}.constant", _first(np.array(fitted.constant, np.int64), blocks)
            if len(kept.overflow) or (both and len(kept_queries.overflow)):
                outcome = None
            else:
                condition = Condition(given.search, kept.rows, queries, threads=self.threads)
                outcome = self._outcome(f"{name}_{end}", condition, given)
            yield from self._numbers(f"{name}_{end}", given, outcome).items()

    def _fitted(self, scheme: SchemeName, given: Given) -> Fitted:
        rows = given.search.rows
        if self.inputs.calibration is not None:
            rows = self._rows(self.inputs.calibration, "calibration")
            if given.search is not self.native:
                rows = offset(rows, self.params.offset, threads=self.threads)
        points = rows.points if self.unit else rows.take
        return fit(scheme, points, rows.n, rows.d, self.threads)

    def _kept(self, scheme: Fitted, rows: Coded) -> Stored:
        points = rows.points if self.unit else rows.take
        return store(scheme, points, rows.n, rows.d, cosine=self.cosine, threads=self.threads)

    def _outcome(self, name: str, condition: Condition, given: Given) -> Outcome:
        outcome, effort = condition.outcome(given)
        self._spent(name, effort)
        changed = (np.sort(outcome.ids, axis=1) != np.sort(given.found.ids, axis=1)).any(axis=1)
        if (changed & outcome.certified).any():
            raise Internal(f"A query that was certified unchanged changed under `{name}`.")
        return outcome

    def _numbers(self, name: str, given: Given, outcome: Outcome | None) -> dict[str, NDArray[Any]]:
        m = len(given.which)
        shared, rbo, tau = np.zeros(m, np.int64), np.zeros(m), np.full(m, np.nan)
        blank = np.zeros(m, bool)
        if outcome is None:
            numbers: dict[str, NDArray[Any]] = {
                "error": np.zeros(m), "certified": blank, "unresolved": blank,
                "hits": np.zeros(m, np.int64),
            }  # fmt: skip
        else:
            agreement.compare(given.found.ids, outcome.ids, agreement.PERSISTENCE, shared, rbo, tau)
            numbers = {
                "error": outcome.error,
                "certified": outcome.certified,
                "unresolved": outcome.unresolved,
                "hits": self._hits(given, outcome.ids),
            }
        numbers |= {"shared": shared, "rbo": rbo, "kendall_tau": tau}
        return {f"{name}.{what}": values for what, values in numbers.items()}

    def _hits(self, given: Given, ids: NDArray[np.int32]) -> NDArray[np.int64]:
        """Neighbours with the query's label; zeros without labels."""
        if self.inputs.labels is None:
            return np.zeros(len(ids), np.int64)
        of_rows = self.inputs.labels.codes
        wanted = of_rows if given.queries.own else self.wanted_labels()
        same = of_rows[ids] == wanted[given.which, None]
        return np.asarray(np.count_nonzero(same, axis=1))

    def wanted_labels(self) -> NDArray[np.int64]:
        """The label of each query as a code of the gallery's labels; -1 where no row has it."""
        if self.inputs.query_labels is None or self.inputs.labels is None:
            return np.full(self.asked.rows.n, -1)
        codes = {(type(level), level): code for code, level in enumerate(self.inputs.labels.levels)}
        asked = self.inputs.query_labels.levels
        levels = [codes.get((type(level), level), -1) for level in asked]
        return np.asarray(np.array(levels, np.int64)[self.inputs.query_labels.codes])


def _facts(kept: Stored, queries: Stored | None) -> list[float]:
    return [
        kept.clipped_coordinates,
        kept.clipped_rows,
        0 if queries is None else queries.clipped_coordinates,
        kept.overflow_coordinates,
        0 if queries is None else queries.overflow_coordinates,
        kept.rows.zero_rows,
    ]


def _first(values: NDArray[np.int64], blocks: int) -> NDArray[np.int64]:
    """The first ten values, once a block; -1 beyond them."""
    row = np.full(SHOWN, -1, np.int64)
    row[: len(values[:SHOWN])] = values[:SHOWN]
    return np.tile(row, (blocks, 1))
