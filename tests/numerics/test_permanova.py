"""PERMANOVA against scikit-bio, distance matrices, full enumeration and brute force."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import pdist, squareform
from scipy.stats import binomtest
from skbio import DistanceMatrix
from skbio.stats.distance import permanova

from service.numerics.compiled import stream_key
from service.numerics.design import Design
from service.numerics.moments import Units
from service.numerics.partition import Partition, observed, partition
from service.numerics.permanova import (
    BetweenTest,
    PermutationTest,
    Slabs,
    between_statistics,
    between_test,
    expected_between,
    slabs,
)
from service.numerics.rows import Directions, Stored

Array = NDArray[Any]
seeds = st.integers(0, 10**6)


def dense(labels: Any) -> Array:
    return np.unique(np.asarray(labels), return_inverse=True)[1].astype(np.int64)


@dataclass
class Prepared:
    """What the permutation test takes."""

    x: Slabs
    squares: Array
    design: Design
    parts: Partition

    def test(self, permutations: int, seed: int = 0, threads: int = 1) -> BetweenTest:
        return between_test(
            self.x, self.squares, self.design, self.parts.ss_total, permutations, seed, 0.95,
            threads, lambda done, total: None,
        )  # fmt: skip


def prepare(
    rows: Array,
    groups: Any,
    strata: Any = None,
    units: Any = None,
) -> Prepared:
    source, codes = Stored(np.asarray(rows, dtype=np.float64)), dense(groups)
    design = Design.of(
        codes, None if strata is None else dense(strata), None if units is None else dense(units)
    )
    parts = partition(source, Units.groups(codes), 1)
    centred = source.take(slice(None))[design.rows] - parts.mean
    squares = np.add.reduceat((centred**2).sum(axis=1), design.starts[:-1])
    return Prepared(slabs(source, parts.mean, design, 1), squares, design, parts)


def plain(rows: Array, codes: Array) -> dict[str, float]:
    """Sums of squares, F and Anderson's F2 from the definitions, group by group."""
    rows = np.asarray(rows, dtype=np.float64)
    n, groups = len(rows), np.unique(codes)
    total = ((rows - rows.mean(axis=0)) ** 2).sum()
    within, pooled = 0.0, 0.0
    for g in groups:
        own = rows[codes == g]
        w = ((own - own.mean(axis=0)) ** 2).sum()
        within += w
        pooled += (1 - len(own) / n) * (w / (len(own) - 1) if len(own) > 1 else np.nan)
    between = total - within
    return {
        "total": total,
        "within": within,
        "between": between,
        "f": between / (len(groups) - 1) / (within / (n - len(groups))),
        "f2": between / pooled,
    }


def by_distances(rows: Array, codes: Array) -> float:
    """F from squared distances alone: SS is the mean of the squares inside a set over its size."""
    d2 = squareform(pdist(rows)) ** 2
    n, groups = len(rows), np.unique(codes)
    total = d2.sum() / (2 * n)
    within = sum(
        d2[np.ix_(codes == g, codes == g)].sum() / (2 * (codes == g).sum()) for g in groups
    )
    return float((total - within) / (len(groups) - 1) / (within / (n - len(groups))))


def relabelled(design: Design, arrangement: Array) -> Array:
    """Labels of rows under an arrangement."""
    of_item = np.empty(design.items, int)
    of_item[arrangement] = np.repeat(np.arange(len(design.groups) - 1), np.diff(design.groups))
    out = np.empty(len(design.rows), int)
    out[design.rows] = np.repeat(of_item, design.sizes)
    return out


@st.composite
def labelled_rows(draw: st.DrawFn, least: int = 4, most: int = 24) -> tuple[Array, Array]:
    """Rows and unbalanced groups, singletons among them."""
    n = draw(st.integers(least, most))
    groups = draw(st.integers(2, min(n - 1, 6)))
    rest = draw(st.lists(st.integers(0, groups - 1), min_size=n - groups, max_size=n - groups))
    codes = np.array([*range(groups), *rest])
    rng = np.random.default_rng(draw(seeds))
    rows = rng.normal(size=(n, draw(st.integers(1, 19)))) + rng.normal(size=(groups, 1))[codes]
    return rows, rng.permutation(codes)


