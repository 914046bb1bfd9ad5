# mypy: disable-error-code="arg-type, no-any-return, return-value"
# Scalars are machine words once compiled.
"""
Compiled loops: random arrangements, group sums over many of them, and bootstrap counts.

An arrangement is a row of item numbers in which each group owns a fixed run of places, so a group sum
reads its items one after the other and stays in registers. Kernels release the interpreter lock and
are single-threaded; `rows.ordered_map` runs several at once on disjoint arrangements. So no threading
runtime of the compiler is ever started, and a worker may fork.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from service.numerics.vector import LANES, sum_rows

F = TypeVar("F", bound=Callable[..., Any])
Items = NDArray[np.uint32]
Starts = NDArray[np.int64]
Floats = NDArray[np.float64]
Slab = NDArray[np.float64] | NDArray[np.float32]
Key = NDArray[np.uint64]
BUFFER = 256
MASK = np.uint64(0xFFFFFFFF)

setattr(numba.config, "SLP_VECTORIZE", 1)  # noqa: B010 - Philox rounds in registers: 8 times faster


def compiled(function: F) -> F:
    """Compile on first use and cache on disk; strict floating point."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def stream_key(seed: int, purpose: str) -> Key:
    """The two 32-bit words of a Philox key, from a seed and what the numbers are for."""
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return np.frombuffer(digest[:8], dtype="<u4").astype(np.uint64)


@compiled
def philox(c0: int, c1: int, c2: int, c3: int, k0: int, k1: int, out: NDArray[np.uint64]) -> None:
    """
    Philox4x32-10: four random 32-bit words of a counter and a key.

    References
    ----------
    Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011,
    doi:10.1145/2063384.2063405.
    """
    x0, x1, x2, x3 = np.uint64(c0), np.uint64(c1), np.uint64(c2), np.uint64(c3)
    y0, y1 = np.uint64(k0), np.uint64(k1)
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * x0
        p1 = np.uint64(0xCD9E8D57) * x2
        x0 = (p1 >> np.uint64(32)) ^ x1 ^ y0
        x1 = p1 & MASK
        x2 = (p0 >> np.uint64(32)) ^ x3 ^ y1
        x3 = p0 & MASK
        y0 = (y0 + np.uint64(0x9E3779B9)) & MASK
        y1 = (y1 + np.uint64(0xBB67AE85)) & MASK
    out[0], out[1], out[2], out[3] = x0, x1, x2, x3


