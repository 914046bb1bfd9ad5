"""Dispersion F and its test against scikit-bio, scipy's minimiser and brute force on the same draws."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, stats
from scipy.spatial.distance import pdist, squareform
from skbio import DistanceMatrix
from skbio.stats.distance import permdisp

from service.numerics.compiled import stream_key
from service.numerics.design import Design
from service.numerics.dispersion import (
    anova_f,
    dispersion_test,
    distances,
    median_distances,
    residuals,
)
from service.numerics.moments import Units
from service.numerics.partition import partition
from service.numerics.rows import Stored

Array = NDArray[Any]
seeds = st.integers(0, 10**6)


def quiet(done: int, total: int) -> None:
    pass


def centre_f(rows: Array, codes: Array) -> float:
    """F of corrected distances to group means by the package: groups of two rows or more."""
    groups = Units.groups(codes)
    errors = residuals(Stored(rows), partition(Stored(rows), groups, 1), codes)
    away = distances(errors, groups, 1)
    kept = groups.counts > 1
    starts = np.concatenate([[0], np.cumsum(groups.counts[kept])])
    return float(anova_f(away[np.repeat(kept, groups.counts)][None], starts)[0])


def median_f(rows: Array, codes: Array) -> float:
    groups = Units.groups(codes)
    away = median_distances(Stored(rows), groups)
    assert away is not None
    kept = groups.counts > 1
    starts = np.concatenate([[0], np.cumsum(groups.counts[kept])])
    return float(anova_f(away[np.repeat(kept, groups.counts)][None], starts)[0])


def plain_distances(rows: Array, codes: Array) -> list[Array]:
    """Corrected distances to the mean, group by group, singletons left out."""
    found = []
    for g in np.unique(codes):
        own = rows[codes == g]
        if len(own) > 1:
            away = np.linalg.norm(own - own.mean(axis=0), axis=1)
            found.append(away * np.sqrt(len(own) / (len(own) - 1)))
    return found


def skbio_f(rows: Array, codes: Array, test: str) -> float:
    matrix = DistanceMatrix(squareform(pdist(rows)), [str(i) for i in range(len(rows))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = permdisp(
            matrix, [str(c) for c in codes], test=test, permutations=0, dimensions=len(rows) - 1
        )
    return float(found["test statistic"])


@st.composite
def labelled_rows(draw: st.DrawFn) -> tuple[Array, Array]:
    """Rows whose groups differ in spread, singletons among them."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=2, max_size=5))
    assume(sum(size > 1 for size in sizes) > 1 and max(sizes) > 2)
    codes = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(draw(seeds))
    rows = rng.normal(size=(len(codes), draw(st.integers(2, 17))))
    rows *= rng.uniform(0.5, 2, size=len(sizes))[codes, None]
    order = rng.permutation(len(codes))
    return rows[order] + rng.normal(size=rows.shape[1]), codes[order]


@given(labelled_rows())
def test_f_is_the_anova_of_corrected_distances_to_group_means(made: tuple[Array, Array]) -> None:
    """Compared with scipy.stats.f_oneway on distances from numpy, groups of two rows or more."""
    rows, codes = made
    expected = stats.f_oneway(*plain_distances(rows, codes)).statistic
    assume(np.isfinite(expected) and expected < 1e8)
    assert centre_f(rows, codes) == pytest.approx(float(expected), rel=1e-7)


@settings(max_examples=15)
@given(st.integers(2, 4), st.integers(3, 7), st.integers(1, 8), seeds)
def test_groups_of_one_size_give_scikit_bios_permdisp(
    groups: int, size: int, d: int, seed: int
) -> None:
    """Compared with skbio permdisp 0.7.4 at full dimension: the size factor then cancels."""
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(np.arange(groups), size))
    rows = rng.normal(size=(len(codes), d)) * (1 + codes[:, None])
    assert centre_f(rows, codes) == pytest.approx(skbio_f(rows, codes, "centroid"), rel=1e-6)
    if d > 1:
        assert median_f(rows, codes) == pytest.approx(skbio_f(rows, codes, "median"), rel=1e-3)


def test_all_dimensions_count_not_the_first_ten_axes() -> None:
    """Published: F over 40 dimensions is 14.944399 by centroid (not 9.97) and 13.870100 by median."""
    r = np.random.default_rng(41)
    rows = r.normal(size=(60, 40))
    rows[30:] *= 1.15
    codes = np.repeat([0, 1], 30)
    assert centre_f(rows, codes) == pytest.approx(14.944399, rel=1e-6)
    assert median_f(rows, codes) == pytest.approx(13.870100, rel=1e-5)
    away = median_distances(Stored(rows), Units.groups(codes))
    assert away is not None
    assert away[:30].mean() == pytest.approx(6.324946, rel=1e-6)
    assert away[30:].mean() == pytest.approx(7.038397, rel=1e-6)


