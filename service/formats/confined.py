"""Files read by a confined process: a library that aborts, or unpacks without end, ends it alone."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Literal

import numpy as np
import orjson

from service.confined.frames import LONGEST_LINE, Found
from service.dataset import DTYPES
from service.errors import (
    AssayError,
    DuplicateIds,
    Fault,
    Internal,
    InvalidRequest,
    MalformedPayload,
    PayloadTooLarge,
    ShapeMismatch,
    UnsupportedFormat,
)
from service.source_page import SourcePage

FileKind = Literal["parquet", "arrow", "faiss"]
MIB, GIB = 1 << 20, 1 << 30
WAITING_BYTES = 1 * MIB
"""What may wait between the processes, where the system allows as much."""
ENDING_S = 2.0
"""A process whose output has ended is about to end."""
BYTES_PER_CPU_SECOND = 4 * MIB
"""Slower than any reader on any machine."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(
        32 * MIB
    ),  # glibc: a page goes back to the heap, not to the kernel
    "MALLOC_TRIM_THRESHOLD_": str(256 * MIB),
    "OPENBLAS_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # others reserve more address space than the limit leaves
}
"""All it is told; no secret of ours is among it."""
CODES: dict[str, type[AssayError]] = {
    error.code: error
    for error in (
        DuplicateIds, InvalidRequest, MalformedPayload, PayloadTooLarge, ShapeMismatch,
        UnsupportedFormat,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Allowance:
    """What reading one file may take."""

    memory_bytes: int = 1 * GIB
    """Beside the mapped file, or for an index, which is read whole, beside its own size."""
    cpu_s: int = 60
    """Beside what its size explains."""
    patience: int = 3
    """Seconds without a word for each of its processor's seconds."""
    largest_page: int = 512 * MIB
    """Bytes of one page."""


@contextmanager
def confined(
    file: IO[bytes],
    kind: FileKind,
    options: Mapping[str, Any],
    allowance: Allowance = Allowance(),
) -> Iterator[tuple[Found, Iterator[SourcePage]]]:
    """What a file holds and its pages; the process ends with the block."""
    file.flush()
    descriptor = file.fileno()
    os.lseek(descriptor, 0, os.SEEK_SET)
    size = os.fstat(descriptor).st_size
    cpu_s = allowance.cpu_s + size // BYTES_PER_CPU_SECOND
    task = {
        "kind": kind,
        "descriptor": descriptor,
        "options": dict(options),
        "memory_bytes": allowance.memory_bytes + (3 * size if kind == "faiss" else 0),
        "cpu_s": cpu_s,
    }
    ours, its = socket.socketpair()
    with ours:
        with its:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-m", "service.confined.child", json.dumps(task)],
                stdin=subprocess.DEVNULL,
                stdout=its.fileno(),
                stderr=subprocess.DEVNULL,
                pass_fds=[descriptor],
                env=ENVIRONMENT,
            )
        frames = _Frames(process, ours, allowance, allowance.patience * cpu_s)
        try:
            yield frames.found(), frames.pages()
        finally:
            process.kill()
            process.wait()
            frames.close()


class _Frames:
    """What the process says; see `service.confined.frames`."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        output: socket.socket,
        allowance: Allowance,
        silence_s: int,
    ) -> None:
        output.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WAITING_BYTES)
        # a timeout of Python's would make the socket non-blocking, and MSG_WAITALL void
        silence = struct.pack("@ll", silence_s, 0)
        output.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, silence)
        self._process, self._socket, self._allowance = process, output, allowance
        self._out = output.makefile("rb")
        self._reader = ThreadPoolExecutor(1)

    def close(self) -> None:
        """The process has ended, and with it what waits for its output."""
        self._reader.shutdown()
        self._out.close()

    def found(self) -> Found:
        return Found(**self._line()["about"])

    def pages(self) -> Iterator[SourcePage]:
        """Pages, the next one read while one is used: the process would wait for its reader."""
        following = self._reader.submit(self._next)
        while (page := following.result()) is not None:
            following = self._reader.submit(self._next)
            yield page

    def _next(self) -> SourcePage | None:
        line = self._line()
        return None if "end" in line else self._page(line)

    def _line(self) -> dict[str, Any]:
        text = self._out.readline(LONGEST_LINE)
        if not text.endswith(b"\n"):
            raise self._lost()
        line: dict[str, Any] = json.loads(text)
        if error := line.get("error"):
            raise CODES.get(error["code"], MalformedPayload)(
                error["detail"],
                [Fault(pointer="/vectors", message="these rows", rows=error["rows"])]
                if error["rows"]
                else [],
            )
        return line

    def _page(self, line: dict[str, Any]) -> SourcePage:
        dtype = np.dtype(line["dtype"])
        if dtype.name not in DTYPES or max(line["vectors"], line["rest"]) > (
            self._allowance.largest_page
        ):
            raise PayloadTooLarge(
                f"Rows and labels that are read together take {line['vectors']} and "
                f"{line['rest']} bytes; keep fewer columns."
            )
        if line["rows"] * line["d"] * dtype.itemsize != line["vectors"]:
            raise Internal("A page is not as large as it says.")
        rows = np.empty((line["rows"], line["d"]), dtype)
        self._fill(rows.reshape(-1).view(np.uint8).data)
        rest = bytearray(line["rest"])
        self._fill(memoryview(rest))
        told = orjson.loads(rest)
        return SourcePage(told["ids"], rows, told["columns"], told["missing"], told["skipped"])

    def _fill(self, space: memoryview) -> None:
        """The rest in one call: each time a thread comes back to Python it may wait for another."""
        space = space[self._out.readinto1(space) :]
        while space:
            try:
                count = self._socket.recv_into(space, 0, socket.MSG_WAITALL)
            except BlockingIOError:
                count = 0
            if not count:
                raise self._lost()
            space = space[count:]

    def _lost(self) -> AssayError:
        try:
            code = self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:  # silent for too long, or says what nobody asked for
            self._process.kill()
            code = self._process.wait()
        return MalformedPayload(
            f"The process that read the file ended ({code}) before its end: the file is damaged, or "
            "takes more memory or time than reading may."
        )
