# mypy: disable-error-code="arg-type, no-any-return, return-value"
# Scalars are machine words once compiled.
"""
Compiled loops over float32 scores that float64 decides: counts about levels, and the best of the rest.

Nothing depends on float32 but the time it takes: what its rounding leaves open is scored again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.numerics import pairs
from service.numerics.compiled import Floats, compiled

Rows64 = NDArray[np.int64]
Ids = NDArray[np.int32]
CHUNK = 64
FEW_LEVELS = 8
"""Up to so many levels, a chunk of rows is compared with each at once."""


@compiled
def score_relevant(
    queries: Floats,
    divisors: Floats,
    starts: Rows64,
    rows: Rows64,
    codes: Any,
    low: Floats,
    scale: Floats,
    row_scale: Floats,
    by: Floats,
    out: Floats,
) -> None:
    """Score the relevant rows of each query in float64; `out` (p,) begins where `starts[0]` says."""
    row = np.empty(codes.shape[1])
    for i in range(len(queries)):
        for p in range(starts[i], starts[i + 1]):
            g = rows[p]
            pairs.read(codes[g], low, scale, row_scale[g], row)
            out[p - starts[0]] = pairs.dot(queries[i], row) / (divisors[i] * by[g])


@compiled
def score_all(
    query: Floats,
    divisor: float,
    codes: Any,
    low: Floats,
    scale: Floats,
    row_scale: Floats,
    by: Floats,
    out: Floats,
) -> None:
    """Score all rows for one query in float64, (n,)."""
    row = np.empty(codes.shape[1])
    for g in range(len(codes)):
        pairs.read(codes[g], low, scale, row_scale[g], row)
        out[g] = pairs.dot(query, row) / (divisor * by[g])


@compiled
def _first_at_least(values: Floats, wanted: float) -> int:
    """Values below `wanted`; they are in ascending order."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _holds(rows: Rows64, item: int) -> bool:
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        if rows[middle] < item:
            low = middle + 1
        else:
            high = middle
    return low < len(rows) and rows[low] == item


@compiled
def settle(
    query: Floats,
    divisor: float,
    codes: Any,
    low: Floats,
    scale: Floats,
    row_scale: Floats,
    by: Floats,
    pool: Ids,
    pooled: int,
    best: Ids,
    best_scores: Floats,
    filled: int,
) -> int:
    """Score pooled rows of a query in float64 and keep the best; returns how many places are filled."""
    row = np.empty(codes.shape[1])
    for c in range(pooled):
        g = pool[c]
        pairs.read(codes[g], low, scale, row_scale[g], row)
        score = pairs.dot(query, row) / (divisor * by[g])
        filled = pairs.keep(score, g, best_scores, best, filled)
    return filled


@compiled
def _thinned(pool: Ids, singles: NDArray[np.float32], room: int, band: float) -> tuple[int, float]:
    """
    Drop pooled rows that cannot be among the `room` best; how many stay, and what they have to reach.

    Float32 scores within `band` of one another may stand in either order.
    """
    ordered = np.sort(singles)
    entry = np.float64(ordered[len(ordered) - room]) - band
    kept = 0
    for c in range(len(pool)):
        if np.float64(singles[c]) >= entry:
            pool[kept], singles[kept] = pool[c], singles[c]
            kept += 1
    return kept, entry


@compiled
def _reaches(chunk: NDArray[np.float32], floor: float) -> bool:
    """Whether any score is not below `floor`."""
    some = np.uint8(0)  # a byte: the loop fills vector registers
    for j in range(len(chunk)):
        some = np.uint8(some | np.uint8(not (chunk[j] < floor)))
    return some != 0


@compiled
def _decided(
    chunk: NDArray[np.float32],
    below: NDArray[np.float32],
    beyond: NDArray[np.float32],
    counts: Rows64,
) -> bool:
    """Count a chunk whose scores are all surely above or below each level; whether it was one."""
    for u in range(len(below)):
        apart = np.uint8(0)
        for j in range(len(chunk)):
            apart = np.uint8(apart + np.uint8(chunk[j] < below[u]) + np.uint8(chunk[j] > beyond[u]))
        if apart != len(chunk):
            return False
    left = len(chunk)
    for u in range(len(below)):
        above = np.uint8(0)
        for j in range(len(chunk)):
            above = np.uint8(above + np.uint8(chunk[j] > beyond[u]))
        counts[u] += left - above
        left = int(above)
    counts[len(below)] += left
    return True