def test_singletons_do_not_differ_in_spread() -> None:
    """Published (vegan#606): without the four singletons F is .29729355, by median .018350657."""
    rows = np.random.default_rng(21).normal(size=(10, 3))
    codes = np.array([0, 0, 0, 1, 1, 1, 2, 3, 4, 5])
    x = partition(Stored(rows), Units.groups(codes), 1)
    assert x.ss_total == pytest.approx(34.115783, rel=1e-6)
    assert median_f(rows, codes) == pytest.approx(0.018350657, rel=1e-4)
    assert centre_f(rows, codes) == pytest.approx(0.29729355, rel=1e-6)


@given(labelled_rows())
def test_the_spatial_median_has_the_smallest_sum_of_distances(made: tuple[Array, Array]) -> None:
    """Compared with scipy.optimize on the sum of distances, group by group."""
    rows, codes = made
    groups = Units.groups(codes)
    away = median_distances(Stored(rows), groups)
    assert away is not None
    for g, (low, high) in enumerate(zip(groups.starts[:-1], groups.starts[1:], strict=True)):
        own = rows[codes == g]

        def total(centre: Array, own: Array = own) -> float:
            return float(np.linalg.norm(own - centre, axis=1).sum())

        starts = [own.mean(axis=0), *own]
        least = min(total(start) for start in starts)
        for start in starts[:2]:
            found = optimize.minimize(total, start + 1e-6, method="Powell")
            least = min(least, float(found.fun))
        assert away[low:high].sum() <= least * (1 + 1e-7) + 1e-12


@pytest.mark.parametrize("at", ["in the middle", "where two rows lie", "on a line"])
def test_the_spatial_median_may_lie_on_a_row(at: str) -> None:
    """Closed forms: the centre of a cross, the heavier of two points, the median of a line."""
    rows, expected = {
        "in the middle": ([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], 4.0),
        "where two rows lie": ([[0, 0], [0, 0], [0, 0], [3, 4], [3, 4]], 10.0),
        "on a line": ([[0, 0], [1, 0], [2, 0], [10, 0], [30, 0]], 2 + 1 + 8 + 28.0),
    }[at]
    away = median_distances(Stored(np.array(rows, dtype=float)), Units.groups(np.zeros(5, int)))
    assert away is not None
    assert away.sum() == pytest.approx(expected, rel=1e-6)


