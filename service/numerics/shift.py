"""How far two independent samples lie apart and how much wider one is, in closed form by unit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.numerics.moments import Units
from service.numerics.partition import Partition
from service.numerics.rows import Floats, Source, ordered_map

Codes = NDArray[np.int64]
Number = Floats | np.float64


@dataclass(frozen=True)
class Sums:
    """
    Sums over units of deviations from the mean of a unit's own sample.

    Attributes
    ----------
    sample : (u,) 0 or 1
    sizes : (u,) rows
    squares : (u,) squared deviations
    length2 : (u,) squared length of the summed deviation
    along : (u,) dot product of the summed deviation with the gap
    gap2 : squared length of the gap, the mean of sample 1 minus that of sample 0
    """

    sample: Codes
    sizes: Floats
    squares: Floats
    length2: Floats
    along: Floats
    gap2: float


def sums(source: Source, parts: Partition, codes: Codes, units: Units, threads: int) -> Sums:
    """
    Sums over units; time O(n d), memory a few blocks.

    Parameters
    ----------
    source : Source (n, d)
    parts : its partition by sample
    codes : (n,) sample of each row, 0 or 1
    units : Units, each in one sample
    """
    offsets = parts.sums / parts.counts[:, None]
    centres, gap = parts.mean + offsets, offsets[1] - offsets[0]

    def of_range(span: tuple[int, int]) -> tuple[Floats, Floats, Floats]:
        pieces = units.pieces(*span, source.d)
        total, squares = np.zeros((span[1] - span[0], source.d)), np.zeros(span[1] - span[0])
        at = units.starts[span[0]]
        for piece in pieces:
            x = source.take(piece)
            x -= centres[codes[piece]]
            edges = np.clip(units.starts[span[0] : span[1] + 1] - at, 0, len(x))
            some = np.flatnonzero(np.diff(edges))
            total[some] += np.add.reduceat(x, edges[some])
            squares[some] += np.add.reduceat(np.einsum("ij,ij->i", x, x), edges[some])
            at += len(x)
        return squares, np.einsum("ij,ij->i", total, total), total @ gap

    found = list(ordered_map(of_range, units.chunks(source.d), threads))
    squares, length2, along = (np.concatenate(column) for column in zip(*found, strict=True))
    first = units.starts[:-1] if units.order is None else units.order[units.starts[:-1]]
    return Sums(
        codes[first],
        units.counts.astype(np.float64),
        squares,
        length2,
        along,
        float(gap @ gap),
    )


@dataclass(frozen=True)
class Shift:
    """
    Differences of two samples; each a number, or an array over the unit that is left out.

    Attributes
    ----------
    distance2 : squared distance of the population means, without the bias of sampling
        Mean squared distance across samples minus half of the mean over pairs of different units
        inside each: the unbiased MMD^2 of a linear kernel, whatever the origin; may be negative.
    spread : (sample 0, sample 1) half the mean squared distance of rows of different units
        The trace of the ddof=1 covariance where each row is a unit; NaN of a single unit.
    r2 : share of the pooled sum of squares that lies between the samples
    """

    distance2: Number
    spread: tuple[Number, Number]
    r2: Number


@dataclass(frozen=True)
class _Side:
    """One sample: rows, pairs of rows of different units, sum of squares, spread."""

    n: Number
    squares: Number
    spread: Number

    @classmethod
    def of(cls, part: Sums, side: int, left: bool) -> _Side:
        """A sample as it is, or without each unit in turn: a unit of the other takes nothing."""
        here = part.sample == side
        sizes, squares, length2 = part.sizes[here], part.squares[here], part.length2[here]
        weighted = sizes * squares
        n, pairs = sizes.sum(), sizes.sum() ** 2 - np.square(sizes).sum()
        apart = n * squares.sum() - weighted.sum() + length2.sum()
        if not left:
            return cls(n, squares.sum(), _over(apart, pairs))
        m = n - sizes
        rest = squares.sum() - squares
        fewer = pairs - 2 * n * sizes + 2 * np.square(sizes)
        nearer = m * rest - (weighted.sum() - weighted) + length2.sum() - 2 * length2
        return cls(
            _spread_out(here, n, m),
            _spread_out(here, squares.sum(), rest - _over(length2, m)),
            _spread_out(here, _over(apart, pairs), _over(nearer, fewer)),
        )


def _over(value: Number, by: Number) -> Number:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(by > 0, value / by, np.nan))[()]


def _spread_out(here: NDArray[np.bool_], elsewhere: Number, values: Number) -> Floats:
    out = np.full(len(here), elsewhere)
    out[here] = values
    return out


def shift(part: Sums) -> Shift:
    """The differences of the samples as they are."""
    return _shift(_Side.of(part, 0, False), _Side.of(part, 1, False), np.float64(part.gap2))


def shift_without_each(part: Sums) -> Shift:
    """The same without each unit in turn, (u,) each; NaN where a sample has no pair left."""
    one, other = _Side.of(part, 0, True), _Side.of(part, 1, True)
    left = np.where(part.sample == 0, one.n, other.n)
    sign = np.where(part.sample == 0, 2.0, -2.0)
    gap2 = part.gap2 + _over(sign * part.along, left) + _over(part.length2, np.square(left))
    return _shift(one, other, gap2)


def _shift(one: _Side, other: _Side, gap2: Number) -> Shift:
    within = one.squares + other.squares
    between = one.n * other.n / (one.n + other.n) * gap2
    noise = one.squares / one.n - one.spread + (other.squares / other.n - other.spread)
    with np.errstate(divide="ignore", invalid="ignore"):
        return Shift(gap2 + noise, (one.spread, other.spread), between / (between + within))


@dataclass(frozen=True)
class Steadied:
    """
    The scale sqrt(v + noise) of an unbiased squared distance v.

    Its error hardly depends on where v lies, while that of v itself grows with v: a distance that came
    out too small would have too small an error, and would seem to lie inside a margin too often.

    Parameters
    ----------
    noise : float
        What sampling alone adds to the squared distance as it is.
    """

    noise: float

    def of(self, square: Number) -> Floats:
        """The value on this scale; 0 from -noise downwards."""
        return np.asarray(np.sqrt(np.maximum(square + max(self.noise, 0.0), 0.0)))

    def back(self, value: float) -> float:
        """The squared distance of a value, -noise at least."""
        return max(value, 0.0) ** 2 - max(self.noise, 0.0)
