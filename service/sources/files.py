"""Files of rows: below a folder, behind HTTPS, or in an object store."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import IO, Any
from urllib.parse import unquote

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from service.errors import Internal, SourceInconsistent, SourceUnreachable
from service.formats.confined import confined
from service.formats.npy import npy_rows
from service.ports import Opened
from service.source_page import SourcePage
from service.source_reference import (
    ArrowReference,
    FaissReference,
    FileReference,
    NpyReference,
    ParquetReference,
    Provenance,
    TableFileReference,
)
from service.sources import guard, http
from service.sources.connection import Connection

SIGNED_FOR = timedelta(minutes=15)
SETTINGS = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")
"""Options of a connection that the object store is told."""


@contextmanager
def open_source(reference: FileReference, connection: Connection) -> Iterator[Opened]:
    """A file: read where it lies, or kept meanwhile."""
    file, version = _open(reference, connection)
    with file:
        before = _stamp(file)

        def recount(count: int | None) -> int | None:
            if _stamp(file) != before:
                raise SourceInconsistent("The file changed while it was read; import it again.")
            return count

        about = Provenance(
            kind=_kind(reference),
            connection=connection.name,
            location=reference.path,
            version=version,
        )
        if isinstance(reference, NpyReference):
            count, stored, blocks = npy_rows(file, reference.dtype)
            pages = (SourcePage(None, rows) for rows in blocks)
            about = about.model_copy(update={"stored_as": stored, "lossy": False})
            yield Opened(count, about, pages, lambda: recount(count), snapshot=True)
            return
        kind: Any = _kind(reference)
        with confined(file, kind, _options(reference)) as (found, pages_read):
            about = about.model_copy(
                update={
                    "stored_as": found.stored_as,
                    "vector": found.vector,
                    "id": found.id,
                    "lossy": found.lossy,
                    "normalises_on_write": found.normalises,
                }
            )
            yield Opened(
                found.count, about, pages_read, lambda: recount(found.count), snapshot=True
            )


def _kind(reference: FileReference) -> str:
    if isinstance(reference, (NpyReference, ParquetReference, ArrowReference, FaissReference)):
        return reference.kind
    raise Internal("No kind of file.")


def _options(reference: FileReference) -> dict[str, Any]:
    if isinstance(reference, TableFileReference):
        return {"vector": reference.vector, "id": reference.id, "columns": reference.columns}
    return {}


def _open(reference: FileReference, connection: Connection) -> tuple[IO[bytes], str | None]:
    scheme = connection.parts.scheme
    if scheme == "file":
        descriptor = guard.open_below(unquote(connection.parts.path), reference.path)
        return os.fdopen(descriptor, "rb"), None
    if scheme in http.PORTS:
        url = http.below(connection, reference.path)
        return http.fetch(connection, url, http.credentials(connection))
    return http.fetch(connection, _signed(connection, reference.path), {})


def _signed(connection: Connection, path: str) -> str:
    """A URL that reads one object for a while: the store's library signs, we fetch it guarded."""
    config = {name: connection.options[name] for name in SETTINGS if name in connection.options}
    if connection.user is not None:
        config.setdefault("access_key_id", connection.user)
        config.setdefault("secret_access_key", connection.password or "")
    key = str(guard.relative(path))
    try:
        settings: Any = {"config": config, "client_options": {"allow_http": connection.private}}
        store: Any = from_url(connection.url, **settings)
        return str(obstore.sign(store, "GET", key, SIGNED_FOR))
    except (BaseError, ValueError, OSError):
        raise SourceUnreachable(
            f"Connection `{connection.name}` cannot be signed for; look at its options."
        ) from None


def _stamp(file: IO[bytes]) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise Internal("No regular file.")
    return status.st_size, status.st_mtime_ns
