"""Whether two sides share a space, and their reading after a map between them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from service.check import (
    Context,
    Undefined,
)
from service.checks.cosine_floor.declared import (
    CosineFloorInputs,
    CosineFloorParams,
    Reading,
    SpaceGuard,
)
from service.checks.cosine_floor.reading import read_pairs
from service.numerics.alignment import PairSplit, map_held_out
from service.numerics.moments import Units
from service.numerics.partners import partners_first
from service.numerics.permutation import derangement
from service.numerics.rows import (
    Directions,
)

GUARD_PAIRS = 4096
GUARD_DIMENSIONS = 2048
GUARD_RISE = 0.2


def guard_spaces(
    a: Directions, b: Directions, inputs: CosineFloorInputs, units: Units, context: Context
) -> SpaceGuard | Undefined:
    """Warn when the two sides do not share one coordinate space."""
    named = [
        (data.spec.model, data.spec.revision) for data in (inputs.a, inputs.b) if data.spec.model
    ]
    if len(set(named)) > 1:
        context.warn(
            "different_spaces",
            f"`a` is of {named[0][0]} and `b` of {named[1][0]}: a cosine between two models' spaces "
            "means nothing unless a map between them was fitted (`align`).",
            "inputs",
        )
    if a.d > GUARD_DIMENSIONS:
        return Undefined(code="too_many_dimensions", message=f"Done up to {GUARD_DIMENSIONS}.")
    split = PairSplit.of(units, context.seed, GUARD_PAIRS)
    if len(split.test) < 2:
        return Undefined(code="too_few_rows", message="Too few held-out pairs to judge a map by.")
    with context.stage("space_guard"):
        x, y = Directions(a.rows[split.test]), Directions(b.rows[split.test])
        before = partners_first(x, y, context.threads, lambda done, total: None)
        after = partners_first(
            *map_held_out(a, b, split), context.threads, lambda done, total: None
        )
    guard = SpaceGuard(
        train_pairs=len(split.train),
        test_pairs=len(split.test),
        matched=float(before.matched.mean()),
        matched_mapped=float(after.matched.mean()),
        first=float(before.a_to_b.mean()),
        first_mapped=float(after.a_to_b.mean()),
    )
    rises = (guard.matched_mapped - guard.matched, guard.first_mapped - guard.first)
    if min(rises) > GUARD_RISE:
        context.warn(
            "different_spaces",
            f"An orthogonal map fitted on {guard.train_pairs} pairs lifts the cosine of held-out "
            f"pairs from {guard.matched:.3f} to {guard.matched_mapped:.3f} and the share of partners "
            f"ranked first from {guard.first:.3f} to {guard.first_mapped:.3f}: `a` and `b` do not "
            "share one space. Use `align`.",
            "results/space_guard",
        )
    return guard


def read_aligned(
    a: Directions,
    b: Directions,
    units: Units,
    codes: NDArray[np.int64] | None,
    params: CosineFloorParams,
    context: Context,
) -> Reading | Undefined:
    split = PairSplit.of(units, context.seed, a.n)
    if len(split.test) < 3:
        return Undefined(code="too_few_rows", message="A map needs three held-out pairs to judge.")
    if len(split.train) < a.d:
        context.warn(
            "underdetermined_map",
            f"{len(split.train)} train pairs leave an orthogonal map of {a.d} dimensions "
            "underdetermined.",
            "results/aligned",
        )
    with context.stage("alignment"):
        x, y = map_held_out(a, b, split)
    held = units_of(None if codes is None else codes[split.test], len(split.test))
    partners = [
        derangement(held, context.seed, "aligned floor", i) for i in range(params.derangements)
    ]
    return read_pairs(x, y, held, partners, params, context, "aligned")


def units_of(codes: NDArray[np.int64] | None, n: int) -> Units:
    if codes is None:
        return Units.rows(n)
    return Units.groups(np.unique(codes, return_inverse=True)[1])