def skbio_f(rows: Array, codes: Array) -> float:
    matrix = DistanceMatrix(squareform(pdist(rows)), [str(i) for i in range(len(rows))])
    found = permanova(matrix, [str(c) for c in codes], permutations=0)
    return float(found["test statistic"])


@given(labelled_rows())
def test_f_is_scikit_bios_and_that_of_distances(made: tuple[Array, Array]) -> None:
    """Compared with skbio.stats.distance.permanova 0.7.4 and with the distance form, to 1e-10."""
    rows, codes = made
    f = float(observed(partition(Stored(rows), Units.groups(codes), 1)).f)
    assert f == pytest.approx(skbio_f(rows, codes), rel=1e-10)
    assert f == pytest.approx(by_distances(rows, codes), rel=1e-10)
    assert f == pytest.approx(plain(rows, codes)["f"], rel=1e-10)


@given(labelled_rows(), seeds, st.booleans())
def test_each_arrangement_has_the_statistics_of_its_labels(
    made: tuple[Array, Array], seed: int, with_units: bool
) -> None:
    """Compared with SS_B and F2 from the definitions on the relabelled rows."""
    rows, codes = made
    rng = np.random.default_rng(seed)
    units = None
    if with_units:  # two or three units in each group, of any size
        units = codes * 3 + rng.integers(0, 3, size=len(codes))
        assume(len(np.unique(units)) > len(np.unique(codes)))
    strata = None if with_units else rng.integers(0, 2, size=len(codes))
    assume(strata is None or any(len(set(codes[strata == s])) > 1 for s in np.unique(strata)))
    made_ready = prepare(rows, codes, strata, units)
    design = made_ready.design
    drawn = design.arrangements(stream_key(seed, "permutation"), 0, 6)
    between, pooled = between_statistics(made_ready.x, made_ready.squares, design, drawn)
    for arrangement, ss, denominator in zip(drawn, between, pooled, strict=True):
        expected = plain(rows, relabelled(design, arrangement))
        assert ss == pytest.approx(expected["between"], rel=1e-9, abs=1e-9 * expected["total"])
        if np.isnan(expected["f2"]):
            assert np.isnan(denominator)
        else:
            assert ss / denominator == pytest.approx(expected["f2"], rel=1e-8, abs=1e-9)


@given(labelled_rows(least=6, most=14), seeds, st.booleans())
def test_both_p_values_count_the_arrangements_that_reach_the_data(
    made: tuple[Array, Array], seed: int, stratified: bool
) -> None:
    """Compared with a recount in numpy over the same arrangements, and scipy's binomial interval."""
    rows, codes = made
    rng = np.random.default_rng(seed)
    strata = rng.integers(0, 2, size=len(codes)) if stratified else None
    assume(strata is None or any(len(set(codes[strata == s])) > 1 for s in np.unique(strata)))
    ready = prepare(rows, codes, strata)
    permutations = 99
    got = ready.test(permutations, seed, threads=2)
    design = ready.design
    if design.labellings <= permutations:
        drawn = np.concatenate([*design.all_arrangements(7)])
    else:
        drawn = design.arrangements(stream_key(seed, "permutation"), 0, permutations)
    values = [plain(rows, relabelled(design, a)) for a in drawn]
    seen = plain(rows, codes)
    slack = 1e-9 * seen["total"]
    b = sum(v["between"] >= seen["between"] - slack for v in values)
    exact = design.labellings <= permutations
    assert got.f.exceedances == b
    assert (got.f.exact, got.f.permutations) == (exact, len(drawn))
    assert got.f.p == (b / len(drawn) if exact else (b + 1) / (permutations + 1))
    most = max(v["between"] for v in values)
    tied = sum(v["between"] >= most - slack for v in values)  # the arrangement of the least p
    assert got.f.p >= got.f.p_min == (tied / len(drawn) if exact else 1 / (permutations + 1))
    rounding = 2.02 * 2.0**-24 * seen["total"]  # float32 rows propose
    mean = np.mean([v["between"] for v in values])
    assert got.mean_ss_between == pytest.approx(mean, abs=rounding, rel=1e-9)
    if (np.bincount(codes) == 1).any():
        assert got.f2 is None
    else:
        assert got.f2 is not None
        assert got.f2.exceedances == sum(v["f2"] >= seen["f2"] * (1 - 1e-9) for v in values)
    if exact:
        assert (got.f.low, got.f.high) == (None, None)
    else:
        interval = binomtest(b, permutations).proportion_ci(0.95, method="exact")
        assert (got.f.low, got.f.high) == pytest.approx((interval.low, interval.high), abs=1e-9)


