"""Sums by group and closed-form moments of pair cosines, without a matrix of pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.numerics.rows import (
    BLOCK_ELEMENTS,
    Floats,
    Source,
    blocks,
    mean_row,
    ordered_map,
)

GRAM_BYTES_IN_FLIGHT = 128 << 20
RESOLUTION = 1e-14  # relative rounding of the closed-form second moment


@dataclass(frozen=True)
class Units:
    """
    What is left out at a time: groups of rows, or single rows.

    Attributes
    ----------
    order : (n,) int64 or None
        Rows sorted by group, stable; None where every row is its own unit.
    starts : (G + 1,) int64
        Where each group begins in `order`.
    name : "group" or "row"
    """

    order: NDArray[np.int64] | None
    starts: NDArray[np.int64]
    name: Literal["group", "row"]

    @classmethod
    def rows(cls, n: int) -> Units:
        """Every row is a unit."""
        return cls(None, np.arange(n + 1), "row")

    @classmethod
    def groups(cls, codes: NDArray[np.integer]) -> Units:
        """Rows with the same code are a unit; codes are 0..G-1 without gaps."""
        counts = np.bincount(codes)
        starts = np.concatenate([[0], np.cumsum(counts)])
        return cls(np.argsort(codes, kind="stable"), starts, "group")

    @property
    def counts(self) -> NDArray[np.int64]:
        """Rows of each unit, (G,)."""
        return np.diff(self.starts)

    @property
    def n(self) -> int:
        return int(self.starts[-1])

    def sums(self, values: Floats) -> Floats:
        """Sum of one value per row over each unit, (G,)."""
        if self.order is None:
            return values
        return np.asarray(np.add.reduceat(values[self.order], self.starts[:-1]))

    def chunks(self, d: int) -> list[tuple[int, int]]:
        """
        Ranges [first, last) of whole units that fill a block, a function of sizes and shape only.

        A unit larger than a block is a range of its own.
        """
        size = max(BLOCK_ELEMENTS // d, 1)
        if self.order is None:
            return [(block.start, block.stop) for block in blocks(self.n, d)]
        result: list[tuple[int, int]] = []
        first = 0
        units = len(self.starts) - 1
        while first < units:
            last = int(np.searchsorted(self.starts, self.starts[first] + size, side="right")) - 1
            last = min(max(last, first + 1), units)
            result.append((first, last))
            first = last
        return result

    def pieces(self, first: int, last: int, d: int) -> list[slice | NDArray[np.int64]]:
        """The rows of a range of units in block-sized selections."""
        start, stop = int(self.starts[first]), int(self.starts[last])
        size = max(BLOCK_ELEMENTS // d, 1)
        edges = range(start, stop, size)
        if self.order is None:
            return [slice(edge, min(edge + size, stop)) for edge in edges]
        return [self.order[edge : min(edge + size, stop)] for edge in edges]


@dataclass(frozen=True)
class Deviations:
    """
    Sums of deviations from the mean direction, by unit.

    Attributes
    ----------
    mean : (d,) mean direction
    squares : (G,) sum of squared deviations
    length2 : (G,) squared length of the summed deviation
    along : (G,) dot product of the mean with the summed deviation
    """

    mean: Floats
    counts: NDArray[np.int64]
    squares: Floats
    length2: Floats
    along: Floats

    def without_each(self) -> Without:
        """What is read off the sums without each unit in turn, in closed form."""
        left = self.counts.sum() - self.counts
        with np.errstate(divide="ignore", invalid="ignore"):
            squares = self.squares.sum() - self.squares - self.length2 / left
            mean2 = self.mean @ self.mean - 2 * self.along / left + self.length2 / np.square(left)
            return Without(
                dispersion=squares / left,
                length=np.sqrt(np.maximum(mean2, 0)),
                mean_cosine=mean2 - squares / (left * (left - 1)),
                variance=squares / (left - 1),
            )


@dataclass(frozen=True)
class Without:
    """
    Statistics without each unit in turn, (G,); not finite where nothing is left to compute them from.

    Attributes
    ----------
    dispersion : mean squared distance to the mean
    length : of the mean
    mean_cosine : of different rows, which are of length one
    variance : trace of the covariance, ddof 1
    """

    dispersion: Floats
    length: Floats
    mean_cosine: Floats
    variance: Floats


def deviations(source: Source, units: Units, threads: int) -> Deviations:
    """
    Sums of squares about the mean and what is needed to leave out each unit in closed form.

    Two passes, so that nothing cancels however long the mean is. Time O(n d), memory a few blocks.
    """
    mean = mean_row(source, threads)

    def of_range(span: tuple[int, int]) -> tuple[Floats, Floats, Floats]:
        pieces = units.pieces(*span, source.d)
        if len(pieces) > 1:  # one unit larger than a block
            total, squares = np.zeros(source.d), 0.0
            for piece in pieces:
                x = source.take(piece)
                x -= mean
                total += x.sum(axis=0)
                squares += float(np.einsum("ij,ij->", x, x))
            sums, q = total[None], np.array([squares])
        else:
            x = source.take(pieces[0])
            x -= mean
            q = np.einsum("ij,ij->i", x, x)
            if units.order is None:
                return q, q, x @ mean
            offsets = units.starts[span[0] : span[1]] - units.starts[span[0]]
            sums, q = np.add.reduceat(x, offsets), np.add.reduceat(q, offsets)
        return q, np.einsum("ij,ij->i", sums, sums), sums @ mean

    parts = list(ordered_map(of_range, units.chunks(source.d), threads))
    squares, length2, along = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Deviations(mean, units.counts, squares, length2, along)


def mean_cosine(sums: Deviations) -> float:
    """Mean cosine over ordered pairs of different unit rows, from sums about their mean; n >= 2."""
    n = int(sums.counts.sum())
    return float(sums.mean @ sums.mean - sums.squares.sum() / (n * (n - 1)))


@dataclass(frozen=True)
class PairMoments:
    """
    Mean and sd of the cosine over all ordered pairs of rows from different units.

    Attributes
    ----------
    mean, sd : float
        sd is 0 where it is below the rounding of the closed form (about 1e-7 of the cosines' scale).
    pairs : int
    deleted : (G,) float64
        The mean without each unit in turn; NaN where no pair is left.
    """

    mean: float
    sd: float
    pairs: int
    deleted: Floats


def pair_moments(
    a: Source,
    b: Source,
    units: Units,
    threads: int,
    step: Callable[[int, int], None],
    means: tuple[Floats, Floats] | None = None,
) -> PairMoments:
    r"""
    Exact moments of :math:`a_i \cdot b_j` over all pairs (i, j) whose rows are of different units.

    With means a0, b0 and centred rows, every cosine is a0.b0 + t_ij with
    t_ij = a0.b~_j + b0.a~_i + a~_i.b~_j, and t sums to zero over all pairs, so

    - sum over unrelated pairs of t = - sum_g W_g, where W_g sums t inside unit g;
    - sum of t^2 = Q - sum_g S_g, Q = n |B~ a0|^2 + n |A~ b0|^2 + <A~'A~, B~'B~>, S_g inside unit g.

    Nothing large is subtracted from anything large, however far the rows lie from the origin.

    Parameters
    ----------
    a, b : unit rows of the same shape (n, d); row i of `a` pairs with row i of `b`
    units : Units with at least two units
    means : of `a` and `b`, where they are known

    Notes
    -----
    Time O(n d^2) for the two Gram matrices plus O(sum_g min(n_g, d) n_g d) inside units; memory a few
    blocks and (d, d) matrices per thread.
    """
    n, d = a.n, a.d
    same = a is b
    if means is None:
        first = mean_row(a, threads)
        means = first, first if same else mean_row(b, threads)
    a0, b0 = means
    threads = max(1, min(threads, GRAM_BYTES_IN_FLIGHT // (16 * d * d)))

    def of_range(span: tuple[int, int]) -> _Inside:
        pieces = units.pieces(*span, d)
        if len(pieces) > 1:
            return _large_unit(a, b, a0, b0, pieces)
        x = a.take(pieces[0])
        x -= a0
        y = x if same else b.take(pieces[0]) - b0
        sizes = None if units.order is None else units.counts[span[0] : span[1]]
        return _small_units(x, y, a0, b0, sizes)

    spans = units.chunks(d)
    gram_a, gram_b = np.zeros((d, d)), np.zeros((d, d))
    parts: list[_Inside] = []
    for done, part in enumerate(ordered_map(of_range, spans, threads), start=1):
        gram_a += part.gram_a
        gram_b += part.gram_b
        parts.append(part.without_grams())
        step(done, len(spans))

    a_on_b0 = np.concatenate([part.a_on_b0 for part in parts])
    b_on_a0 = np.concatenate([part.b_on_a0 for part in parts])
    inside = np.concatenate([part.t for part in parts])
    inside2 = np.concatenate([part.t2 for part in parts])
    counts = units.counts.astype(np.float64)
    pairs = n * n - int(np.square(units.counts).sum())

    base = float(a0 @ b0)
    everything = (
        n * float(a0 @ gram_b @ a0) + n * float(b0 @ gram_a @ b0) + float((gram_a * gram_b).sum())
    )
    shift = -float(inside.sum()) / pairs
    second = everything - float(inside2.sum())
    variance = second / pairs - shift * shift
    scale = max(everything / pairs, base * base)
    sd = float(np.sqrt(variance)) if variance > RESOLUTION * scale else 0.0

    left = np.square(n - counts) - (np.square(counts).sum() - np.square(counts))
    without = -inside.sum() - n * (a_on_b0 + b_on_a0) + 2 * inside
    with np.errstate(divide="ignore", invalid="ignore"):
        deleted = np.where(left > 0, base + without / left, np.nan)
    return PairMoments(base + shift, sd, pairs, deleted)


@dataclass(frozen=True)
class _Inside:
    """Sums inside a range of units; see `pair_moments`."""

    t: Floats
    t2: Floats
    a_on_b0: Floats
    b_on_a0: Floats
    gram_a: Floats
    gram_b: Floats

    def without_grams(self) -> _Inside:
        nothing = np.zeros((0, 0))
        return _Inside(self.t, self.t2, self.a_on_b0, self.b_on_a0, nothing, nothing)


def _small_units(
    x: Floats, y: Floats, a0: Floats, b0: Floats, sizes: NDArray[np.int64] | None
) -> _Inside:
    """Whole units that fit in a block; `sizes` is None where each row is a unit."""
    gram_a = x.T @ x
    gram_b = gram_a if y is x else y.T @ y
    p, q = x @ b0, y @ a0
    if sizes is None:
        t = p + q + np.einsum("ij,ij->i", x, y)
        return _Inside(t, t * t, p, q, gram_a, gram_b)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    unit_of_row = np.repeat(np.arange(len(sizes)), sizes)

    def by_unit(values: Floats) -> Floats:
        return np.asarray(np.add.reduceat(values, starts))

    sum_x, sum_y = by_unit(x), by_unit(y)
    p_sum, q_sum = by_unit(p), by_unit(q)
    t = sizes * (p_sum + q_sum) + np.einsum("ij,ij->i", sum_x, sum_y)
    t2 = (
        sizes * (by_unit(p * p) + by_unit(q * q))
        + 2 * p_sum * q_sum
        + 2 * by_unit(q * np.einsum("ij,ij->i", sum_x[unit_of_row], y))
        + 2 * by_unit(p * np.einsum("ij,ij->i", x, sum_y[unit_of_row]))
    )
    for size in np.unique(sizes):
        chosen = np.flatnonzero(sizes == size)
        rows = starts[chosen, None] + np.arange(size)
        t2[chosen] += _cross_squares(x[rows], y[rows])
    return _Inside(t, t2, p_sum, q_sum, gram_a, gram_b)


def _cross_squares(x: Floats, y: Floats) -> Floats:
    """Sum of (x_i . y_j)^2 over i, j inside each of m stacked units; x, y are (m, s, d)."""
    if x.shape[1] <= x.shape[2]:
        return np.asarray(np.square(x @ y.transpose(0, 2, 1)).sum(axis=(1, 2)))
    return np.array(
        [float(((u.T @ u) * (v.T @ v)).sum()) for u, v in zip(x, y, strict=True)]
    )  # at most BLOCK_ELEMENTS / d^2 of them


def _large_unit(
    a: Source,
    b: Source,
    a0: Floats,
    b0: Floats,
    pieces: list[slice | NDArray[np.int64]],
) -> _Inside:
    """One unit larger than a block, through its Gram matrices."""
    d = a.d
    gram_a, gram_b = np.zeros((d, d)), np.zeros((d, d))
    sum_x, sum_y, size = np.zeros(d), np.zeros(d), 0
    for piece in pieces:
        x = a.take(piece) - a0
        y = x if a is b else b.take(piece) - b0
        gram_a += x.T @ x
        gram_b += y.T @ y
        sum_x += x.sum(axis=0)
        sum_y += y.sum(axis=0)
        size += len(x)
    p, q = float(sum_x @ b0), float(sum_y @ a0)
    t = size * (p + q) + float(sum_x @ sum_y)
    t2 = (
        size * float(a0 @ gram_b @ a0 + b0 @ gram_a @ b0)
        + 2 * p * q
        + 2 * float(a0 @ gram_b @ sum_x + b0 @ gram_a @ sum_y)
        + float((gram_a * gram_b).sum())
    )
    one = np.array
    return _Inside(one([t]), one([t2]), one([p]), one([q]), gram_a, gram_b)
