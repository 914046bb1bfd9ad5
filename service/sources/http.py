"""Fetching over HTTP: only to a checked address, never along a redirect, whole or not at all."""

from __future__ import annotations

import base64
import http.client
import ssl
import tempfile
from contextlib import closing
from typing import IO
from urllib.parse import quote, urlsplit

from service.errors import InvalidRequest, PayloadTooLarge, SourceDenied, SourceUnreachable
from service.sources import guard
from service.sources.connection import Connection

PIECE_BYTES = 1 << 20
PORTS = {"http": 80, "https": 443}


class _Checked(http.client.HTTPConnection):
    """Connects to an address that was looked at, and speaks TLS to the name."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.host, connection.port(PORTS[connection.parts.scheme]))
        self._named = connection

    def connect(self) -> None:
        named = self._named
        scheme = named.parts.scheme
        plain = guard.connect(named, PORTS[scheme])
        if scheme == "http":
            self.sock = plain
            return
        context = ssl.create_default_context(cafile=named.options.get("ca_file"))
        self.sock = context.wrap_socket(plain, server_hostname=named.host)


def below(connection: Connection, path: str) -> str:
    """The URL of a path under a connection's address."""
    root = connection.parts
    folder = root.path.rstrip("/")
    return root._replace(path=f"{folder}/{quote(str(guard.relative(path)))}").geturl()


def fetch(
    connection: Connection, url: str, headers: dict[str, str]
) -> tuple[IO[bytes], str | None]:
    """A file that holds the body, without a name, and its ETag."""
    parts = urlsplit(url)
    if parts.scheme not in PORTS or (parts.scheme == "http" and not connection.private):
        raise SourceDenied(
            f"Connection `{connection.name}` must speak https; http is for private addresses."
        )
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    try:
        with closing(_Checked(connection.to(f"{parts.scheme}://{parts.netloc}"))) as link:
            link.request("GET", target, headers={"Accept-Encoding": "identity", **headers})
            response = link.getresponse()
            _refuse_status(connection, response.status)
            return _kept(connection, response), response.headers.get("ETag")
    except (OSError, http.client.HTTPException) as error:
        raise SourceUnreachable(
            f"Connection `{connection.name}` broke ({type(error).__name__})."
        ) from None


def credentials(connection: Connection) -> dict[str, str]:
    """Headers that say who asks."""
    if token := connection.options.get("token"):
        return {"Authorization": f"Bearer {token}"}
    if connection.user is None:
        return {}
    pair = f"{connection.user}:{connection.password or ''}".encode()
    return {"Authorization": "Basic " + base64.b64encode(pair).decode()}


def _refuse_status(connection: Connection, status: int) -> None:
    if status == 200:
        return
    if status in (404, 410):
        raise InvalidRequest(f"Connection `{connection.name}` has no such file.")
    if status in (401, 403):
        raise SourceDenied(f"Connection `{connection.name}` refused the file ({status}).")
    if 300 <= status < 400:
        raise SourceDenied(
            f"Connection `{connection.name}` answers with a redirect, which is not followed."
        )
    raise SourceUnreachable(f"Connection `{connection.name}` answered {status}.")


def _kept(connection: Connection, response: http.client.HTTPResponse) -> IO[bytes]:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise SourceUnreachable(
            f"Connection `{connection.name}` sends an encoding nobody asked for."
        )
    claimed = response.length
    _refuse_size(connection, claimed or 0)
    if connection.scratch is not None:
        connection.scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = tempfile.TemporaryFile(dir=connection.scratch)  # noqa: SIM115 - the caller's
    try:
        received = 0
        while piece := response.read(PIECE_BYTES):
            received += len(piece)
            _refuse_size(connection, received)
            file.write(piece)
            connection.tell("download", received, max(received, claimed or 0))
        if claimed is not None and received != claimed:
            raise SourceUnreachable(
                f"Connection `{connection.name}` sent {received} of {claimed} bytes."
            )
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def _refuse_size(connection: Connection, size: int) -> None:
    if size > connection.largest_bytes:
        raise PayloadTooLarge(f"A file may have {connection.largest_bytes} bytes.")
