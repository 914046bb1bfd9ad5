"""
Maximum mean discrepancy of two samples, unbiased, and its permutation tests.

With K summed over pairs of units, z marking those of the first sample and r = K 1, every arrangement is
read off two numbers: z'Kz and z'r. z'Kz of many arrangements at once is a matrix product, tile by tile
of the kernel, of which each is made once and only on one side of the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dgemm

from service.numerics.compiled import Items, add_by_group, add_square_sums, stream_key
from service.numerics.design import Design
from service.numerics.permanova import TIE, Slabs, Step, permuted
from service.numerics.permutation_test import PermutationTest
from service.numerics.rows import Floats, Source, ordered_map

TILE = 1024
"""Rows and columns of a tile of the kernel: 8 MiB."""
MOST_AT_ONCE = 2048
MARK_BYTES = 64 << 20
DRAWN_AT_ONCE = 64
Marks = NDArray[np.uint8]
Number = Floats | np.float64


def unbiased(
    inside: Number, all_of_first: Number, total: Number, n: Number, own: Number, first: Number,
    own_first: Number,
) -> Number:  # fmt: skip
    """
    MMD^2 from sums of the kernel over ordered pairs of rows of different units, elementwise.

    Parameters
    ----------
    inside : pairs inside the first sample
    all_of_first : pairs from the first sample to anywhere
    total : all pairs
    n, first : rows, and those of the first sample
    own, own_first : sum of squared unit sizes, all and of the first sample

    References
    ----------
    Gretton, Borgwardt, Rasch, Schoelkopf & Smola, "A kernel two-sample test", JMLR 13, 2012, equation
    3 (here with pairs of one unit left out, which are not independent).
    """
    second = n - first
    across = all_of_first - inside
    beyond = total - 2 * all_of_first + inside
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(
            inside / (np.square(first) - own_first)
            + beyond / (np.square(second) - (own - own_first))
            - 2 * across / (first * second)
        )[()]


@dataclass(frozen=True)
class KernelSums:
    """
    Sums of a kernel between each unit and all other units.

    Attributes
    ----------
    sizes : (u,) rows of each unit
    first : (u,) bool, units of the first sample
    to_all, to_first : (u,) sums to all other units, and to those of the first sample
    """

    sizes: Floats
    first: NDArray[np.bool_]
    to_all: Floats
    to_first: Floats

    def value(self) -> float:
        """MMD^2 of the samples; NaN where one is a single unit."""
        return float(unbiased(*self._totals))

    def without_each(self) -> Floats:
        """MMD^2 without each unit in turn, (u,), the bandwidth being kept."""
        inside, all_of_first, total, n, own, first, own_first = self._totals
        here, squares = self.first.astype(np.float64), np.square(self.sizes)
        return np.asarray(
            unbiased(
                inside - 2 * here * self.to_first,
                all_of_first - here * self.to_all - self.to_first,
                total - 2 * self.to_all,
                n - self.sizes,
                own - squares,
                first - here * self.sizes,
                own_first - here * squares,
            )
        )

    @property
    def noise(self) -> float:
        """About what sampling adds to the squared distance of mean embeddings, units being alike."""
        inside, all_of_first, total, n, own, first, own_first = self._totals
        beyond = total - 2 * all_of_first + inside
        one = 1 - inside / (first**2 - own_first)
        other = 1 - beyond / ((n - first) ** 2 - (own - own_first))
        count = np.count_nonzero(self.first)
        return float(one / count + other / (len(self.first) - count))

    @property
    def variation(self) -> float:
        """Mean of 1 - k over pairs of different units: the scale of ties."""
        _, _, total, n, own, _, _ = self._totals
        return float(1 - total / (n**2 - own))

    @property
    def _totals(self) -> tuple[np.float64, ...]:
        one, squares = self.first, np.square(self.sizes)
        return (
            self.to_first[one].sum(),
            self.to_all[one].sum(),
            self.to_all.sum(),
            self.sizes.sum(),
            squares.sum(),
            self.sizes[one].sum(),
            squares[one].sum(),
        )


@dataclass(frozen=True)
class MmdTest:
    """The sums of the data as they are, and the test."""

    sums: KernelSums
    test: PermutationTest


@dataclass(frozen=True)
class Gaussian:
    """
    exp(-|x - y|^2 / (2 s^2)) between rows of different items, 0 inside an item.

    Parameters
    ----------
    source : Source (n, d), its rows in the order of items
    origin : (d,) near the rows, so that nothing cancels
    squared : s^2
    owner : (n,) item of each row, ascending
    """

    source: Source
    origin: Floats
    squared: float
    owner: NDArray[np.int64]

    def panel(self, which: slice) -> tuple[Floats, Floats]:
        """Rows whose products, left with right, are the exponents of the kernel, (m, d + 2) each."""
        x = self.source.take(which) - self.origin
        x /= np.sqrt(self.squared)
        half = -0.5 * np.einsum("ij,ij->i", x, x)[:, None]
        one = np.ones_like(half)
        return np.hstack([x, half, one]), np.hstack([x, one, half])

    def tile(self, left: Floats, rows: slice, right: Floats, columns: slice) -> Floats:
        """The kernel between two ranges of rows, the second not before the first."""
        k = left @ right.T
        np.minimum(k, 0.0, out=k)
        np.exp(k, out=k)
        own, other = self.owner[rows], self.owner[columns]
        if own[-1] >= other[0]:
            k[own[:, None] == other[None]] = 0.0
        return k


def gaussian_test(
    kernel: Gaussian,
    design: Design,
    permutations: int,
    seed: int,
    level: float,
    threads: int,
    step: Step,
) -> MmdTest:
    """
    Unbiased MMD^2 of group 0 against group 1 and its permutation test; the bandwidth stays.

    The observed arrangement is summed by the same products as all others, and arrangements tie with it
    within 1e-9 of the mean of 1 - k. All distinct ones are enumerated when there are no more.

    Notes
    -----
    Time O(n^2 (d + B)), half of it saved by symmetry; memory n bytes for each of at most 2,048
    arrangements (64 MiB in all) and a few tiles per thread, never the (n, n) matrix.
    """
    exact = design.labellings <= permutations
    count = int(design.labellings) if exact else permutations
    seen: KernelSums | None = None
    threshold = 0.0
    b = done = 0
    for marks in _passes(design, exact, count, stream_key(seed, "mmd"), threads):

        def tell(share: float, before: int = done, size: int = marks.shape[1]) -> None:
            step(round(100 * (before + share * size)), 100 * (count + 1))

        inside, to_all, to_first = _walk(kernel, marks, threads, tell)
        observed = seen is None
        if seen is None:
            by_item = [np.add.reduceat(one, design.starts[:-1]) for one in (to_all, to_first)]
            seen = KernelSums(design.sizes.astype(np.float64), design.labels == 0, *by_item)
        found = _of_arrangements(to_all, design, marks, inside)
        done += len(found)
        if observed:
            threshold, found = float(found[0]) - TIE * seen.variation, found[1:]
        b += int(np.count_nonzero(~(found < threshold)))
    if seen is None:
        raise ValueError("A permutation test needs an arrangement.")
    same = design.renamings if exact else 1
    return MmdTest(seen, PermutationTest.of(b, count, exact, level, renamings=same))


def _passes(
    design: Design, exact: bool, count: int, key: NDArray[np.uint64], threads: int
) -> Iterator[Marks]:
    """
    1 for each row whose item stands in group 0 of an arrangement, (n, p), that of the data first.

    As many arrangements at a time as one walk over the kernel takes.
    """

    def draw(start: int) -> Items:
        return design.arrangements(key, start, min(DRAWN_AT_ONCE, count - start))

    batches = (
        design.all_arrangements(DRAWN_AT_ONCE)
        if exact
        else ordered_map(draw, range(0, count, DRAWN_AT_ONCE), threads)
    )
    most = max(1, min(MOST_AT_ONCE, MARK_BYTES // len(design.rows)))
    left = count + 1
    marks, filled = np.zeros((design.items, min(most, left)), np.uint8), 0
    for batch in chain([design.places.astype(np.uint32)[None]], batches):
        while len(batch):
            some, batch = np.split(batch, [marks.shape[1] - filled])
            part = np.zeros(some.shape, np.uint8)
            np.put_along_axis(part, some[:, : design.groups[1]].astype(np.int64), 1, axis=1)
            marks[:, filled : filled + len(some)] = part.T
            filled += len(some)
            if filled == marks.shape[1]:
                yield marks if design.items == len(design.rows) else marks.repeat(design.sizes, 0)
                left -= filled
                marks, filled = np.zeros((design.items, min(most, left)), np.uint8), 0


def _of_arrangements(to_all: Floats, design: Design, marks: Marks, inside: Floats) -> Floats:
    """MMD^2 of each arrangement from what its first sample sums to."""
    sizes = design.sizes.astype(np.float64)
    by_row = np.stack([to_all, np.ones(len(to_all)), np.repeat(sizes, design.sizes)])
    first = np.zeros((3, marks.shape[1]))
    for start in range(0, len(marks), TILE):
        rows = slice(start, start + TILE)
        first += by_row[:, rows] @ marks[rows].astype(np.float64)
    n, squares, total = sizes.sum(), np.square(sizes).sum(), to_all.sum()
    return np.asarray(unbiased(inside, first[0], total, n, squares, first[1], first[2]))


def _walk(
    kernel: Gaussian, marks: Marks, threads: int, tell: Callable[[float], None]
) -> tuple[Floats, Floats, Floats]:
    """z'Kz of each arrangement, (p,), and of each row K 1 and K z of the first, (n,)."""
    n, p = marks.shape
    starts = range(0, n, TILE)

    def strip(start: int) -> tuple[Floats, Floats]:
        rows = slice(start, min(start + TILE, n))
        left, _ = kernel.panel(rows)
        z = marks[rows].astype(np.float64)
        out = np.zeros(z.shape)
        sums = np.zeros((n - start, 2))
        here = sums[: len(z)]
        for begin in range(start, n, TILE):
            columns = slice(begin, min(begin + TILE, n))
            _, right = kernel.panel(columns)
            k = kernel.tile(left, rows, right, columns)
            other = z if begin == start else marks[columns].astype(np.float64)
            weight = 0.5 if begin == start else 1.0
            dgemm(weight, other.T, k.T, beta=1.0, c=out.T, overwrite_c=True)
            here += k @ _with_ones(other)
            if begin > start:
                sums[begin - start : columns.stop - start] += k.T @ _with_ones(z)
        return 2 * np.einsum("ij,ij->j", z, out), sums

    inside, sums, done = np.zeros(p), np.zeros((n, 2)), 0
    for start, (part, beside) in zip(starts, ordered_map(strip, starts, threads), strict=True):
        inside += part
        sums[start:] += beside
        done = min(start + TILE, n)
        tell(1 - ((n - done) / n) ** 2)
    return inside, sums[:, 0], sums[:, 1]


