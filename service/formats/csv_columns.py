"""CSV columns: labels that follow a matrix of vectors."""

from __future__ import annotations

import csv
import io
import tempfile
from array import array
from typing import cast

import numpy as np

from service.dataset import Labels
from service.errors import (
    SHOWN_ROWS,
    Fault,
    InvalidRequest,
    MalformedPayload,
    PayloadTooLarge,
    counted,
)
from service.formats.reader import Limits, Options, Parsed, Sink, spool

IN_MEMORY = 8 << 20


class CsvReader:
    """Reads one CSV with a header row; cells are strings, an empty cell is missing."""

    takes = frozenset({"id_column"})

    def __init__(self, sink: Sink, limits: Limits, options: Options) -> None:
        self._limits, self._options = limits, options
        self._spool = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - closed in finish
        self._received = 0

    def feed(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > self._limits.csv_bytes:
            raise PayloadTooLarge(f"A CSV body may have {self._limits.csv_bytes} bytes.")
        spool(self._spool, data)

    def close(self) -> None:
        self._spool.close()

    def finish(self) -> Parsed:
        with self._spool:
            self._spool.seek(0)
            text = io.TextIOWrapper(cast(io.BytesIO, self._spool), "utf-8-sig", newline="")
            try:
                return self._read(text)
            except UnicodeDecodeError as error:
                raise MalformedPayload(f"The CSV is not UTF-8: {error}.") from None
            except csv.Error as error:
                raise MalformedPayload(f"The CSV cannot be read: {error}.") from None

    def _read(self, text: io.TextIOWrapper) -> Parsed:
        lines = csv.reader(text, strict=True)
        names = next(lines, [])
        if not names or not all(names) or len(set(names)) != len(names):
            raise InvalidRequest("The first line of a CSV names its columns, each once.")
        if self._options.id_column is not None and self._options.id_column not in names:
            raise InvalidRequest(f"The CSV has no column `{self._options.id_column}` for ids.")
        levels: list[dict[str, int]] = [{} for _ in names]
        codes = [array("i") for _ in names]
        wrong, first_wrong = 0, list[str]()
        n = 0
        for cells in lines:
            if not cells and len(names) > 1:
                continue
            cells = cells or [""]
            if len(cells) != len(names):
                wrong += 1
                if len(first_wrong) < SHOWN_ROWS:
                    first_wrong.append(str(n))
            else:
                for seen, column, cell in zip(levels, codes, cells, strict=True):
                    column.append(seen.setdefault(cell, len(seen)) if cell else -1)
            n += 1
            self._limits.refuse_rows(n)
        if wrong:
            raise MalformedPayload(
                f"{wrong} lines do not have {len(names)} cells.",
                [
                    Fault(
                        pointer="/columns",
                        message="quote cells that hold commas",
                        count=wrong,
                        rows=first_wrong,
                    )
                ],
            )
        if n == 0:
            raise InvalidRequest("The CSV has a header and no rows.")
        columns = {
            name: Labels(tuple(seen), np.array(column, dtype=np.int32))
            for name, seen, column in zip(names, levels, codes, strict=True)
        }
        ids = None
        if self._options.id_column is not None:
            chosen = columns.pop(self._options.id_column)
            if chosen.missing:
                raise InvalidRequest(f"There is no id in {counted(chosen.missing, 'row')}.")
            ids = tuple(str(chosen.levels[code]) for code in chosen.codes)
        return Parsed(n, None, None, 0, None, None, ids, columns)
