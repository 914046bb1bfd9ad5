"""
PostgreSQL: a session at an address that was checked, and the rows of a query by binary COPY.

The driver hands rows to whoever asked for them as they come, so a COPY runs in a thread of its own that
waits while the pieces before are read.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from queue import Empty, Queue
from struct import Struct
from typing import Any
from urllib.parse import parse_qsl, unquote

from pg8000.exceptions import Error
from pg8000.native import Connection as Link
from pg8000.native import literal

from service.errors import InvalidRequest, SourceUnreachable
from service.sources import guard
from service.sources.connection import Connection

PORT = 5432
FAILURES = (Error, OSError)
OPTIONS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "application_name")
"""What a connection may say besides, with the meaning libpq gives it."""
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
SESSION = {"client_encoding": "UTF8", "standard_conforming_strings": "on"}
"""Settings of a session; by the second a text is closed by a quotation mark alone."""
WRITTEN = {
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "lc_monetary": "C",
}
"""How values are written as text, whatever a role or database has set: ids and labels depend on it."""
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
PIECE_BYTES = 1 << 18
PIECES = 4
SIGNATURE = b"PGCOPY\n\xff\r\n\0"
LEAST_HEADER = len(SIGNATURE) + 8
COUNT, SIZE = Struct(">h").unpack_from, Struct(">i").unpack_from
Row = tuple[bytes | None, ...]


class Session:
    """One read-only snapshot of a database."""

    def __init__(self, connection: Connection) -> None:
        options = _options(connection)
        plain = guard.connect(connection, PORT)
        _keep_alive(plain, connection.timeout_s)
        plain.settimeout(None)  # a query may think for as long as it likes
        self._line = plain.dup()
        overdue = threading.Timer(connection.timeout_s, self._hang_up)
        overdue.start()
        try:
            self._link = Link(
                connection.user,
                host=connection.host,
                port=connection.port(PORT),
                database=unquote(connection.parts.path.lstrip("/")) or None,
                password=connection.password,
                sock=plain,
                ssl_context=_tls(options),
                application_name=options.get("application_name", "assay"),
                startup_params=SESSION,
            )
            self._link.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            for setting, value in WRITTEN.items():
                self._link.run(
                    "SELECT set_config(:setting, :value, true)", setting=setting, value=value
                )
        except BaseException:
            plain.close()
            self._line.close()
            raise
        finally:
            overdue.cancel()

    def run(self, statement: str, **values: str) -> list[list[Any]]:
        """All rows of a short answer; `:name` in the statement stands for a value."""
        return list(self._link.run(statement, **values) or ())

    def rows(self, query: str) -> Generator[list[Row]]:
        """Rows of a query as the server sends them in binary, some at a time."""
        rest, at = b"", -1
        for piece in self._copy(query):
            rest = rest[max(at, 0) :] + piece
            at = 0 if at >= 0 else _header(rest)
            if at >= 0:
                rows, at = _whole(rest, at)
                if rows:
                    yield rows

    def _copy(self, query: str) -> Generator[bytes]:
        pieces = _Pieces()

        def copy() -> None:
            end: BaseException | None = None
            try:
                statement = f"COPY ({query}) TO STDOUT (FORMAT binary)"
                self._link.execute_unnamed(statement, stream=pieces)
                pieces.flush()
            except BaseException as error:
                end = error
            pieces.queue.put(end)

        thread = threading.Thread(target=copy, daemon=True)
        thread.start()
        piece: bytes | BaseException | None = b""
        try:
            while isinstance(piece := pieces.queue.get(), bytes):
                yield piece
        finally:
            if isinstance(piece, bytes):  # nobody reads on
                self._hang_up()
                while thread.is_alive():
                    with suppress(Empty):
                        pieces.queue.get(timeout=0.05)
            thread.join()
        if piece is not None:
            raise piece

    def _hang_up(self) -> None:
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, in whatever state it is."""
        with suppress(*FAILURES):
            self._link.close()
        self._line.close()


class _Pieces:
    """What the driver writes to: bytes in pieces, few of which wait."""

    def __init__(self) -> None:
        self.queue: Queue[bytes | BaseException | None] = Queue(PIECES)
        self._some: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        self._some.append(data)
        self._size += len(data)
        if self._size >= PIECE_BYTES:
            self.flush()

    def flush(self) -> None:
        self.queue.put(b"".join(self._some))
        self._some, self._size = [], 0


def _header(data: bytes) -> int:
    """Where the rows begin; -1 while not all before them is there."""
    if len(data) < LEAST_HEADER:
        return -1
    if not data.startswith(SIGNATURE):
        raise SourceUnreachable("The server does not send what a binary COPY begins with.")
    at = LEAST_HEADER + int(SIZE(data, LEAST_HEADER - 4)[0])
    return at if at <= len(data) else -1


def _whole(data: bytes, at: int) -> tuple[list[Row], int]:
    """Rows that are there as a whole from a place on, and where the next begins."""
    rows: list[Row] = []
    end = len(data)
    while at + 2 <= end:
        (count,) = COUNT(data, at)
        if count < 0:  # the end
            return rows, end
        place = at + 2
        fields: list[bytes | None] = []
        for _ in range(count):
            if place + 4 > end:
                return rows, at
            (size,) = SIZE(data, place)
            place += 4
            if place + size > end:
                return rows, at
            fields.append(None if size < 0 else data[place : place + size])
            place += max(size, 0)
        rows.append(tuple(fields))
        at = place
    return rows, at


def name(*parts: str) -> str:
    """A name as PostgreSQL reads it, whatever letters it has."""
    return ".".join('"' + _plain(part).replace('"', '""') + '"' for part in parts)


def listed(values: Sequence[str | float]) -> str:
    """Values in parentheses, as constants."""
    return "(" + ", ".join(_constant(value) for value in values) + ")"


def _constant(value: str | float) -> str:
    return str(literal(_plain(value) if isinstance(value, str) else value))


def _plain(text: str) -> str:
    if "\0" in text:
        raise InvalidRequest(
            "A name or a value holds the character zero, which PostgreSQL has not."
        )
    return text


def _options(connection: Connection) -> Mapping[str, str]:
    given = {**dict(parse_qsl(connection.parts.query)), **connection.options}
    if unknown := sorted(set(given) - set(OPTIONS)):
        raise SourceUnreachable(
            f"Connection `{connection.name}` has options that are not known: {', '.join(unknown)}; "
            f"there are {', '.join(OPTIONS)}."
        )
    if given.get("sslmode", "prefer") not in SSL_MODES:
        raise SourceUnreachable(
            f"Connection `{connection.name}`: `sslmode` is one of {', '.join(SSL_MODES)}."
        )
    return given


def _tls(options: Mapping[str, str]) -> ssl.SSLContext | bool | None:
    """How to speak TLS; None where the server may choose, False for never."""
    mode, root = options.get("sslmode", "prefer"), options.get("sslrootcert")
    if mode in ("disable", "allow", "prefer"):
        return False if mode == "disable" else None
    context = ssl.create_default_context(cafile=None if root == "system" else root)
    context.check_hostname = mode == "verify-full"
    if mode == "require" and root is None:
        context.verify_mode = ssl.CERT_NONE
    if "sslcert" in options:
        context.load_cert_chain(options["sslcert"], options.get("sslkey"))
    return context


def _keep_alive(plain: socket.socket, timeout_s: float) -> None:
    """Notice a server that is gone, as far as the system can."""
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in {**KEEPALIVE, "TCP_USER_TIMEOUT": int(timeout_s * 1000)}.items():
        if hasattr(socket, option):
            plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
