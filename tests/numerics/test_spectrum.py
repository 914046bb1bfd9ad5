"""Blocked singular values and spectrum readings against numpy's SVD and closed forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.numerics.rows import Stored
from service.numerics.spectrum import (
    components,
    participation_ratio,
    rankme,
    reduced_by_squares,
    spectra,
    spectra_of_triangle,
    stable_rank,
)

Array = NDArray[Any]


def quiet(done: int, total: int) -> None:
    """Nobody listens to the progress."""


def shrink(patch: pytest.MonkeyPatch, elements: int) -> None:
    patch.setattr("service.numerics.rows.BLOCK_ELEMENTS", elements)
    patch.setattr("service.numerics.spectrum.QR_ELEMENTS", elements)


@pytest.mark.parametrize("elements", [1, 60, 1 << 20])
@given(
    n=st.integers(1, 90),
    d=st.integers(1, 12),
    threads=st.integers(1, 3),
    offset=st.sampled_from([0.0, 1.0, 100.0]),
    seed=st.integers(0, 10**6),
)
def test_blocked_singular_values_are_those_of_one_svd(
    elements: int, n: int, d: int, threads: int, offset: float, seed: int
) -> None:
    """Compared with numpy's SVD of the raw and of the centred matrix."""
    x = np.random.default_rng(seed).normal(offset, 1, size=(n, d)) * np.geomspace(1, 0.01, d)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, elements)
        got = spectra(Stored(x), threads, quiet)

    raw = np.linalg.svd(x, compute_uv=False)
    centred = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)
    assert got.raw.shape == got.centred.shape == (min(n, d),)
    np.testing.assert_allclose(got.raw, raw, rtol=1e-10, atol=1e-13 * raw[0])
    np.testing.assert_allclose(got.centred, centred, rtol=1e-10, atol=1e-13 * raw[0])
    np.testing.assert_allclose(got.mean, x.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(
        got.variances, x.var(axis=0) * n, rtol=1e-9, atol=1e-26 * raw[0] ** 2
    )
    assert got.spread == (n > 1)


@pytest.mark.parametrize("elements", [60, 1 << 20])
@given(
    n=st.integers(20, 90),
    d=st.integers(1, 12),
    offset=st.sampled_from([0.0, 1.0, 100.0]),
    seed=st.integers(0, 10**6),
)
def test_squares_give_the_singular_values_of_one_svd_where_they_are_near_each_other(
    elements: int, n: int, d: int, offset: float, seed: int
) -> None:
    x = np.random.default_rng(seed).normal(offset, 1, size=(n, d))
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, elements)
        reduced = reduced_by_squares(Stored(x), 2)

    assert reduced is not None
    got = spectra_of_triangle(n, reduced)
    raw = np.linalg.svd(x, compute_uv=False)
    centred = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)
    np.testing.assert_allclose(got.centred, centred, rtol=1e-10)
    np.testing.assert_allclose(got.raw, raw, rtol=1e-10, atol=1e-13 * raw[0])
    np.testing.assert_allclose(got.variances, x.var(axis=0) * n, rtol=1e-9)


@pytest.mark.parametrize("smallest", [0.0, 1e-17, 1e-9, 1e-5])
def test_squares_are_refused_where_a_direction_would_lose_its_digits(smallest: float) -> None:
    x = np.random.default_rng(0).normal(size=(60, 8)) @ np.diag([1.0] * 7 + [smallest])
    turned = x @ np.linalg.qr(np.random.default_rng(1).normal(size=(8, 8)))[0]
    assert reduced_by_squares(Stored(turned), 1) is None


def test_squares_of_fewer_rows_than_dimensions_are_refused() -> None:
    assert reduced_by_squares(Stored(np.random.default_rng(0).normal(size=(5, 8))), 1) is None


def test_small_singular_values_keep_their_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed form: a spectrum from 1 to 1e-11, where a squared Gram matrix loses all below 1e-8."""
    shrink(monkeypatch, 1)
    rng = np.random.default_rng(1)
    left = rng.normal(size=(200, 12))
    left = np.linalg.qr(left - left.mean(axis=0))[0]
    right = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    values = np.logspace(0, -11, 12)
    got = spectra(Stored((left * values) @ right.T), 2, quiet)
    np.testing.assert_allclose(got.centred, values, rtol=1e-3)
    np.testing.assert_allclose(got.raw, values, rtol=1e-3)


def test_threads_change_not_a_single_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared bit for bit with one thread on the same blocks."""
    shrink(monkeypatch, 1)
    x = np.random.default_rng(2).normal(size=(100, 6)).astype(np.float32)
    one = spectra(Stored(x), 1, quiet)
    for threads in (2, 3):
        more = spectra(Stored(x), threads, quiet)
        assert more.raw.tobytes() == one.raw.tobytes()
        assert more.centred.tobytes() == one.centred.tobytes()


