"""The CSV reader against Python's own writer: the same text comes out, gaps where cells are empty."""

from __future__ import annotations

import csv
import gc
import io
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InvalidRequest, MalformedPayload, PayloadTooLarge
from service.formats import Limits

CSV = "text/csv"
cells = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6
) | st.sampled_from(["", "None", "nan", "a,b", 'say "x"', "two\nlines", "two\r\nlines", " "])
tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), min_size=1, max_size=8)
)


def values(column: Any) -> list[str | None]:
    """The column as a list, None where a cell was empty."""
    return [None if code < 0 else column.levels[code] for code in column.codes]


@given(tables, st.sampled_from(["\n", "\r\n"]), st.lists(st.integers(0, 999), max_size=4))
def test_any_table_written_by_the_standard_library_comes_back(
    read: Any, table: list[list[str]], ending: str, cuts: list[int]
) -> None:
    """Commas, quotes, line breaks and any script, cut anywhere; empty is missing."""
    names = [f"c{i}" for i in range(len(table[0]))]
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator=ending, quoting=csv.QUOTE_ALL).writerows([names, *table])
    parsed, _ = read(CSV, file.getvalue().encode(), cuts)

    assert (parsed.n, parsed.d, parsed.dtype, parsed.facts) == (len(table), None, None, None)
    for i, name in enumerate(names):
        assert values(parsed.columns[name]) == [row[i] or None for row in table]


def test_an_empty_line_is_a_gap_in_one_column_and_nothing_in_several(read: Any) -> None:
    """A blank line of a one-column file is a missing label; the end of the file is not."""
    assert values(read(CSV, b"g\na\n\nb\n")[0].columns["g"]) == ["a", None, "b"]
    assert values(read(CSV, b"g\na\n\nb")[0].columns["g"]) == ["a", None, "b"]
    assert values(read(CSV, b"g,h\na,1\n\nb,2\n\n")[0].columns["g"]) == ["a", "b"]


def test_every_cell_is_text(read: Any) -> None:
    """Numbers, booleans and nulls of other formats are labels as they are written."""
    column = read(CSV, b"g\n1\n1.0\ntrue\nNone\nnan\nnull\nNaN\nNA\n01\n")[0].columns["g"]
    assert column.levels == ("1", "1.0", "true", "None", "nan", "null", "NaN", "NA", "01")
    assert column.type == "string"
    assert column.missing == 0


def test_a_byte_order_mark_is_no_part_of_the_first_name(read: Any) -> None:
    """As spreadsheets write it."""
    assert list(read(CSV, b"\xef\xbb\xbfg,h\n1,2\n")[0].columns) == ["g", "h"]


def test_ids_come_from_the_named_column(read: Any) -> None:
    """In row order, and the column is no longer one."""
    parsed, _ = read(CSV, b"g,key\na,x\nb,y\n", id_column="key")
    assert parsed.ids == ("x", "y")
    assert list(parsed.columns) == ["g"]


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("", None), ("\n", None), ("g\n", None), ("g,h\n", None), ("g,g\n1,2\n", None),
        ("g,\n1,2\n", None), ("g\n1\n", "key"), ("g,key\n1,\n", "key"),
    ],
)  # fmt: skip
def test_a_table_has_a_header_rows_and_full_ids(text: str, option: str | None, read: Any) -> None:
    """Each of these lacks one."""
    options = {} if option is None else {"id_column": option}
    with pytest.raises(InvalidRequest):
        read(CSV, text.encode(), **options)


@pytest.mark.parametrize(
    "text",
    [b"g,h\n1\n", b"g\n1,2\n", b'g\n"1\n', b'g\n"1"2\n', b"g\n\xff\n", b"g\n" + b"x" * 200_000],
    ids=["short", "long", "open quote", "after quote", "not UTF-8", "endless cell"],
)
def test_a_damaged_table_is_malformed(text: bytes, read: Any) -> None:
    """Never read as something else."""
    with pytest.raises(MalformedPayload):
        read(CSV, text)


def test_wrong_lines_are_counted_and_the_first_ten_named(read: Any) -> None:
    """Twelve of fifteen rows are short, from row 3 on."""
    text = "g,h\n" + "1,2\n" * 3 + "1\n" * 12
    with pytest.raises(MalformedPayload) as caught:
        read(CSV, text.encode())
    (fault,) = caught.value.faults
    assert (fault.count, fault.rows) == (12, [str(row) for row in range(3, 13)])


def test_limits_hold_for_bytes_and_rows(read: Any) -> None:
    """At the piece, and at the row, that passes them; an open file is left by neither."""
    text = b"g\n" + b"a\n" * 10
    read(CSV, text, limits=Limits(csv_bytes=22, rows=10))
    with pytest.raises(PayloadTooLarge):
        read(CSV, text, limits=Limits(rows=9))


def test_a_large_table_is_read_from_disk_in_small_memory(read: Any) -> None:
    """Twelve megabytes: rows and distinct labels agree with how it was made."""
    lines = "".join(f"label-{i % 1000:04},{i % 7}\n" for i in range(800_000))
    parsed, _ = read(CSV, ("g,h\n" + lines).encode())
    assert parsed.n == 800_000
    assert np.array_equal(parsed.columns["g"].codes, np.arange(800_000) % 1000)
    assert sys.getsizeof(parsed.columns["g"].codes) == pytest.approx(4 * 800_000, abs=200)


def test_a_refused_upload_leaves_no_open_file(services: Any) -> None:
    """The spool is closed by the abort, not by the garbage collector."""
    from dataclasses import replace

    from service.operations import Upload

    upload = Upload(replace(services, limits=Limits(csv_bytes=3)), "default", CSV)
    with pytest.raises(PayloadTooLarge):
        upload.feed(b"g\na\n")
    upload.abort()
    del upload
    gc.collect()
