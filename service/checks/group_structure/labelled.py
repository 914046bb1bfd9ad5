"""The labels of a request, and what may be exchanged and left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.checks.group_structure.declared import (
    GroupStructureInputs,
    GroupStructureParams,
)
from service.errors import Fault, TooFewRows
from service.numerics.design import Design
from service.numerics.moments import Units
from service.references import Label


@dataclass(frozen=True)
class Labelled:
    """The labels of a request as dense codes."""

    groups: NDArray[np.int64]
    levels: tuple[Label, ...]
    strata: NDArray[np.int64] | None
    units: NDArray[np.int64] | None
    design: Design

    @classmethod
    def of(cls, inputs: GroupStructureInputs) -> Labelled:
        groups = inputs.groups.dense
        counts = np.bincount(groups)
        if (counts == 1).all():
            raise TooFewRows(
                "Every group has one row: nothing varies inside groups.",
                [Fault(pointer="/inputs/groups", message="use coarser groups", count=len(counts))],
            )
        strata = None if inputs.strata is None else inputs.strata.dense
        units = None if inputs.units is None else inputs.units.dense
        return cls(groups, inputs.groups.levels, strata, units, Design.of(groups, strata, units))

    def resampled(self, params: GroupStructureParams) -> Units | None:
        """Units that intervals leave out; None where they leave out groups."""
        if params.resample == "groups":
            return None
        return Units.rows(len(self.groups)) if self.units is None else Units.groups(self.units)
