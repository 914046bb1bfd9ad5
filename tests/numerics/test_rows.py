"""Unit rows, the block grid and work over it, against exact arithmetic and plain Python."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.numerics.rows import (
    Directions,
    Stored,
    blocks,
    duplicate_rows,
    mean_row,
    norms,
    ordered_map,
    row_dots,
    row_facts,
    safe_scale,
    unit,
)

Array = NDArray[Any]
shapes = st.tuples(st.integers(1, 40), st.integers(1, 24))


def exact_norm(row: Array) -> float:
    """The length of a row from rational arithmetic, rounded once."""
    total = sum(Fraction(float(value)) ** 2 for value in row)
    scale = 2**1200
    root = math.isqrt(int(total * scale**2 * 2**120))
    return float(Fraction(root, scale * 2**60))


@given(shapes, st.integers(1, 200), st.integers(1, 9))
def test_blocks_cover_every_row_once_and_depend_on_the_shape_only(
    shape: tuple[int, int], elements: int, at_least: int
) -> None:
    """Compared with the list of row numbers itself."""
    n, d = shape
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.numerics.rows.BLOCK_ELEMENTS", elements)
        grid = blocks(n, d, at_least)
        again = blocks(n, d, at_least)

    assert [row for block in grid for row in range(n)[block]] == list(range(n))
    assert grid == again
    sizes = [block.stop - block.start for block in grid]
    assert set(sizes[:-1]) <= {max(elements // d, at_least, 1)}


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_ordered_map_keeps_the_order_when_later_work_ends_first(threads: int) -> None:
    """Compared with the built-in map."""

    def work(i: int) -> int:
        time.sleep(0.002 * ((7 - i) % 5))
        return i * i

    assert list(ordered_map(work, range(20), threads)) == [i * i for i in range(20)]


@pytest.mark.parametrize("threads", [1, 3])
def test_ordered_map_never_runs_far_ahead_of_its_reader(threads: int) -> None:
    """Counted: results asked for and not yet handed over."""
    taken, given_out = 0, 0
    ahead = []

    def source() -> Iterator[int]:
        nonlocal taken
        for i in range(50):
            taken += 1
            ahead.append(taken - given_out)
            yield i

    for _ in ordered_map(lambda i: i, source(), threads):
        given_out += 1
    assert given_out == 50
    assert max(ahead) <= 2 * threads + 1


def test_ordered_map_works_on_several_threads_at_once() -> None:
    """A barrier that only opens when two items are in work together."""
    barrier = threading.Barrier(2, timeout=10)
    assert sorted(ordered_map(lambda _: barrier.wait(), range(4), 2)) == [0, 0, 1, 1]


@pytest.mark.parametrize("threads", [1, 2])
def test_ordered_map_raises_what_the_work_raises(threads: int) -> None:
    """Compared with the error itself; nothing is lost in a thread."""

    def work(i: int) -> int:
        if i == 3:
            raise KeyError(i)
        return i

    with pytest.raises(KeyError, match="3"):
        list(ordered_map(work, range(100), threads))


@pytest.mark.parametrize(
    "scale", [5e-324, 1e-320, 1e-308, 1e-160, 1e-140, 1e-20, 1.0, 1e20, 1e140, 1e160, 1e307]
)
def test_norms_hold_from_the_smallest_to_the_largest_number(scale: float) -> None:
    """Compared with rational arithmetic."""
    x = np.random.default_rng(1).uniform(-1, 1, size=(12, 5))
    x[:, 0] = 1
    x = x * scale
    x[3] = 0
    expected = [exact_norm(row) for row in x]

    np.testing.assert_allclose(norms(x), expected, rtol=1e-15, atol=1e-323 if scale < 1e-300 else 0)


def test_norms_of_rows_of_mixed_sizes_do_not_disturb_each_other() -> None:
    """Closed form: 3-4-5 triangles of every size, and zero."""
    sizes = np.array([1e-200, 1e200, 1.0, 0.0, 1e-320, 1e-5])
    x = sizes[:, None] * np.array([[3.0, 4.0]])
    np.testing.assert_allclose(norms(x), 5 * sizes, rtol=2e-4)  # 1e-320 has three digits
    np.testing.assert_allclose(norms(x)[[0, 1, 2, 3, 5]], 5 * sizes[[0, 1, 2, 3, 5]], rtol=1e-15)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_unit_rows_have_length_one_whatever_the_storage_type(dtype: str) -> None:
    """Compared with rational arithmetic: lengths within 2^-52 of 1, directions kept."""
    raw = np.random.default_rng(2).integers(-100, 100, size=(20, 33))
    x = (raw if dtype == "int8" else raw / 16).astype(dtype)
    got = unit(x)

    assert got.dtype == np.float64
    assert max(abs(exact_norm(row) - 1) for row in got) <= 2**-52
    lengths = np.array([exact_norm(row) for row in x.astype(np.float64)])
    np.testing.assert_allclose(got * lengths[:, None], x.astype(np.float64), rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("power", [-1060, -600, -500, -1, 0, 1, 500, 1000])
def test_a_power_of_two_does_not_move_a_direction(power: int) -> None:
    """Compared with the rows before scaling: the same direction to the last digits."""
    x = np.random.default_rng(3).integers(1, 1 << 12, size=(10, 7)) / 4096.0
    np.testing.assert_allclose(unit(np.ldexp(x, power)), unit(x), rtol=4e-16)


@pytest.mark.parametrize("d", [1, 2, 3, 7, 8, 9, 64, 127, 128, 129, 384, 1000])
def test_unit_rows_and_dots_are_functions_of_the_rows_alone(d: int) -> None:
    """Compared bit for bit with the same rows in other company, other places and other numbers."""
    rng = np.random.default_rng(d)
    x = rng.normal(size=(300, d)).astype(np.float32)
    centred = Directions(x, unit(x).mean(axis=0) if d > 1 else None)
    whole, y = unit(x), np.roll(unit(x), 1, axis=0)
    dots, moved = row_dots(whole, y), centred.take(slice(0, 300))

    for size in (1, 2, 3, 5, 17, 100, 299):
        chosen = rng.integers(0, 300, size)
        assert np.array_equal(unit(x[chosen]), whole[chosen])
        assert np.array_equal(row_dots(whole[chosen], y[chosen]), dots[chosen])
        assert np.array_equal(centred.take(chosen), moved[chosen])
        assert np.array_equal(unit(x[1 : 1 + size]), whole[1 : 1 + size])
        assert np.array_equal(row_dots(whole[1 : 1 + size], y[1 : 1 + size]), dots[1 : 1 + size])


def test_unit_rows_do_not_depend_on_how_the_array_lies_in_memory() -> None:
    """Compared bit for bit with the same values in the other memory order."""
    x = np.random.default_rng(4).normal(size=(50, 384)).astype(np.float32)
    assert np.array_equal(unit(np.asfortranarray(x)), unit(x))


def test_the_dot_product_of_two_rows_does_not_depend_on_their_order() -> None:
    """Compared bit for bit with the sides exchanged, and with a correctly rounded sum."""
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(2, 40, 384))
    assert np.array_equal(row_dots(x, y), row_dots(y, x))
    expected = [math.fsum(u * v) for u, v in zip(x, y, strict=True)]
    np.testing.assert_allclose(row_dots(x, y), expected, atol=1e-13)


def test_centred_directions_are_subtracted_and_made_unit_again(
    unit_rows: Callable[[Array], Array],
) -> None:
    """Compared with plain numpy in one array."""
    x = np.random.default_rng(6).normal(1, 1, size=(30, 8)).astype(np.float32)
    mean = unit_rows(x).mean(axis=0)
    source = Directions(x, mean)

    assert (source.n, source.d) == (30, 8)
    np.testing.assert_allclose(
        source.take(slice(5, 20)), unit_rows(unit_rows(x) - mean)[5:20], atol=1e-15
    )
    np.testing.assert_allclose(
        source.residual_norms(slice(0, 30)),
        np.linalg.norm(unit_rows(x) - mean, axis=1),
        rtol=1e-14,
    )
    np.testing.assert_allclose(Directions(x).residual_norms(slice(0, 30)), 1, rtol=1e-15)


def test_stored_rows_are_handed_out_as_float64_copies() -> None:
    """Compared with the array they came from, which stays as it was."""
    x = np.arange(12, dtype=np.int8).reshape(4, 3)
    taken = Stored(x).take(np.array([2, 0]))
    assert taken.dtype == np.float64
    assert taken.tolist() == [[6, 7, 8], [0, 1, 2]]
    same = np.arange(6.0).reshape(2, 3)
    Stored(same).take(slice(0, 2))[:] = -1
    assert same.tolist() == [[0, 1, 2], [3, 4, 5]]


@given(st.floats(5e-324, 1.7e308))
def test_a_scale_is_a_power_of_two_that_makes_squares_safe(longest: float) -> None:
    """Compared with the definition: 1 where squares are safe anyway, else lengths near 1."""
    scale = safe_scale(longest)
    assert math.frexp(scale)[0] == 0.5
    assert np.isfinite(scale)
    if 1e-139 < longest < 1e139:
        assert scale == 1
    else:
        assert 1e-140 < longest * scale < 1e140
        assert longest * scale / scale == longest


@pytest.mark.parametrize("longest", [5e-324, 1e-320, 2.2e-308, 1e-200, 1e-141, 1e141, 1.7e308])
def test_a_scale_brings_extreme_lengths_to_where_squares_are_normal(longest: float) -> None:
    """Closed form: the square of the scaled length is far from both ends of float64."""
    scaled = longest * safe_scale(longest)
    assert 1e-100 < scaled**2 < 1e100
    rows = Stored(np.full((2, 2), longest), safe_scale(longest)).take(slice(0, 2))
    assert rows.tolist() == [[scaled, scaled]] * 2


def test_a_scale_of_nothing_is_one() -> None:
    """Closed form: rows of zeros stay as they are."""
    assert safe_scale(0.0) == 1


@pytest.mark.parametrize("d", [2, 3, 8, 12])
@pytest.mark.parametrize("source", [Directions, Stored])
def test_the_mean_of_equal_rows_is_that_row(d: int, source: Any) -> None:
    """However many: 200,000 equal numbers added up one by one are off by 1e-12 of their sum."""
    x = np.repeat(np.random.default_rng(1).normal(size=(1, d)).astype(np.float32), 200_000, 0)
    given = source(x)
    np.testing.assert_array_equal(mean_row(given, 2), given.take(slice(0, 1))[0])


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e8])
@pytest.mark.parametrize("elements", [700, 6400, 1 << 20])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_mean_row_keeps_its_digits_under_an_offset(
    monkeypatch: pytest.MonkeyPatch, offset: float, elements: int, threads: int
) -> None:
    """Compared with correctly rounded sums."""
    monkeypatch.setattr("service.numerics.rows.BLOCK_ELEMENTS", elements)
    x = np.random.default_rng(7).normal(size=(4001, 3)) + offset
    expected = [math.fsum(column) / 4001 for column in x.T]
    got = mean_row(Stored(x), threads)
    np.testing.assert_allclose(got, expected, rtol=3e-16, atol=1e-16)


def brute_duplicates(x: Array) -> tuple[int, int]:
    """Rows equal to an earlier row, and classes of equal rows, from a dictionary of tuples."""
    counts = Counter(tuple(float(value) + 0.0 for value in row) for row in x)
    return sum(c - 1 for c in counts.values()), sum(c > 1 for c in counts.values())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
@pytest.mark.parametrize("elements", [5, 1 << 20])
@given(data=st.data())
def test_duplicates_are_counted_as_a_dictionary_counts_them(
    dtype: str, elements: int, data: st.DataObject
) -> None:
    """Compared with a dictionary of tuples, where -0.0 equals 0.0."""
    n, d = data.draw(shapes)
    cells = data.draw(
        st.lists(
            st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0]),
            min_size=n * d,
            max_size=n * d,
        )
    )
    x = np.array(cells, dtype=dtype).reshape(n, d)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.numerics.rows.BLOCK_ELEMENTS", elements)
        assert duplicate_rows(x, 1) == duplicate_rows(x, 2) == brute_duplicates(x)


def test_rows_that_differ_in_the_last_bit_are_not_duplicates() -> None:
    """Compared with a dictionary of tuples."""
    x = np.tile(np.random.default_rng(8).normal(size=16).astype(np.float32), (33, 1))
    for i in range(1, 17):
        x[i, i - 1] = np.nextafter(x[i, i - 1], np.float32(np.inf))
    assert duplicate_rows(x, 1) == brute_duplicates(x) == (16, 1)


def test_duplicates_on_real_rows(rows: Callable[[str], Array]) -> None:
    """Compared with numpy's sort of whole rows."""
    x = rows("clinc150/minilm")
    counts = np.unique(x, axis=0, return_counts=True)[1]
    assert duplicate_rows(x, 2) == (3000 - len(counts), int((counts > 1).sum()))


