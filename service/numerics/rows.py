"""Unit rows, the fixed block grid, and work that runs over it in parallel with one result."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.generic]
Selection = slice | NDArray[np.integer]

BLOCK_ELEMENTS = 1 << 20  # 8 MiB of float64
NORM_ELEMENTS = 1 << 17  # 1 MiB of float64
UNIT_TOLERANCE = 1e-3  # float16 storage moves a unit norm by up to 5e-4
SAFE_SQUARE = (1e-140, 1e140)  # outside, squares of float64 leave the normal range

T = TypeVar("T")
R = TypeVar("R")


def blocks(n: int, d: int, at_least: int = 1) -> list[slice]:
    """
    The fixed grid of row blocks: a function of the shape only, so sums never depend on threads.

    Parameters
    ----------
    n, d : int
        Shape of the rows.
    at_least : int
        Smallest useful number of rows in a block (the last block may be shorter).
    """
    size = max(BLOCK_ELEMENTS // d, at_least, 1)
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def ordered_map(
    function: Callable[[T], R], items: Sequence[T] | Iterable[T], threads: int
) -> Iterator[R]:
    """
    `map` over threads, results in order, at most `2 * threads` of them in memory.

    numpy and BLAS release the interpreter lock, LAPACK's QR in part and its SVD not at all.
    """
    if threads <= 1 or (isinstance(items, Sized) and len(items) <= 1):
        yield from map(function, items)
        return
    source = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[R]] = deque(
            pool.submit(function, item) for item in islice(source, 2 * threads)
        )
        try:
            while waiting:
                result = waiting.popleft().result()
                for item in islice(source, 1):
                    waiting.append(pool.submit(function, item))
                yield result
        finally:
            for future in waiting:
                future.cancel()


def norms(x: Floats) -> Floats:
    """
    Euclidean norms of rows without overflow or underflow.

    Parameters
    ----------
    x : (m, d) float64, finite

    Returns
    -------
    (m,) float64
    """
    largest = np.abs(x).max(axis=1, initial=0.0)
    with np.errstate(over="ignore"):
        plain = np.sqrt(np.einsum("ij,ij->i", x, x))
    extreme = (largest > 0) & ((largest < SAFE_SQUARE[0]) | (largest > SAFE_SQUARE[1]))
    if extreme.any():
        scaled = x[extreme] / largest[extreme, None]
        plain[extreme] = largest[extreme] * np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    return np.asarray(plain)


def safe_scale(longest: float) -> float:
    """A power of two that brings rows of this length to about 1, where squares need it; else 1."""
    if SAFE_SQUARE[0] < longest < SAFE_SQUARE[1]:
        return 1.0
    return to_about_one(longest)


def to_about_one(longest: float) -> float:
    """A power of two that brings rows of this length to between 1 and 2, where powers are at home."""
    return 1.0 if longest == 0 else float(2.0 ** np.clip(-np.floor(np.log2(longest)), -1000, 1000))


def unit(x: Rows) -> Floats:
    """
    Rows of length one, in float64 whatever the storage type.

    Parameters
    ----------
    x : (m, d) finite, no zero rows

    Returns
    -------
    (m, d) float64 with norms within 2^-52 of 1, a new array
    """
    y = x.astype(np.float64, order="C")  # sums run along memory: one order for every layout
    largest = np.abs(y).max(axis=1)
    extreme = (largest < SAFE_SQUARE[0]) | (largest > SAFE_SQUARE[1])
    if extreme.any():
        y[extreme] /= largest[extreme, None]
    y /= np.sqrt(np.einsum("ij,ij->i", y, y))[:, None]
    return y


def row_dots(x: Floats, y: Floats) -> Floats:
    """
    Dot product of each row of `x` with the same row of `y`, bit for bit a function of the two rows.

    A matrix product scores equal pairs differently; pairwise summation along one row cannot.

    Parameters
    ----------
    x, y : (m, d) float64

    Returns
    -------
    (m,) float64
    """
    dots: Floats = np.add.reduce(np.ascontiguousarray(x * y), axis=1)
    return dots


class Source(Protocol):
    """Rows that are computed, in float64, where they are asked for."""

    @property
    def n(self) -> int: ...

    @property
    def d(self) -> int: ...

    @property
    def unit(self) -> bool:
        """Whether no row is longer than one."""
        ...

    def take(self, which: Selection) -> Floats: ...


@dataclass(frozen=True)
class Stored:
    """
    Rows as they are, or times a power of two.

    Parameters
    ----------
    rows : (n, d) finite
    scale : float
        Brings rows of extreme length to where their squares can be represented.
    """

    rows: Rows
    scale: float = 1.0
    unit: ClassVar[bool] = False

    @property
    def n(self) -> int:
        return int(self.rows.shape[0])

    @property
    def d(self) -> int:
        return int(self.rows.shape[1])

    def take(self, which: Selection) -> Floats:
        """The chosen rows, (m, d) float64, a new array."""
        y = self.rows[which].astype(np.float64, order="C")
        return y if self.scale == 1 else y * self.scale


@dataclass(frozen=True)
class Directions:
    """
    Unit rows, optionally centred and renormalised.

    Parameters
    ----------
    rows : (n, d) finite, no zero rows
    mean : (d,) or None
        Subtracted from the unit rows before they are normalised again.
    """

    rows: Rows
    mean: Floats | None = None
    unit: ClassVar[bool] = True

    @property
    def n(self) -> int:
        return int(self.rows.shape[0])

    @property
    def d(self) -> int:
        return int(self.rows.shape[1])

    def take(self, which: Selection) -> Floats:
        """The chosen rows, (m, d) float64, a new array."""
        y = unit(self.rows[which])
        if self.mean is not None:
            y -= self.mean
            y /= np.sqrt(np.einsum("ij,ij->i", y, y))[:, None]
        return y

    def residual_norms(self, which: Selection) -> Floats:
        """Lengths left after the mean is subtracted, (m,) float64."""
        y = unit(self.rows[which])
        return norms(y if self.mean is None else y - self.mean)


def mean_row(source: Source, threads: int) -> Floats:
    """
    Mean of the rows, (d,) float64, as what is added to a row near it: of equal rows it is that row.

    Near is the mean of a first pass; of unit rows, which are not far apart, the first of them.
    Time O(n d), memory one block per thread.
    """
    grid = blocks(source.n, source.d)

    def total(shift: Floats | None = None) -> Floats:
        def of_block(which: slice) -> Floats:
            x = source.take(which)
            if shift is not None:
                x -= shift
            return np.asarray(x.sum(axis=0))

        result = np.zeros(source.d)
        for part in ordered_map(of_block, grid, threads):
            result += part
        return result / source.n

    near = source.take(slice(0, 1))[0] if source.unit else total()
    return near + total(near)


@dataclass(frozen=True)
class RowFacts:
    """What is known of a block of rows, or of all rows, before anything is computed."""

    n: int
    unit_rows: int
    non_finite: NDArray[np.int64]
    zero: NDArray[np.int64]
    norm_min: float
    norm_max: float


def row_classes(rows: Rows, threads: int) -> NDArray[np.int64]:
    """
    The first row each row is equal to, (n,); its own number where it repeats no earlier row.

    Rows are classed by a 64-bit multilinear hash of mixed words and every candidate is compared with
    the first row of its class, so nothing is joined that is not equal; a hash collision (probability
    about n^2 2^-64) can only leave equal rows apart. Time O(n d + n log n), memory O(n) and one block
    per thread.

    Parameters
    ----------
    rows : (n, d)
    """
    n, d = rows.shape
    word = np.dtype(f"u{rows.dtype.itemsize}")
    factors = np.random.Philox(key=np.array([d, 0], dtype=np.uint64)).random_raw(d) | np.uint64(1)

    def hashes(which: slice) -> NDArray[np.uint64]:
        x = np.add(rows[which], rows.dtype.type(0), order="C")  # -0.0 becomes 0.0
        words = x.view(word).astype(np.uint64)
        words ^= words >> np.uint64(32)
        words *= np.uint64(0x9E3779B97F4A7C15)
        words ^= words >> np.uint64(32)
        codes: NDArray[np.uint64] = (words * factors).sum(axis=1, dtype=np.uint64)
        return codes

    codes = np.concatenate(list(ordered_map(hashes, blocks(n, d), threads)))
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    fresh = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    first = order[np.maximum.accumulate(np.where(fresh, np.arange(n), 0))]
    later, earlier = order[~fresh], first[~fresh]

    def equal(which: slice) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = (rows[later[which]] == rows[earlier[which]]).all(axis=1)
        return same

    found = np.arange(n)
    if len(later):
        same = np.concatenate(list(ordered_map(equal, blocks(len(later), d), threads)))
        found[later[same]] = earlier[same]
    return found


def duplicate_rows(rows: Rows, threads: int) -> tuple[int, int]:
    """
    Rows equal to an earlier row, and classes of two or more equal rows; see `row_classes`.

    Parameters
    ----------
    rows : (n, d)

    Returns
    -------
    (rows, classes) : int
    """
    classes = row_classes(rows, threads)
    repeated = classes[classes != np.arange(len(classes))]
    return len(repeated), len(np.unique(repeated))


def _plain_norms(x: Rows) -> Floats:
    """Norms without care, a few rows at a time: what is widened stays in the cache."""
    found = np.empty(len(x))
    step = max(1, NORM_ELEMENTS // x.shape[1])
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(x), step):
            y = x[start : start + step].astype(np.float64)
            found[start : start + step] = np.sqrt(np.einsum("ij,ij->i", y, y))
    return found


def row_facts(x: Rows, start: int = 0) -> RowFacts:
    """
    Hygiene of a block of rows; `start` is the number of its first row.

    A row whose length overflows float64 counts as non-finite. Norms are of finite rows; without any
    they are (inf, 0).
    """
    lengths = _plain_norms(x)
    # between these bounds no number of a row is extreme: `norms` would say the same
    low, high = SAFE_SQUARE[0] * np.sqrt(x.shape[1]), SAFE_SQUARE[1]
    finite = np.asarray((lengths > low) & (lengths < high))
    if len(odd := np.flatnonzero(~finite)):
        with np.errstate(invalid="ignore", over="ignore"):
            y = x[odd].astype(np.float64)
            whole = np.isfinite(y).all(axis=1)
            lengths[odd[whole]] = norms(y[whole])
        finite[odd[whole]] = np.isfinite(lengths[odd[whole]])
    lengths = lengths[finite]
    return RowFacts(
        n=len(x),
        unit_rows=int(np.count_nonzero(np.abs(lengths - 1) <= UNIT_TOLERANCE)),
        non_finite=start + np.flatnonzero(~finite),
        zero=start + np.flatnonzero(finite)[lengths == 0],
        norm_min=float(lengths.min(initial=np.inf)),
        norm_max=float(lengths.max(initial=0.0)),
    )
