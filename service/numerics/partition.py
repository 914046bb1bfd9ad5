"""Sums of squares of vectors within and between groups, and what is read off them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.numerics.compiled import draw_counts, stream_key
from service.numerics.moments import Units
from service.numerics.rows import Floats, Source, mean_row, ordered_map

Number = Floats | np.float64
BATCH = 128
BATCH_BYTES = 64 << 20


@dataclass(frozen=True)
class Partition:
    """
    Sums over groups of rows.

    Attributes
    ----------
    mean : (d,) mean of all rows
    counts : (G,) rows of each group
    sums : (G, d) sum over each group of deviations from `mean`
    total : (G,) sum over each group of squared deviations from `mean`
    within : (G,) sum over each group of squared deviations from the group's own mean
    """

    mean: Floats
    counts: NDArray[np.int64]
    sums: Floats
    total: Floats
    within: Floats

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    @property
    def ss_total(self) -> float:
        return float(self.total.sum())

    @property
    def ss_within(self) -> float:
        return float(self.within.sum())


def partition(source: Source, units: Units, threads: int) -> Partition:
    """
    Sums of squares by group, each about its own mean in a second pass, so that nothing cancels.

    Parameters
    ----------
    source : Source (n, d)
    units : Units of kind "group"

    Notes
    -----
    Time O(n d), memory (G, d) float64 and a few blocks.
    """
    mean = mean_row(source, threads)

    def of_range(span: tuple[int, int]) -> tuple[Floats, Floats, Floats]:
        pieces = units.pieces(*span, source.d)
        if len(pieces) > 1:  # one group larger than a block
            return _large_group(source, mean, pieces)
        x = source.take(pieces[0]) - mean
        starts = units.starts[span[0] : span[1]] - units.starts[span[0]]
        sizes = units.counts[span[0] : span[1]]
        sums = np.add.reduceat(x, starts)
        total = np.add.reduceat(np.einsum("ij,ij->i", x, x), starts)
        x -= np.repeat(sums / sizes[:, None], sizes, axis=0)
        return sums, total, np.add.reduceat(np.einsum("ij,ij->i", x, x), starts)

    parts = list(ordered_map(of_range, units.chunks(source.d), threads))
    sums, total, within = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Partition(mean, units.counts, sums, total, within)


def _large_group(
    source: Source, mean: Floats, pieces: list[slice | NDArray[np.int64]]
) -> tuple[Floats, Floats, Floats]:
    size, total, sums = 0, 0.0, np.zeros(source.d)
    for piece in pieces:
        x = source.take(piece) - mean
        sums += x.sum(axis=0)
        total += float(np.einsum("ij,ij->", x, x))
        size += len(x)
    within = 0.0
    for piece in pieces:
        x = source.take(piece) - mean - sums / size
        within += float(np.einsum("ij,ij->", x, x))
    return sums[None], np.array([total]), np.array([within])


@dataclass(frozen=True)
class Decomposition:
    """
    Statistics of one partition, or of many at once (fields are floats or (resamples,) arrays).

    Attributes
    ----------
    r2 : SS_B / SS_T, share of the variation that lies between groups
    f : (SS_B / (G-1)) / (SS_W / (n-G))
    icc1 : (MS_B - MS_W) / (MS_B + (n0-1) MS_W), n0 = (n - sum n_g^2 / n) / (G-1); may be negative
    v : SS_T / n
    w_bar : SS_W / n
    within_share : SS_W / SS_T
    """

    r2: Number
    f: Number
    icc1: Number
    v: Number
    w_bar: Number
    within_share: Number


def decompose(
    n: Number, groups: Number, squared_sizes: Number, ss_total: Number, ss_within: Number
) -> Decomposition:
    """
    The statistics from their sums, elementwise; undefined ones are NaN.

    Parameters
    ----------
    n : rows
    groups : number of groups
    squared_sizes : sum of squared group sizes
    ss_total, ss_within : sums of squares

    References
    ----------
    Anderson, "A new method for non-parametric multivariate analysis of variance", Austral Ecology
    26(1), 2001, doi:10.1111/j.1442-9993.2001.01070.pp.x; Shrout & Fleiss, Psychol. Bull. 86(2),
    1979, doi:10.1037/0033-2909.86.2.420 (here on traces of vectors).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        between = ss_total - ss_within
        ms_between = between / (groups - 1)
        ms_within = ss_within / (n - groups)
        n0 = (n - squared_sizes / n) / (groups - 1)
        f = np.where(ss_within > 0, ms_between / ms_within, np.nan)
        return Decomposition(
            r2=between / ss_total,
            f=f,
            icc1=(ms_between - ms_within) / (ms_between + (n0 - 1) * ms_within),
            v=ss_total / n,
            w_bar=ss_within / n,
            within_share=ss_within / ss_total,
        )


def observed(parts: Partition) -> Decomposition:
    """Statistics of the rows as they are; fields are 0-d."""
    counts = parts.counts.astype(np.float64)
    return decompose(
        np.float64(parts.n),
        np.float64(len(counts)),
        np.float64(np.square(counts).sum()),
        np.float64(parts.ss_total),
        np.float64(parts.ss_within),
    )


