"""Means to centre by, centred rows, and the floor that fitting on the same rows makes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.check import (
    Undefined,
)
from service.checks.cosine_floor.declared import (
    CosineFloorInputs,
    Means,
    MeanSource,
    Reading,
)
from service.dataset import Dataset
from service.errors import Fault, ZeroRows, counted
from service.numerics.moments import Units
from service.numerics.rows import (
    Directions,
    Floats,
    blocks,
    mean_row,
    ordered_map,
)

NOTHING_LEFT = 1e-9
FEW_ROWS_FOR_A_MEAN = 1000


@dataclass(frozen=True)
class FittedMeans:
    """Means to centre by, with their provenance."""

    a: Floats
    b: Floats
    sources: Means


def fit_means(inputs: CosineFloorInputs, shared: bool, threads: int) -> FittedMeans:
    sides = {"a": inputs.a, "b": inputs.b}
    fits = {"a": inputs.fit_a, "b": inputs.fit_b}

    def mean_of(roles: dict[str, Dataset]) -> tuple[Floats, MeanSource]:
        count = sum(data.n for data in roles.values())
        total = sum(data.n * mean_row(Directions(data.vectors), threads) for data in roles.values())
        return np.asarray(total) / count, MeanSource(rows="+".join(roles), count=count)

    if shared:
        given = {f"fit_{side}": fit for side, fit in fits.items() if fit is not None}
        mean, source = mean_of(given or sides)
        return FittedMeans(mean, mean, Means(a=source, b=source))
    (a, from_a), (b, from_b) = (
        mean_of({side: data} if (fit := fits[side]) is None else {f"fit_{side}": fit})
        for side, data in sides.items()
    )
    return FittedMeans(a, b, Means(a=from_a, b=from_b))


def centre(data: Dataset, mean: Floats, role: str, threads: int) -> Directions:
    """Centred rows, unless some row has nothing left to normalise."""
    centred = Directions(data.vectors, mean)
    short = ordered_map(
        lambda which: which.start + np.flatnonzero(centred.residual_norms(which) < NOTHING_LEFT),
        blocks(centred.n, centred.d),
        threads,
    )
    bad = np.concatenate(list(short))
    if len(bad):
        raise ZeroRows(
            f"`{role}` equals the mean it is centred by in {counted(len(bad), 'row')}: no direction is "
            "left.",
            [
                Fault(
                    pointer=f"/inputs/{role}",
                    message="fit the mean on other rows, or leave these rows out",
                    count=len(bad),
                    rows=data.name_rows(bad),
                )
            ],
        )
    return centred


def induced_floor(
    reading: Reading, means: FittedMeans, a: Directions, b: Directions, units: Units, threads: int
) -> float | Undefined:
    """Centred floor made by fitting the mean on the compared rows, to first order in 1/n."""
    n, matched = reading.n, reading.matched.estimate or 0.0
    sources = {means.sources.a.rows, means.sources.b.rows}
    if not sources & {"a", "b", "a+b"}:
        return Undefined(code="mean_fitted_elsewhere", message="The means come from other rows.")
    if units.name == "group" or n >= FEW_ROWS_FOR_A_MEAN:
        return Undefined(
            code="not_estimated", message="Given without groups and below 1000 rows only."
        )
    own = -matched / (n - 1)
    if sources != {"a+b"}:
        return own
    apart = mean_row(a, threads) - mean_row(b, threads)
    room = 1 - float(means.a @ means.a)
    return own - n * float(apart @ apart) / (4 * (n - 1) * room)
