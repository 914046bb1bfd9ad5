"""Geometry against stored readings, numpy on whole matrices, refits by hand and closed forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import ortho_group

from service.checks.geometry import geometry
from service.numerics.moments import Units, deviations
from service.numerics.rows import Directions, Stored

Array = NDArray[Any]
Z = np.array([[3.0, 0], [1, 0], [0, 2], [0, 4]])


def cosines(z: Array) -> Array:
    return np.asarray((z @ z.T)[~np.eye(len(z), dtype=bool)])


SETS = [
    *((f"clinc150/{m}", f"clinc150 {m} spectrum", f"clinc150 {m} anisotropy", f"clinc150 {m} intent")
      for m in ("minilm", "minilm_int8", "e5small_q4", "use_multilingual")),
    *((f"debian_pairs/{m}_{side}", f"debian_pairs {m} spectrum_{side}",
       f"debian_pairs {m} pairs anisotropy_{'A' if side == 'query' else 'B'}",
       f"debian_pairs {m} section_{side}")
      for m in ("minilm", "e5small_q4") for side in ("query", "doc")),
    *((f"scifact_titles/{m}/sentences", f"scifact_titles {m} spectrum_sentences",
       f"scifact_titles {m} anisotropy_sentences", f"scifact_titles {m} sentence_groups")
      for m in ("minilm", "e5small_q4")),
    *((f"scifact_titles/{m}/titles", None, f"scifact_titles {m} anisotropy_titles", None)
      for m in ("minilm", "e5small_q4")),
    *((f"scifact_halves/{m}/{side}", None, f"scifact_halves {m} anisotropy_{side}", None)
      for m in ("minilm", "e5small_q4", "minilm_int8") for side in "AB"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "spectrum", "anisotropy", "sums"), SETS)
def test_readings_of_real_embeddings(
    name: str,
    spectrum: str | None,
    anisotropy: str,
    sums: str | None,
    rows: Callable[[str], Array],
    reference: dict[str, Any],
    printed: Callable[[Any], Any],
    unit_rows: Callable[[Array], Array],
    run: Callable[..., Any],
) -> None:
    """Compared with the stored readings of an independent script, for every model and set."""

    def stored(path: str) -> Any:
        found: Any = reference
        for key in path.split():
            found = found[key]
        return found

    x = rows(name)
    got, _ = run(geometry, vectors=x, threads=2)
    assert (got.n, got.d) == x.shape
    assert got.anisotropy.estimate == printed(stored(anisotropy))
    if sums is not None:
        assert got.dispersion_v.estimate == printed(stored(sums)["V"])
    if spectrum is not None:
        expected = stored(spectrum)
        assert got.rankme == printed(expected["RankMe"])
        assert got.rankme_centred == printed(expected["RankMe_centred"])
        assert got.participation_ratio == printed(expected["participation_ratio"])
        assert got.total_variance.estimate == printed(expected["variance_trace"])

    z = unit_rows(x)
    assert got.anisotropy_sd == pytest.approx(cosines(z).std(), rel=1e-8)
    assert got.mean_resultant_length.estimate == pytest.approx(
        np.linalg.norm(z.mean(axis=0)), rel=1e-12
    )


@pytest.mark.parametrize("model", ["minilm", "minilm_int8", "e5small_q4", "use_multilingual"])
def test_norms_of_real_embeddings(
    model: str, rows: Callable[[str], Array], reference: dict[str, Any], run: Callable[..., Any]
) -> None:
    """Compared with the stored smallest and largest norm."""
    got, _ = run(geometry, vectors=rows(f"clinc150/{model}"))
    expected = reference["clinc150"][model]
    assert got.norms.min == pytest.approx(expected["norm_min"], rel=1e-9)
    assert got.norms.max == pytest.approx(expected["norm_max"], rel=1e-9)
    assert got.norms.unit_share == 1


def test_every_number_of_a_random_set_is_that_of_the_whole_matrix(
    unit_rows: Callable[[Array], Array], run: Callable[..., Any]
) -> None:
    """Compared with numpy on the whole matrix, one line for each number."""
    rng = np.random.default_rng(1)
    x = rng.normal(0.5, 1, size=(200, 9)) * np.geomspace(3, 0.1, 9)
    x[150:160] = x[10:20]
    x[160] = x[10]
    got, context = run(geometry, vectors=x, params={"max_spectrum": 4})

    z, lengths = unit_rows(x), np.linalg.norm(x, axis=1)
    c = x - x.mean(axis=0)
    raw, centred = (np.linalg.svd(m, compute_uv=False) for m in (x, c))
    variances, shares = x.var(axis=0), np.square(centred) / np.square(centred).sum()

    def rankme(s: Array) -> float:
        p = s / s.sum() + 1e-7
        return float(np.exp(-(p * np.log(p)).sum()))

    assert got.dispersion_v.estimate == pytest.approx(((z - z.mean(axis=0)) ** 2).sum() / 200)
    assert got.mean_resultant_length.estimate == pytest.approx(np.linalg.norm(z.mean(axis=0)))
    assert got.anisotropy.estimate == pytest.approx(cosines(z).mean(), rel=1e-12)
    assert got.anisotropy_sd == pytest.approx(cosines(z).std(), rel=1e-12)
    assert got.total_variance.estimate == pytest.approx(np.trace(np.cov(x.T)), rel=1e-12)
    assert got.norms.model_dump() == pytest.approx(
        {
            "min": lengths.min(),
            "median": np.median(lengths),
            "max": lengths.max(),
            "cv": lengths.std() / lengths.mean(),
            "unit_share": np.mean(abs(lengths - 1) <= 1e-3),
        },
        rel=1e-12,
    )
    assert got.rogue_dimensions.largest_over_mean == pytest.approx(
        variances.max() / variances.mean()
    )
    assert got.rogue_dimensions.top3_share == pytest.approx(
        np.sort(variances)[-3:].sum() / variances.sum()
    )
    assert got.participation_ratio == pytest.approx(
        np.trace(np.cov(x.T)) ** 2 / np.trace(np.cov(x.T) @ np.cov(x.T)), rel=1e-10
    )
    assert got.stable_rank == pytest.approx((raw**2).sum() / raw[0] ** 2, rel=1e-12)
    assert got.rankme == pytest.approx(rankme(raw), rel=1e-12)
    assert got.rankme_centred == pytest.approx(rankme(centred), rel=1e-12)
    assert got.spectrum.leading_shares == pytest.approx(shares[:4].tolist(), rel=1e-10)
    for percent in (50, 90, 99):
        count = next(k for k in range(1, 10) if shares[:k].sum() >= percent / 100)
        assert getattr(got.spectrum, f"dimensions_{percent}") == count
    assert (got.duplicates.rows, got.duplicates.groups) == (11, 10)
    assert [w.code for w in context.warnings] == ["duplicates"]


@pytest.mark.parametrize("codes", [None, [3, 1, 4, 1, 5], "uneven"])
@pytest.mark.parametrize("level", [0.95, 0.8])
def test_every_interval_is_a_refit_without_each_unit(
    codes: Any,
    level: float,
    run: Callable[..., Any],
    unit_rows: Callable[[Array], Array],
    t_interval: Callable[..., tuple[float, float]],
) -> None:
    """Compared with explicit refits on the remaining rows and scipy's t."""
    rng = np.random.default_rng(2)
    x = rng.normal(0.7, 1, size=(40, 5)) * np.geomspace(2, 0.3, 5)
    if codes is None:
        units, groups = np.arange(40), None
    else:
        sizes = np.resize(codes, 6) if codes != "uneven" else [1, 1, 2, 3, 13, 20]
        units = rng.permutation(np.repeat(np.arange(len(sizes)), sizes)[:40])
        x, units = x[: len(units)], units
        groups = [f"g{u}" for u in units]
    got, _ = run(geometry, vectors=x, groups=groups, params={"level": level})
    z = unit_rows(x)
    statistics = {
        "dispersion_v": lambda kept: 1 - (z[kept].mean(axis=0) ** 2).sum(),
        "mean_resultant_length": lambda kept: np.linalg.norm(z[kept].mean(axis=0)),
        "anisotropy": lambda kept: cosines(z[kept]).mean(),
        "total_variance": lambda kept: x[kept].var(axis=0, ddof=1).sum(),
    }
    for name, statistic in statistics.items():
        estimate = getattr(got, name)
        low, high = t_interval(statistic, units, level)
        assert estimate.estimate == pytest.approx(statistic(np.ones(len(x), bool)), rel=1e-11)
        assert estimate.interval.low == pytest.approx(low, rel=1e-8, abs=1e-10)
        assert estimate.interval.high == pytest.approx(high, rel=1e-8, abs=1e-10)
        assert estimate.interval.unit == ("row" if codes is None else "group")
        assert estimate.interval.resamples == len(np.unique(units))
        assert estimate.interval.method == "jackknife_t"


