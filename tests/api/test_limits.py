"""Limits: refused as soon as they are passed, counted on what arrives, nothing kept in memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service.formats import Limits
from service.operations import Services

NPY = {"Content-Type": "application/x-npy"}
JSON = {"Content-Type": "application/json"}
CSV = {"Content-Type": "text/csv"}
MIB = 1 << 20


@pytest.fixture
def limited(knock: Any, services: Services) -> Any:
    """The door of the same service with other limits."""

    def open_with(depth: int = 10_000, **limits: int) -> Any:
        return knock(replace(services, limits=Limits(**limits), queue_depth=depth))

    return open_with


class Chunks:
    """A body without a length, which remembers how much of it was taken."""

    def __init__(self, head: bytes, piece: bytes, count: int, tail: bytes = b"") -> None:
        self._parts = (head, piece, count, tail)
        self.sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        head, piece, count, tail = self._parts
        for part in (head, *(piece for _ in range(count)), tail):
            self.sent += len(part)
            yield part


@pytest.mark.parametrize(
    ("path", "head", "limit"),
    [
        ("/v1/datasets", b'{"vectors":[[', 32 * MIB),
        ("/v1/jobs", b'{"kind":"geometry","inputs":{"vectors":{"vectors":[[', 32 * MIB),
        ("/v1/gates", b'{"policy":', 32 * MIB),
    ],
)
def test_a_chunked_body_is_refused_when_it_passes_the_limit(
    path: str, head: bytes, limit: int, door: Any, refusal: Any
) -> None:
    """CASES P30: 256 MiB of blanks without Content-Length; 413 within a piece of the limit."""
    body = Chunks(head, b" " * 65536, 4096, b"0.0]]}")
    door.get("/healthz")
    tracemalloc.start()
    answer = door.post(path, content=body, headers=JSON)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    refusal(answer, 413, "payload-too-large")
    assert body.sent <= limit + 2 * MIB
    assert peak < 2 * limit + 8 * MIB


def test_a_declared_length_over_the_limit_is_refused_unread(limited: Any, refusal: Any) -> None:
    """Nothing of the body is taken."""
    body = Chunks(b"", b"x" * 1000, 100)
    headers = {**NPY, "Content-Length": "100000"}
    answer = limited(body_bytes=99_999).post("/v1/datasets", content=body, headers=headers)
    refusal(answer, 413, "payload-too-large")
    assert body.sent == 0


def test_a_length_that_lies_helps_nobody(limited: Any, refusal: Any) -> None:
    """The limit holds for the bytes received."""
    body = Chunks(b"", b"x" * 1000, 100)
    headers = {**JSON, "Content-Length": "10"}
    answer = limited(body_bytes=50_000).post("/v1/datasets", content=body, headers=headers)
    refusal(answer, 413, "payload-too-large")
    assert body.sent <= 52_000


def test_rows_over_the_body_limit_are_refused_by_their_header(
    limited: Any, npy: Any, refusal: Any
) -> None:
    """A matrix one row too large; one that fits passes."""
    door = limited(body_bytes=1000)
    small, large = npy(np.zeros((54, 4), "f4")), npy(np.zeros((64, 4), "f4"))
    assert (len(small), len(large)) == (992, 1152)
    assert door.post("/v1/datasets", content=small, headers=NPY).status_code == 201
    refusal(door.post("/v1/datasets", content=large, headers=NPY), 413, "payload-too-large")


@pytest.mark.parametrize(
    ("limit", "headers", "body"),
    [
        ({"rows": 3}, JSON, b'{"vectors": [[1.0],[1.0],[1.0],[1.0]]}'),
        ({"dimensions": 3}, JSON, b'{"vectors": [[1.0,1.0,1.0,1.0]]}'),
        ({"rows": 3}, JSON, b'{"columns": {"g": ["a","a","a","b"]}}'),
        ({"rows": 3}, CSV, b"g\na\na\na\nb\n"),
        ({"csv_bytes": 8}, CSV, b"g\na\na\na\nb\n"),
        ({"text_bytes": 20}, JSON, b'{"vectors": [[1.0,1.0]]}'),
    ],
    ids=["rows", "dimensions", "rows of columns", "lines", "csv", "text"],
)
def test_every_limit_of_a_dataset_holds(
    limit: dict[str, int],
    headers: dict[str, str],
    body: bytes,
    limited: Any,
    door: Any,
    refusal: Any,
) -> None:
    """413 above it, whatever the form; the same body passes without the limit."""
    refusal(
        limited(**limit).post("/v1/datasets", content=body, headers=headers),
        413,
        "payload-too-large",
    )
    assert door.post("/v1/datasets", content=body, headers=headers).status_code == 201


def test_inline_data_keeps_the_limits_of_uploads(limited: Any, refusal: Any) -> None:
    """Rows and values inside a job request."""
    door = limited(rows=3)
    rows = {"vectors": [[1.0, 2.0]] * 4}
    answer = door.post("/v1/jobs", json={"kind": "geometry", "inputs": {"vectors": rows}})
    refusal(answer, 413, "payload-too-large")
    inputs = {"vectors": {"vectors": [[1.0], [2.0], [3.0]]}, "groups": {"values": ["a"] * 4}}
    answer = door.post("/v1/jobs", json={"kind": "geometry", "inputs": inputs})
    assert answer.status_code in (413, 422)


def test_a_full_queue_is_429_until_there_is_room(
    limited: Any, upload: Any, some_rows: Any, work: Any, refusal: Any
) -> None:
    """With Retry-After; a cached answer needs no room; what is refused leaves no record."""
    door = limited(depth=2)
    body = {"kind": "geometry", "inputs": {"vectors": {"dataset": upload(some_rows)["id"]}}}
    for seed in (0, 1):
        assert door.post("/v1/jobs", json={**body, "seed": seed}).status_code == 202
    answer = door.post("/v1/jobs", json={**body, "seed": 2})
    refusal(answer, 429, "queue-full")
    assert int(answer.headers["retry-after"]) > 0
    assert len(door.get("/v1/jobs").json()["items"]) == 2
    work()
    assert door.post("/v1/jobs", json={**body, "seed": 2}).status_code == 202
    assert door.post("/v1/jobs", json={**body, "seed": 3}).status_code == 202
    assert door.post("/v1/jobs", json={**body, "seed": 0}).status_code == 200


def test_a_check_with_a_row_limit_refuses_more(
    upload: Any, ask: Any, refusal: Any, monkeypatch: pytest.MonkeyPatch, door: Any
) -> None:
    """`cosine_floor` over its declared rows is 422 at submit; the limit itself passes."""
    limit = door.get("/v1/limits").json()["rows_per_check"]["cosine_floor"]
    over = upload(np.ones((limit + 1, 1), np.int8))["id"]
    found = refusal(ask("cosine_floor", {"a": over, "b": over}), 422, "invalid-request")
    assert str(limit) in found["detail"]
    most = upload(np.ones((limit, 1), np.int8))["id"]
    assert ask("cosine_floor", {"a": most, "b": most}).status_code == 202


def test_a_streamed_upload_is_not_kept_in_memory(
    knock: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 MiB of rows through the door, to a sink that drops them: a few pieces in memory at most."""
    from service.storage.memory_objects import MemoryDraft

    monkeypatch.setattr(MemoryDraft, "write", lambda self, data: None)
    rows, d = 1 << 16, 256
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {d}), }}".ljust(117) + "\n"
    start = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode()
    piece = np.ones((256, d), "<f4").tobytes()
    body = Chunks(start, piece, 256, b"\0")
    door = knock()
    door.get("/healthz")
    tracemalloc.start()
    answer = door.post("/v1/datasets", content=body, headers=NPY)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.status_code == 422, "one byte more than the header claims"
    assert body.sent > 64 * MIB
    assert peak < 48 * MIB
