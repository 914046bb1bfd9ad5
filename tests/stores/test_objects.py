"""Files behind real servers: an S3 endpoint, and HTTPS with a certificate of its own authority."""

from __future__ import annotations

import http.server
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trustme
from obstore.store import S3Store

from service.importing import fetch
from service.job import Job, State
from service.operations import Services, import_dataset
from service.references import SourceRef
from service.sources import NamedSources
from service.sources.connection import read_connections
from tests.conftest import ROOT

KEY, SECRET = "AKIDEXAMPLE", "s3cr3t-of-the-operator"
MOTO = ROOT / ".venv" / "servers" / "bin" / "moto_server"
STARTING_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Endpoint of an S3 server with the bucket `lake`; a missing server is a failure."""
    assert MOTO.exists(), "run `make test-stores`, which installs the servers"
    port = free_port()
    server = subprocess.Popen(
        [str(MOTO), "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + STARTING_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert server.poll() is None
                assert time.monotonic() < until
                time.sleep(0.1)
        import urllib.request

        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        direct.open(urllib.request.Request(f"{endpoint}/lake", method="PUT"), timeout=10).close()
        yield endpoint
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture
def read(services: Services, tmp_path: Path) -> Callable[..., tuple[Services, Job]]:
    def run(connection: dict[str, Any], kind: str, path: str) -> tuple[Services, Job]:
        named = read_connections(json.dumps({"lake": connection}))
        on = replace(services, sources=NamedSources(named, tmp_path / "scratch"))
        source = {"kind": kind, "connection": "lake", "path": path}
        job = import_dataset(on, "default", SourceRef.model_validate({"source": source}))
        fetch(on, job.id)
        job = on.jobs.get("default", job.id)
        left = [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()]
        assert left == []
        return on, job

    return run


def table(data: np.ndarray, path: Path) -> bytes:
    column = pa.FixedSizeListArray.from_arrays(pa.array(data.ravel()), data.shape[1])
    pq.write_table(pa.table({"v": column}), path)
    return path.read_bytes()


def test_a_parquet_file_in_s3_has_the_hash_of_its_npy_upload(
    s3: str, read: Any, rows: Any, store: Any, tmp_path: Path
) -> None:
    data = np.array(rows("debian_pairs/minilm_doc"))
    keys = {"access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1"}
    bucket = S3Store(
        "lake",
        endpoint=s3,
        client_options={"allow_http": True},
        virtual_hosted_style_request=False,
        **keys,
    )
    obstore.put(bucket, "deep er/rows.parquet", table(data, tmp_path / "rows.parquet"))
    connection = {"url": "s3://lake/deep er", "private": True, "options": {**keys, "endpoint": s3}}
    on, job = read(connection, "parquet", "rows.parquet")
    assert job.state is State.succeeded, job.problem
    found = on.datasets.record("default", job.inputs["dataset"].dataset)
    assert found.vectors_sha256 == store(data).vectors_sha256
    assert found.spec.source.version is not None
    assert SECRET not in found.model_dump_json() + job.model_dump_json()

    _, missing = read(connection, "parquet", "none.parquet")
    assert missing.problem.code == "invalid-request"
    _, refused = read({**connection, "private": False}, "parquet", "rows.parquet")
    assert refused.problem.code == "source-denied"
    for job in (missing, refused):
        assert SECRET not in job.model_dump_json()
        assert "Signature" not in job.model_dump_json()


class _Files(http.server.BaseHTTPRequestHandler):
    body = b""
    asked: list[dict[str, str]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.asked.append(dict(self.headers))
        if self.headers.get("Authorization") != f"Bearer {SECRET}":
            return self._answer(401, b"")
        if self.path == "/files/moved.npy":
            self.send_response(302)
            self.send_header("Location", "https://127.0.0.1/elsewhere")
            self.end_headers()
            return None
        if self.path == "/files/cut.npy":
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.body)))
            self.end_headers()
            self.wfile.write(self.body[: len(self.body) // 2])
            return None
        if self.path == "/files/broken.npy":
            return self._answer(500, SECRET.encode())
        return self._answer(200, self.body)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def https(tmp_path: Path, npy: Any, rows: Any) -> Iterator[dict[str, Any]]:
    """A connection to an HTTPS server that has one .npy and knows a token."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    _Files.body, _Files.asked = npy(np.array(rows("debian_pairs/minilm_query"))), []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Files) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield {
                "url": f"https://localhost:{server.server_port}/files",
                "private": True,
                "options": {"token": SECRET, "ca_file": str(tmp_path / "ca.pem")},
                "timeout_s": 20,
            }
        finally:
            server.shutdown()
            thread.join()


def test_a_file_behind_https_has_the_hash_of_its_upload(
    https: dict[str, Any], read: Any, rows: Any, store: Any
) -> None:
    on, job = read(https, "npy", "a.npy")
    assert job.state is State.succeeded, job.problem
    found = on.datasets.record("default", job.inputs["dataset"].dataset)
    assert found.vectors_sha256 == store(np.array(rows("debian_pairs/minilm_query"))).vectors_sha256


@pytest.mark.parametrize(
    ("path", "changes", "code"),
    [
        ("moved.npy", {}, "source-denied"),
        ("cut.npy", {}, "source-unreachable"),
        ("broken.npy", {}, "source-unreachable"),
        ("a.npy", {"private": False}, "source-denied"),
        ("a.npy", {"options": {}}, "source-unreachable"),
    ],
)
def test_what_goes_wrong_behind_https_is_said_without_a_secret(
    path: str, changes: dict[str, Any], code: str, https: dict[str, Any], read: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    on, job = read({**https, **changes}, "npy", path)
    assert job.state is State.failed
    assert job.problem.code == code, job.problem.detail
    assert SECRET not in job.model_dump_json() + "".join(capsys.readouterr())
    assert on.datasets.page("default", 10, None).items == []


def test_a_wrong_token_is_a_refusal(https: dict[str, Any], read: Any) -> None:
    https["options"]["token"] = "another"
    _, job = read(https, "npy", "a.npy")
    assert job.problem.code == "source-denied"


def test_a_private_address_is_refused_before_anything_is_sent(
    https: dict[str, Any], read: Any
) -> None:
    read({**https, "private": False}, "npy", "a.npy")
    assert _Files.asked == []