def test_intervals_of_real_groups_are_refits_too(
    rows: Callable[[str], Array],
    column: Callable[[str, str], list[str]],
    run: Callable[..., Any],
    unit_rows: Callable[[Array], Array],
    t_interval: Callable[..., tuple[float, float]],
) -> None:
    """Compared with sixty refits of MiniLM without one intent each."""
    x, intents = rows("clinc150/minilm"), np.array(column("clinc150", "intent"))
    got, _ = run(geometry, vectors=x, groups=intents.tolist())
    z, raw = unit_rows(x), x.astype(np.float64)

    def anisotropy(kept: Array) -> float:
        s, m = z[kept].sum(axis=0), int(kept.sum())
        return float((s @ s - (z[kept] ** 2).sum()) / (m * (m - 1)))

    for name, statistic in {
        "dispersion_v": lambda kept: 1 - (z[kept].mean(axis=0) ** 2).sum(),
        "anisotropy": anisotropy,
        "total_variance": lambda kept: raw[kept].var(axis=0, ddof=1).sum(),
    }.items():
        low, high = t_interval(statistic, intents)
        interval = getattr(got, name).interval
        assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-8)
        assert (interval.resamples, interval.unit) == (60, "group")


def test_four_rows_on_two_axes(run: Callable[..., Any]) -> None:
    """Published closed forms: total variance 5.667, ratio 1.26, RankMe 1.97063."""
    got, _ = run(geometry, vectors=Z)
    assert got.total_variance.estimate == pytest.approx(17 / 3)
    assert got.participation_ratio == pytest.approx(1.26, abs=0.005)
    assert got.participation_ratio == pytest.approx(
        np.trace(np.cov(Z.T)) ** 2 / (np.cov(Z.T) ** 2).sum()
    )
    assert got.rankme == pytest.approx(1.97063, abs=5e-6)
    assert got.dispersion_v.estimate == pytest.approx(0.5)
    assert got.anisotropy.estimate == pytest.approx(1 / 3)
    assert got.norms.unit_share == 0.25


