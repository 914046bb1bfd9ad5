"""A key and the password of Redis, in a real service that meets trouble, are written nowhere."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from api.keys import Scope, create_key
from workers import embedded

from .processes import children, kill, until
from .stack import Stack

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(150),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

PASSWORD = "correct-horse-battery"


class Locked:
    """A server that asks for a password."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"unix://:{PASSWORD}@{embedded.socket_path(folder)}"
        self.start()

    def start(self) -> None:
        command = [*embedded.command(self.folder), "--requirepass", PASSWORD]
        self.process = subprocess.Popen(command)
        until(self._answers, 20, "a server")

    def _answers(self) -> bool:
        try:
            with Redis.from_url(self.url, socket_timeout=2) as client:
                return bool(client.ping())
        except RedisError:
            return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def locked() -> Iterator[Locked]:
    folder = Path(tempfile.mkdtemp(prefix="assay-"))
    server = Locked(folder)
    yield server
    server.kill()
    shutil.rmtree(folder)


def written(*folders: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file below these folders."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                yield path, path.read_bytes()


def test_no_secret_is_written_by_a_service_in_trouble(
    serve: Callable[..., Stack], locked: Locked, rows: Any, tmp_path: Path
) -> None:
    """Jobs done, failed and killed, broken requests, an outage of Redis: log and files are searched."""
    keys = tmp_path / "keys"
    key = create_key(keys, "p", [Scope.admin])
    secret = key.split("_", 2)[2]
    stack = serve(
        REDIS_URL=locked.url, ASSAY_API_KEYS_FILE=str(keys), ASSAY_LOG_LEVEL="debug",
        ASSAY_JOB_ATTEMPTS="2",
    )  # fmt: skip
    stack.http.headers["Authorization"] = f"Bearer {key}"
    dataset = stack.upload(rows)
    done = stack.submit("stuck", {"vectors": dataset}, seed=1)
    assert stack.ended(done, 20)["state"] == "succeeded"
    seen = [stack.ask("GET", f"/v1/jobs/{done}/report").text]

    stack.hold(2, 600)
    doomed = stack.submit("stuck", {"vectors": dataset}, seed=2)
    for attempt in (1, 2):
        kill(stack.inside(2, attempt))
    ended = stack.ended(doomed, 60)
    assert ended["problem"]["code"] == "worker-lost"

    with socket.create_connection(("127.0.0.1", stack.port)) as raw:
        raw.sendall(f"GET /v1/jobs\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
        seen.append(raw.recv(4096).decode())
    wrong = {"Authorization": f"Bearer {key[:-3]}"}
    seen.append(stack.http.get("/v1/jobs", headers=wrong).text)
    url = f"https://reader:{secret}@host/x.npy"
    body = {"kind": "geometry", "inputs": {"vectors": {"source": url}}, "tags": {"from": url}}
    seen.append(stack.ask("POST", "/v1/jobs", json=body).text)

    stack.hold(3, 600)
    stack.submit("stuck", {"vectors": dataset}, seed=3)
    stack.inside(3)
    locked.kill()
    seen.append(stack.http.get("/v1/jobs").text)
    assert '"unavailable"' in seen[-1]
    time.sleep(3)
    locked.start()
    seen += [stack.ask("GET", path).text for path in ("/metrics", "/v1/jobs", "/v1/limits")]
    assert children(stack.pid)
    stack.stop()

    log = stack.log.read_text()
    for event in ("a part does not answer", "sweep postponed", "job succeeded"):
        assert f'"event": "{event}"' in log, log[-3000:]
    seen.append(log)
    for text in seen:
        assert secret not in text
        assert PASSWORD not in text
    files = dict(written(stack.home, locked.folder))
    assert any(path.suffix == ".aof" for path in files)
    for path, data in files.items():
        assert secret.encode() not in data, path
        assert PASSWORD.encode() not in data, path
    assert secret not in keys.read_text()
