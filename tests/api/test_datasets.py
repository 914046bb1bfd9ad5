"""Datasets over HTTP: what arrives in any form is the same, what cannot be right is refused."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.operations import Services
from service.storage.objects import ObjectDatasets

NPY = {"Content-Type": "application/x-npy"}
JSON = {"Content-Type": "application/json"}
CSV = {"Content-Type": "text/csv"}


def header(text: str, body: bytes = b"\0" * 64) -> bytes:
    """A .npy file with any header."""
    data = text.encode("latin-1")
    data += b" " * (63 - (10 + len(data)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(data)) + data + body


def claims(shape: str, descr: str = "<f4", body: bytes = b"\0" * 64) -> bytes:
    """The .npy file of CASES P09 that claims a shape and carries a body."""
    return header(f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}", body)


def pickled() -> bytes:
    """An object array, which numpy stores as a pickle."""
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return file.getvalue()


HOSTILE = {
    "huge": claims("(1048576, 1048576)"),
    "over": claims("(4294967296, 4294967296)"),
    "short": claims("(100000, 10000)"),
    "short within limits": claims("(1000000, 1000)"),
    "bf16": claims("(1, 3)", "<V2", struct.pack("<3H", 0x3F80, 0xC000, 0x3E80)),
    "object": pickled(),
}


@pytest.fixture
def p08() -> dict[str, NDArray[Any]]:
    """The rows of CASES P08 in four layouts."""
    foreign = np.asfortranarray(np.random.default_rng(61).normal(size=(6, 4)).astype(">f4"))
    plain = np.ascontiguousarray(foreign, dtype="<f4")
    big = np.zeros((12, 8), dtype="<f4")
    big[::2, ::2] = plain
    return {
        "plain": plain,
        "big-endian Fortran": foreign,
        "big-endian": np.ascontiguousarray(foreign),
        "strided": big[::2, ::2],
    }


def test_a_dataset_shows_what_the_contract_names(door: Any, upload: Any) -> None:
    """Keys of CONTRACT.md; the counts are read off the rows."""
    rows = np.array([[3, 4], [0.6, 0.8], [0, 0], [np.nan, 1]], dtype=np.float32)
    found = upload(rows, name="tiny", model="m", revision="7")

    assert found.keys() == {
        "id", "name", "n", "d", "dtype", "bytes", "sha256", "vectors_sha256", "ids_sha256",
        "columns", "skipped_columns", "spec", "facts", "created_at",
    }  # fmt: skip
    assert re.fullmatch(r"ds_[0-9a-f]{24}", found["id"])
    assert (found["name"], found["n"], found["d"]) == ("tiny", 4, 2)
    assert (found["dtype"], found["bytes"]) == ("float32", 32)
    assert found["spec"] == {
        "model": "m", "revision": "7", "prompt": None, "pooling": None, "normalised": None,
        "source": None,
    }  # fmt: skip
    assert found["facts"] == {
        "unit_rows": 1,
        "non_finite_rows": {"count": 1, "rows": [3]},
        "zero_rows": {"count": 1, "rows": [2]},
        "norm_min": 0.0,
        "norm_max": 5.0,
    }
    assert datetime.fromisoformat(found["created_at"]).utcoffset().total_seconds() == 0
    assert door.get(f"/v1/datasets/{found['id']}").json() == found


def test_facts_name_the_first_ten_bad_rows_and_count_all(upload: Any) -> None:
    """Every third of forty rows is bad: fourteen, of which ten are named."""
    rows = np.ones((40, 2), dtype=np.float32)
    rows[::3] = np.inf
    facts = upload(rows)["facts"]

    assert facts["non_finite_rows"] == {"count": 14, "rows": list(range(0, 30, 3))}
    assert upload(np.full((3, 2), np.nan))["facts"]["norm_min"] is None


def test_byte_order_and_layout_make_no_difference(
    p08: dict[str, NDArray[Any]], upload: Any, services: Services
) -> None:
    """CASES P08: the values of row 0, the sum and F, for every layout of the same rows."""
    sent = {name: upload(rows, name=name) for name, rows in p08.items()}

    assert len({found["vectors_sha256"] for found in sent.values()}) == 1
    assert len({found["id"] for found in sent.values()}) == 1, "one content, one dataset"
    stored = services.datasets.load("default", sent["plain"]["id"]).vectors
    printed = [-0.56676376, -1.05657423, 1.06207991, -1.12935221]
    assert stored[0].tolist() == np.array(printed, np.float32).tolist()
    assert stored.sum(dtype=np.float64) == pytest.approx(1.03111173, abs=5e-9)
    x = stored.astype(np.float64)
    within = sum(((x[i : i + 2] - x[i : i + 2].mean(0)) ** 2).sum() for i in (0, 2, 4))
    total = ((x - x.mean(0)) ** 2).sum()
    assert (total - within) / 2 / (within / 3) == pytest.approx(1.28383904, rel=1e-6)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (7, 3), (1, 1)])
def test_every_float_type_is_kept_in_its_own_width(
    dtype: str, shape: tuple[int, int], upload: Any, services: Services
) -> None:
    """Compared with the array itself, sent in both byte orders and both layouts."""
    rows = np.random.default_rng(3).normal(size=shape).astype(dtype)
    sent = [upload(form) for form in (rows, rows.astype(f">{dtype}"), np.asfortranarray(rows))]

    assert {found["vectors_sha256"] for found in sent} == {sent[0]["vectors_sha256"]}
    stored = services.datasets.load("default", sent[0]["id"]).vectors
    assert stored.dtype == np.dtype(f"<{dtype}")
    assert stored.tobytes() == rows.tobytes()


def test_int8_rows_are_kept_as_bytes(upload: Any, services: Services) -> None:
    """All 256 values go in and come out."""
    rows = np.arange(-128, 128, dtype=np.int8).reshape(16, 16)
    found = upload(rows)

    assert (found["dtype"], found["bytes"]) == ("int8", 256)
    assert services.datasets.load("default", found["id"]).vectors.tolist() == rows.tolist()


def test_a_large_upload_in_foreign_order_comes_out_in_rows(upload: Any, services: Services) -> None:
    """Nine megabytes in Fortran order, so that more than one block is turned round."""
    rows = np.random.default_rng(8).normal(size=(3000, 400)).astype(">f8")
    found = upload(np.asfortranarray(rows))

    stored = services.datasets.load("default", found["id"]).vectors
    assert np.array_equal(stored, rows)
    assert found["vectors_sha256"] == upload(rows)["vectors_sha256"]


def test_equal_numbers_of_another_type_or_shape_are_another_dataset(upload: Any) -> None:
    """`vectors_sha256` covers dtype and shape, not only bytes."""
    zeros = [np.zeros(shape, dtype) for shape in ((2, 8), (8, 2)) for dtype in ("f4", "f8", "i1")]
    assert len({upload(rows)["vectors_sha256"] for rows in zeros}) == len(zeros)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_before_anything_is_allocated(
    name: str, door: Any, upload: Any, refusal: Any
) -> None:
    """CASES P09: files of about 200 bytes; traced memory stays within 2 MB, and life goes on."""
    upload(np.ones((2, 2)))
    tracemalloc.start()
    answer = door.post("/v1/datasets", content=HOSTILE[name], headers=NPY)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    expected = {
        "huge": (413, "payload-too-large"),
        "over": (413, "payload-too-large"),
        "short": (413, "payload-too-large"),
        "short within limits": (422, "malformed-payload"),
        "bf16": (415, "unsupported-format"),
        "object": (422, "shape-mismatch"),
    }
    refusal(answer, *expected[name])
    assert peak < 2 << 20
    assert upload(np.eye(3))["n"] == 3


def test_an_object_matrix_is_refused_by_name_and_never_loaded(door: Any, refusal: Any) -> None:
    """The pickle would write a file if it were loaded."""
    file = io.BytesIO()
    np.save(file, np.array([[{"a": 1}, None]], dtype=object), allow_pickle=True)
    found = refusal(
        door.post("/v1/datasets", content=file.getvalue(), headers=NPY), 415, "unsupported-format"
    )
    assert "pickle" in found["detail"]


def test_bfloat16_is_read_where_the_caller_says_so(door: Any, services: Services) -> None:
    """CASES P09: exactly 1.0, -2.0, 0.25, kept as float32."""
    answer = door.post("/v1/datasets?dtype=bf16", content=HOSTILE["bf16"], headers=NPY)

    assert answer.status_code == 201
    stored = services.datasets.load("default", answer.json()["id"]).vectors
    assert stored.tolist() == [[1.0, -2.0, 0.25]]
    assert stored.dtype == np.float32


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': (",
        "{'descr': '''",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "-" * 5000 + "1, 2), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "(" * 1000 + "1, 2), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 16), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-4, -4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4.0, 4), }",
        "{'descr': '<f4', 'fortran_order': 1, 'shape': (4, 4), }",
        "{'descr': 'zzz', 'fortran_order': False, 'shape': (4, 4), }",
        "{'descr': '<f4', 'shape': (4, 4), }",
        "[1]",
        "__import__('os').getcwd()",
    ],
    ids=range(12),
)
def test_a_header_that_cannot_be_read_is_malformed(text: str, door: Any, refusal: Any) -> None:
    """Each would break, or exhaust, the parser of Python literals."""
    refusal(door.post("/v1/datasets", content=header(text), headers=NPY), 422, "malformed-payload")


@pytest.mark.parametrize(
    "body", [b"", b"\x93NUM", b"PK\x03\x04" + b"\0" * 100, header("{}")[:20], b"\x93NUMPY\x01\x00"]
)
def test_what_is_not_a_npy_file_is_malformed(body: bytes, door: Any, refusal: Any) -> None:
    """Empty, cut, or another format."""
    refusal(door.post("/v1/datasets", content=body, headers=NPY), 422, "malformed-payload")


@pytest.mark.parametrize("body", [b"\0" * 63, b"\0" * 65], ids=["one byte short", "one byte more"])
def test_a_body_of_another_size_than_its_header_says_is_malformed(
    body: bytes, door: Any, refusal: Any
) -> None:
    """Sixteen float32 are 64 bytes."""
    sent = claims("(4, 4)", body=body)
    refusal(door.post("/v1/datasets", content=sent, headers=NPY), 422, "malformed-payload")


@pytest.mark.parametrize("shape", ["(16,)", "(2, 2, 4)", "()", "(0, 4)", "(4, 0)"])
def test_vectors_are_a_matrix_with_rows_and_dimensions(shape: str, door: Any, refusal: Any) -> None:
    """Anything else has the wrong shape."""
    sent = claims(shape, body=b"")
    refusal(door.post("/v1/datasets", content=sent, headers=NPY), 422, "shape-mismatch")


def test_standard_base64_is_read_exactly(upload: Any, services: Services) -> None:
    """CASES P10: [1.0, -2.0, 0.5] on any host."""
    encoded = {"encoding": "base64", "dtype": "<f4", "shape": [1, 3], "data": "AACAPwAAAMAAAAA/"}
    found = upload({"vectors": encoded})

    assert services.datasets.load("default", found["id"]).vectors.tolist() == [[1.0, -2.0, 0.5]]
    assert found["dtype"] == "float32"


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        ("g3_evxwXq7-_OK6_", [1, 3]),
        ("AACAPwAAAMAAAAA/", [1, 4]),
        ("AACAPwAAAMAAAAA/", [3, 3]),
        ("AACAPwAAAMAAAAA", [1, 3]),
        ("AACA PwAAAMAAAAA/", [1, 3]),
        ("", [0, 3]),
        ("AACAPwAAAMAAAAA/", [-1, -3]),
    ],
    ids=["url-safe", "too few", "far too few", "cut", "blank inside", "no rows", "negative"],
)
def test_other_base64_is_refused(data: str, shape: list[int], door: Any, refusal: Any) -> None:
    """CASES P10: lenient decoding would read other numbers."""
    encoded = {"encoding": "base64", "dtype": "<f4", "shape": shape, "data": data}
    answer = door.post("/v1/datasets", json={"vectors": encoded})
    refusal(answer, 422, "malformed-payload")


def test_the_same_rows_are_one_dataset_however_they_are_sent(upload: Any) -> None:
    """The .npy file, and base64 of the same float32 buffer."""
    rows = np.random.default_rng(5).normal(size=(4, 3)).astype("<f4")
    data = base64.b64encode(rows.tobytes()).decode()
    encoded = {"encoding": "base64", "dtype": "<f4", "shape": [4, 3], "data": data}

    assert upload({"vectors": encoded})["id"] == upload(rows)["id"]
    wide = rows.astype(np.float64)
    assert upload({"vectors": wide.tolist()})["id"] == upload(wide)["id"]


def test_embedding_responses_are_accepted_as_they_are(upload: Any, services: Services) -> None:
    """An OpenAI-style answer with a shuffled index, as numbers and as base64."""
    rows = [[1.0, -2.0, 0.5], [0.25, 4.0, -8.0], [3.0, 0.0, 1.0]]

    def response(embed: Callable[[list[float]], Any]) -> dict[str, Any]:
        items = [
            {"object": "embedding", "index": i, "embedding": embed(rows[i])} for i in (2, 0, 1)
        ]
        usage = {"prompt_tokens": 9, "total_tokens": 9}
        return {"object": "list", "data": items, "model": "text-embedding-9", "usage": usage}

    numbers = upload(response(list))
    packed = upload(response(lambda row: base64.b64encode(np.float32(row).tobytes()).decode()))

    assert services.datasets.load("default", numbers["id"]).vectors.tolist() == rows
    assert packed["id"] == numbers["id"]
    assert numbers["spec"]["model"] == "text-embedding-9"


@pytest.mark.parametrize(
    "order", [[0, 0], [1, 2], [0], [0, "1"], [0.0, 1.0], [False, True], [0, None], [0, [1]]]
)
def test_an_embedding_response_numbers_its_rows_once_each(
    order: list[Any], door: Any, refusal: Any
) -> None:
    """Every other index is refused; a missing one counts from the start."""
    items = [{"index": index, "embedding": [1.0, 2.0]} for index in order]
    items += [{"embedding": [1.0, 2.0]}] * (2 - len(order))
    answer = door.post("/v1/datasets", json={"data": items, "model": "m"})
    if order == [0]:
        assert answer.status_code == 201
    else:
        refusal(answer, 422, "invalid-request")


def test_a_bad_item_of_an_embedding_response_is_named_by_its_place(door: Any, refusal: Any) -> None:
    """The pointer leads to the bad item in the body, whatever its `index` says."""
    good = "AACAPwAAAMAAAAA/"
    items = [{"index": 2, "embedding": good}, {"index": 0, "embedding": "g3_evxwXq7-_OK6_"}]
    items.append({"index": 1, "embedding": good})
    found = refusal(door.post("/v1/datasets", json={"data": items}), 422, "malformed-payload")
    assert [fault["pointer"] for fault in found["errors"]] == ["/data/1/embedding"]


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_does_not_have_are_refused(token: str, door: Any, refusal: Any) -> None:
    """CASES P11, the first three bodies."""
    body = f'{{"vectors": [[1.0, {token}]]}}'
    refusal(door.post("/v1/datasets", content=body, headers=JSON), 422, "malformed-payload")


def test_a_number_beyond_float32_is_kept_as_float64(upload: Any, services: Services) -> None:
    """CASES P11, the last body: 3.5e38 is finite in float64."""
    found = upload({"vectors": [[1.0, 3.5e38]]})

    assert found["dtype"] == "float64"
    assert services.datasets.load("default", found["id"]).vectors.tolist() == [[1.0, 3.5e38]]
    assert found["facts"]["non_finite_rows"]["count"] == 0


def test_a_file_with_nan_is_accepted_and_counted(upload: Any) -> None:
    """CASES P11: row 3 of eight."""
    rows = np.random.default_rng(96).normal(size=(8, 3)).astype(np.float32)
    rows[3, 1] = np.nan
    assert upload(rows)["facts"]["non_finite_rows"] == {"count": 1, "rows": [3]}


def test_a_file_with_a_zero_row_is_accepted_and_counted(upload: Any) -> None:
    """CASES P16: row 2 of five."""
    rows = np.array([[1, 0, 0], [0.6, 0.8, 0], [0, 0, 0], [0, 1, 0], [0.8, 0, 0.6]])
    facts = upload(rows)["facts"]
    assert facts["zero_rows"] == {"count": 1, "rows": [2]}
    assert facts["unit_rows"] == 4


@pytest.mark.parametrize(
    "vectors",
    [[], [[]], [[1.0], [1.0, 2.0]], [[1.0], []]],
    ids=["none", "no dimensions", "ragged", "one empty"],
)
def test_listed_rows_have_equal_lengths_of_at_least_one(
    vectors: Any, door: Any, refusal: Any
) -> None:
    """Ragged and empty lists have no shape."""
    refusal(door.post("/v1/datasets", json={"vectors": vectors}), 422, "shape-mismatch")


@pytest.mark.parametrize(
    "vectors", [[["1.5"]], [[True]], [[None]], [1.0], "x", 5, {"data": ""}, [[1.0, [2.0]]]]
)
def test_listed_rows_are_numbers(vectors: Any, door: Any, refusal: Any) -> None:
    """Text and booleans never become numbers."""
    refusal(door.post("/v1/datasets", json={"vectors": vectors}), 422, "invalid-request")


@pytest.mark.parametrize(
    "body",
    [
        [], "x", None, {}, {"vectors": [[1.0]], "extra": 1}, {"vectors": [[1.0]], "ids": [1]},
        {"vectors": [[1.0]], "spec": {"modle": "x"}}, {"ids": ["a"]}, {"columns": {}},
        {"columns": {"a": []}}, {"columns": {"a": [[1]]}}, {"columns": {"a": 1}},
    ],
)  # fmt: skip
def test_a_json_dataset_has_vectors_or_columns_and_nothing_unknown(
    body: Any, door: Any, refusal: Any
) -> None:
    """Unknown fields are refused, never ignored; a dataset has at least one row."""
    refusal(
        door.post("/v1/datasets", content=json.dumps(body), headers=JSON), 422, "invalid-request"
    )


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"vectors": [[1.0]]} x'])
def test_what_is_not_json_is_malformed(body: bytes, door: Any, refusal: Any) -> None:
    """Cut, binary, too deep, or followed by something."""
    refusal(door.post("/v1/datasets", content=body, headers=JSON), 422, "malformed-payload")


def test_ids_and_columns_have_one_entry_per_row(door: Any, refusal: Any) -> None:
    """All wrong lengths are named in one answer."""
    body = {
        "vectors": [[1.0], [2.0]], "ids": ["a"],
        "columns": {"g": ["x"], "h": ["x", "y"], "a/b~": ["x", "y", "z"]},
    }  # fmt: skip
    found = refusal(door.post("/v1/datasets", json=body), 422, "shape-mismatch")
    assert {fault["pointer"] for fault in found["errors"]} == {
        "/ids", "/columns/g", "/columns/a~1b~0",
    }  # fmt: skip


def test_repeated_ids_are_named(door: Any, refusal: Any) -> None:
    """Twelve ids occur twice: ten are shown, twelve counted."""
    ids = [f"r{i}" for i in range(12)] * 2
    body = {"vectors": [[1.0]] * 24, "ids": ids}
    (fault,) = refusal(door.post("/v1/datasets", json=body), 422, "duplicate-ids")["errors"]
    assert (fault["pointer"], fault["count"]) == ("/ids", 12)
    assert fault["rows"] == ids[:10]


def test_labels_keep_their_json_type(upload: Any, services: Services) -> None:
    """1, true and "1" are three labels, and null is none."""
    found = upload({"columns": {"g": [1, True, "1", None, 1]}})

    assert (found["n"], found["d"], found["dtype"], found["facts"]) == (5, None, None, None)
    facts = found["columns"]["g"]
    assert (facts["type"], facts["distinct"], facts["missing"]) == ("mixed", 3, 1)
    levels = services.datasets.column("default", found["id"], "g").levels
    assert [type(level) for level in levels] == [int, bool, str]


def test_labels_beyond_64_bits_are_never_merged(door: Any) -> None:
    """Two ids of 2^64 and one more are two labels, or refused; as rounded numbers they are one."""
    answer = door.post("/v1/datasets", json={"columns": {"g": [2**64, 2**64 + 1]}})
    assert answer.status_code == 422
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [
        "/columns/g/0",
        "/columns/g/1",
    ]
    assert "as strings" in answer.json()["errors"][0]["message"]


def test_missing_labels_are_null_or_an_empty_cell_and_nothing_else(upload: Any) -> None:
    """CASES P05: the strings "None" and "nan" are ordinary labels; JSON and CSV agree."""
    labels = ["a", None, "None", "nan", "b", "", None, "b"]
    listed = upload({"columns": {"g": labels}})["columns"]["g"]
    cells = "\n".join("" if label is None else label or '" "' for label in labels)
    read = upload(f"g\n{cells}\n")["columns"]["g"]

    assert (listed["distinct"], listed["missing"]) == (5, 2)
    assert (read["distinct"], read["missing"]) == (5, 2)
    assert (
        upload({"columns": {"g": ["a", None, "nan"]}})["columns"]["g"]["sha256"]
        == (upload("g\na\n\nnan\n")["columns"]["g"]["sha256"])
    )


def test_csv_columns_are_text_and_may_name_ids(upload: Any, services: Services) -> None:
    """Quoted commas, quotes and line ends; a byte order mark; Windows line ends."""
    text = '\ufeffid,intent,n\r\nr1,"a, b",1\r\nr2,"say ""x""",\r\nr3,"two\nlines",01\r\n'
    found = upload(text, id_column="id")

    assert found["columns"].keys() == {"intent", "n"}
    assert services.datasets.ids("default", found["id"]) == ("r1", "r2", "r3")
    column = services.datasets.column("default", found["id"], "intent")
    assert column.levels == ("a, b", 'say "x"', "two\nlines")
    assert services.datasets.column("default", found["id"], "n").levels == ("1", "01")
    assert found["columns"]["n"]["missing"] == 1


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "invalid-request"),
        ("a,b\n", "invalid-request"),
        ("a,a\n1,2\n", "invalid-request"),
        ("a,\n1,2\n", "invalid-request"),
        ("a,b\n1\n", "malformed-payload"),
        ("a,b\n1,2,3\n", "malformed-payload"),
        ('a\n"x\n', "malformed-payload"),
        ('a\n"x"y\n', "malformed-payload"),
    ],
)
def test_damaged_csv_is_refused(text: str, code: str, door: Any, refusal: Any) -> None:
    """Header without rows, repeated or empty names, ragged lines, open quotes."""
    refusal(door.post("/v1/datasets", content=text, headers=CSV), 422, code)