def test_zero_mean_rows_with_singular_values_three_and_one(run: Callable[..., Any]) -> None:
    """Published closed forms: ratio 1.22, RankMe 1.75, raw and centred alike."""
    h = np.array([[1, 1], [-1, 1], [1, -1], [-1, -1]]) / 2
    got, _ = run(geometry, vectors=h @ np.diag([3.0, 1.0]))
    assert got.participation_ratio == pytest.approx(100 / 82)
    assert got.rankme == pytest.approx(1.75476535, rel=1e-6)
    assert got.rankme_centred == pytest.approx(got.rankme)
    assert got.stable_rank == pytest.approx(10 / 9)
    assert got.spectrum.leading_shares == pytest.approx([0.9, 0.1])
    assert (got.spectrum.dimensions_50, got.spectrum.dimensions_90, got.spectrum.dimensions_99) == (
        1,
        1,
        2,
    )


def test_the_kept_rows_beside_a_zero_row(run: Callable[..., Any]) -> None:
    """Published: anisotropy .44666667 on the four rows that have a direction."""
    x = np.array([[1, 0, 0], [0.6, 0.8, 0], [0, 1, 0], [0.8, 0, 0.6]])
    got, _ = run(geometry, vectors=x)
    assert (got.n, got.anisotropy.estimate) == (4, pytest.approx(0.44666667, rel=1e-7))


def test_exactly_low_rank_rows(run: Callable[..., Any]) -> None:
    """Published: RankMe 1.88988157 and 1.75476535, ratio 1.47058824 and 1."""
    h = np.array([[1, 1], [-1, 1], [1, -1], [-1, -1]]) / 2
    got, context = run(geometry, vectors=h @ np.diag([4.0, 2.0]) @ np.eye(2, 5))
    assert got.rankme == pytest.approx(1.88988157, rel=1e-5)
    assert got.participation_ratio == pytest.approx(1.47058824, rel=1e-8)
    assert [w.code for w in context.warnings] == ["rank_limited_by_n"]
    got, _ = run(geometry, vectors=np.diag([3.0, 1.0]))
    assert got.rankme == pytest.approx(1.75476535, rel=1e-5)
    assert got.participation_ratio == pytest.approx(1, rel=1e-9)


