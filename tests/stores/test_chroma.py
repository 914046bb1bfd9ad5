"""What is particular to Chroma."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from service.errors import InvalidRequest
from tests.stores import servers
from tests.stores.loading import Chroma, Table, read


@pytest.fixture(scope="module")
def store() -> Iterator[Chroma]:
    with servers.chroma() as server, closing(Chroma(server.port)) as running:
        yield running


def test_a_cosine_collection_changes_values_a_little_and_says_so(store: Chroma, rows: Any) -> None:
    written = rows("debian_pairs/minilm_doc")[:500] * np.float32(3)
    store.load("cosine", Table(list(written)), space="cosine")
    found = read(store.connection, store.reference("cosine"))
    error = np.abs(found.vectors - written).max()
    assert 0 < error < 1e-6
    assert found.opened.about.lossy is True
    assert found.opened.about.normalises_on_write is False
    store.load("product", Table(list(written)), space="ip")
    exact = read(store.connection, store.reference("product"))
    assert exact.vectors.tobytes() == written.tobytes()
    assert exact.opened.about.lossy is False


def test_rows_come_in_the_order_of_insertion(store: Chroma, rows: Any) -> None:
    written = rows("debian_pairs/minilm_doc")[:4]
    made = store.client.post("collections", json={"name": "order"}).json()
    for name, vector in zip("dacb", written, strict=True):
        body = {"ids": [name], "embeddings": [vector.tolist()]}
        store.client.post(f"collections/{made['id']}/add", json=body).raise_for_status()
    found = read(store.connection, {**store.reference("order"), "page_rows": 3})
    assert found.ids == list("dacb")
    assert found.vectors.tobytes() == written.tobytes()


def test_texts_cannot_be_excluded_for_chroma_keeps_rows_without_one(store: Chroma) -> None:
    store.load("texts", Table([np.ones(384, "f4")], {"s": ["x"], "b": [1]}))
    asked = store.reference("texts")
    with pytest.raises(InvalidRequest, match="`in`"):
        read(store.connection, {**asked, "where": [{"column": "s", "op": "!=", "value": "y"}]})
    found = read(store.connection, {**asked, "where": [{"column": "b", "op": "!=", "value": 2}]})
    assert found.ids == ["000000"]


def test_counting_of_chosen_rows_goes_page_by_page(
    store: Chroma, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.sources.chroma.LISTED", 7)
    written = list(rows("debian_pairs/minilm_doc")[:40])
    store.load("counted", Table(written, {"n": list(range(40))}))
    where = [{"column": "n", "op": "<", "value": 30}]
    found = read(store.connection, {**store.reference("counted"), "where": where})
    assert found.opened.count == found.recounted == len(found.ids) == 30
