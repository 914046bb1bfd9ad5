"""
Chroma, by its HTTP interface of version 2: `get` by limit and offset, in the order of insertion.

A record that goes moves all behind it to the front, and a page leaves one out: ids are listed
before and after, and all three sequences have to be the same.

The password of a connection is its token (option `header`: `authorization` or `x-chroma-token`) or,
with a user, that of basic authentication. Options: `tenant`, `database`, `verify` (a file of
certificates).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx
import orjson

from service.errors import (
    AssayError,
    InvalidRequest,
    SourceDenied,
    SourceInconsistent,
    SourceUnreachable,
)
from service.model import Label
from service.ports import Opened
from service.source_page import SourcePage
from service.source_reference import ChromaReference, Provenance
from service.sources.connection import Connection
from service.sources.dialling import Checked
from service.sources.rows import Paging, conditions, retold

PORT = 8000
LISTED = 10_000
OPERATORS = {"=": "$eq", "<": "$lt", "<=": "$lte", ">": "$gt", ">=": "$gte"}
FAILURES = (httpx.HTTPError, ValueError, KeyError, OSError)

Clause = dict[str, Any]


@contextmanager
def open_source(reference: ChromaReference, connection: Connection) -> Iterator[Opened]:
    """Read a collection in the order of insertion."""
    chosen = _filter(reference)
    with _connect(connection) as client:
        store = _Collection(client, connection, reference.collection)
        cosine = store.space == "cosine"
        before = store.listed(chosen)

        def recount() -> int:
            after = store.listed(chosen)
            if after.count == before.count:
                after.refuse_unless(before)
            return after.count

        yield Opened(
            count=before.count,
            about=Provenance(
                kind="chroma",
                connection=reference.connection,
                location=reference.collection,
                where=reference.where,
                version=f"collection {store.id}",
                stored_as="float32, a unit row beside its length" if cosine else "float32",
                normalises_on_write=False,
                lossy=cosine,
            ),
            pages=_pages(store, reference, chosen, before),
            recount=recount,
        )


class _Sequence:
    """Which ids came, in which order."""

    def __init__(self) -> None:
        self.count = 0
        self._digest = hashlib.sha256()

    def add(self, ids: list[str]) -> None:
        self.count += len(ids)
        for one in ids:
            written = one.encode()
            self._digest.update(len(written).to_bytes(8) + written)

    def refuse_unless(self, other: _Sequence) -> None:
        """SourceInconsistent unless the other is the same."""
        if self._digest.digest() != other._digest.digest():
            raise SourceInconsistent(
                "The collection changed while it was read: records were added, removed, or came in "
                "another order. Import again while nothing is written to it."
            )


class _Collection:
    """One collection, asked over HTTP."""

    def __init__(self, client: httpx.Client, connection: Connection, name: str) -> None:
        self._client, self._connection = client, connection
        options = connection.options
        tenant = quote(options.get("tenant", "default_tenant"), safe="")
        database = quote(options.get("database", "default_database"), safe="")
        self._path = f"tenants/{tenant}/databases/{database}/collections"
        answer = self._send("GET", quote(name, safe=""))
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise InvalidRequest(f"There is no collection `{name}` in the source.")
        found = self._read(answer)
        with retold(_problem(connection), *FAILURES):
            self.id = str(found["id"])
            self.dimension: int | None = found.get("dimension")
            index = found["configuration_json"]
            self.space = (index.get("hnsw") or index.get("spann") or {}).get("space", "l2")

    def listed(self, chosen: Clause | None) -> _Sequence:
        """The ids of all rows that are chosen."""
        ids = _Sequence()
        while some := self.get(chosen, [], LISTED, ids.count)["ids"]:
            ids.add(some)
        return ids

    def get(self, chosen: Clause | None, include: list[str], limit: int, offset: int) -> Clause:
        body = {"where": chosen, "include": include, "limit": limit, "offset": offset}
        answer: Clause = self._read(self._send("POST", f"{self.id}/get", body))
        return answer

    def _send(self, method: str, path: str, body: Clause | None = None) -> httpx.Response:
        with retold(_problem(self._connection), *FAILURES):
            return self._client.request(
                method, f"{self._path}/{path}", content=orjson.dumps(body) if body else None
            )

    def _read(self, answer: httpx.Response) -> Any:
        with retold(_problem(self._connection), *FAILURES):
            return orjson.loads(answer.raise_for_status().content)


def _connect(connection: Connection) -> httpx.Client:
    host = f"[{connection.host}]" if ":" in connection.host else connection.host
    prefix = connection.parts.path.rstrip("/")
    with retold(_problem(connection), *FAILURES):
        return httpx.Client(
            base_url=f"{connection.parts.scheme}://{host}:{connection.port(PORT)}{prefix}/api/v2/",
            headers=_headers(connection),
            auth=(connection.user, connection.password or "") if connection.user else None,
            timeout=connection.timeout_s,
            transport=Checked(connection, PORT),
            trust_env=False,
        )


def _headers(connection: Connection) -> dict[bytes, bytes]:
    headers = {b"Content-Type": b"application/json"}
    if connection.password is not None and connection.user is None:
        if connection.options.get("header", "authorization").lower() == "x-chroma-token":
            headers[b"X-Chroma-Token"] = connection.password.encode()
        else:
            headers[b"Authorization"] = f"Bearer {connection.password}".encode()
    return headers


def _pages(
    store: _Collection, reference: ChromaReference, chosen: Clause | None, before: _Sequence
) -> Iterator[SourcePage]:
    paging = Paging("<f4", reference.columns, store.dimension)
    include = ["embeddings", "metadatas"] if reference.columns else ["embeddings"]
    read, limit = _Sequence(), paging.rows(reference.page_rows)
    while True:
        got = store.get(chosen, include, limit, read.count)
        ids = got["ids"]
        if not ids:
            if read.count == before.count:
                read.refuse_unless(before)
            return
        read.add(ids)
        metadata = got.get("metadatas") or [None] * len(ids)
        yield paging.page(
            ids,
            got.get("embeddings") or [None] * len(ids),
            {
                column: [(cells or {}).get(column) for cells in metadata]
                for column in reference.columns
            },
        )


def _filter(reference: ChromaReference) -> Clause | None:
    """All conditions together; as in SQL, a record without the key satisfies none of them."""
    clauses = []
    for column, op, values in conditions(reference.where):
        if op == "in":
            clauses.append(_any([_compare(column, "=", value) for value in values], column))
        elif op == "!=":
            clauses.append(_differs(column, values[0]))
        else:
            clauses.append(_compare(column, op, values[0]))
    return {"$and": clauses} if len(clauses) > 1 else clauses[0] if clauses else None


def _compare(column: str, op: str, value: Label) -> Clause:
    if op != "=" and isinstance(value, bool | str):
        raise InvalidRequest(f"Chroma orders numbers alone; `{column}` is compared with another.")
    return {column: {OPERATORS[op]: value}}


def _differs(column: str, value: Label) -> Clause:
    if isinstance(value, bool):
        return _compare(column, "=", not value)
    if isinstance(value, str):
        raise InvalidRequest(
            f"Chroma's `!=` also keeps records without `{column}`; name the values to keep with `in`."
        )
    return {"$or": [_compare(column, "<", value), _compare(column, ">", value)]}


def _any(clauses: list[Clause], column: str) -> Clause:
    if not clauses:
        return {"$and": [_compare(column, "=", 0), _compare(column, "=", 1)]}
    return {"$or": clauses} if len(clauses) > 1 else clauses[0]


def _problem(connection: Connection) -> Callable[[Exception], AssayError]:
    def tell(error: Exception) -> AssayError:
        status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None
        if status in (401, 403):
            return SourceDenied(f"Chroma refuses the token of connection `{connection.name}`.")
        if status in (400, 422):
            return InvalidRequest("Chroma does not accept `where`: a value does not fit its key.")
        return SourceUnreachable(
            f"Chroma at connection `{connection.name}` does not answer as Chroma does, or broke off."
        )

    return tell
