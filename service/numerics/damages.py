"""
Rows damaged in known ways, every way fitted on train rows.

Three damages are affine, the same for every coordinate's scale: y = scale x + shift. Such rows are read
from the rows as given, without a copy, and their mean and triangle follow in closed form. Projected and
noisy rows are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.numerics.coded import Coded, as_given, coded, lengths
from service.numerics.neighbours import Step
from service.numerics.rows import Floats, Rows, Stored, blocks, ordered_map
from service.numerics.spectrum import NO_SPREAD, raw_directions, reduced
from service.numerics.sphere import normal_blocks

Damage = Literal["contraction", "offset", "rank_restriction", "noise", "mean_interpolation"]
Kept = NDArray[np.floating]
SINGLE = (1e-15, 1e15)
"""Rows of these lengths, damaged, stay where float32 has all its digits."""


@dataclass(frozen=True)
class Fitted:
    """
    What train rows say of every damage.

    Attributes
    ----------
    mean : (d,)
    length : float
        Mean norm.
    deviation : float
        Standard deviation of all their numbers, ddof 0; 0 where it is within rounding.
    directions : (m, d)
        Right singular vectors of the rows as they are, by falling value; m = min(n, d).
    values : (m,)
        Their singular values.
    """

    mean: Floats
    length: float
    deviation: float
    directions: Floats
    values: Floats

    def kept(self, severity: float) -> int:
        """Directions that rank restriction leaves; halves are rounded to even."""
        return max(1, round(len(self.values) * (1 - severity)))

    def spans(self, kept: int) -> bool:
        """Whether the rows extend in so many directions."""
        return bool(self.values[kept - 1] > NO_SPREAD * self.values[0])

    def separates(self, kept: int) -> bool:
        """Whether these directions are longer than the others: a tie leaves them undetermined."""
        if kept == len(self.values):
            return True
        gap = self.values[kept - 1] - self.values[kept]
        return bool(gap > NO_SPREAD * self.values[0])


def fit(train: Rows, threads: int, step: Step) -> Fitted:
    """
    The parameters of every damage, from train rows alone.

    Time O(n d^2 + d^3), memory as for `spectra`.

    Parameters
    ----------
    train : (n, d) finite, squares within the range of float64
    """
    n, d = train.shape
    triangle = reduced(Stored(train), threads, step)
    directions, values = raw_directions(n, triangle)
    mean, squares = triangle.mean, triangle.squares
    variance = float(squares.sum()) / (n * d) + float(np.square(mean - mean.mean()).mean())
    deviation = float(np.sqrt(variance))
    size = float(np.sqrt(variance + mean.mean() ** 2))
    norms = lengths(as_given(train, cosine=False), threads)
    return Fitted(
        mean=mean,
        length=float(norms.mean()),
        deviation=deviation if deviation > NO_SPREAD * size else 0.0,
        directions=directions,
        values=values,
    )


@dataclass(frozen=True)
class Affine:
    """
    y = scale x + shift.

    Attributes
    ----------
    scale : float, positive
    shift : (d,)
    """

    scale: float
    shift: Floats

    def of(self, rows: Coded, threads: int) -> Coded:
        """Rows as given after the damage, by the same codes."""
        return coded(
            rows.codes, cosine=True, low=self.shift, scale=np.full(rows.d, self.scale),
            threads=threads,
        )  # fmt: skip


def unit_direction(d: int, seed: int) -> Floats:
    """The seeded direction of the common offset, (d,)."""
    ((_, numbers),) = normal_blocks(1, d, seed, "damage offset")
    return np.asarray(numbers[0] / np.linalg.norm(numbers[0]))


def affine(damage: Damage, severity: float, fitted: Fitted, seed: int) -> Affine | None:
    """The damage as a scale and a shift; None where it is something else."""
    d, left = len(fitted.mean), 1 - severity
    if damage == "contraction":
        return Affine(left, np.zeros(d))
    if damage == "offset":
        return Affine(1.0, unit_direction(d, seed) * (fitted.length * severity / left))
    if damage == "mean_interpolation":
        return Affine(left, severity * fitted.mean)
    return None


def projected(rows: Rows, directions: Floats, dtype: type[np.floating], threads: int) -> Kept:
    """Coordinates of rows in orthonormal directions, (n, m): as far apart as the projected rows."""
    out = np.empty((len(rows), len(directions)), dtype)
    source = Stored(rows)

    def project(which: slice) -> None:
        out[which] = source.take(which) @ directions.T

    for _ in ordered_map(project, blocks(*rows.shape), threads):
        pass
    return out


def noisy(
    rows: Rows, deviation: float, dtype: type[np.floating], seed: int, purpose: str, threads: int
) -> Kept:
    """Rows plus independent normal numbers, the same for every deviation but for their size."""
    n, d = rows.shape
    out = np.empty((n, d), dtype)
    source = Stored(rows)
    for block, numbers in normal_blocks(n, d, seed, purpose, threads):
        out[block] = source.take(block) + deviation * numbers
    return out