def _with_ones(z: Floats) -> Floats:
    return np.stack([np.ones(len(z)), z[:, 0]], axis=1)


def linear_test(
    x: Slabs,
    squares: Floats,
    design: Design,
    permutations: int,
    seed: int,
    level: float,
    threads: int,
    step: Step,
) -> PermutationTest:
    """
    Permutation test of the unbiased MMD^2 of a linear kernel, from group sums alone.

    Its value is `shift.Shift.distance2`: pairs of one unit are left out, and the origin does not count.

    Parameters
    ----------
    x : slabs of items about the mean of all rows
    squares : (u,) sum of squared deviations of each item's rows from it
    design : Design of two groups

    Notes
    -----
    Time O(B n d), memory 8 to 128 arrangements per thread.
    """
    sizes = design.sizes.astype(np.float64)
    length2 = np.zeros(design.items)
    for slab in x:
        length2 += np.einsum("ij,ij->i", slab, slab, dtype=np.float64)
    by_item = (squares, sizes * squares, length2, sizes, np.square(sizes))

    def values(arrangements: Items) -> Floats:
        shape = (len(arrangements), 2)
        summed = np.zeros(shape)
        for slab in x:
            add_square_sums(slab, arrangements, design.groups, summed)
        found = [np.zeros(shape) for _ in by_item]
        for one, out in zip(by_item, found, strict=True):
            add_by_group(one, arrangements, design.groups, out)
        q, weighted, own, n, squared = found
        inside = (n * q - weighted - summed + own) / (np.square(n) - squared)
        across = (q / n).sum(axis=1) + summed.sum(axis=1) / n.prod(axis=1)
        return np.asarray(across - inside.sum(axis=1))

    slack = TIE * float(squares.sum() / sizes.sum())
    key = stream_key(seed, "permutation")
    return permuted(values, slack, design, permutations, key, level, threads, step, symmetric=True)
