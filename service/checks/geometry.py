"""Geometry: how the vectors spread."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from service.check import (
    Context,
    Curves,
    Dots,
    Estimate,
    Inputs,
    Params,
    Results,
    Shown,
    Undefined,
    check,
    estimate_of,
    labels,
    measure,
    vectors,
)
from service.dataset import Dataset, Labels
from service.numerics.moments import Units, deviations, mean_cosine, pair_moments
from service.numerics.rows import (
    UNIT_TOLERANCE,
    Directions,
    Floats,
    Stored,
    blocks,
    duplicate_rows,
    norms,
    ordered_map,
    safe_scale,
)
from service.numerics.spectrum import (
    dimensions_holding,
    participation_ratio,
    rankme,
    spectra,
    stable_rank,
)

ANISOTROPIC = 0.3


class GeometryInputs(Inputs):
    vectors: Dataset = vectors(rows="rows")
    """Rows to describe."""
    groups: Labels | None = labels(of="vectors", least=2)
    """Which rows belong together (source document, user, cluster): the unit of every interval."""


class GeometryParams(Params):
    max_spectrum: int = Field(default=64, ge=1, le=4096)
    """How many leading variance shares to list."""


class Norms(Results):
    """Lengths of the raw rows."""

    min: float = measure(low=0, invariance=("orthogonal",))
    """Shortest row."""
    median: float = measure(low=0, invariance=("orthogonal",))
    """Median length."""
    max: float = measure(low=0, invariance=("orthogonal",))
    """Longest row."""
    cv: float = measure(low=0, invariance=("orthogonal", "uniform_scale"))
    """Standard deviation (ddof 0) over mean of the lengths."""
    unit_share: float = measure(low=0, high=1, invariance=("orthogonal",))
    """Share of rows whose length is within .001 of 1."""


class RogueDimensions(Results):
    """Whether a few coordinates carry the variance."""

    largest_over_mean: float | None = measure(low=1, invariance=("uniform_scale",))
    """Largest variance of one coordinate over the mean variance."""
    top3_share: float | None = measure(low=0, high=1, invariance=("uniform_scale",))
    """Share of the total variance on the three largest coordinates."""


class Spectrum(Results):
    """How the variance is spread over principal directions."""

    leading_shares: list[float] | None
    """Shares of the total variance, largest first."""
    dimensions_50: int | None = measure(unit="dimensions", low=1, invariance=("similarity",))
    """Principal directions that carry half of the variance."""
    dimensions_90: int | None = measure(unit="dimensions", low=1, invariance=("similarity",))
    """Principal directions that carry 90 % of the variance."""
    dimensions_99: int | None = measure(unit="dimensions", low=1, invariance=("similarity",))
    """Principal directions that carry 99 % of the variance."""


class Duplicates(Results):
    """Exactly equal rows."""

    rows: int = measure(unit="rows", low=0, better="lower")
    """Rows equal to an earlier row."""
    groups: int = measure(unit="groups", low=0, better="lower")
    """Sets of two or more equal rows."""


class Geometry(Results):
    n: int
    """Rows used."""
    d: int
    """Dimensions."""
    dispersion_v: Estimate = measure(low=0, high=1, invariance=("isometry",))
    """Mean squared distance of the unit rows to their mean; 0 if all point one way."""
    mean_resultant_length: Estimate = measure(low=0, high=1, invariance=("orthogonal",))
    """Length of the mean of the unit rows; 1 if all point one way."""
    anisotropy: Estimate = measure(low=-1, high=1, invariance=("orthogonal",))
    """Mean cosine between different rows."""
    anisotropy_sd: float | None = measure(low=0, high=1, invariance=("orthogonal",))
    """Standard deviation of that cosine over all pairs; 0 where below rounding."""
    total_variance: Estimate = measure(low=0, invariance=("isometry",))
    """Trace of the covariance of the raw rows, ddof 1."""
    norms: Norms
    rogue_dimensions: RogueDimensions
    participation_ratio: float | None = measure(
        unit="dimensions", low=1, invariance=("similarity",)
    )
    """Directions in use by the centred covariance spectrum, in [1, min(n - 1, d)]."""
    stable_rank: float | None = measure(
        unit="dimensions", low=1, invariance=("orthogonal", "uniform_scale")
    )
    """Squared Frobenius over squared spectral norm of the raw rows."""
    rankme: float | None = measure(
        unit="dimensions", low=1, invariance=("orthogonal", "uniform_scale")
    )
    """RankMe of the uncentred raw rows, as published; a common offset pulls it towards 1."""
    rankme_centred: float | None = measure(unit="dimensions", low=1, invariance=("similarity",))
    """RankMe of the rows minus their mean."""
    spectrum: Spectrum
    duplicates: Duplicates

    charts = (
        Dots(
            "spread",
            "Do the vectors share a direction, and how far do they spread around it?",
            (Shown("dispersion_v"), Shown("mean_resultant_length"), Shown("anisotropy")),
            axis="share of unit length, or cosine",
        ),
        Dots(
            "directions",
            "How many directions are in use?",
            (
                Shown("participation_ratio"),
                Shown("stable_rank"),
                Shown("rankme"),
                Shown("rankme_centred"),
                Shown("spectrum.dimensions_90", "for 90 % of the variance"),
                Shown("spectrum.dimensions_50", "for half of the variance"),
            ),
            lines={"dimensions there are": "d"},
        ),
        Curves(
            "spectrum",
            "What share of the variance does each principal direction carry?",
            (Shown("spectrum.leading_shares.{direction}"),),
            along="direction",
            axis="share of the variance",
            told="principal direction, largest first",
        ),
    )

    def readings(self) -> list[str]:
        size = min(self.n - 1, self.d)  # centred rows leave one direction less
        lines = []
        if self.anisotropy.estimate is not None:
            lines.append(
                f"Two different rows have a mean cosine of {self.anisotropy:.4f}; 0 would mean no "
                "common direction, and no raw cosine can be read without this floor."
            )
        lines.append(
            f"The unit rows keep a dispersion of {self.dispersion_v:.4f} around their mean "
            "(1 is no common direction, 0 is collapse)."
        )
        if self.participation_ratio is not None and self.rankme is not None:
            lines.append(
                f"The centred rows use about {self.participation_ratio:.1f} of {size} possible "
                f"directions by participation ratio; RankMe of the raw rows is {self.rankme:.1f} "
                f"and {self.rankme_centred:.1f} once the mean is removed."
            )
        if self.duplicates.rows:
            lines.append(
                f"{self.duplicates.rows} rows repeat an earlier row exactly; they count as "
                "separate observations here."
            )
        return lines


def _unscaled_all(variances: Floats, scale: float) -> Floats:
    """Variances of rows that were multiplied by `scale`; inf where float64 cannot hold one."""
    with np.errstate(over="ignore", under="ignore"):
        return variances / scale / scale


def _unscaled(variance: float, scale: float) -> float | Undefined:
    """The variance of rows that were multiplied by `scale`, where float64 can hold it."""
    value = float(_unscaled_all(np.array([variance]), scale)[0])
    if np.isfinite(value) and (value > 0) == (variance > 0):
        return value
    return Undefined(code="out_of_range", message="The variance is beyond the range of float64.")


def _norms(rows: Stored, threads: int) -> Norms:
    parts = ordered_map(lambda which: norms(rows.take(which)), blocks(rows.n, rows.d), threads)
    lengths = np.concatenate(list(parts))
    return Norms(
        min=float(lengths.min()),
        median=float(np.median(lengths)),
        max=float(lengths.max()),
        cv=float((lengths / lengths.max()).std() / (lengths / lengths.max()).mean()),
        unit_share=float(np.mean(np.abs(lengths - 1) <= UNIT_TOLERANCE)),
    )


def _spectrum(variances: Floats, most: int) -> Spectrum:
    shares = variances / variances.sum()
    return Spectrum(
        leading_shares=[float(share) for share in shares[:most]],
        **{
            f"dimensions_{percent}": dimensions_holding(variances, percent / 100)
            for percent in (50, 90, 99)
        },
    )


@check(
    version=2,
    title="How the vectors spread",
    question="How do the vectors spread: common direction, dispersion, directions in use, "
    "duplicates?",
    scope=(
        "Geometry does not show which labels can be recovered or whether search returns the right "
        "items.",
        "Rows along one axis in both directions have anisotropy 0 and still raw cosines of +1 and -1.",
        "RankMe adds 1e-7 to each share as published: a flat spectrum of 768 reads 768.333.",
    ),
    warnings={
        "anisotropic": "Different rows have a mean cosine far above 0.",
        "rank_limited_by_n": "No more rows than dimensions: they bound every spectrum measure.",
        "duplicates": "Rows equal an earlier row.",
    },
    sources=("arXiv:2210.02885", "doi:10.1101/214262", "doi:10.1137/080731992"),
)
def geometry(context: Context, inputs: GeometryInputs, params: GeometryParams) -> Geometry:
    """
    How the vectors spread: dispersion, common direction, variance, and directions in use.

    Needs no labels. Streams its rows: time O(n d^2), memory a few blocks of 2^22 float64 elements.
    """
    rows = inputs.vectors.vectors
    n, d = rows.shape
    directions = Directions(rows)
    units = Units.rows(n) if inputs.groups is None else Units.groups(inputs.groups.dense)

    with context.stage("dispersion"):
        lengths = _norms(Stored(rows), context.threads)
        stored = Stored(rows, safe_scale(lengths.max))
        unit_sums = deviations(directions, units, context.threads)
        raw_sums = deviations(stored, units, context.threads)
    with context.stage("duplicates"):
        repeated, sets = duplicate_rows(rows, context.threads)
    with context.stage("pairs") as step:
        one = Undefined(code="too_few_rows", message="Two rows make the first pair.")
        pairs = (
            pair_moments(directions, directions, Units.rows(n), context.threads, step)
            if n > 1
            else None
        )
    with context.stage("spectrum") as step:
        found = spectra(stored, context.threads, step)

    deleted, deleted_raw = unit_sums.without_each(), raw_sums.without_each()

    def estimated(value: float | Undefined, without: Floats) -> Any:
        return estimate_of(value, without, params, units.name)

    squares = float(unit_sums.squares.sum())
    anisotropy: float | Undefined = one if n == 1 else mean_cosine(unit_sums)
    if isinstance(anisotropy, float) and anisotropy > ANISOTROPIC:
        context.warn(
            "anisotropic",
            f"Different rows have a mean cosine of {anisotropy:.3f}: read every cosine against its "
            "floor (check `cosine_floor`).",
            "results/anisotropy",
        )
    if n <= d:
        context.warn(
            "rank_limited_by_n",
            f"{n} rows of {d} dimensions: no spectrum measure can exceed {n}, of centred "
            f"rows {n - 1}.",
            "inputs/vectors",
        )
    if repeated:
        context.warn("duplicates", f"{repeated} rows equal an earlier row.", "results/duplicates")

    zero = Undefined(code="zero_spectrum", message="All rows are equal: nothing varies.")
    empty = Undefined(code="zero_spectrum", message="All rows are zero.")
    variances = np.square(found.centred)
    by_size = np.sort(found.variances)[::-1]
    raw = found.raw[0] > 0
    return Geometry.build(  # type: ignore[no-any-return]
        n=n,
        d=d,
        dispersion_v=estimated(squares / n, deleted.dispersion),
        mean_resultant_length=estimated(float(np.linalg.norm(unit_sums.mean)), deleted.length),
        anisotropy=estimated(anisotropy, deleted.mean_cosine),
        anisotropy_sd=one if pairs is None else pairs.sd,
        total_variance=estimated(
            one if n == 1 else _unscaled(float(raw_sums.squares.sum()) / (n - 1), stored.scale),
            _unscaled_all(deleted_raw.variance, stored.scale),
        ),
        norms=lengths,
        rogue_dimensions=RogueDimensions.build(
            largest_over_mean=float(by_size[0] / by_size.mean()) if found.spread else zero,
            top3_share=float(by_size[:3].sum() / by_size.sum()) if found.spread else zero,
        ),
        participation_ratio=participation_ratio(variances) if found.spread else zero,
        stable_rank=stable_rank(found.raw) if raw else empty,
        rankme=rankme(found.raw) if raw else empty,
        rankme_centred=rankme(found.centred) if found.spread else zero,
        spectrum=_spectrum(variances, params.max_spectrum)
        if found.spread
        else Spectrum.build(
            leading_shares=zero, dimensions_50=zero, dimensions_90=zero, dimensions_99=zero
        ),
        duplicates=Duplicates(rows=repeated, groups=sets),
    )
