"""Dispersion by level against hand computation, scipy's Page test and paired t intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from service.numerics.dose import adjacent, dose, page
from service.numerics.rows import Stored

Array = NDArray[Any]
seeds = st.integers(0, 10**6)


def cells_of(rows: Array, groups: Array, levels: Array) -> dict[tuple[int, int], Array]:
    return {
        (g, m): rows[(groups == g) & (levels == m)]
        for g in np.unique(groups)
        for m in np.unique(levels)
        if ((groups == g) & (levels == m)).any()
    }


def squares(x: Array) -> float:
    return float(((x - x.mean(axis=0)) ** 2).sum())


@st.composite
def crossed(draw: st.DrawFn) -> tuple[Array, Array, Array]:
    """Rows of a few groups at a few levels, cells of one to four rows, some cells missing."""
    groups, levels = draw(st.integers(1, 5)), draw(st.integers(2, 4))
    sizes = np.array(
        draw(st.lists(st.integers(0, 4), min_size=groups * levels, max_size=groups * levels))
    ).reshape(groups, levels)
    assume((sizes.sum(axis=0) > 0).all() and (sizes.sum(axis=1) > 0).all())
    g, m = np.divmod(np.repeat(np.arange(groups * levels), sizes.ravel()), levels)
    rng = np.random.default_rng(draw(seeds))
    order = rng.permutation(len(g))
    rows = rng.normal(size=(len(g), 3)) * (1 + m[:, None]) + 2
    return rows[order], g[order], m[order]


@given(crossed(), st.integers(1, 3))
def test_every_level_has_the_dispersions_of_its_cells(
    made: tuple[Array, Array, Array], threads: int
) -> None:
    """Compared with loops over cells: pooled, plain mean, distance to the first level."""
    rows, groups, levels = made
    got = dose(Stored(rows), groups, levels, threads)
    cells = cells_of(rows, groups, levels)
    for m in range(levels.max() + 1):
        here = {g: x for (g, at), x in cells.items() if at == m}
        assert got.cells[m] == len(here)
        free = sum(len(x) - 1 for x in here.values())
        several = [squares(x) / (len(x) - 1) for x in here.values() if len(x) > 1]
        apart = [
            float(((x.mean(axis=0) - cells[g, 0].mean(axis=0)) ** 2).sum())
            for g, x in here.items()
            if (g, 0) in cells
        ]
        pooled = sum(map(squares, here.values())) / free if free else np.nan
        assert got.pooled[m] == pytest.approx(pooled, abs=1e-11, nan_ok=True)
        mean = np.mean(several) if several else np.nan
        assert got.mean[m] == pytest.approx(mean, abs=1e-11, nan_ok=True)
        first = np.mean(apart) if apart else np.nan
        assert got.from_first[m] == pytest.approx(first, abs=1e-11, nan_ok=True)


@given(crossed())
def test_levels_are_compared_on_the_groups_that_have_them_all(
    made: tuple[Array, Array, Array],
) -> None:
    """Compared with loops over complete groups: size-corrected dispersions, or distances to level 0."""
    rows, groups, levels = made
    got = dose(Stored(rows), groups, levels, 1)
    cells = cells_of(rows, groups, levels)
    count = levels.max() + 1
    complete = [g for g in range(groups.max() + 1) if all((g, m) in cells for m in range(count))]
    single = all(len(x) == 1 for x in cells.values())
    expected = np.empty((len(complete), count))
    for row, g in enumerate(complete):
        for m in range(count):
            x = cells[g, m]
            if single:
                expected[row, m] = ((x[0] - cells[g, 0][0]) ** 2).sum()
            else:
                expected[row, m] = squares(x) / (len(x) - 1) if len(x) > 1 else np.nan
    assert got.table.shape == expected.shape
    assert got.table == pytest.approx(expected, abs=1e-11, nan_ok=True)
    sizes = {len(cells[g, m]) for g in complete for m in range(count)}
    assert got.equal_cells == (len(sizes) == 1 and min(sizes) >= 2)


def test_the_pooled_dispersion_is_not_the_plain_mean() -> None:
    """By hand: cells of 2 and 4 rows with SS 2 and 30: pooled 32/4 = 8, plain mean (2 + 10)/2 = 6."""
    rows = np.array([[1.0], [-1], [3], [-3], [np.sqrt(6)], [-np.sqrt(6)], [5], [7]])
    groups = np.array([0, 0, 1, 1, 1, 1, 0, 1])
    levels = np.array([0, 0, 0, 0, 0, 0, 1, 1])
    got = dose(Stored(rows), groups, levels, 1)
    assert got.pooled[0] == pytest.approx(8)
    assert got.mean[0] == pytest.approx(6)
    assert np.isnan(got.pooled[1])
    assert np.isnan(got.mean[1])
    assert got.from_first.tolist() == [0, pytest.approx((25 + 49) / 2)]
    assert not got.equal_cells


def test_cells_of_one_row_are_measured_from_their_groups_first_level() -> None:
    """By hand: squared distances 0, 1, 4 in one group and 0, 9, 16 in the other."""
    rows = np.array([[0.0, 0], [1, 0], [2, 0], [5, 5], [5, 8], [9, 5]])
    got = dose(Stored(rows), np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 2] * 2), 1)
    assert got.table.tolist() == [[0, 1, 4], [0, 9, 16]]
    assert got.from_first.tolist() == [0, 5, 10]
    assert np.isnan(got.pooled).all()
    assert not got.equal_cells


@given(
    st.integers(2, 25),
    st.integers(3, 6),
    seeds,
    st.booleans(),
)
def test_pages_test_is_scipys(blocks: int, levels: int, seed: int, tied: bool) -> None:
    """Compared with scipy.stats.page_trend_test(method="asymptotic"), with and without ties."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(blocks, levels)) + rng.uniform(-0.5, 0.5) * np.arange(levels)
    if tied:
        table = np.round(table)
    expected = stats.page_trend_test(table, method="asymptotic")
    got = page(table)
    assert got.statistic == pytest.approx(expected.statistic, rel=1e-12)
    assert got.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert (got.blocks, got.levels) == (blocks, levels)
    assert got.p == pytest.approx(stats.norm.sf(got.z))


