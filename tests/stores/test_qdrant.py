"""What is particular to Qdrant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from service.errors import InvalidRequest, SourceDenied
from tests.stores import servers
from tests.stores.loading import Qdrant, Table, read


@pytest.fixture(scope="module")
def store() -> Iterator[Qdrant]:
    with servers.folder() as home:
        yield Qdrant(home / "store")


def test_a_local_cosine_collection_keeps_lengths(store: Qdrant, rows: Any) -> None:
    written = rows("debian_pairs/minilm_doc")[:50] * np.float32(3)
    store.load("cosine", Table(list(written)), distance="Cosine")
    found = read(store.connection, store.reference("cosine"))
    assert found.opened.about.normalises_on_write is False
    assert found.vectors.tobytes() == written.tobytes()


def test_ids_may_be_uuids_and_names_of_vectors_are_told(store: Qdrant) -> None:
    ids = [f"00000000-0000-0000-0000-00000000000{i}" for i in range(3)]
    client = QdrantClient(path=str(store.home))
    size = models.VectorParams(size=2, distance=models.Distance.DOT)
    client.create_collection(
        "named",
        vectors_config={"a": size, "b": size},
        sparse_vectors_config={"words": models.SparseVectorParams()},
    )
    client.create_collection("unnamed", vectors_config=size)
    for number, name in enumerate(ids[::-1]):
        client.upsert("named", [models.PointStruct(id=name, vector={"b": [number, 1]})])
        client.upsert("unnamed", [models.PointStruct(id=name, vector=[number, 1])])
    client.close()
    asked = {"kind": "qdrant", "collection": "named"}
    found = read(store.connection, {**asked, "vector": "b"})
    assert found.ids == ids
    assert found.vectors.tolist() == [[2, 1], [1, 1], [0, 1]]
    assert read(store.connection, {**asked, "vector": "a"}).missing == ids
    assert read(store.connection, {"kind": "qdrant", "collection": "unnamed"}).ids == ids
    with pytest.raises(InvalidRequest, match="`a`, `b`"):
        read(store.connection, asked)
    with pytest.raises(InvalidRequest, match="sparse"):
        read(store.connection, {**asked, "vector": "words"})
    with pytest.raises(InvalidRequest, match="no name"):
        read(store.connection, {"kind": "qdrant", "collection": "unnamed", "vector": "a"})


def test_labels_that_are_no_scalars_are_refused(store: Qdrant) -> None:
    client = QdrantClient(path=str(store.home))
    client.create_collection(
        "lists", vectors_config=models.VectorParams(size=1, distance=models.Distance.DOT)
    )
    client.upsert("lists", [models.PointStruct(id=1, vector=[1.0], payload={"tags": ["a"]})])
    client.close()
    asked = {"kind": "qdrant", "collection": "lists"}
    assert read(store.connection, asked).ids == ["1"]
    with pytest.raises(InvalidRequest, match="`tags` holds list values"):
        read(store.connection, {**asked, "columns": ["tags"]})


def test_a_quotation_mark_in_a_key_is_refused(store: Qdrant) -> None:
    with pytest.raises(InvalidRequest, match="quotation mark"):
        read(store.connection, {"kind": "qdrant", "collection": "lists", "columns": ['a"b']})


def test_a_key_that_fits_into_no_header_is_refused_without_telling_it(store: Qdrant) -> None:
    remote = replace(store.connection, url="http://127.0.0.1:1")
    with pytest.raises(SourceDenied) as caught:
        read(remote, {"kind": "qdrant", "collection": "lists"})
    assert "päss" not in repr(caught.value)
