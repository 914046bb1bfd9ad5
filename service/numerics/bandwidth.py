"""The median squared distance of pairs of rows, the bandwidth of a Gaussian kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from service.numerics.permutation import stream
from service.numerics.rows import BLOCK_ELEMENTS, Floats, Source, ordered_map

DRAWN_PAIRS = 1 << 16
"""The median of so many drawn pairs lies within .004 of its own rank (two standard errors)."""


@dataclass(frozen=True)
class Bandwidth:
    """
    A median squared distance.

    Attributes
    ----------
    squared : float
    pairs : int
        Pairs it is the median of.
    exact : bool
        They are all pairs there are.
    """

    squared: float
    pairs: int
    exact: bool


def median_distance(
    source: Source,
    seed: int,
    threads: int,
    step: Callable[[int, int], None] = lambda done, total: None,
) -> Bandwidth:
    """
    Median squared distance over all pairs of different rows, or over `DRAWN_PAIRS` drawn ones.

    `step` is told pairs done and pairs in all.

    Pairs are drawn with replacement where there are more; distances come from differences, so those of
    equal rows are 0. Time O(pairs d), memory a few blocks.
    """
    n = source.n
    exact = n * (n - 1) // 2 <= DRAWN_PAIRS
    if exact:
        first, second = np.triu_indices(n, 1)
    else:
        words = stream(seed, "bandwidth", 0).random_raw(2 * DRAWN_PAIRS)
        share = (words >> np.uint64(11)) * 2.0**-53
        first = (share[::2] * n).astype(np.int64)
        second = (share[1::2] * (n - 1)).astype(np.int64)
        second += second >= first
    size = max(1, BLOCK_ELEMENTS // source.d)

    def squared(start: int) -> Floats:
        which = slice(start, start + size)
        apart = source.take(first[which]) - source.take(second[which])
        return np.asarray(np.einsum("ij,ij->i", apart, apart))

    found = np.empty(len(first))
    starts = range(0, len(first), size)
    for start, some in zip(starts, ordered_map(squared, starts, threads), strict=True):
        found[start : start + len(some)] = some
        step(start + len(some), len(first))
    return Bandwidth(float(np.median(found)), len(first), exact)
