"""
What a confined process says: one line of JSON, then the bytes that line announces.

    {"about": {...}}                                  first: what the file holds
    {"rows", "d", "dtype", "vectors", "rest"}         a page: `vectors` bytes of rows, `rest` of JSON
    {"error": {"code", "detail", "rows"}}             instead of more pages
    {"end": true}                                     last
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import orjson
from numpy.typing import NDArray

LONGEST_LINE = 1 << 16
LONGEST_SHOWN = 512
PAGE_BYTES = 8 << 20
"""About how many bytes of rows a page has."""
MOST_ROWS = 65_536


class Unreadable(Exception):
    """Something is wrong with the file, by the code of an error of the service."""

    def __init__(self, code: str, detail: str, rows: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.code, self.detail, self.rows = code, detail, rows


@dataclass(frozen=True)
class Found:
    """What a file holds, before its rows."""

    count: int | None
    """Rows, those without a vector included."""
    stored_as: str
    vector: str | None = None
    id: str | None = None
    lossy: bool = False
    normalises: bool | None = None
    """Whether rows were brought to length one before they were kept."""


@dataclass(frozen=True)
class Rows:
    """A page."""

    vectors: NDArray[Any]
    ids: list[str] | None = None
    columns: dict[str, list[Any]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Columns that are not kept, from this page on, and why."""


def rows_per_page(d: int, itemsize: int) -> int:
    """How many rows of this size a page has."""
    return int(max(1, min(MOST_ROWS, PAGE_BYTES // max(1, d * itemsize))))


def send(out: IO[bytes], found: Found, pages: Iterator[Rows]) -> None:
    """Write everything."""
    _line(out, {"about": vars(found)})
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(out.flush)
        for page in pages:
            written.result()
            written = writer.submit(_page, out, page)
        written.result()
    _line(out, {"end": True})
    out.flush()


def _page(out: IO[bytes], page: Rows) -> None:
    vectors = np.ascontiguousarray(page.vectors)
    data = orjson.dumps(
        {name: vars(page)[name] for name in ("ids", "columns", "missing", "skipped")}
    )
    rows, d = vectors.shape
    _line(
        out,
        {
            "rows": rows,
            "d": d,
            "dtype": vectors.dtype.newbyteorder("<").name,
            "vectors": vectors.nbytes,
            "rest": len(data),
        },
    )
    out.write(vectors.data.cast("B") if vectors.size else b"")
    out.write(data)


def send_error(out: IO[bytes], error: Unreadable) -> None:
    """Write why there are no more pages."""
    rows = [name[:LONGEST_SHOWN] for name in error.rows[:10]]
    shown = {"code": error.code, "detail": error.detail[:2000], "rows": rows}
    _line(out, {"error": shown})
    out.flush()


def _line(out: IO[bytes], content: dict[str, Any]) -> None:
    out.write(json.dumps(content).encode() + b"\n")