def test_progress_counts_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: blocks of at least d rows, so 25 blocks of 4 columns hold 100 rows."""
    shrink(monkeypatch, 1)
    steps: list[tuple[int, int]] = []
    x = Stored(np.random.default_rng(3).normal(size=(100, 4)))
    spectra(x, 2, lambda *step: steps.append(step))
    assert steps == [(i, 25) for i in range(1, 26)]


@pytest.mark.parametrize("value", [1.0, 0.1, 1e-30, 1e30, 0.0])
def test_equal_rows_have_no_spread_whatever_their_length(value: float) -> None:
    """Closed form: rank one, nothing around the mean but rounding."""
    got = spectra(Stored(np.full((30, 4), value)), 1, quiet)
    assert not got.spread
    assert got.raw[0] == pytest.approx(value * np.sqrt(120), rel=1e-13)


def test_rows_that_differ_by_rounding_alone_have_no_spread() -> None:
    """Closed form: one unit in the last place is 1e-16 of the length, below the limit of 1e-12."""
    x = np.full((30, 4), 0.1)
    x[::2] = np.nextafter(0.1, 1)
    assert not spectra(Stored(x), 1, quiet).spread
    x[::2] = 0.1 + 1e-11
    assert spectra(Stored(x), 1, quiet).spread


@pytest.mark.parametrize("offset", [1e3, 1e6, 1e8])
def test_a_far_offset_is_not_mistaken_for_no_spread(offset: float) -> None:
    """Compared with numpy's SVD of the rows before the shift, exact in float64."""
    x = np.random.default_rng(4).integers(-8, 9, size=(40, 5)).astype(np.float64)
    got = spectra(Stored(x + offset), 1, quiet)
    assert got.spread
    np.testing.assert_allclose(
        got.centred, np.linalg.svd(x - x.mean(axis=0), compute_uv=False), rtol=1e-8
    )


@pytest.mark.parametrize(
    ("name", "path"),
    [
        *(
            (f"clinc150/{m}", ("clinc150", m, "spectrum"))
            for m in ("minilm", "minilm_int8", "e5small_q4", "use_multilingual")
        ),
        *(
            (f"debian_pairs/{m}_{side}", ("debian_pairs", m, f"spectrum_{side}"))
            for m in ("minilm", "e5small_q4")
            for side in ("query", "doc")
        ),
        *(
            (f"scifact_titles/{m}/sentences", ("scifact_titles", m, "spectrum_sentences"))
            for m in ("minilm", "e5small_q4")
        ),
    ],
)
def test_readings_of_real_spectra(
    name: str,
    path: tuple[str, ...],
    rows: Callable[[str], Array],
    reference: dict[str, Any],
    printed: Callable[[Any], Any],
) -> None:
    """Compared with the stored readings of an independent script (one numpy SVD)."""
    expected = reference
    for key in path:
        expected = expected[key]
    x = rows(name)
    got = spectra(Stored(x), 2, quiet)

    assert rankme(got.raw) == printed(expected["RankMe"])
    assert rankme(got.centred) == printed(expected["RankMe_centred"])
    assert participation_ratio(got.centred**2) == printed(expected["participation_ratio"])
    assert got.variances.sum() / (len(x) - 1) == printed(expected["variance_trace"])
    assert (got.centred**2).sum() / (len(x) - 1) == printed(expected["variance_trace"])


@pytest.mark.parametrize(("factor", "expected"), [(0, None), (99, 3.02), (999, 1.17)])
def test_rankme_falls_towards_one_as_a_common_offset_grows(
    factor: int,
    expected: float | None,
    rows: Callable[[str], Array],
    reference: dict[str, Any],
) -> None:
    """Compared with the published sequence for MiniLM; ratio and variance stay where they were."""
    x = rows("clinc150/minilm").astype(np.float64)
    direction = np.full(384, np.linalg.norm(x, axis=1).mean() / np.sqrt(384))
    got = spectra(Stored(x + factor * direction), 2, quiet)

    before = reference["clinc150"]["minilm"]["spectrum"]
    if expected is None:
        expected = before["RankMe"]
    assert rankme(got.raw) == pytest.approx(expected, abs=0.005)
    assert participation_ratio(got.centred**2) == pytest.approx(
        before["participation_ratio"], rel=1e-7
    )
    assert got.variances.sum() / 2999 == pytest.approx(before["variance_trace"], rel=1e-7)


@pytest.mark.parametrize("r", [1, 2, 17, 384, 768])
def test_a_flat_spectrum_reads_its_number_of_values(r: int) -> None:
    """Closed form with the published epsilon: exp(-r p ln p), p = 1/r + 1e-7."""
    p = 1 / r + 1e-7
    assert rankme(np.full(r, 3.0)) == pytest.approx(np.exp(-r * p * np.log(p)), rel=1e-12)
    assert participation_ratio(np.full(r, 3.0)) == pytest.approx(r, rel=1e-14)
    assert stable_rank(np.full(r, 3.0)) == pytest.approx(r, rel=1e-14)