@compiled
def scan(
    scores: NDArray[np.float32],
    first: int,
    queries: Floats,
    divisors: Floats,
    reading: Floats,
    starts: Rows64,
    levels: Floats,
    relevant_starts: Rows64,
    relevant_rows: Rows64,
    codes: Any,
    low: Floats,
    scale: Floats,
    row_scale: Floats,
    by: Floats,
    passed: Rows64,
    equal: Rows64,
    pool: Ids,
    singles: NDArray[np.float32],
    pooled: Rows64,
    entry: Floats,
    best: Ids,
    best_scores: Floats,
    filled: Rows64,
) -> None:
    """
    Count a tile of rows against the levels of each query, and pool those that may be among the best.

    Parameters
    ----------
    scores : (m, w) float32
        Scores of rows first, first + 1, ... as a float32 product gives them.
    queries, divisors : (m, d) and (m,) float64
    reading : (m, 4) float64
        Unit, middle, slack and underflow of a query: a row scores less than s in float64 if its
        float32 score is below (s - middle - slack) unit - underflow, and more if it is above
        (s - middle + slack) unit + underflow.
    starts, levels : (m + 1,), (t,)
        Scores of relevant rows, each once, ascending within a query.
    relevant_starts, relevant_rows : (m + 1,), (p,)
    codes, low, scale, row_scale, by : rows and their divisors
    passed : (t + m,) int64, added to
        Of a query with u levels u + 1 counts: rows whose score is above exactly 0, 1, ..., u of them.
    equal : (t,) int64, added to
        Rows whose score is the level.
    pool, singles, pooled : (m, c), (m, c), (m,)
        Rows that are not relevant and may be among the best, with their float32 scores.
    entry : (m,)
        The float32 score that such a row must reach.
    best, best_scores, filled : (m, k), (m, k), (m,)
        The best of those that have left the pool.

    Notes
    -----
    Time O(m w) beside the product; a float64 score, O(d), for each row that is near a level.
    """
    width = scores.shape[1]
    room, capacity = best.shape[1], pool.shape[1]
    row = np.empty(codes.shape[1])
    for i in range(len(queries)):
        unit, middle, slack, underflow = reading[i]
        band = 2 * (slack * unit + underflow)
        own = levels[starts[i] : starts[i + 1]]
        below = (own - middle - slack) * unit - underflow
        beyond = (own - middle + slack) * unit + underflow
        counts = passed[starts[i] + i : starts[i + 1] + i + 1]
        relevant = relevant_rows[relevant_starts[i] : relevant_starts[i + 1]]
        few = len(own) <= FEW_LEVELS
        lower, higher = below.astype(np.float32), beyond.astype(np.float32)
        for u in range(len(own)):
            lower[u] = np.nextafter(lower[u], np.float32(-np.inf))
            higher[u] = np.nextafter(higher[u], np.float32(np.inf))
        for start in range(0, width, CHUNK):
            chunk = scores[i, start : start + CHUNK]
            floor = np.nextafter(np.float32(entry[i]), np.float32(-np.inf))
            if not _reaches(chunk, min(floor, lower[0])):
                counts[0] += len(chunk)
                continue
            if few and not _reaches(chunk, floor) and _decided(chunk, lower, higher, counts):
                continue
            for j in range(len(chunk)):
                f = np.float64(chunk[j])
                g = first + start + j
                sure = _first_at_least(beyond, f)
                if sure < len(own) and not (f < below[sure]):
                    pairs.read(codes[g], low, scale, row_scale[g], row)
                    score = pairs.dot(queries[i], row) / (divisors[i] * by[g])
                    sure = _first_at_least(own, score)
                    if sure < len(own) and own[sure] == score:
                        equal[starts[i] + sure] += 1
                counts[sure] += 1
                if f < entry[i] or _holds(relevant, g):
                    continue
                pool[i, pooled[i]], singles[i, pooled[i]] = g, chunk[j]
                pooled[i] += 1
                if pooled[i] == capacity:
                    kept, reach = _thinned(pool[i], singles[i], room, band)
                    entry[i] = max(entry[i], reach)
                    if 4 * kept > 3 * capacity:
                        filled[i] = settle(
                            queries[i], divisors[i], codes, low, scale, row_scale, by,
                            pool[i], kept, best[i], best_scores[i], filled[i],
                        )  # fmt: skip
                        kept = 0
                        last = (best_scores[i, room - 1] - middle - slack) * unit - underflow
                        entry[i] = max(entry[i], last)
                    pooled[i] = kept