def test_ragged_csv_lines_are_named(door: Any, refusal: Any) -> None:
    """Row numbers, from 0, of the lines with another number of cells."""
    text = "a,b\n1,2\n1\n1,2\n1,2,3\n"
    (fault,) = refusal(
        door.post("/v1/datasets", content=text, headers=CSV), 422, "malformed-payload"
    )["errors"]
    assert (fault["count"], fault["rows"]) == (2, ["1", "3"])


def test_csv_that_is_not_utf8_is_malformed(door: Any, refusal: Any) -> None:
    """Latin-1 would be read as other labels."""
    body = "a\né\n".encode("latin-1")
    refusal(door.post("/v1/datasets", content=body, headers=CSV), 422, "malformed-payload")


@pytest.mark.parametrize(
    ("query", "text"), [("id_column=x", "a\n1\n"), ("id_column=a", "a,b\n,1\n")]
)
def test_csv_ids_are_a_column_without_gaps(query: str, text: str, door: Any, refusal: Any) -> None:
    """An unknown column, and a row without an id."""
    refusal(door.post(f"/v1/datasets?{query}", content=text, headers=CSV), 422, "invalid-request")


def test_the_same_content_is_stored_once_whatever_it_is_called(door: Any, upload: Any) -> None:
    """201 the first time, 200 with the first dataset after that."""
    rows = np.eye(3, dtype=np.float32)
    first = upload(rows, name="one")
    file = io.BytesIO()
    np.save(file, rows)
    answer = door.post("/v1/datasets?name=two", content=file.getvalue(), headers=NPY)

    assert answer.status_code == 200
    assert answer.json() == first
    assert answer.headers["location"] == f"/v1/datasets/{first['id']}"


