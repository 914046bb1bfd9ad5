"""Rows that are equal number by number: of both sides, or inside one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.check import Context
from service.checks.drift.declared import DriftInputs
from service.checks.drift.sides import SIDES, Codes
from service.numerics.rows import row_classes


@dataclass(frozen=True)
class EqualRows:
    """
    How many rows are equal.

    Attributes
    ----------
    shared : rows of the batch that equal some row of the baseline
    repeated : rows of each side that equal an earlier row of it
    """

    shared: int
    repeated: tuple[int, int]


def equal_rows(context: Context, inputs: DriftInputs) -> EqualRows:
    """Counts of equal rows; warns of those that belong together and were not said to."""
    baseline, batch = inputs.baseline, inputs.batch
    with context.stage("equal_rows"):
        rows = np.concatenate([baseline.vectors, batch.vectors])
        classes = row_classes(rows, context.threads)
    del rows
    sides = classes[: baseline.n], classes[baseline.n :]
    shared = int(np.count_nonzero(sides[1] < baseline.n))
    if shared:
        whole = shared == batch.n
        context.warn(
            "same_rows" if whole else "shared_rows",
            f"{'All' if whole else shared} of the {batch.n} rows of the batch are rows of the "
            "baseline: where they are the same items, the sides are not independent and tests find "
            "too little.",
            "results/shared_rows",
        )
    named = inputs.baseline_units is not None
    one, other = (
        _repeated(context, name, side, named) for name, side in zip(SIDES, sides, strict=True)
    )
    return EqualRows(shared, (one, other))


def _repeated(context: Context, name: str, classes: Codes, named: bool) -> int:
    """Rows that repeat an earlier one of the same side."""
    times = np.unique(classes, return_counts=True)[1]
    repeated = len(classes) - len(times)
    if repeated and not named:
        weight = len(classes) ** 2 / float(np.square(times).sum())
        context.warn(
            "repeated_rows",
            f"{repeated} of the {len(classes)} rows of the {name} repeat others of it, so that all "
            f"weigh like {weight:.3g} that do not. Where an item was sent more than once, its rows "
            "are not independent: every p is too small and every interval too narrow. Send each item "
            "once, or name the items as `baseline_units` and `batch_units`.",
            f"results/{name}/repeated_rows",
        )
    return repeated
