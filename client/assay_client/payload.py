"""What can be uploaded, piece by piece: a file, an open file, or an array."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

from assay_client.problems import Mistake

PIECE_BYTES = 1 << 20
CONTENT_TYPES = {".npy": "application/x-npy", ".csv": "text/csv"}
NPY_MAGIC = b"\x93NUMPY"
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


@dataclass(frozen=True)
class Payload:
    """A body that can be read from its start any number of times."""

    name: str | None
    content_type: str
    size: int
    pieces: Callable[[], Iterator[Piece]]


def payload(source: str | Path | BinaryIO | Array, name: str | None = None) -> Payload:
    """The body of an upload."""
    if isinstance(source, (str, Path)):
        return _file(Path(source), name)
    if isinstance(source, Array):
        return _array(source, name)
    return _open_file(source, name)


def content_type_of(path: Path) -> str:
    """How the file is sent, by its name."""
    if not path.is_file():
        raise Mistake(f"there is no file `{path}`")
    known = CONTENT_TYPES.get(path.suffix.lower())
    if known is None:
        raise Mistake(
            f"`{path}` cannot be uploaded: {path.suffix or 'a file without suffix'} is not "
            f"supported, only {' and '.join(CONTENT_TYPES)}",
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
    content_type = "application/x-npy" if file.read(6) == NPY_MAGIC else "text/csv"
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

    return Payload(name, "application/x-npy", len(header) + array.shape[0] * row_bytes, pieces)


def _npy_header(code: str, shape: tuple[int, ...]) -> bytes:
    """Version 1.0 of the format, as numpy.lib.format writes it."""
    text = f"{{'descr': '{code}', 'fortran_order': False, 'shape': {tuple(map(int, shape))}, }}"
    length = len(NPY_MAGIC) + 2 + 2 + len(text) + 1
    text += " " * (-length % NPY_ALIGNMENT) + "\n"
    return NPY_MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text.encode("latin1")
