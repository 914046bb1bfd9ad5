"""Rows kept as codes and read in float64, where they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from service.numerics import pairs
from service.numerics.rows import (
    SAFE_SQUARE,
    Floats,
    Rows,
    Selection,
    blocks,
    ordered_map,
    unit,
)

Codes = NDArray[Any]


@dataclass(frozen=True)
class Coded:
    """
    Rows low + number(code) * scale * row_scale, and what a score divides by.

    Attributes
    ----------
    codes : (n, d) float64, float32, int8, uint8, or uint16 holding the bits of binary16
    low, scale : (d,) float64
    row_scale : (n,) float64
    divisors : (n,) float64
        Lengths of the rows where scores are cosines, ones where they are products.
    """

    codes: Codes
    low: Floats
    scale: Floats
    row_scale: Floats
    divisors: Floats
    cosine: bool = False
    """Divisors are lengths."""
    zero_rows: int = 0
    """Rows that are read as zero and have no direction."""
    unit: ClassVar[bool] = False

    @property
    def n(self) -> int:
        return int(self.codes.shape[0])

    @property
    def d(self) -> int:
        return int(self.codes.shape[1])

    @property
    def form(self) -> tuple[Codes, Floats, Floats, Floats]:
        """What the kernels read rows from."""
        return self.codes, self.low, self.scale, self.row_scale

    def take(self, which: Selection) -> Floats:
        """The chosen rows as they are read, (m, d) float64, a new array."""
        chosen = np.arange(self.n)[which]
        out = np.empty((len(chosen), self.d))
        pairs.read_rows(*self.form, chosen, out)
        return out

    def points(self, which: Selection) -> Floats:
        """The chosen rows over their divisors, (m, d) float64, a new array."""
        out = self.take(which)
        out /= self.divisors[which, None]
        return out


@dataclass(frozen=True)
class Points:
    """Coded rows over their divisors, as a source."""

    rows: Coded

    @property
    def unit(self) -> bool:
        return self.rows.cosine

    @property
    def n(self) -> int:
        return self.rows.n

    @property
    def d(self) -> int:
        return self.rows.d

    def take(self, which: Selection) -> Floats:
        """The chosen points, (m, d) float64, a new array."""
        return self.rows.points(which)


def rows_as_codes(rows: Rows) -> Codes:
    """The same memory in a type the kernels read: binary16 as its bits."""
    if rows.dtype == np.float16:
        return rows.view(np.uint16)
    return rows


def coded(
    codes: Codes,
    *,
    cosine: bool,
    low: Floats | None = None,
    scale: Floats | None = None,
    row_scale: Floats | None = None,
    threads: int = 1,
) -> Coded:
    """
    Codes with how to read them; lengths are computed where scores are cosines.

    A row that is read as zero has no direction: its divisor is 1 and every cosine with it reads 0.
    """
    n, d = codes.shape
    made = Coded(
        codes,
        np.zeros(d) if low is None else low,
        np.ones(d) if scale is None else scale,
        np.ones(n) if row_scale is None else row_scale,
        np.ones(n),
    )
    if not cosine:
        return made
    return by_direction(made, threads)


def by_direction(rows: Coded, threads: int) -> Coded:
    """The same rows, divided by their lengths."""
    found = lengths(rows, threads)
    zero = found == 0
    found[zero] = 1.0
    return replace(rows, divisors=found, cosine=True, zero_rows=int(np.count_nonzero(zero)))


def as_given(rows: Rows, *, cosine: bool, threads: int = 1) -> Coded:
    """
    Rows as they are stored, without a copy.

    Where scores are cosines, float64 rows whose squares leave the range of float64 are brought to
    length one, in a copy; where they are products the caller refuses such rows.

    Parameters
    ----------
    rows : (n, d) finite
    """
    if rows.dtype == np.float64 and cosine:
        largest = np.concatenate([np.abs(rows[which]).max(axis=1) for which in blocks(*rows.shape)])
        low, high = SAFE_SQUARE
        extreme = (largest > 0) & ((largest < low) | (largest > high))
        if extreme.any():
            rows = np.array(rows)
            rows[extreme] = unit(rows[extreme])
    return coded(rows_as_codes(rows), cosine=cosine, threads=threads)


def lengths(rows: Coded, threads: int) -> Floats:
    """Norms of the rows as they are read, (n,)."""
    out = np.empty(rows.n)

    def fill(which: slice) -> None:
        pairs.lengths(rows.codes[which], rows.low, rows.scale, rows.row_scale[which], out[which])

    for _ in ordered_map(fill, blocks(rows.n, rows.d), threads):
        pass
    return out


def distances(one: Coded, other: Coded, threads: int) -> Floats:
    """
    Distance of each point to the same point of other rows, (n,); see `Coded.points`.

    Parameters
    ----------
    one, other : Coded of the same shape
    """

    def apart(which: slice) -> Floats:
        gap = one.points(which) - other.points(which)
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", gap, gap)))

    return np.concatenate(list(ordered_map(apart, blocks(one.n, one.d), threads)))


def chunks(n: int, size: int) -> Iterator[slice]:
    """Consecutive ranges of `size` rows; the last may be shorter."""
    for start in range(0, n, size):
        yield slice(start, min(n, start + size))
