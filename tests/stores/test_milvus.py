"""What is particular to Milvus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from pymilvus import DataType, MilvusClient

from service.errors import InvalidRequest
from tests.stores import servers
from tests.stores.loading import Milvus, read


@pytest.fixture(scope="module")
def store() -> Iterator[Milvus]:
    with servers.milvus() as server:
        yield Milvus(server.port)


def test_keys_that_are_numbers_order_as_numbers(store: Milvus) -> None:
    with closing(MilvusClient(store.connection.url)) as client:
        client.create_collection("numbers", dimension=2, auto_id=False)
        client.insert("numbers", [{"id": i, "vector": [i, 0.5]} for i in (100, 20, 3)])
    found = read(store.connection, {"kind": "milvus", "collection": "numbers", "vector": "vector"})
    assert found.ids == ["3", "20", "100"]
    assert found.vectors.tolist() == [[3, 0.5], [20, 0.5], [100, 0.5]]
    assert found.opened.about.id == "id"


def test_other_vectors_are_refused_by_name(store: Milvus) -> None:
    with closing(MilvusClient(store.connection.url)) as client:
        schema = client.create_schema(auto_id=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("dense", DataType.FLOAT_VECTOR, dim=2)
        schema.add_field("sparse", DataType.SPARSE_FLOAT_VECTOR)
        index = client.prepare_index_params()
        index.add_index("dense", index_type="FLAT", metric_type="L2")
        index.add_index("sparse", index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
        client.create_collection("sparse", schema=schema, index_params=index)
    with pytest.raises(InvalidRequest, match="SPARSE_FLOAT_VECTOR"):
        read(store.connection, {"kind": "milvus", "collection": "sparse", "vector": "sparse"})


AWKWARD = [
    'a"b', "a\\", 'a\\"', "a'", "a' or ''=='", "é", "e\u0301", "z\n", "r\r\n", "{x}", "%", "a b", "",
    "C:\\data\\new", "C:\\data\\tab", "\U0001f600", "\uffee", "tab\t", "\x01",
    'b" or id != "', 'a" or id < "z', "c",
]  # fmt: skip


@pytest.mark.parametrize("page_rows", [1, 2, 5, 100])
def test_any_id_may_end_a_page(page_rows: int, store: Milvus) -> None:
    name = f"awkward_{page_rows}"
    store.load_ids(name, AWKWARD)
    reference = {**store.reference(name), "page_rows": page_rows}
    found = read(store.connection, reference)
    assert found.ids == sorted(AWKWARD)
    assert found.vectors[:, 1].tolist() == [AWKWARD.index(one) for one in found.ids]
    only = [{"column": "id", "op": "in", "value": AWKWARD[::2]}]
    assert read(store.connection, {**reference, "where": only}).ids == sorted(AWKWARD[::2])
    for one in AWKWARD:
        same = [{"column": "id", "op": "=", "value": one}]
        assert read(store.connection, {**reference, "where": same}).ids == [one]


def test_a_released_collection_is_to_be_loaded(store: Milvus) -> None:
    store.load_ids("released", ["a"])
    with closing(MilvusClient(store.connection.url)) as client:
        client.release_collection("released")
    with pytest.raises(InvalidRequest, match="load_collection"):
        read(store.connection, store.reference("released"))
