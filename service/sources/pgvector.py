"""
PostgreSQL with pgvector: one ordered binary COPY inside one read-only snapshot.

Options of a connection: `sslmode`, `sslrootcert`, `sslcert`, `sslkey`, `application_name`, as libpq has
them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import compress
from math import isfinite
from struct import Struct
from typing import Any

import numpy as np
from pg8000.exceptions import DatabaseError

from service.errors import AssayError, InvalidRequest, SourceDenied, SourceUnreachable
from service.ports import Opened
from service.source_page import SourcePage
from service.source_reference import PgvectorReference, Provenance
from service.sources.connection import Connection
from service.sources.postgres import FAILURES, Row, Session, listed, name
from service.sources.rows import PAGE_BYTES, Paging, conditions, retold, unknown

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
    "numeric": "numeric",
    "bool": "bool",
}


def _number(cell: bytes) -> float | str:
    """A decimal number as the float that is written so; as its text where there is none."""
    text = cell.decode()
    nearest = float(text)
    return nearest if not isfinite(nearest) or Decimal(repr(nearest)) == Decimal(text) else text


CELLS: dict[str, Callable[[bytes], Any]] = {
    "text": bytes.decode,
    "int8": lambda cell: Struct(">q").unpack(cell)[0],
    "float8": lambda cell: Struct(">d").unpack(cell)[0],
    "bool": lambda cell: cell != b"\0",
    "numeric": _number,
}
"""How a cell of each type is read."""
COLUMNS = """
SELECT a.attname, coalesce(base.typname, t.typname), a.atttypmod
FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type base ON base.oid = nullif(t.typbasetype, 0)
WHERE n.nspname = :namespace AND c.relname = :table AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND a.attnum > 0 AND NOT a.attisdropped
"""
VERSIONS = """
SELECT current_setting('server_version'),
  (SELECT extversion FROM pg_extension WHERE extname = 'vector')
