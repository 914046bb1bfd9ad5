"""A name that leads to a public address when it is looked at, and into this machine a moment later."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from service.errors import AssayError, SourceUnreachable
from service.sources.connection import Connection
from tests.stores import servers
from tests.stores.loading import Store, Table, read

NAME = "store.example.test"
PUBLIC, LOCAL = "93.184.216.34", "127.0.0.1"
REFERENCES: dict[str, dict[str, Any]] = {
    "qdrant": {"collection": "docs"},
    "chroma": {"collection": "docs"},
    "redis": {"prefix": "docs:", "vector": "v"},
    "pgvector": {"table": "docs", "vector": "v", "id": "id"},
    "milvus": {"collection": "docs", "vector": "v"},
    "npy": {"path": "docs.npy"},
}
SCHEMES = [
    ("qdrant", "https"), ("qdrant", "http"), ("chroma", "https"), ("chroma", "http"),
    ("redis", "rediss"), ("redis", "redis"), ("pgvector", "postgresql"), ("npy", "https"),
]  # fmt: skip


def resolver(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], str]) -> None:
    """Look names up here; addresses are themselves."""

    def resolve(host: str, port: int, *rest: Any, **_: Any) -> list[Any]:
        address = answer(host) if host == NAME else host
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [(family, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr("socket.getaddrinfo", resolve)


@pytest.fixture
def rebinding(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Public once, of this machine ever after; where sockets were led, all in vain."""
    answers = [PUBLIC]
    dialled: list[str] = []

    def dial(self: socket.socket, place: tuple[str, int]) -> None:
        dialled.append(place[0])
        raise ConnectionRefusedError

    resolver(monkeypatch, lambda host: answers.pop() if answers else LOCAL)
    monkeypatch.setattr(socket.socket, "connect", dial)
    return dialled


@pytest.mark.parametrize(("kind", "scheme"), SCHEMES)
def test_only_the_address_that_was_looked_at_is_dialled(
    kind: str, scheme: str, rebinding: list[str]
) -> None:
    connection = Connection("prod", f"{scheme}://{NAME}:4433", user="me", timeout_s=2)
    with pytest.raises(AssayError):
        read(connection, {"kind": kind, **REFERENCES[kind]})
    assert set(rebinding) == {PUBLIC}


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_milvus_is_given_the_address_and_never_the_name(
    scheme: str, rebinding: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its library dials outside Python. The certificate has to be that of the name."""
    given: list[Any] = []

    def refuse(address: str, **options: Any) -> Any:
        given.append((address, options.get("server_name")))
        raise OSError

    monkeypatch.setattr("service.sources.milvus.MilvusClient", refuse)
    with pytest.raises(SourceUnreachable):
        read(
            Connection("prod", f"{scheme}://{NAME}:4433"),
            {"kind": "milvus", **REFERENCES["milvus"]},
        )
    assert given == [(f"{scheme}://{PUBLIC}:4433", NAME if scheme == "https" else None)]


@pytest.mark.parametrize("kind", ["chroma", "redis"])
def test_tls_is_verified_against_the_name_that_was_looked_up_before(
    kind: str, stores: dict[str, Store], rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an authority the connection names; another name and another authority are no answer."""
    store = stores[kind]
    ids = store.load("behind_tls", Table(list(rows("debian_pairs/minilm_doc")[:3])))
    authority, other = trustme.CA(), trustme.CA()
    for file, one in (("ca.pem", authority), ("other.pem", other)):
        one.cert_pem.write_to_path(str(tmp_path / file))
    port = store.connection.parts.port
    assert port is not None
    resolver(monkeypatch, lambda host: LOCAL)

    def reads(named: str, ca: str) -> bool:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(named).configure_cert(context)
        with servers.tls_before(port, context, asked=False) as door:
            scheme = {"chroma": "https", "redis": "rediss"}[kind]
            secure = replace(
                store.connection,
                url=f"{scheme}://{NAME}:{door}",
                options={"verify": str(tmp_path / ca)},
            )
            try:
                return read(secure, store.reference("behind_tls")).ids == ids
            except SourceUnreachable:
                return False

    assert reads(NAME, "ca.pem")
    assert not reads("elsewhere.test", "ca.pem")
    assert not reads(NAME, "other.pem")
