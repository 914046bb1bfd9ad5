"""Tables: the vectors of each row under its own id, whatever the column was cut from."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.confined.tables import Chosen, _pages
from service.errors import (
    AssayError,
    DuplicateIds,
    InvalidRequest,
    MalformedPayload,
    PayloadTooLarge,
    ShapeMismatch,
    UnsupportedFormat,
)
from service.formats import Limits
from service.formats.confined import confined

PARQUET = "application/vnd.apache.parquet"
ARROW = "application/vnd.apache.arrow.stream"
VALUES = np.arange(15, dtype=np.float32)


def parquet(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def stream(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def arrow_file(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


FORMS = [(PARQUET, parquet), (ARROW, stream), (ARROW, arrow_file)]
EACH_FORM = pytest.mark.parametrize(("kind", "write"), FORMS, ids=["parquet", "stream", "file"])


@pytest.fixture
def read_file(tmp_path: Path) -> Any:
    """What a file holds, and its pages."""

    def run(body: bytes, kind: Any, **options: Any) -> tuple[Any, list[Any]]:
        path = tmp_path / "table"
        path.write_bytes(body)
        with path.open("rb") as file, confined(file, kind, options) as (found, pages):
            return found, list(pages)

    return run


def fixed(rows: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])


@EACH_FORM
def test_a_sliced_column_is_read_from_its_slice(kind: str, write: Any, read: Any) -> None:
    column = pa.FixedSizeListArray.from_arrays(pa.array(VALUES), 3).slice(2, 2)
    table = pa.table({"v": column, "id": pa.array(["a", "b", "c", "d", "e"]).slice(2, 2)})
    parsed, rows = read(kind, write(table), id_column="id")
    assert rows.tolist() == [[6, 7, 8], [9, 10, 11]]
    assert parsed.ids == ("c", "d")


@EACH_FORM
def test_a_chunked_column_keeps_ids_and_labels_with_their_rows(
    kind: str, write: Any, read: Any
) -> None:
    column = pa.FixedSizeListArray.from_arrays(pa.array(VALUES), 3)
    chunks = pa.chunked_array([column.slice(0, 1), column.slice(3, 2)])
    table = pa.table(
        {"v": chunks, "id": pa.array([10, 13, 14]), "label": pa.array(["x", None, "y"])}
    )
    parsed, rows = read(kind, write(table), id_column="id")
    assert rows.tolist() == [[0, 1, 2], [9, 10, 11], [12, 13, 14]]
    assert parsed.ids == ("10", "13", "14")
    assert parsed.columns["label"].levels == ("x", "y")
    assert parsed.columns["label"].codes.tolist() == [0, -1, 1]


@EACH_FORM
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
@pytest.mark.parametrize("make", [fixed, lambda rows: pa.array(list(rows))], ids=["fixed", "list"])
def test_every_type_is_kept_as_it_is(
    kind: str, write: Any, dtype: str, make: Any, read: Any
) -> None:
    rows = np.random.default_rng(1).normal(scale=20, size=(7, 5)).astype(dtype)
    parsed, found = read(kind, write(pa.table({"v": make(rows)})))
    assert parsed.dtype == dtype
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, rows)


@pytest.mark.parametrize("encoder", ["minilm", "e5small_q4"])
@EACH_FORM
def test_a_table_has_the_hash_of_its_npy_file(
    kind: str, write: Any, encoder: str, read: Any, rows: Any, npy: Any
) -> None:
    data = rows(f"debian_pairs/{encoder}_doc")
    table = pa.table({"text": [str(i) for i in range(len(data))], "v": fixed(data)})
    parsed, found = read(kind, write(table), id_column="text")
    whole, _ = read("application/x-npy", npy(data))
    np.testing.assert_array_equal(found, data)
    assert parsed.vectors_sha256 == whole.vectors_sha256
    assert parsed.facts == whole.facts


@given(st.lists(st.integers(0, 40), max_size=5), st.integers(1, 9), st.integers(1, 30))
def test_batches_of_any_size_give_the_same_rows(read: Any, cuts: list[int], d: int, n: int) -> None:
    data = np.random.default_rng(n).normal(size=(n, d)).astype(np.float32)
    column = fixed(data)
    places = [0, *sorted(cut % (n + 1) for cut in cuts), n]
    chunks = pa.chunked_array(
        [column.slice(a, b - a) for a, b in itertools.pairwise(places)], column.type
    )
    _, found = read(ARROW, stream(pa.table({"v": chunks})))
    np.testing.assert_array_equal(found, data)


@EACH_FORM
def test_ragged_lists_are_refused_by_the_ids_of_their_rows(
    kind: str, write: Any, read: Any
) -> None:
    table = pa.table(
        {"v": pa.array([[1.0, 2.0], [3.0], [4.0, 5.0]]), "id": pa.array(["a", "b", "c"])}
    )
    with pytest.raises(ShapeMismatch, match="1 have another count") as caught:
        read(kind, write(table), id_column="id")
    assert caught.value.faults[0].rows == ["b"]


@EACH_FORM
@pytest.mark.parametrize(
    ("table", "error", "word"),
    [
        ({"v": pa.array([], pa.list_(pa.float32()))}, ShapeMismatch, "no rows"),
        ({"v": pa.array([[], []], pa.list_(pa.float32()))}, ShapeMismatch, "dimension"),
        ({"v": [[1.0, 2.0], None]}, InvalidRequest, "no vector"),
        ({"v": [[1.0, None]]}, InvalidRequest, "null"),
        ({"v": [[1.0]], "w": [[1.0]]}, InvalidRequest, "2 columns hold vectors"),
        ({"text": ["a"]}, InvalidRequest, "0 columns hold vectors"),
        ({"v": [[1, 2]]}, InvalidRequest, "0 columns hold vectors"),
        ({"v": [["a"]]}, InvalidRequest, "0 columns hold vectors"),
        ({"v": [[1, 2]]}, InvalidRequest, "`v` holds list<.*int64>"),
        ({"v": pa.array([b"1234"], pa.binary(4))}, InvalidRequest, r"fixed_size_binary\[4\]"),
    ],
)
def test_what_is_no_set_of_vectors_is_refused_with_a_word(
    kind: str, write: Any, table: dict[str, Any], error: type[AssayError], word: str, read: Any
) -> None:
    with pytest.raises(error, match=word):
        read(kind, write(pa.table(table)))


@EACH_FORM
def test_repeated_and_missing_ids_are_refused(kind: str, write: Any, read: Any) -> None:
    rows = pa.array([[1.0], [2.0], [3.0]])
    with pytest.raises(DuplicateIds) as caught:
        read(kind, write(pa.table({"v": rows, "id": ["a", "b", "a"]})), id_column="id")
    assert caught.value.faults[0].rows == ["a"]
    with pytest.raises(InvalidRequest, match="no id"):
        read(kind, write(pa.table({"v": rows, "id": ["a", None, "c"]})), id_column="id")


@EACH_FORM
def test_unknown_columns_are_named_with_what_there_is(kind: str, write: Any, read: Any) -> None:
    body = write(pa.table({"embedding": [[1.0]], "doc": ["a"]}))
    with pytest.raises(InvalidRequest, match=r"no column `id` for ids; it has `embedding`, `doc`"):
        read(kind, body, id_column="id")
    with pytest.raises(InvalidRequest, match=r"`doc` holds string"):
        read(kind, body, vector_column="doc")


@EACH_FORM
def test_labels_keep_their_types_and_nan_is_missing(kind: str, write: Any, read: Any) -> None:
    table = pa.table(
        {
            "v": [[1.0], [2.0], [3.0]],
            "flag": [True, False, None],
            "count": [1, 2, 2],
            "share": [0.5, float("nan"), 1.0],
            "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
            "blob": pa.array([b"1", b"2", b"3"]),
        }
    )
    parsed, _ = read(kind, write(table))
    assert {name: column.type for name, column in parsed.columns.items()} == {
        "flag": "boolean", "count": "integer", "share": "number", "kind": "string",
    }  # fmt: skip
    assert parsed.columns["share"].codes.tolist() == [0, -1, 1]
    assert parsed.columns["kind"].levels == ("x", "y")


@EACH_FORM
def test_a_table_cut_anywhere_is_an_error_and_never_fewer_rows(
    kind: str, write: Any, read: Any
) -> None:
    body = write(pa.table({"v": fixed(np.ones((400, 8), np.float32))}))
    for length in range(0, len(body) - 9, len(body) // 15):
        with pytest.raises((MalformedPayload, ShapeMismatch)):
            read(kind, body[:length])


def test_a_stream_without_its_end_is_refused(read: Any) -> None:
    body = stream(
        pa.table({"v": fixed(np.ones((400, 8), np.float32))}),
    )
    with pytest.raises(MalformedPayload):
        read(ARROW, body[:-8])


@EACH_FORM
def test_flipped_bytes_never_break_the_reader(kind: str, write: Any, read: Any) -> None:
    body = bytearray(
        write(pa.table({"v": fixed(np.ones((50, 4), np.float32)), "id": list("ab" * 25)}))
    )
    rng = np.random.default_rng(3)
    for _ in range(12):
        damaged = bytearray(body)
        for place in rng.integers(0, len(body), 6):
            damaged[place] = int(rng.integers(0, 256))
        codes = {"none"}
        try:
            read(kind, bytes(damaged))
        except AssayError as error:
            codes.add(error.code)
        assert "internal" not in codes


def test_a_table_that_unpacks_beyond_the_limit_is_refused(read: Any) -> None:
    zeros = fixed(np.zeros((200_000, 64), np.float32))
    body = parquet(pa.table({"v": zeros}), compression="zstd")
    assert len(body) < 1 << 20
    with pytest.raises(PayloadTooLarge, match="8388608 bytes"):
        read(PARQUET, body, limits=Limits(body_bytes=8 << 20))


def test_labels_that_unpack_without_end_are_refused(read: Any) -> None:
    texts = [f"{i} " + "x" * 2000 for i in range(2000)]
    body = parquet(pa.table({"v": fixed(np.ones((2000, 2), np.float32)), "t": texts}))
    with pytest.raises(PayloadTooLarge, match="keep fewer columns"):
        read(PARQUET, body, limits=Limits(csv_bytes=1 << 20))


@EACH_FORM
def test_a_batch_that_is_larger_than_a_page_is_cut_and_nothing_is_read_twice(
    kind: str, write: Any, read: Any
) -> None:
    data = np.arange(30_000 * 100, dtype=np.float32).reshape(30_000, 100)
    table = pa.table({"v": fixed(data), "id": [str(i) for i in range(30_000)]})
    parsed, rows = read(kind, write(table), id_column="id")
    np.testing.assert_array_equal(rows, data)
    assert parsed.ids == tuple(str(i) for i in range(30_000))


@pytest.mark.parametrize("make", [fixed, lambda rows: pa.array(list(rows))], ids=["fixed", "list"])
@pytest.mark.parametrize("with_null", [False, True])
def test_a_slice_in_memory_is_read_from_its_start(make: Any, with_null: bool) -> None:
    """P25, past what a writer would have cut off."""
    column = make(VALUES.reshape(5, 3))
    wanted = [[6, 7, 8], [9, 10, 11]]
    if with_null:
        column = pa.array([[0, 1, 2], [3, 4, 5], None, [6, 7, 8], [9, 10, 11]], column.type)
    batch = pa.record_batch({"v": column, "id": list("abcde")}).slice(2, 3 if with_null else 2)
    pages = list(_pages(iter([batch]), Chosen("v", "id", ()), check=True))
    assert pages[0].vectors.tolist() == wanted
    assert pages[0].ids == (["d", "e"] if with_null else ["c", "d"])
    assert pages[0].missing == (["c"] if with_null else [])


def test_long_ids_of_ragged_rows_are_shortened_and_the_reader_ends(read: Any) -> None:
    ids = [chr(97 + i) * 1_000_000 for i in range(13)]
    table = pa.table({"v": pa.array([[1.0, 2.0]] + [[1.0]] * 12), "id": ids})
    with pytest.raises(ShapeMismatch) as caught:
        read(PARQUET, parquet(table, compression="zstd"), id_column="id")
    assert caught.value.faults[0].rows[0] == "b" * 512


def test_a_column_name_beyond_reason_is_refused(read: Any) -> None:
    table = pa.table({"v" * 70_000: fixed(np.ones((2, 2), np.float32))})
    with pytest.raises(InvalidRequest, match="512 characters"):
        read(PARQUET, parquet(table))


@EACH_FORM
def test_ids_that_unpack_without_end_are_refused(kind: str, write: Any, read: Any) -> None:
    names = pa.DictionaryArray.from_arrays(pa.array(np.arange(20_000) % 2), ["x" * 500, "y" * 500])
    table = pa.table({"v": fixed(np.ones((20_000, 1), np.float32)), "id": names})
    with pytest.raises(PayloadTooLarge, match="Ids and labels take over 4194304 bytes"):
        read(kind, write(table), limits=Limits(names_bytes=4 << 20), id_column="id")


def test_many_columns_of_one_label_are_counted_by_row(read: Any) -> None:
    columns = {f"c{i}": [True] * 20_000 for i in range(60)}
    table = pa.table({"v": fixed(np.ones((20_000, 1), np.float32)), **columns})
    with pytest.raises(PayloadTooLarge, match="Ids and labels"):
        read(PARQUET, parquet(table), limits=Limits(names_bytes=4 << 20))


def test_rows_beyond_the_room_of_a_project_are_refused_before_they_are_written(read: Any) -> None:
    body = parquet(pa.table({"v": fixed(np.zeros((200_000, 64), np.float32))}), compression="zstd")
    with pytest.raises(PayloadTooLarge, match="the 1048576 bytes that the project may still store"):
        read(PARQUET, body, limits=Limits(room_bytes=1 << 20))


@pytest.mark.parametrize(
    ("values", "role", "told"),
    [
        (["a", None, "c"], "id", "1 rows have no id"),
        ([1.5, float("inf"), 2.0], "label", "holds infinity"),
        (pa.array([1, 2**64 - 1, 2], pa.uint64()), "label", "beyond 63 bits"),
    ],
)
def test_values_of_a_dictionary_are_looked_at_as_plain_ones_are(
    values: Any, role: str, told: str, read: Any
) -> None:
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), pa.array(values))
    table = pa.table({"v": fixed(np.ones((3, 2), np.float32)), role: coded})
    if role == "label":  # nobody has asked for it
        parsed, _ = read(ARROW, stream(table))
        assert parsed.columns == {}
        assert told in parsed.skipped["label"]
        return
    with pytest.raises(InvalidRequest, match=told):
        read(ARROW, stream(table), id_column="id")


@EACH_FORM
@pytest.mark.parametrize(
    "values", [pa.array([1.0, 2.0, float("inf")]), pa.array([1, 2, 2**64 - 1], pa.uint64())]
)
def test_a_column_that_turns_out_to_be_no_label_is_left_out_and_named_and_refused_if_asked_for(
    kind: str, write: Any, values: Any, read: Any, read_file: Any
) -> None:
    """Also where the value that is none comes pages after the others."""
    n = 30_000
    late = values.take(pa.array([0] * (n - 1) + [2]))
    at = pa.array(range(n), pa.timestamp("us"))
    wide = fixed(np.ones((n, 100), np.float32))
    body = write(pa.table({"v": wide, "x": late, "at": at, "keep": ["a"] * n}))
    parsed, rows = read(kind, body)
    assert len(rows) == n
    assert set(parsed.columns) == {"keep"}
    assert set(parsed.skipped) == {"x", "at"}
    assert "which no label is" in parsed.skipped["x"]
    assert "timestamp" in parsed.skipped["at"]
    with pytest.raises(InvalidRequest, match="Column `x` holds"):
        read_file(body, "parquet" if write is parquet else "arrow", columns=["x"])


@pytest.mark.parametrize("write", [stream])
def test_views_of_strings_are_ids_and_labels_as_strings_are(write: Any, read: Any) -> None:
    views = pa.array(["a", "b", None], pa.string_view())
    table = pa.table(
        {
            "v": fixed(np.ones((3, 2), np.float32)),
            "id": pa.array(["x", "y", "a string that is not kept inline"], pa.string_view()),
            "label": views,
            "raw": pa.array([b"1", b"2", b"3"], pa.binary_view()),
        }
    )
    parsed, _ = read(ARROW, write(table), id_column="id")
    assert parsed.ids == ("x", "y", "a string that is not kept inline")
    assert parsed.columns["label"].levels == ("a", "b")
    assert parsed.columns["label"].codes.tolist() == [0, 1, -1]
    assert set(parsed.skipped) == {"raw"}


def test_views_of_lists_are_named_as_what_they_are(read: Any) -> None:
    table = pa.table({"v": pa.array([[1.0, 2.0]], pa.list_view(pa.float32()))})
    with pytest.raises(InvalidRequest, match="`v` holds list_view"):
        read(ARROW, stream(table))


def test_nan_of_a_dictionary_is_a_missing_label(read: Any) -> None:
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array([1.5, float("nan")]))
    table = pa.table({"v": fixed(np.ones((3, 2), np.float32)), "label": coded})
    parsed, _ = read(ARROW, stream(table))
    assert parsed.columns["label"].codes.tolist() == [0, -1, 0]


def test_pages_are_planned_by_the_row_groups_that_hold_vectors(read_file: Any) -> None:
    """Groups of nulls alone say nothing of a vector's length."""
    kind = pa.list_(pa.float32())
    nulls, whole = pa.nulls(10, kind), pa.array([np.ones(512, np.float32)] * 20_000, kind)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, pa.schema([("v", kind)])) as writer:
        for rows in [nulls] * 4 + [whole]:
            writer.write_table(pa.table({"v": rows}), row_group_size=20_000)
    _, pages = read_file(bytes(sink.getvalue()), "parquet")
    assert max(page.vectors.nbytes for page in pages) <= 8 << 20
    assert sum(len(page.missing) for page in pages) == 40


def test_tensors_stored_in_another_order_are_refused(read: Any) -> None:
    flat = fixed(np.arange(12, dtype=np.float32).reshape(2, 6))
    for order, refused in (([0, 1], False), ([1, 0], True)):
        kind = pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=order)
        body = stream(pa.table({"v": pa.ExtensionArray.from_storage(kind, flat)}))
        if not refused:
            assert read(ARROW, body)[0].d == 6
            continue
        with pytest.raises(UnsupportedFormat, match="permutation"):
            read(ARROW, body)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
@EACH_FORM
def test_the_stored_type_has_the_name_it_has_everywhere(
    kind: str, write: Any, dtype: str, read_file: Any
) -> None:
    del kind
    form = "parquet" if write is parquet else "arrow"
    found, _ = read_file(write(pa.table({"v": fixed(np.ones((2, 2), dtype))})), form)
    assert found.stored_as == dtype