def test_spatial_medians_stop_at_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with the documented limit on elements."""
    monkeypatch.setattr("service.numerics.dispersion.MEDIAN_ELEMENTS", 20)
    codes = np.array([0, 0, 1, 1, 1])
    assert median_distances(Stored(np.eye(5)), Units.groups(codes)) is None
    assert median_distances(Stored(np.eye(5)[:, :4]), Units.groups(codes)) is not None


def exchangeable(rows: Array, codes: Array) -> Array:
    """Residuals times sqrt(n_g / (n_g - 1)) by the definition."""
    out = np.empty_like(rows)
    for g in np.unique(codes):
        own = rows[codes == g]
        factor = np.sqrt(len(own) / max(len(own) - 1, 1))
        out[codes == g] = (own - own.mean(axis=0)) * factor
    return out


def prepare(rows: Array, codes: Array, strata: Array | None) -> tuple[Any, Design, Array]:
    source = Stored(rows)
    parts = partition(source, Units.groups(codes), 1)
    errors = residuals(source, parts, codes).of(np.arange(len(rows)))
    return errors, Design.of(codes, strata, None), exchangeable(rows, codes)


@settings(max_examples=20)
@given(
    st.lists(st.integers(2, 8), min_size=2, max_size=4),
    st.integers(1, 13),
    seeds,
    st.booleans(),
)
def test_the_p_counts_arrangements_of_residual_vectors(
    sizes: list[int], d: int, seed: int, stratified: bool
) -> None:
    """Compared with numpy: residual vectors dealt anew, centres and F recomputed, the same draws."""
    assume(max(sizes) > 2)  # pairs alone lie equally far from their means
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    rows = rng.normal(size=(len(codes), d)) * rng.uniform(0.5, 2, size=len(sizes))[codes, None]
    rows += 5 * rng.normal(size=(len(sizes), 1))[codes]
    strata = rng.integers(0, 2, size=len(codes)) if stratified else None
    assume(strata is None or any(len(set(codes[strata == s])) > 1 for s in np.unique(strata)))
    errors, design, plain = prepare(rows, codes, strata)
    assert errors.take(slice(None)) == pytest.approx(plain, abs=1e-12)
    permutations = 60
    got = dispersion_test(errors, design, permutations, seed, 0.95, 2, quiet)
    exact = design.labellings <= permutations
    drawn = (
        np.concatenate([*design.all_arrangements(13)])
        if exact
        else design.arrangements(stream_key(seed, "dispersion"), 0, permutations)
    )
    seen = stats.f_oneway(*plain_distances(rows, codes)).statistic
    labels = np.repeat(np.arange(len(sizes)), np.diff(design.groups))
    observed = sorted(tuple(sorted(design.places[labels == g])) for g in range(len(sizes)))
    reached = swapped = 0
    for arrangement in drawn:
        dealt = design.rows[arrangement]  # places in group order
        f = stats.f_oneway(*plain_distances(plain[dealt], labels)).statistic
        if sorted(tuple(sorted(arrangement[labels == g])) for g in range(len(sizes))) == observed:
            swapped += 1
        else:
            reached += f >= seen * (1 - 1e-9)
    assert (got.permutations, got.exact) == (len(drawn), exact)
    themselves = swapped if exact else 0  # by any names of groups
    assert reached + themselves <= got.exceedances <= reached + swapped
    assert got.p_min == (swapped / len(drawn) if exact else 1 / (permutations + 1))
    b = got.exceedances
    assert got.p == (b / len(drawn) if exact else (b + 1) / (permutations + 1))


@pytest.mark.parametrize("d", [3, 32, 128])
def test_groups_of_unequal_size_and_equal_spread_are_not_told_apart(d: int) -> None:
    """Simulated: 150 true nulls of 6, 8 and 40 rows; correcting the data twice rejects up to .78."""
    rng = np.random.default_rng(1)
    codes = np.repeat([0, 1, 2], [6, 8, 40])
    rejected = 0
    for seed in range(150):
        errors, design, _ = prepare(rng.normal(size=(54, d)) + 3 * codes[:, None], codes, None)
        rejected += dispersion_test(errors, design, 99, seed, 0.95, 1, quiet).p <= 0.05
    assert stats.binomtest(rejected, 150, 0.05).pvalue > 1e-3


def test_the_p_is_that_of_all_arrangements_when_they_are_few() -> None:
    """Compared with full enumeration of the 70 ways to deal eight residuals to two groups."""
    rng = np.random.default_rng(8)
    codes = np.repeat([0, 1], 4)
    rows = rng.normal(size=(8, 5)) * np.where(codes, 3, 1)[:, None]
    errors, design, plain = prepare(rows, codes, None)
    got = dispersion_test(errors, design, 99, 0, 0.95, 1, quiet)

    def f(first: tuple[int, ...]) -> float:
        chosen = np.isin(np.arange(8), first)
        return float(stats.f_oneway(*plain_distances(plain, chosen.astype(int))).statistic)

    values = [f(first) for first in itertools.combinations(range(8), 4)]
    seen = f((0, 1, 2, 3))
    assert (got.exact, got.permutations) == (True, 70)
    assert got.exceedances == sum(value >= seen * (1 - 1e-9) for value in values)
    assert got.exceedances % 2 == 0  # swapped names tie


@pytest.mark.parametrize("single_precision", [False, True])
def test_ties_under_swapped_names_count(
    single_precision: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed form: two groups of six, one ten times wider: 2 of the 924 arrangements reach the data."""
    if single_precision:
        monkeypatch.setattr("service.numerics.permanova.EXACT_BYTES", 64)
    rng = np.random.default_rng(3)
    codes = np.repeat([0, 1], 6)
    rows = rng.normal(size=(12, 40)) * np.where(codes, 10, 1)[:, None]
    errors, design, _ = prepare(rows, codes, None)
    got = dispersion_test(errors, design, 924, 0, 0.95, 2, quiet)
    assert (got.exact, got.exceedances) == (True, 2)
    random = dispersion_test(errors, design, 923, 1, 0.95, 2, quiet)
    swaps = 0
    for row in design.arrangements(stream_key(1, "dispersion"), 0, 923):
        swaps += set(row[:6].tolist()) in ({*range(6)}, {*range(6, 12)})
    assert (random.exact, random.exceedances) == (False, swaps)


def test_threads_share_the_work_without_changing_it() -> None:
    """Compared with one thread, bit for bit."""
    rng = np.random.default_rng(5)
    codes = np.arange(60) % 5
    errors, design, _ = prepare(rng.normal(size=(60, 21)), codes, None)
    one = dispersion_test(errors, design, 301, 4, 0.95, 1, quiet)
    assert one == dispersion_test(errors, design, 301, 4, 0.95, 2, quiet)
    assert one == dispersion_test(errors, design, 301, 4, 0.95, 3, quiet)


def test_an_anova_over_many_rows_of_values_is_scipys() -> None:
    """Compared with scipy.stats.f_oneway row by row."""
    rng = np.random.default_rng(0)
    values, starts = rng.gamma(2, size=(7, 12)), np.array([0, 2, 7, 12])
    for row, f in zip(values, anova_f(values, starts), strict=True):
        assert f == pytest.approx(stats.f_oneway(row[:2], row[2:7], row[7:]).statistic, rel=1e-12)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_neither_scale_nor_place_changes_the_test(scale: float) -> None:
    """Compared with itself after a similarity: the same F and the same count."""
    rng = np.random.default_rng(6)
    codes = np.repeat([0, 1, 2], [6, 8, 12])
    rows = rng.normal(size=(26, 9)) * (1 + 0.3 * codes[:, None])
    turn = stats.ortho_group(9, seed=1).rvs()
    moved = scale * (rows @ turn + 3)
    assert centre_f(moved, codes) == pytest.approx(centre_f(rows, codes), rel=1e-6)
    assert median_f(moved, codes) == pytest.approx(median_f(rows, codes), rel=1e-5)
    one, other = (
        dispersion_test(*prepare(x, codes, None)[:2], 199, 0, 0.95, 1, quiet) for x in (rows, moved)
    )
    assert one.exceedances == other.exceedances
