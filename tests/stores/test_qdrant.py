"""What is particular to Qdrant."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
from qdrant_client import QdrantClient, models

from service.errors import InvalidRequest, SourceDenied, SourceUnreachable
from service.sources.connection import Connection
from tests.stores import servers
from tests.stores.loading import Qdrant, Table, local, opened, read

KEY = "a-key"


@pytest.fixture(scope="module")
def store() -> Iterator[Qdrant]:
    with servers.folder() as home:
        yield Qdrant(home / "store")


def test_a_local_cosine_collection_keeps_lengths(store: Qdrant, rows: Any) -> None:
    written = rows("debian_pairs/minilm_doc")[:50] * np.float32(3)
    store.load("cosine", Table(list(written)), distance="Cosine")
    found = read(store.connection, store.reference("cosine"))
    assert found.opened.about.normalises_on_write is False
    assert found.vectors.tobytes() == written.tobytes()


def test_ids_may_be_uuids_and_names_of_vectors_are_told(store: Qdrant) -> None:
    ids = [f"00000000-0000-0000-0000-00000000000{i}" for i in range(3)]
    client = QdrantClient(path=str(store.home))
    size = models.VectorParams(size=2, distance=models.Distance.DOT)
    client.create_collection(
        "named",
        vectors_config={"a": size, "b": size},
        sparse_vectors_config={"words": models.SparseVectorParams()},
    )
    client.create_collection("unnamed", vectors_config=size)
    for number, name in enumerate(ids[::-1]):
        client.upsert("named", [models.PointStruct(id=name, vector={"b": [number, 1]})])
        client.upsert("unnamed", [models.PointStruct(id=name, vector=[number, 1])])
    client.close()
    asked = {"kind": "qdrant", "collection": "named"}
    found = read(store.connection, {**asked, "vector": "b"})
    assert found.ids == ids
    assert found.vectors.tolist() == [[2, 1], [1, 1], [0, 1]]
    assert read(store.connection, {**asked, "vector": "a"}).missing == ids
    assert read(store.connection, {"kind": "qdrant", "collection": "unnamed"}).ids == ids
    with pytest.raises(InvalidRequest, match="`a`, `b`"):
        read(store.connection, asked)
    with pytest.raises(InvalidRequest, match="sparse"):
        read(store.connection, {**asked, "vector": "words"})
    with pytest.raises(InvalidRequest, match="no name"):
        read(store.connection, {"kind": "qdrant", "collection": "unnamed", "vector": "a"})


def test_labels_that_are_no_scalars_are_refused(store: Qdrant) -> None:
    client = QdrantClient(path=str(store.home))
    client.create_collection(
        "lists", vectors_config=models.VectorParams(size=1, distance=models.Distance.DOT)
    )
    client.upsert("lists", [models.PointStruct(id=1, vector=[1.0], payload={"tags": ["a"]})])
    client.close()
    asked = {"kind": "qdrant", "collection": "lists"}
    assert read(store.connection, asked).ids == ["1"]
    with pytest.raises(InvalidRequest, match="`tags` holds list values"):
        read(store.connection, {**asked, "columns": ["tags"]})


NUMBERS: list[Any] = [1, 1.0, 2, 2.5, 2**53, 2**53 + 1, 2**60, True, "1", None]


@pytest.fixture(scope="module")
def numbers(store: Qdrant) -> None:
    client = QdrantClient(path=str(store.home))
    size = models.VectorParams(size=1, distance=models.Distance.DOT)
    client.create_collection("numbers", vectors_config=size)
    points = [
        models.PointStruct(id=i, vector=[1.0], payload={} if number is None else {"i": number})
        for i, number in enumerate(NUMBERS)
    ]
    client.upsert("numbers", points)
    client.close()


@pytest.mark.parametrize(
    ("value", "equal"),
    [
        (1, [0, 1]), (1.0, [0, 1]), (2, [2]), (2.5, [3]), (True, [7]), ("1", [8]),
        (2**53, [4]), (2**53 + 1, [5]), (2**60, [6]), (2**60 + 1, []),
    ],
)  # fmt: skip
def test_whole_numbers_are_equal_whether_they_are_written_with_a_point_or_not(
    value: Any, equal: list[int], store: Qdrant, numbers: None
) -> None:
    """`=` and `in` choose them, `!=` all others that have one; beyond 2^53 integers stay exact."""
    asked = {"kind": "qdrant", "collection": "numbers"}

    def chosen(op: str, given: Any) -> list[int]:
        where = [{"column": "i", "op": op, "value": given}]
        return [int(one) for one in read(store.connection, {**asked, "where": where}).ids]

    assert chosen("=", value) == equal
    assert chosen("in", [value, "none"]) == equal
    some = [place for place, number in enumerate(NUMBERS) if number is not None]
    assert chosen("!=", value) == [place for place in some if place not in equal]


def test_a_quotation_mark_in_a_key_is_refused(store: Qdrant) -> None:
    with pytest.raises(InvalidRequest, match="quotation mark"):
        read(store.connection, {"kind": "qdrant", "collection": "lists", "columns": ['a"b']})


def test_a_key_that_fits_into_no_header_is_refused_without_telling_it(store: Qdrant) -> None:
    remote = replace(store.connection, url="http://127.0.0.1:1")
    with pytest.raises(SourceDenied) as caught:
        read(remote, {"kind": "qdrant", "collection": "lists"})
    assert "päss" not in repr(caught.value)


class _Rest(http.server.BaseHTTPRequestHandler):
    """The HTTP interface over a store in memory: what the client sends and how it fails is real."""

    backing: QdrantClient
    broken = False

    def do_GET(self) -> None:
        name = self.path.split("/")[2]
        there = self.backing.collection_exists(name)
        if self.path.endswith("/exists"):
            self._answer({"exists": there})
        else:
            self._answer(self.backing.get_collection(name).model_dump(mode="json"))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = self.path.split("/")[2]
        if self.path.split("?")[0].endswith("/count"):
            found = self.backing.count(name, models.Filter.model_validate(body["filter"]))
            self._answer(found.model_dump(mode="json"))
            return
        if self.broken:
            self.connection.close()
            return
        points, after = self.backing.scroll(
            name,
            models.Filter.model_validate(body["filter"]),
            limit=body["limit"],
            offset=body.get("offset"),
            with_vectors=body["with_vector"],
        )
        listed = [point.model_dump(mode="json") for point in points]
        self._answer({"points": listed, "next_page_offset": after})

    def _answer(self, result: object) -> None:
        known = self.headers.get("api-key") == KEY
        data = json.dumps({"result": result, "status": "ok", "time": 0.0}).encode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def remote(
    request: pytest.FixtureRequest, authority: trustme.CA, rows: Any
) -> Iterator[Connection]:
    """A connection to it, with 50 rows in a cosine collection; a parameter is the name TLS is for."""
    named = getattr(request, "param", None)
    _Rest.backing, _Rest.broken = QdrantClient(":memory:"), False
    _Rest.backing.create_collection(
        "docs",
        vectors_config=models.VectorParams(size=384, distance=models.Distance.COSINE),
    )
    written = rows("debian_pairs/minilm_doc")[:50] * np.float32(3)
    points = [models.PointStruct(id=i, vector=row.tolist()) for i, row in enumerate(written)]
    _Rest.backing.upsert("docs", points)
    with http.server.HTTPServer(("127.0.0.1", 0), _Rest) as server:
        if named is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.issue_cert(named).configure_cert(context)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = "http://127.0.0.1" if named is None else "https://localhost"
        try:
            yield local(f"{address}:{server.server_port}", password=KEY)
        finally:
            server.shutdown()
            thread.join()


def test_over_http_a_cosine_collection_has_lost_its_lengths_and_says_so(
    remote: Connection, rows: Any
) -> None:
    found = read(remote, {"kind": "qdrant", "collection": "docs", "page_rows": 20})
    assert found.ids == [str(i) for i in range(50)]
    assert found.pages == [20, 20, 10]
    assert found.opened.about.normalises_on_write is True
    written = rows("debian_pairs/minilm_doc")[:50].astype("f8")
    directions = written / np.linalg.norm(written, axis=1, keepdims=True)
    assert np.abs(found.vectors - directions).max() < 1e-6


@pytest.mark.parametrize(
    ("remote", "trusted", "read_all"),
    [("localhost", True, True), ("localhost", False, False), ("elsewhere.test", True, False)],
    indirect=["remote"],
)
def test_over_https_the_certificate_has_to_be_that_of_the_name(
    remote: Connection, trusted: bool, read_all: bool, authority: trustme.CA, tmp_path: Path
) -> None:
    """By an authority the connection names; another name and another authority are no answer."""
    known = authority if trusted else trustme.CA()
    known.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    secure = replace(remote, options={"verify": str(tmp_path / "ca.pem")})
    asked = {"kind": "qdrant", "collection": "docs"}
    if read_all:
        assert len(read(secure, asked).ids) == 50
    else:
        with pytest.raises(SourceUnreachable):
            read(secure, asked)
    with pytest.raises(SourceUnreachable):  # no authority named: the system knows none of these
        read(remote, asked)


def test_over_http_a_wrong_key_is_denied(remote: Connection) -> None:
    with pytest.raises(SourceDenied) as caught:
        read(replace(remote, password="wr0ng"), {"kind": "qdrant", "collection": "docs"})
    assert "wr0ng" not in repr(caught.value)


def test_over_http_a_server_that_breaks_off_ends_in_a_problem(remote: Connection) -> None:
    asked = {"kind": "qdrant", "collection": "docs", "page_rows": 20}
    with opened(remote, asked) as source:
        next(source.pages)
        _Rest.broken = True
        with pytest.raises(SourceUnreachable):
            list(source.pages)


def test_a_folder_that_is_no_store_is_left_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(SourceUnreachable, match=r"no meta\.json"):
        read(local(f"file://{tmp_path}"), {"kind": "qdrant", "collection": "docs"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the library's lock
def test_a_local_store_in_use_is_said_to_be_and_named_vectors_are_listed(tmp_path: Path) -> None:
    store = Qdrant(tmp_path / "store")
    store.load("docs", Table([np.ones(384, "f4")]))
    with (
        opened(store.connection, store.reference("docs")),
        pytest.raises(SourceUnreachable, match="is in use"),
    ):
        read(store.connection, store.reference("docs"))
    with pytest.raises(InvalidRequest, match="set `vector` to one: `text`"):
        read(store.connection, {"kind": "qdrant", "collection": "docs"})
