"""Cosine floor: what unrelated pairs score where matched pairs score what they do."""

from __future__ import annotations

import numpy as np

from service.check import (
    Context,
    Undefined,
    check,
)
from service.checks.cosine_floor.centring import centre, fit_means, induced_floor
from service.checks.cosine_floor.declared import (
    CosineFloor,
    CosineFloorInputs,
    CosineFloorParams,
)
from service.checks.cosine_floor.reading import read_pairs
from service.checks.cosine_floor.spaces import guard_spaces, read_aligned, units_of
from service.numerics.moments import Units, deviations, mean_cosine
from service.numerics.permutation import derangement
from service.numerics.rows import (
    Directions,
)

ANISOTROPIC = 0.3


@check(
    version=3,
    title="Matched cosines against their floor",
    question="What do matched pairs score against unrelated pairs, raw and centred, and is the "
    "partner ranked first?",
    scope=(
        "Intervals take the fitted means as given and cover new units of the same population.",
        "Centring changes the scoring function; it does not evaluate an index that searches by raw "
        "cosine.",
        "The floor is of unrelated pairs in this data; harder negatives score higher.",
    ),
    warnings={
        "anisotropic": "Rows of one side have a mean cosine far above 0 with each other.",
        "mean_fitted_on_compared_rows": "The rows compared also give the mean.",
        "different_spaces": "The sides are declared, or found, to lie in different spaces.",
        "underdetermined_map": "Train pairs are too few for the map between the sides.",
    },
    sources=("doi:10.1007/BF02289451", "doi:10.1214/aos/1176345462", "doi:10.1093/biomet/26.4.404"),
    row_limit=200_000,
    memory_factor=5.0,
)
def cosine_floor(
    context: Context, inputs: CosineFloorInputs, params: CosineFloorParams
) -> CosineFloor:
    """
    What matched pairs score against what unrelated pairs of the same rows score, raw and centred.

    A cosine means something only through its distance from that floor. Time O(n^2 d) for the ranks,
    O(n d^2) for the exact floors and O(n d) a re-pairing; memory O(n d).
    """
    a, b = Directions(inputs.a.vectors), Directions(inputs.b.vectors)
    n, threads = a.n, context.threads
    codes = None if inputs.groups is None else inputs.groups.dense
    units = units_of(codes, n)
    partners = [derangement(units, context.seed, "floor", i) for i in range(params.derangements)]

    with context.stage("means"):
        means = fit_means(inputs, params.shared_mean, threads)
        centred_a = centre(inputs.a, means.a, "a", threads)
        centred_b = centre(inputs.b, means.b, "b", threads)
    raw = read_pairs(a, b, units, partners, params, context, "raw")
    centred = read_pairs(centred_a, centred_b, units, partners, params, context, "centred")

    with context.stage("anisotropy"):
        spreads = [
            mean_cosine(deviations(side, Units.rows(n), threads))
            for side in (a, b, centred_a, centred_b)
        ]
    if max(spreads[:2]) > ANISOTROPIC:
        context.warn(
            "anisotropic",
            f"Rows of one side have a mean cosine of {max(spreads[:2]):.3f} with each other: an "
            "unrelated pair already scores high.",
            "results/raw/floor",
        )
    induced = induced_floor(centred, means, a, b, units, threads)
    if isinstance(induced, float):
        context.warn(
            "mean_fitted_on_compared_rows",
            f"{n} rows are compared and also give the mean; that alone makes a centred floor of "
            f"{induced:.4f}.",
            "results/induced_floor",
        )
    if units.name == "group" and len(np.unique(units.counts)) > 1:
        context.scope.append(
            "Groups of unequal size: the sampled floor pairs rows of large groups with small groups "
            "a little more often than uniformly; the exact floor does not."
        )
    not_asked = Undefined(code="not_requested", message="Ask for it with `align`.")
    return CosineFloor.build(  # type: ignore[no-any-return]
        n=n,
        raw=raw,
        centred=centred,
        aligned=read_aligned(a, b, units, codes, params, context) if params.align else not_asked,
        anisotropy_a=spreads[0],
        anisotropy_b=spreads[1],
        residual_anisotropy_a=spreads[2],
        residual_anisotropy_b=spreads[3],
        means=means.sources,
        induced_floor=induced,
        space_guard=guard_spaces(a, b, inputs, units, context),
    )