def p01() -> tuple[Array, Array]:
    r = np.random.default_rng(4)
    return r.normal(size=(9, 4)) * 0.1 + np.repeat(np.eye(4)[:3], 3, axis=0), dense(
        list("aaabbbccc")
    )


def test_tied_permutations_are_not_lost_to_rounding() -> None:
    """Published (vegan#132): exactly 6 of 1,680 arrangements tie, F = 63.22166, R2 = .95469760."""
    rows, codes = p01()
    ready = prepare(rows, codes)
    seen = observed(ready.parts)
    assert float(seen.f) == pytest.approx(63.22166, rel=1e-6)
    assert float(seen.r2) == pytest.approx(0.95469760, rel=1e-7)
    exact = ready.test(1680)
    assert (exact.f.exceedances, exact.f.permutations, exact.f.exact) == (6, 1680, True)
    assert exact.f.p == 6 / 1680
    assert exact.f.p_min == 6 / 1680
    assert exact.f2 is not None
    assert exact.f2.exceedances == 6


def test_monte_carlo_finds_the_ties_as_often_as_they_are() -> None:
    """Published: with B = 99,999 p lies in [.0030, .0042]; the same kernel, not enumerated."""
    rows, codes = p01()
    ready = prepare(rows, codes)
    drawn = ready.design.arrangements(stream_key(0, "permutation"), 0, 99_999)
    between, _ = between_statistics(ready.x, ready.squares, ready.design, drawn)
    seen = ready.parts.ss_total - ready.parts.ss_within
    b = int(np.count_nonzero(between >= seen - 1e-9 * ready.parts.ss_total))
    labels = np.array([relabelled(ready.design, a) for a in drawn[:20_000]])
    own = (labels[:, :3].std(axis=1) == 0) & (labels[:, 3:6].std(axis=1) == 0)
    first = between[:20_000] >= seen - 1e-9 * ready.parts.ss_total
    assert (first == (own & (labels[:, 6:].std(axis=1) == 0))).all()  # exactly the name swaps
    assert 0.0030 <= (b + 1) / 100_000 <= 0.0042
    got = ready.test(1679)
    assert not got.f.exact
    assert got.f.exceedances == np.count_nonzero(
        between[:1679] >= seen - 1e-9 * ready.parts.ss_total
    )