def test_one_row_has_rank_one_and_no_spread(run: Callable[..., Any]) -> None:
    """Published: RankMe 1, participation ratio null; nothing is NaN."""
    got, _ = run(geometry, vectors=np.array([[3.0, 4.0]]))
    assert got.rankme == pytest.approx(1, rel=1e-5)
    assert (got.dispersion_v.estimate, got.mean_resultant_length.estimate) == (0, 1)
    for name in ("participation_ratio", "rankme_centred"):
        assert getattr(got, name) is None
        assert got.undefined[name].code == "zero_spectrum"
    assert got.undefined["anisotropy_sd"].code == "too_few_rows"
    for estimate in (got.anisotropy, got.total_variance):
        assert estimate.estimate is None
        assert estimate.undefined["estimate"].code == "too_few_rows"


@pytest.mark.parametrize("value", [1.0, 0.1, -3.7])
def test_equal_rows_have_collapsed(value: float, run: Callable[..., Any]) -> None:
    """Closed form: V 0, anisotropy 1, RankMe 1; what needs spread is null with a reason."""
    got, context = run(geometry, vectors=np.full((6, 3), value))
    assert got.dispersion_v.estimate == pytest.approx(0, abs=1e-15)
    assert got.anisotropy.estimate == pytest.approx(1, abs=1e-15)
    assert got.total_variance.estimate == pytest.approx(0, abs=1e-25)
    assert (got.anisotropy_sd, got.rankme) == (0, pytest.approx(1, rel=1e-5))
    assert got.undefined["participation_ratio"].code == "zero_spectrum"
    assert got.spectrum.undefined["dimensions_50"].code == "zero_spectrum"
    assert got.rogue_dimensions.undefined["largest_over_mean"].code == "zero_spectrum"
    assert (got.duplicates.rows, got.duplicates.groups) == (5, 1)
    assert {w.code for w in context.warnings} == {"anisotropic", "duplicates"}
    assert len(got.readings()) == 3


def test_rows_along_one_axis_have_anisotropy_zero_and_cosines_of_one(
    run: Callable[..., Any],
) -> None:
    """Closed form: n/2 rows each way: mean -1/(n-1), and no cosine inside (-1, 1)."""
    x = np.array([[1.0, 0], [-1, 0]] * 50)
    got, _ = run(geometry, vectors=x)
    assert got.anisotropy.estimate == pytest.approx(-1 / 99)
    assert got.anisotropy_sd == pytest.approx(np.sqrt(1 - 1 / 99**2))
    assert got.dispersion_v.estimate == pytest.approx(1)


def test_two_groups_are_too_few_for_an_interval(run: Callable[..., Any]) -> None:
    """Closed form: the estimates stay, the intervals are null."""
    got, _ = run(geometry, vectors=Z, groups=["a", "a", "b", "b"])
    assert got.dispersion_v.estimate == pytest.approx(0.5)
    assert got.dispersion_v.undefined["interval"].code == "too_few_groups"


def test_five_groups_are_enough_for_an_interval_and_a_census_has_none(
    run: Callable[..., Any],
) -> None:
    """Closed form."""
    x = np.random.default_rng(3).normal(size=(5, 3))
    got, _ = run(geometry, vectors=x, groups=list("abcde"))
    assert got.anisotropy.interval is not None
    got, _ = run(geometry, vectors=x, params={"census": True})
    assert got.anisotropy.undefined["interval"].code == "census"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_the_storage_type_changes_nothing_where_the_values_fit(
    dtype: str, run: Callable[..., Any]
) -> None:
    """Compared with float64 rows of the same values."""
    x = np.random.default_rng(4).integers(-100, 100, size=(30, 6))
    got, _ = run(geometry, vectors=x.astype(dtype))
    expected, _ = run(geometry, vectors=x.astype(np.float64))
    assert got == expected


def test_a_large_common_offset_leaves_v_exact(
    run: Callable[..., Any], unit_rows: Callable[[Array], Array]
) -> None:
    """Compared with pairwise squared distances of float32 rows at offset 1000."""
    x = np.random.default_rng(5).normal(size=(80, 16)).astype(np.float32) + np.float32(1000)
    got, _ = run(geometry, vectors=x)
    z = unit_rows(x)
    pairwise = ((z[:, None] - z[None]) ** 2).sum(axis=2).mean() / 2
    assert got.dispersion_v.estimate == pytest.approx(pairwise, rel=1e-11)
    assert got.total_variance.estimate == pytest.approx(
        (x.astype(np.float64) - 1000).var(axis=0, ddof=1).sum(), rel=1e-11
    )


