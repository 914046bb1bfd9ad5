"""Every port in each of its implementations: memory, a folder of objects, a real server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from service.storage.memory import (
    MemoryDatasets,
    MemoryGates,
    MemoryJobs,
    MemoryQueue,
    MemoryReports,
)
from service.storage.objects import ObjectDatasets, ObjectReports
from service.storage.queue import RqQueue
from service.storage.redis import RedisGates, RedisJobs, connect
from workers import embedded

RETENTION_S = 3600


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of our own, as `assay serve` starts it."""
    folder = tmp_path_factory.mktemp("server")
    process = subprocess.Popen(embedded.command(folder))
    try:
        embedded.wait_until_ready(embedded.url(folder))
        yield embedded.url(folder)
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def redis(server: str) -> Iterator[Redis]:
    """A client of the server, which is empty."""
    client = connect(server, retries=3)
    client.flushall()
    yield client
    client.close()


@pytest.fixture(params=["memory", "objects"])
def datasets(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """Both homes of datasets."""
    return MemoryDatasets() if request.param == "memory" else ObjectDatasets(tmp_path / "store")


@pytest.fixture(params=["memory", "objects"])
def reports(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """Both homes of reports."""
    return MemoryReports() if request.param == "memory" else ObjectReports(tmp_path / "store")


@pytest.fixture(params=["memory", "redis"])
def jobs(request: pytest.FixtureRequest) -> Any:
    """Both homes of job records."""
    if request.param == "memory":
        return MemoryJobs()
    return RedisJobs(request.getfixturevalue("redis"), RETENTION_S)


@pytest.fixture(params=["memory", "redis"])
def gates(request: pytest.FixtureRequest) -> Any:
    """Both homes of gate runs."""
    if request.param == "memory":
        return MemoryGates()
    return RedisGates(request.getfixturevalue("redis"), RETENTION_S)


@pytest.fixture(params=["memory", "rq"])
def queue(request: pytest.FixtureRequest) -> Any:
    """Both queues."""
    if request.param == "memory":
        return MemoryQueue()
    return RqQueue(request.getfixturevalue("redis"), attempts=3)
