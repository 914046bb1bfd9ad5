"""The JSON reader: exact numbers, typed labels, OpenAI-style answers, and nothing lenient."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.dataset import Labels
from service.errors import (
    AssayError,
    InvalidRequest,
    MalformedPayload,
    PayloadTooLarge,
    ShapeMismatch,
)
from service.formats import Limits
from service.formats.json_body import decode_json

JSON = "application/json"
numbers = st.floats(allow_nan=False, allow_infinity=False)
tables = st.integers(1, 4).flatmap(
    lambda d: st.lists(st.lists(numbers, min_size=d, max_size=d), min_size=1, max_size=6)
)


def body(content: Any) -> bytes:
    return json.dumps(content).encode()


def encoded(rows: Any) -> dict[str, Any]:
    """Rows as base64 of their buffer."""
    data = base64.b64encode(np.ascontiguousarray(rows).tobytes()).decode()
    return {
        "encoding": "base64", "dtype": rows.dtype.str, "shape": list(rows.shape), "data": data,
    }  # fmt: skip


@given(tables, st.lists(st.integers(0, 10_000), max_size=4))
def test_listed_numbers_are_kept_to_the_last_bit(
    read: Any, table: list[list[float]], cuts: list[int]
) -> None:
    """Against Python's own JSON writer: float64, signs of zero and denormals included."""
    parsed, got = read(JSON, body({"vectors": table}), cuts)
    assert got.dtype == np.float64
    assert got.tobytes() == np.array(table, dtype=np.float64).tobytes()
    assert (parsed.n, parsed.d, parsed.dtype) == (len(table), len(table[0]), "float64")


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", "|i1"])
def test_base64_is_the_buffer(dtype: str, read: Any, npy: Any) -> None:
    """The same rows, type and hash as the .npy file."""
    rows = np.arange(-6, 6).reshape(3, 4).astype(dtype)
    parsed, got = read(JSON, body({"vectors": encoded(rows)}))
    assert got.tobytes() == rows.tobytes()
    assert parsed.vectors_sha256 == read("application/x-npy", npy(rows))[0].vectors_sha256


def test_base64_may_hold_what_a_file_may_hold(read: Any) -> None:
    """NaN inside a buffer is counted, as in a .npy file."""
    parsed, _ = read(JSON, body({"vectors": encoded(np.array([[1, np.nan]], "<f4"))}))
    assert parsed.facts.non_finite_rows.count == 1


@pytest.mark.parametrize("dtype", [">f4", "<i4", "f4", "float32", "<f16", "O", 4, None])
def test_base64_names_its_type_exactly(dtype: Any, read: Any) -> None:
    """Little-endian, one of four."""
    content = {**encoded(np.zeros((1, 2), "<f4")), "dtype": dtype}
    with pytest.raises(InvalidRequest):
        read(JSON, body({"vectors": content}))


@pytest.mark.parametrize("shape", [[2], [1, 2, 1], [1.5, 2], ["a", 2], None, [2**63, 2**63]])
def test_base64_has_two_sizes(shape: Any, read: Any) -> None:
    """Products are exact integers: nothing wraps round."""
    content = {**encoded(np.zeros((1, 2), "<f4")), "shape": shape}
    with pytest.raises((InvalidRequest, MalformedPayload)):
        read(JSON, body({"vectors": content}))


@given(st.text("ABCxyz019+/=-_ \n", max_size=24))
def test_base64_is_decoded_strictly(read: Any, text: str) -> None:
    """Accepted only where re-encoding the bytes gives the same text."""
    content = {"encoding": "base64", "dtype": "|i1", "shape": [1, 1], "data": text}
    try:
        _, got = read(JSON, body({"vectors": content}))
    except AssayError:
        return
    assert base64.b64encode(got.tobytes()).decode() == text


def test_good_base64_and_its_url_safe_form(read: Any) -> None:
    """CASES P10, both strings."""
    content = {"encoding": "base64", "dtype": "<f4", "shape": [1, 3], "data": "AACAPwAAAMAAAAA/"}
    assert read(JSON, body({"vectors": content}))[1].tolist() == [[1.0, -2.0, 0.5]]
    with pytest.raises(MalformedPayload, match="URL-safe"):
        read(JSON, body({"vectors": {**content, "data": "g3_evxwXq7-_OK6_"}}))