@pytest.mark.parametrize("scale", [1e-180, 1e-120, 1e60, 1e100, 1e140])
def test_readings_without_a_unit_hold_at_every_scale(scale: float, run: Callable[..., Any]) -> None:
    """Compared with the same rows at scale 1: a common factor moves none of these."""
    x = np.random.default_rng(6).normal(1, 1, size=(20, 4))
    expected, _ = run(geometry, vectors=x)
    got, _ = run(geometry, vectors=x * scale)
    for name in ("rankme", "rankme_centred", "participation_ratio", "stable_rank", "anisotropy_sd"):
        assert getattr(got, name) == pytest.approx(getattr(expected, name), rel=1e-9)
    assert got.norms.cv == pytest.approx(expected.norms.cv, rel=1e-12)
    assert got.norms.max == pytest.approx(scale * expected.norms.max, rel=1e-12)
    assert got.dispersion_v.estimate == pytest.approx(expected.dispersion_v.estimate, rel=1e-12)
    assert got.spectrum.leading_shares == pytest.approx(expected.spectrum.leading_shares)


def test_scaling_by_a_hundredth_moves_the_total_variance_alone(
    rows: Callable[[str], Array], run: Callable[..., Any]
) -> None:
    """Published: total variance x 1e-4; V, ratio and RankMe unchanged."""
    x = rows("debian_pairs/minilm_doc").astype(np.float64)
    before, _ = run(geometry, vectors=x)
    after, _ = run(geometry, vectors=x * 0.01)
    assert after.total_variance.estimate == pytest.approx(1e-4 * before.total_variance.estimate)
    assert after.dispersion_v.estimate == pytest.approx(before.dispersion_v.estimate, rel=1e-12)
    for name in ("participation_ratio", "rankme", "rankme_centred", "stable_rank"):
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-10)


@pytest.mark.parametrize(("factor", "rankme"), [(99, 3.02), (999, 1.17)])
def test_an_offset_pulls_rankme_to_one_and_leaves_the_ratio(
    factor: int, rankme: float, rows: Callable[[str], Array], run: Callable[..., Any]
) -> None:
    """Published for MiniLM: RankMe 3.02 at 99 times the mean norm, 1.17 at 999 times."""
    x = rows("clinc150/minilm").astype(np.float64)
    before, _ = run(geometry, vectors=x)
    step = np.linalg.norm(x, axis=1).mean() / np.sqrt(384)
    after, context = run(geometry, vectors=x + factor * step, threads=2)
    assert after.rankme == pytest.approx(rankme, abs=0.005)
    for name in ("participation_ratio", "rankme_centred"):
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-8)
    assert after.total_variance.estimate == pytest.approx(before.total_variance.estimate, rel=1e-8)
    assert "anisotropic" in {w.code for w in context.warnings}


@given(
    n=st.integers(3, 30),
    d=st.integers(2, 8),
    share=st.floats(0.001, 1),
    seed=st.integers(0, 10**6),
)
def test_a_common_component_scales_v_by_exactly_its_complement(
    n: int, d: int, share: float, seed: int
) -> None:
    """Closed form: y = (sqrt(l) z, sqrt(1-l)) stays unit and has l times the V of z."""
    z = Directions(np.random.default_rng(seed).normal(1, 1, size=(n, d))).take(slice(0, n))
    y = np.column_stack([np.sqrt(share) * z, np.full(n, np.sqrt(1 - share))])
    units = Units.rows(n)
    before, after = (deviations(Directions(rows), units, 1).squares.sum() for rows in (z, y))
    assert after == pytest.approx(share * before, rel=1e-11)


@given(
    n=st.integers(2, 30),
    d=st.integers(2, 8),
    shift=st.floats(-1e3, 1e3),
    seed=st.integers(0, 10**6),
)
def test_an_isometry_of_the_unit_rows_leaves_v(n: int, d: int, shift: float, seed: int) -> None:
    """Closed form: unit rows turned and moved away keep their squared distances."""
    rng = np.random.default_rng(seed)
    z = Directions(rng.normal(size=(n, d))).take(slice(0, n))
    moved = z @ ortho_group.rvs(d, random_state=seed) + shift * rng.normal(size=d)
    before, after = (deviations(Stored(rows), Units.rows(n), 1).squares for rows in (z, moved))
    np.testing.assert_allclose(after, before, rtol=1e-8, atol=1e-9)


