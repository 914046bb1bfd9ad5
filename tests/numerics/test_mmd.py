"""MMD against double loops, closed forms and the enumeration of every labelling."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from service.numerics import mmd
from service.numerics.compiled import stream_key
from service.numerics.design import Design
from service.numerics.dispersion import Chosen
from service.numerics.mmd import Gaussian, MmdTest, gaussian_test, linear_test
from service.numerics.moments import Units
from service.numerics.partition import partition
from service.numerics.permanova import item_squares, slabs
from service.numerics.permutation_test import PermutationTest
from service.numerics.rows import Stored
from service.numerics.shift import shift, sums

Array = NDArray[Any]
QUIET = lambda done, total: None  # noqa: E731


def kernel_matrix(x: Array, squared: float) -> Array:
    return np.array([[np.exp(-np.sum((a - b) ** 2) / (2 * squared)) for b in x] for a in x])


def by_loops(k: Array, codes: Array, owner: Array) -> float:
    """Means of a matrix over pairs of rows of different units."""
    found: dict[tuple[int, int], list[float]] = {(0, 0): [], (1, 1): [], (0, 1): []}
    for i, j in itertools.product(range(len(k)), repeat=2):
        if owner[i] != owner[j] and codes[i] <= codes[j]:
            found[codes[i], codes[j]].append(k[i, j])
    return float(np.mean(found[0, 0]) + np.mean(found[1, 1]) - 2 * np.mean(found[0, 1]))


def labellings(codes: Array, owner: Array) -> list[Array]:
    """Every way to choose which units form the second sample."""
    units = owner.max() + 1
    later = len(np.unique(owner[codes == 1]))
    chosen = itertools.combinations(range(units), later)
    return [np.isin(owner, some).astype(np.int64) for some in chosen]


def gaussian(
    x: Array, codes: Array, owner: Array, squared: float, permutations: int = 999,
    threads: int = 1, seed: int = 0,
) -> MmdTest:  # fmt: skip
    design = Design.of(codes, None, owner)
    kernel = Gaussian(
        Chosen(Stored(x), design.rows), x.mean(axis=0), squared,
        np.repeat(np.arange(design.items), design.sizes),
    )  # fmt: skip
    return gaussian_test(kernel, design, permutations, seed, 0.95, threads, QUIET)


def linear(
    x: Array, codes: Array, owner: Array, permutations: int = 999, seed: int = 0
) -> PermutationTest:
    design = Design.of(codes, None, owner)
    mean = x.mean(axis=0)
    slab = slabs(Stored(x), mean, design, 1)
    squares = item_squares(Stored(x), mean, design, slab)
    return linear_test(slab, squares, design, permutations, seed, 0.95, 2, QUIET)


def sample(seed: int, grouped: bool, n: int = 6, m: int = 7) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + m, 3)) + 10
    x[n:] += rng.normal(size=3)
    codes = np.repeat([0, 1], [n, m])
    owner = np.arange(n + m)
    if grouped:
        owner = np.concatenate([np.arange(n) % 3, 3 + np.arange(m) % 4])
    return x, codes, owner


@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([2, 5, 1024]))
def test_value_and_deletions_are_means_over_pairs(seed: int, grouped: bool, tile: int) -> None:
    """A double loop over rows, also without each unit; pairs of one unit count nowhere."""
    x, codes, owner = sample(seed, grouped)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mmd, "TILE", tile)
        found = gaussian(x, codes, owner, 2.5, permutations=19).sums
    k = kernel_matrix(x, 2.5)
    assert found.value() == pytest.approx(by_loops(k, codes, owner), abs=1e-13)
    design = Design.of(codes, None, owner)
    first = design.rows[design.starts[:-1]]
    for place, unit in enumerate(owner[first]):
        kept = owner != unit
        wanted = by_loops(k[np.ix_(kept, kept)], codes[kept], owner[kept])
        assert found.without_each()[place] == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_exact_p_values_count_every_labelling(seed: int, grouped: bool) -> None:
    """All labellings by loops over pairs, with both kernels; the linear one is x.y."""
    x, codes, owner = sample(seed, grouped, 5, 5)
    for k, found in (
        (kernel_matrix(x, 2.0), gaussian(x, codes, owner, 2.0).test),
        (-((x[:, None] - x[None]) ** 2).sum(axis=2) / 2, linear(x, codes, owner)),
    ):
        values = [by_loops(k, one, owner) for one in labellings(codes, owner)]
        seen = by_loops(k, codes, owner)
        assert (found.exact, found.permutations) == (True, len(values))
        assert found.exceedances == sum(value >= seen - 1e-10 for value in values)
        assert found.p_min == sum(value >= max(values) - 1e-10 for value in values) / len(values)


def test_with_single_rows_the_linear_kernel_is_the_dot_product() -> None:
    """Loops over x.y: the same statistic and the same exact p, whatever the origin."""
    x, codes, owner = sample(4, False, 5, 6)
    k = x @ x.T
    values = [by_loops(k, one, owner) for one in labellings(codes, owner)]
    seen = by_loops(k, codes, owner)
    parts = partition(Stored(x), Units.groups(codes), 1)
    closed = shift(sums(Stored(x), parts, codes, Units.rows(11), 1)).distance2
    assert closed == pytest.approx(seen)
    assert linear(x, codes, owner).exceedances == sum(v >= seen - 1e-9 for v in values)


@pytest.mark.parametrize("grouped", [True, False])
def test_the_mean_over_all_labellings_is_nothing(grouped: bool) -> None:
    """Closed form: unbiased, so that exchangeable sides differ by 0 on average (units of one size)."""
    x, codes, owner = sample(1, False, 4, 6)
    if grouped:
        owner = owner // 2
    values = [gaussian(x, one, owner, 1.5, 19).sums.value() for one in labellings(codes, owner)]
    assert np.mean(values) == pytest.approx(0, abs=1e-14)
    assert min(values) < 0 < max(values)


def test_two_points_have_a_closed_form() -> None:
    """2 - 2 exp(-a^2 / (2 s^2)) for samples that each repeat one point, a apart."""
    x = np.repeat([[0.0, 0.0], [3.0, 4.0]], [4, 9], axis=0)
    found = gaussian(x, np.repeat([0, 1], [4, 9]), np.arange(13), 10.0)
    assert found.sums.value() == pytest.approx(2 - 2 * np.exp(-25 / 20))
    assert found.sums.without_each() == pytest.approx(2 - 2 * np.exp(-25 / 20))
    assert found.test.p == pytest.approx(1 / 715)


@pytest.mark.parametrize("kernel", ["gaussian", "linear"])
def test_the_labelling_with_names_exchanged_is_a_tie(kernel: str) -> None:
    """Closed form: of the 20 labellings of 3 and 3 rows apart, two reach the data."""
    x = np.random.default_rng(0).normal(size=(6, 4)) * 0.1 + np.repeat([[0.0], [1.0]], 3, axis=0)
    codes, owner = np.repeat([0, 1], 3), np.arange(6)
    found = gaussian(x, codes, owner, 1.0).test if kernel == "gaussian" else linear(x, codes, owner)
    assert (found.exceedances, found.permutations) == (2, 20)


@pytest.mark.parametrize("grouped", [True, False])
def test_random_arrangements_are_counted_as_loops_count_them(grouped: bool) -> None:
    """The same arrangements, each by loops over pairs."""
    x, codes, owner = sample(2, grouped, 12, 14)
    found = gaussian(x, codes, owner, 2.0, permutations=30, seed=5).test
    design, k = Design.of(codes, None, owner), kernel_matrix(x, 2.0)
    key = stream_key(5, "mmd")
    seen, b = by_loops(k, codes, owner), 0
    for items in design.arrangements(key, 0, 30):
        labels = np.ones(len(x), np.int64)
        for item in items[: design.groups[1]]:
            labels[design.rows[design.starts[item] : design.starts[item + 1]]] = 0
        b += by_loops(k, labels, owner) >= seen - 1e-10
    assert not found.exact
    assert found.exceedances == b
    assert found.p == (b + 1) / 31
    assert found.p_min == 1 / 31


def test_threads_change_no_bit_and_passes_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with one thread and one pass over the kernel."""
    rng = np.random.default_rng(3)
    x, codes = rng.normal(size=(90, 4)), np.repeat([0, 1], [40, 50])
    monkeypatch.setattr(mmd, "TILE", 16)
    one, other = (gaussian(x, codes, np.arange(90), 4.0, 199, threads) for threads in (1, 3))
    assert one.test == other.test
    assert np.array_equal(one.sums.to_all, other.sums.to_all)
    assert np.array_equal(one.sums.to_first, other.sums.to_first)
    monkeypatch.setattr(mmd, "MOST_AT_ONCE", 30)
    assert gaussian(x, codes, np.arange(90), 4.0, 199).test == one.test