def test_sign_vectors_in_float64_are_told_apart() -> None:
    """
    Closed form: one row and another one twice.

    Only the low 33 bits of the hash factors see the sign of a float64, and there these two met.
    """
    bits = np.array([[0x0299564152], [0x445A1824F9]], dtype=np.uint64)
    signs = np.where((bits >> np.arange(40, dtype=np.uint64)) & np.uint64(1), -1.0, 1.0)
    assert duplicate_rows(signs[[0, 1, 1]], 1) == (1, 1)


def test_row_facts_name_what_is_wrong_and_measure_the_rest() -> None:
    """Closed form."""
    x = np.array(
        [[3, 4], [np.nan, 1], [0, 0], [0, 1], [np.inf, -np.inf], [1, 5e-4]], dtype=np.float32
    )
    facts = row_facts(x, start=100)
    assert (facts.n, facts.unit_rows) == (6, 2)
    assert facts.non_finite.tolist() == [101, 104]
    assert facts.zero.tolist() == [102]
    assert (facts.norm_min, facts.norm_max) == (0, 5)


def test_row_facts_of_rows_without_any_finite_one() -> None:
    """Closed form: no norm at all is (inf, 0), so that blocks can be merged by min and max."""
    facts = row_facts(np.full((2, 3), np.nan, dtype=np.float16))
    assert facts.non_finite.tolist() == [0, 1]
    assert facts.zero.tolist() == []
    assert (facts.unit_rows, facts.norm_min, facts.norm_max) == (0, np.inf, 0)