@pytest.mark.parametrize("form", ["numbers", "base64"])
@given(st.permutations(range(5)))
def test_embedding_responses_are_put_in_the_order_of_their_index(
    read: Any, form: str, order: list[int]
) -> None:
    """Rows 0..4 whatever the order of the list."""
    rows = np.arange(10, dtype="<f4").reshape(5, 2) - 3.5
    items = []
    for i in order:
        packed = base64.b64encode(rows[i].tobytes()).decode()
        items.append({"index": i, "embedding": packed if form == "base64" else rows[i].tolist()})
    parsed, got = read(JSON, body({"object": "list", "data": items, "model": "m", "usage": {}}))
    assert got.tolist() == rows.tolist()
    assert parsed.spec.model == "m"


@pytest.mark.parametrize(
    "data",
    [
        [], None, {}, [1], ["x"], [{}], [{"embedding": None}], [{"embedding": []}],
        [{"embedding": [1.0]}, {"embedding": [1.0, 2.0]}], [{"embedding": "AACAPw="}],
        [{"embedding": "AAC="}], [{"embedding": ""}], [{"embedding": [True]}],
        [{"embedding": {"x": 1}}], [{"embedding": [1.0], "index": 1}],
    ],
    ids=range(15),
)  # fmt: skip
def test_damaged_embedding_responses_are_refused(data: Any, read: Any) -> None:
    """Whatever is wrong, it is an error of ours."""
    with pytest.raises((InvalidRequest, MalformedPayload)):
        read(JSON, body({"data": data}))


labels = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.sampled_from([0.5, -1.25]), st.text(max_size=3)
)


@given(st.lists(labels, min_size=1, max_size=12))
def test_columns_keep_values_and_types(read: Any, values: list[Any]) -> None:
    """Null is missing; every other value comes back as it was, of its own type."""
    parsed, _ = read(JSON, body({"columns": {"g": values}}))
    column = parsed.columns["g"]
    back = [None if code < 0 else column.levels[code] for code in column.codes]
    assert [(type(one), one) for one in back] == [(type(one), one) for one in values]


def test_null_labels_are_missing_and_texts_are_not(read: Any) -> None:
    """CASES P05: rows 1 and 6 are missing; "None" and "nan" are labels."""
    values = ["a", None, "a", "a", "b", "b", None, "b", "c", "c", "c", "c"]
    column = read(JSON, body({"columns": {"g": values}}))[0].columns["g"]
    assert np.flatnonzero(column.codes < 0).tolist() == [1, 6]
    assert column.levels == ("a", "b", "c")
    texts = ["None" if value is None else value for value in values[:-1]] + ["nan"]
    column = read(JSON, body({"columns": {"g": texts}}))[0].columns["g"]
    assert column.missing == 0
    assert set(column.levels) == {"a", "b", "c", "None", "nan"}


def test_vectors_ids_columns_and_spec_arrive_together(read: Any) -> None:
    """One body with all of them."""
    content = {
        "name": "n", "spec": {"model": "m", "normalised": True}, "ids": ["x", "y"],
        "columns": {"g": [1, "1"], "h": [True, None]}, "vectors": [[1], [2]],
    }  # fmt: skip
    parsed, got = read(JSON, body(content))
    assert (parsed.name, parsed.ids, got.tolist()) == ("n", ("x", "y"), [[1.0], [2.0]])
    assert parsed.columns["g"].levels == (1, "1")
    assert (parsed.spec.model, parsed.spec.normalised, parsed.spec.prompt) == ("m", True, None)
    assert parsed.columns["h"].sha256 == Labels.of([True, None]).sha256


@pytest.mark.parametrize(
    "text", ["NaN", "-Infinity", "Infinity", "1e999", "-1e400", "nan", "01", "1."]
)
def test_only_json_numbers_are_read(text: str, read: Any) -> None:
    """CASES P11, and other spellings."""
    with pytest.raises(MalformedPayload):
        read(JSON, f'{{"vectors": [[1.0, {text}]]}}'.encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        '{"a": 1,}',
        "{'a': 1}",
        '{"a": 1} {"b": 2}',
        "[" * 5000,
        '"\\ud800"',
        "\ufeff{}",
    ],
    ids=range(9),
)
def test_only_json_is_decoded(text: str) -> None:
    """Cut, lenient, doubled, too deep, or with half a character."""
    with pytest.raises(MalformedPayload):
        decode_json(text.encode())


