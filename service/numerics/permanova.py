"""Permutation tests of group structure: between-group variation, and dispersion."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from service.numerics.compiled import (
    Items,
    add_by_group,
    add_square_sums,
    stream_key,
)
from service.numerics.design import Design
from service.numerics.moments import Units
from service.numerics.permutation_test import PermutationTest
from service.numerics.rows import BLOCK_ELEMENTS, Floats, Source, ordered_map
from service.numerics.vector import LANES

TIE = 1e-9
ROUNDING = 1e-12
SCREEN = 2.02 * 2.0**-24
EXACT_BYTES = 256 << 20
BATCH_BYTES = 4 << 20
MOST_IN_A_BATCH = 128
Slabs = NDArray[np.float64] | NDArray[np.float32]
Step = Callable[[int, int], None]


def slabs(source: Source, shift: Floats, design: Design, threads: int) -> Slabs:
    """
    Sums over items of rows minus `shift`, as slabs of eight columns: (ceil(d/8), u, 8).

    Float64 up to 256 MiB, float32 above: the permuted sums are then of rows rounded by 6e-8, for the
    observed arrangement as for all others.

    Parameters
    ----------
    source : Source (n, d)
    shift : (d,)
    """
    n, d = source.n, source.d
    width = -(-d // LANES)
    exact = 8 * design.items * width * LANES <= EXACT_BYTES
    out = np.zeros((width, design.items, LANES), dtype=np.float64 if exact else np.float32)
    single = design.items == n
    size = max(1, BLOCK_ELEMENTS // d)

    def fill(span: tuple[int, int]) -> None:
        first, last = span
        start, stop = design.starts[first], design.starts[last]
        x = source.take(design.rows[start:stop])
        x -= shift
        if not single:
            x = np.add.reduceat(x, design.starts[first:last] - start)
        padded = np.zeros((last - first, width * LANES))
        padded[:, :d] = x
        out[:, first:last] = padded.reshape(last - first, width, LANES).transpose(1, 0, 2)

    spans = []
    first = 0
    while first < design.items:
        last = int(np.searchsorted(design.starts, design.starts[first] + size, side="right")) - 1
        last = min(max(last, first + 1), design.items)
        spans.append((first, last))
        first = last
    for _ in ordered_map(fill, spans, threads):
        pass
    return out


def item_squares(source: Source, mean: Floats, design: Design, x: Slabs) -> Floats:
    """Sum of squared deviations of each item's rows, (u,); of single rows as the slabs round them."""
    if design.items == source.n:
        total = np.zeros(source.n)
        for slab in x:
            total += np.einsum("ij,ij->i", slab, slab, dtype=np.float64)
        return total
    items = Units(design.rows, design.starts, "group")
    found = []
    for span in items.chunks(source.d):
        lengths = []
        for piece in items.pieces(*span, source.d):
            x = source.take(piece) - mean
            lengths.append(np.einsum("ij,ij->i", x, x))
        starts = items.starts[span[0] : span[1]] - items.starts[span[0]]
        found.append(np.add.reduceat(np.concatenate(lengths), starts))
    return np.concatenate(found)


@dataclass(frozen=True)
class BetweenTest:
    """Tests of SS_B (the F of PERMANOVA) and of F2, on the same arrangements."""

    f: PermutationTest
    f2: PermutationTest | None
    mean_ss_between: float
    """Mean permuted SS_B, to 1.3e-7 SS_T: what its null expectation estimates."""


