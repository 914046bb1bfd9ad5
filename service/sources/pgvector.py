"""
PostgreSQL with pgvector: one ordered binary COPY inside one read-only snapshot.

Options of a connection are libpq's (`sslmode`, `sslrootcert`, ...).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import compress, islice
from typing import Any
from urllib.parse import parse_qsl, unquote

import numpy as np
import psycopg
from psycopg import sql

from service.errors import AssayError, InvalidRequest, SourceDenied, SourceUnreachable
from service.ports import Opened
from service.source_page import SourcePage
from service.source_reference import PgvectorReference, Provenance
from service.sources import guard
from service.sources.connection import Connection
from service.sources.rows import PAGE_BYTES, Paging, conditions, retold, unknown

PORT = 5432
Row = tuple[Any, ...]
DTYPES = {"vector": "f4", "halfvec": "f2"}
HEADER = 4  # dimensions and a reserved word, two bytes each
MOST_DIMENSIONS = 16_000
CHUNK = 256
CASTS = {
    "int2": "int8",
    "int4": "int8",
    "int8": "int8",
    "float4": "float8",
    "float8": "float8",
    "numeric": "float8",
    "bool": "bool",
}
COLUMNS = """
SELECT a.attname, coalesce(base.typname, t.typname), a.atttypmod
FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type base ON base.oid = nullif(t.typbasetype, 0)
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND a.attnum > 0 AND NOT a.attisdropped
"""
VERSIONS = """
SELECT current_setting('server_version'),
  (SELECT extversion FROM pg_extension WHERE extname = 'vector')
