"""Drawings of pictures, made one at a time by a process of its own and remembered."""

from __future__ import annotations

import hashlib
import html
import importlib.util
import json
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import IO, Any, Literal

import orjson

from service.charts.picture import Picture
from service.errors import ChartsNotInstalled, Internal, Unavailable

Format = Literal["svg", "png"]
LIBRARY = "vl_convert"
NOT_INSTALLED = (
    "Drawing needs vl-convert-python: `pip install 'embedding-assay[charts]'`, then start the service "
    "again. The specification, `.vl.json`, is there without it."
)
MEMORY_BYTES = 2 << 30
TIMEOUT_S = 20.0
"""For one drawing, the start of the process included."""
MOST_WAITING = 8
MOST_DRAWN = 500
"""Drawings of one process: what a library may lose of its memory is then given back."""
MOST_KEPT = 128
LONGEST_LINE = 1 << 16


class Painter:
    """
    Draws pictures; the same one is drawn once.

    The library holds Python's lock while it draws and cannot be stopped, so it runs in a process that
    may be: it takes no more than its memory and time, knows no secret, and fetches nothing.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(MOST_WAITING)
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._process: subprocess.Popen[bytes] | None = None
        self._stop: weakref.finalize[..., Painter] | None = None
        self._drawn = 0

    @property
    def installed(self) -> bool:
        """Whether there is something to draw with."""
        return importlib.util.find_spec(LIBRARY) is not None

    def draw(self, picture: Picture, wanted: Format) -> bytes:
        """A picture as SVG, which says in words what it shows, or as PNG."""
        if not self.installed:
            raise ChartsNotInstalled(NOT_INSTALLED)
        task = orjson.dumps({"spec": picture.spec, "format": wanted})
        key = hashlib.sha256(task).digest()
        if (known := self._kept.get(key)) is not None:
            return known
        if not self._room.acquire(blocking=False):
            raise Unavailable("Too many charts are being drawn; try again.")
        try:
            with self._lock:
                drawn = self._kept.get(key)
                if drawn is None:
                    drawn = self._ask(task)
                    drawn = told(drawn, picture.told) if wanted == "svg" else drawn
                    self._keep(key, drawn)
        finally:
            self._room.release()
        return drawn

    def close(self) -> None:
        """End the process; the next drawing starts another."""
        with self._lock:
            self._end()

    def _keep(self, key: bytes, drawn: bytes) -> None:
        self._kept[key] = drawn
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)

    def _ask(self, task: bytes) -> bytes:
        if self._process is None or self._process.poll() is not None:
            self._process, self._drawn = start(), 0
            self._stop = weakref.finalize(self, _stop, self._process)
        process = self._process
        late = threading.Timer(self._timeout_s, process.kill)
        late.start()
        try:
            header, drawn = _exchange(process, task)
        except (OSError, EOFError) as error:
            self._end()
            raise Unavailable(
                f"The process that draws has ended, or took over {self._timeout_s:g} s; try again."
            ) from error
        finally:
            late.cancel()
        self._drawn += 1
        if self._drawn >= MOST_DRAWN:
            self._end()
        if "error" in header:
            raise Internal(f"A chart could not be drawn: {header['error']}")
        return drawn

    def _end(self) -> None:
        if self._stop is not None:
            self._stop()
        self._process = self._stop = None


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def start() -> subprocess.Popen[bytes]:
    """The process that draws."""
    limits = json.dumps({"memory_bytes": MEMORY_BYTES})
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-I", "-m", "service.confined.drawing", limits],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        env={},
    )


def _exchange(process: subprocess.Popen[bytes], task: bytes) -> tuple[Mapping[str, Any], bytes]:
    if process.stdin is None or process.stdout is None:
        raise EOFError
    _write(process.stdin, task + b"\n")
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < LONGEST_LINE:
        line += _read(process.stdout, 1)
    header = json.loads(line)
    return header, _read(process.stdout, header.get("bytes", 0))


def _write(pipe: IO[bytes], data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[pipe.write(left) :]


def _read(pipe: IO[bytes], count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        some = pipe.read(count - len(found))
        if not some:
            raise EOFError
        found += some
    return bytes(found)


def told(svg: bytes, text: str) -> bytes:
    """The same as one image that says what it shows."""
    label = html.escape(text).encode()
    return svg.replace(b"<svg ", b'<svg role="img" aria-label="' + label + b'" ', 1)
