"""What is particular to LanceDB."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from service.errors import DimensionMismatch, InvalidRequest, SourceDenied, SourceUnreachable
from service.sources.connection import Connection
from tests.stores import servers
from tests.stores.loading import Lancedb, Table, opened, read


@pytest.fixture(scope="module")
def store() -> Iterator[Lancedb]:
    with servers.folder() as home:
        yield Lancedb(home)


def table_of(kind: pa.DataType, values: list[Any]) -> pa.Table:
    return pa.table(
        {"id": pa.array(range(len(values)), pa.int64()), "embedding": pa.array(values, kind)}
    )


def test_a_version_is_pinned_while_rows_are_added_and_can_be_asked_for(
    store: Lancedb, rows: Any
) -> None:
    written = rows("debian_pairs/minilm_doc")[:60]
    ids = store.load("moving", Table(list(written)))
    with opened(store.connection, {**store.reference("moving"), "page_rows": 20}) as source:
        assert source.about.version == "version 1"
        next(source.pages)
        table = store.store.open_table("moving")
        table.add(table.to_arrow().slice(0, 5))
        table.delete("id < '000030'")
        assert sum(len(page) for page in source.pages) == 40
        assert source.count == source.recount() == 60
    newest = read(store.connection, store.reference("moving"))
    assert newest.opened.about.version == f"version {table.version}"
    assert newest.ids == ids[30:]
    again = read(store.connection, {**store.reference("moving"), "version": 1})
    assert again.ids == ids
    assert again.vectors.tobytes() == written.tobytes()
    with pytest.raises(InvalidRequest, match="version `99`"):
        read(store.connection, {**store.reference("moving"), "version": 99})


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_stored_precision_is_kept(store: Lancedb, dtype: str) -> None:
    values = np.arange(12).reshape(4, 3).astype(dtype)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 3)
    store.store.create_table(
        dtype, pa.table({"id": pa.array(range(4), pa.int64()), "embedding": flat})
    )
    found = read(store.connection, store.reference(dtype))
    assert found.vectors.dtype == np.dtype(dtype)
    assert found.vectors.tobytes() == values.tobytes()
    assert found.opened.about.stored_as == dtype


def test_lists_of_several_dimensions_are_named(store: Lancedb) -> None:
    kind = pa.list_(pa.float32())
    rows = table_of(kind, [[1.0, 2.0], None, [1.0, 2.0], [3.0]]).rename_columns(["id", "emb"])
    store.store.create_table("mixed", rows)
    with pytest.raises(DimensionMismatch) as caught:
        read(store.connection, {**store.reference("mixed"), "vector": "emb"})
    assert caught.value.faults[0].rows == ["3"]


def test_other_columns_are_refused_by_type(store: Lancedb) -> None:
    store.store.create_table("plain", pa.table({"id": ["a"], "embedding": ["x"]}))
    with pytest.raises(InvalidRequest, match="string"):
        read(store.connection, store.reference("plain"))


def test_ids_that_repeat_are_given_twice_for_the_import_to_refuse(store: Lancedb) -> None:
    rows = pa.table(
        {
            "id": ["a", "b", "a"],
            "embedding": pa.array([[1.0], [2.0], [3.0]], pa.list_(pa.float32(), 1)),
        }
    )
    store.store.create_table("twice", rows)
    assert read(store.connection, store.reference("twice")).ids == ["a", "b", "a"]


def test_nan_is_a_missing_label_and_infinity_none(store: Lancedb) -> None:
    values = table_of(pa.list_(pa.float32(), 1), [[1.0], [2.0], [3.0]])
    for name, last in (("gaps_in_labels", 2.0), ("infinite", float("inf"))):
        column = pa.array([float("nan"), None, last], pa.float64(), from_pandas=False)
        store.store.create_table(name, values.append_column("f", column))
    asked = {**store.reference("gaps_in_labels"), "columns": ["f"]}
    assert read(store.connection, asked).columns == {"f": [None, None, 2.0]}
    with pytest.raises(InvalidRequest, match="`f` holds a number that is not finite"):
        read(store.connection, {**asked, "table": "infinite"})


class Seen(http.server.BaseHTTPRequestHandler):
    """A store of objects that lets nobody in."""

    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_PUT = do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def door() -> Iterator[tuple[str, list[str]]]:
    """The address of an object store of this machine, and what it was asked for."""
    Seen.seen = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Seen) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", Seen.seen
        server.shutdown()
        thread.join()


IN_S3 = {"kind": "lancedb", "table": "docs", "vector": "v", "id": "id"}
S3: dict[str, str] = {"aws_region": "eu-west-1", "allow_http": "true", "client_max_retries": "0"}


def in_s3(options: dict[str, str], private: bool) -> Connection:
    return Connection(
        "prod", "s3://bucket/x", "key", "secret", {**S3, **options}, private, timeout_s=3
    )


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(
    ("option", "variable"),
    [
        ("aws_endpoint", None),
        ("endpoint", None),
        ("AWS_ENDPOINT_URL", None),
        ("endpoint_url", None),
        ("aws_endpoint_url_s3", None),
        (None, "AWS_ENDPOINT"),
        (None, "AWS_ENDPOINT_URL"),
    ],
)
def test_an_endpoint_of_this_machine_needs_the_operators_word(
    option: str | None, variable: str | None, private: bool, door: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By whatever name of the option, or variable of the environment, the library goes by."""
    address, seen = door
    if variable is not None:
        monkeypatch.setenv(variable, address)
    connection = in_s3({} if option is None else {option: address}, private)
    with pytest.raises(SourceUnreachable if private else SourceDenied):
        read(connection, IN_S3)
    assert bool(seen) is private


