"""What a service is made of: one queue per worker process, cores divided among a pool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from service.settings import Settings
from workers import stack


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of a machine with twelve cores and a server of its own."""
    monkeypatch.setattr(stack, "cores", lambda: 12)
    read = Settings.read({"ASSAY_HOME": str(tmp_path), "REDIS_URL": "redis://nowhere"})
    return replace(read, threads=12)


def pools(settings: Settings, workers: int, shard_workers: int) -> list[tuple[str, str, str]]:
    """Name, last word of the command, and threads of each child."""
    children = stack.assemble(settings, workers, shard_workers).supervisor.children
    assert all(child.env["OMP_NUM_THREADS"] == child.env["ASSAY_THREADS"] for child in children)
    return [(child.name, child.command[-1], child.env["ASSAY_THREADS"]) for child in children]


def test_each_worker_has_one_queue_and_its_share_of_the_cores(settings: Settings) -> None:
    """Each pool may use the whole machine."""
    assert pools(settings, 2, 4) == [
        ("jobs-worker-1", "jobs", "6"),
        ("jobs-worker-2", "jobs", "6"),
        ("shards-worker-1", "shards", "3"),
        ("shards-worker-2", "shards", "3"),
        ("shards-worker-3", "shards", "3"),
        ("shards-worker-4", "shards", "3"),
    ]


def test_more_workers_than_cores_have_a_thread_each(settings: Settings) -> None:
    """And a machine of shard workers has no others."""
    assert pools(settings, 0, 13) == [(f"shards-worker-{i}", "shards", "1") for i in range(1, 14)]


def test_a_number_of_threads_that_was_set_is_kept(settings: Settings) -> None:
    """For every worker."""
    assert {threads for _, _, threads in pools(replace(settings, threads=5), 3, 3)} == {"5"}