@given(
    n=st.integers(4, 30),
    d=st.integers(2, 6),
    factor=st.floats(1e-3, 1e3),
    seed=st.integers(0, 10**6),
)
def test_a_similarity_of_the_raw_rows_leaves_what_is_read_off_the_centred_spectrum(
    run: Callable[..., Any], n: int, d: int, factor: float, seed: int
) -> None:
    """Closed form: turned, scaled and moved rows have the same centred spectrum up to a factor."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * np.geomspace(1, 0.2, d)
    moved = factor * (x @ ortho_group.rvs(d, random_state=seed)) + rng.normal(size=d)
    before, _ = run(geometry, vectors=x)
    after, _ = run(geometry, vectors=moved)
    for name in ("participation_ratio", "rankme_centred"):
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-6)
    assert after.total_variance.estimate == pytest.approx(
        factor**2 * before.total_variance.estimate, rel=1e-9
    )


def test_blocks_and_threads_change_nothing_but_rounding(
    small_blocks: Callable[..., None], run: Callable[..., Any]
) -> None:
    """Compared with the same rows in one block."""
    rng = np.random.default_rng(7)
    x = rng.normal(0.5, 1, size=(90, 5))
    groups = rng.integers(0, 8, 90).tolist()
    whole, _ = run(geometry, vectors=x, groups=groups)
    for elements in (1, 11, 64):
        small_blocks(elements)
        got, _ = run(geometry, vectors=x, groups=groups, threads=3)
        for name in ("dispersion_v", "mean_resultant_length", "anisotropy", "total_variance"):
            one, other = getattr(whole, name), getattr(got, name)
            assert other.estimate == pytest.approx(one.estimate, rel=1e-12)
            assert other.interval.low == pytest.approx(one.interval.low, rel=1e-10, abs=1e-12)
            assert other.interval.high == pytest.approx(one.interval.high, rel=1e-10)
        for name in ("rankme", "rankme_centred", "participation_ratio", "anisotropy_sd"):
            assert getattr(got, name) == pytest.approx(getattr(whole, name), rel=1e-11)
        assert got.duplicates == whole.duplicates


@pytest.mark.parametrize(("n", "warned"), [(3, True), (4, True), (5, False)])
def test_no_more_rows_than_dimensions_is_warned_of(
    n: int, warned: bool, run: Callable[..., Any]
) -> None:
    """Closed form: the centred rank is at most n - 1, so that d = 4 needs five rows."""
    x = np.random.default_rng(8).normal(size=(n, 4))
    got, context = run(geometry, vectors=x)
    assert ("rank_limited_by_n" in {w.code for w in context.warnings}) == warned
    assert got.participation_ratio <= n - 1


def test_readings_say_the_numbers_they_are_about(
    rows: Callable[[str], Array], run: Callable[..., Any]
) -> None:
    """Compared with the published anisotropy and V of e5 in print."""
    got, context = run(geometry, vectors=rows("scifact_halves/e5small_q4/A"))
    text = " ".join(got.readings())
    assert "0.8204" in text
    assert f"{got.dispersion_v.estimate:.4f}" in text
    assert f"{got.rankme:.1f}" in text
    assert "of 99 possible" in text
    warned = {w.code: w for w in context.warnings}
    assert set(warned) == {"anisotropic", "rank_limited_by_n"}
    assert "0.820" in warned["anisotropic"].message
    assert "100" in warned["rank_limited_by_n"].message


@pytest.mark.parametrize(("n", "d"), [(2, 5), (6, 5), (5, 5), (3, 40), (40, 3)])
def test_directions_are_counted_against_those_centred_rows_can_have(
    n: int, d: int, run: Callable[..., Any]
) -> None:
    """Two rows read "1.0 of 2": numpy's rank of the centred rows is what can be reached."""
    rows = np.random.default_rng(7).normal(size=(n, d))
    rank = np.linalg.matrix_rank(rows - rows.mean(axis=0))
    got, context = run(geometry, vectors=rows)
    assert f" of {rank} possible directions" in " ".join(got.readings())
    limits = [w.message for w in context.warnings if w.code == "rank_limited_by_n"]
    assert len(limits) == (n <= d)
    assert all(f"can exceed {n}, of centred rows {rank}." in one for one in limits)
