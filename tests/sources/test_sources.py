"""Kinds by name: imported on use, and quiet about what their drivers say."""

from __future__ import annotations

import json
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import structlog
from pydantic import TypeAdapter

from service import logs
from service.errors import AssayError, InvalidRequest, SourceDenied, SourceUnreachable
from service.ports import Opened
from service.source_page import SourcePage
from service.source_reference import Provenance, SourceReference
from service.sources import SOURCES, NamedSources
from service.sources.connection import Connection, read_connections

SECRET = "s3cr3t-of-the-operator"
REFERENCE: Any = TypeAdapter(SourceReference).validate_python(
    {"kind": "qdrant", "connection": "prod", "collection": "docs"}
)


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a module in the place of a kind's."""

    def put(open_source: Any) -> NamedSources:
        module = ModuleType("made_up")
        module.open_source = open_source  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "made_up", module)
        monkeypatch.setitem(SOURCES, "qdrant", "made_up:open_source")
        return NamedSources({"prod": Connection("prod", "http://host")}, Path("scratch"))

    return put


@pytest.fixture
def as_served() -> Iterator[Callable[[], None]]:
    """Log as a service does, from the call on."""
    yield logs.configure
    structlog.reset_defaults()


def made(where: str) -> Any:
    """An adapter whose driver tells the password at this place."""

    def fail(place: str) -> None:
        if place == where:
            raise RuntimeError(f"could not log in with {SECRET}")

    @contextmanager
    def open_source(reference: Any, connection: Connection) -> Iterator[Opened]:
        fail("open")

        def pages() -> Iterator[SourcePage]:
            yield SourcePage(["a"], np.ones((1, 2), np.float32))
            fail("page")

        def recount() -> int:
            fail("recount")
            return 1

        about = Provenance(kind="qdrant", connection="prod", location="docs")
        yield Opened(1, about, pages(), recount)

    return open_source


@pytest.mark.parametrize("where", ["open", "page", "recount"])
def test_what_a_driver_says_is_not_repeated(
    where: str, adapter: Any, as_served: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def read() -> None:
        with adapter(made(where)).open("p", REFERENCE, lambda *told: None) as opened:
            list(opened.pages)
            opened.recount()

    as_served()
    with pytest.raises(SourceUnreachable) as caught:
        read()
    assert caught.value.detail == "Connection `prod` broke (RuntimeError)."
    assert caught.value.__suppress_context__
    logged = capsys.readouterr().err
    assert "test_sources.py:" in logged
    assert SECRET not in logged + caught.value.detail


def test_an_adapter_that_is_well_is_read_to_its_end(adapter: Any) -> None:
    with adapter(made("nowhere")).open("p", REFERENCE, lambda *told: None) as opened:
        assert [page.ids for page in opened.pages] == [["a"]]
        assert opened.recount() == 1


def test_what_its_reader_raises_is_not_taken_for_the_store(adapter: Any) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        adapter(made("nowhere")).open("p", REFERENCE, lambda *told: None),
    ):
        raise ZeroDivisionError


def test_a_package_that_is_not_there_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, adapter: Any
) -> None:
    sources = adapter(made("nowhere"))
    monkeypatch.setitem(SOURCES, "qdrant", "no_such_package.adapter:open_source")
    with pytest.raises(
        InvalidRequest, match=r"`no_such_package` is not installed \(extra `qdrant`"
    ):
        sources.refuse("p", REFERENCE)


def test_every_kind_of_reference_has_a_place() -> None:
    schema = TypeAdapter(SourceReference).json_schema()
    assert set(schema["discriminator"]["mapping"]) == set(SOURCES)
    with pytest.raises(AssayError):
        NamedSources({}, Path("scratch")).refuse("p", REFERENCE)


MADE_UP: dict[str, dict[str, Any]] = {
    "pgvector": {"table": "t", "vector": "v", "id": "i"},
    "qdrant": {"collection": "c"},
    "chroma": {"collection": "c"},
    "milvus": {"collection": "c", "vector": "v"},
    "lancedb": {"table": "t", "vector": "v", "id": "i"},
    "redis": {"prefix": "p", "vector": "v"},
    **{kind: {"path": "x"} for kind in ("npy", "parquet", "arrow", "faiss")},
}
WIRE = [
    "postgresql",
    "postgres",
    "redis",
    "rediss",
    "http",
    "https",
    "file",
    "s3",
    "gs",
    "az",
    "tcp",
]
READ_THERE = {
    "postgresql": {"pgvector"},
    "postgres": {"pgvector"},
    "redis": {"redis"},
    "rediss": {"redis"},
    "http": {"qdrant", "chroma", "milvus", "npy", "parquet", "arrow", "faiss"},
    "https": {"qdrant", "chroma", "milvus", "npy", "parquet", "arrow", "faiss"},
    "file": {"qdrant", "lancedb", "npy", "parquet", "arrow", "faiss"},
    "s3": {"lancedb", "npy", "parquet", "arrow", "faiss"},
    "gs": {"lancedb", "npy", "parquet", "arrow", "faiss"},
    "az": {"lancedb", "npy", "parquet", "arrow", "faiss"},
    "tcp": set(),
}


@pytest.fixture
def heard() -> Iterator[tuple[int, list[bytes]]]:
    """A port of this machine, and what is said to it."""
    got: list[bytes] = []

    class Ear(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            got.append(b"")
            self.request.settimeout(1)
            with suppress(OSError):
                got.append(self.request.recv(4096))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Ear) as ears:
        thread = threading.Thread(target=ears.serve_forever, args=(0.01,))
        thread.start()
        yield ears.server_address[1], got
        ears.shutdown()
        thread.join()


def refusal(sources: NamedSources, reference: Any) -> str | None:
    """Why a source is an invalid request here; None if it is not."""
    try:
        sources.refuse("p", reference)
    except InvalidRequest as error:
        return error.detail
    return None


@pytest.mark.parametrize("scheme", WIRE)
@pytest.mark.parametrize("kind", SOURCES)
def test_a_kind_that_an_address_is_not_for_is_refused_before_anything_is_dialled(
    kind: str, scheme: str, heard: tuple[int, list[bytes]], tmp_path: Path
) -> None:
    """`postgresql://...?sslmode=verify-full` read as redis would send the password in the clear."""
    port, got = heard
    url = f"{scheme}://bob:{SECRET}@127.0.0.1:{port}{tmp_path}?sslmode=verify-full"
    sources = NamedSources(
        read_connections(json.dumps({"prod": {"url": url, "private": True, "timeout_s": 2}})),
        tmp_path,
    )
    reference: Any = TypeAdapter(SourceReference).validate_python(
        {"kind": kind, "connection": "prod", **MADE_UP[kind]}
    )
    if kind in READ_THERE[scheme]:
        refused = refusal(sources, reference)
        assert refused is None or "is not installed" in refused
        return
    for ask in (
        lambda: sources.refuse("p", reference),
        lambda: sources.open("p", reference, lambda *told: None).__enter__(),
    ):
        with pytest.raises(SourceDenied) as caught:
            ask()
        assert f"begins with {scheme}://" in caught.value.detail
        assert all(f"`{able}`" in caught.value.detail for able in READ_THERE[scheme])
        assert SECRET not in caught.value.detail
    assert got == []
    assert list(tmp_path.iterdir()) == []