def test_the_published_epsilon_shows_at_768_dimensions() -> None:
    """Published values: 768.333 for the identity, 1.00124 for rank one of 768."""
    assert rankme(np.ones(768)) == pytest.approx(768.333, abs=5e-4)
    assert rankme(np.eye(768)[0]) == pytest.approx(1.00124, abs=5e-6)
    assert participation_ratio(np.eye(768)[0]) == stable_rank(np.eye(768)[0]) == 1


def test_two_singular_values_three_and_one() -> None:
    """Closed forms: H(3/4, 1/4) for RankMe, (9+1)^2/(81+1) for the ratio, 10/9 for stable rank."""
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert rankme(np.array([3.0, 1.0])) == pytest.approx(np.exp(entropy), rel=1e-6)
    assert rankme(np.array([3.0, 1.0])) == pytest.approx(1.75476535, rel=1e-6)
    assert participation_ratio(np.array([9.0, 1.0])) == pytest.approx(100 / 82)
    assert stable_rank(np.array([3.0, 1.0])) == pytest.approx(10 / 9)


def test_exactly_low_rank_rows_give_finite_readings() -> None:
    """Closed form: singular values 4, 2, 0, 0 and a centred covariance of (8, 2)."""
    h = np.array([[1, 1], [-1, 1], [1, -1], [-1, -1]]) / 2
    got = spectra(Stored(h @ np.diag([4.0, 2.0]) @ np.eye(2, 5)), 1, quiet)
    np.testing.assert_allclose(got.raw, [4, 2, 0, 0], atol=1e-14)
    assert rankme(got.raw) == pytest.approx(1.88988157, rel=1e-5)
    assert rankme(got.raw) == pytest.approx(1.889888, abs=5e-7)
    assert participation_ratio(got.centred**2) == pytest.approx(1.47058824, rel=1e-8)
    got = spectra(Stored(np.diag([3.0, 1.0])), 1, quiet)
    assert rankme(got.raw) == pytest.approx(1.75476535, rel=1e-5)
    assert participation_ratio(got.centred**2) == pytest.approx(1.0, rel=1e-12)


@given(
    st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12),
    st.floats(1e-100, 1e100),
    st.randoms(use_true_random=False),
)
def test_a_spectrum_reads_the_same_in_any_unit_and_the_ratio_in_any_order(
    values: list[float], factor: float, random: Any
) -> None:
    """Compared with itself scaled and shuffled, and with the trace form of the ratio."""
    s = np.sort(np.array(values))[::-1]
    mixed = list(s)
    random.shuffle(mixed)
    for reading in (rankme, participation_ratio, stable_rank):
        assert reading(s * factor) == pytest.approx(reading(s), rel=1e-10)
    assert participation_ratio(np.array(mixed)) == pytest.approx(participation_ratio(s), rel=1e-12)
    assert rankme(np.array(mixed)) == pytest.approx(rankme(s), rel=1e-12)
    assert participation_ratio(s) == pytest.approx(s.sum() ** 2 / (s**2).sum(), rel=1e-12)
    assert stable_rank(s) == pytest.approx((s**2).sum() / s[0] ** 2, rel=1e-12)
    assert 1 - 1e-12 <= participation_ratio(s) <= len(s) + 1e-12


@pytest.mark.parametrize("elements", [1, 60, 1 << 20])
@given(
    n=st.integers(2, 60), d=st.integers(1, 10), rank=st.integers(1, 10), seed=st.integers(0, 10**6)
)
def test_components_are_those_of_one_full_svd(
    elements: int, n: int, d: int, rank: int, seed: int
) -> None:
    """Compared with numpy's SVD of the centred rows, up to signs; no direction of rounding is kept."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, min(rank, d))) * np.geomspace(1, 0.1, min(rank, d))
    x = x @ rng.normal(size=(min(rank, d), d)) / d + 0.3
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, elements)
        got = components(Stored(x), 2, quiet)
    _, values, directions = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    kept = min(rank, d, n - 1)
    np.testing.assert_allclose(got.singular_values, values[:kept], rtol=1e-8)
    np.testing.assert_allclose(np.abs((got.directions * directions[:kept]).sum(axis=1)), 1)
    np.testing.assert_allclose(
        got.shares(), np.cumsum(values[:kept] ** 2) / (values[:kept] ** 2).sum(), rtol=1e-9
    )


def test_equal_rows_have_no_components() -> None:
    """Closed form."""
    got = components(Stored(np.full((9, 4), 0.1)), 1, quiet)
    assert got.directions.shape == (0, 4)
