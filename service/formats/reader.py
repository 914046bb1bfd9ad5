"""What every reader is: bytes in, rows to a sink, facts out."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from service.dataset import DTYPES, Labels
from service.dataset_record import Facts
from service.errors import InvalidRequest, PayloadTooLarge, ShapeMismatch, Unavailable
from service.numerics.rows import row_facts
from service.references import Spec


class Sink(Protocol):
    """Takes the canonical .npy bytes of the rows."""

    def write(self, data: bytes | memoryview) -> None: ...

    def restart(self, data: bytes) -> None:
        """The first bytes again, as many as they were: a header that is only known at the end."""
        ...

    def spool(self) -> IO[bytes]:
        """A file without a name for what has to be kept meanwhile; it is gone when it is closed."""
        ...


@dataclass(frozen=True)
class Limits:
    """What one body may hold."""

    body_bytes: int = 8 << 30
    text_bytes: int = 32 << 20
    csv_bytes: int = 64 << 20
    names_bytes: int = 1 << 30
    rows: int = 100_000_000
    dimensions: int = 4096

    room_bytes: int | None = None
    """What the project may still store, where that is known."""

    def refuse_bytes(self, size: int) -> None:
        """Refuse rows of more bytes than are taken, or than there is room for."""
        if size > self.body_bytes:
            raise PayloadTooLarge(f"The rows take over {self.body_bytes} bytes.")
        if self.room_bytes is not None and size > self.room_bytes:
            raise PayloadTooLarge(
                f"The rows take over the {self.room_bytes} bytes that the project may still store."
            )

    def refuse_rows(self, n: int) -> None:
        """Refuse a dataset of more rows than are taken."""
        if n > self.rows:
            raise PayloadTooLarge(f"A dataset may have {self.rows} rows.")


@dataclass(frozen=True)
class Options:
    """What a body does not say of itself."""

    dtype: str | None = None
    id_column: str | None = None
    vector_column: str | None = None


@dataclass(frozen=True)
class Parsed:
    """A dataset whose rows have gone to the sink."""

    n: int
    d: int | None
    dtype: str | None
    bytes: int
    vectors_sha256: str | None
    facts: Facts | None
    ids: tuple[str, ...] | None = None
    columns: Mapping[str, Labels] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Columns that were there and are not kept, and why."""
    spec: Spec = Spec()
    name: str | None = None


class Reader(Protocol):
    """Reads one body."""

    takes: frozenset[str]
    """Names of the options that mean something to it."""

    def __init__(self, sink: Sink, limits: Limits, options: Options) -> None: ...

    def feed(self, data: bytes) -> None:
        """Take some bytes; raises as soon as they cannot be right."""
        ...

    def finish(self) -> Parsed:
        """The body is complete."""
        ...

    def close(self) -> None:
        """Let go of what is held for a body that will not be finished."""
        ...


def spool(file: IO[bytes], data: bytes) -> None:
    """Write to a temporary file; a full disk is an outage, not a fault of the request."""
    try:
        file.write(data)
    except OSError as error:
        raise Unavailable(f"The upload cannot be kept meanwhile: {error.strerror}.") from error


class RowWriter:
    """
    Writes rows as canonical .npy (C order, little-endian), hashing and counting on the way.

    `n` is None while nobody knows it; the header, which has room for it, is then written twice.
    """

    def __init__(
        self, sink: Sink, n: int | None, d: int, dtype: np.dtype[Any], limits: Limits
    ) -> None:
        if n == 0 or d < 1:
            raise ShapeMismatch(
                f"`vectors` must have at least one row and dimension; got {n} x {d}."
            )
        limits.refuse_rows(n or 0)
        if d > limits.dimensions:
            raise PayloadTooLarge(f"A row may have {limits.dimensions} dimensions; got {d}.")
        if dtype.name not in DTYPES:
            raise InvalidRequest(
                f"Rows are {', '.join(DTYPES)}, not {dtype.name}; `rows.astype('float32')` makes them "
                "so."
            )
        self._sink, self._n, self._d = sink, n, d
        self._dtype = dtype.newbyteorder("<")
        self._done = 0
        self._hash = hashlib.sha256()
        self._facts: Facts | None = None
        sink.write(self._header(n or 0))

    def _header(self, n: int) -> bytes:
        file = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            file, {"descr": self._dtype.str, "fortran_order": False, "shape": (n, self._d)}
        )
        return file.getvalue()

    def write(self, rows: NDArray[Any]) -> None:
        """Some more rows, (m, d)."""
        canonical = np.ascontiguousarray(rows, dtype=self._dtype)
        data = canonical.data.cast("B")
        hashing = threading.Thread(target=self._hash.update, args=(data,))
        hashing.start()
        try:
            self._sink.write(data)
            facts = Facts.of(row_facts(canonical, self._done))
        finally:
            hashing.join()
        self._facts = facts if self._facts is None else self._facts + facts
        self._done += len(rows)

    def finish(self) -> Parsed:
        """All rows are written."""
        if self._n is None:
            self._sink.restart(self._header(self._done))
            self._n = self._done
        trailer = f"{self._dtype.name} {self._n} {self._d}"
        self._hash.update(trailer.encode())
        return Parsed(
            n=self._n,
            d=self._d,
            dtype=self._dtype.name,
            bytes=self._n * self._d * self._dtype.itemsize,
            vectors_sha256=self._hash.hexdigest(),
            facts=self._facts,
        )