def between_statistics(
    x: Slabs, squares: Floats, design: Design, arrangements: Items
) -> tuple[Floats, Floats]:
    """
    SS_B and the denominator of F2 under some arrangements.

    Parameters
    ----------
    x : slabs of items
    squares : (u,) sum of squared deviations of each item's rows
    arrangements : (p, u)

    Returns
    -------
    ss_between, pooled : (p,) float64
        pooled is sum_g (1 - n_g/n) W~_g with W~_g = SS_g / (n_g - 1); NaN where a group has one row.
    """
    shape = (len(arrangements), len(design.groups) - 1)
    length2, total = np.zeros(shape), np.zeros(shape)
    for slab in x:
        add_square_sums(slab, arrangements, design.groups, length2)
    add_by_group(squares, arrangements, design.groups, total)
    sizes = design.rows_of_groups(arrangements)
    mean2 = length2 / sizes
    n = sizes[0].sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = (total - mean2) / (sizes - 1)
    spread[sizes == 1] = np.nan
    return mean2.sum(axis=1), ((1 - sizes / n) * spread).sum(axis=1)


def between_test(
    x: Slabs,
    squares: Floats,
    design: Design,
    ss_total: float,
    permutations: int,
    seed: int,
    level: float,
    threads: int,
    step: Step,
) -> BetweenTest:
    """
    Permutation tests of the between-group sum of squares and of Anderson's F2.

    Arrangements tie with the observed one within 1e-9 SS_T: rounding must not lose those that only
    swap the names of groups. Float32 rows propose, float64 rows decide: an arrangement whose statistic
    lies within the rounding bound of float32, |SS_B' - SS_B| <= (2u + u^2) sum |x|^2 with u = 2^-24 by
    Cauchy's inequality, is summed again in float64. All distinct labellings are enumerated when there
    are no more of them than `permutations`. F2 is compared as SS_B times the other denominator, which
    is where rounding is known; an arrangement of units that leaves a group one row has no F2 and
    counts as an exceedance.

    Notes
    -----
    Time O(B n d), memory 8 to 128 arrangements per thread, 4 MiB of them where items are few.

    References
    ----------
    Anderson 2001, doi:10.1111/j.1442-9993.2001.01070.pp.x; Anderson, Walsh, Clarke, Gorley &
    Guerra-Castro, "Some solutions to the multivariate Behrens-Fisher problem for dissimilarity-based
    analyses", Aust. N. Z. J. Stat. 59(1), 2017, doi:10.1111/anzs.12176; Phipson & Smyth, "Permutation
    p-values should never be zero", 2010, doi:10.2202/1544-6115.1585.
    """
    exact = design.labellings <= permutations
    count = int(design.labellings) if exact else permutations
    identity = design.places.astype(np.uint32)[None]
    seen, seen_pooled = (float(v[0]) for v in between_statistics(x, squares, design, identity))
    has_f2 = bool(np.isfinite(seen_pooled)) and seen_pooled > 0 and seen > 0

    threshold = seen - TIE * ss_total
    proposing = x if exact else x.astype(np.float32, copy=False)
    slack = SCREEN * max(ss_total, sum(float(np.einsum("ij,ij->", slab, slab)) for slab in x))
    slack2 = slack * (1 + seen_pooled / seen) if has_f2 else 0.0

    def most(ss: Floats) -> Floats:
        """The largest denominator at which F2 still reaches that of the data."""
        return seen_pooled * (ss / seen) * (1 + TIE) + ROUNDING * ss_total

    def judge(make: Callable[[], Items]) -> tuple[int, int, int, float]:
        arrangements = make()
        ss, pooled = between_statistics(proposing, squares, design, arrangements)
        open_ = np.abs(ss - threshold) <= slack
        if has_f2:
            open_ |= ~(np.abs(pooled - most(ss)) > slack2)
        if x.dtype == np.float64 and open_.any():
            ss[open_], pooled[open_] = between_statistics(x, squares, design, arrangements[open_])
        reached = ~(pooled > most(ss)) if has_f2 else np.zeros(0, bool)
        return (
            len(arrangements),
            int(np.count_nonzero(ss >= threshold)),
            int(np.count_nonzero(reached)),
            float(ss.sum()),
        )

    b = b2 = done = 0
    total = 0.0
    source = arrangement_batches(design, exact, count, stream_key(seed, "permutation"))
    for size, one, two, ss in ordered_map(judge, source, threads):
        b, b2, total, done = b + one, b2 + two, total + ss, done + size
        step(done, count)
    same = design.renamings if exact else 1
    return BetweenTest(
        PermutationTest.of(b, count, exact, level, renamings=same),
        PermutationTest.of(b2, count, exact, level, renamings=same) if has_f2 else None,
        total / count,
    )


