"""Label neighbours: do the nearest rows share a label?"""

from __future__ import annotations

from itertools import compress

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from service.check import (
    Context,
    Dots,
    Estimate,
    Inputs,
    Params,
    Results,
    ResultsAtK,
    Shown,
    Undefined,
    check,
    estimate_of,
    mean_of_means,
    measure,
    vectors,
)
from service.check import labels as column
from service.dataset import Dataset, Labels
from service.numerics.coded import as_given
from service.numerics.graph import nearest_graph
from service.numerics.resampling import Unit
from service.numerics.rows import duplicate_rows
from service.references import Label

Codes = NDArray[np.int64]


class LabelNeighboursInputs(Inputs):
    vectors: Dataset = vectors(rows="rows", least=2, more_than="k")
    """Rows to search among themselves."""
    labels: Labels = column(of="vectors", least=2, default=...)
    """What rows are about: intent, topic, source."""
    groups: Labels | None = column(of="vectors", least=2)
    """Which rows belong together (document, user): the unit of every interval."""


class LabelNeighboursParams(Params):
    k: int = Field(default=10, ge=1, le=1000)
    """Neighbours of each row, itself left out; fewer than there are rows."""
    min_support: int = Field(default=10, ge=2)
    """Rows a label needs to count in the macro mean."""
    listed_classes: int = Field(default=200, ge=0, le=10_000)
    """How many labels to list, lowest precision first."""

    def names(self) -> dict[str, list[str]]:
        return {"k": [str(self.k)]}


class Micro(ResultsAtK):
    """Every row counts the same."""

    precision: dict[int, Estimate] = measure(
        low=0, high=1, better="higher", invariance=("monotone",)
    )
    """Share of the k nearest other rows that carry the row's label, mean over rows."""
    floor: float = measure(low=0, high=1)
    """Expected of random neighbours: sum n_c (n_c - 1) / (n (n - 1)) over labels c."""
    floor_with_replacement: float = measure(low=0, high=1)
    """Chance that two independent draws agree: sum (n_c / n)^2."""
    ceiling: float = measure(low=0, high=1)
    """Highest possible value: a label of n_c rows fills at most n_c - 1 places."""


class Macro(ResultsAtK):
    """Every label of enough rows counts the same."""

    precision: dict[int, Estimate] = measure(
        low=0, high=1, better="higher", invariance=("monotone",)
    )
    """Mean over labels of the mean precision of their rows."""
    floor: float | None = measure(low=0, high=1)
    """Expected of random neighbours: mean of (n_c - 1) / (n - 1)."""
    ceiling: float | None = measure(low=0, high=1)
    """Highest possible value."""
    classes: int = measure(unit="labels", low=0)
    """Labels that count."""
    excluded: int = measure(unit="labels", low=0, better="lower")
    """Labels of fewer than `min_support` rows, left out."""


class ClassRow(Results):
    """One label."""

    label: Label
    support: int
    """Rows that carry it."""
    precision: float
    """Share of their neighbours that carry it too."""
    floor: float
    """Expected of random neighbours."""


class LabelNeighbours(Results):
    n: int
    """Rows."""
    k: int
    """Neighbours of each."""
    labels: int
    """Different labels."""
    micro: Micro
    macro: Macro
    tied_at_cutoff: int = measure(unit="rows", low=0, better="lower", invariance=("monotone",))
    """Rows whose last neighbour scores exactly as the first left out; the lower row number stays."""
    unresolved: int = measure(unit="rows", low=0, better="lower")
    """Rows where the two differ by no more than the rounding of float64, ties among them."""
    duplicates: int = measure(unit="rows", low=0, better="lower")
    """Rows equal to an earlier row; each is a neighbour of the others."""
    classes: list[ClassRow]
    """Labels of enough rows, by rising precision."""
    excluded: list[ClassRow]
    """Labels of too few rows for the macro mean, by rising precision."""

    charts = (
        Dots(
            "precision",
            "Do the nearest rows share a label?",
            tuple(
                Shown(
                    f"{mean}.precision@{{k}}",
                    told,
                    {"random neighbours": f"{mean}.floor", "highest possible": f"{mean}.ceiling"},
                )
                for mean, told in (("micro", "by row"), ("macro", "by label"))
            ),
            axis="share of neighbours with the row's label",
        ),
        Dots(
            "labels",
            "Which labels do neighbours share least?",
            (
                Shown(
                    "classes.{label}.precision",
                    "precision",
                    {"random neighbours": "classes.{label}.floor"},
                ),
            ),
            axis="share of neighbours with the label, higher is better",
        ),
    )

    def readings(self) -> list[str]:
        micro, macro = self.micro, self.macro
        by_row, by_class = micro.precision[self.k], macro.precision[self.k]
        lines = [
            f"Of the {self.k} nearest other rows, a share of {by_row:.4f} carries the same "
            f"label; random neighbours would give {micro.floor:.4f}, and no more than "
            f"{micro.ceiling:.4f} is possible."
        ]
        if by_class.estimate is not None:
            lines.append(
                f"With every label counted once it is {by_class:.4f} over {macro.classes} "
                f"labels (random {macro.floor:.4f}, highest possible {macro.ceiling:.4f}); "
                f"{macro.excluded} labels have too few rows to count."
            )
        if self.classes and self.classes[0].precision < self.classes[-1].precision:
            low = self.classes[0]
            lines.append(
                f"The label with the lowest share, {str(low.label)[:40]!r}, has {low.precision:.4f} "
                f"over {low.support} rows (random {low.floor:.4f})."
            )
        if self.tied_at_cutoff:
            lines.append(
                f"{self.tied_at_cutoff} of {self.n} rows have a tie at place {self.k}: the lower row "
                f"number was kept, and another order of the rows may move their share."
            )
        return lines


