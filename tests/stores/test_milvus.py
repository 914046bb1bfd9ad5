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
