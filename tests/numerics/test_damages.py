"""Damages against numpy's SVD, written-out formulas and scipy's distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from service.numerics.coded import as_given
from service.numerics.damages import affine, fit, noisy, projected, unit_direction
from service.numerics.neighbours import silent
from service.numerics.rows import Stored
from service.numerics.spectrum import reduced, spectra_of_triangle

Array = NDArray[Any]
TRAIN = np.random.default_rng(1).normal(0.3, 1, size=(40, 7)) * np.geomspace(2, 0.2, 7)


@pytest.mark.parametrize("shape", [(40, 7), (5, 7), (2, 1)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8])
def test_what_train_rows_say_is_what_numpy_says(shape: tuple[int, int], dtype: type) -> None:
    """Means, the deviation of all numbers, and the subspaces of numpy's full SVD."""
    x = (20 * TRAIN[: shape[0], : shape[1]]).astype(dtype)
    found, wide = fit(x, 2, silent), x.astype(np.float64)
    np.testing.assert_allclose(found.mean, wide.mean(axis=0), rtol=1e-12)
    assert found.length == pytest.approx(np.linalg.norm(wide, axis=1).mean())
    assert found.deviation == pytest.approx(wide.std())
    _, values, directions = np.linalg.svd(wide, full_matrices=False)
    np.testing.assert_allclose(found.values, values, rtol=1e-9, atol=1e-12)
    for kept in range(1, len(values) + 1):
        ours, theirs = found.directions[:kept], directions[:kept]
        np.testing.assert_allclose(ours.T @ ours, theirs.T @ theirs, atol=1e-9)


@pytest.mark.parametrize(
    ("severity", "kept"), [(0.25, 5), (0.5, 4), (0.75, 2), (0.9, 1), (0.99, 1), (0.01, 7)]
)
def test_at_least_one_direction_is_kept_and_halves_go_to_even(severity: float, kept: int) -> None:
    """Of seven: 5.25, 3.5, 1.75, .7, .07 and 6.93."""
    assert fit(TRAIN, 1, silent).kept(severity) == kept


def test_directions_that_are_not_there_or_not_told_apart_are_known() -> None:
    """Rows in a plane; rows along two axes of equal length and a shorter third."""
    plane = TRAIN[:, :2] @ np.random.default_rng(2).normal(size=(2, 5))
    found = fit(plane, 1, silent)
    assert [found.spans(kept) for kept in (1, 2, 3)] == [True, True, False]
    even = fit(np.diag([2.0, 2, 1]), 1, silent)
    assert [even.separates(kept) for kept in (1, 2, 3)] == [False, True, True]


@pytest.mark.parametrize("value", [0.1, 1e-30, 3e7])
def test_equal_numbers_have_no_deviation_and_equal_rows_have_one(value: float) -> None:
    assert fit(np.full((6, 3), value), 1, silent).deviation == 0
    rows = np.tile([[1.0, 2, 3]], (6, 1))
    assert fit(rows, 1, silent).deviation == pytest.approx(np.std([1, 2, 3]))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8])
@pytest.mark.parametrize("damage", ["contraction", "offset", "mean_interpolation"])
@pytest.mark.parametrize("severity", [0.25, 0.99, 0.9999])
def test_affine_rows_are_read_as_the_formulas_say(
    damage: Any, severity: float, dtype: type
) -> None:
    """Written out, without a copy of the rows."""
    x = (20 * np.random.default_rng(4).normal(size=(30, 7))).astype(dtype)
    x[x == 0] = 1
    found = fit(TRAIN, 1, silent)
    length, along = np.linalg.norm(TRAIN, axis=1).mean(), unit_direction(7, 5)
    wide = x.astype(np.float64)
    wanted = {
        "contraction": wide * (1 - severity),
        "offset": wide + along * length * severity / (1 - severity),
        "mean_interpolation": (1 - severity) * wide + severity * TRAIN.mean(axis=0),
    }[damage]
    moved = affine(damage, severity, found, 5)
    assert moved is not None
    given = as_given(x, cosine=True)
    rows = moved.of(given, 2)
    assert np.shares_memory(rows.codes, x)
    np.testing.assert_allclose(rows.take(slice(0, 30)), wanted, rtol=1e-13, atol=1e-13)
    lengths = np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(rows.points(slice(0, 30)), wanted / lengths, rtol=1e-12, atol=1e-12)


