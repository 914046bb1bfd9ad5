"""Cosine floor: what unrelated pairs score where matched pairs score what they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from service.check import (
    Context,
    Estimate,
    Inputs,
    Params,
    Results,
    Undefined,
    check,
    estimate_of,
    labels,
    measure,
    vectors,
)
from service.dataset import Dataset, Labels
from service.errors import Fault, ZeroRows
from service.numerics.alignment import PairSplit, map_held_out
from service.numerics.moments import Units, deviations, mean_cosine, pair_moments
from service.numerics.partners import partners_first
from service.numerics.permutation import derangement
from service.numerics.repairing import sampled_floor
from service.numerics.rows import (
    Directions,
    Floats,
    blocks,
    mean_row,
    ordered_map,
)

ANISOTROPIC = 0.3
NO_SPREAD = 1e-12
NOTHING_LEFT = 1e-9
FEW_ROWS_FOR_A_MEAN = 1000
GUARD_PAIRS = 4096
GUARD_DIMENSIONS = 2048
GUARD_RISE = 0.2


class CosineFloorInputs(Inputs):
    a: Dataset = vectors(rows="pairs", least=3)
    """One side of the pairs."""
    b: Dataset = vectors(rows="pairs", least=3)
    """The other side: row i belongs to row i of `a`."""
    fit_a: Dataset | None = vectors(rows="fit_a", default=None)
    """Rows to fit the mean of side `a` on; best from a train split of the same population."""
    fit_b: Dataset | None = vectors(rows="fit_b", default=None)
    """Rows to fit the mean of side `b` on."""
    groups: Labels | None = labels(of="a", least=2)
    """Which pairs are related to each other: their cross pairs are no floor, and they are the unit
    of every interval."""


class CosineFloorParams(Params):
    shared_mean: bool = False
    """Centre both sides by one mean: for one model and one population."""
    derangements: int = Field(default=20, ge=1, le=1000)
    """How many random pairings of unrelated rows make the sampled floor."""
    align: Literal["procrustes"] | None = None
    """Fit an orthogonal map on half of the pairs and report the mapped other half too."""


class PartnerRankedFirst(Results):
    """How often the partner is the nearest row of the other side; ties share the place."""

    a_to_b: Estimate = measure(low=0, high=1, better="higher", invariance=("monotone",))
    """Share of rows of `a` whose partner is their nearest row of `b`."""
    b_to_a: Estimate = measure(low=0, high=1, better="higher", invariance=("monotone",))
    """Share of rows of `b` whose partner is their nearest row of `a`."""
    a_to_b_count: int = measure(unit="rows", low=0, better="higher", invariance=("monotone",))
    """Rows of `a` whose partner is first outright."""
    b_to_a_count: int = measure(unit="rows", low=0, better="higher", invariance=("monotone",))
    """Rows of `b` whose partner is first outright."""
    tied: int = measure(unit="rows", low=0, better="lower", invariance=("monotone",))
    """Rows, of both sides, whose partner shares the first place."""
    chance: float
    """What a random order would give: 1/n."""


class Reading(Results):
    """Matched pairs against unrelated pairs, in one scoring."""

    n: int
    """Pairs read."""
    matched: Estimate = measure(low=-1, high=1, invariance=("orthogonal",))
    """Mean cosine of the pairs."""
    floor: Estimate = measure(low=-1, high=1, invariance=("orthogonal",))
    """Mean cosine of randomly re-paired, unrelated rows."""
    gap: Estimate = measure(low=-2, high=2, better="higher", invariance=("orthogonal",))
    """matched - floor."""
    floor_sd: float = measure(low=0, high=1, invariance=("orthogonal",))
    """Standard deviation (ddof 0) of the re-paired cosines."""
    gap_over_floor_sd: Estimate = measure(better="higher", invariance=("similarity",))
    """Gap in standard deviations of the floor."""
    cohens_d: Estimate = measure(better="higher", invariance=("similarity",))
    """Gap over the root mean of the two variances (ddof 0)."""
    floor_all: Estimate = measure(low=-1, high=1, invariance=("orthogonal",))
    """Exact mean cosine over all unrelated pairs."""
    floor_all_sd: float = measure(low=0, high=1, invariance=("orthogonal",))
    """Standard deviation over all unrelated pairs; 0 where below rounding."""
    gap_all: Estimate = measure(low=-2, high=2, better="higher", invariance=("orthogonal",))
    """matched - floor_all."""
    unrelated_pairs: int
    """Ordered pairs in the exact floor."""
    partner_ranked_first: PartnerRankedFirst


class MeanSource(Results):
    """Where a mean came from."""

    rows: str
    """Roles whose unit rows were averaged."""
    count: int
    """How many rows."""


class Means(Results):
    a: MeanSource
    b: MeanSource


class SpaceGuard(Results):
    """Whether an orthogonal map, fitted on other pairs, brings the two sides together."""

    train_pairs: int
    test_pairs: int
    matched: float
    """Held-out matched cosine as given."""
    matched_mapped: float
    """Held-out matched cosine after the map."""
    first: float
    """Held-out share of partners ranked first as given."""
    first_mapped: float
    """Held-out share of partners ranked first after the map."""


class CosineFloor(Results):
    n: int
    """Pairs compared."""
    raw: Reading
    """Cosine as it is."""
    centred: Reading
    """Cosine after the means are subtracted and rows renormalised, on the same re-pairings."""
    aligned: Reading | None
    """Raw cosine of held-out pairs after an orthogonal map, where `align` asks for it."""
    anisotropy_a: float = measure(low=-1, high=1, invariance=("orthogonal",))
    """Mean cosine between different rows of `a`."""
    anisotropy_b: float = measure(low=-1, high=1, invariance=("orthogonal",))
    """Mean cosine between different rows of `b`."""
    residual_anisotropy_a: float = measure(low=-1, high=1, invariance=("similarity",))
    """The same after centring."""
    residual_anisotropy_b: float = measure(low=-1, high=1, invariance=("similarity",))
    """The same after centring."""
    means: Means
    induced_floor: float | None
    """Centred floor that fitting the mean on the compared rows makes by itself."""
    space_guard: SpaceGuard | None

    def readings(self) -> list[str]:
        lines = []
        for name, reading in (("Raw", self.raw), ("Centred", self.centred)):
            first = reading.partner_ranked_first
            lines.append(
                f"{name}: matched pairs score {reading.matched:.4f}, unrelated pairs "
                f"{reading.floor_all.estimate:.4f}; the gap of {reading.gap_all:.4f} is "
                f"{_times(reading.gap_over_floor_sd)}. The partner is first for "
                f"{first.a_to_b_count} of {reading.n} rows of a and {first.b_to_a_count} of b "
                f"(chance {first.chance:.4g})."
            )
        lines.append(
            f"Anisotropy is {self.anisotropy_a:.4f} and {self.anisotropy_b:.4f}, and "
            f"{self.residual_anisotropy_a:.4f} and {self.residual_anisotropy_b:.4f} after centring "
            f"by the mean of {self.means.a.rows} ({self.means.a.count} rows) and {self.means.b.rows} "
            f"({self.means.b.count} rows)."
        )
        if self.induced_floor is not None:
            lines.append(
                f"Fitting the mean on the compared rows alone makes a centred floor of about "
                f"{self.induced_floor:.4f}; fit it on other rows (`fit_a`, `fit_b`) to avoid that."
            )
        if self.aligned is not None:
            lines.append(
                f"After an orthogonal map fitted on the other half, {self.aligned.n} held-out pairs "
                f"score {self.aligned.matched:.4f} against {self.aligned.floor_all.estimate:.4f}."
            )
        return lines


def _times(gap: Estimate) -> str:
    if gap.estimate is None:
        return "not expressible in floor standard deviations, because the floor has none"
    return f"{gap.estimate:.2f} standard deviations of the floor"


def _spread(sd: float, mean: float) -> bool:
    return sd > NO_SPREAD * max(1.0, abs(mean))


def _reading(
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


@dataclass(frozen=True)
class FittedMeans:
    """Means to centre by, with their provenance."""

    a: Floats
    b: Floats
    sources: Means


def _fit_means(inputs: CosineFloorInputs, shared: bool, threads: int) -> FittedMeans:
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


def _centre(data: Dataset, mean: Floats, role: str, threads: int) -> Directions:
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
            f"{len(bad)} rows of `{role}` equal the mean they are centred by: no direction is left.",
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


def _induced_floor(
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


def _guard(
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


def _aligned(
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
    held = _units(None if codes is None else codes[split.test], len(split.test))
    partners = [
        derangement(held, context.seed, "aligned floor", i) for i in range(params.derangements)
    ]
    return _reading(x, y, held, partners, params, context, "aligned")


def _units(codes: NDArray[np.int64] | None, n: int) -> Units:
    if codes is None:
        return Units.rows(n)
    return Units.groups(np.unique(codes, return_inverse=True)[1])


@check(
    version=1,
    title="Matched cosines against their floor",
    scope=(
        "Intervals take the fitted means as given and cover new units of the same population.",
        "Centring changes the scoring function; it does not evaluate an index that searches by raw "
        "cosine.",
        "The floor is of unrelated pairs in this data; harder negatives score higher.",
    ),
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
    units = _units(codes, n)
    partners = [derangement(units, context.seed, "floor", i) for i in range(params.derangements)]

    with context.stage("means"):
        means = _fit_means(inputs, params.shared_mean, threads)
        centred_a = _centre(inputs.a, means.a, "a", threads)
        centred_b = _centre(inputs.b, means.b, "b", threads)
    raw = _reading(a, b, units, partners, params, context, "raw")
    centred = _reading(centred_a, centred_b, units, partners, params, context, "centred")

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
    induced = _induced_floor(centred, means, a, b, units, threads)
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
        aligned=_aligned(a, b, units, codes, params, context) if params.align else not_asked,
        anisotropy_a=spreads[0],
        anisotropy_b=spreads[1],
        residual_anisotropy_a=spreads[2],
        residual_anisotropy_b=spreads[3],
        means=means.sources,
        induced_floor=induced,
        space_guard=_guard(a, b, inputs, units, context),
    )