def test_the_hash_of_a_dataset_covers_rows_ids_columns_and_spec(upload: Any) -> None:
    """Each change of content is another dataset with the same `vectors_sha256`; the name is not."""
    base: dict[str, Any] = {"vectors": [[1.0, 2.0], [3.0, 4.0]], "ids": ["a", "b"]}
    forms = [
        base, {**base, "ids": ["b", "a"]}, {"vectors": base["vectors"]},
        {**base, "columns": {"g": ["x", "y"]}}, {**base, "columns": {"h": ["x", "y"]}},
        {**base, "columns": {"g": ["y", "x"]}}, {**base, "spec": {"model": "m"}},
        {**base, "spec": {"prompt": "m"}},
    ]  # fmt: skip
    sent = [upload(form) for form in forms]

    assert len({found["sha256"] for found in sent}) == len(forms)
    assert len({found["vectors_sha256"] for found in sent}) == 1
    assert upload({**base, "name": "other"})["sha256"] == sent[0]["sha256"]


def test_an_upload_answers_with_its_place_and_tag(door: Any, npy: Any) -> None:
    """Location leads to the dataset; its ETag answers 304."""
    answer = door.post("/v1/datasets", content=npy(np.eye(2)), headers=NPY)
    assert answer.status_code == 201
    place = answer.headers["location"]
    read = door.get(place)

    assert read.json() == answer.json()
    again = door.get(place, headers={"If-None-Match": read.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("kind", [None, "", "text/plain", "multipart/form-data; boundary=x"])
def test_other_content_types_are_unsupported(kind: str | None, door: Any, refusal: Any) -> None:
    """415 with those that are taken."""
    headers = {} if kind is None else {"Content-Type": kind}
    found = refusal(
        door.post("/v1/datasets", content=b"x", headers=headers), 415, "unsupported-format"
    )
    assert "application/x-npy" in found["detail"]


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("application/x-npy", "id_column"),
        ("application/x-npy", "vector_column"),
        ("text/csv", "vector_column"),
        ("text/csv", "dtype"),
        ("application/json", "id_column"),
        ("application/vnd.apache.parquet", "dtype"),
    ],
)
def test_an_option_that_says_nothing_about_a_body_is_refused(
    kind: str, option: str, door: Any, refusal: Any
) -> None:
    """It would seem to have been heeded."""
    value = "bf16" if option == "dtype" else "a"
    answer = door.post(
        "/v1/datasets", content=b"a\n1\n", params={option: value}, headers={"Content-Type": kind}
    )
    assert f"`{option}` says nothing" in refusal(answer, 422, "invalid-request")["detail"]