def test_the_kernel_matrix_is_never_held() -> None:
    """Traced memory: 6,000 rows have a matrix of 288 MB."""
    x = np.random.default_rng(4).normal(size=(6000, 4))
    codes = np.repeat([0, 1], 3000)
    gaussian(x[:20], codes[2990:3010], np.arange(20), 4.0, 19)
    tracemalloc.start()
    gaussian(x, codes, np.arange(6000), 4.0, 19)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6


def test_progress_rises_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted over several passes and tiles."""
    monkeypatch.setattr(mmd, "TILE", 8)
    monkeypatch.setattr(mmd, "MOST_AT_ONCE", 20)
    x, codes, _ = sample(0, False, 20, 22)
    design = Design.of(codes, None, None)
    kernel = Gaussian(Stored(x), x.mean(axis=0), 1.0, np.arange(42))
    told: list[float] = []
    gaussian_test(kernel, design, 50, 0, 0.95, 1, lambda done, total: told.append(done / total))
    assert told == sorted(told)
    assert len(told) == 18
    assert told[-1] == 1


def test_arrangements_above_the_data_are_counted_without_ties() -> None:
    """Every labelling by itself; the data, and whatever ties with them, are not above."""
    for x in (np.random.default_rng(3).normal(size=(9, 2)), np.repeat([[0.0], [1.0], [5.0]], 3, 0)):
        codes = np.repeat([0, 1], [4, 5])
        found = linear(x, codes, np.arange(9), 1000)

        def gap(first: Any, x: Array = x) -> float:
            own = np.zeros(9, bool)
            own[list(first)] = True
            inside = sum(x[side].var(axis=0, ddof=1).sum() / side.sum() for side in (own, ~own))
            return float(np.sum((x[own].mean(axis=0) - x[~own].mean(axis=0)) ** 2) - inside)

        values = np.array([gap(first) for first in itertools.combinations(range(9), 4)])
        assert found.exact
        assert found.above == np.count_nonzero(values > gap(range(4)) + 1e-9)


@pytest.mark.parametrize("kinds", [None, 3], ids=["continuous", "three kinds of rows"])
def test_exchangeable_sides_lie_below_all_arrangements_no_more_often_than_their_rank_says(
    kinds: int | None,
) -> None:
    """Simulated: 1 / (B + 1) at most, also where most rows are equal; reached without ties."""
    runs, permutations, hits = 2000, 19, 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(16, 3)) if kinds is None else rng.integers(kinds, size=(16, 1)) * 1.0
        if np.ptp(x) == 0:
            continue
        found = linear(x, np.repeat([0, 1], 8), np.arange(16), permutations, seed)
        hits += found.above == permutations
    assert hits <= stats.binom.ppf(0.9999, runs, 1 / (permutations + 1))
    if kinds is None:
        assert hits >= stats.binom.ppf(0.0001, runs, 1 / (permutations + 1))
