"""
Stores that rows are read from.

One line per kind; a module is imported on use, so that a package that is not there is a problem of a
request, not a crash.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import structlog

from service.errors import AssayError, InvalidRequest, SourceDenied, SourceUnreachable
from service.ports import Opened, Tell
from service.redaction import mark
from service.source_page import SourcePage
from service.source_reference import Reference
from service.sources.connection import Connection
from service.sources.source import Source

log = structlog.get_logger()
SOURCES: dict[str, str] = {
    "pgvector": "service.sources.pgvector:open_source",
    "qdrant": "service.sources.qdrant:open_source",
    "chroma": "service.sources.chroma:open_source",
    "milvus": "service.sources.milvus:open_source",
    "lancedb": "service.sources.lancedb:open_source",
    "redis": "service.sources.redis:open_source",
    "npy": "service.sources.files:open_source",
    "parquet": "service.sources.files:open_source",
    "arrow": "service.sources.files:open_source",
    "faiss": "service.sources.files:open_source",
}
FILES = ("file", "https", "http", "s3", "gs", "az")
SCHEMES: dict[str, tuple[str, ...]] = {
    "pgvector": ("postgresql", "postgres"),
    "qdrant": ("https", "http", "file"),
    "chroma": ("https", "http"),
    "milvus": ("https", "http"),
    "lancedb": ("file", "s3", "gs", "az"),
    "redis": ("redis", "rediss"),
    "npy": FILES,
    "parquet": FILES,
    "arrow": FILES,
    "faiss": FILES,
}
"""Addresses each kind is for; to any other it could send a password in its own, unprotected way."""


class NamedSources:
    """Sources by the connections an operator has named."""

    def __init__(
        self, connections: Mapping[str, Connection], scratch: Path, largest_bytes: int = 8 << 30
    ) -> None:
        self._connections, self._scratch = dict(connections), scratch
        self._largest_bytes = largest_bytes

    def refuse(self, project: str, reference: Reference) -> None:
        self._connection(project, reference)
        _adapter(reference)

    @contextmanager
    def open(self, project: str, reference: Reference, tell: Tell) -> Iterator[Opened]:
        connection = self._connection(project, reference).telling(tell)
        adapter = _adapter(reference)
        with ExitStack() as stack:
            with _quiet(connection):
                opened = stack.enter_context(adapter(reference, connection))
            pages, recount, version = opened.pages, opened.recount, opened.about.version
            if version is not None:
                opened.about = opened.about.model_copy(update={"version": mark(version)})

            def count() -> int | None:
                with _quiet(connection):
                    return recount()

            opened.pages, opened.recount = _quietly(connection, pages), count
            yield opened

    def _connection(self, project: str, reference: Reference) -> Connection:
        found = self._connections.get(reference.connection)
        if found is None or not found.open_to(project):
            raise SourceDenied(
                f"There is no connection `{reference.connection}` here; the operator names them in "
                "ASSAY_CONNECTIONS_FILE."
            )
        _refuse_scheme(found, getattr(reference, "kind", ""))
        return found.at(self._scratch, self._largest_bytes)


def _refuse_scheme(connection: Connection, kind: str) -> None:
    scheme = connection.parts.scheme
    if scheme in SCHEMES[kind]:
        return
    able = ", ".join(f"`{one}`" for one, schemes in SCHEMES.items() if scheme in schemes)
    needed = ", ".join(f"{one}://" for one in SCHEMES[kind])
    told = f"it can be read as {able}" if able else "no kind of source can be read there"
    raise SourceDenied(
        f"Connection `{connection.name}` has an address that begins with {scheme}://; {told}. "
        f"`{kind}` needs one that begins with {needed}."
    )


@contextmanager
def _quiet(connection: Connection) -> Iterator[None]:
    """What a driver says may hold a password: the type and place of an error are all that is kept."""
    try:
        yield
    except (AssayError, MemoryError):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        where = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames]
        name = type(error).__name__
        log.warning("source broke", connection=connection.name, error=name, where=where)
        raise SourceUnreachable(f"Connection `{connection.name}` broke ({name}).") from None


def _quietly(connection: Connection, pages: Iterator[SourcePage]) -> Iterator[SourcePage]:
    while True:
        with _quiet(connection):
            page = next(pages, None)
        if page is None:
            return
        yield page


def _adapter(reference: Reference) -> Source:
    kind: str = getattr(reference, "kind", "")
    module, _, name = SOURCES[kind].partition(":")
    try:
        found: Source = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise InvalidRequest(
            f"This service cannot read `{kind}`: the package `{error.name}` is not installed "
            f"(extra `{kind}` of embedding-assay)."
        ) from None
    return found
