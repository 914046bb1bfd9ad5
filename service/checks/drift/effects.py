"""Effect sizes of drift: shift of the mean, ratios of spread and of length."""

from __future__ import annotations

from typing import Any

import numpy as np

from service.check import Estimate, Scale, Undefined
from service.checks.drift.declared import DriftSide
from service.checks.drift.sides import ZERO_TOTAL, Sides
from service.numerics.rows import Floats
from service.numerics.shift import Shift, Steadied

ZERO_SPREAD = Undefined(
    code="zero_spread", message="The rows of one side are equal, or nearly so beside the other."
)

FEW_EFFECTIVE = Undefined(
    code="few_effective_units",
    message="One unit holds most rows of a side: what sampling adds cannot be told from the others.",
)


def side_of(sides: Sides, seen: Shift, side: int) -> DriftSide:
    lengths = sides.lengths[sides.codes == side]
    return DriftSide(
        n=len(lengths),
        units=int(np.count_nonzero(sides.sample == side)),
        spread=0.0 if sides.tight[side] else float(seen.spread[side]) / sides.scale**2,
        mean_length=float(np.mean(lengths / lengths.max()) * lengths.max()),
    )


def effects_of(sides: Sides, seen: Shift, without: Shift, gap2: float) -> dict[str, Any]:
    """Shift of the mean, R2, ratios of spread and of length."""
    reason = ZERO_TOTAL if sides.flat else ZERO_SPREAD
    return {
        **(
            {
                "mean_shift": sides.estimated(reason, np.empty(len(sides.sample))),
                "mean_shift_plain": reason,
                "mean_shift_expected": reason,
            }
            if sides.tight[0]
            else _shift_of_mean(sides, seen, without, gap2)
        ),
        "r2": _r2(sides, seen, without, gap2),
        "spread_ratio": sides.estimated(reason, np.empty(len(sides.sample)))
        if any(sides.tight)
        else _ratio(sides, *seen.spread, *without.spread),
        "scale_ratio": _scale_ratio(sides),
    }


def _shift_of_mean(sides: Sides, seen: Shift, without: Shift, gap2: float) -> dict[str, Any]:
    base = seen.spread[0]
    square = float(seen.distance2 / base)
    steady = Steadied(float((gap2 - seen.distance2) / base))
    with np.errstate(divide="ignore", invalid="ignore"):
        left_out = steady.of(without.distance2 / without.spread[0])
    scale = Scale(float(steady.of(np.float64(square))), lambda value: _root(steady.back(value)))
    return {
        "mean_shift": sides.estimated(_root(square), left_out, scale),
        "mean_shift_plain": float(np.sqrt(gap2 / base)),
        "mean_shift_expected": _root(steady.noise) if steady.noise > 0 else FEW_EFFECTIVE,
    }


def _root(square: float) -> float:
    return float(np.sqrt(max(0.0, square)))


def _r2(sides: Sides, seen: Shift, without: Shift, gap2: float) -> Estimate:
    """R2, its interval on the scale of its root; sampling adds to it, which the low end leaves out."""
    if sides.flat:
        return sides.estimated(ZERO_TOTAL, np.empty(len(sides.sample)))
    share = float(seen.r2)
    added = share * max(0.0, gap2 - float(seen.distance2)) / gap2 if gap2 > 0 else 0.0
    scale = Scale(_root(share), lambda root: min(1.0, max(0.0, root)) ** 2, added, 0.0)
    return sides.estimated(share, np.sqrt(np.asarray(without.r2)), scale)


def _ratio(sides: Sides, under: Any, over: Any, unders: Any, overs: Any) -> Estimate:
    """A ratio of two positive numbers, its interval on a logarithmic scale."""
    with np.errstate(divide="ignore", invalid="ignore"):
        without = np.log(np.asarray(overs / unders))
    scale = Scale(float(np.log(over / under)), lambda power: float(np.exp(power)))
    return sides.estimated(float(over / under), without, scale)


def _scale_ratio(sides: Sides) -> Estimate:
    """Mean length of the batch over that of the baseline."""
    lengths = sides.units.sums(sides.lengths / sides.lengths.max())
    total, rows = (_without_each(sides, one) for one in (lengths, sides.units.counts))
    with np.errstate(divide="ignore", invalid="ignore"):
        (under, unders), (over, overs) = (
            (total[side][0] / rows[side][0], total[side][1] / rows[side][1]) for side in (0, 1)
        )
    if min(under, over) <= np.finfo(float).tiny:
        vanish = Undefined(
            code="zero_length", message="Rows of one side vanish beside those of the other."
        )
        return sides.estimated(vanish, np.empty(len(sides.sample)))
    return _ratio(sides, under, over, unders, overs)


def _without_each(sides: Sides, values: Any) -> list[tuple[float, Floats]]:
    """The sum of each side, and the same without each unit, (u,)."""
    found = []
    for side in (0, 1):
        here = sides.sample == side
        total = float(values[here].sum())
        found.append((total, total - np.where(here, values, 0.0)))
    return found
