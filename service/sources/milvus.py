"""
Milvus: pages of a query in the order of primary keys, as of one moment where the server keeps it.

The library's `query_iterator` writes an id into its next filter as it is, so that one with a quotation
mark ends the filter early: pages are asked for here instead.

The password of a connection is a token or, with a user, the user's. Options: `database`, `verify` (a
file of certificates), `server_name`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from pymilvus import DataType, MilvusClient, MilvusException

from service.errors import AssayError, InvalidRequest, SourceDenied, SourceUnreachable
from service.model import Label
from service.ports import Opened
from service.source_page import SourcePage
from service.source_reference import MilvusReference, Provenance
from service.sources import guard
from service.sources.connection import Connection
from service.sources.rows import Paging, conditions, retold, unknown

PORT = 19530
LARGEST_BATCH = 16_384
MOMENT = "iterator_session_ts"
"""What the library calls the moment a first page was read at."""
ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"}
NUMBERS = (
    DataType.INT8,
    DataType.INT16,
    DataType.INT32,
    DataType.INT64,
    DataType.FLOAT,
    DataType.DOUBLE,
)
NOT_LOADED = 101
NOT_ALLOWED = (1400, 1401, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
NOT_ACCEPTED = (6, 1100)
BUSY = (8, 9, grpc.StatusCode.RESOURCE_EXHAUSTED)
"""Codes of a server, or where it has said none, those of gRPC."""
FAILURES = (MilvusException, grpc.RpcError, OSError)


@contextmanager
def open_source(reference: MilvusReference, connection: Connection) -> Iterator[Opened]:
    """Read a collection in the order of its primary key."""
    told = _problem(connection)
    with retold(told, *FAILURES):
        store = _connect(connection)
    try:
        with retold(told, *FAILURES):
            fields = _Fields(store, reference)
            chosen = _filter(reference, fields)
            count = _count(store, reference, chosen)
        yield Opened(
            count=count,
            about=Provenance(
                kind="milvus",
                connection=reference.connection,
                location=reference.collection,
                vector=reference.vector,
                id=fields.id,
                where=reference.where,
                stored_as="float32",
                normalises_on_write=False,
                lossy=False,
            ),
            pages=_pages(store, reference, chosen, fields, told),
            recount=retold(told, *FAILURES)(lambda: _count(store, reference, chosen)),
        )
    finally:
        store.close()


class _Fields:
    """What the collection says of its fields."""

    def __init__(self, store: MilvusClient, reference: MilvusReference) -> None:
        if not store.has_collection(reference.collection):
            raise unknown("collection", reference.collection, store.list_collections())
        fields = store.describe_collection(reference.collection)["fields"]
        by_name = {field["name"]: field for field in fields}
        for name in [
            reference.vector,
            *reference.columns,
            *(one.column for one in reference.where),
        ]:
            if name not in by_name:
                raise unknown("field", name, list(by_name))
        vector = by_name[reference.vector]
        self.id: str = next(field["name"] for field in fields if field.get("is_primary"))
        if vector["type"] != DataType.FLOAT_VECTOR:
            raise InvalidRequest(
                f"Field `{reference.vector}` is of type {DataType(vector['type']).name}; only "
                "FLOAT_VECTOR is read."
            )
        self.dimensions = int(vector["params"]["dim"])
        self._types = {name: field["type"] for name, field in by_name.items()}

    def literal(self, column: str, value: Label) -> str:
        """A value as Milvus writes it, if it is of its field's type."""
        kind = self._types[column]
        fits = (
            kind == DataType.VARCHAR
            if isinstance(value, str)
            else kind == DataType.BOOL
            if isinstance(value, bool)
            else kind in NUMBERS
        )
        if not fits:
            raise InvalidRequest(
                f"Field `{column}` is of type {DataType(kind).name}, its value in `where` is not."
            )
        return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(value: str) -> str:
    """A constant; characters but these stand for themselves, and not every server reads \\u."""
    for letter, written in ESCAPED.items():
        value = value.replace(letter, written)
    return f'"{value}"'


