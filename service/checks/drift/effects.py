"""Effect sizes of drift: shift of the mean, ratios of spread and of length."""

from __future__ import annotations

from typing import Any

import numpy as np

from service.check import Estimate, Undefined
from service.checks.drift.declared import DriftSide
from service.checks.drift.sides import ZERO_TOTAL, Sides
from service.numerics.shift import Shift

ZERO_SPREAD = Undefined(code="zero_spread", message="The rows of one side are equal.")


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
    base, batch = (float(one) for one in seen.spread)
    with np.errstate(divide="ignore", invalid="ignore"):
        shift_without = np.asarray(without.distance2 / without.spread[0])
        ratio_without = np.log(np.asarray(without.spread[1] / without.spread[0]))
    apart: float | Undefined = ZERO_SPREAD
    plain = expected = ratio = apart
    if not sides.tight[0]:
        apart = float(seen.distance2) / base
        plain = float(np.sqrt(gap2 / base))
        expected = float(np.sqrt(max(0.0, (gap2 - float(seen.distance2)) / base)))
        if not sides.tight[1]:
            ratio = float(np.log(batch / base))
    if sides.flat:
        apart = plain = expected = ratio = ZERO_TOTAL
    return {
        "mean_shift": sides.estimated(
            apart, shift_without, lambda square: float(np.sqrt(max(0.0, square)))
        ),
        "mean_shift_plain": plain,
        "mean_shift_expected": expected,
        "r2": sides.estimated(
            ZERO_TOTAL if sides.flat else float(seen.r2),
            np.asarray(without.r2),
            lambda share: min(1.0, max(0.0, share)),
        ),
        "spread_ratio": sides.estimated(ratio, ratio_without, lambda power: float(np.exp(power))),
        "scale_ratio": _scale_ratio(sides),
    }


def _scale_ratio(sides: Sides) -> Estimate:
    """Mean length of the batch over that of the baseline, on a logarithmic scale."""
    lengths = sides.units.sums(sides.lengths / sides.lengths.max())
    rows, sample = sides.units.counts, sides.sample
    with np.errstate(divide="ignore", invalid="ignore"):
        total = [float(lengths[sample == side].sum()) for side in (0, 1)]
        count = [int(rows[sample == side].sum()) for side in (0, 1)]
        means = np.array(total) / count
        own = np.array(total)[sample] - lengths
        left = np.log(own / (np.array(count)[sample] - rows))
        without = np.where(sample == 1, left - np.log(means[0]), np.log(means[1]) - left)
        logarithm = float(np.log(means[1] / means[0]))
    value: float | Undefined = logarithm
    if not np.isfinite(logarithm):
        value = Undefined(
            code="zero_length", message="Rows of one side vanish beside those of the other."
        )
    return sides.estimated(value, without, lambda power: float(np.exp(power)))
