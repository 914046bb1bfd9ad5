"""Every port in each of its implementations: memory, a folder of objects, a real server."""

from __future__ import annotations

from typing import Any

import pytest

from service.storage.memory import MemoryGates, MemoryJobs, MemoryQueue
from service.storage.memory_objects import (
    MemoryBaselines,
    MemoryDatasets,
    MemoryParts,
    MemoryReports,
)
from service.storage.object_baselines import ObjectBaselines
from service.storage.object_reports import ObjectParts, ObjectReports
from service.storage.objects import ObjectDatasets
from service.storage.queue import RqQueue
from service.storage.redis import RedisGates, RedisJobs

RETENTION_S = 3600


@pytest.fixture(params=["memory", "objects"])
def datasets(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """Both homes of datasets."""
    return MemoryDatasets() if request.param == "memory" else ObjectDatasets(tmp_path / "store")


@pytest.fixture(params=["memory", "objects"])
def reports(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """Both homes of reports."""
    return MemoryReports() if request.param == "memory" else ObjectReports(tmp_path / "store")


@pytest.fixture(params=["memory", "objects"])
def baselines(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """Both homes of baselines."""
    return MemoryBaselines() if request.param == "memory" else ObjectBaselines(tmp_path / "store")


@pytest.fixture(params=["memory", "objects"])
def parts(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """Both homes of parts."""
    return MemoryParts() if request.param == "memory" else ObjectParts(tmp_path / "store")


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