@pytest.mark.parametrize(
    ("url", "options", "host"),
    [
        ("s3://bucket/x", {"aws_region": "eu-west-1"}, "s3.eu-west-1.amazonaws.com"),
        ("s3://bucket/x", {}, "s3.amazonaws.com"),
        ("gs://bucket/x", {}, "storage.googleapis.com"),
        ("az://container/x", {"azure_storage_account_name": "us"}, "us.blob.core.windows.net"),
        ("s3://bucket/x", {"aws_endpoint": "https://objects.test:9000"}, "objects.test"),
        ("s3://bucket/x", {"proxy_url": "https://objects.test"}, "objects.test"),
    ],
)
def test_the_host_is_looked_at_before_the_library_is_given_it(
    url: str, options: dict[str, str], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leads = {host: "10.0.0.1"}
    opened: list[str] = []

    def resolve(asked: str, port: int, *rest: Any, **_: Any) -> list[Any]:
        address = leads.get(asked, "93.184.216.34")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    def connect(address: str, **_: Any) -> Any:
        opened.append(address)
        raise OSError

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    monkeypatch.setattr("lancedb.connect", connect)
    connection = Connection("prod", url, options=options)
    with pytest.raises(SourceDenied, match="private"):
        read(connection, IN_S3)
    assert opened == []
    leads[host] = "93.184.216.34"
    with pytest.raises(SourceUnreachable):
        read(connection, IN_S3)
    assert opened == [url]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket/x", {"aws_endpoint": "http://93.184.216.34"}),
        ("db://database", {"host_override": "http://127.0.0.1"}),
        ("http://127.0.0.1:1", {}),
        ("memory://x", {}),
    ],
)
def test_other_stores_and_plain_http_to_the_world_are_refused(
    url: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lancedb.connect", None)
    with pytest.raises(SourceDenied):
        read(Connection("prod", url, options=options), IN_S3)


@pytest.fixture
def typed(tmp_path: Path) -> Lancedb:
    store = Lancedb(tmp_path)
    rows = pa.table(
        {
            "id": pa.array([1, 2, 3], pa.int64()),
            "embedding": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
            "f": [1.5, 2.5, float("nan")],
            "u": pa.array([2**64 - 1, 2**64 - 2, 7], pa.uint64()),
            "i": pa.array([2**53, 2**53 + 1, -(2**63)], pa.int64()),
            "raw": pa.array([b"\0" * 16, b"\1" * 16, b"\2" * 16], pa.binary(16)),
        }
    )
    store.store.create_table("typed", rows)
    return store


@pytest.mark.parametrize(
    ("op", "value", "ids"),
    [
        (">", 1, ["1", "2"]), (">=", 2.5, ["2"]), ("!=", 1.5, ["2"]), ("<", 2, ["1"]),
        ("=", 2.5, ["2"]), ("in", [1.5, 2.5], ["1", "2"]),
    ],
)  # fmt: skip
def test_nan_satisfies_no_condition(op: str, value: Any, ids: list[str], typed: Lancedb) -> None:
    where = [{"column": "f", "op": op, "value": value}]
    found = read(typed.connection, {**typed.reference("typed"), "where": where})
    assert (found.ids, found.opened.count) == (ids, len(ids))


def test_integers_are_compared_exactly_or_not_at_all(typed: Lancedb) -> None:
    def ids(column: str, op: str, value: Any) -> list[str]:
        where = [{"column": column, "op": op, "value": value}]
        return read(typed.connection, {**typed.reference("typed"), "where": where}).ids

    assert ids("i", "=", 2**53 + 1) == ["2"]
    assert ids("i", "=", float(2**53)) == ["1"]
    assert ids("i", "<", 0.5) == ["3"]
    assert ids("u", "<", 8) == ["3"]
    for value in (2**64, 2**64 - 1, 1e30):
        with pytest.raises(InvalidRequest, match="exactly; `u`"):
            ids("u", "=", value)


def test_ids_that_are_bytes_are_refused(typed: Lancedb) -> None:
    with pytest.raises(InvalidRequest, match="ids are strings or numbers"):
        read(typed.connection, {**typed.reference("typed"), "id": "raw"})
