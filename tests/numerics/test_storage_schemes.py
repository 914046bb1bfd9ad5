"""Codes against FAISS, numpy and definitions written out; the facts a scheme reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.numerics.coded import as_given
from service.numerics.storage_schemes import Fitted, Stored, TooFewToTrain, fit, offset, store
from tests.stored_by_hand import SCHEMES, bfloat16, stored, unit

Array = NDArray[Any]
TYPES = {
    "int8_qt8": faiss.ScalarQuantizer.QT_8bit,
    "int4": faiss.ScalarQuantizer.QT_4bit,
}


def fitted(name: str, calibration: Array, threads: int = 1) -> Fitted:
    x = np.asarray(calibration, np.float64)
    return fit(name, lambda which: x[which], *x.shape, threads)  # type: ignore[arg-type]


def kept(scheme: Fitted, rows: Array, *, cosine: bool = False, threads: int = 1) -> Stored:
    x = np.asarray(rows, np.float64)
    return store(scheme, lambda which: x[which], *x.shape, cosine=cosine, threads=threads)


def read_back(scheme: Fitted, rows: Array) -> Array:
    return kept(scheme, rows).rows.take(slice(None))


def faiss_codes(kind: int, calibration: Array, x: Array) -> tuple[Array, Array]:
    """Codes by coordinate and rows as FAISS reads them."""
    quantiser = faiss.ScalarQuantizer(x.shape[1], kind)
    quantiser.train(np.ascontiguousarray(calibration, np.float32))
    codes = quantiser.compute_codes(np.ascontiguousarray(x, np.float32))
    if kind == TYPES["int4"]:
        halves = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(x), -1)
        return halves[:, : x.shape[1]], quantiser.decode(codes)
    return codes, quantiser.decode(codes)


@pytest.mark.parametrize("name", ["int8_qt8", "int4"])
@pytest.mark.parametrize("folder", ["clinc150/minilm", "clinc150/use_multilingual"])
def test_codes_by_range_are_those_of_faiss_on_real_rows(
    name: str, folder: str, rows: Callable[[str], Array]
) -> None:
    """Also of rows outside the range they were trained on."""
    x = unit(rows(folder))
    theirs, read = faiss_codes(TYPES[name], x[:500], x)
    scheme = fitted(name, x[:500])
    np.testing.assert_array_equal(kept(scheme, x).rows.codes, theirs)
    np.testing.assert_allclose(read_back(scheme, x), read, rtol=1e-5, atol=1e-7)
    low, high = x[:500].astype(np.float32).min(axis=0), x[:500].astype(np.float32).max(axis=0)
    beyond = (x.astype(np.float32) < low) | (x.astype(np.float32) > high)
    found = kept(scheme, x)
    assert 0 < found.clipped_coordinates == beyond.sum()
    assert found.clipped_rows == beyond.any(axis=1).sum()


@st.composite
def calibrated(draw: st.DrawFn) -> tuple[Array, Array]:
    """Calibration rows and rows to store, float32."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, d = draw(st.integers(1, 60)), draw(st.integers(1, 20))
    kind = draw(st.sampled_from(["normal", "levels", "offset", "constant", "tiny", "equal"]))
    x = rng.normal(size=(n + 30, d))
    if kind == "levels":  # on the edges of cells, where one rounding decides
        x = rng.integers(0, draw(st.sampled_from([15, 255, 510])) + 1, size=x.shape) + 0.0
    elif kind == "offset":
        x = x * 1e-3 + 1e3
    elif kind == "constant":
        x[:, rng.random(d) < 0.5] = 0.3
    elif kind == "tiny":
        x = x * 1e-30
    elif kind == "equal":
        x[:] = x[0]
    x = x.astype(np.float32)
    return x[:n], x


