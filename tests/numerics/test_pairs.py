"""Scores of pairs bit for bit against plain sums, and lists of the best against a sort."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.numerics import pairs

from .per_pair import best, lanes

Array = NDArray[Any]
WIDTHS = [*range(1, 41), 100, 384, 1000, 1537, 4096]
seeds = st.integers(0, 2**32 - 1)


def plain(rows: Array) -> tuple[Array, Array, Array, Array]:
    """Rows as kernels take them, read as they are."""
    n, d = rows.shape
    return rows, np.zeros(d), np.ones(d), np.ones(n)


def uneven(rng: np.random.Generator, *shape: int) -> Array:
    """Numbers of many magnitudes: their sum has other last bits in any other order."""
    return rng.normal(size=shape) * np.exp2(rng.integers(-20, 20, shape))


def in_words(x: Array, y: Array) -> float:
    """The sum the docstring describes, one number after the other."""
    one = type(x[0])
    products = [one(a * b) for a, b in zip(x, y, strict=True)]
    whole = len(products) - len(products) % 8
    lane = [one(0)] * 8
    for j in range(whole):
        lane[j % 8] = lane[j % 8] + products[j]
    rest = one(0)
    for j in range(whole, len(products)):
        rest = rest + products[j]
    even = (lane[0] + lane[4]) + (lane[2] + lane[6])
    odd = (lane[1] + lane[5]) + (lane[3] + lane[7])
    return float((even + odd) + rest)


@pytest.mark.parametrize("d", WIDTHS)
def test_a_dot_product_is_summed_in_eight_lanes(d: int) -> None:
    """Bit for bit: a plain loop over Python numbers, and numpy's lanes."""
    rng = np.random.default_rng(d)
    for _ in range(20):
        x, y = uneven(rng, 2, d)
        assert pairs.dot(x, y) == in_words(x, y) == lanes(x, y)


@pytest.mark.parametrize("d", WIDTHS)
def test_a_float32_dot_product_is_summed_in_eight_lanes(d: int) -> None:
    """Bit for bit: a plain loop over float32 numbers, and numpy's lanes."""
    rng = np.random.default_rng(d)
    for _ in range(20):
        x, y = uneven(rng, 2, d).astype(np.float32)
        assert pairs.dot_single(x, y) == in_words(x, y) == lanes(x, y)


@pytest.mark.parametrize("d", WIDTHS)
def test_a_dot_product_is_within_its_rounding_of_the_true_one(d: int) -> None:
    """Compared with correctly rounded sums of products that float64 holds exactly."""
    rng = np.random.default_rng(d)
    x, y = rng.normal(size=(2, d)).astype(np.float32).astype(np.float64)
    bound = d * 2.0**-53 * math.fsum(abs(x * y)) * 1.001
    assert abs(pairs.dot(x, y) - math.fsum(x * y)) <= bound


@given(seeds, st.integers(1, 70))
def test_a_dot_product_does_not_know_which_row_is_first(seed: int, d: int) -> None:
    """Bit for bit."""
    x, y = uneven(np.random.default_rng(seed), 2, d)
    assert pairs.dot(x, y) == pairs.dot(y, x)
    x, y = x.astype(np.float32), y.astype(np.float32)
    assert pairs.dot_single(x, y) == pairs.dot_single(y, x)


def test_every_binary16_number_is_read_as_numpy_reads_it() -> None:
    """All 65,536 patterns but the 2,048 that are not finite; an offset of zero takes zero's sign."""
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    codes = bits[np.isfinite(bits.view(np.float16))].reshape(-1, 1024)
    out = np.empty(codes.shape)
    pairs.read_rows(*plain(codes), np.arange(len(codes)), out)
    expected = codes.view(np.float16).astype(np.float64)
    assert codes.size == 63488
    assert out.tobytes() == (expected + 0.0).tobytes()
    outside = [pairs.number(code) for code in codes.ravel()]
    assert np.array(outside).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "uint8"])
def test_other_codes_are_read_as_themselves(dtype: str) -> None:
    """Closed form, at the ends of each type."""
    end = np.finfo(dtype) if dtype.startswith("f") else np.iinfo(dtype)
    codes = np.array([[end.min, 0, 1, end.max]], dtype=dtype)
    out = np.empty(codes.shape)
    pairs.read_rows(*plain(codes), np.array([0]), out)
    assert out[0].tolist() == [float(code) for code in codes[0].tolist()]
    assert [pairs.number(code) for code in codes[0]] == out[0].tolist()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "uint8"])
def test_rows_are_read_with_offset_and_scales(dtype: str) -> None:
    """Bit for bit: numpy, where each product and sum is rounded by itself."""
    rng = np.random.default_rng(5)
    given_rows = (rng.normal(size=(9, 21)) * 40).clip(0, 120).astype(dtype)
    codes = given_rows.view(np.uint16) if dtype == "float16" else given_rows
    low, scale, row_scale = uneven(rng, 21), uneven(rng, 21), uneven(rng, 9)
    expected = low + given_rows.astype(np.float64) * scale * row_scale[:, None]
    which = np.array([8, 0, 3, 3])
    out = np.empty((4, 21))
    pairs.read_rows(codes, low, scale, row_scale, which, out)
    assert out.tobytes() == expected[which].tobytes()
    lengths = np.empty(9)
    pairs.lengths(codes, low, scale, row_scale, lengths)
    assert lengths.tobytes() == np.sqrt(lanes(expected, expected)).tobytes()


