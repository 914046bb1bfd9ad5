"""Files behind HTTP: what is said while they come."""

from __future__ import annotations

import hashlib
import http.server
import io
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.importing import fetch
from service.job import State
from service.operations import Services, import_dataset
from service.references import SourceRef
from service.sources import NamedSources
from service.sources import http as fetching
from service.sources.connection import read_connections

ROWS = np.random.default_rng(8).normal(size=(300, 16)).astype(np.float32)
PIECE = 4096


class Files(http.server.BaseHTTPRequestHandler):
    """One file; below `/unsized` nobody says how long it is."""

    etag: str | None = None

    def do_GET(self) -> None:
        body = io.BytesIO()
        np.save(body, ROWS)
        self.send_response(200)
        if self.etag is not None:
            self.send_header("ETag", self.etag)
        if "unsized" not in self.path:
            self.send_header("Content-Length", str(body.tell()))
        self.end_headers()
        self.wfile.write(body.getvalue())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def on(services: Services, tmp_path: Path) -> Iterator[Services]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        connections = read_connections(f'{{"lake": {{"url": "{url}", "private": true}}}}')
        yield replace(services, sources=NamedSources(connections, tmp_path))
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["sized.npy", "unsized.npy"])
def test_a_download_says_how_many_bytes_have_come(
    path: str, on: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all there are, where the server says; then rows are counted."""
    monkeypatch.setattr(fetching, "PIECE_BYTES", PIECE)
    monkeypatch.setattr("service.progress.EVERY_S", 0)
    told: list[Any] = []
    monkeypatch.setattr(on.jobs, "report_progress", lambda job, progress: told.append(progress))
    source = {"kind": "npy", "connection": "lake", "path": path}
    job = import_dataset(on, "default", SourceRef.model_validate({"source": source}))
    fetch(on, job.id)
    assert on.jobs.get("default", job.id).state is State.succeeded
    size = 128 + ROWS.nbytes
    coming = [one for one in told if one.stage == "download"]
    assert [one.done for one in coming] == [*range(PIECE, size, PIECE), size]
    assert {one.total for one in coming[:-1]} == (
        {size} if path == "sized.npy" else {one.done for one in coming[:-1]}
    )
    assert all(one.eta_s >= 0 for one in coming)
    assert [one.stage for one in told[len(coming) :]] == ["import"]


def imported(on: Services) -> Any:
    source = {"kind": "npy", "connection": "lake", "path": "sized.npy"}
    job = import_dataset(on, "default", SourceRef.model_validate({"source": source}))
    fetch(on, job.id)
    job = on.jobs.get("default", job.id)
    assert job.state is State.succeeded, job.problem
    return on.datasets.record("default", job.inputs["dataset"].dataset).spec.source


@pytest.mark.parametrize("etag", ['"33a64df551425fcc"', 'W/"abc-1"', "bare", None])
def test_a_short_etag_is_kept_as_it_is(
    etag: str | None, on: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Files, "etag", etag)
    assert imported(on).version == etag


@pytest.mark.parametrize(
    "etag",
    [
        '"' + "x" * 60_000 + '"',
        '"https://user:hunter2@host/x"',
        "Bearer hunter2hunter2",
        '"a?token=hunter2"',
        '"caf\u00e9 \x01"',
    ],
)
def test_of_another_etag_its_hash_is_kept(
    etag: str, on: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be of any length, and hold what is nobody's business; its hash tells versions apart."""
    monkeypatch.setattr(Files, "etag", etag)
    digest = hashlib.sha256(etag.encode()).hexdigest()
    assert imported(on).version == f"sha256 {digest}"
