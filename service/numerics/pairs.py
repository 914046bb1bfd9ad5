# mypy: disable-error-code="arg-type, no-any-return, return-value, no-untyped-def, no-untyped-call"
# Scalars are machine words once compiled.
"""
Scores of pairs of rows in float64, and lists of the best of them.

A score is a function of the two rows alone, bit for bit: products are summed in eight fixed lanes, the
lanes in a fixed tree, and nothing is contracted or reassociated. A matrix product scores equal rows
differently in different places, so it may propose neighbours and never decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from service.numerics.compiled import Floats, compiled

Codes = NDArray[Any]
Ids = NDArray[np.int32]
HALF_EXPONENT = 1008
"""float64 has a larger exponent bias than binary16, by 1023 - 15."""


@intrinsic
def _half(typingctx, bits):
    """The value of a finite IEEE binary16 number, subnormals included, from its bits."""

    def codegen(context, builder, signature, arguments):
        word = ir.IntType(64)
        wide = builder.zext(arguments[0], word)
        magnitude = builder.shl(builder.and_(wide, word(0x7FFF)), word(42))
        sign = builder.shl(builder.and_(wide, word(0x8000)), word(48))
        value = builder.bitcast(builder.or_(magnitude, sign), ir.DoubleType())
        return builder.fmul(value, ir.Constant(ir.DoubleType(), 2.0**HALF_EXPONENT))

    return types.float64(types.uint16), codegen


def number(code):
    """The number a code stands for before scaling: uint16 holds binary16, others themselves."""
    if isinstance(code, np.uint16):
        return float(np.uint16(code).view(np.float16))
    return float(code)


@overload(number)
def _number(code):
    if code == types.uint16:
        return lambda code: _half(code)  # type: ignore[call-arg]
    return lambda code: np.float64(code)


@compiled
def read(row: Codes, low: Floats, scale: Floats, row_scale: float, out: Floats) -> None:
    """Write low + number(code) * scale * row_scale of one row of codes to `out`."""
    for j in range(len(row)):
        out[j] = low[j] + number(row[j]) * scale[j] * row_scale


@compiled
def dot(x: Floats, y: Floats) -> float:
    """
    Sum of products: lane l adds the products at l, l + 8, ... in order; the lanes meet in a tree.

    The places beyond the last multiple of eight are added one after the other at the end.
    """
    d = len(x)
    whole = d - d % 8
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = 0.0
    for j in range(0, whole, 8):
        a0 += x[j] * y[j]
        a1 += x[j + 1] * y[j + 1]
        a2 += x[j + 2] * y[j + 2]
        a3 += x[j + 3] * y[j + 3]
        a4 += x[j + 4] * y[j + 4]
        a5 += x[j + 5] * y[j + 5]
        a6 += x[j + 6] * y[j + 6]
        a7 += x[j + 7] * y[j + 7]
    rest = 0.0
    for j in range(whole, d):
        rest += x[j] * y[j]
    return (((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7))) + rest


@compiled
def dot_single(x: NDArray[np.float32], y: NDArray[np.float32]) -> float:
    """The same sum with products, lanes and tree in float32."""
    d = len(x)
    whole = d - d % 8
    zero = np.float32(0)
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = zero
    for j in range(0, whole, 8):
        a0 += x[j] * y[j]
        a1 += x[j + 1] * y[j + 1]
        a2 += x[j + 2] * y[j + 2]
        a3 += x[j + 3] * y[j + 3]
        a4 += x[j + 4] * y[j + 4]
        a5 += x[j + 5] * y[j + 5]
        a6 += x[j + 6] * y[j + 6]
        a7 += x[j + 7] * y[j + 7]
    rest = zero
    for j in range(whole, d):
        rest += x[j] * y[j]
    return np.float64((((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7))) + rest)


@compiled
def read_rows(
    codes: Codes,
    low: Floats,
    scale: Floats,
    row_scale: Floats,
    which: NDArray[np.int64],
    out: Floats,
) -> None:
    """Write the chosen rows, as `read`, to `out` (m, d)."""
    for i in range(len(which)):
        read(codes[which[i]], low, scale, row_scale[which[i]], out[i])


@compiled
def lengths(codes: Codes, low: Floats, scale: Floats, row_scale: Floats, out: Floats) -> None:
    """Euclidean norm of every row as it is read, (n,)."""
    row = np.empty(codes.shape[1])
    for i in range(len(codes)):
        read(codes[i], low, scale, row_scale[i], row)
        out[i] = np.sqrt(dot(row, row))


@compiled
def score_listed(
    queries: Floats,
    divisors: Floats,
    ids: Ids,
    codes: Codes,
    low: Floats,
    scale: Floats,
    row_scale: Floats,
    by: Floats,
    out: Floats,
) -> None:
    """
    Score listed pairs: dot(query, row) / (query's divisor * row's divisor); -inf where an id is -1.

    Parameters
    ----------
    queries : (m, d) float64
    divisors : (m,)
    ids : (m, c) int32
    codes, low, scale, row_scale : rows as `read` takes them
    by : (n,) divisors of the rows
    out : (m, c) float64

    Notes
    -----
    Time O(m c d), .22 us a float32 pair of 384 dimensions on one core; memory one row.
    """
    row = np.empty(codes.shape[1])
    for i in range(ids.shape[0]):
        for c in range(ids.shape[1]):
            g = ids[i, c]
            if g < 0:
                out[i, c] = -np.inf
            else:
                read(codes[g], low, scale, row_scale[g], row)
                out[i, c] = dot(queries[i], row) / (divisors[i] * by[g])


@compiled
def keep(score: float, item: int, scores: Floats, items: Ids, filled: int) -> int:
    """
    Put an item into a list ordered by score descending, item ascending, if it belongs there.

    Returns how many places are filled; a full list loses its last.
    """
    room = len(items)
    if filled == room:
        last = room - 1
        if score < scores[last] or (score == scores[last] and item > items[last]):
            return filled
        at = last
    else:
        at = filled
        filled += 1
    while at > 0 and (score > scores[at - 1] or (score == scores[at - 1] and item < items[at - 1])):
        scores[at] = scores[at - 1]
        items[at] = items[at - 1]
        at -= 1
    scores[at] = score
    items[at] = item
    return filled


@compiled
def best_listed(ids: Ids, scores: Floats, best: Ids, best_scores: Floats) -> None:
    """
    The best of listed items, ordered by score descending and item ascending.

    Parameters
    ----------
    ids, scores : (m, c); an id of -1 is no item
    best, best_scores : (m, k) written; -1 and -inf beyond the items there are
    """
    for i in range(ids.shape[0]):
        best[i] = -1
        best_scores[i] = -np.inf
        filled = 0
        for c in range(ids.shape[1]):
            if ids[i, c] >= 0:
                filled = keep(scores[i, c], ids[i, c], best_scores[i], best[i], filled)


@compiled
def best_of_all(
    queries: Floats,
    divisors: Floats,
    own: NDArray[np.int64],
    single: bool,
    codes: Codes,
    low: Floats,
    scale: Floats,
    row_scale: Floats,
    by: Floats,
    best: Ids,
    best_scores: Floats,
) -> None:
    """
    The best rows of all: every pair is scored.

    Parameters
    ----------
    queries : (m, d) float64
    divisors : (m,)
    own : (m,) rows that are not their own neighbours; -1 for none
    single : whether products are summed in float32
    codes, low, scale, row_scale, by : rows and their divisors
    best, best_scores : (m, k) written

    Notes
    -----
    Time O(m n d). A tile of rows is read once for all queries and stays in the second-level cache.
    """
    n, d = codes.shape
    tile = max(1, min(n, 32768 // max(d, 1)))
    rows = np.empty((tile, d))
    rows_single = rows.astype(np.float32) if single else np.empty((1, 1), np.float32)
    queries_single = queries.astype(np.float32) if single else np.empty((1, 1), np.float32)
    best[:] = -1
    best_scores[:] = -np.inf
    filled = np.zeros(len(queries), np.int64)
    for start in range(0, n, tile):
        stop = min(n, start + tile)
        for g in range(start, stop):
            read(codes[g], low, scale, row_scale[g], rows[g - start])
            if single:
                rows_single[g - start] = rows[g - start].astype(np.float32)
        for i in range(len(queries)):
            for g in range(start, stop):
                if g == own[i]:
                    continue
                if single:
                    product = dot_single(queries_single[i], rows_single[g - start])
                else:
                    product = dot(queries[i], rows[g - start])
                score = product / (divisors[i] * by[g])
                filled[i] = keep(score, g, best_scores[i], best[i], filled[i])