@compiled
def _word(at: int, resample: int, words: NDArray[np.uint64], key: Key) -> int:
    """Word number `at` of a resample's stream; `words` is filled as it is used up, 2^k long."""
    place = np.uint64(at) & np.uint64(len(words) - 1)
    if place == 0:
        number = np.uint64(resample)
        for i in range(len(words) // 4):
            block = np.uint64(at // 4 + i)
            philox(
                block & MASK,
                block >> np.uint64(32),
                number & MASK,
                number >> np.uint64(32),
                key[0],
                key[1],
                words[4 * i : 4 * i + 4],
            )
    return words[place]


@compiled
def _below(
    bound: int, at: int, resample: int, words: NDArray[np.uint64], key: Key
) -> tuple[int, int]:
    """
    A uniform integer in [0, bound), bound < 2^32, and the number of the next word.

    Lemire, "Fast random integer generation in an interval", 2019, doi:10.1145/3230636.
    """
    limit = np.uint64(bound)
    product = _word(at, resample, words, key) * limit
    at += 1
    if product & MASK < limit:
        threshold = (np.uint64(0x100000000) - limit) % limit
        while product & MASK < threshold:
            product = _word(at, resample, words, key) * limit
            at += 1
    return np.int64(product >> np.uint64(32)), at


@compiled
def arrange(places: Starts, strata: Starts, key: Key, first: int, out: Items) -> None:
    """
    Random arrangements: items shuffled inside each stratum, written in group order.

    Parameters
    ----------
    places : (u,) int64
        For each place in group order, its position in the order by stratum.
    strata : (s + 1,) int64
        Where each stratum begins; items are numbered in that order.
    key : (2,) uint64 holding 32-bit words
    first : int
        Number of the first resample; resample r draws from its own stream.
    out : (p, u) uint32
    """
    u = len(places)
    words = np.empty(BUFFER, np.uint64)
    row = np.empty(u, np.uint32)
    for p in range(out.shape[0]):
        at = 0
        for i in range(u):
            row[i] = i
        for s in range(len(strata) - 1):
            low = strata[s]
            for i in range(strata[s + 1] - 1, low, -1):
                j, at = _below(i - low + 1, at, first + p, words, key)
                j += low
                row[i], row[j] = row[j], row[i]
        for i in range(u):
            out[p, i] = row[places[i]]


@compiled
def next_labelling(labels: NDArray[np.int64], strata: Starts) -> bool:
    """Turn a labelling into the next distinct one, strata as digits; False after the last."""
    for s in range(len(strata) - 1):
        low, high = strata[s], strata[s + 1]
        i = high - 2
        while i >= low and labels[i] >= labels[i + 1]:
            i -= 1
        if i >= low:
            j = high - 1
            while labels[j] <= labels[i]:
                j -= 1
            labels[i], labels[j] = labels[j], labels[i]
            labels[i + 1 : high] = labels[i + 1 : high][::-1].copy()
            return True
        labels[low:high] = labels[low:high][::-1].copy()
    return False


@compiled
def enumerate_arrangements(
    labels: NDArray[np.int64], strata: Starts, groups: Starts, out: Items
) -> int:
    """
    Fill `out` with the arrangements of `labels` and of the labellings after it; returns how many.

    Parameters
    ----------
    labels : (u,) int64, advanced in place; start with each stratum sorted
    strata, groups : where strata begin among items, and groups among places
    out : (p, u) uint32
    """
    for p in range(out.shape[0]):
        place = groups[:-1].copy()
        for i in range(len(labels)):
            g = labels[i]
            out[p, place[g]] = i
            place[g] += 1
        if not next_labelling(labels, strata):
            return p + 1
    return out.shape[0]


@compiled
def add_square_sums(x: Slab, items: Items, groups: Starts, out: Floats) -> None:
    """
    Add the squared length of every group sum over a slab of eight columns.

    Parameters
    ----------
    x : (u, 8) float64 or float32
    items : (p, u) arrangements
    groups : (g + 1,) where groups begin among places
    out : (p, g) float64, added to

    Notes
    -----
    Time O(p u): above 10^10 additions a second and core where a slab fits the second-level cache.
    """
    total = np.empty(LANES)
    for p in range(items.shape[0]):
        for g in range(out.shape[1]):
            sum_rows(x, items[p], groups[g], groups[g + 1], total)
            squares = 0.0
            for c in range(LANES):
                squares += total[c] * total[c]
            out[p, g] += squares


@compiled
def add_centre_dots(x: Slab, items: Items, groups: Starts, dots: Floats, centre2: Floats) -> None:
    """
    Over a slab of eight columns, add each item's dot product with the centre of its group.

    Parameters
    ----------
    x : (u, 8) float64 or float32
    items : (p, u) arrangements
    groups : (g + 1,)
    dots : (p, u) float64 by place, added to
    centre2 : (p, g) float64, squared lengths of the centres, added to
    """
    total = np.empty(LANES)
    for p in range(items.shape[0]):
        row = items[p]
        for g in range(centre2.shape[1]):
            sum_rows(x, row, groups[g], groups[g + 1], total)
            size = np.float64(groups[g + 1] - groups[g])
            squares = 0.0
            for c in range(LANES):
                total[c] /= size
                squares += total[c] * total[c]
            centre2[p, g] += squares
            t0, t1, t2, t3 = total[0], total[1], total[2], total[3]
            t4, t5, t6, t7 = total[4], total[5], total[6], total[7]
            for i in range(groups[g], groups[g + 1]):
                j = np.uint64(row[i])
                dots[p, i] += (
                    ((x[j, 0] * t0 + x[j, 1] * t1) + (x[j, 2] * t2 + x[j, 3] * t3))
                    + ((x[j, 4] * t4 + x[j, 5] * t5) + (x[j, 6] * t6 + x[j, 7] * t7))
                )  # fmt: skip


@compiled
def add_by_group(values: Floats, items: Items, groups: Starts, out: Floats) -> None:
    """Add one value per item to its group's total, by arrangement; out is (p, g)."""
    for p in range(items.shape[0]):
        for g in range(out.shape[1]):
            total = 0.0
            for i in range(groups[g], groups[g + 1]):
                total += values[items[p, i]]
            out[p, g] += total


@compiled
def draw_counts(key: Key, first: int, out: Floats) -> None:
    """
    How often each of `units` is drawn in `units` draws with replacement, by resample.

    Parameters
    ----------
    key : (2,) uint64 holding 32-bit words
    first : number of the first resample
    out : (resamples, units) float64
    """
    words = np.empty(BUFFER, np.uint64)
    out[:] = 0.0
    units = out.shape[1]
    for b in range(out.shape[0]):
        at = 0
        for _ in range(units):
            unit, at = _below(units, at, first + b, words, key)
            out[b, unit] += 1.0