@pytest.mark.parametrize("d", [1, 7, 8, 30, 384])
def test_a_score_is_a_function_of_the_two_rows_alone(d: int) -> None:
    """One pair at other places, among other rows, in other tiles, in lists of other lengths."""
    rng = np.random.default_rng(d)
    x, y = uneven(rng, 2, d)
    expected = lanes(x, y) / (3.0 * 7.0)
    for n, place, m, at in [(1, 0, 1, 0), (2, 1, 5, 4), (501, 300, 3, 1), (40000 // d, 7, 2, 0)]:
        if n <= place:
            continue
        gallery, queries = uneven(rng, n, d), uneven(rng, m, d)
        by, divisors = np.full(n, 7.0), np.full(m, 3.0)
        gallery[place], queries[at] = y, x
        ids = np.full((m, 4), place, np.int32)
        scores = np.empty(ids.shape)
        pairs.score_listed(queries, divisors, ids, *plain(gallery), by, scores)
        assert (scores[at] == expected).all()
        found, found_scores = np.empty((m, n), np.int32), np.empty((m, n))
        nobody = np.full(m, -1)
        pairs.best_of_all(
            queries, divisors, nobody, False, *plain(gallery), by, found, found_scores
        )
        assert found_scores[at][found[at] == place].tolist() == [expected]


def test_listed_pairs_are_scored_and_gaps_in_the_list_are_not() -> None:
    """Bit for bit: numpy's lanes over divisors; an id of -1 scores -inf."""
    rng = np.random.default_rng(6)
    gallery, queries = uneven(rng, 30, 19), uneven(rng, 4, 19)
    by, divisors = rng.uniform(1, 2, 30), rng.uniform(1, 2, 4)
    ids = rng.integers(-1, 30, (4, 50)).astype(np.int32)
    scores = np.empty(ids.shape)
    pairs.score_listed(queries, divisors, ids, *plain(gallery), by, scores)
    expected = lanes(queries[:, None], gallery[ids]) / (divisors[:, None] * by[ids])
    assert scores.tobytes() == np.where(ids < 0, -np.inf, expected).tobytes()
    assert (ids == -1).any()


@given(seeds, st.integers(1, 5), st.integers(1, 30), st.integers(1, 12), st.integers(1, 40))
def test_the_best_listed_are_the_first_of_a_sort(
    seed: int, m: int, c: int, k: int, values: int
) -> None:
    """Compared with numpy's lexsort: ties, repeated ids, no ids, fewer items than places."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(-1, 40, (m, c)).astype(np.int32)
    scores = rng.integers(0, values, (m, c)).astype(np.float64)
    found, found_scores = np.empty((m, k), np.int32), np.empty((m, k))
    pairs.best_listed(ids, scores, found, found_scores)
    for i in range(m):
        real = ids[i] >= 0
        order = np.lexsort((ids[i][real], -scores[i][real]))[:k]
        short = k - len(order)
        assert found[i].tolist() == [*ids[i][real][order], *[-1] * short]
        assert found_scores[i].tolist() == [*scores[i][real][order], *[-np.inf] * short]


@pytest.mark.parametrize("single", [False, True])
@given(
    seeds,
    st.integers(1, 60),
    st.sampled_from([1, 2, 8, 11, 1100, 33000]),
    st.integers(1, 4),
    st.integers(1, 8),
    st.booleans(),
)
def test_the_best_of_all_are_the_first_of_a_sort(
    single: bool, seed: int, n: int, d: int, m: int, k: int, own: bool
) -> None:
    """
    Compared with numpy's lanes and lexsort: ties, one row in a tile and all rows in one.

    A query that is a row of the gallery is left out by its number, its duplicates are not.
    """
    rng = np.random.default_rng(seed)
    n = min(n, 200000 // d)
    gallery = rng.integers(-1, 2, (n, d)).astype(np.float64)
    queries = rng.integers(-1, 2, (m, d)).astype(np.float64) * 0.1
    by, divisors = rng.integers(1, 3, n).astype(np.float64), rng.uniform(1, 2, m)
    excluded = rng.integers(0, n, m) if own else np.full(m, -1)
    found, found_scores = np.empty((m, k), np.int32), np.empty((m, k))
    pairs.best_of_all(queries, divisors, excluded, single, *plain(gallery), by, found, found_scores)
    kind = np.float32 if single else np.float64
    dots = np.stack([lanes(query.astype(kind), gallery.astype(kind)) for query in queries])
    scores = dots.astype(np.float64) / (divisors[:, None] * by)
    there = min(k, n - int(own))
    assert (found[:, there:] == -1).all()
    assert (found_scores[:, there:] == -np.inf).all()
    if there:
        ids, expected, _ = best(scores, there, excluded if own else None)
        assert found[:, :there].tolist() == ids.tolist()
        assert found_scores[:, :there].tobytes() == expected.tobytes()