def without_each_group(parts: Partition) -> Decomposition:
    """Statistics without each group in turn, in closed form; fields are (G,)."""
    counts = parts.counts.astype(np.float64)
    left = parts.n - counts
    with np.errstate(divide="ignore", invalid="ignore"):
        length2 = np.einsum("ij,ij->i", parts.sums, parts.sums)
        ss_total = parts.ss_total - parts.total - length2 / left
    squares = np.square(counts)
    return decompose(
        left,
        np.full(len(counts), len(counts) - 1.0),
        squares.sum() - squares,
        ss_total,
        parts.ss_within - parts.within,
    )


def without_each_unit(parts: Partition, unit_sums: UnitSums) -> Decomposition:
    """Statistics without each unit in turn, where groups are a fixed list; fields are (U,)."""
    g = unit_sums.group
    counts = parts.counts.astype(np.float64)
    sizes = unit_sums.counts.astype(np.float64)
    left, left_in_group = parts.n - sizes, counts[g] - sizes
    with np.errstate(divide="ignore", invalid="ignore"):
        ss_total = parts.ss_total - unit_sums.total - unit_sums.length2 / left
        gone = np.where(
            left_in_group > 0,
            unit_sums.within + unit_sums.within_length2 / left_in_group,
            parts.within[g],
        )
    return decompose(
        left,
        len(counts) - (left_in_group == 0).astype(np.float64),
        np.square(counts).sum() - np.square(counts[g]) + np.square(left_in_group),
        ss_total,
        parts.ss_within - gone,
    )


def bootstrap(
    parts: Partition, resamples: int, seed: int, threads: int, step: Callable[[int, int], None]
) -> Decomposition:
    """
    Statistics of cluster-bootstrap resamples: groups drawn with replacement, copies kept apart.

    No row is copied: a resample is a vector of weights, and its sums are weights times group sums.

    Parameters
    ----------
    parts : Partition
    resamples : B
    seed : int
        The same seed draws the same groups for every model.

    Returns
    -------
    Decomposition with (B,) fields; NaN where a resample is degenerate

    Notes
    -----
    Time O(B G d), memory 128 resamples per thread.
    """
    key = stream_key(seed, "bootstrap")
    counts = parts.counts.astype(np.float64)
    groups = len(counts)

    batch = max(1, min(BATCH, BATCH_BYTES // (8 * groups)))

    def draw(first: int) -> tuple[Floats, ...]:
        weights = np.empty((min(batch, resamples - first), groups))
        draw_counts(key, first, weights)
        n = weights @ counts
        shift = weights @ parts.sums
        total = weights @ parts.total - np.einsum("ij,ij->i", shift, shift) / n
        return n, weights @ np.square(counts), total, weights @ parts.within

    firsts = range(0, resamples, batch)
    found = []
    for done, part in enumerate(ordered_map(draw, firsts, threads), start=1):
        found.append(part)
        step(done, len(firsts))
    n, squares, total, within = (np.concatenate(column) for column in zip(*found, strict=True))
    return decompose(n, np.full(resamples, float(groups)), squares, total, within)


@dataclass(frozen=True)
class UnitSums:
    """
    Sums over resampling units inside groups.

    Attributes
    ----------
    group : (U,) group of each unit
    counts : (U,) rows
    total, length2 : (U,) squares, and squared length of the sum, of deviations from the grand mean
    within, within_length2 : (U,) the same for deviations from the group's mean
    """

    group: NDArray[np.int64]
    counts: NDArray[np.int64]
    total: Floats
    length2: Floats
    within: Floats
    within_length2: Floats


def sums_by_unit(
    source: Source, parts: Partition, codes: NDArray[np.int64], units: Units, threads: int
) -> UnitSums:
    """
    What `without_each_unit` needs; time O(n d), memory a few blocks.

    Parameters
    ----------
    codes : (n,) group of each row
    units : Units, rows or sets of rows of one group
    """
    centres = parts.sums / parts.counts[:, None]
    first = units.starts[:-1] if units.order is None else units.order[units.starts[:-1]]

    def of_range(span: tuple[int, int]) -> tuple[Floats, ...]:
        starts = units.starts[span[0] : span[1]] - units.starts[span[0]]
        if units.starts[span[1]] - units.starts[span[0]] == 0:
            return tuple(np.zeros(0) for _ in range(4))
        rows = np.concatenate([np.arange(units.n)[p] for p in units.pieces(*span, source.d)])
        x = source.take(rows) - parts.mean
        found = []
        for y in (x, x - centres[codes[rows]]):
            s = np.add.reduceat(y, starts)
            found += [
                np.add.reduceat(np.einsum("ij,ij->i", y, y), starts),
                np.einsum("ij,ij->i", s, s),
            ]
        return tuple(found)

    columns = zip(*ordered_map(of_range, units.chunks(source.d), threads), strict=True)
    total, length2, within, within_length2 = (np.concatenate(column) for column in columns)
    return UnitSums(codes[first], units.counts, total, length2, within, within_length2)
