"""Orthogonal maps between two spaces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.numerics.moments import Units
from service.numerics.permutation import shuffled, stream
from service.numerics.rows import BLOCK_ELEMENTS, Directions, Floats, Selection, blocks


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