@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP", "identity, deflate"])
@pytest.mark.parametrize("place", ["datasets", "jobs", "gates", "gates/validate"])
def test_an_encoded_body_is_refused_and_told_what_to_send(
    encoding: str, place: str, door: Any, npy: Any, refusal: Any
) -> None:
    body = npy(np.ones((2, 2))) if place == "datasets" else b"{}"
    kind = NPY if place == "datasets" else {"Content-Type": "application/json"}
    found = refusal(
        door.post(
            f"/v1/{place}",
            content=gzip.compress(body),
            headers={**kind, "Content-Encoding": encoding},
        ),
        415,
        "unsupported-format",
    )
    assert "identity" in found["detail"]


def test_a_body_said_to_be_as_it_is_is_taken(door: Any, npy: Any) -> None:
    headers = {**NPY, "Content-Encoding": "identity"}
    answer = door.post("/v1/datasets", content=npy(np.ones((2, 2))), headers=headers)
    assert answer.status_code == 201


@pytest.mark.parametrize("kind", ["u1", "i2", "i8", "c8", "?", "M8[s]", "S3"])
def test_other_number_types_are_refused_by_name(
    kind: str, door: Any, npy: Any, strict: Any
) -> None:
    """4xx that names the types which are taken."""
    answer = door.post("/v1/datasets", content=npy(np.zeros((2, 2), kind)), headers=NPY)
    assert answer.status_code in (415, 422)
    assert "float32" in strict(answer.content)["detail"]