NO_CLASS = Undefined(code="too_few_rows", message="No label has `min_support` rows.")


def _by_precision(classes: list[ClassRow], most: int) -> list[ClassRow]:
    """Lowest first, the larger first among equals."""
    return sorted(classes, key=lambda row: (row.precision, -row.support))[:most]


@check(
    version=2,
    title="Do neighbours share a label?",
    question="Do the nearest rows share a label, how much more than random ones, and which "
    "labels do not?",
    scope=(
        "Sharing a label is not being the same neighbour: two models with equal shares may list "
        "different rows.",
        "Labels that neighbours do not share may still be recovered by a classifier.",
        "Intervals leave out queries and keep the rows that are searched; they do not cover another "
        "collection.",
    ),
    warnings={
        "at_floor": "The share is not told apart from that of random neighbours.",
        "ties": "Rows have a tie at the last place of their list.",
    },
    sources=(
        "doi:10.1109/TIT.1967.1053964",
        "doi:10.1214/aos/1176345462",
        "doi:10.1093/biomet/26.4.404",
    ),
    memory_factor=2.0,
)
def label_neighbours(
    context: Context, inputs: LabelNeighboursInputs, params: LabelNeighboursParams
) -> LabelNeighbours:
    """
    Whether the k nearest other rows by cosine carry the row's own label, beside what chance gives.

    It takes one model. Two are compared by a report of each on the same rows, labels and groups, whose
    intervals are not those of the difference; `linear_probe` and `retrieval` give paired differences.
    The search is exact. Time O(n^2 d); memory O(n k), and 2^16 lists of k + 64 places at a time.
    """
    rows, codes = inputs.vectors.vectors, inputs.labels.dense
    n, k = len(rows), params.k
    with context.stage("neighbours") as step:
        as_read = as_given(rows, cosine=True, threads=context.threads)
        graph = nearest_graph(as_read, k, context.threads, step)
    with context.stage("duplicates"):
        repeated, _ = duplicate_rows(rows, context.threads)

    shares = (codes[graph.ids] == codes[:, None]).mean(axis=1)
    groups = inputs.groups
    of_row = np.arange(n) if groups is None else groups.dense
    unit: Unit = "row" if groups is None else "group"
    counts = np.bincount(codes)
    floors, ceilings = (counts - 1) / (n - 1), np.minimum(counts - 1, k) / k
    counted = counts >= params.min_support
    some, chosen = bool(counted.any()), counted[codes]
    means = np.bincount(codes, weights=shares) / counts
    by_class = (
        mean_of_means(shares[chosen], codes[chosen], of_row[chosen], params, unit)
        if some
        else estimate_of(NO_CLASS, np.empty(0), params, unit)
    )
    listed = [
        ClassRow(label=label, support=int(count), precision=float(mean), floor=float(floor))
        for label, count, mean, floor in zip(
            inputs.labels.levels, counts, means, floors, strict=True
        )
    ]
    results = LabelNeighbours(
        n=n,
        k=k,
        labels=len(counts),
        micro=Micro(
            precision={k: mean_of_means(shares, np.zeros(n, np.int64), of_row, params, unit)},
            floor=float((counts / n * floors).sum()),
            floor_with_replacement=float(np.square(counts / n).sum()),
            ceiling=float((counts / n * ceilings).sum()),
        ),
        macro=Macro.build(
            precision={k: by_class},
            floor=float(floors[counted].mean()) if some else NO_CLASS,
            ceiling=float(ceilings[counted].mean()) if some else NO_CLASS,
            classes=int(counted.sum()),
            excluded=int((~counted).sum()),
        ),
        tied_at_cutoff=graph.tied,
        unresolved=graph.unresolved,
        duplicates=repeated,
        classes=_by_precision(list(compress(listed, counted)), params.listed_classes),
        excluded=_by_precision(list(compress(listed, ~counted)), params.listed_classes),
    )
    _warn(context, results)
    return results


def _warn(context: Context, results: LabelNeighbours) -> None:
    precision = results.micro.precision[results.k]
    if precision.interval is not None and precision.interval.low <= results.micro.floor:
        context.warn(
            "at_floor",
            f"A share of {precision:.4f} is not told apart from the {results.micro.floor:.4f} that "
            "random neighbours give.",
            f"results/micro/precision@{results.k}",
        )
    if results.tied_at_cutoff:
        context.warn(
            "ties",
            f"{results.tied_at_cutoff} rows have a tie at the last place; equal rows are the usual "
            "cause (check `geometry` counts them).",
            "results/tied_at_cutoff",
        )
