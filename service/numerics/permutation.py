"""Counter-based random streams and the arrangements drawn from them."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from service.errors import Fault, TooFewGroups
from service.numerics.moments import Units


def stream(seed: int, purpose: str, i: int) -> np.random.Philox:
    """
    The random stream of resample `i`: keyed by seed and purpose, addressed by counter.

    Only raw 64-bit words are drawn from it, so numbers depend on Philox alone and not on a library's
    choice of sampling method.

    References
    ----------
    Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011,
    doi:10.1145/2063384.2063405.
    """
    word = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
    key = np.array([seed, word], dtype=np.uint64)
    counter = np.array([0, 0, 0, i], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter)


def below(bits: np.random.Philox, bound: int) -> int:
    """
    A uniform integer in [0, bound), by multiplication with rejection.

    References
    ----------
    Lemire, "Fast random integer generation in an interval", ACM TOMACS 29(1), 2019,
    doi:10.1145/3230636.
    """
    threshold = (1 << 64) % bound
    while True:
        product = int(bits.random_raw()) * bound
        if product & ((1 << 64) - 1) >= threshold:
            return product >> 64


def shuffled(bits: np.random.Philox, n: int) -> NDArray[np.int64]:
    """A uniform permutation of n: the order of n random 64-bit words (equal words: 2^-64 n^2)."""
    return np.argsort(bits.random_raw(n), kind="stable")


def derangement(units: Units, seed: int, purpose: str, i: int) -> NDArray[np.int64]:
    """
    A random pairing that gives every row a partner from another unit.

    Units are put in random order, rows in random order inside them, and the circle is turned by a
    uniform amount that no unit can span. Every related pair is excluded by construction, without
    rejection, in O(n log n). Where units have equal sizes, all unrelated pairs are equally likely;
    where they have not, rows of large units meet small units a little more often than uniformly.

    Parameters
    ----------
    units : Units, none with more than half of the rows
    seed, purpose, i : the stream

    Returns
    -------
    (n,) int64
        Partner of each row.

    Raises
    ------
    TooFewGroups
        If one unit holds more than half of the rows: no such pairing exists.
    """
    n = units.n
    largest = int(units.counts.max())
    if 2 * largest > n:
        raise TooFewGroups(
            f"One group holds {largest} of {n} rows; unrelated pairs for every row need a largest "
            "group of at most half of the rows.",
            [Fault(pointer="/inputs/groups", message="use finer groups", count=largest)],
        )
    bits = stream(seed, purpose, i)
    if units.order is None:
        circle = shuffled(bits, n)
    else:
        unit_key = bits.random_raw(len(units.counts))
        row_key = bits.random_raw(n)
        sorting = np.lexsort((row_key, np.repeat(unit_key, units.counts)))
        circle = units.order[sorting]
    shift = largest + below(bits, n - 2 * largest + 1)
    partner = np.empty(n, dtype=np.int64)
    partner[circle] = np.roll(circle, -shift)
    return partner
