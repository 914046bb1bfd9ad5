"""Inputs, parameters and results of model comparison."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from service.check import (
    Dots,
    Estimate,
    Inputs,
    Params,
    Results,
    ResultsAtK,
    Shown,
    labels,
    measure,
    models,
)
from service.dataset import Dataset, Labels


class ModelComparisonInputs(Inputs):
    models: dict[str, Dataset] = models(rows="rows", least=4, few=2, more_than="k")
    """Two to eight models over the same rows, of any dimensions."""
    groups: Labels | None = labels(of="models", least=2)
    """Which rows belong together (source document, user): the unit of every interval."""


class ModelComparisonParams(Params):
    k: int = Field(default=10, ge=1, le=256)
    """Neighbours of each row, by cosine."""
    normalise: bool = True
    """Compare unit rows by CKA and Procrustes; false compares rows as given."""
    most_changed: int = Field(default=20, ge=0, le=1000)
    """How many rows to list whose neighbours differ most."""

    def names(self) -> dict[str, list[str]]:
        return {"k": [str(self.k)]}


class ModelFacts(Results):
    """One model by itself."""

    d: int
    """Dimensions."""
    unresolved: int = measure(unit="rows", low=0, better="lower")
    """Rows whose last neighbour and the next row score the same within rounding: ties."""


class ChangedRow(Results):
    """A row and what its two sets of neighbours share."""

    id: str
    """Its id, or its row number."""
    overlap: float
    """Share of its neighbours in the earlier model that are its neighbours in the later one."""


class Procrustes(Results):
    """The later model mapped to the earlier one by a rotation, a scale and a shift."""

    residual: Estimate = measure(
        drawn="held-out",
        low=0,
        better="lower",
        invariance=("uniform_scale", "isometry", "similarity"),
    )
    """Squared distance of held-out rows to their mapped partners over that to the mean of the rows
    fitted on: 0 is the same up to such a map, 1 is no better than the mean."""
    train_rows: int
    """Rows the map was fitted on."""
    test_rows: int
    """Rows it was judged by."""


class ModelPair(ResultsAtK):
    """How far two models agree."""

    overlap: dict[int, Estimate] = measure(
        low=0, high=1, better="higher", invariance=("row_scale", "orthogonal", "monotone")
    )
    """Share of a row's neighbours in one model that are its neighbours in the other, mean over rows."""
    jaccard: dict[int, Estimate] = measure(
        low=0, high=1, better="higher", invariance=("row_scale", "orthogonal", "monotone")
    )
    """Shared over all neighbours of both sets, mean over rows."""
    mutual: dict[int, Estimate] = measure(
        low=0, high=1, better="higher", invariance=("row_scale", "orthogonal", "monotone")
    )
    """Of the reciprocal neighbours of a row, those that list it too, in either model: the share that
    is reciprocal in both, mean over rows that have one."""
    mutual_excluded: int = measure(
        unit="rows", low=0, invariance=("row_scale", "orthogonal", "monotone")
    )
    """Rows without a reciprocal neighbour in either model."""
    changed: Estimate = measure(
        low=0, high=1, better="lower", invariance=("row_scale", "orthogonal", "monotone")
    )
    """Share of rows whose set of neighbours is another."""
    changed_sets: int = measure(
        unit="rows", low=0, better="lower", invariance=("row_scale", "orthogonal", "monotone")
    )
    """Rows whose set of neighbours is another."""
    spearman: Estimate = measure(
        low=-1, high=1, better="higher", invariance=("row_scale", "orthogonal", "monotone")
    )
    """Rank correlation of the cosines of pairs of rows; units are left out in at most 32 blocks."""
    spearman_error: float | None = measure(low=0, better="lower")
    """Standard error that drawing the pairs adds, within the interval; 0 where all were taken."""
    cka: Estimate = measure(
        low=-1, high=1, better="higher", invariance=("uniform_scale", "isometry", "similarity")
    )
    """Debiased linear CKA: 1 is the same up to rotation and scale, 0 is what unrelated models have."""
    procrustes: Procrustes
    most_changed: list[ChangedRow]
    """Rows whose sets of neighbours differ, fewest shared first."""


class ModelComparison(Results):
    n: int
    """Rows."""
    k: int
    """Neighbours of each row."""
    overlap_chance: float
    """Overlap of sets that are drawn at random: k / (n - 1)."""
    pairs_of_rows: int
    """Pairs of rows behind each Spearman correlation."""
    models: dict[str, ModelFacts]
    pairs: dict[str, dict[str, ModelPair]]
    """Each pair of models once, the later in the request first; measures are found by either order."""

    charts = (
        Dots(
            "agreement",
            "How far do models agree?",
            (
                Shown("pairs.{later}.{earlier}.overlap@{k}", beside={"chance": "overlap_chance"}),
                Shown("pairs.{later}.{earlier}.jaccard@{k}"),
                Shown("pairs.{later}.{earlier}.mutual@{k}"),
                Shown("pairs.{later}.{earlier}.spearman", "Spearman"),
                Shown("pairs.{later}.{earlier}.cka", "CKA"),
            ),
            axis="agreement",
            colours="pair",
            lines={"the same": 1},
        ),
        Dots(
            "procrustes",
            "How much does the best rotation, scale and shift leave unexplained?",
            (Shown("pairs.{later}.{earlier}.procrustes.residual"),),
            axis="share of the variation of held-out rows",
            lines={"no better than the mean": 1},
        ),
        Dots(
            "rows",
            "Which rows have the most different neighbours?",
            (Shown("pairs.{later}.{earlier}.most_changed.{id}.overlap"),),
            axis="share of neighbours in common",
            panels="pair",
        ),
    )

    def value(self, key: str) -> Any:
        if key != "pairs":
            return super().value(key)
        either: dict[str, dict[str, ModelPair]] = {}
        for later, others in self.pairs.items():
            for earlier, pair in others.items():
                either.setdefault(later, {})[earlier] = pair
                either.setdefault(earlier, {})[later] = pair
        return either

    def readings(self) -> list[str]:
        lines = []
        for later, others in self.pairs.items():
            for earlier, pair in others.items():
                lines.append(
                    f"{later} and {earlier}: {pair.changed_sets} of {self.n} rows have another set of "
                    f"{self.k} neighbours, overlap {pair.overlap[self.k]:.4f} (1 is the same, "
                    f"{self.overlap_chance:.4f} is chance)."
                )
                lines.append(
                    f"{later} and {earlier}: cosines of pairs of rows correlate by rank with "
                    f"{pair.spearman:.4f}, debiased linear CKA is {pair.cka:.4f} (1 is the same up to "
                    "rotation and scale, 0 is unrelated)."
                )
                lines.append(
                    f"{later} and {earlier}: after the best rotation, scale and shift, fitted on "
                    f"{pair.procrustes.train_rows} rows, {pair.procrustes.residual:.4f} of the "
                    f"variation of {pair.procrustes.test_rows} held-out rows stays unexplained (0 is "
                    "the same, 1 is no better than the mean)."
                )
        return lines