@pytest.mark.parametrize("name", ["int8_qt8", "int4"])
@given(drawn=calibrated())
def test_codes_by_range_are_those_of_faiss(name: str, drawn: tuple[Array, Array]) -> None:
    calibration, x = drawn
    theirs, read = faiss_codes(TYPES[name], calibration, x)
    scheme = fitted(name, calibration)
    np.testing.assert_array_equal(kept(scheme, x).rows.codes, theirs)
    np.testing.assert_allclose(read_back(scheme, x), read, rtol=1e-5, atol=1e-6 * np.abs(x).max())
    assert scheme.constant == tuple(np.flatnonzero(np.ptp(calibration, axis=0) == 0))


@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "pq"])
@given(drawn=calibrated())
def test_rows_read_back_as_the_definition_says(name: str, drawn: tuple[Array, Array]) -> None:
    calibration, x = drawn
    wanted = stored(name, x, calibration)
    size = max(np.abs(x).max(), np.abs(wanted).max())
    np.testing.assert_allclose(
        read_back(fitted(name, calibration), x), wanted, rtol=1e-13, atol=1e-14 * size
    )


@given(st.lists(st.floats(-7e4, 7e4, width=64), min_size=1, max_size=30))
def test_half_precision_is_numpys_and_overflow_is_seen(values: list[float]) -> None:
    x = np.array([values])
    with np.errstate(over="ignore"):
        wanted = x.astype(np.float16)
    found = kept(fitted("fp16", x), x)
    assert found.rows.codes.view(np.float16).tobytes() == wanted.tobytes()
    assert found.overflow_coordinates == np.isinf(wanted).sum()
    assert found.overflow.tolist() == ([0] if np.isinf(wanted).any() else [])


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=40)
)
def test_bfloat16_is_the_nearest_number_of_eight_bits_half_to_even(values: list[float]) -> None:
    x = np.array([values])
    found = kept(fitted("bf16", x), x)
    wanted = bfloat16(x)
    np.testing.assert_array_equal(found.rows.codes, wanted)
    assert found.overflow_coordinates == np.isinf(wanted).sum()


def test_bfloat16_rounds_halves_to_even_by_hand() -> None:
    """1 + 1/256 lies half way between 1 and 1 + 1/128, 1 + 3/256 between 1 + 1/128 and 1 + 2/128."""
    x = np.array([[1 + 1 / 256, 1 + 3 / 256, -1 - 1 / 256, 1 + 1.01 / 256, 2.0**-133, 2.0**-134]])
    wanted = [[1.0, 1 + 2 / 128, -1.0, 1 + 1 / 128, 2.0**-133, 0.0]]
    np.testing.assert_array_equal(read_back(fitted("bf16", x), x), wanted)


def test_overflowing_half_precision_names_its_rows() -> None:
    """Five coordinates exceed 65504, in rows 15, 16, 22, 30 and 36."""
    x = (np.random.default_rng(71).normal(size=(40, 8)) * 3e4).astype(np.float32)
    found = kept(fitted("fp16", x), x, cosine=True)
    assert found.overflow_coordinates == 5
    assert found.overflow.tolist() == [15, 16, 22, 30, 36]


def test_a_constant_coordinate_is_reported_and_reads_exactly() -> None:
    x = np.random.default_rng(81).normal(size=(50, 6)).astype(np.float32)
    x[:, 2] = 0.25
    scheme = fitted("int8_minmax_round", x)
    back = read_back(scheme, x)
    assert scheme.constant == (2,)
    assert (back[:, 2] == 0.25).all()
    step = np.ptp(x.astype(np.float64), axis=0) / 255
    assert (np.abs(back - x) <= step / 2 * (1 + 1e-12)).all()
    assert kept(scheme, x).clipped_coordinates == 0


@pytest.mark.parametrize("name", ["int8", "int8_qt8", "int8_minmax_round", "int4"])
def test_other_values_of_a_constant_coordinate_lie_outside_the_calibration(name: str) -> None:
    calibration = np.array([[0.0, 1.0], [0.0, -1.0]])
    found = kept(fitted(name, calibration), np.array([[0.0, 0.5], [0.2, 0.5], [-7.0, 2.0]]))
    assert (found.clipped_coordinates, found.clipped_rows) == (3, 2)


