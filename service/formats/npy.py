"""NumPy .npy files, streamed; any byte order, C or Fortran order, never pickle."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from service.errors import (
    InvalidRequest,
    MalformedPayload,
    PayloadTooLarge,
    ShapeMismatch,
    UnsupportedFormat,
)
from service.formats.reader import Limits, Options, Parsed, RowWriter, Sink, spool
from service.npy import (
    LONGEST_HEADER,
    MAGIC,
    SIZE_BYTES,
    CompoundNpy,
    Header,
    UnreadableNpy,
    parsed,
)

PIECE_BYTES = 4 << 20
SHORTEST_START = 12
"""Magic, version and the length of the longest kind of header."""


class NpyReader:
    """Reads one .npy body; rows go on as soon as they are whole."""

    takes = frozenset({"dtype"})

    def __init__(self, sink: Sink, limits: Limits, options: Options) -> None:
        self._sink, self._limits, self._options = sink, limits, options
        self._buffer = bytearray()
        self._body: _Rows | _Columns | None = None
        self._received = 0

    def feed(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > self._limits.body_bytes:
            raise PayloadTooLarge(f"The body is over {self._limits.body_bytes} bytes.")
        if self._body is not None:
            self._body.feed(data)
            return
        self._buffer += data
        header = _header(self._buffer)
        if header is None:
            return
        length, said = header
        self._body = self._begin(said)
        rest = bytes(self._buffer[length:])
        self._buffer = bytearray()
        self._body.feed(rest)

    def finish(self) -> Parsed:
        if self._body is None:
            ends = "it ends inside its header" if self._received else "it is empty"
            raise MalformedPayload(f"The body is not a .npy file: {ends}.")
        return self._body.finish()

    def close(self) -> None:
        if isinstance(self._body, _Columns):
            self._body.close()

    def _begin(self, header: Header) -> _Rows | _Columns:
        _refuse_layout(header.shape, header.dtype, self._options.dtype)
        widen = self._options.dtype is not None
        n, d = header.shape
        claimed = header.bytes
        if claimed > self._limits.body_bytes:
            raise PayloadTooLarge(
                f"The header claims {claimed} bytes; at most {self._limits.body_bytes} are taken."
            )
        target = np.dtype(np.float32) if widen else header.dtype
        writer = RowWriter(self._sink, n, d, target, self._limits)
        body = _Columns if header.fortran else _Rows
        return body(writer, n, d, _stored(header.dtype), claimed)


def _refuse_layout(shape: tuple[int, ...], dtype: np.dtype[Any], asked: str | None) -> None:
    if len(shape) != 2:
        raise ShapeMismatch(
            f"Vectors have the shape (rows, dimensions), not {shape}.{_cure(shape)}"
        )
    if asked not in (None, "bf16"):
        raise InvalidRequest("`dtype` can only be `bf16`; other types are read from the file.")
    if asked and not (dtype.kind in "Vu" and dtype.itemsize == 2):
        raise InvalidRequest(f"`dtype=bf16` needs 2-byte words; the file holds {dtype}.")
    if not asked and dtype.hasobject:
        raise UnsupportedFormat("The file holds pickled objects, which are never loaded.")
    if not asked and dtype.kind not in "fi":
        raise UnsupportedFormat(
            f"The file holds {dtype}; send float16, float32, float64 or int8, or bfloat16 with "
            "`?dtype=bf16`."
        )


def _cure(shape: tuple[int, ...]) -> str:
    if len(shape) != 1:
        return ""
    return " One value for each row, a label say, is a column of a CSV file, text/csv."


def _stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype("<u2") if dtype.kind == "V" else dtype


def npy_rows(file: IO[bytes], asked: str | None) -> tuple[int, str, Iterator[NDArray[Any]]]:
    """(rows, type, blocks of rows) of a whole file."""
    header = _header(bytearray(file.read(LONGEST_HEADER)))
    if header is None:
        raise MalformedPayload("The file is not a .npy file: it ends inside its header.")
    begin, said = header
    _refuse_layout(said.shape, said.dtype, asked)
    n, d = said.shape
    claimed = said.bytes
    there = file.seek(0, io.SEEK_END) - begin
    _refuse_extra(there, claimed)
    _refuse_short(there, claimed)
    blocks = _blocks(file, begin, n, d, _stored(said.dtype), fortran=said.fortran)
    return n, "bfloat16" if asked else said.dtype.name, (decoded(rows) for rows in blocks)


def _blocks(
    file: IO[bytes], begin: int, n: int, d: int, dtype: np.dtype[Any], *, fortran: bool
) -> Iterator[NDArray[Any]]:
    """Rows from a file, whose columns lie together in Fortran order, a block at a time."""
    width = dtype.itemsize
    size = max(1, PIECE_BYTES // max(1, d * width))
    for start in range(0, n, size):
        count = min(size, n - start)
        if not fortran:
            file.seek(begin + start * d * width)
            yield np.frombuffer(file.read(count * d * width), dtype).reshape(count, d)
            continue
        rows = np.empty((count, d), dtype)
        for column in range(d):
            file.seek(begin + (column * n + start) * width)
            rows[:, column] = np.frombuffer(file.read(count * width), dtype)
        yield rows


def _header(buffer: bytearray) -> tuple[int, Header] | None:
    """The header and its bytes, or None while more are needed."""
    if not MAGIC.startswith(buffer[:6]):
        raise MalformedPayload("The body is not a .npy file.")
    if len(buffer) < SHORTEST_START:
        return None
    version = (buffer[6], buffer[7])
    width = SIZE_BYTES.get(version)
    if width is None:
        cure = ""
        if b"{" in buffer[7:10]:
            cure = " Zero bytes are missing, as `curl -d` strips them: use `--data-binary`."
        raise UnsupportedFormat(f".npy format {version[0]}.{version[1]} is not supported.{cure}")
    if len(buffer) < 8 + width:
        return None
    length = 8 + width + int.from_bytes(buffer[8 : 8 + width], "little")
    if length > LONGEST_HEADER:
        raise MalformedPayload(f"The .npy header is over {LONGEST_HEADER} bytes.")
    if len(buffer) < length:
        return None
    try:
        return length, parsed(buffer[8 + width : length].decode("latin-1"))
    except CompoundNpy as error:
        raise UnsupportedFormat(f"{error} Send a matrix of numbers.") from None
    except UnreadableNpy as error:
        raise MalformedPayload(str(error)) from None


class _Rows:
    """C order: rows are written as soon as a few are whole."""

    def __init__(
        self, writer: RowWriter, n: int, d: int, dtype: np.dtype[Any], claimed: int
    ) -> None:
        self._writer, self._d, self._dtype = writer, d, dtype
        self._row_bytes = d * dtype.itemsize
        self._claimed, self._received = claimed, 0
        self._parts: list[bytes] = []
        self._waiting = 0

    def feed(self, data: bytes) -> None:
        self._received += len(data)
        _refuse_extra(self._received, self._claimed)
        self._parts.append(data)
        self._waiting += len(data)
        if self._waiting >= max(PIECE_BYTES, self._row_bytes):
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._parts)
        whole = len(data) // self._row_bytes
        rows = np.frombuffer(data, self._dtype, whole * self._d).reshape(whole, self._d)
        step = max(1, PIECE_BYTES // self._row_bytes)
        for start in range(0, whole, step):
            self._writer.write(decoded(rows[start : start + step]))
        self._parts = [data[whole * self._row_bytes :]]
        self._waiting = len(self._parts[0])

    def finish(self) -> Parsed:
        _refuse_short(self._received, self._claimed)
        self._flush()
        return self._writer.finish()


class _Columns:
    """Fortran order: columns are spooled to disk and read back as rows, a block at a time."""

    def __init__(
        self, writer: RowWriter, n: int, d: int, dtype: np.dtype[Any], claimed: int
    ) -> None:
        self._writer, self._n, self._d, self._dtype = writer, n, d, dtype
        self._claimed, self._received = claimed, 0
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - closed in finish, or with the reader

    def feed(self, data: bytes) -> None:
        self._received += len(data)
        _refuse_extra(self._received, self._claimed)
        spool(self._spool, data)

    def close(self) -> None:
        self._spool.close()

    def finish(self) -> Parsed:
        with self._spool:
            _refuse_short(self._received, self._claimed)
            for rows in _blocks(self._spool, 0, self._n, self._d, self._dtype, fortran=True):
                self._writer.write(decoded(rows))
        return self._writer.finish()


def decoded(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows in a type numpy knows: bfloat16 words are widened to float32, exactly."""
    if rows.dtype.kind == "u":
        return (rows.astype("<u4") << np.uint32(16)).view("<f4")
    return rows


def _refuse_extra(received: int, claimed: int) -> None:
    if received > claimed:
        raise MalformedPayload(f"The .npy header claims {claimed} bytes of rows; more arrived.")


def _refuse_short(received: int, claimed: int) -> None:
    if received < claimed:
        raise MalformedPayload(
            f"The .npy header claims {claimed} bytes of rows; {received} arrived."
        )
