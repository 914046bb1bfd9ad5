"""
LanceDB: one version of a table, in the order of its rows.

An address is `file:///path` or that of an object store (`s3://bucket/path`); options of the connection
are those of its storage (`aws_endpoint`, `aws_region`, ...), with `user` and `password` as its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce

import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lancedb.expr import Expr, col, lit
from lancedb.table import Table

from service.errors import AssayError, InvalidRequest, SourceUnreachable
from service.model import Label
from service.ports import Opened
from service.source_page import SourcePage
from service.source_reference import LancedbReference, Provenance
from service.sources.connection import Connection
from service.sources.object_hosts import refuse_addresses
from service.sources.rows import Paging, conditions, local, retold, unknown

COUNTED = 65_536
LARGEST_INTEGER = 2**63 - 1
DTYPES = {pa.float16(): "<f2", pa.float32(): "<f4", pa.float64(): "<f8", pa.int8(): "|i1"}
FAILURES = (ValueError, RuntimeError, OSError, pa.ArrowException)
OPERATORS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "=": Expr.eq,
    "!=": Expr.ne,
    "<": Expr.lt,
    "<=": Expr.lte,
    ">": Expr.gt,
    ">=": Expr.gte,
}


@contextmanager
def open_source(reference: LancedbReference, connection: Connection) -> Iterator[Opened]:
    """Read a version of a table in the order of its rows."""
    told = _problem(connection)
    with retold(told, *FAILURES):
        table = _table(connection, reference)
        dtype = _dtype(table, reference)
    chosen = _filter(reference, table)
    with retold(_refused, *FAILURES):
        count = _count(table, chosen)
    yield Opened(
        count=count,
        about=Provenance(
            kind="lancedb",
            connection=reference.connection,
            location=reference.table,
            vector=reference.vector,
            id=reference.id,
            where=reference.where,
            version=f"version {table.version}",
            stored_as=np.dtype(dtype).name,
            normalises_on_write=False,
            lossy=False,
        ),
        pages=_pages(table, reference, chosen, dtype, told),
        recount=retold(told, *FAILURES)(lambda: _count(table, chosen)),
        snapshot=True,
    )


def _table(connection: Connection, reference: LancedbReference) -> Table:
    path = local(connection)
    keys = {"aws_access_key_id": connection.user, "aws_secret_access_key": connection.password}
    storage = {**connection.options, **{key: value for key, value in keys.items() if value}}
    if path is None:
        refuse_addresses(connection, storage)
    store = lancedb.connect(
        path or connection.url,
        storage_options=None if path else {"timeout": f"{connection.timeout_s}s"} | storage,
    )
    known = list(store.list_tables().tables)
    if reference.table not in known:
        raise unknown("table", reference.table, known)
    table = store.open_table(reference.table)
    versions = [int(one["version"]) for one in table.list_versions()]
    if reference.version is not None and reference.version not in versions:
        raise unknown("version", str(reference.version), [str(one) for one in versions])
    table.checkout(reference.version or table.version)
    return table


def _dtype(table: Table, reference: LancedbReference) -> str:
    for name in [
        reference.vector,
        reference.id,
        *reference.columns,
        *(one.column for one in reference.where),
    ]:
        if name not in table.schema.names:
            raise unknown("column", name, table.schema.names)
    names = table.schema.field(reference.id).type
    if pa.types.is_nested(names) or _is_bytes(names):
        raise InvalidRequest(
            f"Column `{reference.id}` is of type {names}; ids are strings or numbers. Name another "
            "column as `id`."
        )
    kind = table.schema.field(reference.vector).type
    nested = (
        pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    )
    if not nested or kind.value_type not in DTYPES:
        raise InvalidRequest(
            f"Column `{reference.vector}` is of type {kind}; lists of "
            f"{', '.join(map(str, DTYPES))} are read."
        )
    return DTYPES[kind.value_type]


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def _scan(table: Table, columns: list[str], chosen: Expr | None, rows: int) -> pa.RecordBatchReader:
    query = table.search().select(list(dict.fromkeys(columns)))
    return (query if chosen is None else query.where(chosen)).to_batches(batch_size=rows)


def _count(table: Table, chosen: Expr | None) -> int:
    if chosen is None:
        return int(table.count_rows())
    first = table.schema.names[0]
    return sum(batch.num_rows for batch in _scan(table, [first], chosen, COUNTED))


def _pages(
    table: Table,
    reference: LancedbReference,
    chosen: Expr | None,
    dtype: str,
    told: Callable[[Exception], AssayError],
) -> Iterator[SourcePage]:
    paging = Paging(dtype, reference.columns, _dimensions(table, reference.vector))
    columns = [reference.id, reference.vector, *reference.columns]
    with retold(told, *FAILURES):
        batches = iter(_scan(table, columns, chosen, paging.rows(reference.page_rows)))
    while True:
        with retold(told, *FAILURES):
            batch = next(batches, None)
        if batch is None:
            return
        yield from _page(batch, reference, paging, dtype)


def _page(
    batch: pa.RecordBatch, reference: LancedbReference, paging: Paging, dtype: str
) -> Iterator[SourcePage]:
    vectors = batch.column(reference.vector)
    ids = batch.column(reference.id).to_pylist()
    lengths = pc.fill_null(pc.list_value_length(vectors), 0).to_numpy()
    present = lengths > 0
    kept = vectors.filter(pa.array(present))
    paging.expect(
        lengths[present].tolist(),
        [name for name, there in zip(ids, present, strict=True) if there],
    )
    flat = kept.flatten()
    if flat.null_count:
        raise InvalidRequest(f"Some vectors of `{reference.vector}` have components that are null.")
    block = flat.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
    yield paging.assembled(
        ids,
        present.tolist(),
        block.reshape(len(kept), paging.dimensions or 0),
        [batch.column(column).to_pylist() for column in reference.columns],
    )


def _dimensions(table: Table, vector: str) -> int | None:
    kind = table.schema.field(vector).type
    return int(kind.list_size) if pa.types.is_fixed_size_list(kind) else None


def _filter(reference: LancedbReference, table: Table) -> Expr | None:
    """All conditions together; NaN, which LanceDB takes for the largest number, is a missing value."""
    parts = []
    for column, op, values in conditions(reference.where):
        left, kind = col(column), table.schema.field(column).type
        if op == "in":
            parts.append(left.isin([_bound(value, kind, column) for value in values]))
        else:
            parts.append(OPERATORS[op](left, _bound(values[0], kind, column)))
        if pa.types.is_floating(kind):
            parts.append(left.ne(lit(float("nan"))))
    return reduce(Expr.and_, parts) if parts else None


def _bound(value: Label, kind: pa.DataType, column: str) -> Expr:
    if isinstance(value, str) != (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise InvalidRequest(f"Column `{column}` is of type {kind}, its value in `where` is not.")
    if pa.types.is_integer(kind) and not isinstance(value, bool | str):
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # as a float it would be equal to its neighbours too
        if abs(value) > LARGEST_INTEGER:
            raise InvalidRequest(
                f"LanceDB compares integers up to {LARGEST_INTEGER} exactly; `{column}` is compared "
                f"with {value}."
            )
    return lit(value)


def _refused(error: Exception) -> AssayError:
    return InvalidRequest("LanceDB does not accept `where`: a value does not fit its column.")


def _problem(connection: Connection) -> Callable[[Exception], AssayError]:
    def tell(error: Exception) -> AssayError:
        return SourceUnreachable(
            f"LanceDB at connection `{connection.name}` does not answer, does not accept its keys, "
            "or broke off."
        )

    return tell