def test_one_calibration_row_is_read_exactly_and_every_coordinate_is_constant() -> None:
    one = np.random.default_rng(81).normal(size=(50, 6)).astype(np.float32)[:1]
    scheme = fitted("int8_minmax_round", one)
    np.testing.assert_array_equal(read_back(scheme, one), one)
    assert scheme.constant == (0, 1, 2, 3, 4, 5)


def test_values_outside_the_calibration_range_saturate_and_are_counted() -> None:
    calibration = np.array([[0.0, -1, 10], [1, 1, 20], [0.5, 0, 12]])
    x = np.array([[1.5, -3.0, 15], [-0.25, 0, 25]])
    found = kept(fitted("int8_minmax_round", calibration), x)
    signed = found.rows.codes.astype(np.int64) - 128
    assert signed.tolist() == [[127, -128, 0], [-128, 0, 127]]
    assert (found.clipped_coordinates, found.clipped_rows) == (4, 2)


def test_int8_by_coordinate_clips_beyond_127_and_a_zero_column_keeps_scale_one() -> None:
    """Outside the calibration is what exceeds its largest size, whether or not the code shows it."""
    calibration = np.array([[127.0, 0], [-64, 0]])
    scheme = fitted("int8", calibration)
    x = np.array([[127.4, 3.5], [127.6, 4.5], [-200.0, 200.0], [0.5, 1.5]])
    found = kept(scheme, x)
    assert found.rows.codes.tolist() == [[127, 4], [127, 4], [-127, 127], [0, 2]]
    assert (found.clipped_coordinates, found.clipped_rows) == (7, 4)
    assert scheme.constant == (1,)


