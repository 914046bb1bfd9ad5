# mypy: disable-error-code="arg-type, no-any-return, return-value"
# Scalars are machine words once compiled.
"""Ranks of the cosines of pairs of rows, and how well the ranks of two models agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.numerics.coded import Coded, chunks
from service.numerics.compiled import Floats, compiled
from service.numerics.moments import Units
from service.numerics.pairs import dot, read
from service.numerics.permutation import shuffled, stream
from service.numerics.rows import ordered_map

Numbers = NDArray[np.int32]
Blocks = NDArray[np.uint8]

EXACT_ROWS = 4000
SAMPLED_PAIRS = 1 << 20
BATCHES = 16
MOST_BLOCKS = 32
GRID = 2.0**40
"""Cosines that agree to about 1e-12 are ties: rounding puts equal ones no further apart."""
PAIR_BLOCK = 1 << 16
BLOCKS_AT_ONCE = 4
"""Blocks left out in one walk, which waits for memory once for all of them."""
WALKS_AT_ONCE = 2
"""Each holds 16 bytes a pair."""


@dataclass(frozen=True)
class Pairs:
    """
    Pairs of different rows.

    Attributes
    ----------
    first, second : (N,) int32
    exact : bool
        They are all pairs there are.
    """

    first: Numbers
    second: Numbers
    exact: bool

    @classmethod
    def of(cls, n: int, seed: int) -> Pairs:
        """All pairs of up to `EXACT_ROWS` rows; of more, `SAMPLED_PAIRS` drawn with replacement."""
        if n <= EXACT_ROWS:
            counts = np.arange(n - 1, -1, -1)
            before = np.cumsum(counts) - counts - np.arange(n) - 1
            second = np.arange(n * (n - 1) // 2) - np.repeat(before, counts)
            first = np.repeat(np.arange(n, dtype=np.int32), counts)
            return cls(first, second.astype(np.int32), exact=True)
        words = stream(seed, "pairs of rows", 0).random_raw(2 * SAMPLED_PAIRS)
        share = (words >> np.uint64(11)) * 2.0**-53
        one = (share[::2] * n).astype(np.int32)
        other = (share[1::2] * (n - 1)).astype(np.int32)
        return cls(one, other + (other >= one), exact=False)

    def __len__(self) -> int:
        return len(self.first)


@compiled
def _cosines(
    codes: NDArray[Any], low: Floats, scale: Floats, row_scale: Floats, by: Floats, first: Numbers,
    second: Numbers, out: Floats,
) -> None:  # fmt: skip
    """Cosine of each listed pair, bit for bit a function of its two rows."""
    x, y = np.empty(codes.shape[1]), np.empty(codes.shape[1])
    held = -1
    for p in range(len(first)):
        i, j = first[p], second[p]
        if i != held:
            read(codes[i], low, scale, row_scale[i], x)
            held = i
        read(codes[j], low, scale, row_scale[j], y)
        out[p] = dot(x, y) / (by[i] * by[j])


@compiled
def _rank(order: NDArray[np.int64], keys: NDArray[np.int64], ranks: Numbers) -> None:
    """Twice the mean rank, from 1, of each key."""
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and keys[order[stop]] == keys[order[start]]:
            stop += 1
        for at in range(start, stop):
            ranks[order[at]] = start + stop + 1
        start = stop


def ranks(rows: Coded, pairs: Pairs, threads: int) -> Numbers:
    """
    Twice the rank of each pair's cosine, ties at their mean: (N,) int32.

    Time O(N (d + log N)); memory 16 N bytes beside the result.
    """
    keys = np.empty(len(pairs), np.int64)

    def score(part: slice) -> None:
        out = np.empty(part.stop - part.start)
        _cosines(*rows.form, rows.divisors, pairs.first[part], pairs.second[part], out)
        keys[part] = np.rint(out * GRID)

    for _ in ordered_map(score, chunks(len(pairs), PAIR_BLOCK), threads):
        pass
    found = np.empty(len(pairs), np.int32)
    _rank(np.argsort(keys), keys, found)
    return found


@dataclass(frozen=True)
class LeftOut:
    """
    What is left out at a time: units, or at most `MOST_BLOCKS` random blocks of whole units.

    Attributes
    ----------
    first, second : (N,) uint8
        The block of either row of each pair.
    count : int
    """

    first: Blocks
    second: Blocks
    count: int

    @classmethod
    def of(cls, units: Units, pairs: Pairs, seed: int) -> LeftOut:
        count = min(len(units.counts), MOST_BLOCKS)
        block = np.arange(len(units.counts))
        if len(block) > count:
            block[shuffled(stream(seed, "blocks of units", 0), len(block))] = block % count
        rows = np.arange(units.n) if units.order is None else units.order
        of_row = np.empty(units.n, np.uint8)
        of_row[rows] = np.repeat(block, units.counts)
        return cls(of_row[pairs.first], of_row[pairs.second], count)


@compiled
def _in_order(found: Numbers, most: int, order: Numbers, fresh: NDArray[np.bool_]) -> None:
    """Places sorted by rank, and whether a new rank begins: a counting sort."""
    starts = np.zeros(most + 2, np.int32)
    for p in range(len(found)):
        starts[found[p] + 1] += 1
    for rank in range(most + 1):
        starts[rank + 1] += starts[rank]
    for p in range(len(found)):
        rank = found[p]
        order[starts[rank]] = p
        starts[rank] += 1
    for at in range(len(order)):
        fresh[at] = at == 0 or found[order[at]] != found[order[at - 1]]


@compiled
def _correlations(
    fresh_x: NDArray[np.bool_], first: Blocks, second: Blocks, fresh_y: NDArray[np.bool_],
    place: Numbers, without: NDArray[np.int64], rank: Numbers, out: Floats,
) -> None:  # fmt: skip
    """
    Spearman's correlation of the pairs that have no row in a block, for a few blocks at once.

    Parameters
    ----------
    fresh_x : (N,) whether a new value begins, pairs sorted by x
    first, second : (N,) blocks of the rows of each pair, sorted by x
    fresh_y : (N,) the same as `fresh_x`, pairs sorted by y
    place : (N,) where each pair of the order by y stands in the order by x
    without : (L,) blocks, -1 for none
    rank : (N, L) int32 written: twice the rank by x of each pair that is left, 0 of others
    out : (L,) written; NaN without spread
    """
    total = len(rank)
    left, alive = np.zeros(BLOCKS_AT_ONCE, np.int32), np.zeros(BLOCKS_AT_ONCE, np.int32)
    start = 0
    while start < total:
        stop = start
        alive[:] = 0
        while stop < total and (stop == start or not fresh_x[stop]):
            i, j = first[stop], second[stop]
            for lane in range(BLOCKS_AT_ONCE):
                stays = np.int32((i != without[lane]) & (j != without[lane]))
                alive[lane] += stays
                rank[stop, lane] = stays
            stop += 1
        for at in range(start, stop):
            for lane in range(BLOCKS_AT_ONCE):
                middle = 2 * left[lane] + alive[lane] + 1
                rank[at, lane] *= middle
        left += alive
        start = stop
    return _walked(fresh_y, place, rank, left, out)


@compiled
def _walked(
    fresh_y: NDArray[np.bool_], place: Numbers, rank: Numbers, left: Numbers, out: Floats
) -> None:
    """The correlations from ranks by x, walking the pairs by y."""
    total = len(rank)
    middle = left + 1.0
    square_x, square_y = np.zeros(BLOCKS_AT_ONCE), np.zeros(BLOCKS_AT_ONCE)
    product, inner = np.zeros(BLOCKS_AT_ONCE), np.zeros(BLOCKS_AT_ONCE)
    alive, seen = np.zeros(BLOCKS_AT_ONCE), np.zeros(BLOCKS_AT_ONCE)
    start = 0
    while start < total:
        stop = start
        alive[:] = 0.0
        inner[:] = 0.0
        while stop < total and (stop == start or not fresh_y[stop]):
            at = place[stop]
            for lane in range(BLOCKS_AT_ONCE):
                stays = 1.0 if rank[at, lane] > 0 else 0.0
                x = stays * (rank[at, lane] - middle[lane])
                alive[lane] += stays
                inner[lane] += x
                square_x[lane] += x * x
            stop += 1
        for lane in range(BLOCKS_AT_ONCE):
            y = 2 * seen[lane] + alive[lane] + 1 - middle[lane]
            product[lane] += inner[lane] * y
            square_y[lane] += alive[lane] * y * y
            seen[lane] += alive[lane]
        start = stop
    for lane in range(BLOCKS_AT_ONCE):
        if square_x[lane] == 0 or square_y[lane] == 0:
            out[lane] = np.nan
        else:
            out[lane] = product[lane] / (np.sqrt(square_x[lane]) * np.sqrt(square_y[lane]))


def spearman(
    x: Numbers,
    y: Numbers,
    left_out: LeftOut,
    threads: int,
    step: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[float, Floats]:
    """
    Rank correlation of two models over the same pairs, NaN without spread, and without each block.

    The rest is ranked anew each time, exactly, by walking the pairs in the order they had.

    Parameters
    ----------
    x, y : (N,) int32 from `ranks`
    left_out : LeftOut
    step : told of walks

    Notes
    -----
    Time O(N) for each block; memory 40 N bytes.
    """
    n = len(x)
    order, place = np.empty(n, np.int32), np.empty(n, np.int32)
    fresh_x, fresh_y = np.empty(n, np.bool_), np.empty(n, np.bool_)
    _in_order(x, 2 * n, order, fresh_x)
    first, second = left_out.first[order], left_out.second[order]
    place[order] = np.arange(n, dtype=np.int32)
    _in_order(y, 2 * n, order, fresh_y)
    place = place[order]
    del order

    walks = -(-(1 + left_out.count) // BLOCKS_AT_ONCE)
    without = np.full((walks, BLOCKS_AT_ONCE), -1)
    without.flat[1 : 1 + left_out.count] = np.arange(left_out.count)
    found = np.empty(without.shape)

    def walked(walk: int) -> None:
        rank = np.empty((n, BLOCKS_AT_ONCE), np.int32)
        _correlations(fresh_x, first, second, fresh_y, place, without[walk], rank, found[walk])

    for done, _ in enumerate(ordered_map(walked, range(walks), min(threads, WALKS_AT_ONCE)), 1):
        step(done, walks)
    return float(found.flat[0]), found.ravel()[1 : 1 + left_out.count]


def sampling_error(x: Numbers, y: Numbers) -> float:
    """
    Standard error that drawing the pairs adds: that of the mean of batches of them.

    Parameters
    ----------
    x, y : (N,) int32 from `ranks`, of pairs as they were drawn
    """
    values = []
    for part in chunks(len(x), len(x) // BATCHES):
        one, other = _ranked_again(x[part]), _ranked_again(y[part])
        all_in_one = np.zeros(len(one), np.uint8)
        values.append(spearman(one, other, LeftOut(all_in_one, all_in_one, 0), 1)[0])
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _ranked_again(found: Numbers) -> Numbers:
    out = np.empty(len(found), np.int32)
    keys = found.astype(np.int64)
    _rank(np.argsort(keys), keys, out)
    return out
