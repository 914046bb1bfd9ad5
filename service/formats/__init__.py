"""
Formats a dataset arrives in. Each reader is fed bytes as they come and never holds all of them.

One line per content type; a new format is one file with a `Reader` and one line here.
"""

from __future__ import annotations

from service.errors import InvalidRequest, UnsupportedFormat
from service.formats.csv_columns import CsvReader
from service.formats.json_body import ImportBody, JsonReader
from service.formats.npy import NpyReader
from service.formats.pages import PageWriter
from service.formats.reader import Limits, Options, Parsed, Reader, Sink
from service.formats.table import ArrowReader, ParquetReader

READERS: dict[str, type[Reader]] = {
    "application/x-npy": NpyReader,
    "application/json": JsonReader,
    "application/vnd.apache.parquet": ParquetReader,
    "application/vnd.apache.arrow.stream": ArrowReader,
    "text/csv": CsvReader,
}


def reader_for(content_type: str, sink: Sink, limits: Limits, options: Options) -> Reader:
    """The reader of a content type (parameters such as charset are ignored)."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in READERS:
        raise UnsupportedFormat(
            f"Content-Type `{kind or 'none'}` cannot be read; send one of {', '.join(READERS)}."
        )
    given = {name for name, value in vars(options).items() if value is not None}
    if useless := sorted(given - READERS[kind].takes):
        raise InvalidRequest(
            f"`{useless[0]}` says nothing about a body of type {kind}; leave it out"
            + (
                f" ({', '.join(sorted(READERS[kind].takes))} can be given)."
                if READERS[kind].takes
                else "."
            )
        )
    return READERS[kind](sink, limits, options)


__all__ = [
    "READERS",
    "ImportBody",
    "JsonReader",
    "Limits",
    "Options",
    "PageWriter",
    "Parsed",
    "Reader",
    "Sink",
    "reader_for",
]
