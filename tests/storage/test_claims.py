"""Idempotency keys, in memory and in Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from service.errors import IdempotencyConflict, IdempotencyInFlight
from service.storage.memory import MemoryClaims
from service.storage.redis import RedisClaims

BODY, OTHER = "a" * 64, "b" * 64
THREADS = 8


@pytest.fixture(params=["memory", "redis"])
def claims(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Both implementations, with their times in seconds."""
    if request.param == "memory":
        return MemoryClaims
    redis = request.getfixturevalue("redis")
    return lambda **times: RedisClaims(redis, **times)


def test_a_key_names_the_same_resource_as_long_as_it_is_kept(claims: Any) -> None:
    """The id that came with the first request, whatever later ones bring."""
    kept = claims()
    assert kept.claim("k", BODY, "job_1", "x") == "job_1"
    kept.release("k", "x", forget=False)
    assert kept.claim("k", BODY, "job_2", "y") == "job_1"
    assert kept.claim("other", BODY, "job_3", "z") == "job_3"


def test_another_body_is_a_conflict_whether_or_not_the_key_is_held(claims: Any) -> None:
    """A conflict will not go away by waiting, so it is said first."""
    kept = claims()
    kept.claim("k", BODY, "job_1", "x")
    for _ in range(2):
        with pytest.raises(IdempotencyConflict):
            kept.claim("k", OTHER, "job_2", "y")
        kept.release("k", "x", forget=False)
    assert kept.claim("k", BODY, "job_2", "y") == "job_1"


def test_a_held_key_is_in_flight_until_its_holder_lets_go(claims: Any) -> None:
    """A stranger cannot let go of it."""
    kept = claims()
    kept.claim("k", BODY, "job_1", "x")
    kept.release("k", "stranger", forget=True)
    with pytest.raises(IdempotencyInFlight):
        kept.claim("k", BODY, "job_2", "y")
    kept.release("k", "x", forget=False)
    assert kept.claim("k", BODY, "job_2", "y") == "job_1"


def test_a_forgotten_key_is_free_for_any_body(claims: Any) -> None:
    """As after a refusal, which created nothing."""
    kept = claims()
    kept.claim("k", BODY, "job_1", "x")
    kept.release("k", "x", forget=True)
    assert kept.claim("k", OTHER, "job_2", "y") == "job_2"


def test_a_dead_holder_loses_its_hold_and_not_the_binding(claims: Any) -> None:
    """Nobody lets go of a key for a process that was killed; it comes back late at worst."""
    kept = claims(held_s=0.7)
    kept.claim("k", BODY, "job_1", "dead")
    time.sleep(0.8)
    assert kept.claim("k", BODY, "job_2", "y") == "job_1"
    kept.release("k", "dead", forget=True)
    with pytest.raises(IdempotencyInFlight):
        kept.claim("k", BODY, "job_3", "z")


def test_a_key_is_forgotten_after_its_time(claims: Any) -> None:
    """Then it may stand for something else."""
    kept = claims(kept_s=0.1)
    kept.claim("k", BODY, "job_1", "x")
    kept.release("k", "x", forget=False)
    time.sleep(0.15)
    assert kept.claim("k", OTHER, "job_2", "y") == "job_2"


def test_of_many_at_once_one_gets_the_key(claims: Any) -> None:
    """Eight threads: one id, seven told to wait; all get that id afterwards."""
    kept = claims()
    ready = threading.Barrier(THREADS)
    got: list[Any] = [None] * THREADS

    def run(i: int) -> None:
        ready.wait(10)
        try:
            got[i] = kept.claim("k", BODY, f"job_{i}", f"holder {i}")
        except IdempotencyInFlight:
            got[i] = None

    threads = [threading.Thread(target=run, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [one for one in got if one is not None]
    kept.release("k", f"holder {winner.removeprefix('job_')}", forget=False)
    assert kept.claim("k", BODY, "job_x", "late") == winner


def test_the_standing_times_are_a_day_and_a_few_seconds(redis: Any) -> None:
    """As the contract says, by the server's own clock."""
    RedisClaims(redis).claim("k", BODY, "job_1", "x")
    assert 86_000_000 < redis.pttl("assay:key:k") <= 86_400_000
    assert 5_000 < redis.pttl("assay:key:k:held") <= 15_000
