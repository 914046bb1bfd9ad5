"""Model comparison: neighbours, similarities and spaces of models over the same rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from service.check import (
    Context,
    Estimate,
    Undefined,
    check,
    estimate_of,
    mean_of,
)
from service.checks.model_comparison.declared import (
    ChangedRow,
    ModelComparison,
    ModelComparisonInputs,
    ModelComparisonParams,
    ModelFacts,
    ModelPair,
    Procrustes,
)
from service.checks.model_comparison.neighbourhoods import (
    Agreement,
    Neighbourhoods,
    agreement,
    neighbourhoods,
)
from service.dataset import Dataset
from service.numerics.alignment import NO_SPREAD, PairSplit, similarity
from service.numerics.cka import Hsic, cka, hsic
from service.numerics.coded import as_given
from service.numerics.moments import Units
from service.numerics.pair_ranks import LeftOut, Numbers, Pairs, ranks, sampling_error, spearman
from service.numerics.rows import (
    Directions,
    Floats,
    Rows,
    Source,
    Stored,
    blocks,
    norms,
    ordered_map,
    to_about_one,
)

NO_RECIPROCAL = Undefined(
    code="no_reciprocal_neighbours", message="No row has a reciprocal neighbour in either model."
)
EQUAL_COSINES = Undefined(
    code="no_spread", message="All cosines of one model are equal within rounding."
)
NO_VARIATION = Undefined(
    code="no_spread", message="The rows of one model do not vary beyond rounding."
)
TOO_FEW_HELD_OUT = Undefined(
    code="too_few_rows", message="One group leaves no rows to judge a map by."
)


@check(
    version=1,
    title="Do models agree about the same rows?",
    question="How far do models agree about the same rows: neighbours, similarities of pairs, "
    "whole spaces?",
    scope=(
        "Agreement is not quality: models may agree on wrong neighbours and differ in right ones.",
        "No cosine between rows of two models is reported: their spaces have no axes in common.",
        "Intervals of neighbours keep the rows that are searched; they do not cover other rows to "
        "search or another training run of a model.",
        "The interval of the Procrustes residual takes the split and the fitted map as given.",
        "High CKA does not promise equal neighbours: few directions of large variance can carry it.",
    ),
    warnings={
        "ties": "Rows have a tie at the last place of their list.",
        "underdetermined_map": "Rows are too few for the rotation between two models.",
    },
    sources=(
        "arXiv:1905.00414",
        "arXiv:2010.15327",
        "doi:10.1214/14-AOS1255",
        "doi:10.1007/BF02291266",
        "doi:10.1214/aos/1176345462",
    ),
    memory_factor=2.0,
)
def model_comparison(
    context: Context, inputs: ModelComparisonInputs, params: ModelComparisonParams
) -> ModelComparison:
    """
    How far models agree about the same rows: neighbours, similarities of pairs, and whole spaces.

    Neighbours are exact. Time O(n^2 d) for each model and O(n d^2) for each pair of models; memory
    O(n k) and a few blocks, and 4 bytes a model for each of up to 8 million pairs of rows, which are
    all pairs of up to 4,000 rows and 2^20 drawn pairs of more.
    """
    comparison = _Comparison(context, inputs, params)
    lists = comparison.neighbours()
    ranked, pairs = comparison.ranked()
    left_out = LeftOut.of(comparison.units, pairs, context.seed)
    count, exact = len(pairs), pairs.exact
    del pairs
    found: dict[str, dict[str, ModelPair]] = {}
    own = comparison.own_products()
    together = list(combinations(inputs.models, 2))
    with context.stage("pairs") as step:
        for number, (earlier, later) in enumerate(together, start=1):
            shared = agreement(lists[earlier], lists[later], context.threads)
            rank = (ranked[earlier], ranked[later])

            def tell(done: int, total: int, before: int = number - 1) -> None:
                step(100 * before + 100 * done // total, 100 * len(together))

            correlation, without = spearman(*rank, left_out, context.threads, tell)
            cross = hsic(
                comparison.rows[earlier], comparison.rows[later], comparison.units, context.threads
            )
            similar, similar_without = cka(cross, own[earlier], own[later])
            found.setdefault(later, {})[earlier] = ModelPair.build(
                **comparison.of_neighbours(shared),
                spearman=comparison.estimated(
                    EQUAL_COSINES if np.isnan(correlation) else correlation, without
                ),
                spearman_error=EQUAL_COSINES
                if np.isnan(correlation)
                else 0.0
                if exact
                else sampling_error(*rank),
                cka=comparison.estimated(
                    NO_VARIATION if similar is None else similar, similar_without
                ),
                procrustes=comparison.procrustes(earlier, later),
                most_changed=comparison.most_changed(shared),
            )
    n = comparison.units.n
    return ModelComparison(
        n=n,
        k=params.k,
        overlap_chance=params.k / (n - 1),
        pairs_of_rows=count,
        models={
            name: ModelFacts(d=comparison.rows[name].d, unresolved=lists[name].unresolved)
            for name in inputs.models
        },
        pairs=found,
    )


@dataclass
class _Comparison:
    """Models over the same rows, and what is asked of them."""

    context: Context
    inputs: ModelComparisonInputs
    params: ModelComparisonParams

    def __post_init__(self) -> None:
        groups = self.inputs.groups
        first = next(iter(self.inputs.models.values()))
        self.codes = np.arange(first.n) if groups is None else groups.dense
        self.units = Units.rows(first.n) if groups is None else Units.groups(self.codes)
        self.rows = {name: self._features(data) for name, data in self.inputs.models.items()}
        self.split = PairSplit.of(self.units, self.context.seed, self.units.n)

    def _features(self, data: Dataset) -> Source:
        if self.params.normalise:
            return Directions(data.vectors)
        return Stored(data.vectors, to_about_one(_longest(data.vectors, self.context.threads)))

    def neighbours(self) -> dict[str, Neighbourhoods]:
        found = {}
        with self.context.stage("neighbours") as step:
            for place, (name, data) in enumerate(self.inputs.models.items()):

                def tell(done: int, total: int, before: int = place) -> None:
                    step(100 * before + 100 * done // total, 100 * len(self.inputs.models))

                rows = as_given(data.vectors, cosine=True, threads=self.context.threads)
                found[name] = neighbourhoods(rows, self.params.k, self.context.threads, tell)
                if found[name].unresolved:
                    self.context.warn(
                        "ties",
                        f"{name}: {found[name].unresolved} rows have a tie at place {self.params.k}; "
                        "ties go to the lower row.",
                        f"results/models/{name}/unresolved",
                    )
        return found

    def ranked(self) -> tuple[dict[str, Numbers], Pairs]:
        """Ranks of the cosines of pairs of rows."""
        found = {}
        with self.context.stage("ranks") as step:
            pairs = Pairs.of(self.units.n, self.context.seed)
            for done, (name, data) in enumerate(self.inputs.models.items(), start=1):
                rows = as_given(data.vectors, cosine=True, threads=self.context.threads)
                found[name] = ranks(rows, pairs, self.context.threads)
                step(done, len(self.inputs.models))
        return found, pairs

    def own_products(self) -> dict[str, Hsic]:
        """The HSIC of each model with itself."""
        found = {}
        with self.context.stage("self_similarity") as step:
            for done, (name, rows) in enumerate(self.rows.items(), start=1):
                found[name] = hsic(rows, rows, self.units, self.context.threads)
                step(done, len(self.rows))
        return found

    def estimated(self, value: float | Undefined, without: Floats) -> Estimate:
        return estimate_of(value, without, self.params, self.units.name)

    def of_neighbours(self, shared: Agreement) -> dict[str, object]:
        k, same = self.params.k, shared.shared
        known = np.isfinite(shared.mutual)

        def mean(values: Floats) -> Estimate:
            return mean_of(values, self.units, self.params)

        return {
            "overlap": {k: mean(same / k)},
            "jaccard": {k: mean(same / (2 * k - same))},
            "mutual": {
                k: mean(shared.mutual)
                if known.any()
                else self.estimated(NO_RECIPROCAL, np.empty(0))
            },
            "mutual_excluded": int(np.count_nonzero(~known)),
            "changed": mean((same < k).astype(np.float64)),
            "changed_sets": int(np.count_nonzero(same < k)),
        }

    def most_changed(self, shared: Agreement) -> list[ChangedRow]:
        ids = next((data.ids for data in self.inputs.models.values() if data.ids is not None), None)
        order = np.argsort(shared.shared, kind="stable")[: self.params.most_changed]
        return [
            ChangedRow(
                id=str(row) if ids is None else ids[row],
                overlap=float(shared.shared[row] / self.params.k),
            )
            for row in order
            if shared.shared[row] < self.params.k
        ]

    def procrustes(self, earlier: str, later: str) -> Procrustes:
        a, b, split = self.rows[earlier], self.rows[later], self.split
        train, test = split.train, split.test
        if len(train) < max(a.d, b.d):
            self.context.warn(
                "underdetermined_map",
                f"{len(train)} rows leave a rotation of {max(a.d, b.d)} dimensions underdetermined: "
                "the Procrustes residual is that of too few rows to fit on.",
                f"results/pairs/{later}/{earlier}/procrustes",
            )
        return Procrustes(residual=self._residual(a, b), train_rows=len(train), test_rows=len(test))

    def _residual(self, a: Source, b: Source) -> Estimate:
        nothing, test = np.empty(0), self.split.test
        if not len(test):
            return self.estimated(TOO_FEW_HELD_OUT, nothing)
        fitted = similarity(a, b, self.split.train)
        missed, around = fitted.residuals(a, b, test)
        if not fitted.varies or around.sum() <= NO_SPREAD * len(test):
            return self.estimated(NO_VARIATION, nothing)
        _, owner = np.unique(self.codes[test], return_inverse=True)
        missed_by, around_by = (np.bincount(owner, weights=part) for part in (missed, around))
        with np.errstate(divide="ignore", invalid="ignore"):
            without = (missed.sum() - missed_by) / (around.sum() - around_by)
        return self.estimated(float(missed.sum() / around.sum()), without)


def _longest(rows: Rows, threads: int) -> float:
    parts = ordered_map(
        lambda which: norms(rows[which].astype(np.float64)).max(), blocks(*rows.shape), threads
    )
    return float(max(parts))
