"""The direction that tells two samples apart best: a regularised linear discriminant."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from service.numerics.moments import GRAM_BYTES_IN_FLIGHT, Units
from service.numerics.permutation import shuffled, stream
from service.numerics.rows import Floats, Source, blocks, ordered_map, row_dots

Codes = NDArray[np.int64]
LEAST_SHRINKAGE = 1e-6
"""Keeps the matrix invertible where all residuals are of one direction."""


@dataclass(frozen=True)
class Halves:
    """Rows to learn from and rows to judge by, (m,) each, in ascending order; units stay whole."""

    train: Codes
    test: Codes

    @classmethod
    def of(cls, units: Units, sample: Codes, seed: int) -> Halves:
        """
        A seeded half of the units of each sample, rounded down, to learn from; the rest to judge by.

        Parameters
        ----------
        units : Units
        sample : (u,) 0 or 1, two units or more of each
        """
        learned = np.zeros(len(sample), dtype=bool)
        for side in (0, 1):
            own = np.flatnonzero(sample == side)
            drawn = shuffled(stream(seed, "domain halves", side), len(own))
            learned[own[drawn[: len(own) // 2]]] = True
        order = np.arange(units.n) if units.order is None else units.order
        mask = np.repeat(learned, units.counts)
        return cls(np.sort(order[mask]), np.sort(order[~mask]))


@dataclass(frozen=True)
class Discriminant:
    """
    A direction and where it starts.

    Attributes
    ----------
    origin, direction : (d,)
    shrinkage : float in [0, 1]
        Weight of the sphere in the covariance.
    """

    origin: Floats
    direction: Floats
    shrinkage: float

    def scores(self, source: Source, rows: Codes, threads: int) -> Floats:
        """Place of each row along the direction, a function of the row alone, (m,)."""

        def project(which: slice) -> Floats:
            return row_dots(source.take(rows[which]) - self.origin, self.direction[None])

        return np.concatenate(list(ordered_map(project, blocks(len(rows), source.d), threads)))


def discriminant(source: Source, rows: Codes, codes: Codes, threads: int) -> Discriminant:
    """
    Fisher's linear discriminant of two samples with the covariance of Ledoit and Wolf.

    w = ((1 - s) S + s m I)^-1 (mean of sample 1 - mean of sample 0), S the covariance of residuals
    from the sample means over all rows, m its mean eigenvalue, s the shrinkage that minimises the
    expected error of the covariance. Turns with the rows; needs no setting and no iteration.

    Parameters
    ----------
    source : Source (n, d)
    rows : (m,) rows to learn from
    codes : (m,) their samples, 0 or 1, both there

    Notes
    -----
    Time O(m d min(m, d)), memory a few (min(m, d), min(m, d)) float64 matrices and
    blocks, and the rows in float64 where they are fewer than d.

    References
    ----------
    Ledoit & Wolf, "A well-conditioned estimator for large-dimensional covariance matrices", J.
    Multivariate Anal. 88(2), 2004, doi:10.1016/S0047-259X(03)00096-4.
    """
    m, d = len(rows), source.d
    grid = blocks(m, d)
    centres = np.zeros((2, d))
    for part in ordered_map(lambda which: _sums(source, rows[which], codes[which]), grid, threads):
        centres += part
    centres /= np.bincount(codes, minlength=2)[:, None]
    gap = centres[1] - centres[0]

    def residuals(which: slice) -> Floats:
        return source.take(rows[which]) - centres[codes[which]]

    if m < d:
        x = residuals(slice(0, m))
        spread = _Spread.of(x @ x.T, np.square(np.einsum("ij,ij->i", x, x)).sum(), m, d)
        turned = gap - x.T @ spread.solve(x @ gap) * ((1 - spread.shrinkage) / m)
    else:
        gram, fourth = np.zeros((d, d)), 0.0
        few = max(1, min(threads, GRAM_BYTES_IN_FLIGHT // (16 * d * d)))
        for square, part4 in ordered_map(lambda which: _products(residuals(which)), grid, few):
            gram += square
            fourth += part4
        spread = _Spread.of(gram, fourth, m, d)
        turned = spread.solve(gap)
    length = float(np.linalg.norm(turned))
    return Discriminant(centres[0], turned / length if length > 0 else turned, spread.shrinkage)


@dataclass(frozen=True)
class _Spread:
    """Shrunk covariance, or its dual over rows: Cholesky factor, None where nothing varies."""

    factor: tuple[Floats, bool] | None
    shrinkage: float

    @classmethod
    def of(cls, gram: Floats, fourth: float, m: int, d: int) -> _Spread:
        """From the sums of products of residuals and of their lengths to the fourth; `gram` goes."""
        gram /= m
        size, squared = float(np.trace(gram)) / d, float(np.einsum("ij,ij->", gram, gram))
        off_sphere = squared - d * size**2
        shrinkage = 1.0
        if off_sphere > 0:
            shrinkage = min(1.0, max(LEAST_SHRINKAGE, (fourth / m - squared) / m / off_sphere))
        if size == 0:
            return cls(None, shrinkage)
        gram *= 1 - shrinkage
        gram.flat[:: len(gram) + 1] += shrinkage * size
        return cls(cho_factor(gram, lower=True, overwrite_a=True, check_finite=False), shrinkage)

    def solve(self, x: Floats) -> Floats:
        """Its inverse times x; x where nothing varies."""
        return x if self.factor is None else cho_solve(self.factor, x, check_finite=False)


def _sums(source: Source, rows: Codes, codes: Codes) -> Floats:
    x = source.take(rows)
    return np.stack([x[codes == side].sum(axis=0) for side in (0, 1)])


def _products(x: Floats) -> tuple[Floats, float]:
    return x.T @ x, float(np.square(np.einsum("ij,ij->i", x, x)).sum())
