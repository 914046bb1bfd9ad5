"""Bodies that hardly arrive."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import numpy as np
import pytest

from api import deps
from api.main import create_app
from service.operations import Services
from service.storage.memory import memory_services

PAUSE_S = 0.02


def answer(
    services: Services, pieces: list[bytes], *, end: bool
) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of an upload whose pieces come one after the other, with a pause."""
    sent: list[Any] = []
    left = iter(pieces)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(PAUSE_S)
        piece = next(left, None)
        if piece is None and not end:
            await asyncio.sleep(60)
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/datasets",
        "raw_path": b"/v1/datasets", "query_string": b"", "scheme": "http", "root_path": "",
        "headers": [(b"content-type", b"application/x-npy"), (b"host", b"localhost")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    asyncio.run(create_app(services)(scope, receive, send))
    headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, json.loads(sent[1]["body"])


@pytest.fixture
def pieces() -> list[bytes]:
    file = io.BytesIO()
    np.save(file, np.arange(3000, dtype="<f4").reshape(1000, 3))
    data = file.getvalue()
    return [data[i : i + 1000] for i in range(0, len(data), 1000)]


def test_a_body_that_stops_is_refused_and_nothing_is_kept(
    pieces: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deps, "PATIENCE_S", 0.2)
    services = memory_services()
    status, headers, said = answer(services, pieces[:3], end=False)
    assert (status, said["code"], headers["connection"]) == (408, "body-stalled", "close")
    assert said["detail"].startswith("3000 bytes")
    assert services.datasets.page("default", 10, None).items == []


def test_a_body_that_trickles_is_refused(
    pieces: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time, and the whole would never."""
    monkeypatch.setattr(deps, "PATIENCE_S", 0.2)
    drops = [pieces[0][i : i + 1] for i in range(200)]
    assert answer(memory_services(), drops, end=True)[0] == 408


def test_a_slow_body_takes_its_time(pieces: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirteen pieces with pauses: longer than the patience, and faster than the slowest line."""
    monkeypatch.setattr(deps, "PATIENCE_S", 0.1)
    status, _, said = answer(memory_services(), pieces, end=True)
    assert (status, said["n"]) == (201, 1000)