def test_an_unknown_dataset_is_not_found(door: Any, refusal: Any) -> None:
    """Also where the id is none, or would leave the folder."""
    for name in ("ds_" + "0" * 24, "nope", "..%5csecret", "a%00b", "%0a"):
        refusal(door.get(f"/v1/datasets/{name}"), 404, "unknown-dataset")
    refusal(door.get("/v1/datasets/..%2f..%2fsecret"), 404, "unknown-path")


def test_an_upload_that_fails_is_forgotten(
    door: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused in the header, in the body and at the end: each draft is discarded."""
    dropped: list[str] = []
    monkeypatch.setattr(services.datasets, "discard", lambda draft: dropped.append(draft.id))
    for body in (HOSTILE["huge"], claims("(4, 4)", body=b"\0" * 65), claims("(5, 4)")):
        assert door.post("/v1/datasets", content=body, headers=NPY).status_code in (413, 422)
    assert len(set(dropped)) == 3


def digest(data: bytes) -> dict[str, str]:
    """The header of RFC 9530."""
    value = base64.b64encode(hashlib.sha256(data).digest()).decode()
    return {"Content-Digest": f"sha-256=:{value}:"}


def found(door: Any, data: bytes, **query: str) -> list[str]:
    """Ids the service gives for this body."""
    params = {"body_sha256": hashlib.sha256(data).hexdigest(), **query}
    answer = door.get("/v1/datasets", params=params)
    assert answer.status_code == 200, answer.text
    assert answer.json()["next_cursor"] is None
    return [one["id"] for one in answer.json()["items"]]


def test_a_body_need_not_be_sent_twice(door: Any, npy: Any, some_rows: Any) -> None:
    """What came with its digest is found by it, under whatever name, and nothing else is."""
    data = npy(some_rows)
    assert found(door, data) == []
    sent = door.post(
        "/v1/datasets?name=first", content=data,
        headers={"Content-Type": "application/x-npy", **digest(data)},
    )  # fmt: skip
    assert sent.status_code == 201
    assert found(door, data) == [sent.json()["id"]]
    assert found(door, data + b"\0") == []


@pytest.mark.parametrize(
    ("query", "sent"),
    [({"model": "e5"}, {}), ({}, {"model": "e5"}), ({"model": "e5"}, {"model": "e6"}),
     ({"revision": "2"}, {}), ({"content_type": "text/csv"}, {})],
)  # fmt: skip
def test_the_same_body_sent_otherwise_is_another_dataset(
    query: dict[str, str], sent: dict[str, str], door: Any, npy: Any, some_rows: Any
) -> None:
    """Model, revision and media type decide what a body becomes, so they have to agree."""
    data = npy(some_rows)
    headers = {"Content-Type": "application/x-npy", **digest(data)}
    assert door.post("/v1/datasets", params=sent, content=data, headers=headers).is_success
    assert found(door, data, **query) == []
    assert len(found(door, data, **sent)) == 1


def test_options_of_a_table_decide_too(door: Any) -> None:
    """The same CSV with its ids in a column, or without ids."""
    data = b"name,g\nx,1\ny,2\n"
    headers = {"Content-Type": "text/csv; charset=utf-8", **digest(data)}
    sent = door.post("/v1/datasets?id_column=name", content=data, headers=headers).json()
    assert found(door, data, content_type="text/csv") == []
    assert found(door, data, content_type="TEXT/CSV", id_column="name") == [sent["id"]]


def test_a_body_of_another_digest_is_refused(
    door: Any, npy: Any, some_rows: Any, refusal: Any
) -> None:
    """It was damaged on its way; nothing is kept."""
    data = npy(some_rows)
    headers = {"Content-Type": "application/x-npy", **digest(data[:-1] + b"?")}
    answer = door.post("/v1/datasets", content=data, headers=headers)
    assert "SHA-256" in refusal(answer, 422, "malformed-payload")["detail"]
    assert door.get("/v1/datasets").json()["items"] == []


def test_digests_of_other_kinds_are_passed_over(door: Any, npy: Any, some_rows: Any) -> None:
    """The field may hold several; only SHA-256 is checked."""
    data = npy(some_rows)
    headers = {"Content-Type": "application/x-npy", "Content-Digest": "md5=:AAAA:, unixsum=1"}
    assert door.post("/v1/datasets", content=data, headers=headers).status_code == 201
    both = {"Content-Digest": "md5=:AAAA:, " + digest(data)["Content-Digest"]}
    assert door.post("/v1/datasets", content=data, headers={**headers, **both}).is_success
    assert len(found(door, data)) == 1


def test_datasets_are_listed_page_by_page(door: Any, upload: Any, refusal: Any) -> None:
    """Newest first, as jobs are."""
    ids = [upload(np.full((2, 2), float(i)))["id"] for i in range(5)]
    shown: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while query.get("cursor", True):
        page = door.get("/v1/datasets", params=query).json()
        shown += [one["id"] for one in page["items"]]
        query["cursor"] = page["next_cursor"]
    assert shown == ids[::-1]
    for wrong in ({"cursor": "x"}, {"limit": 0}, {"limit": 201}, {"body_sha256": "AB"}):
        refusal(door.get("/v1/datasets", params=wrong), 422, "invalid-request")


def test_a_dataset_whose_record_is_damaged_is_a_problem_of_its_own(
    services: Services, knock: Any, upload: Any, refusal: Any, tmp_path: Path
) -> None:
    """Said with what to do; the listing, and uploads, go on."""
    door = knock(replace(services, datasets=ObjectDatasets(tmp_path)))
    broken = upload([[1.0, 2.0]], door)["id"]
    (tmp_path / "default/datasets" / broken / "dataset.json").write_bytes(b'{"id": "ds')
    whole = upload([[3.0, 4.0]], door)["id"]
    for place in (f"/v1/datasets/{broken}", f"/v1/datasets/{broken}/vectors"):
        answer = door.get(place)
        refusal(answer, 500, "damaged-dataset")
        assert broken in answer.json()["detail"]
    job = {"kind": "geometry", "inputs": {"vectors": {"dataset": broken}}}
    refusal(door.post("/v1/jobs", json=job), 500, "damaged-dataset")
    assert [one["id"] for one in door.get("/v1/datasets").json()["items"]] == [whole]
    assert door.delete(f"/v1/datasets/{broken}").status_code == 204
    refusal(door.get(f"/v1/datasets/{broken}"), 404, "unknown-dataset")