"""
CANCELLED = "57014"
Told = Callable[[Exception], AssayError]
OPERATORS = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "in": "IN"}


@contextmanager
def open_source(reference: PgvectorReference, connection: Connection) -> Iterator[Opened]:
    """Read a table or view in the order of its id."""
    told = _reading(connection, f"PostgreSQL cannot compute a row of `{reference.table}`")
    with retold(_connecting(connection), *FAILURES):
        session = Session(connection)
    with closing(session):
        with retold(told, *FAILURES):
            table = _table(session, reference)
            [[server, extension]] = session.run(VERSIONS)
        _refuse(session, table, reference, connection)
        with retold(told, *FAILURES):
            count = table.count(session)
        with closing(_pages(session, table, reference, told)) as pages:
            yield Opened(
                count=count,
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
                recount=retold(told, *FAILURES)(lambda: table.count(session)),
                snapshot=True,
            )


@dataclass(frozen=True)
class _Table:
    """What is read, as SQL."""

    rows: str
    """From."""
    where: str
    order: str
    chosen: str
    """Vector, id and labels."""
    types: list[str]
    """Of the id and the labels."""
    dtype: str
    dimensions: int | None
    """As declared; None where vectors may have any."""

    @property
    def widest(self) -> int:
        """Bytes a vector can have."""
        return (self.dimensions or MOST_DIMENSIONS) * np.dtype(self.dtype).itemsize

    def count(self, session: Session) -> int:
        [[count]] = session.run(f"SELECT count(*) {self.rows} {self.where}")
        return int(count)

    @property
    def query(self) -> str:
        return f"SELECT {self.chosen} {self.rows} {self.where} {self.order}"


def _table(session: Session, reference: PgvectorReference) -> _Table:
    asked = [reference.vector, reference.id, *reference.columns]
    place = name(reference.namespace, reference.table)
    named = {column: name(column) for column in asked}
    found = session.run(COLUMNS, namespace=reference.namespace, table=reference.table)
    types = {column: kind for column, kind, _ in found}
    declared = {column: size for column, _, size in found if size > 0}
    if not types:
        raise InvalidRequest(
            f"There is no table `{reference.table}` in schema `{reference.namespace}` that this "
            "connection may see."
        )
    for column in [*asked, *(one.column for one in reference.where)]:
        if column not in types:
            raise unknown("column", column, list(types))
    kind = types[reference.vector]
    if kind not in DTYPES:
        raise InvalidRequest(
            f"Column `{reference.vector}` is of type `{kind}`; only `vector` and `halfvec` are read."
        )
    read = ["text", *(CASTS.get(types[column], "text") for column in reference.columns)]
    cells = [
        f"{named[column]}::{'text' if kind == 'numeric' else kind}"
        for column, kind in zip(asked[1:], read, strict=True)
    ]
    return _Table(
        rows=f"FROM {place} AS source",
        where=f"WHERE {_filter(reference)}",
        order=f"ORDER BY source.{named[reference.id]}",
        chosen=", ".join([named[reference.vector], *cells]),
        types=read,
        dtype=DTYPES[kind],
        dimensions=declared.get(reference.vector),
    )


def _refuse(
    session: Session, table: _Table, reference: PgvectorReference, connection: Connection
) -> None:
    """Plan what will be read, one part after another, so that the right one is blamed."""
    for parts, blame in (
        (table.rows, f"PostgreSQL cannot read `{reference.table}`"),
        (
            f"{table.rows} {table.order}",
            f"Column `{reference.id}` cannot be put in order; name one that can as `id`",
        ),
        (
            f"{table.rows} {table.where}",
            "PostgreSQL does not accept `where`: a value does not fit its column",
        ),
    ):
        with retold(_reading(connection, blame), *FAILURES):
            session.run(f"EXPLAIN SELECT 1 {parts}")


def _filter(reference: PgvectorReference) -> str:
    parts = ["true"]
    for column, op, values in conditions(reference.where):
        parts.append(f"{name(column)} {OPERATORS[op]} {listed(values)}" if values else "false")
    return " AND ".join(parts)


def _pages(
    session: Session, table: _Table, reference: PgvectorReference, told: Told
) -> Generator[SourcePage]:
    paging = Paging(table.dtype, reference.columns, table.dimensions)
    limit = min(reference.page_rows, max(1, PAGE_BYTES // table.widest))
    with retold(told, *FAILURES), closing(session.rows(table.query)) as read:
        rows = _Rows(read)
        while (page := _page(rows, limit, paging, table)) is not None:
            yield page


class _Rows:
    """Rows as many at a time as are asked for."""

    def __init__(self, read: Iterator[list[Row]]) -> None:
        self._read, self._some, self._at = read, list[Row](), 0

    def take(self, most: int) -> list[Row]:
        """The next rows, fewer than asked for where there are no more or a piece ends."""
        if self._at == len(self._some):
            self._some, self._at = next(self._read, []), 0
        taken = self._some[self._at : self._at + most]
        self._at += len(taken)
        return taken


def _page(rows: _Rows, limit: int, paging: Paging, table: _Table) -> SourcePage | None:
    """The next rows, their vectors written into one array a few at a time."""
    columns: list[list[Any]] = [[] for _ in table.types]
    present: list[bool] = []
    block = np.empty((0, paging.dimensions or 0), table.dtype)
    at = 0
    while some := rows.take(min(CHUNK, limit - len(present))):
        vectors, *cells = zip(*some, strict=True)
        for column, kind, values in zip(columns, table.types, cells, strict=True):
            of = CELLS[kind]
            column += [None if value is None else of(value) for value in values]
        there = [vector is not None for vector in vectors]
        raw = list(compress(vectors, there))
        components = [(len(vector) - HEADER) // block.itemsize for vector in raw]
        paging.expect(components, compress(columns[0][len(present) :], there))
        present += there
        if raw:
            if not len(block):
                block = np.empty((limit, paging.dimensions or 0), table.dtype)
            flat = np.frombuffer(b"".join(raw), np.uint8).reshape(len(raw), -1)
            block[at : at + len(raw)] = flat[:, HEADER:].view(f">{table.dtype}")
            at += len(raw)
    if not present:
        return None
    return paging.assembled(columns[0], present, block[:at], columns[1:])


def _connecting(connection: Connection) -> Told:
    def tell(error: Exception) -> AssayError:
        state = _state(error)
        if state == "42501" or state.startswith("28"):
            return SourceDenied(
                f"PostgreSQL refuses the user or the password of connection `{connection.name}`."
            )
        if state == CANCELLED:
            return _too_long(connection)
        if state == "3D000":
            return SourceUnreachable(
                f"There is no database at connection `{connection.name}` as its address names."
            )
        return _broken(connection)

    return tell


def _reading(connection: Connection, blame: str) -> Told:
    def tell(error: Exception) -> AssayError:
        state = _state(error)
        if state == "42501":
            return SourceDenied(
                f"The user of connection `{connection.name}` may not read this table."
            )
        if state == CANCELLED:
            return _too_long(connection)
        if state.startswith(("22", "42")):
            return InvalidRequest(f"{blame} (error {state}).")
        return _broken(connection)

    return tell


def _state(error: Exception) -> str:
    """PostgreSQL's five characters for what happened; empty if it has said nothing."""
    return str(error.args[0].get("C", "")) if isinstance(error, DatabaseError) else ""


def _too_long(connection: Connection) -> SourceUnreachable:
    return SourceUnreachable(
        f"PostgreSQL ended a query of connection `{connection.name}`: it was cancelled, or took longer "
        "than `statement_timeout` lets it. Raise that for the connection's user (ALTER ROLE ... SET "
        "statement_timeout), or read fewer rows."
    )


def _broken(connection: Connection) -> SourceUnreachable:
    return SourceUnreachable(
        f"PostgreSQL at connection `{connection.name}` does not answer, does not accept the "
        "connection's user and options, or broke off."
    )
