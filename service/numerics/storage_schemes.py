"""Storage schemes: how a vector index keeps rows, and how they read when they come back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import faiss
import numpy as np
from numpy.typing import NDArray

from service.numerics.coded import Coded, by_direction, coded
from service.numerics.rows import Floats, blocks, ordered_map

Codes = NDArray[Any]
Mask = NDArray[np.bool_]
Points = Callable[[slice], Floats]

QUANTILE = 0.99
SINGLE_LIMIT = 8e37
"""A quarter of the largest float32: ranges stay finite."""
SQUARE_LIMIT = 1e18
"""Sums of squares of float32 differences stay finite."""
PQ_BITS = 8
PQ_WIDTH = 8
"""Coordinates of a sub-vector, where the dimension is a multiple of it."""

SchemeName = Literal[
    "fp16",
    "bf16",
    "int8",
    "int8_per_vector",
    "int8_qt8",
    "int8_minmax_round",
    "int8_quantile",
    "int4",
    "binary",
    "pq",
]


@dataclass(frozen=True)
class Encoded:
    """
    A block of rows as codes.

    Attributes
    ----------
    codes : (m, d)
    row_scale : (m,) float64 or None
    clipped : (m, d) bool or None
        Coordinates outside the range that calibration set.
    """

    codes: Codes
    row_scale: Floats | None = None
    clipped: Mask | None = None


@dataclass(frozen=True)
class Fitted:
    """
    A scheme fitted to calibration rows.

    Attributes
    ----------
    encode : (m, d) float64 to Encoded
    dtype : of the codes
    low, scale : (d,) float64 or None
        Codes read as low + code * scale * row_scale.
    bytes_per_vector : float
        What an index would keep, constants of the scheme not counted.
    ranged : bool
        Calibration sets a range, so a coordinate can lie outside.
    constant : (c,) int
        Coordinates without spread in the calibration rows.
    """

    encode: Callable[[Floats], Encoded]
    dtype: type[np.generic]
    bytes_per_vector: float
    low: Floats | None = None
    scale: Floats | None = None
    limit: float = np.inf
    constant: tuple[int, ...] = ()


@dataclass(frozen=True)
class Stored:
    """
    Rows as a scheme keeps them.

    Attributes
    ----------
    rows : Coded
    clipped_coordinates, clipped_rows : int
        Coordinates outside the range that calibration set, and rows that hold one.
    overflow : (m,) int
        Rows with a coordinate that became infinite.
    overflow_coordinates : int
    zero_rows : int
        Rows that read as zero and have no direction.
    """

    rows: Coded
    clipped_coordinates: int
    clipped_rows: int
    overflow: NDArray[np.int64]
    overflow_coordinates: int
    zero_rows: int


class TooFewToTrain(ValueError):
    """Fewer calibration rows than centroids to place."""


def fit(name: SchemeName, calibration: Points, n: int, d: int, threads: int) -> Fitted:
    """
    A scheme with the constants that calibration rows give it.

    Parameters
    ----------
    name : SchemeName
    calibration : rows of a range, float64
    n, d : int
        Shape of the calibration rows.

    Notes
    -----
    `int8`: per coordinate, scale max|x| / 127, half to even, clipped. `int8_per_vector`: the same by
    row. `int8_qt8` and `int4`: FAISS QT_8bit and QT_4bit trained by min-max, code floor(L t), read at
    the middle of its cell. `int8_minmax_round`: nearest of 256 levels from min to max. `int8_quantile`:
    `int8` with the .99 quantile of |x| for the maximum. `binary`: signs. `pq`: FAISS product quantiser
    of 8-bit sub-vectors of 8 coordinates (of the largest divisor of d up to 8). Time O(n d).
    """
    if name == "fp16":
        return Fitted(_half, np.uint16, 2 * d)
    if name == "bf16":
        return Fitted(_bfloat16, np.float32, 2 * d)
    if name == "int8_per_vector":
        return Fitted(_symmetric_by_row, np.int8, d + 4)
    if name == "binary":
        return Fitted(_signs, np.int8, (d + 7) // 8, scale=np.full(d, 1 / np.sqrt(d)))
    if name == "pq":
        return _product(calibration, n, d)
    if name in ("int8", "int8_quantile"):
        return _symmetric(name, calibration, n, d, threads)
    return _min_max(name, calibration, n, d, threads)


def store(scheme: Fitted, points: Points, n: int, d: int, *, cosine: bool, threads: int) -> Stored:
    """
    Rows as the scheme keeps them.

    Parameters
    ----------
    scheme : Fitted
    points : rows of a range, float64
    n, d : int
    cosine : bool
        Rows are scored by their direction when they come back.

    Notes
    -----
    Time O(n d); memory the codes and a block.
    """
    codes = np.empty((n, d), scheme.dtype)
    row_scale = np.ones(n)

    def encode(which: slice) -> tuple[int, int, Mask, int]:
        x = points(which)
        beyond = np.abs(x) > scheme.limit
        made = scheme.encode(np.clip(x, -scheme.limit, scheme.limit) if beyond.any() else x)
        codes[which] = made.codes
        if made.row_scale is not None:
            row_scale[which] = made.row_scale
        outside = np.zeros(1, bool) if made.clipped is None else made.clipped
        infinite = beyond | _infinite(made.codes)
        return (
            int(np.count_nonzero(outside)),
            int(np.count_nonzero(outside.any(axis=-1))),
            np.asarray(infinite.any(axis=1)),
            int(np.count_nonzero(infinite)),
        )

    found = list(ordered_map(encode, blocks(n, d), threads))
    overflow = np.flatnonzero(np.concatenate([rows for _, _, rows, _ in found]))
    made = coded(
        codes,
        cosine=cosine and not len(overflow),
        low=scheme.low,
        scale=scheme.scale,
        row_scale=row_scale,
        threads=threads,
    )
    return Stored(
        rows=made,
        clipped_coordinates=sum(count for count, _, _, _ in found),
        clipped_rows=sum(count for _, count, _, _ in found),
        overflow=overflow,
        overflow_coordinates=sum(count for _, _, _, count in found),
        zero_rows=made.zero_rows,
    )


def offset(rows: Coded, length: float, *, threads: int) -> Coded:
    """
    Unit rows plus `length` along (1, ..., 1) / sqrt(d), read where they are, without a copy.

    Parameters
    ----------
    rows : Coded, scored by cosine
    """
    d = rows.d
    moved = replace(
        rows, low=rows.low + length / np.sqrt(d), row_scale=rows.row_scale / rows.divisors
    )
    return by_direction(moved, threads)


def _infinite(codes: Codes) -> Mask:
    if codes.dtype == np.uint16:
        return np.asarray((codes & np.uint16(0x7FFF)) == 0x7C00)
    if codes.dtype == np.float32:
        return np.asarray(np.isinf(codes))
    return np.zeros((len(codes), 1), bool)


def _half(x: Floats) -> Encoded:
    with np.errstate(over="ignore"):
        return Encoded(x.astype(np.float16).view(np.uint16))


def _bfloat16(x: Floats) -> Encoded:
    """float32, then the upper half of its bits, half to even; written as the float32 it equals."""
    with np.errstate(over="ignore"):
        bits = x.astype(np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return Encoded((rounded & np.uint32(0xFFFF0000)).view(np.float32))


def _signs(x: Floats) -> Encoded:
    return Encoded(np.where(x > 0, 1, -1).astype(np.int8))


def _rounded(t: Floats) -> Codes:
    """Whole numbers in [-127, 127], half to even."""
    return np.clip(np.rint(t), -127, 127).astype(np.int8)


def _symmetric_by_row(x: Floats) -> Encoded:
    scale = np.abs(x).max(axis=1) / 127
    scale[scale == 0] = 1.0
    return Encoded(_rounded(x / scale[:, None]), row_scale=scale)


def _symmetric(name: str, calibration: Points, n: int, d: int, threads: int) -> Fitted:
    grid = blocks(n, d)
    if name == "int8":
        parts = ordered_map(lambda which: np.abs(calibration(which)).max(axis=0), grid, threads)
        largest = np.max(list(parts), axis=0)
    else:
        largest = _quantiles(calibration, n, d)
    scale = largest / 127
    constant = scale == 0
    scale[constant] = 1.0
    return Fitted(
        lambda x: Encoded(_rounded(x / scale), clipped=np.abs(x) > largest),
        np.int8,
        d,
        scale=scale,
        constant=tuple(np.flatnonzero(constant).tolist()),
    )


def _quantiles(calibration: Points, n: int, d: int) -> Floats:
    """The .99 quantile of |x| by coordinate, a few columns at a time."""
    found = np.empty(d)
    wide = max(1, (1 << 22) // n)
    for start in range(0, d, wide):
        columns = slice(start, start + wide)
        part = [np.abs(calibration(which)[:, columns]) for which in blocks(n, d)]
        found[columns] = np.quantile(np.concatenate(part), QUANTILE, axis=0)
    return found


def _min_max(name: str, calibration: Points, n: int, d: int, threads: int) -> Fitted:
    """Ranges in float32, as FAISS trains and applies them; `int8_minmax_round` in float64."""
    single = name != "int8_minmax_round"

    def ends(which: slice) -> tuple[Floats, Floats]:
        x = calibration(which)
        x = np.clip(x, -SINGLE_LIMIT, SINGLE_LIMIT).astype(np.float32) if single else x
        return x.min(axis=0), x.max(axis=0)

    found = list(ordered_map(ends, blocks(n, d), threads))
    low = np.min([one for one, _ in found], axis=0)
    high = np.max([one for _, one in found], axis=0)
    width = high - low
    levels = 15 if name == "int4" else 255
    constant = width / levels == 0

    def cells(x: Floats) -> Encoded:
        y = x.astype(np.float32)
        t = np.divide(y - low, width, out=np.zeros_like(y), where=~constant)
        code = (np.float32(levels) * np.clip(t, 0, 1)).astype(np.uint8)
        return Encoded(code, clipped=(y < low) | (y > high))

    def nearest(x: Floats) -> Encoded:
        step = np.where(constant, 1.0, width / levels)
        code = np.where(constant, 0.0, np.rint((x - low) / step))
        inside = np.clip(code, 0, levels).astype(np.uint8)
        return Encoded(inside, clipped=(x < low) | (x > high))

    at, wide = low.astype(np.float64), width.astype(np.float64)
    return Fitted(
        cells if single else nearest,
        np.uint8,
        (d + 1) // 2 if name == "int4" else d,
        low=at + wide * (0.5 / levels) if single else at,
        scale=wide / levels,
        limit=SINGLE_LIMIT if single else np.inf,
        constant=tuple(np.flatnonzero(constant).tolist()),
    )


def _product(calibration: Points, n: int, d: int) -> Fitted:
    centroids = 1 << PQ_BITS
    if n < centroids:
        raise TooFewToTrain(f"{n} calibration rows; {centroids} centroids need as many.")
    width = next(w for w in range(min(PQ_WIDTH, d), 0, -1) if d % w == 0)
    quantiser = faiss.ProductQuantizer(d, d // width, PQ_BITS)
    quantiser.cp.min_points_per_centroid = 1  # faiss warns on standard error
    sample = min(n, quantiser.cp.max_points_per_centroid * centroids)
    rows = np.empty((sample, d), np.float32)
    for which in blocks(sample, d):
        rows[which] = np.clip(calibration(which), -SQUARE_LIMIT, SQUARE_LIMIT)
    faiss.omp_set_num_threads(1)
    quantiser.train(rows)

    def encode(x: Floats) -> Encoded:
        faiss.omp_set_num_threads(1)
        codes = quantiser.compute_codes(x.astype(np.float32))
        return Encoded(quantiser.decode(codes))  # type: ignore

    return Fitted(encode, np.float32, d // width, limit=SQUARE_LIMIT)
