"""Dispersion by level of a dose: pooled within cells, ordered-trend test, adjacent differences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from service.numerics.moments import Units
from service.numerics.partition import partition
from service.numerics.resampling import FEWEST_UNITS, Interval, jackknife_se, t_quantile
from service.numerics.rows import Floats, Source

FEWEST_LEVELS = 3


@dataclass(frozen=True)
class Dose:
    """
    Dispersion at each level, levels in order.

    Attributes
    ----------
    cells : (L,) cells (group at level) with at least one row
    pooled : (L,) SS_W / sum (n_gl - 1); NaN where every cell has one row
    mean : (L,) plain mean of size-corrected cell dispersions
    from_first : (L,) mean squared distance of a level's cell means to their group's mean at level 0
    table : (blocks, L) what adjacent levels are compared on, complete groups only
    equal_cells : bool
        Whether all cells of complete groups have the same size >= 2.
    """

    cells: NDArray[np.int64]
    pooled: Floats
    mean: Floats
    from_first: Floats
    table: Floats
    equal_cells: bool


def dose(
    source: Source,
    groups: NDArray[np.int64],
    levels: NDArray[np.int64],
    threads: int,
) -> Dose:
    """
    Dispersion of rows around their cell's mean, by level.

    Where every cell has one row, the table holds squared distances to the group's mean at level 0.

    Parameters
    ----------
    source : Source (n, d)
    groups, levels : (n,) dense codes; level 0 is the reference

    Notes
    -----
    Time O(n d), memory (cells, d) float64.
    """
    G, L = int(groups.max()) + 1, int(levels.max()) + 1
    used, codes = np.unique(groups * L + levels, return_inverse=True)
    g, level = used // L, used % L
    cells = partition(source, Units.groups(codes), threads)
    sizes = cells.counts
    means = cells.sums / sizes[:, None]

    free = np.bincount(level, sizes - 1, L)
    pooled = np.full(L, np.nan)
    np.divide(np.bincount(level, cells.within, L), free, out=pooled, where=free > 0)
    several = sizes > 1
    corrected = np.where(several, cells.within / np.maximum(sizes - 1, 1), np.nan)
    count = np.bincount(level[several], minlength=L)
    mean = np.full(L, np.nan)
    np.divide(np.bincount(level[several], corrected[several], L), count, out=mean, where=count > 0)

    base = np.full(G, -1)
    base[g[level == 0]] = np.flatnonzero(level == 0)
    known = base[g] >= 0
    apart = np.full(len(used), np.nan)
    away = means[known] - means[base[g[known]]]
    apart[known] = np.einsum("ij,ij->i", away, away)
    known_count = np.bincount(level[known], minlength=L)
    from_first = np.full(L, np.nan)
    np.divide(
        np.bincount(level[known], apart[known], L), known_count, out=from_first,
        where=known_count > 0,
    )  # fmt: skip

    complete = np.bincount(g, minlength=G) == L
    chosen = complete[g]
    blocks = int(complete.sum())
    single = bool((sizes == 1).all())
    values = apart if single else corrected
    return Dose(
        cells=np.bincount(level, minlength=L),
        pooled=pooled,
        mean=mean,
        from_first=from_first,
        table=values[chosen].reshape(blocks, L),
        equal_cells=blocks > 0
        and bool((sizes[chosen] == sizes[chosen][0]).all())
        and not single
        and int(sizes[chosen][0]) >= 2,
    )


def adjacent(table: Floats, level: float) -> list[tuple[float, Interval | None]]:
    """
    Mean paired difference of each adjacent pair of levels, with Bonferroni-t intervals over all pairs.

    Parameters
    ----------
    table : (blocks, L), values by group and level
    level : float in (0, 1)
        Simultaneous coverage, at least.

    Returns
    -------
    list of (difference, interval) : L - 1 long; interval None below 5 blocks or without values
    """
    blocks, L = table.shape
    found: list[tuple[float, Interval | None]] = []
    for j in range(L - 1):
        apart = table[:, j + 1] - table[:, j]
        value = float(apart.mean()) if blocks else float("nan")
        if blocks < FEWEST_UNITS or not np.isfinite(apart).all():
            found.append((value, None))
            continue
        deleted = (apart.sum() - apart) / (blocks - 1)
        half = t_quantile(1 - (1 - level) / (2 * (L - 1)), blocks - 1) * jackknife_se(deleted)
        found.append(
            (
                value,
                Interval(
                    low=value - half,
                    high=value + half,
                    level=level,
                    method="bonferroni_t",
                    unit="group",
                    resamples=blocks,
                ),
            )
        )
    return found


@dataclass(frozen=True)
class PageTest:
    """
    Page's test of an increasing order.

    Attributes
    ----------
    statistic : sum over levels of (place of the level) x (sum of its ranks)
    z : its normal approximation
    p : one-sided
    blocks, levels : int
    """

    statistic: float
    z: float
    p: float
    blocks: int
    levels: int


def page(table: Floats) -> PageTest:
    """
    Page's ordered-trend test by its normal approximation, ties at mid-ranks.

    Parameters
    ----------
    table : (blocks, L) with L >= 3, finite

    References
    ----------
    Page, "Ordered hypotheses for multiple treatments: a significance test for linear ranks", JASA
    58(301), 1963, doi:10.1080/01621459.1963.10500843.
    """
    blocks, L = table.shape
    from scipy.stats import rankdata  # a third of a second to import, for those who need it

    ranks = rankdata(table, axis=1)
    statistic = float(ranks.sum(axis=0) @ np.arange(1, L + 1))
    expected = blocks * L * (L + 1) ** 2 / 4
    variance = blocks * L**2 * (L + 1) * (L**2 - 1) / 144
    z = (statistic - expected) / float(np.sqrt(variance))
    return PageTest(statistic, z, float(special.ndtr(-z)), blocks, L)
