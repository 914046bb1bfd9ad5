"""What is particular to Chroma."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from service.errors import InvalidRequest, SourceInconsistent
from service.sources.chroma import _Collection
from tests.stores import servers
from tests.stores.loading import Chroma, Table, opened, read


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


@pytest.mark.parametrize("at", ["listing", "reading"])
def test_a_record_that_goes_while_another_comes_loses_no_row_in_silence(
    at: str, store: Chroma, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = list(rows("debian_pairs/minilm_doc")[:40])
    name = f"moving_{at}"
    store.load(name, Table(written))
    collection = store.client.get(f"collections/{name}").json()["id"]

    def swap() -> None:
        store.client.post(f"collections/{collection}/delete", json={"ids": ["000003"]})
        body = {"ids": ["new"], "embeddings": [written[0].tolist()]}
        store.client.post(f"collections/{collection}/add", json=body).raise_for_status()

    plain, asked = _Collection.get, [0]

    def get(self: Any, chosen: Any, include: list[str], limit: int, offset: int) -> Any:
        answer = plain(self, chosen, include, limit, offset)
        if bool(include) is (at == "reading"):
            asked[0] += 1
            if asked[0] == 1:
                swap()
        return answer

    monkeypatch.setattr(_Collection, "get", get)
    monkeypatch.setattr("service.sources.chroma.LISTED", 10)
    with pytest.raises(SourceInconsistent, match="changed while it was read"):
        read(store.connection, {**store.reference(name), "page_rows": 10})


def test_a_record_written_again_after_the_reading_is_noticed(store: Chroma, rows: Any) -> None:
    written = list(rows("debian_pairs/minilm_doc")[:40])
    store.load("again", Table(written))
    collection = store.client.get("collections/again").json()["id"]
    with opened(store.connection, store.reference("again")) as source:
        assert sum(len(page) for page in source.pages) == 40
        assert source.recount() == 40
        store.client.post(f"collections/{collection}/delete", json={"ids": ["000003"]})
        body = {"ids": ["000003"], "embeddings": [written[0].tolist()]}
        store.client.post(f"collections/{collection}/add", json=body).raise_for_status()
        with pytest.raises(SourceInconsistent):
            source.recount()
