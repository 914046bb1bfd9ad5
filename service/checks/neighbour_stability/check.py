"""Neighbour stability: the numbers of all queries, put together."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from service.check import (
    Arrays,
    Context,
    Estimate,
    Parts,
    Undefined,
    check,
    estimate_of,
    mean_of,
)
from service.checks.neighbour_stability.declared import (
    ConditionName,
    ConditionResults,
    MarginBin,
    NeighbourStability,
    NeighbourStabilityInputs,
    NeighbourStabilityParams,
    Quantiles,
    Reference,
    ScoreError,
    StorageFacts,
)
from service.checks.neighbour_stability.part import FACTS, part, plan
from service.numerics.moments import Units
from service.numerics.rows import Floats

NO_LABELS = Undefined(code="no_labels", message="No labels were given.")
NO_QUERY_LABELS = Undefined(
    code="no_query_labels", message="The queries have no labels: give `query_labels`."
)
ARITHMETIC = Undefined(code="not_stored", message="This condition stores nothing.")
UNTRAINED = Undefined(
    code="too_few_rows", message="256 centroids need as many calibration rows to be trained on."
)
NO_NEXT_ROW = Undefined(
    code="no_next_row", message="Every row is a neighbour: none comes after the last."
)


@check(
    version=3,
    title="Do the neighbours survive storage and arithmetic?",
    question="Do the neighbours survive half precision, int8, int4, a common offset; which "
    "provably, which not?",
    scope=(
        "Neighbours that stay are the neighbours there were, right or wrong: whether search returns "
        "the right items is another question.",
        "The gallery is fixed: intervals are about other queries of the same kind, not about other "
        "rows to search, another encoder or another index.",
        "Search is exact before and after; what an approximate index loses comes on top.",
        "Neighbours with the same label are not the same neighbours.",
    ),
    warnings={
        "ties": "Queries have a tie at the last place of their list.",
        "overflow": "Coordinates are beyond the range of a format.",
        "rows_read_as_zero": "Rows read as zero and have no direction.",
    },
    sources=(
        "doi:10.1137/1.9780898718027",
        "doi:10.1145/1852102.1852106",
        "arXiv:2401.08281",
        "doi:10.1109/TPAMI.2010.57",
    ),
    memory_factor=2.0,
    parts=Parts(plan=plan, part=part),
)
def neighbour_stability(
    context: Context,
    inputs: NeighbourStabilityInputs,
    params: NeighbourStabilityParams,
    parts: Arrays,
) -> NeighbourStability:
    """
    Do the neighbours survive storage and arithmetic? Exact before and after, with certificates.

    Every set is proved complete by rounding bounds: float32 proposes candidates, float64 decides. One
    search serves all conditions that move rows little. Time: one faiss search, one more for `offset`,
    and rescoring of the candidates near the last place; memory: the codes of one scheme, a 64 MiB
    float32 block of the gallery, and 74 candidates of each of 65,536 queries.
    """
    summary = _Summary(inputs, params, parts)
    results = NeighbourStability(
        n=inputs.gallery.n,
        queries=len(parts["margin"]),
        d=inputs.gallery.vectors.shape[1],
        k=params.k,
        scored=params.scoring,
        stored=params.storage or "unit",
        reference=summary.reference(),
        conditions={
            name: summary.condition(name)
            for conditions in params.wanted.values()
            for name in conditions
        },
    )
    _warn(context, results)
    return results


def _warn(context: Context, results: NeighbourStability) -> None:
    if results.reference.unresolved:
        context.warn(
            "ties",
            f"{results.reference.unresolved} queries have a tie at place {results.k}; ties go to the "
            "lower row.",
            "results/reference/unresolved",
        )
    for name, found in results.conditions.items():
        facts = found.storage
        if facts is None:
            continue
        where = f"results/conditions/{name}/storage"
        if facts.overflow_coordinates:
            context.warn(
                "overflow",
                f"`{name}`: {facts.overflow_coordinates} coordinates are beyond the range of the "
                f"format, first in rows {', '.join(facts.overflow_rows)}.",
                where,
            )
        if facts.zero_rows:
            context.warn(
                "rows_read_as_zero",
                f"`{name}`: {facts.zero_rows} rows read as zero and have no direction.",
                where,
            )


class _Summary:
    """Numbers of queries as estimates."""

    def __init__(
        self, inputs: NeighbourStabilityInputs, params: NeighbourStabilityParams, parts: Arrays
    ) -> None:
        self.inputs, self.params, self.parts, self.k = inputs, params, parts, params.k
        self.n = len(parts["margin"])
        groups = inputs.groups
        self.units = Units.rows(self.n) if groups is None else Units.groups(groups.dense)
        labelled = inputs.labels is not None
        self.unlabelled = None if labelled else NO_LABELS
        if labelled and inputs.queries is not None and inputs.query_labels is None:
            self.unlabelled = NO_QUERY_LABELS

    def mean(self, values: Floats, kind: Literal["share", "change"] = "share") -> Estimate:
        """The mean over queries, each unit left out in turn; NaN is left out everywhere."""
        if not np.isfinite(values).any():
            why = Undefined(code="too_few_kept", message="No query keeps two neighbours.")
            return self.unknown(why)
        return mean_of(values, self.units, self.params, kind)

    def unknown(self, why: Undefined) -> Estimate:
        return estimate_of(why, np.empty(0), self.params, self.units.name)

    def reference(self) -> Reference:
        return Reference(
            boundary_margin=_quantiles(self.parts["margin"]),
            unresolved=int(self.parts["unresolved"].sum()),
            label_precision={
                self.k: self.unknown(self.unlabelled)
                if self.unlabelled
                else self.mean(self.parts["hits"] / self.k)
            },
        )

    def condition(self, name: ConditionName) -> ConditionResults:
        def get(what: str) -> NDArray[Any]:
            return self.parts[f"{name}.{what}"]

        away = name.startswith("offset_fp16")
        against: Any = "offset_reference" if away else "reference"
        facts = None
        if f"{name}.facts" in self.parts:
            if np.isnan(self.parts[f"{name}.facts"]).any():
                return self._nothing(against, UNTRAINED, UNTRAINED)
            facts = self._facts(name)
            if facts.overflow_coordinates:
                return self._nothing(against, _not_representable(facts), facts)
        k, shared, hits = self.k, get("shared"), get("hits")
        before = self.parts["offset_reference.hits" if away else "hits"]
        margin = self.parts["offset_reference.margin" if away else "margin"]
        changed, certified = shared < k, get("certified")
        kendall = get("kendall_tau")
        precision: Any = self.unlabelled
        labelled = precision is None
        return ConditionResults.build(  # type: ignore[no-any-return]
            against=against,
            overlap={k: self.mean(shared / k)},
            jaccard={k: self.mean(shared / (2 * k - shared))},
            rbo=self.mean(get("rbo")),
            kendall_tau=_signed(self.mean((kendall + 1) / 2)),
            kendall_excluded=int(np.isnan(kendall).sum()),
            changed=self.mean(changed.astype(np.float64)),
            changed_queries=int(changed.sum()),
            turnover=float(1 - shared.sum() / (k * self.n)),
            certified=int(certified.sum()),
            uncertified_unchanged=int((~certified & ~changed).sum()),
            unresolved=int(get("unresolved").sum()),
            score_error=_errors(get("error")),
            label_precision={k: self.mean(hits / k) if labelled else self.unknown(precision)},
            label_precision_change={
                k: self.mean((hits - before) / k, "change") if labelled else self.unknown(precision)
            },
            changed_same_precision=int((changed & (hits == before)).sum())
            if labelled
            else precision,
            changed_by_margin=_bins(margin, changed),
            storage=ARITHMETIC if facts is None else facts,
        )

    def _facts(self, name: str) -> StorageFacts:
        row = dict(zip(FACTS, self.parts[f"{name}.facts"][0], strict=True))
        rows = self.parts[f"{name}.overflow"][0]
        ids = self.inputs.gallery.ids
        constant = self.parts[f"{name}.constant"][0]
        overflow = int(row["overflow_coordinates"] + row["query_overflow_coordinates"])
        return StorageFacts(
            bytes_per_vector=row["bytes_per_vector"],
            clipped_coordinates=int(row["clipped_coordinates"]),
            clipped_rows=int(row["clipped_rows"]),
            clipped_query_coordinates=int(row["clipped_query_coordinates"]),
            overflow_coordinates=overflow,
            overflow_rows=[str(i) if ids is None else ids[i] for i in rows if i >= 0],
            zero_rows=int(row["zero_rows"]),
            constant_dimensions=[int(j) for j in constant if j >= 0],
        )

    def _nothing(
        self, against: Any, why: Undefined, storage: StorageFacts | Undefined
    ) -> ConditionResults:
        null: dict[str, Any] = {
            name: why for name in ScoreError.model_fields if name != "undefined"
        }
        counts = (
            "kendall_excluded", "changed_queries", "turnover", "certified", "uncertified_unchanged",
            "unresolved", "changed_same_precision", "changed_by_margin",
        )  # fmt: skip
        at_k = {self.k: self.unknown(why)}
        return ConditionResults.build(  # type: ignore[no-any-return]
            against=against,
            overlap=at_k,
            jaccard=at_k,
            rbo=self.unknown(why),
            kendall_tau=self.unknown(why),
            changed=self.unknown(why),
            score_error=ScoreError.build(**null),
            label_precision=at_k,
            label_precision_change=at_k,
            storage=storage,
            **dict.fromkeys(counts, why),
        )


def _signed(share: Estimate) -> Estimate:
    """The estimate of 2 s - 1 from that of a share s."""
    if share.estimate is None:
        return share
    interval = share.interval
    if interval is not None:
        ends = {"low": 2 * interval.low - 1, "high": 2 * interval.high - 1}
        interval = interval.model_copy(update=ends)
    return share.model_copy(update={"estimate": 2 * share.estimate - 1, "interval": interval})


def _not_representable(facts: StorageFacts) -> Undefined:
    return Undefined(
        code="not_representable",
        message=f"{facts.overflow_coordinates} coordinates are beyond the range of the format.",
    )


def _quantiles(margins: Floats) -> Quantiles:
    if not np.isfinite(margins).all():
        names = ("min", "q25", "median", "q75", "max")
        return Quantiles.build(**dict.fromkeys(names, NO_NEXT_ROW))  # type: ignore[no-any-return]
    low, q25, median, q75, high = np.quantile(margins, [0, 0.25, 0.5, 0.75, 1])
    return Quantiles(
        min=float(low), q25=float(q25), median=float(median), q75=float(q75), max=float(high)
    )


def _errors(error: Floats) -> ScoreError:
    return ScoreError(
        median=float(np.median(error)),
        q99=float(np.quantile(error, 0.99)),
        max=float(error.max()),
    )


def _bins(margins: Floats, changed: NDArray[np.bool_]) -> list[MarginBin] | Undefined:
    """Quarters of the queries by margin, cut at inverted-CDF quartiles: equal margins together."""
    if not np.isfinite(margins).all():
        return NO_NEXT_ROW
    cuts = np.quantile(margins, [0.25, 0.5, 0.75], method="inverted_cdf")
    place = np.searchsorted(cuts, margins, side="left")
    found = []
    for b in range(4):
        chosen = place == b
        if chosen.any():
            found.append(
                MarginBin(
                    low=float(margins[chosen].min()),
                    high=float(margins[chosen].max()),
                    queries=int(chosen.sum()),
                    changed=int((chosen & changed).sum()),
                )
            )
    return found
