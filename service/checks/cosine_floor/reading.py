"""Matched pairs against unrelated pairs, in one scoring."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from service.check import (
    Context,
    Estimate,
    Params,
    Undefined,
    estimate_of,
)
from service.checks.cosine_floor.declared import (
    PartnerRankedFirst,
    Reading,
)
from service.numerics.moments import Units, pair_moments
from service.numerics.partners import partners_first
from service.numerics.repairing import sampled_floor
from service.numerics.rows import (
    Directions,
    Floats,
)

NO_SPREAD = 1e-12


def _spread(sd: float, mean: float) -> bool:
    return sd > NO_SPREAD * max(1.0, abs(mean))


def read_pairs(
    a: Directions,
    b: Directions,
    units: Units,
    partners: list[NDArray[np.int64]],
    params: Params,
    context: Context,
    name: str,
) -> Reading:
    """One column of the report: matched, floors and ranks of one scoring."""
    n, counts = a.n, units.counts
    with context.stage(f"{name}_floor_all") as step:
        exact = pair_moments(a, b, units, context.threads, step)
    with context.stage(f"{name}_floor") as step:
        floor = sampled_floor(a, b, partners, exact.mean, context.threads, step)
    with context.stage(f"{name}_ranks") as step:
        first = partners_first(a, b, context.threads, step)

    matched = float(first.matched.mean())
    deviation = first.matched - matched
    variance = float(np.square(deviation).mean())
    floor_sd = float(np.sqrt(floor.variance))
    gap = matched - floor.mean
    pooled = float(np.sqrt((variance + floor.variance) / 2))

    left = n - counts
    left_pairs = len(partners) * (n - 2 * counts)
    with np.errstate(divide="ignore", invalid="ignore"):
        d1, d2 = units.sums(deviation), units.sums(np.square(deviation))
        shift = -d1 / left
        matched_without = matched + shift
        variance_without = (n * variance - d2) / left - np.square(shift)
        f1 = (floor.total - units.sums(floor.by_row)) / left_pairs
        f2 = (floor.squares - units.sums(floor.squares_by_row)) / left_pairs - np.square(f1)
        floor_without = np.where(left_pairs > 0, floor.centre + f1, np.nan)
        gap_without = matched_without - floor_without
        in_sd = gap_without / np.sqrt(np.maximum(f2, 0))
        in_pooled = gap_without / np.sqrt((np.maximum(variance_without, 0) + np.maximum(f2, 0)) / 2)

    def estimated(value: float | Undefined, without: Floats) -> Estimate:
        return estimate_of(value, without, params, units.name)

    def share(values: Floats) -> Estimate:
        total, sums = float(values.sum()), units.sums(values)
        by_unit = float((sums / counts).mean())
        return estimate_of(total / n, (total - sums) / left, params, units.name, share=by_unit)

    none = Undefined(code="no_spread", message="All unrelated pairs score the same.")
    return Reading.build(  # type: ignore[no-any-return]
        n=n,
        matched=estimated(matched, matched_without),
        floor=estimated(floor.mean, floor_without),
        gap=estimated(gap, gap_without),
        floor_sd=floor_sd,
        gap_over_floor_sd=estimated(
            gap / floor_sd if _spread(floor_sd, floor.mean) else none, in_sd
        ),
        cohens_d=estimated(gap / pooled if _spread(pooled, floor.mean) else none, in_pooled),
        floor_all=estimated(exact.mean, exact.deleted),
        floor_all_sd=exact.sd,
        gap_all=estimated(matched - exact.mean, matched_without - exact.deleted),
        unrelated_pairs=exact.pairs,
        partner_ranked_first=PartnerRankedFirst(
            a_to_b=share(first.a_to_b),
            b_to_a=share(first.b_to_a),
            a_to_b_count=int(np.count_nonzero(first.a_to_b == 1)),
            b_to_a_count=int(np.count_nonzero(first.b_to_a == 1)),
            tied=sum(
                int(np.count_nonzero((side > 0) & (side < 1)))
                for side in (first.a_to_b, first.b_to_a)
            ),
            chance=1 / n,
        ),
    )
