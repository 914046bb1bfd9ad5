"""Maximum mean discrepancy of the sides."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from service.check import Context, Estimate, PValue, Scale, Undefined, p_value, unpaired_estimate
from service.checks.drift.declared import Mmd
from service.checks.drift.sides import SIDES, ZERO_TOTAL, Sides
from service.numerics.bandwidth import Bandwidth, median_distance
from service.numerics.design import Design
from service.numerics.dispersion import Chosen
from service.numerics.mmd import Gaussian, gaussian_test, linear_test
from service.numerics.permanova import Slabs
from service.numerics.permutation import shuffled, stream
from service.numerics.permutation_test import PermutationTest
from service.numerics.rows import Floats
from service.numerics.shift import Shift, Steadied

Codes = NDArray[np.int64]
CHANCE = 1e-3
NARROWEST = 1e-10
"""Median squared distance over the mean one, below which exponents of the kernel are rounding."""
ZERO_BANDWIDTH = Undefined(
    code="zero_bandwidth",
    message="Half of all pairs of rows or more are equal, or nearly so beside the others.",
)
ONE_UNIT = Undefined(
    code="too_few_units", message="The drawn rows of one side are of one unit; raise `kernel_rows`."
)


def mmd_of(
    sides: Sides, seen: Shift, without: Shift, gap2: float, x: Slabs | None, squares: Floats
) -> Mmd:
    """MMD with both kernels; `x` is None where nothing varies."""
    rows = _drawn(sides)
    drawn = [int(np.count_nonzero(sides.codes[rows] == side)) for side in (0, 1)]
    for name, side, count in zip(SIDES, sides.parts.counts, drawn, strict=True):
        if count < side:
            sides.context.warn(
                "kernel_rows_drawn",
                f"MMD with a Gaussian kernel uses {count} drawn rows of the {side} of {name}; "
                "`kernel_rows` says how many.",
                "results/mmd/gaussian",
            )
    level = sides.params.level
    if x is None:
        width = Bandwidth(0.0, 0, exact=True)
        gaussian = unpaired_estimate(ZERO_TOTAL, _NOTHING, sides.params, sides.unit)
        gaussian_p = linear_p = p_value(ZERO_TOTAL, level)
    else:
        width, gaussian, gaussian_p = _gaussian(sides, rows)
        with sides.context.stage("linear_kernel") as step:
            test = linear_test(
                x, squares, sides.design, sides.params.permutations, sides.context.seed, level,
                sides.context.threads, step,
            )  # fmt: skip
        _warn_of_pairs(sides.context, test)
        linear_p = p_value(test, level)
    by_scale, steady = sides.scale**-2, Steadied(gap2 - float(seen.distance2))
    return Mmd.build(  # type: ignore[no-any-return]
        gaussian=gaussian,
        gaussian_p=gaussian_p,
        linear=sides.estimated(
            ZERO_TOTAL if x is None else float(seen.distance2) * by_scale,
            steady.of(without.distance2),
            Scale(float(steady.of(seen.distance2)), lambda value: steady.back(value) * by_scale),
        ),
        linear_p=linear_p,
        bandwidth2=ZERO_TOTAL if x is None else width.squared * by_scale,
        bandwidth_pairs=width.pairs,
        bandwidth_exact=width.exact,
        baseline_rows=drawn[0],
        batch_rows=drawn[1],
    )


def _warn_of_pairs(context: Context, test: PermutationTest) -> None:
    """Warn of sides that chance would leave so close in `CHANCE` of independent ones at most."""
    count = test.permutations
    if not test.exact and test.above == count and count + 1 >= 1 / CHANCE:
        context.warn(
            "paired_sides",
            f"The sides lie closer than in every one of {count} random divisions of their rows, as "
            f"independent ones do with probability {1 / (count + 1):.2g} at most: where they are two "
            "versions of the same items, nothing here shows that they agree; compare them with "
            "`model_comparison`.",
            "results/mmd/linear_p",
        )


_NOTHING = (np.empty(0), np.empty(0))


def _drawn(sides: Sides) -> Codes:
    """Rows of the Gaussian kernel, ascending."""
    found, start = [], 0
    for side, count in enumerate(sides.parts.counts):
        rows = np.arange(count)
        if count > sides.params.kernel_rows:
            bits = stream(sides.context.seed, "kernel rows", side)
            rows = np.sort(shuffled(bits, int(count))[: sides.params.kernel_rows])
        found.append(start + rows)
        start += int(count)
    return np.concatenate(found)


def _gaussian(sides: Sides, rows: Codes) -> tuple[Bandwidth, Estimate, PValue]:
    context, params = sides.context, sides.params

    def nothing(width: Bandwidth, reason: Undefined) -> tuple[Bandwidth, Estimate, PValue]:
        none = unpaired_estimate(reason, _NOTHING, params, sides.unit)
        return width, none, p_value(reason, params.level)

    with context.stage("bandwidth") as step:
        width = median_distance(Chosen(sides.source, rows), context.seed, context.threads, step)
    if width.squared <= NARROWEST * 2 * sides.parts.ss_total / sides.parts.n:
        return nothing(width, ZERO_BANDWIDTH)
    codes, units = sides.codes[rows], np.unique(sides.owner[rows], return_inverse=True)[1]
    if min(len(np.unique(units[codes == side])) for side in (0, 1)) < 2:
        return nothing(width, ONE_UNIT)
    design = Design.of(codes, None, units.astype(np.int64) if sides.named else None)
    kernel = Gaussian(
        Chosen(sides.source, rows[design.rows]),
        sides.parts.mean,
        width.squared,
        np.repeat(np.arange(design.items), design.sizes),
    )
    with context.stage("gaussian_kernel") as step:
        found = gaussian_test(
            kernel, design, params.permutations, context.seed, params.level, context.threads, step
        )
    value, steady = found.sums.value(), Steadied(found.sums.noise)
    without = steady.of(found.sums.without_each())
    estimate = unpaired_estimate(
        value,
        (without[design.labels == 0], without[design.labels == 1]),
        params,
        sides.unit,
        Scale(float(steady.of(np.float64(value))), steady.back),
    )
    return width, estimate, p_value(found.test, params.level)