@pytest.mark.parametrize("single_precision", [False, True])
@pytest.mark.parametrize("scatter", [1e-1, 1e-3, 1e-4, 1e-6])
def test_ties_under_swapped_names_count_however_tight_the_groups(
    scatter: float, single_precision: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with a count of the arrangements that only swap names; also over float32 slabs."""
    if single_precision:
        monkeypatch.setattr("service.numerics.permanova.EXACT_BYTES", 64)
    r = np.random.default_rng(4)
    rows = np.repeat(r.normal(size=(3, 40)), 3, axis=0)
    rows += scatter * r.normal(size=rows.shape)
    ready = prepare(rows, np.repeat([0, 1, 2], 3))
    assert ready.x.dtype == (np.float32 if single_precision else np.float64)
    for seed in range(6):
        drawn = ready.design.arrangements(stream_key(seed, "permutation"), 0, 1600)
        blocks = np.sort(np.array([relabelled(ready.design, a) for a in drawn]).reshape(-1, 3, 3))
        swaps = int((blocks[:, :, 0] == blocks[:, :, 2]).all(axis=1).sum())
        got = ready.test(1600, seed)
        assert got.f.exceedances == swaps
        assert got.f2 is not None
        assert got.f2.exceedances == swaps


def test_a_p_is_never_below_the_smallest_possible() -> None:
    """Closed form: 1/(B + 1), or 2/N where all N labellings are looked at and two names tie."""
    rows = np.vstack([np.eye(12)[:6] * 0.01, np.eye(12)[6:] * 0.01 + 9])
    for permutations in (19, 99, 461):
        got = prepare(rows, np.repeat([0, 1], 6)).test(permutations).f
        assert got.p >= 1 / (permutations + 1) == got.p_min
        assert not got.exact
    exact = prepare(rows, np.repeat([0, 1], 6)).test(462 * 2).f
    assert (exact.p, exact.p_min, exact.exact) == (2 / 924, 2 / 924, True)
    assert PermutationTest.of(0, 999, False, 0.95).p == 0.001
    assert PermutationTest.of(0, 999, False, 0.95).low == 0
    assert PermutationTest.of(0, 999, False, 0.95).high == pytest.approx(1 - 0.025 ** (1 / 999))


@given(labelled_rows(), seeds)
def test_the_same_counts_in_float32_slabs(made: tuple[Array, Array], seed: int) -> None:
    """Compared with the float64 slabs on the same arrangements: sums agree to float32's rounding."""
    rows, codes = made
    ready = prepare(rows, codes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.numerics.permanova.EXACT_BYTES", 8)
        short = prepare(rows, codes)
    assert (ready.x.dtype, short.x.dtype) == (np.float64, np.float32)
    assert (short.x == ready.x.astype(np.float32)).all()
    drawn = ready.design.arrangements(stream_key(seed, "permutation"), 0, 5)
    one, _ = between_statistics(ready.x, ready.squares, ready.design, drawn)
    other, _ = between_statistics(short.x, short.squares, short.design, drawn)
    assert other == pytest.approx(one, rel=1e-5, abs=1e-5 * ready.parts.ss_total)


def enumerated_between(rows: Array, codes: Array, strata: Array, units: Array) -> float:
    """Mean SS_B over every distinct labelling, by itertools."""
    names = np.unique(units)
    of = {u: (int(codes[units == u][0]), int(strata[units == u][0])) for u in names}
    parts = []
    for s in np.unique(strata):
        inside = [u for u in names if of[u][1] == s]
        parts.append(
            [
                dict(zip(inside, labels, strict=True))
                for labels in set(itertools.permutations([of[u][0] for u in inside]))
            ]
        )
    values = []
    for combined in itertools.product(*parts):
        merged = {u: g for part in combined for u, g in part.items()}
        values.append(plain(rows, np.array([merged[u] for u in units]))["between"])
    return float(np.mean(values))


@settings(max_examples=15)
@given(
    st.lists(st.integers(0, 2), min_size=5, max_size=7),
    st.lists(st.integers(0, 1), min_size=7, max_size=7),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    seeds,
)
def test_the_expected_sum_of_squares_is_the_mean_over_all_labellings(
    labels: list[int], strata: list[int], sizes: tuple[int, int], seed: int
) -> None:
    """Compared with full enumeration, strata with units of their own size; and without strata."""
    rng = np.random.default_rng(seed)
    by = np.array(strata[: len(labels)])
    repeats = np.array(sizes)[by]
    codes, stratum = np.repeat(labels, repeats), np.repeat(by, repeats)
    units = np.repeat(np.arange(len(labels)), repeats)
    order = rng.permutation(len(codes))
    codes, stratum, units = dense(codes[order]), dense(stratum[order]), units[order]
    several = [len(set(codes[stratum == s])) > 1 for s in np.unique(stratum)]
    assume(any(several))
    rows = rng.normal(size=(len(codes), 11)) + 2 * stratum[:, None] + rng.normal(size=11)
    ready = prepare(rows, codes, stratum, units)
    got = expected_between(ready.x, ready.design)
    assert got == pytest.approx(enumerated_between(rows, codes, stratum, units), rel=1e-10)
    exact = ready.test(10**5)
    assert exact.f.exact
    assert exact.mean_ss_between == pytest.approx(got, rel=1e-10)

    single = prepare(rows, codes)
    expected = (len(np.unique(codes)) - 1) / (len(codes) - 1) * single.parts.ss_total
    assert expected_between(single.x, single.design) == pytest.approx(expected, rel=1e-11)


def test_units_of_different_sizes_have_no_closed_form() -> None:
    """Compared with the enumerated mean, which (G-1)/(n-1) SS_T is not."""
    rng = np.random.default_rng(2)
    units = np.array([0, 0, 0, 1, 2, 2, 3])
    codes = np.array([0, 0, 0, 0, 1, 1, 1])
    ready = prepare(rng.normal(size=(7, 3)), codes, None, units)
    assert expected_between(ready.x, ready.design) is None
    sizes = {
        tuple(r) for a in ready.design.all_arrangements(9) for r in ready.design.rows_of_groups(a)
    }
    assert sizes == {(3.0, 4.0), (4.0, 3.0), (5.0, 2.0), (2.0, 5.0)}
    mean = enumerated_between(ready_rows := rng.normal(size=(7, 3)), codes, np.zeros(7), units)
    assert prepare(ready_rows, codes, None, units).test(99).mean_ss_between == pytest.approx(mean)


@pytest.mark.parametrize(
    ("name", "f", "expected_mean"),
    [("minilm", 42.19647791, 9.622217714), ("e5small_q4", None, None)],
)
def test_the_restricted_null_of_clinc_is_f_of_nine_not_one(
    name: str,
    f: float | None,
    expected_mean: float | None,
    rows: Callable[[str], Array],
    column: Callable[[str, str], list[str]],
    reference: dict[str, Any],
) -> None:
    """Stored readings, 99 permutations of intents inside domains: mean F 9.62; and by our own."""
    stored = reference["clinc150"][name]["perm_intent_restricted_to_domain"]
    intents, domains = (dense(column("clinc150", c)) for c in ("intent", "domain"))
    source = Directions(rows(f"clinc150/{name}"))
    design = Design.of(intents, domains, None)
    parts = partition(source, Units.groups(intents), 2)
    x = slabs(source, parts.mean, design, 2)
    expected = expected_between(x, design)
    assert expected is not None

    def as_f(between: float) -> float:
        return between / 59 / ((parts.ss_total - between) / 2940)

    assert float(observed(parts).f) == pytest.approx(stored["F"], rel=1e-8)
    assert as_f(expected) == pytest.approx(stored["F_perm_mean"], rel=2e-3)
    if expected_mean is not None:
        assert round(as_f(expected), 2) == 9.62 == round(expected_mean, 2)
        assert stored["F"] == f
    squares = np.zeros(3000)
    for slab in x:
        squares += np.einsum("ij,ij->i", slab, slab)
    got = between_test(
        x, squares, design, parts.ss_total, 199, 1, 0.95, 2, lambda done, total: None
    )
    assert as_f(got.mean_ss_between) == pytest.approx(as_f(expected), rel=1e-3)
    assert got.mean_ss_between == pytest.approx(expected, rel=1e-3)
    assert (got.f.exceedances, got.f.p) == (0, 1 / 200)
    unrestricted = Design.of(intents, None, None)
    free = expected_between(slabs(source, parts.mean, unrestricted, 1), unrestricted)
    assert free is not None
    assert as_f(free) == pytest.approx(1, abs=1e-10)  # 59/2999 SS_T


@pytest.mark.parametrize("col", ["arch", "letter_bin", "hash_bin"])
@pytest.mark.parametrize("name", ["minilm", "e5small_q4"])
def test_labels_of_debian_packages_behave_as_in_the_stored_readings(
    name: str,
    col: str,
    rows: Callable[[str], Array],
    column: Callable[[str, str], list[str]],
    reference: dict[str, Any],
) -> None:
    """Stored readings of 199 permutations by numpy: mean null F, and the p of labels with no effect."""
    source = Directions(rows(f"debian_pairs/{name}_doc"))
    codes, sections = (dense(column("debian_pairs", c)) for c in (col, "section"))
    parts = partition(source, Units.groups(codes), 2)
    n, groups = parts.n, len(parts.counts)
    for strata, key in ((None, "unrestricted"), (sections, "within_section")):
        stored = reference["debian_pairs"][name][f"perm_{col}_{key}"]
        design = Design.of(codes, strata, None)
        x = slabs(source, parts.mean, design, 2)
        expected = expected_between(x, design)
        assert expected is not None
        f = expected / (groups - 1) / ((parts.ss_total - expected) / (n - groups))
        assert f == pytest.approx(stored["F_perm_mean"], rel=0.03)
        squares = (source.take(design.rows) - parts.mean) ** 2
        got = between_test(
            x,
            squares.sum(axis=1),
            design,
            parts.ss_total,
            999,
            3,
            0.95,
            2,
            lambda done, total: None,
        )
        error = np.sqrt(got.f.p * (1 - got.f.p) * (1 / 199 + 1 / 399))
        assert got.f.p == pytest.approx(stored["p"], abs=1 / 199 + 4 * error)


def test_threads_share_the_work_without_changing_it() -> None:
    """Compared with one thread, bit for bit."""
    rng = np.random.default_rng(5)
    ready = prepare(rng.normal(size=(70, 21)), np.arange(70) % 7, np.arange(70) % 2)
    one = ready.test(501, 9)
    assert one == ready.test(501, 9, threads=2) == ready.test(501, 9, threads=3)
    assert one != ready.test(501, 10)


def test_progress_reaches_the_number_of_permutations() -> None:
    """Compared with the definition: rising, and complete at the end."""
    rng = np.random.default_rng(5)
    ready = prepare(rng.normal(size=(20, 3)), np.arange(20) % 4)
    told: list[tuple[int, int]] = []
    between_test(
        ready.x, ready.squares, ready.design, ready.parts.ss_total, 50, 0, 0.95, 2,
        lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert told[-1] == (50, 50)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert {total for _, total in told} == {50}


def test_no_matrix_of_pairs_is_made() -> None:
    """Peak of tracemalloc over 4,000 rows: an (n, n) matrix would take 128 MB, this takes under 10."""
    rng = np.random.default_rng(0)
    ready = prepare(rng.normal(size=(4000, 8)), np.arange(4000) % 40)
    tracemalloc.start()
    ready.test(64)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6


def test_slabs_of_units_are_sums_over_their_rows_in_small_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compared with numpy's sums, blocks smaller than a unit, columns padded with zeros."""
    monkeypatch.setattr("service.numerics.permanova.BLOCK_ELEMENTS", 30)
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(23, 11))
    codes = np.repeat([0, 1, 0, 1], [9, 2, 5, 7])
    units = np.repeat([0, 1, 2, 3], [9, 2, 5, 7])
    order = rng.permutation(23)
    ready = prepare(rows, codes[order], None, units[order])
    flat = ready.x.transpose(1, 0, 2).reshape(4, 16)
    centred = rows - rows.mean(axis=0)
    names = dense(units[order])
    first = {u: int(np.flatnonzero(names == u)[0]) for u in range(4)}
    for item, unit in enumerate(sorted(range(4), key=lambda u: first[u])):
        assert flat[item, :11] == pytest.approx(centred[names == unit].sum(axis=0), abs=1e-12)
    assert (flat[:, 11:] == 0).all()


def test_float32_only_proposes() -> None:
    """Statistics a hair apart, far below float32: the counts are those of float64 in brute force."""
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.normal(size=(4, 24)), 4, axis=0) + 1e-8 * rng.normal(size=(16, 24))
    codes = np.array([0, 0, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 1, 1])
    ready = prepare(rows, codes)
    got = ready.test(4000, 3)
    drawn = ready.design.arrangements(stream_key(3, "permutation"), 0, 4000)
    between = np.array([plain(rows, relabelled(ready.design, a))["between"] for a in drawn])
    seen = plain(rows, codes)
    threshold = seen["between"] - 1e-9 * seen["total"]
    single = 2.02 * 2.0**-24 * seen["total"]
    assert (np.abs(between - threshold) < single).sum() > 5, "some are beyond float32"
    assert got.f.exceedances == (between >= threshold).sum()
