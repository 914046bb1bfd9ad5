"""Effect sizes of drift: shift of the mean, ratios of spread and of length."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from service.check import Estimate, Scale, Undefined, estimate_of
from service.checks.drift.declared import DriftSide
from service.checks.drift.sides import ZERO_TOTAL, Sides, effective_units
from service.numerics.resampling import clopper_pearson
from service.numerics.rows import Floats
from service.numerics.shift import Shift, Steadied

ZERO_SPREAD = Undefined(
    code="zero_spread",
    message="The rows of the baseline are equal, or nearly so beside those of the batch.",
)
NO_BOUND = Undefined(
    code="zero_variance",
    message="All rows of the batch are equal, and how far from them others may lie has no bound: "
    "zero observed variance never means zero width.",
)
ALL_ZERO = Undefined(
    code="zero_variance",
    message="All rows of the batch are zero: zero observed variance never means zero width.",
)
COLLAPSED = "log_jackknife_t+clopper_pearson"
FARTHEST2 = 4.0
"""Squared distance of opposite unit rows."""

FEW_EFFECTIVE = Undefined(
    code="few_effective_units",
    message="One unit holds most rows of a side: what sampling adds cannot be told from the others.",
)


def side_of(sides: Sides, seen: Shift, side: int, repeated: int) -> DriftSide:
    lengths = sides.lengths[sides.codes == side]
    longest = lengths.max()
    return DriftSide(
        n=len(lengths),
        units=int(np.count_nonzero(sides.sample == side)),
        spread=0.0 if sides.tight[side] else float(seen.spread[side]) / sides.scale**2,
        mean_length=float(np.mean(lengths / longest) * longest) if longest else 0.0,
        repeated_rows=repeated,
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
        if sides.tight[0]
        else _collapsed(sides, seen, without)
        if sides.tight[1]
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


def _collapsed(sides: Sides, seen: Shift, without: Shift) -> Estimate:
    """
    The ratio of spreads where all rows of the batch are equal: 0, and how much more there may be.

    If a share p of the population of units lies elsewhere, u units are equal with probability
    (1 - p)^(u - 1) at most, whatever row they are; and unit rows of which p lie elsewhere have a spread
    of 4 p (1 - p) at most, 1 if p > 1/2. The baseline is bounded from below on a logarithmic scale;
    each of the two bounds has half of the error.
    """
    params = sides.params
    if not params.normalise and not params.census:
        return cast(Estimate, Estimate.build(estimate=0.0, interval=NO_BOUND))
    here = sides.sample == 0
    halved = params.model_copy(update={"level": (1 + params.level) / 2})
    with np.errstate(divide="ignore", invalid="ignore"):
        fewer = np.log(np.asarray(without.spread[0])[here])
    under = estimate_of(float(np.log(seen.spread[0])), fewer, halved, sides.unit)
    if under.interval is None:
        return cast(Estimate, Estimate.build(estimate=0.0, interval=under.undefined["interval"]))
    units = max(effective_units(sides.owner[sides.codes == 1]) - 1, 1.0)
    apart = min(clopper_pearson(0, units, halved.level)[1], 0.5)
    high = FARTHEST2 * apart * (1 - apart) * float(np.exp(-under.interval.low))
    ends = {"low": 0.0, "high": high, "level": params.level, "resamples": len(sides.sample)}
    interval = under.interval.model_copy(update={**ends, "method": COLLAPSED})
    return cast(Estimate, Estimate.build(estimate=0.0, interval=interval))


def _scale_ratio(sides: Sides) -> Estimate:
    """Mean length of the batch over that of the baseline."""
    longest = sides.lengths.max()
    lengths = sides.units.sums(sides.lengths / longest if longest else sides.lengths)
    total, rows = (_without_each(sides, one) for one in (lengths, sides.units.counts))
    with np.errstate(divide="ignore", invalid="ignore"):
        (under, unders), (over, overs) = (
            (total[side][0] / rows[side][0], total[side][1] / rows[side][1]) for side in (0, 1)
        )
    if over == 0 < under:
        return cast(Estimate, Estimate.build(estimate=0.0, interval=ALL_ZERO))
    if min(under, over) <= np.finfo(float).tiny:
        vanish = Undefined(
            code="zero_length",
            message="Rows of one side are zero, or vanish beside those of the other.",
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
