"""`serve` says when it takes jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from workers.readiness import address_of, tell_when_ready

SAYS = [
    (503, {"code": "unavailable"}),
    (200, {"status": "ready", "workers": {"jobs": 1, "shards": 2}}),
    (200, {"status": "ready", "workers": {"jobs": 2, "shards": 2}}),
]


@pytest.fixture
def port() -> Iterator[int]:
    """Of an API that is not ready, then ready with one worker, then with both."""
    said = list(SAYS)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = said.pop(0) if self.path == "/readyz" else (404, {})
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_it_is_told_once_all_workers_live(host: str, port: int) -> None:
    told: list[str] = []
    tell_when_ready(address_of(host, port), 2, told.append).join(10)
    assert told == ["Assay is ready (2 workers)."]


def test_the_address_of_a_host() -> None:
    assert address_of("127.0.0.1", 8000) == "http://127.0.0.1:8000"
    assert address_of("::1", 8000) == "http://[::1]:8000"