"""


@contextmanager
def open_source(reference: PgvectorReference, connection: Connection) -> Iterator[Opened]:
    """Read a table or view in the order of its id."""
    told = retold(_problem(connection), psycopg.Error)
    with told, closing(_connect(connection)) as store:
        store.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        store.read_only = True
        table = _table(store, reference)
        server, extension = _one(store, sql.SQL(VERSIONS))
        with closing(_pages(store, table, reference, connection)) as pages:
            yield Opened(
                count=table.count(store),
                about=Provenance(
                    kind="pgvector",
                    connection=reference.connection,
                    location=f"{reference.namespace}.{reference.table}",
                    vector=reference.vector,
                    id=reference.id,
                    where=reference.where,
                    version=f"one snapshot, PostgreSQL {server}, pgvector {extension}",
                    stored_as=np.dtype(table.dtype).name,
                    normalises_on_write=False,
                    lossy=False,
                ),
                pages=pages,
                recount=retold(_problem(connection), psycopg.Error)(lambda: table.count(store)),
                snapshot=True,
            )


@dataclass(frozen=True)
class _Table:
    """What is read, as SQL."""

    rows: sql.Composed
    """From and where."""
    order: sql.Identifier
    chosen: sql.Composed
    """Vector, id and labels."""
    types: list[str]
    dtype: str
    dimensions: int | None
    """As declared; None where vectors may have any."""

    @property
    def widest(self) -> int:
        """Bytes a vector can have."""
        return (self.dimensions or MOST_DIMENSIONS) * np.dtype(self.dtype).itemsize

    def count(self, store: psycopg.Connection[Any]) -> int:
        (count,) = _one(store, sql.SQL("SELECT count(*) {}").format(self.rows))
        return int(count)

    @property
    def copy(self) -> sql.Composed:
        return sql.SQL("COPY (SELECT {} {} ORDER BY source.{}) TO STDOUT (FORMAT binary)").format(
            self.chosen, self.rows, self.order
        )


def _connect(connection: Connection) -> psycopg.Connection[Any]:
    addresses = guard.addresses(connection, PORT)
    keepalive = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
    return psycopg.connect(
        **{
            **keepalive,
            **dict(parse_qsl(connection.parts.query)),
            **connection.options,
            "host": ",".join([connection.host] * len(addresses)),
            "hostaddr": ",".join(addresses),
            "port": connection.port(PORT),
            "dbname": unquote(connection.parts.path.lstrip("/")) or None,
            "user": connection.user,
            "password": connection.password,
            "connect_timeout": max(2, int(connection.timeout_s)),
            "tcp_user_timeout": int(connection.timeout_s * 1000),
        }
    )


def _table(store: psycopg.Connection[Any], reference: PgvectorReference) -> _Table:
    with store.cursor() as cursor:
        found = cursor.execute(COLUMNS, (reference.namespace, reference.table)).fetchall()
    types = {name: kind for name, kind, _ in found}
    declared = {name: size for name, _, size in found if size > 0}
    if not types:
        raise InvalidRequest(
            f"There is no table `{reference.table}` in schema `{reference.namespace}` that this "
            "connection may see."
        )
    asked = [reference.vector, reference.id, *reference.columns]
    for column in [*asked, *(one.column for one in reference.where)]:
        if column not in types:
            raise unknown("column", column, list(types))
    kind = types[reference.vector]
    if kind not in DTYPES:
        raise InvalidRequest(
            f"Column `{reference.vector}` is of type `{kind}`; only `vector` and `halfvec` are read."
        )
    casts = ["text", *(CASTS.get(types[column], "text") for column in reference.columns)]
    return _Table(
        rows=sql.SQL("FROM {} AS source WHERE {}").format(
            sql.Identifier(reference.namespace, reference.table), _filter(reference)
        ),
        order=sql.Identifier(reference.id),
        chosen=sql.SQL(", ").join(
            [
                sql.Identifier(reference.vector),
                *(
                    sql.SQL("{}::{}").format(sql.Identifier(column), sql.SQL(cast))
                    for column, cast in zip(asked[1:], casts, strict=True)
                ),
            ]
        ),
        types=["bytea", *casts],
        dtype=DTYPES[kind],
        dimensions=declared.get(reference.vector),
    )


def _filter(reference: PgvectorReference) -> sql.Composable:
    operators = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "in": "IN"}
    parts: list[sql.Composable] = [sql.SQL("true")]
    for column, op, values in conditions(reference.where):
        bound = sql.SQL(", ").join(map(sql.Literal, values))
        if not values:
            parts.append(sql.SQL("false"))
        else:
            parts.append(
                sql.SQL("{} {} ({})").format(sql.Identifier(column), sql.SQL(operators[op]), bound)
            )
    return sql.SQL(" AND ").join(parts)


def _one(store: psycopg.Connection[Any], statement: sql.SQL | sql.Composed) -> tuple[Any, ...]:
    with store.cursor() as cursor:
        row: tuple[Any, ...] = cursor.execute(statement).fetchone() or ()
    return row


def _pages(
    store: psycopg.Connection[Any],
    table: _Table,
    reference: PgvectorReference,
    connection: Connection,
) -> Generator[SourcePage]:
    paging = Paging(table.dtype, reference.columns, table.dimensions)
    with (
        retold(_problem(connection), psycopg.Error),
        store.cursor() as cursor,
        cursor.copy(table.copy) as copy,
    ):
        copy.set_types(table.types)
        rows = copy.rows()
        limit = min(reference.page_rows, max(1, PAGE_BYTES // table.widest))
        while (page := _page(rows, limit, paging, table)) is not None:
            yield page


def _page(rows: Iterator[Row], limit: int, paging: Paging, table: _Table) -> SourcePage | None:
    """The next rows, their vectors written into one array a few at a time."""
    columns: list[list[Any]] = [[] for _ in table.types[1:]]
    present: list[bool] = []
    block = np.empty((0, paging.dimensions or 0), table.dtype)
    at = 0
    while some := list(islice(rows, min(CHUNK, limit - len(present)))):
        vectors, *cells = zip(*some, strict=True)
        for column, values in zip(columns, cells, strict=True):
            column += values
        there = [vector is not None for vector in vectors]
        present += there
        raw = list(compress(vectors, there))
        components = [(len(vector) - HEADER) // block.itemsize for vector in raw]
        paging.expect(components, compress(cells[0], there))
        if raw:
            if not len(block):
                block = np.empty((limit, paging.dimensions or 0), table.dtype)
            flat = np.frombuffer(b"".join(raw), np.uint8).reshape(len(raw), -1)
            block[at : at + len(raw)] = flat[:, HEADER:].view(f">{table.dtype}")
            at += len(raw)
    if not present:
        return None
    return paging.assembled(columns[0], present, block[:at], columns[1:])


def _problem(connection: Connection) -> Any:
    def tell(error: Exception) -> AssayError:
        state = getattr(error, "sqlstate", None) or ""
        if state in ("42501",) or state.startswith("28"):
            return SourceDenied(
                f"The user of connection `{connection.name}` may not read this table."
            )
        if state.startswith(("22", "42")):
            return InvalidRequest(
                "PostgreSQL does not accept `where`: a value does not fit its column."
            )
        return SourceUnreachable(
            f"PostgreSQL at connection `{connection.name}` does not answer, does not accept the "
            "connection's user and options, or broke off."
        )

    return tell
