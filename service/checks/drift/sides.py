"""The two sides of a request as rows of one source, and what belongs together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from service.check import Context, Estimate, Scale, Shapes, Undefined, unpaired_estimate
from service.checks.drift.declared import DriftInputs, DriftParams
from service.dataset import Labels
from service.errors import Fault, InvalidRequest, first
from service.numerics.design import Design
from service.numerics.joined import Joined
from service.numerics.moments import Units
from service.numerics.partition import Partition, partition
from service.numerics.resampling import Unit
from service.numerics.rows import (
    Directions,
    Floats,
    Rows,
    Source,
    Stored,
    blocks,
    norms,
    ordered_map,
    safe_scale,
    to_about_one,
)

Codes = NDArray[np.int64]
SIDES = ("baseline", "batch")
ZERO = 1e-24
ZERO_TOTAL = Undefined(code="zero_total", message="All rows are equal: there is no variation.")


@dataclass(frozen=True)
class Sides:
    """
    Baseline and batch under one another.

    Attributes
    ----------
    source : rows as they are compared, times `scale`
    codes : (n,) 0 for the baseline, 1 for the batch
    owner : (n,) unit of each row, those of the baseline first
    named : whether units were given; else each row is its own
    lengths : (n,) of rows as given
    parts : sums of squares by side
    """

    context: Context
    params: DriftParams
    source: Source
    scale: float
    codes: Codes
    owner: Codes
    named: bool
    lengths: Floats
    parts: Partition

    @classmethod
    def of(cls, context: Context, inputs: DriftInputs, params: DriftParams) -> Sides:
        given = (inputs.baseline, inputs.batch)
        lengths = [_lengths(data.vectors, context.threads) for data in given]
        scale = 1.0 if params.normalise else _scale(max(float(one.max()) for one in lengths))
        source = Joined(
            *(
                Directions(data.vectors) if params.normalise else Stored(data.vectors, scale)
                for data in given
            )
        )
        codes = np.repeat([0, 1], [data.n for data in given])
        named = inputs.baseline_units is not None
        owner = _owners(context, inputs, params)
        parts = partition(source, Units.groups(codes), context.threads)
        together = np.concatenate(lengths)
        return cls(context, params, source, scale, codes, owner, named, together, parts)

    @property
    def unit(self) -> Unit:
        return "unit" if self.named else "row"

    @cached_property
    def units(self) -> Units:
        return Units.groups(self.owner) if self.named else Units.rows(self.source.n)

    @cached_property
    def sample(self) -> Codes:
        """The side of each unit, (u,)."""
        found = np.empty(len(self.units.counts), np.int64)
        found[self.owner] = self.codes
        return found

    @cached_property
    def design(self) -> Design:
        return Design.of(self.codes, None, self.owner if self.named else None)

    @property
    def floor(self) -> float:
        """A mean squared distance that is rounding alone."""
        around = float(self.parts.mean @ self.parts.mean)
        return ZERO * (around + self.parts.ss_total / self.parts.n)

    @property
    def flat(self) -> bool:
        """No row differs from another."""
        return self.parts.ss_total <= self.floor * self.parts.n

    @property
    def tight(self) -> tuple[bool, bool]:
        """Whether the rows of a side are equal."""
        one, other = self.parts.within <= self.floor * self.parts.counts
        return bool(one), bool(other)

    def estimated(
        self, value: float | Undefined, without: Floats, scale: Scale | None = None
    ) -> Estimate:
        """An estimate from its values without each unit, (u,)."""
        sides = (without[self.sample == 0], without[self.sample == 1])
        return unpaired_estimate(value, sides, self.params, self.unit, scale)


def effective_units(owner: Codes) -> float:
    """Units of equal size that weigh as much as these, by the unit of each row."""
    sizes = np.bincount(owner).astype(np.float64)
    return float(sizes.sum() ** 2 / np.square(sizes).sum())


def _lengths(rows: Rows, threads: int) -> Floats:
    parts = ordered_map(
        lambda which: norms(rows[which].astype(np.float64)), blocks(*rows.shape), threads
    )
    return np.concatenate(list(parts))


def _scale(longest: float) -> float:
    if safe_scale(longest) != 1:
        raise InvalidRequest(
            f"Rows of length {longest:.3g} cannot be squared in float64.",
            [Fault(pointer="/params/normalise", message="scale the rows, or use `normalise`")],
        )
    return to_about_one(longest)


def refuse_units(
    columns: Mapping[str, Labels], shapes: Shapes, params: DriftParams, seed: int
) -> None:
    """Both sides name their units, or neither, and none is on both."""
    baseline, batch = (columns.get(f"{side}_units") for side in SIDES)
    if baseline is None and batch is None:
        return
    if baseline is None or batch is None:
        missing = SIDES[int(batch is None)]
        raise InvalidRequest(
            f"Only one side has units: {missing} rows would be exchanged singly with whole units.",
            [Fault(pointer=f"/inputs/{missing}_units", message="name the units of both sides")],
        )
    known = {(type(level), level) for level in baseline.levels}
    if both := [str(level) for level in batch.levels if (type(level), level) in known]:
        raise InvalidRequest(
            f"{len(both)} units are on both sides, so that the sides are not independent.",
            [
                Fault(
                    pointer="/inputs/batch_units",
                    message="leave these units out of one side, or use names that differ where the "
                    "units do",
                    count=len(both),
                    rows=first(both),
                )
            ],
        )


def _owners(context: Context, inputs: DriftInputs, params: DriftParams) -> Codes:
    """The unit of each row, those of the baseline first."""
    sides = {"baseline": inputs.baseline, "batch": inputs.batch}
    units = {"baseline_units": inputs.baseline_units, "batch_units": inputs.batch_units}
    columns = {name: column for name, column in units.items() if column is not None}
    shapes = {name: data.vectors.shape for name, data in sides.items()}
    refuse_units(columns, shapes, params, context.seed)
    if not columns:
        return np.arange(sum(n for n, _ in shapes.values()))
    baseline, batch = columns.values()
    return np.concatenate([baseline.dense, batch.dense + len(baseline.levels)])


def warn_of_encoders(context: Context, inputs: DriftInputs) -> None:
    """Warn where the declared encoders differ."""
    one, other = inputs.baseline.spec, inputs.batch.spec
    fields = ("model", "revision", "prompt", "pooling", "normalised")
    apart = [
        f"{field} {ours!r} and {theirs!r}"
        for field in fields
        if (ours := getattr(one, field)) is not None
        and (theirs := getattr(other, field)) is not None
        and ours != theirs
    ]
    if apart:
        context.warn(
            "different_encoders",
            f"Baseline and batch declare {'; '.join(apart)}: whatever differs may come from the "
            "encoder and not from the data.",
            "inputs/batch",
        )
