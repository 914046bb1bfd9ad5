"""Rows in float32 against numpy's float32, one operation at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.numerics.coded import as_given, coded
from service.numerics.neighbours import FLOAT32, gamma
from service.numerics.pairs import dot_single
from service.numerics.single import in_single, shorten

Single = NDArray[np.float32]


def rows_of(seed: int, n: int, d: int, spread: float) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(size=(n, d)) * 10 ** rng.uniform(-spread, spread, size=(n, 1)))


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.sampled_from([0.0, 3.0, 120.0]))
def test_directions_are_rows_over_their_lengths_within_the_bound_of_float32(
    seed: int, d: int, spread: float
) -> None:
    x = rows_of(seed, 20, d, spread)
    made = in_single(as_given(x, cosine=True), 1)
    assert made.codes.dtype == np.float32
    largest = np.abs(x).max(axis=1, keepdims=True)
    unit = (x / largest) / np.linalg.norm(x / largest, axis=1, keepdims=True)
    assert np.abs(made.codes - unit).max() <= gamma(d + 4, FLOAT32)
    np.testing.assert_array_equal(made.divisors, 1)


@given(st.integers(0, 2**32 - 1), st.integers(1, 70), st.sampled_from(["float64", "float32"]))
def test_scores_of_directions_lie_within_the_bound_the_condition_uses(
    seed: int, d: int, dtype: str
) -> None:
    """gamma_{2d+4}(2^-24), against cosines in extended precision."""
    x = rows_of(seed, 40, d, 2.0).astype(dtype)
    wide = x.astype(np.longdouble)
    wide /= np.sqrt((wide**2).sum(axis=1, keepdims=True))
    single = in_single(as_given(x, cosine=True), 1).codes
    scores = np.array([[dot_single(a, b) for b in single] for a in single])
    assert np.abs(scores - wide @ wide.T).max() <= gamma(2 * d + 4, FLOAT32)


def test_shortening_divides_by_the_float32_length_in_float32() -> None:
    """Fewer than eight coordinates are summed one after the other."""
    x = np.random.default_rng(3).normal(size=(50, 5)).astype(np.float32)
    wanted = x.copy()
    for row in wanted:
        total = np.float32(0)
        for value in row:
            total = np.float32(total + np.float32(value * value))
        row /= np.sqrt(total)
    shorten(x)
    np.testing.assert_array_equal(x, wanted)


def test_zero_rows_stay_zero() -> None:
    x = np.zeros((3, 4), np.float32)
    x[1] = [3, 0, 4, 0]
    made = in_single(as_given(x, cosine=True), 1)
    np.testing.assert_allclose(made.codes[1], [0.6, 0, 0.8, 0], rtol=1e-6)
    assert not made.codes[[0, 2]].any()


@pytest.mark.parametrize("size", [1e-120, 1e-30, 1.0, 1e30, 1e120])
def test_rows_that_are_scored_as_they_are_come_back_whatever_their_size(size: float) -> None:
    x = rows_of(5, 30, 11, 1.0) * size
    made = in_single(coded(x, cosine=False), 1)
    assert np.isfinite(made.codes).all()
    assert (np.abs(made.codes).max(axis=1) < 2).all()
    assert (np.abs(made.codes).max(axis=1) >= 1).all()
    back = made.codes.astype(np.float64) / made.divisors[:, None]
    np.testing.assert_allclose(back, x, rtol=2**-23, atol=size * 1e-40)


def test_the_result_does_not_depend_on_threads(small_blocks: object) -> None:
    x = rows_of(6, 200, 33, 3.0)
    small_blocks(330)  # type: ignore[operator]
    one, three = (in_single(as_given(x, cosine=True), threads) for threads in (1, 3))
    assert one.codes.tobytes() == three.codes.tobytes()