@pytest.mark.parametrize(("d", "wide"), [(16, 8), (12, 6), (14, 7), (11, 1), (6, 6), (22, 2)])
def test_product_quantiser_reads_as_faisss(d: int, wide: int) -> None:
    x = np.random.default_rng(d).normal(size=(400, d)).astype(np.float32)
    quantiser = faiss.ProductQuantizer(d, d // wide, 8)
    quantiser.cp.min_points_per_centroid = 1
    faiss.omp_set_num_threads(1)
    quantiser.train(x)
    scheme = fitted("pq", x)
    np.testing.assert_array_equal(
        read_back(scheme, x), quantiser.decode(quantiser.compute_codes(x))
    )
    assert scheme.bytes_per_vector == d // wide


def test_product_quantiser_refuses_fewer_rows_than_centroids() -> None:
    x = np.random.default_rng(0).normal(size=(256, 8))
    assert read_back(fitted("pq", x), x).shape == (256, 8)
    with pytest.raises(TooFewToTrain, match="255 calibration rows"):
        fitted("pq", x[:255])


@pytest.mark.parametrize(
    ("name", "even", "odd"),
    [
        ("fp16", 768, 26), ("bf16", 768, 26), ("int8", 384, 13), ("int8_per_vector", 388, 17),
        ("int8_qt8", 384, 13), ("int8_minmax_round", 384, 13), ("int8_quantile", 384, 13),
        ("int4", 192, 7), ("binary", 48, 2), ("pq", 48, 13),
    ],
)  # fmt: skip
def test_bytes_are_what_an_index_keeps(name: str, even: int, odd: int) -> None:
    rng = np.random.default_rng(0)
    for d, wanted in ((384, even), (13, odd)):
        assert fitted(name, rng.normal(size=(256, d))).bytes_per_vector == wanted


def test_signs_are_of_length_one_and_zero_is_negative() -> None:
    x = np.array([[0.0, -0.0, 1e-300, -5.0]])
    np.testing.assert_array_equal(read_back(fitted("binary", x), x), [[-0.5, -0.5, 0.5, -0.5]])


def test_rows_that_read_as_zero_are_counted_and_have_no_direction() -> None:
    x = np.array([[1.0, 2.0], [1e-9, 1e-9], [-2.0, 1.0], [0.0, 0.0]])
    found = kept(fitted("fp16", x), x, cosine=True)
    assert found.zero_rows == 2
    assert not found.rows.points(slice(None))[[1, 3]].any()
    np.testing.assert_allclose(np.linalg.norm(found.rows.points(slice(None))[[0, 2]], axis=1), 1)
    assert kept(fitted("int8_per_vector", x), x, cosine=True).zero_rows == 1
    assert kept(fitted("binary", x), x, cosine=True).zero_rows == 0


def test_the_quantile_is_numpys_over_all_rows_at_once(small_blocks: Callable[..., None]) -> None:
    x = np.random.default_rng(2).standard_t(3, size=(500, 7))
    wanted = np.quantile(np.abs(x), 0.99, axis=0)
    small_blocks(70)
    scheme = fitted("int8_quantile", x, 2)
    assert scheme.scale is not None
    np.testing.assert_allclose(scheme.scale, wanted / 127, rtol=1e-14)
    assert kept(scheme, x).clipped_coordinates == (np.abs(x) > wanted).sum() > 0


@pytest.mark.parametrize("name", SCHEMES)
def test_neither_blocks_nor_threads_change_a_code(
    name: str, small_blocks: Callable[..., None]
) -> None:
    x = np.random.default_rng(4).normal(size=(300, 12))
    whole = kept(fitted(name, x), x, cosine=True)
    small_blocks(120)
    for threads in (1, 3):
        cut = kept(fitted(name, x, threads), x, cosine=True, threads=threads)
        assert cut.rows.codes.tobytes() == whole.rows.codes.tobytes()
        assert cut.rows.divisors.tobytes() == whole.rows.divisors.tobytes()
        assert (cut.clipped_coordinates, cut.zero_rows) == (
            whole.clipped_coordinates, whole.zero_rows,
        )  # fmt: skip


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 30), st.floats(0, 1e6),
    st.sampled_from(["float64", "float32", "float16", "int8"]),
)  # fmt: skip
def test_an_offset_is_added_to_unit_rows(seed: int, d: int, length: float, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(20, d)) * 30 + 1).astype(dtype)
    x[~x.any(axis=1)] = 1
    moved = offset(as_given(x, cosine=True), length, threads=1)
    wanted = unit(x) + length / np.sqrt(d)
    if np.linalg.norm(wanted, axis=1).min() > 1e-3:
        np.testing.assert_allclose(moved.points(slice(None)), unit(wanted), atol=1e-12)


def test_a_column_whose_scale_underflows_is_kept_as_constant() -> None:
    x = np.random.default_rng(0).normal(size=(60, 4))
    x[:, 2] = 5e-324 * np.arange(60)
    for name in ("int8", "int8_quantile", "int8_minmax_round"):
        scheme = fitted(name, x)
        assert scheme.constant == (2,), name
        np.testing.assert_allclose(read_back(scheme, x)[:, 2], x[:, 2], atol=1e-300)


@pytest.mark.parametrize("size", [1e17, 1e38, 1e39, 1e100])
@pytest.mark.parametrize(("name", "limit"), [("int8_qt8", 8e37), ("int4", 8e37), ("pq", 1e18)])
def test_rows_beyond_float32_overflow_where_codes_are_made_in_float32(
    name: str, limit: float, size: float
) -> None:
    """Ranges, and the squares a product quantiser needs, must stay finite in float32."""
    x = np.random.default_rng(0).normal(size=(300, 8)) * size
    found = kept(fitted(name, x), x)
    beyond = np.abs(x) > limit
    assert np.isfinite(found.rows.take(slice(None))).all()
    assert found.overflow_coordinates == beyond.sum()
    assert found.overflow.tolist() == np.flatnonzero(beyond.any(axis=1)).tolist()
