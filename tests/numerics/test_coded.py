"""Rows kept as codes against plain float64 rows."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.numerics.coded import as_given, by_direction, chunks, coded, distances, rows_as_codes

from .per_pair import Plain, lanes

Array = NDArray[Any]
TYPES = ["float64", "float32", "float16", "int8", "uint8"]


def some_rows(dtype: str, n: int = 40, d: int = 19) -> Array:
    """Rows of a type as they are mapped, one of them zero."""
    x = np.abs(np.random.default_rng(1).normal(size=(n, d)) * 30).clip(0, 120)
    x[3] = 0
    found = x.astype(dtype)
    found.flags.writeable = False
    return found


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("cosine", [True, False])
def test_rows_as_given_are_read_in_place(dtype: str, cosine: bool) -> None:
    """Bit for bit: numpy's float64 rows and lanes; a row of zeros divides by one."""
    x = some_rows(dtype)
    made, expected = as_given(x, cosine=cosine), Plain.of(x, cosine=cosine)
    assert np.shares_memory(made.codes, x)
    assert (made.n, made.d) == x.shape
    assert made.take(slice(None)).tobytes() == expected.rows.tobytes()
    assert made.divisors.tobytes() == expected.by.tobytes()
    assert made.divisors[3] == 1
    points = expected.rows / expected.by[:, None]
    assert made.points(slice(None)).tobytes() == points.tobytes()


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_without_a_direction_are_counted_where_directions_matter(dtype: str) -> None:
    """Closed form: one row of zeros; lengths found later are lengths found at once."""
    x = some_rows(dtype)
    product, cosine = as_given(x, cosine=False), as_given(x, cosine=True)
    assert (product.cosine, product.zero_rows) == (False, 0)
    assert (cosine.cosine, cosine.zero_rows) == (True, 1)
    later = by_direction(product, 2)
    assert (later.cosine, later.zero_rows) == (True, 1)
    assert later.divisors.tobytes() == cosine.divisors.tobytes()
    assert (product.divisors == 1).all()


@pytest.mark.parametrize(
    "which",
    [
        slice(2, 9),
        slice(0, 0),
        np.array([5, 5, 0]),
        np.array([], dtype=np.int64),
        -1 - np.arange(3),
    ],
    ids=["a range", "an empty range", "repeated", "none", "from the end"],
)
def test_chosen_rows_are_numpys_choice(which: Any) -> None:
    """Compared with numpy's indexing; what is given is new memory."""
    x = some_rows("float64")
    made = as_given(x, cosine=True)
    assert made.take(which).tobytes() == x[which].tobytes()
    assert not np.shares_memory(made.take(which), x)
    assert made.points(which).tobytes() == (x[which] / made.divisors[which, None]).tobytes()


def test_points_are_divided_where_they_are_read() -> None:
    """The bits of numpy's quotient, in the memory of one float64 copy."""
    x = some_rows("int8", 4000, 64)
    rows = as_given(x, cosine=True)
    wanted = x.astype(float) / rows.divisors[:, None]
    rows.points(slice(10))
    tracemalloc.start()
    found = rows.points(slice(None))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(found, wanted)
    assert peak < 1.5 * wanted.nbytes


def test_binary16_is_kept_as_its_bits() -> None:
    """The same memory, and other types untouched."""
    half, single = some_rows("float16"), some_rows("float32")
    assert rows_as_codes(half).dtype == np.uint16
    assert np.shares_memory(rows_as_codes(half), half)
    assert rows_as_codes(single) is single


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("cosine", [True, False])
def test_codes_are_offset_and_scaled_by_coordinate_and_by_row(dtype: str, cosine: bool) -> None:
    """Bit for bit: numpy, each product and sum rounded by itself."""
    x = some_rows(dtype)
    rng = np.random.default_rng(2)
    low, scale, row_scale = rng.normal(size=19), rng.normal(size=19), rng.normal(size=40)
    made = coded(rows_as_codes(x), cosine=cosine, low=low, scale=scale, row_scale=row_scale)
    rows = low + x.astype(np.float64) * scale * row_scale[:, None]
    assert made.take(slice(None)).tobytes() == rows.tobytes()
    assert made.divisors.tobytes() == Plain.of(rows, cosine=cosine).by.tobytes()


def test_a_mapped_file_is_not_read_into_memory(tmp_path: Path) -> None:
    """The codes are the map itself."""
    np.save(tmp_path / "rows.npy", some_rows("float16"))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert np.shares_memory(as_given(mapped, cosine=True).codes, mapped)


