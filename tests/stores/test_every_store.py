"""What holds for every store: the rows that were written come back, or a problem does."""

from __future__ import annotations

import logging
import operator
import traceback
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service.errors import AssayError, InvalidRequest, SourceUnreachable
from tests.stores import servers
from tests.stores.loading import HOSTILE, SECRET, Table, opened, read

KINDS = ["pgvector", "qdrant", "chroma", "milvus", "lancedb", "redis"]
FILTERED = [kind for kind in KINDS if kind != "redis"]
GAPS = ["pgvector", "qdrant", "lancedb", "redis"]
"""Kinds where a row can be without a vector."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page_rows", [700, 4096])
def test_vectors_come_back_bit_for_bit_in_the_order_of_keys(
    kind: str, page_rows: int, loaded: Any, table: Table
) -> None:
    store, ids = loaded[kind]
    reference = {
        **store.reference("docs"),
        "columns": ["section", "size"],
        "page_rows": page_rows,
    }
    found = read(store.connection, reference)
    expected = np.stack([np.asarray(vector) for vector in table.vectors])
    assert found.ids == ids
    assert found.vectors.dtype == np.float32
    assert found.vectors.tobytes() == expected.tobytes()
    assert max(found.pages) <= page_rows
    assert found.opened.count == found.recounted == len(ids)
    assert found.missing == []
    assert found.opened.about.stored_as == "float32"
    assert found.opened.about.normalises_on_write is False
    assert found.opened.about.lossy is False
    assert found.columns["section"] == table.cells["section"]
    size = table.cells["size"]
    assert found.columns["size"] == (
        [None if value is None else str(value) for value in size] if kind == "redis" else size
    )


@pytest.mark.parametrize("kind", FILTERED)
@pytest.mark.parametrize(
    ("op", "compare"),
    [
        ("=", operator.eq),
        ("!=", operator.ne),
        ("<", operator.lt),
        ("<=", operator.le),
        (">", operator.gt),
        (">=", operator.ge),
        ("in", lambda value, several: value in several),
    ],
)
def test_conditions_choose_the_rows_python_chooses_and_never_those_without_a_value(
    kind: str, op: str, compare: Any, loaded: Any, table: Table
) -> None:
    store, ids = loaded[kind]
    value: Any = [7, 37, 74] if op == "in" else 37
    found = read(
        store.connection,
        {**store.reference("docs"), "where": [{"column": "size", "op": op, "value": value}]},
    )
    expected = [
        name
        for name, size in zip(ids, table.cells["size"], strict=True)
        if size is not None and compare(size, value)
    ]
    assert 0 < len(expected) < len(ids)
    assert found.ids == expected
    assert found.opened.count == found.recounted == len(expected)


@pytest.mark.parametrize("kind", FILTERED)
def test_hostile_values_are_values(kind: str, loaded: Any, table: Table) -> None:
    store, ids = loaded[kind]
    where = [
        {"column": "section", "op": "in", "value": [HOSTILE, "' OR 1=1 --", '") or ("" == "']},
        {"column": "size", "op": ">=", "value": 50},
    ]
    found = read(store.connection, {**store.reference("docs"), "where": where})
    assert found.ids == [
        name
        for name, section, size in zip(
            ids, table.cells["section"], table.cells["size"], strict=True
        )
        if section == HOSTILE and size is not None and int(size) >= 50
    ]
    for hostile in ("' OR 1=1 --", '" or 1 == 1 or section == "', "\\", "a\\' or true --"):
        only = [{"column": "section", "op": "=", "value": hostile}]
        assert read(store.connection, {**store.reference("docs"), "where": only}).ids == []


@pytest.mark.parametrize("kind", FILTERED)
def test_none_of_no_values_is_chosen(kind: str, loaded: Any) -> None:
    store, _ = loaded[kind]
    none = [{"column": "size", "op": "in", "value": []}]
    found = read(store.connection, {**store.reference("docs"), "where": none})
    assert (found.ids, found.opened.count, found.recounted) == ([], 0, 0)


@pytest.mark.parametrize("kind", ["pgvector", "milvus", "lancedb"])
def test_a_value_of_another_type_than_its_column_is_the_callers_error(
    kind: str, loaded: Any
) -> None:
    store, _ = loaded[kind]
    where = [{"column": "size", "op": "=", "value": "x"}]
    with pytest.raises(InvalidRequest, match="where"):
        read(store.connection, {**store.reference("docs"), "where": where})


@pytest.mark.parametrize("kind", ["qdrant", "chroma"])
def test_without_a_schema_a_value_of_another_type_chooses_nothing(kind: str, loaded: Any) -> None:
    store, _ = loaded[kind]
    where = [{"column": "size", "op": "=", "value": "x"}]
    assert read(store.connection, {**store.reference("docs"), "where": where}).ids == []
    with pytest.raises(InvalidRequest, match="numbers alone"):
        read(
            store.connection,
            {**store.reference("docs"), "where": [{"column": "size", "op": "<", "value": "x"}]},
        )


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_store_gives_no_rows(kind: str, stores: Any) -> None:
    store = stores[kind]
    store.load("empty", Table([]))
    found = read(store.connection, store.reference("empty"))
    assert (found.ids, found.missing, found.opened.count, found.recounted) == ([], [], 0, 0)


@pytest.mark.parametrize("kind", GAPS)
def test_rows_without_a_vector_are_named_not_read(kind: str, stores: Any, table: Table) -> None:
    store = stores[kind]
    vectors = [None if i < 4 or i == 9 else vector for i, vector in enumerate(table.vectors[:12])]
    labels = {"n": list(range(12))}
    ids = store.load("gaps", Table(vectors, labels))
    found = read(store.connection, {**store.reference("gaps"), "columns": ["n"], "page_rows": 4})
    assert found.missing == [*ids[:4], ids[9]]
    assert found.ids == [*ids[4:9], *ids[10:]]
    assert [int(n) for n in found.columns["n"]] == [4, 5, 6, 7, 8, 10, 11]
    assert found.vectors.tobytes() == np.stack([v for v in vectors if v is not None]).tobytes()
    assert found.opened.count == 12


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "redis"])
@pytest.mark.parametrize("name", ["nothing", "x'; DROP TABLE docs; --", '../"docs', "päge x"])
def test_a_collection_that_is_not_there_is_named(kind: str, name: str, loaded: Any) -> None:
    store, _ = loaded[kind]
    with pytest.raises(InvalidRequest) as caught:
        read(store.connection, store.reference(name))
    assert name in caught.value.detail
    assert len(read(store.connection, store.reference("docs")).ids) == 1996


@pytest.mark.parametrize("kind", ["pgvector", "milvus", "lancedb"])
@pytest.mark.parametrize("name", ["nothing", 'size" FROM docs; --', "size or 1 == 1"])
def test_a_column_that_is_not_there_is_named(kind: str, name: str, loaded: Any) -> None:
    store, _ = loaded[kind]
    for asked in (
        {"columns": [name]},
        {"vector": name},
        {"where": [{"column": name, "op": "=", "value": 1}]},
    ):
        with pytest.raises(InvalidRequest) as caught:
            read(store.connection, {**store.reference("docs"), **asked})
        assert name in caught.value.detail


@pytest.mark.parametrize("kind", ["qdrant", "chroma"])
@pytest.mark.parametrize("name", ["nothing; --", "a.b[]", "' or 1"])
def test_a_key_that_no_row_has_is_missing_everywhere(kind: str, name: str, loaded: Any) -> None:
    store, ids = loaded[kind]
    found = read(store.connection, {**store.reference("docs"), "columns": [name]})
    assert found.columns[name] == [None] * len(ids)
    where = [{"column": name, "op": "=", "value": 1}]
    assert read(store.connection, {**store.reference("docs"), "where": where}).ids == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_does_not_answer_is_unreachable_and_no_secret_is_told(
    kind: str, stores: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store = stores[kind]
    if store.connection.parts.scheme == "file":
        gone = replace(store.connection, url="file:///nonexistent/store")
    else:
        url = store.connection.url.replace(
            f":{store.connection.parts.port}", f":{servers.free_port()}"
        )
        gone = replace(store.connection, url=url, timeout_s=3)
    with pytest.raises(SourceUnreachable) as caught:
        read(gone, store.reference("docs"))
    assert "prod" in caught.value.detail
    assert_silent(caught.value, caplog.text, repr(gone))


@pytest.mark.parametrize("kind", ["pgvector", "redis"])
def test_a_wrong_password_is_not_told(
    kind: str, stores: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = replace(stores[kind].connection, password=SECRET + "x")
    with pytest.raises(AssayError) as caught:
        read(wrong, stores[kind].reference("docs"))
    assert caught.value.code in ("source-unreachable", "source-denied")
    assert_silent(caught.value, caplog.text)


@pytest.mark.parametrize("kind", KINDS)
def test_reading_and_being_refused_log_no_secret(
    kind: str, loaded: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store, _ = loaded[kind]
    found = read(store.connection, store.reference("docs"))
    assert SECRET not in repr(found.opened)
    if kind != "redis":
        with pytest.raises(InvalidRequest) as caught:
            read(store.connection, store.reference("nothing"))
        assert_silent(caught.value, caplog.text)
    assert SECRET not in caplog.text


def test_a_private_address_needs_the_operators_word(stores: Any) -> None:
    for kind in ("pgvector", "chroma", "milvus", "redis"):
        public = replace(stores[kind].connection, private=False)
        with pytest.raises(AssayError) as caught:
            read(public, stores[kind].reference("docs"))
        assert caught.value.code == "source-denied"


KILLED = {"chroma": servers.chroma, "milvus": servers.milvus, "redis": servers.valkey}


@pytest.mark.parametrize("kind", KILLED)
def test_a_server_killed_between_pages_ends_in_a_problem_not_in_fewer_rows(
    kind: str, stores: Any, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = (SECRET,) if kind == "redis" else ()
    with (
        KILLED[kind](*arguments) as server,  # type: ignore[operator]
        closing(type(stores[kind])(server.port)) as store,
    ):
        store.load("docs", Table(table.vectors[:600]))
        connection = replace(store.connection, timeout_s=3)
        with opened(connection, {**store.reference("docs"), "page_rows": 100}) as source:
            assert len(next(source.pages)) == 100
            server.kill()
            with pytest.raises(SourceUnreachable) as caught:
                list(source.pages)
            with pytest.raises(SourceUnreachable):
                source.recount()
    assert_silent(caught.value, caplog.text)


def assert_silent(error: AssayError, *texts: str) -> None:
    told = ["".join(traceback.format_exception(error)), repr(error), str(error), error.detail]
    told += [fault.model_dump_json() for fault in error.faults]
    for text in [*told, *texts]:
        assert SECRET not in text
        assert SECRET.split(":")[1][:6] not in text
