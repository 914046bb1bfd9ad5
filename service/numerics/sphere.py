"""Directions without structure: uniform on the sphere, drawn or in closed form."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import special

from service.numerics.permutation import stream
from service.numerics.rows import Floats, blocks, ordered_map

PANELS = 128
NODES = 64


def normal_blocks(
    n: int, d: int, seed: int, purpose: str, threads: int = 1
) -> Iterator[tuple[slice, Floats]]:
    """
    Independent normal numbers for n rows, block by block: (m, d) each.

    Each is the normal quantile of a Philox word.

    Parameters
    ----------
    n, d : int
    seed, purpose : the stream
    """
    bits = stream(seed, purpose, 0)
    words = ((block, bits.random_raw((block.stop - block.start) * d)) for block in blocks(n, d))

    def normal(drawn: tuple[slice, NDArray[np.uint64]]) -> tuple[slice, Floats]:
        block, raw = drawn
        return block, special.ndtri(((raw >> np.uint64(11)) + 0.5) * 2.0**-53).reshape(-1, d)

    yield from ordered_map(normal, words, threads)


def uniform_directions(n: int, d: int, seed: int, purpose: str) -> NDArray[np.float32]:
    """
    Normal coordinates, whose directions are uniform, (n, d), rounded to float32.

    Parameters
    ----------
    n, d, seed, purpose : as for `normal_blocks`
    """
    rows = np.empty((n, d), np.float32)
    for block, numbers in normal_blocks(n, d, seed, purpose):
        rows[block] = numbers
    return rows


def within(distance: Floats, d: int) -> Floats:
    """
    Chance that two points of the unit sphere in d dimensions are at most this far apart, below 2.

    References
    ----------
    Li, "Concise formulas for the area and volume of a hyperspherical cap", 2011,
    doi:10.3923/ajms.2011.66.70.
    """
    if d == 1:
        return np.full(np.shape(distance), 0.5)
    squares = np.square(distance)
    cap = special.betainc((d - 1) / 2, 0.5, squares * (1 - squares / 4)) / 2
    return np.asarray(np.where(squares <= 2, cap, 1 - cap))


def expected_with_neighbour(cosine: float, n: int, d: int) -> float:
    """Expected number of n directions that have another at this cosine or above."""
    chance = float(within(np.sqrt(np.array([2 - 2 * cosine])), d)[0])
    return -n * float(np.expm1((n - 1) * np.log1p(-chance)))


def mean_distance(d: int) -> float:
    """Mean distance of two points of the unit sphere in d dimensions."""
    log = (d - 1) * np.log(2) + 2 * special.gammaln(d / 2) - special.gammaln(d - 0.5)
    return float(np.exp(log) / np.sqrt(np.pi))


def mean_nearest_distance(n: int, d: int) -> float:
    """
    Mean distance of a point of the unit sphere to the nearest of n - 1 others.

    The integral over r of the chance that none is within r, by Gauss-Legendre on panels that widen with
    r.
    """
    x, weight = np.polynomial.legendre.leggauss(NODES)
    edges = np.concatenate([[0], np.geomspace(1e-8, 2, PANELS)])
    half = np.diff(edges)[:, None] / 2
    r = edges[:-1, None] + half * (1 + x)
    with np.errstate(divide="ignore"):
        none = np.exp((n - 1) * np.log1p(-within(r, d)))
    return float((half * weight * none).sum())


def uniformity(d: int) -> float:
    """log E exp(-2 |u - v|^2) of two points of the unit sphere in d dimensions."""
    return float(np.log(special.hyp0f1(d / 2, 4.0))) - 4