def test_bytes_that_are_not_utf8_are_malformed() -> None:
    """JSON is UTF-8."""
    with pytest.raises(MalformedPayload):
        decode_json(b'{"a": "\xe9"}')


def test_the_largest_and_smallest_numbers_survive(read: Any) -> None:
    """3.5e38 is beyond float32, 5e-324 the least float64."""
    _, got = read(JSON, b'{"vectors": [[3.5e38, 1.7976931348623157e308, 5e-324, -0.0]]}')
    assert got[0].tolist() == [3.5e38, 1.7976931348623157e308, 5e-324, 0.0]
    assert math.copysign(1, got[0, 3]) == -1


def test_large_numbers_written_as_floats_are_labels_and_integers_beyond_64_bits_are_not(
    read: Any,
) -> None:
    """The same number, spelled both ways; as a coordinate either is a number."""
    text = '{"columns": {"a": [%s, 1.5], "b": [1, %s]}}'
    parsed, _ = read(JSON, (text % ("1e19", "-1e150")).encode())
    assert parsed.columns["a"].numbers.tolist() == [1e19, 1.5]
    assert parsed.columns["b"].numbers.tolist() == [1, -1e150]
    parsed, _ = read(JSON, (text % (2**64 - 1, -(2**63))).encode())
    assert parsed.columns["a"].levels == (2**64 - 1, 1.5)
    assert parsed.columns["b"].levels == (1, -(2**63))
    with pytest.raises(InvalidRequest, match=f"{10**30} is beyond 64 bits") as caught:
        read(JSON, (text % (10**30, -(2**63) - 1)).encode())
    assert [fault.pointer for fault in caught.value.faults] == ["/columns/a/0", "/columns/b/1"]
    named_so = b'{"vectors": [[1, 2]], "columns": {"vectors": [%d]}}' % 10**30
    with pytest.raises(InvalidRequest, match="beyond 64 bits"):
        read(JSON, named_so)
    parsed, got = read(JSON, b'{"vectors": [[1e19, %d]], "columns": {"g": [1e19]}}' % 10**30)
    assert got.tolist() == [[1e19, 1e30]]
    assert parsed.columns["g"].levels == (1e19,)


@pytest.mark.parametrize("depth", [100, 1000])
def test_a_large_number_deep_inside_is_found_or_malformed(depth: int) -> None:
    """Deeper than one reader follows and the other does not."""
    wide = b"[" * depth + b"%d" % 2**64 + b"]" * depth
    with pytest.raises((InvalidRequest, MalformedPayload)):
        decode_json(wide)


def test_a_body_over_the_limit_is_refused_when_it_arrives(read: Any) -> None:
    """At the piece that passes the limit, not at the end."""
    whole = body({"vectors": [[1.0] * 100]})
    read(JSON, whole, limits=Limits(text_bytes=len(whole)))
    with pytest.raises(PayloadTooLarge):
        read(JSON, whole, [10, 20], limits=Limits(text_bytes=len(whole) - 1))


@pytest.mark.parametrize("vectors", [[], [[]], [[1.0], []], [[1.0], [1.0, 2.0]]])
def test_rows_have_equal_lengths(vectors: Any, read: Any) -> None:
    """Ragged rows are counted and named."""
    with pytest.raises(ShapeMismatch) as caught:
        read(JSON, body({"vectors": vectors}))
    if len(vectors) > 1:
        assert (caught.value.faults[0].count, caught.value.faults[0].rows) == (1, ["1"])


def test_what_is_wrong_is_named_where_it_stands(read: Any) -> None:
    """A pointer to the number, at most ten of them, and the count."""
    with pytest.raises(InvalidRequest, match="12") as caught:
        read(JSON, body({"vectors": [["x"] * 12]}))
    pointers = [fault.pointer for fault in caught.value.faults]
    assert pointers == [f"/vectors/0/{i}" for i in range(10)]
