"""Pages of rows become one dataset: rows to the sink, ids checked, columns encoded."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from sys import getsizeof
from typing import Any

import numpy as np

from service.dataset import LONGEST_ID, Labels
from service.errors import (
    SHOWN_ROWS,
    DimensionMismatch,
    Fault,
    InvalidRequest,
    PayloadTooLarge,
    ShapeMismatch,
)
from service.formats.reader import Limits, Parsed, RowWriter, Sink
from service.model import Label
from service.source_page import SourcePage

CODE_BYTES = 4
PLACE_BYTES = 8


class _Column:
    """Labels as they come."""

    def __init__(self) -> None:
        self.levels: dict[tuple[type, Label], int] = {}
        self.codes = array("i")
        self.bytes = 0

    def add(self, values: list[Label | None]) -> None:
        for value in values:
            if value is None:
                self.codes.append(-1)
                continue
            key = (type(value), value)
            code = self.levels.get(key)
            if code is None:
                code = self.levels[key] = len(self.levels)
                self.bytes += len(value) if isinstance(value, str) else 8
            self.codes.append(code)

    def labels(self) -> Labels:
        levels = tuple(value for _, value in self.levels)
        return Labels(levels, np.array(self.codes, dtype=np.int32))


@dataclass(frozen=True)
class Repeats:
    """Rows whose id an earlier row has, and the first few of these ids."""

    count: int
    ids: list[str]


class PageWriter:
    """Takes pages one by one; never holds more than one."""

    def __init__(self, sink: Sink, limits: Limits) -> None:
        self._sink, self._limits = sink, limits
        self._writer: RowWriter | None = None
        self._d = 0
        self._dtype: np.dtype[Any] = np.dtype(np.float32)
        self._ids: list[str] = []
        self._missing: list[str] = []
        self._names_bytes = 0
        self._numbered: bool | None = None
        self._columns: dict[str, _Column] = {}
        self._skipped: dict[str, str] = {}
        self.rows = 0
        """Rows with a vector, repeated ones included."""

    @property
    def missing(self) -> int:
        """Rows without a vector."""
        return len(self._missing)

    @property
    def missing_ids(self) -> list[str]:
        """The first of them."""
        return self._missing[:SHOWN_ROWS]

    def repeats(self) -> Repeats:
        """
        Ids that came more than once, with a vector or without; looked for when all have come.
        """
        names = self._missing if self._numbered else [*self._ids, *self._missing]
        count = len(names) - len(set(names))
        seen: set[str] = set()
        again: dict[str, None] = {}
        for name in names if count else ():
            if name in seen and len(again) < SHOWN_ROWS:
                again[name] = None
            seen.add(name)
        return Repeats(count, list(again))

    def add(self, page: SourcePage) -> None:
        """Some more rows."""
        self._skipped |= page.skipped
        for name in page.skipped:
            self._columns.pop(name, None)
        self._name(page.missing, self._missing)
        self._limits.refuse_rows(self.rows + len(page) + self.missing)
        if not len(page):
            return
        self._same_shape(page)
        self.rows += len(page)
        self._limits.refuse_bytes(self.rows * self._d * self._dtype.itemsize)
        self._name(page.ids or [], self._ids)
        self._names_bytes += CODE_BYTES * len(page) * len(page.columns)
        self._refuse_names()
        for name, values in page.columns.items():
            self._columns[name].add(values)
        if sum(column.bytes for column in self._columns.values()) > self._limits.csv_bytes:
            raise PayloadTooLarge(
                f"The labels take over {self._limits.csv_bytes} bytes; keep fewer columns."
            )
        if self._writer is not None:
            self._writer.write(page.vectors)

    def _same_shape(self, page: SourcePage) -> None:
        d, dtype = page.vectors.shape[1], page.vectors.dtype
        if self._writer is None:
            self._d, self._dtype, self._numbered = d, dtype, page.ids is None
            self._columns = {name: _Column() for name in page.columns}
            self._writer = RowWriter(self._sink, None, d, dtype, self._limits)
        if (page.ids is None) is not self._numbered or page.columns.keys() != self._columns.keys():
            raise InvalidRequest("Pages differ in their ids or columns.")
        if dtype.newbyteorder("=") != self._dtype.newbyteorder("="):
            raise InvalidRequest(
                f"Rows are {self._dtype.name} first and {dtype.name} from row {self.rows} on."
            )
        if d != self._d:
            name = page.ids[0] if page.ids else str(self.rows)
            raise DimensionMismatch(
                f"Rows have {self._d} dimensions first and {d} from row {self.rows} on.",
                [Fault(pointer="/vectors", message=f"has {d} dimensions", rows=[name])],
            )

    def _name(self, ids: list[str], kept: list[str]) -> None:
        if max(map(len, ids), default=0) > LONGEST_ID:
            raise InvalidRequest(f"An id has over {LONGEST_ID} characters.")
        self._names_bytes += sum(map(getsizeof, ids)) + PLACE_BYTES * len(ids)
        self._refuse_names()
        kept += ids

    def _refuse_names(self) -> None:
        if self._names_bytes > self._limits.names_bytes:
            raise PayloadTooLarge(
                f"Ids and labels take over {self._limits.names_bytes} bytes of memory; keep fewer "
                "columns, shorter ids, or rows by their numbers."
            )

    def finish(self) -> Parsed:
        """All pages have come, and no id twice (see `repeats`)."""
        if self._writer is None:
            raise ShapeMismatch(
                "There are no rows" + (f"; {self.missing} have no vector." if self.missing else ".")
            )
        parsed = self._writer.finish()
        return Parsed(
            **{
                **vars(parsed),
                "ids": None if self._numbered else tuple(self._ids),
                "columns": {name: column.labels() for name, column in self._columns.items()},
                "skipped": self._skipped,
            }
        )
