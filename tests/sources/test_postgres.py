"""Rows of a binary COPY, however they are cut on their way; names and values as SQL."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InvalidRequest, SourceUnreachable
from service.sources import postgres
from service.sources.connection import read_connections
from service.sources.postgres import SIGNATURE, Row, Session, listed, name

FIELD = st.none() | st.binary(max_size=9)
ROWS = st.lists(st.tuples(FIELD, FIELD, FIELD), max_size=8)


def written(rows: list[Row], extension: bytes = b"") -> bytes:
    """As the manual of PostgreSQL defines the format (COPY, Binary Format)."""
    data = SIGNATURE + struct.pack(">ii", 0, len(extension)) + extension
    for row in rows:
        data += struct.pack(">h", len(row))
        for field in row:
            data += struct.pack(">i", -1 if field is None else len(field)) + (field or b"")
    return data + struct.pack(">h", -1)


def read(pieces: list[bytes]) -> list[Row]:
    """What a session makes of these pieces."""

    class Cut(Session):
        def __init__(self) -> None:
            pass

        def _copy(self, query: str) -> Iterator[bytes]:  # type: ignore[override]
            yield from pieces

    return [row for some in Cut().rows("") for row in some]


@given(ROWS, st.sets(st.integers(0, 400)), st.binary(max_size=5))
def test_rows_are_the_same_however_they_are_cut(
    rows: list[Row], cuts: set[int], extension: bytes
) -> None:
    """In the header, in a length, in a field; nothing has to stand where a message ends."""
    data = written(rows, extension)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    assert read(pieces) == rows


def test_what_is_no_copy_is_refused() -> None:
    with pytest.raises(SourceUnreachable, match="binary COPY"):
        read([b"HTTP/1.1 200 OK\r\n\r\n"])


@pytest.mark.parametrize(
    ("parts", "quoted"),
    [
        (("docs",), '"docs"'),
        (("public", "order"), '"public"."order"'),
        (('a"; DROP TABLE x; --',), '"a""; DROP TABLE x; --"'),
    ],
)
def test_a_name_is_quoted_whatever_it_is(parts: tuple[str, ...], quoted: str) -> None:
    assert name(*parts) == quoted


def test_values_are_constants() -> None:
    assert listed([True, 7, -1.5, "it's", "\\"]) == "(TRUE, 7, -1.5, 'it''s', '\\')"
    for call in (lambda: name("a\0b"), lambda: listed(["\0"])):
        with pytest.raises(InvalidRequest, match="zero"):
            call()


@pytest.mark.parametrize(
    ("options", "said"), [({"hostaddr": "10.0.0.1"}, "hostaddr"), ({"sslmode": "no"}, "one of")]
)
def test_an_option_nobody_knows_is_named_before_anything_is_reached(
    options: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that would lead elsewhere, and a misspelt mode; the value is not repeated."""
    monkeypatch.setattr(postgres.guard, "connect", lambda *_: pytest.fail("it connects"))
    written_as = '{"db": {"url": "postgresql://127.0.0.1/app", "private": true}}'
    given_options = read_connections(written_as)["db"]
    object.__setattr__(given_options, "options", options)
    with pytest.raises(SourceUnreachable, match=said) as caught:
        Session(given_options)
    assert "10.0.0.1" not in str(caught.value)
