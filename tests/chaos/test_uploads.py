"""What an upload may cost: bytes are counted as they come, and stay out of memory and Redis (P30)."""

from __future__ import annotations

import io
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from redis import Redis

from .processes import children, forget_peak, memory, until
from .stack import Stack

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(180),
    pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc"),
]

MIB = 1 << 20
TEXT_LIMIT = 32 * MIB
BODY_LIMIT = 64 * MIB
BLANKS = 256 * MIB
PIECE = 1 << 16
IN_FLIGHT = 8 * MIB
"""Beside the body itself: pieces of 1 MiB between socket and reader, and the reader's spare eighth."""
N, D, ROWS = 1_000_000, 256, 10_000
REDIS_VALUE = 1_000_000


class Slow:
    """A request whose body is sent piece by piece, without its length unless that is given."""

    def __init__(
        self, stack: Stack, path: str, content_type: str, length: int | None = None
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", stack.port), timeout=30)
        size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        self._socket.sendall(
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{stack.port}\r\n"
            f"Content-Type: {content_type}\r\n{size}\r\n\r\n".encode()
        )

    def send(self, data: bytes) -> None:
        self._socket.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    def blanks(self, size: int) -> None:
        for _ in range(size // PIECE):
            self.send(b" " * PIECE)

    def answer(self, seconds: float) -> bytes:
        """What the service says while it still waits for the rest of the body."""
        found = b""
        end = time.monotonic() + seconds
        while b"}" not in found:
            ready, _, _ = select.select([self._socket], [], [], end - time.monotonic())
            assert ready, f"no answer within {seconds} s: {found!r}"
            found += self._socket.recv(PIECE)
        return found

    def close(self) -> None:
        self._socket.close()


def header(n: int, d: int) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "<f4", "fortran_order": False, "shape": (n, d)}
    )
    return buffer.getvalue()


@pytest.fixture(scope="module")
def stack(serve: Callable[..., Stack], rows: Any) -> Stack:
    """A fresh service: it has no freed memory that could hide what a body takes."""
    stack = serve(ASSAY_MAX_BODY_BYTES=str(BODY_LIMIT))
    stack.upload(rows)
    return stack


@pytest.mark.parametrize("path", ["/v1/datasets", "/v1/jobs", "/v1/gates"])
def test_blanks_without_a_length_are_refused_at_the_limit(
    stack: Stack, path: str, measured: Callable[[str, object], None]
) -> None:
    """256 MiB of blanks in JSON get 413 after 32 MiB, and never more than those are in memory."""
    api = stack.api()
    base = forget_peak(api)
    request = Slow(stack, path, "application/json")
    request.send(b'{"embeddings":[[')
    request.blanks(TEXT_LIMIT + MIB)

    answer = request.answer(10)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"payload-too-large"' in answer

    request.blanks(BLANKS - TEXT_LIMIT - MIB)
    request.close()
    grown = memory(api)["VmHWM"] - base
    measured(f"API memory under blanks to {path}, MiB over base", grown / MIB)
    assert grown <= TEXT_LIMIT + IN_FLIGHT
    assert stack.ask("GET", "/healthz").status_code == 200


def test_rows_without_a_length_are_refused_at_the_limit(
    stack: Stack, measured: Callable[[str, object], None]
) -> None:
    """A .npy whose header keeps the limit and whose bytes do not gets 413, and is not kept."""
    api = stack.api()
    folder = stack.home / "store" / "default" / "datasets"
    before = sorted(folder.rglob("*"))
    base = forget_peak(api)
    rows = np.ones((MIB // 4 // 64, 64), dtype="<f4").tobytes()
    request = Slow(stack, "/v1/datasets", "application/x-npy")
    request.send(header(BODY_LIMIT // 4 // 64, 64))
    for _ in range(BODY_LIMIT // MIB):
        request.send(rows)

    assert request.answer(10).startswith(b"HTTP/1.1 413 ")

    for _ in range((BLANKS - BODY_LIMIT) // MIB):
        request.send(rows)
    request.close()
    grown = memory(api)["VmHWM"] - base
    measured("API memory under rows without a length, MiB over base", grown / MIB)
    assert grown <= BODY_LIMIT
    kept = [path for path in folder.rglob("*") if path not in before and path.is_file()]
    assert kept == []


def test_a_header_that_claims_more_than_the_limit_is_refused_at_once(stack: Stack) -> None:
    """The shape of a .npy is known after its first bytes."""
    request = Slow(stack, "/v1/datasets", "application/x-npy")
    request.send(header(BODY_LIMIT // 4 // 64 + 1, 64) + bytes(MIB))

    assert request.answer(10).startswith(b"HTTP/1.1 413 ")
    request.close()


def test_a_length_over_the_limit_is_refused_before_the_body(stack: Stack) -> None:
    """Content-Length is believed when it is too large."""
    request = Slow(stack, "/v1/datasets", "application/x-npy", length=BODY_LIMIT + 1)

    assert request.answer(10).startswith(b"HTTP/1.1 413 ")
    request.close()


class Peak:
    """The largest sizes of a process while it runs, read every few milliseconds."""

    def __init__(self, pid: int) -> None:
        self.sizes: dict[str, int] = {}
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._stop.wait(0.005) and (now := memory(self._pid)):
            self.sizes = {name: max(size, self.sizes.get(name, 0)) for name, size in now.items()}

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


def gigabyte() -> Iterator[bytes]:
    """A million rows of 256 float32, made as they are sent."""
    rng = np.random.default_rng(0)
    yield header(N, D)
    for _ in range(N // ROWS):
        yield rng.standard_normal((ROWS, D), dtype=np.float32).tobytes()


def largest_value(redis: Redis) -> int:
    """Bytes of the largest value of any key."""
    return max(int(redis.memory_usage(key, samples=0) or 0) for key in redis.scan_iter(count=1000))


def test_a_gigabyte_of_rows_is_stored_and_described_in_bounded_memory(
    serve: Callable[..., Stack], rows: Any, measured: Callable[[str, object], None]
) -> None:
    """The API keeps < 64 MB of it, Redis nothing, geometry 512 MiB and twice the input at most."""
    stack = serve()
    stack.upload(rows)
    api = stack.api()
    base = forget_peak(api)

    answer = stack.http.post(
        "/v1/datasets",
        content=gigabyte(),
        headers={"content-type": "application/x-npy"},
        timeout=120,
    )
    grown = memory(api)["VmHWM"] - base
    assert answer.status_code == 201
    dataset = answer.json()
    assert (dataset["n"], dataset["d"], dataset["bytes"]) == (N, D, N * D * 4)
    measured("API memory while a gigabyte is uploaded, MiB over base", grown // MIB)
    assert grown < 64 * 10**6

    job = stack.submit("geometry", {"vectors": dataset["id"]})
    process = until(lambda: children(stack.worker_processes()[0]), 10, "a job process")[0]
    with Peak(process) as peak:
        assert stack.ended(job, 120)["state"] == "succeeded"
    anonymous = peak.sizes["RssAnon"]
    measured("geometry of a gigabyte, anonymous memory in MiB", anonymous // MIB)
    assert anonymous <= 512 * MIB + 2 * dataset["bytes"]
    assert stack.report(job)["results"]["n"] == N

    with Redis.from_url(stack.redis_url) as redis:
        largest = largest_value(redis)
    measured("largest value in Redis after that, bytes", largest)
    assert largest < REDIS_VALUE