def test_pages_test_of_a_perfect_order_has_its_closed_form() -> None:
    """Published example of a table in perfect order: L = blocks * sum j^2, z = sqrt(blocks (k-1)) ."""
    for blocks, levels in ((6, 3), (4, 5)):
        got = page(np.tile(np.arange(levels, dtype=float), (blocks, 1)))
        assert got.statistic == blocks * sum(j * j for j in range(1, levels + 1))
        assert got.z == pytest.approx(np.sqrt(blocks * (levels - 1)))


@given(st.integers(5, 20), st.integers(2, 5), seeds, st.sampled_from([0.8, 0.9, 0.95]))
def test_adjacent_levels_get_paired_t_intervals_by_bonferroni(
    blocks: int, levels: int, seed: int, level: float
) -> None:
    """Compared with scipy's t interval of the paired differences at 1 - (1 - level)/(L - 1)."""
    table = np.random.default_rng(seed).gamma(2, size=(blocks, levels)).cumsum(axis=1)
    found = adjacent(table, level)
    assert len(found) == levels - 1
    for j, (value, interval) in enumerate(found):
        apart = table[:, j + 1] - table[:, j]
        each = 1 - (1 - level) / (levels - 1)
        low, high = stats.t.interval(each, blocks - 1, loc=apart.mean(), scale=stats.sem(apart))
        assert value == pytest.approx(apart.mean())
        assert interval is not None
        assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-9)
        assert (interval.level, interval.unit, interval.resamples) == (level, "group", blocks)
        assert interval.method == "bonferroni_t"


def test_bonferroni_covers_all_steps_at_once() -> None:
    """Simulated: 2,000 tables of 12 groups at 4 levels; all three steps inside in at least 95 %."""
    rng = np.random.default_rng(4)
    inside = 0
    for _ in range(2000):
        table = rng.normal(size=(12, 4)) + rng.normal(size=(12, 1)) + [0, 1, 3, 3]
        steps = adjacent(table, 0.95)
        inside += all(
            i is not None and i.low <= truth <= i.high
            for (_, i), truth in zip(steps, (1, 2, 0), strict=True)
        )
    assert 0.94 <= inside / 2000 <= 0.98


def test_few_groups_and_missing_values_leave_no_interval() -> None:
    """Compared with the documented limit of five groups; a mean is still given."""
    table = np.arange(12.0).reshape(4, 3)
    assert adjacent(table, 0.95) == [(1.0, None), (1.0, None)]
    table = np.arange(15.0).reshape(5, 3)
    table[2, 2] = np.nan
    (_, first), (value, second) = adjacent(table, 0.95)
    assert first is not None
    assert second is None
    assert np.isnan(value)
    assert all(np.isnan(v) and i is None for v, i in adjacent(np.zeros((0, 3)), 0.95))


def test_complete_groups_of_single_rows_have_no_equal_cells_of_two() -> None:
    """By hand: one group has one row at each level, another two rows at the first level only."""
    rows = np.arange(10.0).reshape(5, 2)
    got = dose(Stored(rows), np.array([0, 0, 0, 1, 1]), np.array([0, 1, 2, 0, 0]), 1)
    assert got.table.shape == (1, 3)
    assert np.isnan(
        got.table
    ).all()  # a mixture of sizes is read as dispersion, which one row lacks
    assert not got.equal_cells