@given(
    st.lists(st.floats(-1074, 1023.9), min_size=1, max_size=12),
    st.integers(1, 9),
    st.integers(0, 2**32 - 1),
)
def test_float64_rows_of_any_length_have_unit_points(
    exponents: list[float], d: int, seed: int
) -> None:
    """Compared with numpy on rows brought near one: directions kept, ordinary rows not scaled."""
    rng = np.random.default_rng(seed)
    largest = np.exp2(np.array(exponents))
    x = rng.uniform(0.5, 1, (len(largest), d)) * largest[:, None]
    x[:, 0] = largest
    made = as_given(x, cosine=True)
    scaled = np.ldexp(x, -np.frexp(largest)[1][:, None])  # exact: numbers in [0.5, 1)
    expected = scaled / np.sqrt((scaled * scaled).sum(axis=1))[:, None]
    np.testing.assert_allclose(made.points(slice(None)), expected, rtol=1e-14, atol=1e-300)
    assert (np.frexp(made.row_scale)[0] == 0.5).all()
    ordinary = (largest > 1e-139) & (largest < 1e139)
    assert (made.row_scale[ordinary] == 1).all()
    assert np.isfinite(made.divisors).all()


@pytest.mark.parametrize("extreme", [1e-200, 1e200])
def test_a_row_of_extreme_length_changes_no_other_row(extreme: float) -> None:
    """Bit for bit, a row of zeros included: a score is a function of its two rows alone."""
    x = np.random.default_rng(4).normal(size=(30, 11))
    x[5] = 0
    one = as_given(x, cosine=True)
    other = as_given(np.concatenate([x, np.full((1, 11), extreme)]), cosine=True)
    assert other.points(slice(0, 30)).tobytes() == one.points(slice(None)).tobytes()
    assert other.divisors[:30].tobytes() == one.divisors.tobytes()
    np.testing.assert_allclose(other.points(slice(30, 31)), 11**-0.5, rtol=1e-15)


def test_rows_of_products_are_never_scaled() -> None:
    """Closed form: a product is not free of scale."""
    x = np.array([[3.0, 4.0], [3e-9, 4e-9]]) * 1e100
    made = as_given(x, cosine=False)
    assert made.row_scale.tolist() == made.divisors.tolist() == [1, 1]
    assert made.take(slice(None)).tobytes() == x.tobytes()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("elements", [1, 100, 1 << 20])
def test_lengths_and_distances_know_no_blocks_and_no_threads(
    monkeypatch: pytest.MonkeyPatch, threads: int, elements: int
) -> None:
    """Bit for bit: numpy's lanes for lengths; distances compared with numpy's norm."""
    x = np.random.default_rng(3).normal(size=(101, 19))
    x[7] = 0
    x[8] *= 1e-170
    monkeypatch.setattr("service.numerics.rows.BLOCK_ELEMENTS", elements)
    one = as_given(x, cosine=True, threads=threads)
    assert one.divisors.tobytes() == as_given(x, cosine=True).divisors.tobytes()
    plain = Plain.of(one.take(slice(None)), cosine=True)
    assert one.divisors.tobytes() == plain.by.tobytes()
    y = x.astype(np.float16)
    y[8] = 1
    other = as_given(y, cosine=True, threads=threads)
    near_one = x / np.where(x.any(axis=1), np.abs(x).max(axis=1), 1)[:, None]
    unit_x = near_one / Plain.of(near_one, cosine=True).by[:, None]
    unit_y = y.astype(np.float64) / Plain.of(y, cosine=True).by[:, None]
    apart = np.linalg.norm(unit_x - unit_y, axis=1)
    np.testing.assert_allclose(distances(one, other, threads), apart, rtol=1e-12, atol=1e-16)


def test_distances_of_half_precision_are_what_it_loses(
    rows: Callable[[str], Array], unit_rows: Callable[[Array], Array]
) -> None:
    """Compared with numpy on real rows: float16 moves a direction by about 2^-12 of its length."""
    x = rows("clinc150/minilm")
    half = x.astype(np.float16)
    got = distances(as_given(x, cosine=True), as_given(half, cosine=True), 2)
    np.testing.assert_allclose(
        got, np.linalg.norm(unit_rows(x) - unit_rows(half), axis=1), rtol=1e-9
    )
    assert 0 < got.max() < 2.0**-11


def test_equal_rows_are_no_distance_apart() -> None:
    """Closed form, zero rows included."""
    x = some_rows("float32")
    same = distances(as_given(x, cosine=True), as_given(x.astype(np.float64), cosine=True), 1)
    assert (same == 0).all()


@given(st.integers(0, 50), st.integers(1, 60))
def test_chunks_are_consecutive_and_full_but_for_the_last(n: int, size: int) -> None:
    """Closed form: joined they count to n."""
    found = list(chunks(n, size))
    assert [i for part in found for i in range(part.start, part.stop)] == list(range(n))
    assert all(part.stop - part.start == size for part in found[:-1])
    assert all(0 < part.stop - part.start <= size for part in found)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_the_integers_behind_the_exact_scores_are_exact(seed: int, d: int) -> None:
    """The oracle's own test: numpy's lanes where they round nothing."""
    x, y = np.random.default_rng(seed).integers(-1000, 1000, (2, 5, d)) / 64
    left, right = Plain(x, np.full(5, 2.0)), Plain(y, np.full(5, 4.0))
    assert left.exact(right).tobytes() == left.scores(right).tobytes()
    assert left.scores(right)[1, 2] == lanes(x[1], y[2]) / 8