def batch_size(design: Design) -> int:
    """Arrangements at a time: many, so that a slab is read once for all, yet few megabytes."""
    widest = 4 * max(design.items, 2 * len(design.groups))
    return max(8, min(MOST_IN_A_BATCH, BATCH_BYTES // widest))


def arrangement_batches(
    design: Design, exact: bool, count: int, key: NDArray[np.uint64]
) -> Iterator[Callable[[], Items]]:
    """Batches of arrangements, random ones made by the thread that uses them."""
    size = batch_size(design)
    if exact:
        for batch in design.all_arrangements(size):
            yield partial(_given, batch)
        return
    for first in range(0, count, size):
        yield partial(design.arrangements, key, first, min(size, count - first))


def _given(batch: Items) -> Items:
    return batch


def permuted(
    statistic: Callable[[Items], Floats],
    slack: float,
    design: Design,
    permutations: int,
    key: NDArray[np.uint64],
    level: float,
    threads: int,
    step: Step,
    symmetric: bool = False,
) -> PermutationTest:
    """
    How many arrangements reach the statistic of the data; all are taken where there are no more.

    Parameters
    ----------
    statistic : of arrangements (p, u), (p,) float64; that of the data is computed by it too
    slack : how far from that one an arrangement still ties with it
    symmetric : whether it stays when groups change their names
    """
    exact = design.labellings <= permutations
    count = int(design.labellings) if exact else permutations
    seen = float(statistic(design.places.astype(np.uint32)[None])[0])

    def judge(make: Callable[[], Items]) -> tuple[int, int, int]:
        found = statistic(make())
        reach, pass_by = (
            int(np.count_nonzero(one)) for one in (found >= seen - slack, found > seen + slack)
        )
        return len(found), reach, pass_by

    b = above = done = 0
    batches = arrangement_batches(design, exact, count, key)
    for size, reach, pass_by in ordered_map(judge, batches, threads):
        b, above, done = b + reach, above + pass_by, done + size
        step(done, count)
    same = design.renamings if exact and symmetric else 1
    return PermutationTest.of(b, count, exact, level, above, same)


def expected_between(x: Slabs, design: Design) -> float | None:
    """
    Exact mean of SS_B over all labellings; None where units of one stratum differ in size.

    With k_gs items of group g in stratum s (K_s items, mean T_s, spread S_s = sum |x - T_s|^2):
    E |sum_{u in g} x_u|^2 = |sum_s k_gs T_s|^2 + sum_s k_gs (1 - k_gs/K_s) S_s / (K_s - 1).

    Notes
    -----
    Time and memory O(u d).
    """
    sizes = design.sizes
    per_stratum = np.repeat(np.arange(len(design.strata) - 1), np.diff(design.strata))
    lowest = np.minimum.reduceat(sizes, design.strata[:-1])
    if (sizes != lowest[per_stratum]).any():
        return None
    k = np.diff(design.strata).astype(np.float64)
    table = sparse.csr_matrix(
        (np.ones(design.items), (design.labels, per_stratum)),
        shape=(len(design.groups) - 1, len(k)),
    )
    expected = np.zeros(table.shape[0])
    spread = np.zeros(len(k))
    for slab in x:
        means = np.add.reduceat(slab.astype(np.float64), design.strata[:-1]) / k[:, None]
        residual = slab - means[per_stratum]
        spread += np.add.reduceat(np.einsum("ij,ij->i", residual, residual), design.strata[:-1])
        expected += np.square(np.asarray(table @ means)).sum(axis=1)
    variance = np.divide(spread, k - 1, out=np.zeros(len(k)), where=k > 1)
    expected += table @ variance - table.multiply(table) @ (variance / k)
    rows = np.asarray(table @ lowest.astype(np.float64))
    return float((expected / rows).sum())