def test_a_row_whose_length_overflows_counts_as_non_finite() -> None:
    """Closed form: four times 2^1023 has length 2^1024, which float64 cannot hold; half can."""
    facts = row_facts(np.array([[2.0**1023] * 4, [2.0**1022] * 4, [0.5] * 4]))
    assert facts.non_finite.tolist() == [0]
    assert (facts.norm_min, facts.norm_max) == (1, 2.0**1023)


@given(shapes, st.integers(0, 2**32 - 1))
def test_row_facts_of_blocks_add_up_to_those_of_all_rows(shape: tuple[int, int], seed: int) -> None:
    """Compared with one call on all rows."""
    rng = np.random.default_rng(seed)
    x = rng.choice([0.0, 0.0, 1.0, np.nan, 1e300], size=shape)
    whole, cut = row_facts(x), len(x) // 2
    parts = [row_facts(x[:cut]), row_facts(x[cut:], cut)]
    assert whole.zero.tolist() == [i for part in parts for i in part.zero.tolist()]
    assert whole.non_finite.tolist() == [i for part in parts for i in part.non_finite.tolist()]
    assert whole.unit_rows == sum(part.unit_rows for part in parts)
    assert whole.norm_min == min(part.norm_min for part in parts)
    assert whole.norm_max == max(part.norm_max for part in parts)
