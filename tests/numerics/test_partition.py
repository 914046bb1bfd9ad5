"""Sums of squares and their statistics against definitions, refits without a unit and copied rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.numerics.compiled import draw_counts, stream_key
from service.numerics.moments import Units
from service.numerics.partition import (
    Decomposition,
    Partition,
    bootstrap,
    decompose,
    observed,
    partition,
    sums_by_unit,
    without_each_group,
    without_each_unit,
)
from service.numerics.rows import Directions, Stored

Array = NDArray[Any]
FIELDS = ("r2", "f", "icc1", "v", "w_bar", "within_share")
seeds = st.integers(0, 10**6)


def dense(labels: Any) -> Array:
    return np.unique(np.asarray(labels), return_inverse=True)[1].astype(np.int64)


def parts_of(rows: Any, labels: Any) -> Partition:
    return partition(Stored(np.asarray(rows, dtype=np.float64)), Units.groups(dense(labels)), 1)


def plain(rows: Array, labels: Array) -> dict[str, float]:
    """All statistics from the definitions: loops over groups, arithmetic mean of nothing."""
    rows, labels = np.asarray(rows, dtype=np.float64), np.asarray(labels)
    n, names = len(rows), np.unique(labels)
    groups = len(names)
    total = float(((rows - rows.mean(axis=0)) ** 2).sum())
    own = [rows[labels == g] for g in names]
    within = float(sum(((x - x.mean(axis=0)) ** 2).sum() for x in own))
    with np.errstate(all="ignore"):
        msb = np.float64(total - within) / (groups - 1)
        msw = np.float64(within) / (n - groups)
        n0 = (n - sum(len(x) ** 2 for x in own) / np.float64(n)) / (groups - 1)
        return {
            "r2": (total - within) / np.float64(total),
            "f": msb / msw if within > 0 else np.nan,
            "icc1": (msb - msw) / (msb + (n0 - 1) * msw),
            "v": total / n,
            "w_bar": within / n,
            "within_share": within / np.float64(total),
        }


def same(got: Decomposition, expected: list[dict[str, float]], scale: float = 1.0) -> None:
    for field in FIELDS:
        ours = np.atleast_1d(getattr(got, field))
        theirs = np.array([e[field] for e in expected])
        assert ours == pytest.approx(theirs, rel=1e-8, abs=1e-9 * scale, nan_ok=True), field


@st.composite
def labelled_rows(draw: st.DrawFn, least_groups: int = 2) -> tuple[Array, Array]:
    """Rows in groups of one to seven."""
    sizes = draw(st.lists(st.integers(1, 7), min_size=least_groups, max_size=7))
    assume(max(sizes) > 1)
    rng = np.random.default_rng(draw(seeds))
    codes = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    rows = rng.normal(size=(len(codes), draw(st.integers(1, 6))))
    return rows + rng.normal(size=(len(sizes), 1))[codes] + 3, codes


@given(labelled_rows(), st.sampled_from([4, 30, 1 << 20]), st.integers(1, 3))
def test_sums_are_those_of_the_definition_whatever_the_blocks(
    made: tuple[Array, Array], elements: int, threads: int
) -> None:
    """Compared with loops over groups; blocks smaller than a group, one to three threads."""
    rows, codes = made
    with pytest.MonkeyPatch.context() as patch:
        for module in ("rows", "moments"):
            patch.setattr(f"service.numerics.{module}.BLOCK_ELEMENTS", elements)
        got = partition(Stored(rows), Units.groups(codes), threads)
        again = partition(Stored(rows), Units.groups(codes), 1)
    mean = rows.mean(axis=0)
    assert got.mean == pytest.approx(mean, abs=1e-13)
    for g in range(len(got.counts)):
        own = rows[codes == g]
        assert got.counts[g] == len(own)
        assert got.sums[g] == pytest.approx((own - mean).sum(axis=0), abs=1e-12)
        assert got.total[g] == pytest.approx(((own - mean) ** 2).sum(), abs=1e-12)
        assert got.within[g] == pytest.approx(((own - own.mean(axis=0)) ** 2).sum(), abs=1e-12)
    assert (got.sums == again.sums).all()
    assert (got.within == again.within).all()
    same(observed(got), [plain(rows, codes)])


def test_the_fixture_of_four_unit_rows() -> None:
    """Published closed form: SS_T 2.2, SS_W .4, R2 .81818, F 9, W .10, W~ .20."""
    rows = [[1, 0], [0.8, 0.6], [0, 1], [-0.6, 0.8]]
    got = parts_of(rows, ["A", "A", "B", "B"])
    seen = observed(got)
    assert got.ss_total == pytest.approx(2.2)
    assert got.ss_within == pytest.approx(0.4)
    assert float(seen.r2) == pytest.approx(1.8 / 2.2)
    assert round(float(seen.r2), 5) == 0.81818
    assert float(seen.f) == pytest.approx(9)
    assert got.within / got.counts == pytest.approx([0.1, 0.1])
    assert got.within / (got.counts - 1) == pytest.approx([0.2, 0.2])
    assert float(seen.v) == pytest.approx(0.55)
    assert float(seen.w_bar) == pytest.approx(0.1)


def test_a_large_common_offset_loses_nothing() -> None:
    """Published (faiss#297): float32 rows 4,096 away give the unshifted SS_T, V, R2 and F."""
    r = np.random.default_rng(7)
    x = r.integers(-64, 65, size=(24, 16)) / 16.0
    x[:6] += 0.5
    labels = np.repeat(np.arange(4), 6)
    far = (x + 4096).astype(np.float32)
    got = partition(Stored(far), Units.groups(labels), 1)
    seen = observed(got)
    assert got.ss_total == pytest.approx(2096.150228, rel=1e-9)
    assert float(seen.v) == pytest.approx(87.339593, rel=1e-7)
    assert float(seen.r2) == pytest.approx(0.10419764, rel=1e-7)
    assert float(seen.f) == pytest.approx(0.77545108, rel=1e-7)
    same(seen, [plain(x, labels)])


def test_singletons_stay_in_the_decomposition() -> None:
    """Published (vegan#606): SS_T 34.115783, SS_W 19.789923, R2 .41991885, F .57911740."""
    x = np.random.default_rng(21).normal(size=(10, 3))
    got = parts_of(x, list("aaabbbcdef"))
    seen = observed(got)
    assert got.ss_total == pytest.approx(34.115783, rel=1e-7)
    assert got.ss_within == pytest.approx(19.789923, rel=1e-7)
    assert float(seen.r2) == pytest.approx(0.41991885, rel=1e-7)
    assert float(seen.f) == pytest.approx(0.57911740, rel=1e-7)
    assert (got.within / np.maximum(got.counts - 1, 1))[:2] == pytest.approx(
        [3.88059846, 6.01436291], rel=1e-8
    )


def test_unit_rows_decompose_the_chord_distance() -> None:
    """Published (vegan#434): SS_T 15.902137 = n (1 - |mean|^2), R2 .37802126, F 4.55829004."""
    r = np.random.default_rng(31)
    x = r.normal(size=(18, 6))
    x[:6, 0] += 2
    x[6:12, 1] += 2
    got = partition(Directions(x), Units.groups(np.repeat([0, 1, 2], 6)), 1)
    z = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert got.ss_total == pytest.approx(15.902137, rel=1e-7)
    assert got.ss_total == pytest.approx(18 * (1 - (z.mean(axis=0) ** 2).sum()), rel=1e-12)
    assert float(observed(got).r2) == pytest.approx(0.37802126, rel=1e-7)
    assert float(observed(got).f) == pytest.approx(4.55829004, rel=1e-7)


@pytest.mark.parametrize(
    ("values", "groups", "icc", "r2"),
    [
        ([1, 5, 2, 6, 3, 7, 1, 7], "aabbccdd", -0.77464789, 0.08695652),
        ([0, 4, 2, 1, 5, 3, 0.5, 2.5, 4.5], "aaabbcccc", -0.40806045, 0.05147059),
    ],
)
def test_an_icc_may_be_negative(values: list[float], groups: str, icc: float, r2: float) -> None:
    """Published (pingouin#231): ICC(1) with n0, balanced and not."""
    seen = observed(parts_of(np.array(values)[:, None], list(groups)))
    assert float(seen.icc1) == pytest.approx(icc, rel=1e-7)
    assert float(seen.r2) == pytest.approx(r2, rel=1e-6)


def test_a_cluster_drawn_twice_is_two_clusters() -> None:
    """Published (duckreg#19): draw A, A, B gives R2 .85630744, F 14.89825581, ICC .84113300."""
    x = np.array([[0, 0], [1, 0], [0, 2], [4, 4], [5, 4], [9, 1], [9, 3], [8, 2]], float)
    parts = parts_of(x, list("AAABBCCC"))

    def drawn(weights: list[float]) -> Decomposition:
        w, counts = np.array(weights), parts.counts.astype(float)
        n = w @ counts
        shift = w @ parts.sums
        return decompose(
            np.float64(n),
            np.float64(w.sum()),
            np.float64(w @ counts**2),
            np.float64(w @ parts.total - shift @ shift / n),
            np.float64(w @ parts.within),
        )

    twice = drawn([2, 1, 0])
    copied = np.vstack([x[:3], x[:3], x[3:5]])
    same(twice, [plain(copied, np.array([0, 0, 0, 1, 1, 1, 2, 2]))])
    assert float(twice.r2) == pytest.approx(0.85630744, rel=1e-7)
    assert float(twice.f) == pytest.approx(14.89825581, rel=1e-8)
    assert float(twice.icc1) == pytest.approx(0.84113300, rel=1e-7)
    assert parts.within[0] / 2 == pytest.approx(1.66666667, rel=1e-8)
    thrice = drawn([3, 0, 0])
    assert float(thrice.r2) == pytest.approx(0, abs=1e-14)
    assert float(thrice.f) == pytest.approx(0, abs=1e-13)
    assert float(thrice.icc1) == pytest.approx(-0.5)


@given(labelled_rows(least_groups=3))
def test_leaving_out_a_group_is_refitting_without_it(made: tuple[Array, Array]) -> None:
    """Compared with a fresh decomposition of the remaining rows, group by group."""
    rows, codes = made
    expected = [plain(rows[codes != g], codes[codes != g]) for g in range(codes.max() + 1)]
    got = without_each_group(parts_of(rows, codes))
    for g, fresh in enumerate(expected):
        fields = FIELDS if len(rows[codes != g]) > codes.max() else ("r2", "v", "w_bar")
        for field in fields:
            assert getattr(got, field)[g] == pytest.approx(fresh[field], rel=1e-7, abs=1e-10)


@given(labelled_rows(), st.booleans(), seeds, st.sampled_from([7, 40, 1 << 20]))
def test_leaving_out_a_unit_is_refitting_without_it_even_where_its_group_vanishes(
    made: tuple[Array, Array], single: bool, seed: int, elements: int
) -> None:
    """Compared with a fresh decomposition of the remaining rows, unit by unit."""
    rows, codes = made
    rng = np.random.default_rng(seed)
    units = np.arange(len(codes)) if single else dense(codes * 2 + rng.integers(0, 2, len(codes)))
    chosen = Units.rows(len(codes)) if single else Units.groups(units)
    parts = parts_of(rows, codes)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("rows", "moments"):
            patch.setattr(f"service.numerics.{module}.BLOCK_ELEMENTS", elements)
        sums = sums_by_unit(Stored(rows), parts, codes, chosen, 2)
    assert sums.group.tolist() == [codes[units == u][0] for u in range(units.max() + 1)]
    got = without_each_unit(parts, sums)
    for u in range(units.max() + 1):
        left, labels = rows[units != u], codes[units != u]
        groups = len(np.unique(labels))
        if groups < 2:
            continue
        fresh = plain(left, labels)
        fields = FIELDS if len(left) > groups else ("r2", "v", "w_bar", "within_share")
        for field in fields:
            assert getattr(got, field)[u] == pytest.approx(fresh[field], rel=1e-7, abs=1e-9), field


@given(labelled_rows(least_groups=3), seeds)
def test_bootstrap_statistics_are_those_of_copied_rows(
    made: tuple[Array, Array], seed: int
) -> None:
    """Compared with rows copied group by group, each copy a group of its own, from the same draws."""
    rows, codes = made
    parts = parts_of(rows, codes)
    resamples, groups = 12, len(parts.counts)
    told: list[tuple[int, int]] = []
    got = bootstrap(parts, resamples, seed, 2, lambda done, total: told.append((done, total)))
    drawn = np.empty((resamples, groups))
    draw_counts(stream_key(seed, "bootstrap"), 0, drawn)
    for b, counts in enumerate(drawn.astype(int)):
        copies = [g for g in range(groups) for _ in range(counts[g])]
        x = np.vstack([rows[codes == g] for g in copies])
        labels = np.repeat(np.arange(groups), [(codes == g).sum() for g in copies])
        expected = plain(x, labels)
        scale = float(((x - x.mean(axis=0)) ** 2).sum())
        if scale < 1e-9:
            continue
        assert got.r2[b] == pytest.approx(expected["r2"], abs=1e-9)
        assert got.v[b] == pytest.approx(expected["v"], rel=1e-9)
        assert got.w_bar[b] == pytest.approx(expected["w_bar"], abs=1e-9)
        if len(x) > groups:
            assert got.icc1[b] == pytest.approx(expected["icc1"], rel=1e-7, abs=1e-8)
    assert told == [(1, 1)]


def test_bootstrap_batches_and_threads_change_nothing() -> None:
    """Compared with one thread, and with draws numbered across batches of 128."""
    rng = np.random.default_rng(0)
    parts = parts_of(rng.normal(size=(60, 4)), np.arange(60) % 20)
    one = bootstrap(parts, 300, 5, 1, lambda done, total: None)
    many = bootstrap(parts, 300, 5, 3, lambda done, total: None)
    assert (one.r2 == many.r2).all()
    assert len(one.r2) == 300
    counts = np.empty((300, 20))
    draw_counts(stream_key(5, "bootstrap"), 0, counts)
    shift = counts @ parts.sums
    total = counts @ parts.total - (shift**2).sum(axis=1) / 60
    assert one.within_share == pytest.approx(counts @ parts.within / total, rel=1e-12)


@given(labelled_rows(), st.floats(0.05, 1.0))
def test_a_common_component_scales_v_and_leaves_r2(made: tuple[Array, Array], share: float) -> None:
    """Closed form of the article: y = (sqrt(l) z, sqrt(1-l)) has V_y = l V_z and the same R2."""
    rows, codes = made
    z = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    y = np.hstack([np.sqrt(share) * z, np.full((len(z), 1), np.sqrt(1 - share))])
    assume(float(((z - z.mean(axis=0)) ** 2).sum()) > 1e-3)
    one, other = (observed(partition(Directions(x), Units.groups(codes), 1)) for x in (z, y))
    assert float(other.v) == pytest.approx(share * float(one.v), rel=1e-9)
    assert float(other.w_bar) == pytest.approx(share * float(one.w_bar), rel=1e-9, abs=1e-12)
    for field in ("r2", "f", "icc1", "within_share"):
        assert getattr(other, field) == pytest.approx(
            getattr(one, field), rel=1e-8, abs=1e-9, nan_ok=True
        )


def test_shrinking_inside_groups_moves_r2_and_hardly_v() -> None:
    """Published pattern: shrinking by .7 and .4 takes R2 from .79 to .88 and .96, V by under .01."""
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(20), 4)
    x = rng.normal(size=(20, 50))[codes] + 0.6 * rng.normal(size=(80, 50))
    z = x / np.linalg.norm(x, axis=1, keepdims=True)
    centres = np.array([z[codes == g].mean(axis=0) for g in range(20)])[codes]
    base = observed(parts_of(z, codes))
    within, total = float(base.w_bar) * 80, float(base.v) * 80
    assert 0.7 < float(base.r2) < 0.85
    for shrink in (0.7, 0.4):
        seen = observed(parts_of(centres + shrink * (z - centres), codes))
        left = total - within + shrink**2 * within
        assert float(seen.r2) == pytest.approx(1 - shrink**2 * within / left, rel=1e-12)
        assert float(seen.w_bar) == pytest.approx(shrink**2 * float(base.w_bar), rel=1e-12)
        again = observed(
            partition(Directions(centres + shrink * (z - centres)), Units.groups(codes), 1)
        )
        assert abs(float(again.v) - float(base.v)) < 0.02
        assert float(again.r2) > float(base.r2) + 0.05


def test_rows_that_are_all_equal_leave_no_statistic() -> None:
    """Closed form: SS_T = SS_W = 0, so V = 0 and every ratio is undefined."""
    seen = observed(parts_of(np.ones((6, 3)), list("aaabbb")))
    assert (float(seen.v), float(seen.w_bar)) == (0, 0)
    for field in ("r2", "f", "icc1", "within_share"):
        assert np.isnan(getattr(seen, field))
