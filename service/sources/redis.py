"""
Redis or Valkey: hashes under a prefix, each with the bytes of a vector.

SCAN has no order and may repeat itself, so all keys are collected and sorted before the first row is
read. Options of a connection: `verify` (a file of certificates). The path of its address is the
database.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import redis
from redis.maint_notifications import MaintNotificationsConfig

from service.errors import (
    AssayError,
    Fault,
    InvalidRequest,
    MalformedPayload,
    PayloadTooLarge,
    SourceDenied,
    SourceUnreachable,
    first,
)
from service.ports import Opened
from service.source_page import SourcePage
from service.source_reference import Provenance, RedisReference
from service.sources import guard
from service.sources.connection import Connection
from service.sources.rows import Paging, retold

PORT = 6379
SCANNED = 10_000
KEY_BYTES = 1 << 30
KEY_OVERHEAD = 100  # of a bytes object and its place in a set


@contextmanager
def open_source(reference: RedisReference, connection: Connection) -> Iterator[Opened]:
    """Read the hashes under a prefix in the order of their keys."""
    told = _problem(connection)
    store = _connect(connection)
    try:
        with retold(told, redis.RedisError, OSError):
            keys = sorted(_keys(store, reference))
        yield Opened(
            count=len(keys),
            about=Provenance(
                kind="redis",
                connection=reference.connection,
                location=reference.prefix,
                vector=reference.vector,
                stored_as=reference.dtype,
                normalises_on_write=False,
                lossy=False,
            ),
            pages=_pages(store, keys, reference, told),
            recount=retold(told, redis.RedisError, OSError)(lambda: len(_keys(store, reference))),
        )
    finally:
        store.close()


class _Checked(redis.Connection):
    """Connects to an address that was looked at, each time; a server cannot move it elsewhere."""

    def __init__(self, *, named: Connection, **given: Any) -> None:
        super().__init__(**given)  # type: ignore[no-untyped-call]
        self._named = named

    def _connect(self) -> socket.socket:
        plain = guard.connect(self._named, PORT)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return plain


class _CheckedTls(redis.SSLConnection, _Checked):
    """The same behind TLS to the name: what wraps a socket asks the next class for one."""


def _connect(connection: Connection) -> redis.Redis:
    database = connection.parts.path.strip("/") or "0"
    if not database.isdecimal():
        raise InvalidRequest(
            f"What follows the host in the address of connection `{connection.name}` is to be the "
            "number of a database, as in redis://host:6379/0."
        )
    secure = connection.parts.scheme == "rediss"
    tls: dict[str, Any] = {"ssl_ca_certs": connection.options.get("verify")} if secure else {}
    pool = redis.ConnectionPool(
        _CheckedTls if secure else _Checked,
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
        named=connection,
        host=connection.host,
        port=connection.port(PORT),
        db=int(database),
        username=connection.user,
        password=connection.password,
        socket_timeout=connection.timeout_s,
        **tls,
    )
    return redis.Redis.from_pool(pool)


def _keys(store: redis.Redis, reference: RedisReference) -> set[bytes]:
    """Keys of hashes under the prefix, each once."""
    literal = re.sub(r"([*?\[\]^\\-])", r"\\\1", reference.prefix)
    keys: set[bytes] = set()
    held = 0
    for key in store.scan_iter(match=f"{literal}*", count=SCANNED, _type="HASH"):
        if key not in keys:
            keys.add(key)
            held += len(key) + KEY_OVERHEAD
        if held > KEY_BYTES:
            raise PayloadTooLarge(
                f"The keys under `{reference.prefix}` are over {KEY_BYTES >> 20} MiB; choose a "
                "longer prefix."
            )
    return keys


def _pages(
    store: redis.Redis,
    keys: list[bytes],
    reference: RedisReference,
    told: Callable[[Exception], AssayError],
) -> Iterator[SourcePage]:
    dtype = np.dtype(reference.dtype).newbyteorder("<")
    paging = Paging(dtype.str, reference.columns, remedy="name a `prefix` whose vectors are alike")
    fields = [reference.vector, *reference.columns]
    start = len(reference.prefix.encode())
    at = 0
    while at < len(keys):
        chunk = keys[at : at + paging.rows(reference.page_rows)]
        at += len(chunk)
        with retold(told, redis.RedisError, OSError):
            pipe = store.pipeline(transaction=False)
            for key in chunk:
                pipe.hmget(key, fields)
                pipe.exists(key)
            answers = pipe.execute()
        rows = [
            (key, row)
            for key, row, there in zip(chunk, answers[::2], answers[1::2], strict=True)
            if there
        ]
        ids = [_text(key[start:], "key") for key, _ in rows]
        raw = [row[0] for _, row in rows]
        torn = [
            name
            for name, value in zip(ids, raw, strict=True)
            if value and len(value) % dtype.itemsize
        ]
        if torn:
            raise MalformedPayload(
                f"{len(torn)} vectors are not a whole number of {reference.dtype} values.",
                [
                    Fault(
                        pointer="/source/dtype",
                        message="name the type of the bytes",
                        count=len(torn),
                        rows=first(torn),
                    )
                ],
            )
        yield paging.page(
            ids,
            [None if value is None else np.frombuffer(value, dtype) for value in raw],
            {
                column: [
                    None if row[place] is None else _text(row[place], column) for _, row in rows
                ]
                for place, column in enumerate(reference.columns, 1)
            },
        )


def _text(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise MalformedPayload(f"A value of `{what}` is not UTF-8.") from None


def _problem(connection: Connection) -> Callable[[Exception], AssayError]:
    def tell(error: Exception) -> AssayError:
        if isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError):
            return SourceDenied(f"Redis refuses the user of connection `{connection.name}`.")
        return SourceUnreachable(
            f"Redis at connection `{connection.name}` does not answer or broke off."
        )

    return tell
