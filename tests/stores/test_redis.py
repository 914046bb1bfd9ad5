"""What is particular to Redis: keys without an order, bytes without a type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import redis

from service.errors import DimensionMismatch, MalformedPayload, PayloadTooLarge
from tests.stores import servers
from tests.stores.loading import SECRET, Redis, Table, opened, read


@pytest.fixture(scope="module")
def store() -> Iterator[Redis]:
    with servers.valkey(SECRET) as server, closing(Redis(server.port)) as running:
        yield running


def test_a_scan_that_repeats_keys_gives_each_row_once(
    store: Redis, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = rows("debian_pairs/minilm_doc")[:30]
    ids = store.load("again", Table(list(written)))
    scan = redis.Redis.scan_iter

    def repeating(self: redis.Redis, **asked: Any) -> Iterator[bytes]:
        for key in scan(self, **asked):
            yield from (key, key)

    monkeypatch.setattr(redis.Redis, "scan_iter", repeating)
    found = read(store.connection, store.reference("again"))
    assert found.ids == ids
    assert found.opened.count == found.recounted == 30
    assert found.vectors.tobytes() == written.tobytes()


def test_a_prefix_is_no_pattern_and_other_types_are_no_rows(store: Redis) -> None:
    one = np.ones(2, "f4").tobytes()
    store.client.hset("a*[b]?\\c:1", mapping={"embedding": one})
    store.client.hset("aXb-c:2", mapping={"embedding": one})
    store.client.hset("aXb]?\\c:3", mapping={"embedding": one})
    store.client.set("a*[b]?\\c:text", "no hash")
    assert read(store.connection, store.reference("a*[b]?\\c")).ids == ["1"]


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8"])
def test_bytes_are_read_as_the_type_that_is_named(store: Redis, dtype: str) -> None:
    values = np.arange(6).reshape(2, 3).astype(dtype)
    store.load(dtype, Table(list(values)))
    found = read(store.connection, {**store.reference(dtype), "dtype": dtype})
    assert found.vectors.dtype == np.dtype(dtype)
    assert found.vectors.tobytes() == values.tobytes()


def test_torn_and_mixed_vectors_are_named(store: Redis) -> None:
    store.client.hset("torn:a", mapping={"embedding": b"12345678"})
    store.client.hset("torn:b", mapping={"embedding": b"123"})
    with pytest.raises(MalformedPayload) as torn:
        read(store.connection, store.reference("torn"))
    assert torn.value.faults[0].rows == ["b"]
    store.client.hset("torn:b", mapping={"embedding": b"1234"})
    with pytest.raises(DimensionMismatch) as mixed:
        read(store.connection, {**store.reference("torn"), "page_rows": 1})
    assert mixed.value.faults[0].rows == ["b"]


def test_a_row_that_vanishes_meanwhile_is_short_of_the_count_not_missing(
    store: Redis, rows: Any
) -> None:
    store.load("going", Table(list(rows("debian_pairs/minilm_doc")[:20])))
    with opened(store.connection, {**store.reference("going"), "page_rows": 5}) as source:
        pages = [next(source.pages)]
        store.client.delete("going:000019")
        pages += source.pages
        assert source.count == 20
        assert source.recount() == 19
    assert sum(map(len, pages)) == 19
    assert [one for page in pages for one in page.missing] == []


def test_keys_that_do_not_fit_into_memory_are_refused(
    store: Redis, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.sources.redis.KEY_BYTES", 1000)
    store.load("many", Table(list(rows("debian_pairs/minilm_doc")[:20])))
    with pytest.raises(PayloadTooLarge, match="longer prefix"):
        read(store.connection, store.reference("many"))


def test_keys_that_are_no_text_are_refused(store: Redis) -> None:
    store.client.hset(b"raw:\xff", mapping={"embedding": b"1234"})
    with pytest.raises(MalformedPayload, match="UTF-8"):
        read(store.connection, store.reference("raw"))


def test_a_server_is_not_asked_for_notices_that_would_send_the_client_elsewhere(
    store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    send = redis.Connection.send_command

    def told(self: redis.Connection, *words: Any, **options: Any) -> Any:
        sent.append(" ".join(map(str, words[:2])).upper())
        return send(self, *words, **options)

    monkeypatch.setattr(redis.Connection, "send_command", told)
    assert read(store.connection, store.reference("none")).ids == []
    assert sent
    assert not [one for one in sent if "MAINT_NOTIFICATIONS" in one]


def test_vectors_of_several_lengths_point_to_the_prefix(store: Redis) -> None:
    """Redis has no `where`."""
    for at, d in enumerate((2, 2, 3)):
        store.client.hset(f"mixed:{at}", mapping={"embedding": np.ones(d, "f4").tobytes()})
    with pytest.raises(DimensionMismatch) as caught:
        read(store.connection, store.reference("mixed"))
    assert "`prefix`" in caught.value.faults[0].message
    assert "where" not in caught.value.faults[0].message
