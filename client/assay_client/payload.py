"""What can be uploaded, piece by piece: a file, an open file, or an array."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

from assay_client.problems import Mistake

PIECE_BYTES = 1 << 20
NPY, CSV = "application/x-npy", "text/csv"
PARQUET, ARROW = "application/vnd.apache.parquet", "application/vnd.apache.arrow.stream"
CONTENT_TYPES = {
    ".npy": NPY,
    ".csv": CSV,
    ".parquet": PARQUET,
    ".arrow": ARROW,
    ".arrows": ARROW,
}
"""An Arrow file is told from a stream by its first bytes, by whoever reads it."""
COLUMNS_NAMED = {CSV: ("id_column",), PARQUET: ("vector_column", "id_column")}
COLUMNS_NAMED[ARROW] = COLUMNS_NAMED[PARQUET]
NPY_MAGIC = b"\x93NUMPY"
MAGIC = {NPY_MAGIC: NPY, b"PAR1": PARQUET, b"ARROW1": ARROW, b"\xff\xff\xff\xff": ARROW}
NPY_ALIGNMENT = 64
STORED_AS = ("f2", "f4", "f8", "i1")

Piece = bytes | memoryview


@runtime_checkable
class Array(Protocol):
    """A NumPy array, known by what it has, so that NumPy need not be there."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def tolist(self) -> list[Any]: ...


@dataclass(frozen=True)
class Payload:
    """A body that can be read from its start any number of times."""

    name: str | None
    content_type: str
    size: int
    pieces: Callable[[], Iterator[Piece]]
    options: Mapping[str, str] = field(default_factory=dict)
    """Columns of a table that hold vectors and ids, where they have to be named."""


def payload(
    source: str | Path | BinaryIO | Array,
    name: str | None = None,
    options: Mapping[str, str | None] | None = None,
) -> Payload:
    """The body of an upload."""
    if isinstance(source, (str, Path)):
        body = _file(Path(source), name)
    elif isinstance(source, Array):
        body = _array(source, name)
    else:
        body = _open_file(source, name)
    named = {key: value for key, value in (options or {}).items() if value is not None}
    refuse_columns(body.content_type, named)
    return replace(body, options=named)


def refuse_columns(content_type: str, options: Mapping[str, str]) -> None:
    """Refuse to name a column where there is none."""
    for option in options:
        if option not in COLUMNS_NAMED.get(content_type, ()):
            raise Mistake(f"`{option}` is for tables, .parquet and .arrow, not for {content_type}")


def content_type_of(path: Path) -> str:
    """How the file is sent, by its name."""
    if not path.is_file():
        raise Mistake(f"there is no file `{path}`")
    known = CONTENT_TYPES.get(path.suffix.lower())
    if known is None:
        raise Mistake(
            f"`{path}` cannot be uploaded: {path.suffix or 'a file without suffix'} is not "
            f"supported, only {', '.join(CONTENT_TYPES)}",
            code="unsupported-format",
        )
    return known


def _file(path: Path, name: str | None) -> Payload:
    content_type = content_type_of(path)

    def pieces() -> Iterator[Piece]:
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    return Payload(name or path.name, content_type, path.stat().st_size, pieces)


def _open_file(file: BinaryIO, name: str | None) -> Payload:
    start = file.tell()
    first = file.read(len(NPY_MAGIC))
    content_type = next((kind for magic, kind in MAGIC.items() if first.startswith(magic)), CSV)
    size = file.seek(0, os.SEEK_END) - start
    file.seek(start)

    def pieces() -> Iterator[Piece]:
        file.seek(start)
        while piece := file.read(PIECE_BYTES):
            yield piece

    return Payload(name, content_type, size, pieces)


def _array(array: Any, name: str | None) -> Payload:
    """The .npy file of an array, whose rows are copied a piece at a time at most."""
    code = array.dtype.str
    if array.ndim != 2 or not array.size:
        raise Mistake(f"an array needs rows and dimensions; this one has the shape {array.shape}")
    if code[1:] not in STORED_AS:
        raise Mistake(
            f"an array of {array.dtype} cannot be uploaded; make it float16, float32, float64 or "
            "int8",
            code="unsupported-format",
        )
    header = _npy_header(code, array.shape)
    row_bytes = array.shape[1] * array.itemsize
    rows = max(1, PIECE_BYTES // row_bytes)

    def pieces() -> Iterator[Piece]:
        yield header
        for start in range(0, array.shape[0], rows):
            block = array[start : start + rows]
            if not block.flags.c_contiguous:
                block = block.copy(order="C")
            yield block.reshape(-1).view("u1").data

    return Payload(name, NPY, len(header) + array.shape[0] * row_bytes, pieces)


def _npy_header(code: str, shape: tuple[int, ...]) -> bytes:
    """Version 1.0 of the format, as numpy.lib.format writes it."""
    text = f"{{'descr': '{code}', 'fortran_order': False, 'shape': {tuple(map(int, shape))}, }}"
    length = len(NPY_MAGIC) + 2 + 2 + len(text) + 1
    text += " " * (-length % NPY_ALIGNMENT) + "\n"
    return NPY_MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text.encode("latin1")
