"""Requests reach a checked address under the name they are for."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from service.errors import SourceDenied
from service.sources.connection import Connection
from service.sources.dialling import Checked

NAME = "store.example.test"


class Echo(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = f"{self.headers['Host']} {self.path} ".encode() + body
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that were asked for: first two addresses of this machine, later one that is not there."""
    names: list[str] = []

    def resolve(host: str, port: int, *rest: Any, **_: Any) -> list[Any]:
        if host != NAME:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]
        names.append(host)
        found = ("127.0.0.2", "127.0.0.1") if len(names) == 1 else ("192.0.2.1",)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found]

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    return names


def test_the_name_is_looked_up_once_and_asked_for_at_the_address_that_answers(
    port: int, looked_up: list[str]
) -> None:
    """The server listens on the second address; the body is sent to it whole."""
    connection = Connection("prod", f"http://{NAME}:{port}", private=True)
    with httpx.Client(transport=Checked(connection, 80), trust_env=False) as client:
        for i in range(3):
            answer = client.post(f"http://{NAME}:{port}/a?b={i}", content=b"body")
            assert answer.text == f"{NAME}:{port} /a?b={i} body"
    assert looked_up == [NAME]


def test_a_private_address_is_refused_before_anything_is_sent(looked_up: list[str]) -> None:
    with pytest.raises(SourceDenied):
        Checked(Connection("prod", f"https://{NAME}"), 443)
