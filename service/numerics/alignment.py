"""Orthogonal maps between two spaces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.numerics.moments import Units
from service.numerics.permutation import shuffled, stream
from service.numerics.rows import BLOCK_ELEMENTS, Directions, Floats, Selection, Source, blocks

NO_SPREAD = 1e-24
"""Mean squared distance to the mean, rows being about 1 long, that is rounding alone."""


def procrustes(a: Directions, b: Directions, rows: Selection) -> Floats:
    """
    The orthogonal map that brings rows of `b` closest to their partners in `a`, b_i W ~ a_i.

    Parameters
    ----------
    a, b : Directions (n, d)
    rows : the pairs to fit on

    Returns
    -------
    (d, d) float64 orthogonal
        Underdetermined, yet still orthogonal, with fewer than d pairs.

    Notes
    -----
    Time O(m d^2 + d^3), memory a few (d, d) float64 matrices and one block.

    References
    ----------
    Schoenemann, "A generalized solution of the orthogonal Procrustes problem", Psychometrika 31(1),
    1966, doi:10.1007/BF02289451.
    """
    which = np.arange(a.n)[rows]
    size = max(1, BLOCK_ELEMENTS // a.d)
    cross = np.zeros((a.d, a.d))
    for start in range(0, len(which), size):
        block = which[start : start + size]
        cross += b.take(block).T @ a.take(block)
    u, _, vt = np.linalg.svd(cross)
    turn: Floats = u @ vt
    return turn


@dataclass(frozen=True)
class PairSplit:
    """Half of the pairs to fit a map on, the other half to judge it by; units stay whole."""

    train: NDArray[np.int64]
    test: NDArray[np.int64]

    @classmethod
    def of(cls, units: Units, seed: int, most: int) -> PairSplit:
        """A seeded split of at most about `most` rows."""
        order = np.arange(units.n) if units.order is None else units.order
        chosen = shuffled(stream(seed, "procrustes split", 0), len(units.counts))
        rows = np.cumsum(units.counts[chosen])
        half = int(np.searchsorted(rows, min(units.n, most) / 2, side="left")) + 1
        until = int(np.searchsorted(rows, min(units.n, most), side="left")) + 1
        member = np.empty(len(chosen), dtype=np.int64)
        member[chosen] = np.arange(len(chosen))
        place = np.repeat(member, units.counts)
        return cls(np.sort(order[place < half]), np.sort(order[(place >= half) & (place < until)]))


def map_held_out(a: Directions, b: Directions, split: PairSplit) -> tuple[Directions, Directions]:
    """Held-out rows of both sides, those of `b` after the map fitted on the train pairs."""
    turn = procrustes(a, b, split.train)
    rows = np.empty((len(split.test), b.d))
    for which in blocks(len(rows), b.d):
        rows[which] = b.take(split.test[which]) @ turn
    return Directions(a.rows[split.test]), Directions(rows)


@dataclass(frozen=True)
class Similarity:
    """
    The rotation, scale and shift that bring rows of one model closest to those of another.

    b_i goes to mean_a + scale (b_i - mean_b) turn. The narrower space is padded with zeros, so a map
    to fewer dimensions drops what has no room.

    Attributes
    ----------
    turn : (d_b, d_a) float64
        Rows or columns are orthonormal, whichever are fewer.
    scale : float
    mean_a, mean_b : float64
    varies : bool
        Both sides do, beyond rounding, on the rows it was fitted on.
    """

    turn: Floats
    scale: float
    mean_a: Floats
    mean_b: Floats
    varies: bool

    def residuals(self, a: Source, b: Source, rows: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Squared distances of chosen rows of `a` to mapped partners, and to the mean, (m,) each."""
        missed, around = np.empty(len(rows)), np.empty(len(rows))
        for which in blocks(len(rows), max(a.d, b.d)):
            x, y = a.take(rows[which]) - self.mean_a, b.take(rows[which]) - self.mean_b
            mapped = y @ self.turn
            off = x - self.scale * mapped
            missed[which] = np.einsum("ij,ij->i", off, off)
            if b.d > a.d:
                lost = np.einsum("ij,ij->i", y, y) - np.einsum("ij,ij->i", mapped, mapped)
                missed[which] += self.scale**2 * np.maximum(lost, 0)
            around[which] = np.einsum("ij,ij->i", x, x)
        return missed, around


def similarity(a: Source, b: Source, rows: NDArray[np.int64]) -> Similarity:
    """
    The similarity fitted on chosen pairs by least squares.

    Parameters
    ----------
    a, b : rows of the same items of length about 1 at most, (n, d_a) and (n, d_b)
    rows : (m,) the pairs to fit on

    Notes
    -----
    Time O(m d_a d_b + d^3); memory a few (d_a, d_b) float64 matrices and blocks.

    References
    ----------
    Schoenemann, Carroll, "Fitting one matrix to another under choice of a central dilation and a rigid
    motion", Psychometrika 35(2), 1970, doi:10.1007/BF02291266.
    """
    grid = blocks(len(rows), max(a.d, b.d))
    mean_a = sum((a.take(rows[which]).sum(axis=0) for which in grid), np.zeros(a.d)) / len(rows)
    mean_b = sum((b.take(rows[which]).sum(axis=0) for which in grid), np.zeros(b.d)) / len(rows)
    cross = np.zeros((b.d, a.d))
    spread_a = spread_b = 0.0
    for which in grid:
        x, y = a.take(rows[which]) - mean_a, b.take(rows[which]) - mean_b
        cross += y.T @ x
        spread_a += float(np.einsum("ij,ij->", x, x))
        spread_b += float(np.einsum("ij,ij->", y, y))
    u, s, vt = np.linalg.svd(cross, full_matrices=False)
    scale = float(s.sum()) / spread_b if spread_b > 0 else 0.0
    varies = min(spread_a, spread_b) > NO_SPREAD * len(rows)
    return Similarity(u @ vt, scale, mean_a, mean_b, varies)
