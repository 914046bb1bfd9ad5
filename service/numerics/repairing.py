"""Cosines of randomly re-paired rows, kept so that any unit can be left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.numerics.rows import Directions, Floats, blocks, ordered_map, row_dots


@dataclass(frozen=True)
class SampledFloor:
    """
    Cosines of re-paired rows as sums about `centre`, in all and by row.

    Attributes
    ----------
    count : int
    total, squares : float
        Sums of c - centre and of its square.
    by_row, squares_by_row : (n,) float64
        The same over the re-pairings each row takes part in, on either side.
    """

    centre: float
    count: int
    total: float
    squares: float
    by_row: Floats
    squares_by_row: Floats

    @property
    def mean(self) -> float:
        """Mean cosine of the re-paired rows."""
        return self.centre + self.total / self.count

    @property
    def variance(self) -> float:
        """Its variance, ddof 0."""
        return max(0.0, self.squares / self.count - (self.total / self.count) ** 2)


def sampled_floor(
    a: Directions,
    b: Directions,
    partners: list[NDArray[np.int64]],
    centre: float,
    threads: int,
    step: Callable[[int, int], None],
) -> SampledFloor:
    """
    Cosine of a_i with b_p(i) for every re-pairing p, by the per-pair float64 kernel.

    Parameters
    ----------
    a, b : Directions (n, d)
    partners : list of (n,) int64
    centre : float
        A value near the mean, so that the variance does not cancel.

    Notes
    -----
    Time O(n d) a re-pairing, memory O(n) and a few blocks.
    """
    n = a.n
    by_row, squares_by_row = np.zeros(n), np.zeros(n)
    grid = blocks(n, a.d)
    for done, partner in enumerate(partners, start=1):

        def score(which: slice, partner: NDArray[np.int64] = partner) -> Floats:
            return row_dots(a.take(which), b.take(partner[which])) - centre

        c = np.concatenate(list(ordered_map(score, grid, threads)))
        by_row += c
        by_row[partner] += c
        squares_by_row += c * c
        squares_by_row[partner] += c * c
        step(done, len(partners))
    count = len(partners) * n
    total, squares = float(by_row.sum()) / 2, float(squares_by_row.sum()) / 2
    return SampledFloor(centre, count, total, squares, by_row, squares_by_row)