def test_the_other_damages_are_no_scale_and_shift() -> None:
    assert affine("noise", 0.5, fit(TRAIN, 1, silent), 0) is None
    assert affine("rank_restriction", 0.5, fit(TRAIN, 1, silent), 0) is None


def test_the_direction_of_the_offset_is_unit_and_seeded() -> None:
    one, other = unit_direction(50, 1), unit_direction(50, 2)
    assert np.linalg.norm(one) == pytest.approx(1, abs=1e-15)
    assert np.array_equal(one, unit_direction(50, 1))
    assert abs(one @ other) < 0.6


@given(kept=st.integers(1, 7), seed=st.integers(0, 10**6))
def test_coordinates_are_as_far_apart_as_the_projected_rows(kept: int, seed: int) -> None:
    """Products of numpy's projected rows, in all dimensions."""
    x = np.random.default_rng(seed).normal(size=(20, 7))
    _, _, directions = np.linalg.svd(TRAIN, full_matrices=False)
    whole = x @ directions[:kept].T @ directions[:kept]
    found = projected(x, fit(TRAIN, 1, silent).directions[:kept], np.float64, 2)
    assert found.shape == (20, kept)
    np.testing.assert_allclose(found @ found.T, whole @ whole.T, atol=1e-12)


def test_noise_is_normal_and_the_same_but_for_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kolmogorov-Smirnov by scipy; sizes of blocks, threads and other severities change nothing."""
    x = np.random.default_rng(6).normal(size=(300, 20))
    drawn = noisy(x, 1.0, np.float64, 3, "one", 2) - x
    assert stats.kstest(drawn.ravel(), "norm").pvalue > 0.01
    assert np.abs(np.corrcoef(drawn.T) - np.eye(20)).max() < 0.25
    np.testing.assert_allclose((noisy(x, 7.0, np.float64, 3, "one", 2) - x) / 7, drawn, atol=1e-13)
    for seed, purpose in ((4, "one"), (3, "other")):
        assert np.abs(noisy(x, 1.0, np.float64, seed, purpose, 1) - x - drawn).max() > 1
    monkeypatch.setattr("service.numerics.rows.BLOCK_ELEMENTS", 64)
    assert np.array_equal(noisy(x, 1.0, np.float64, 3, "one", 2) - x, drawn)
    assert noisy(x.astype(np.float32), 1.0, np.float32, 3, "one", 2).dtype == np.float32


@given(
    scale=st.floats(0.001, 10),
    far=st.sampled_from([0.0, 1.0, 1000.0]),
    n=st.integers(2, 12),
    seed=st.integers(0, 10**6),
)
def test_a_scale_and_a_shift_move_the_triangle_in_closed_form(
    scale: float, far: float, n: int, seed: int
) -> None:
    """numpy's singular values of the moved rows."""
    random = np.random.default_rng(seed)
    x, shift = random.normal(size=(n, 6)), far * random.normal(size=6)
    mean, r, squares = triangle = reduced(Stored(x), 1, silent)
    moved = triangle._replace(mean=scale * mean + shift, r=scale * r, squares=scale**2 * squares)
    found, y = spectra_of_triangle(n, moved), scale * x + shift
    raw, centred = (np.linalg.svd(z, compute_uv=False) for z in (y, y - y.mean(axis=0)))
    np.testing.assert_allclose(found.raw, raw, rtol=1e-9, atol=1e-13 * raw[0])
    np.testing.assert_allclose(found.centred, centred, rtol=1e-9, atol=1e-13 * raw[0])
    np.testing.assert_allclose(found.variances, n * y.var(axis=0), rtol=1e-8, atol=1e-12)
