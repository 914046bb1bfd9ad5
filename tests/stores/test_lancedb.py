"""What is particular to LanceDB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from service.errors import DimensionMismatch, InvalidRequest
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