def _connect(connection: Connection) -> MilvusClient:
    secure = connection.parts.scheme == "https"
    address = guard.addresses(connection, PORT)[0]
    host = f"[{address}]" if ":" in address else address
    tls = {
        "server_pem_path": connection.options.get("verify"),
        "server_name": connection.options.get("server_name", connection.host) if secure else None,
    }
    who = (
        {"user": connection.user, "password": connection.password or ""}
        if connection.user
        else {"token": connection.password or ""}
    )
    return MilvusClient(
        f"{connection.parts.scheme}://{host}:{connection.port(PORT)}",
        db_name=connection.options.get("database", ""),
        timeout=connection.timeout_s,
        secure=secure,
        **who,
        **{key: value for key, value in tls.items() if value},
    )


def _count(store: MilvusClient, reference: MilvusReference, chosen: str) -> int:
    found = store.query(
        reference.collection,
        filter=chosen,
        output_fields=["count(*)"],
        consistency_level="Strong",
    )
    return int(found[0]["count(*)"])


def _pages(
    store: MilvusClient,
    reference: MilvusReference,
    chosen: str,
    fields: _Fields,
    told: Callable[[Exception], AssayError],
) -> Iterator[SourcePage]:
    paging = Paging("<f4", reference.columns, fields.dimensions)
    limit = min(paging.rows(reference.page_rows), LARGEST_BATCH)
    after = ""
    as_of: dict[str, Any] = {"iterator": "True", "reduce_stop_for_best": "True"}
    with retold(told, *FAILURES):
        as_of["collection_id"] = store.describe_collection(reference.collection)["collection_id"]
    while True:
        with retold(told, *FAILURES):
            rows = store.query(
                reference.collection,
                filter=" and ".join(f"({part})" for part in (after, chosen) if part),
                output_fields=[fields.id, reference.vector, *reference.columns],
                limit=limit,
                consistency_level="Strong",
                **as_of,
            )
        if not rows:
            return
        if moment := (rows.extra or {}).get(MOMENT, 0):
            as_of["guarantee_timestamp"] = moment
        after = f"{fields.id} > {fields.literal(fields.id, rows[-1][fields.id])}"
        yield paging.page(
            [row[fields.id] for row in rows],
            [row.get(reference.vector) for row in rows],
            {column: [row.get(column) for row in rows] for column in reference.columns},
        )


def _filter(reference: MilvusReference, fields: _Fields) -> str:
    """Conditions on fields of the schema, so plain names; values are literals in JSON."""
    parts = []
    for column, op, values in conditions(reference.where):
        if op == "in":
            listed = ", ".join(fields.literal(column, value) for value in values)
            parts.append(f"{column} in [{listed}]")
        else:
            literal = fields.literal(column, values[0])
            parts.append(f"{column} {'==' if op == '=' else op} {literal}")
    return " and ".join(parts)


def _problem(connection: Connection) -> Callable[[Exception], AssayError]:
    def tell(error: Exception) -> AssayError:
        code: Any = error.code if isinstance(error, MilvusException) else None
        if code in NOT_ALLOWED:
            return SourceDenied(f"Milvus refuses the user of connection `{connection.name}`.")
        if code == NOT_LOADED:
            return InvalidRequest(
                "The collection is not loaded in Milvus (released, or still loading); load it there "
                "(`load_collection`) and import again."
            )
        if code in NOT_ACCEPTED:
            return InvalidRequest("Milvus does not accept `where`: a value does not fit its field.")
        if code in BUSY:
            return SourceUnreachable(
                f"Milvus at connection `{connection.name}` takes no more queries for now (rate limit); "
                "import again later."
            )
        said = f" (code {code})" if isinstance(code, int) else ""
        return SourceUnreachable(
            f"Milvus at connection `{connection.name}` does not answer, does not accept the "
            f"connection's user, or broke off{said}."
        )

    return tell
