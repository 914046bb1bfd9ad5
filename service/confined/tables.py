"""Parquet and Arrow: a column of vectors, a column of ids, other columns as labels."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.confined.frames import Found, Rows, Unreadable, rows_per_page

LONGEST_STRING = 1 << 24
LONGEST_NAME = 512
MOST_CONTAINERS = 1 << 20
"""Bounds of what the footer of a Parquet file may unpack to."""
FILE_MAGIC = b"ARROW1"
STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Without it a stream that was cut between two batches would read as a shorter one."""
VECTORS = (
    "vectors are lists (list, large_list, fixed_size_list) of float16, float32, float64 or int8"
)
MOST_COLUMNS = 1000
LARGEST_INTEGER = 2**63 - 1


@dataclass(frozen=True)
class Chosen:
    """Columns by the part they play; ids may be row numbers."""

    vector: str
    id: str | None
    labels: tuple[str, ...]
    asked: bool = True
    """Whether somebody named the labels; otherwise those that turn out to be none are left out."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Other columns, and why they are not kept."""

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys([self.vector, *([self.id] if self.id else []), *self.labels]))


def read_parquet(data: mmap.mmap, options: dict[str, Any]) -> tuple[Found, Iterator[Rows]]:
    """A Parquet file, a few pages of it in memory at a time."""
    file = pq.ParquetFile(
        pa.BufferReader(pa.py_buffer(data)),
        pre_buffer=False,
        thrift_string_size_limit=LONGEST_STRING,
        thrift_container_size_limit=MOST_CONTAINERS,
        page_checksum_verification=True,
    )
    schema = file.schema_arrow
    chosen = choose(schema, options)
    kind = schema.field(chosen.vector).type
    count = file.metadata.num_rows
    page = rows_per_page(_dimensions(file, chosen, kind), _element(kind).bit_width // 8)
    batches = file.iter_batches(batch_size=page, columns=chosen.names, use_threads=False)
    found = Found(count, _stored_as(kind), chosen.vector, chosen.id)
    return found, _pages(batches, chosen, check=False)


def _dimensions(file: pq.ParquetFile, chosen: Chosen, kind: pa.DataType) -> int:
    """How long a vector is about to be: what a page's size is planned by."""
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size)
    longest = 1
    for group in range(file.metadata.num_row_groups):  # the first may hold nulls alone
        one = file.metadata.row_group(group)
        for column in range(one.num_columns):
            if one.column(column).path_in_schema.startswith(f"{chosen.vector}."):
                longest = max(longest, one.column(column).num_values // max(1, one.num_rows))
    return longest


def read_arrow(data: mmap.mmap, options: dict[str, Any]) -> tuple[Found, Iterator[Rows]]:
    """An Arrow IPC stream or file, a record batch at a time."""
    source = pa.BufferReader(pa.py_buffer(data))
    if data[: len(FILE_MAGIC)] == FILE_MAGIC:
        reader = pa.ipc.open_file(source)
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        if data[-len(STREAM_END) :] != STREAM_END:
            raise Unreadable(
                "malformed-payload",
                "The Arrow stream does not end with its end marker: it is cut, or was not closed.",
            )
        reader = pa.ipc.open_stream(source)
        batches = iter(reader)
    chosen = choose(reader.schema, options)
    kind = reader.schema.field(chosen.vector).type
    found = Found(None, _stored_as(kind), chosen.vector, chosen.id)
    return found, _pages(_cut(batches), chosen, check=True)


def _cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Record batches, those that are larger than a page in slices."""
    for batch in batches:
        step = max(1, rows_per_page(max(1, batch.nbytes // max(1, batch.num_rows)), 1))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def choose(schema: pa.Schema, options: dict[str, Any]) -> Chosen:
    """The columns that are meant, or the error that names what there is."""
    names = schema.names
    if len(set(names)) != len(names):
        raise Unreadable("invalid-request", "The table has several columns of one name.")
    able = [name for name in names if _holds_vectors(schema.field(name).type)]
    vector = options.get("vector")
    if vector is None:
        if len(able) != 1:
            raise Unreadable("invalid-request", _unclear(schema, able))
        vector = able[0]
    for role, name in (("vectors", vector), ("ids", options.get("id"))):
        if name is not None and name not in names:
            raise Unreadable(
                "invalid-request",
                f"The table has no column `{name}` for {role}; it has {_listed(names)}.",
            )
    if vector not in able:
        raise Unreadable(
            "invalid-request",
            f"Column `{vector}` holds {schema.field(vector).type}; {VECTORS}.",
        )
    ids = options.get("id")
    if ids is not None and not _names_rows(schema.field(ids).type):
        raise Unreadable(
            "invalid-request",
            f"Column `{ids}` holds {schema.field(ids).type}; ids are strings or integers.",
        )
    if _is_permuted(schema.field(vector).type):
        raise Unreadable(
            "unsupported-format",
            f"Column `{vector}` holds tensors stored in another order than they are meant in; store "
            "them without `permutation`.",
        )
    wanted = options.get("columns")
    able = [name for name in names if _labels(schema.field(name).type)]
    if wanted is None:
        wanted = [name for name in able if name not in (vector, ids)]
    for name in wanted:
        if name not in able:
            kind = schema.field(name).type if name in names else "nothing"
            raise Unreadable(
                "invalid-request",
                f"Column `{name}` holds {kind}; labels are strings, numbers or booleans of "
                f"{_listed(names)}.",
            )
    asked = options.get("columns") is not None
    skipped = {
        name: f"holds {schema.field(name).type}, which is no label"
        for name in names[:MOST_COLUMNS]
        if not asked and name not in (vector, ids, *wanted)
    }
    chosen = Chosen(vector, ids, tuple(wanted), asked, skipped)
    if max(map(len, chosen.names)) > LONGEST_NAME:
        raise Unreadable(
            "invalid-request", f"A column has a name of over {LONGEST_NAME} characters; rename it."
        )
    return chosen


def _unclear(schema: pa.Schema, able: list[str]) -> str:
    """Which columns hold vectors where it is not one, and which look as if they did."""
    told = f"{len(able)} columns hold vectors ({_listed(able)}); "
    if able:
        return told + f"name one (`vector_column`). Columns: {_listed(schema.names)}."
    near = [
        f"`{one.name[:80]}` holds {str(one.type)[:80]}"
        for one in schema
        if pa.types.is_nested(_plain(one.type)) or pa.types.is_fixed_size_binary(_plain(one.type))
    ][:20]
    there = "; ".join(near) or f"the columns are {_listed(schema.names)}"
    return f"{told}{VECTORS}. There is no such column: {there}."


def _is_permuted(kind: pa.DataType) -> bool:
    if not isinstance(kind, pa.FixedShapeTensorType):
        return False
    return kind.permutation not in (None, list(range(len(kind.shape))))


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name[:80]}`" for name in names[:20]) or "none"


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type as it is stored."""
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _element(kind: pa.DataType) -> pa.DataType:
    return _plain(kind).value_type


def _stored_as(kind: pa.DataType) -> str:
    return str(np.dtype(_element(kind).to_pandas_dtype()).name)


def _holds_vectors(kind: pa.DataType) -> bool:
    kind = _plain(kind)
    return _is_list(kind) and (
        pa.types.is_floating(kind.value_type) or pa.types.is_int8(kind.value_type)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _names_rows(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return _is_text(kind) or bool(pa.types.is_integer(kind))


def _labels(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return (
        _is_text(kind)
        or bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))
        or bool(pa.types.is_floating(kind))
    )


def _pages(batches: Iterator[pa.RecordBatch], chosen: Chosen, *, check: bool) -> Iterator[Rows]:
    done = 0
    skipped = dict(chosen.skipped)
    for whole in batches:
        batch = whole.select(chosen.names)
        if check:  # a hostile file can say that values lie where there are none
            batch.validate(full=True)
        if batch.num_rows == 0:
            continue
        names = _ids(batch.column(chosen.id), done) if chosen.id else None
        vectors, there = _vectors(batch.column(chosen.vector), names, done)
        columns, unfit = _labelled(batch, chosen)
        skipped = skipped | unfit  # the one before may still be on its way
        chosen = replace(chosen, labels=tuple(columns))
        missing: list[str] = []
        if there is not None:
            places = range(batch.num_rows)
            known = names or [str(done + i) for i in places]
            missing = [known[i] for i in places if not there[i]]
            names = None if names is None else [names[i] for i in places if there[i]]
            columns = {
                name: [values[i] for i in places if there[i]] for name, values in columns.items()
            }
        yield Rows(vectors, names, columns, missing, skipped)
        done += batch.num_rows


def _labelled(batch: pa.RecordBatch, chosen: Chosen) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Labels by column, and which columns turn out to be none."""
    columns: dict[str, list[Any]] = {}
    unfit: dict[str, str] = {}
    for name in chosen.labels:
        values, reason = _values(batch.column(name))
        if reason is None:
            columns[name] = values
        elif chosen.asked:
            raise Unreadable("invalid-request", f"Column `{name}` {reason}; leave it out.")
        else:
            unfit[name] = reason
    return columns, unfit


def _vectors(column: pa.Array, names: list[str] | None, done: int) -> tuple[Any, Any]:
    """(rows of those that have a vector, which these are or None for all)."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    there = None
    if column.null_count:
        there = column.is_valid().to_pylist()
        column = column.drop_null()
    if pa.types.is_fixed_size_list(column.type):
        d = column.type.list_size
    else:
        lengths = pc.list_value_length(column)
        d = lengths[0].as_py() if len(column) else 0
        odd = pc.indices_nonzero(pc.not_equal(lengths, d)).to_pylist()
        if odd:
            places = there and [i for i, has in enumerate(there) if has]
            rows = [places[i] if places else i for i in odd[:10]]
            raise Unreadable(
                "shape-mismatch",
                f"Vectors differ in length: the first of a page has {d} numbers, {len(odd)} have "
                "another count.",
                tuple(names[i] if names else str(done + i) for i in rows),
            )
    flat = column.flatten()  # of this slice alone, whatever it was cut from
    if flat.null_count:
        raise Unreadable("invalid-request", f"{flat.null_count} numbers inside vectors are null.")
    return np.from_dlpack(flat).reshape(len(column), d), there


def _ids(column: pa.Array, done: int) -> list[str]:
    column = _undictionaried(column)
    values = column.to_pylist()
    if column.null_count:
        rows = tuple(str(done + i) for i, value in enumerate(values) if value is None)
        raise Unreadable("invalid-request", f"{len(rows)} rows have no id.", rows)
    return [str(value) for value in values]


def _undictionaried(column: pa.Array) -> pa.Array:
    """Values as they are: a dictionary may itself hold a null."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _values(column: pa.Array) -> tuple[list[Any], str | None]:
    """Labels, and what about some of them no label is; NaN is a missing one."""
    column = _undictionaried(column)
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(column.type):
        values = [None if v is None or math.isnan(v) else v for v in values]
        if any(v is not None and math.isinf(v) for v in values):
            return values, "holds infinity, which no label is"
    if pa.types.is_integer(column.type) and any(v and abs(v) > LARGEST_INTEGER for v in values):
        return values, "holds integers beyond 63 bits, which no label is"
    return values, None
