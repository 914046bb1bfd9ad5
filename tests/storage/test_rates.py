"""Buckets of requests, in memory and in Redis."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis

from service.storage.memory import MemoryRates
from service.storage.redis import RedisRates


@pytest.fixture(params=["memory", "redis"])
def rates(request: pytest.FixtureRequest) -> Any:
    """Both implementations."""
    if request.param == "memory":
        return MemoryRates()
    return RedisRates(request.getfixturevalue("redis"))


def test_a_minute_of_requests_may_come_at_once(rates: Any) -> None:
    """Then one more after each sixtieth of a minute over the rate; what is left is told."""
    taken = [rates.take("k", 30) for _ in range(31)]
    assert [one.granted for one in taken] == [True] * 30 + [False]
    assert [one.left for one in taken] == [*range(29, -1, -1), 0]
    assert taken[0].full_s == pytest.approx(2, abs=0.2)
    assert taken[0].next_s == 0
    assert taken[-1].full_s == pytest.approx(60, abs=0.5)
    assert taken[-1].next_s == pytest.approx(2, abs=0.2)


def test_a_bucket_fills_at_an_even_pace(rates: Any) -> None:
    """600 a minute are ten a second: after .35 s there are three, after more never over the full."""
    while rates.take("k", 600).granted:
        pass
    started = time.monotonic()
    time.sleep(0.35)
    granted = 0
    while rates.take("k", 600).granted:
        granted += 1
    spent = time.monotonic() - started
    assert 3 <= granted <= 10 * spent + 1


def test_buckets_are_apart(rates: Any) -> None:
    """One that is empty takes nothing from another."""
    while rates.take("a", 2).granted:
        pass
    assert rates.take("b", 2).left == 1


def test_many_at_once_get_no_more_than_there_is(rates: Any) -> None:
    """Sixteen threads on a bucket of fifty."""
    with ThreadPoolExecutor(16) as threads:
        taken = list(threads.map(lambda _: rates.take("k", 50).granted, range(200)))
    assert 50 <= sum(taken) <= 52


def test_memory_fills_by_its_clock() -> None:
    """Exactly: a quarter of a minute gives a quarter of the requests, a day no more than all."""
    now = 0.0
    rates = MemoryRates(lambda: now)
    while rates.take("k", 100).granted:
        pass
    now = 15.0
    assert sum(rates.take("k", 100).granted for _ in range(100)) == 25
    now = 86_400.0
    assert sum(rates.take("k", 100).granted for _ in range(200)) == 100


def test_a_full_bucket_takes_no_room(redis: Redis) -> None:
    """It is forgotten a second after it would be full again."""
    RedisRates(redis).take("k", 60_000)
    assert 0 < redis.pttl("assay:rate:k") <= 1_100
    RedisRates(redis).take("slow", 1)
    assert 60_000 < redis.pttl("assay:rate:slow") <= 61_000


def test_two_apis_share_a_bucket(redis: Redis, server: str) -> None:
    """The count is in Redis, not in a process."""
    from service.storage.redis import connect

    other: Callable[..., Any] = RedisRates(connect(server, retries=0)).take
    ours = RedisRates(redis).take
    granted = [take("k", 4).granted for take in (ours, other) for _ in range(3)]
    assert granted == [True] * 4 + [False] * 2
