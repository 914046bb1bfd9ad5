"""Settings: every variable that is documented is read, and wrong values are refused at start."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from service import settings
from service.errors import InvalidRequest
from service.settings import Settings

NUMBERS = [
    "ASSAY_THREADS", "ASSAY_JOB_DEADLINE_S", "ASSAY_JOB_ATTEMPTS", "ASSAY_JOB_RETENTION_S",
    "ASSAY_QUEUE_DEPTH", "ASSAY_MAX_BODY_BYTES", "ASSAY_MAX_ROWS", "ASSAY_MAX_DIMENSIONS",
    "ASSAY_UPLOADS_PER_MINUTE", "ASSAY_SUBMITS_PER_MINUTE", "ASSAY_POLLS_PER_MINUTE",
    "ASSAY_PROJECT_JOBS", "ASSAY_PROJECT_BYTES",
    "ASSAY_DATASET_RETENTION_S",
]  # fmt: skip


def test_an_empty_environment_gives_the_documented_defaults() -> None:
    """The docstring's table, value by value."""
    found = Settings.read({})
    home = Path.home() / ".assay"
    assert (found.home, found.store, found.redis_url) == (home, home / "store", None)
    assert (found.api_keys_file, found.cors_origins) == (None, ())
    assert (found.deadline_s, found.attempts, found.retention_s) == (3600, 3, 2_592_000)
    assert (found.queue_depth, found.log_level) == (10_000, "info")
    assert found.limits.body_bytes == 8_589_934_592
    assert (found.limits.rows, found.limits.dimensions) == (100_000_000, 4096)
    quotas = found.quotas
    assert (quotas.uploads_per_minute, quotas.submits_per_minute) == (1200, 6000)
    assert quotas.polls_per_minute == 30_000
    assert (quotas.project_jobs, quotas.project_bytes) == (5000, 274_877_906_944)
    assert found.threads == len(os.sched_getaffinity(0))


def test_every_documented_variable_is_read(tmp_path: Path) -> None:
    """Each with a value of its own; none is left over, none is undocumented."""
    (tmp_path / "c").write_text('{"a": {"url": "s3://a"}, "b": {"url": "s3://b"}}')
    env = {
        "ASSAY_CONNECTIONS_FILE": str(tmp_path / "c"),
        "ASSAY_CONNECTIONS": '{"b": {"url": "s3://of-the-text"}}',
        "REDIS_URL": "redis://x:1", "ASSAY_HOME": str(tmp_path), "ASSAY_STORE": str(tmp_path / "s"),
        "ASSAY_API_KEYS_FILE": str(tmp_path / "k"), "ASSAY_LOG_LEVEL": "debug",
        "ASSAY_CORS_ORIGINS": "https://a.example,http://localhost:3000",
        **{name: str(11 + i) for i, name in enumerate(NUMBERS)},
    }  # fmt: skip
    found = Settings.read(env)
    assert (found.redis_url, found.home, found.store, found.api_keys_file, found.log_level) == (
        "redis://x:1", tmp_path, tmp_path / "s", tmp_path / "k", "debug",
    )  # fmt: skip
    assert found.cors_origins == ("https://a.example", "http://localhost:3000")
    assert {name: one.url for name, one in found.connections.items()} == {
        "a": "s3://a", "b": "s3://of-the-text",
    }  # fmt: skip
    assert [
        found.threads, found.deadline_s, found.attempts, found.retention_s, found.queue_depth,
        found.limits.body_bytes, found.limits.rows, found.limits.dimensions,
        found.quotas.uploads_per_minute, found.quotas.submits_per_minute,
        found.quotas.polls_per_minute, found.quotas.project_jobs, found.quotas.project_bytes,
        found.quotas.dataset_retention_s,
    ] == list(range(11, 25))  # fmt: skip
    documented = set(re.findall(r"^    ([A-Z_]+) ", settings.__doc__ or "", re.MULTILINE))
    assert documented == set(env)


def test_the_store_lies_under_home_unless_named(tmp_path: Path) -> None:
    """And relative paths become absolute, so that a worker elsewhere finds them."""
    assert Settings.read({"ASSAY_HOME": str(tmp_path)}).store == tmp_path / "store"
    found = Settings.read({"ASSAY_HOME": "here", "ASSAY_STORE": "~/there"})
    assert found.home == Path.cwd() / "here"
    assert found.store == Path.home() / "there"


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "1e3", "ten", " 5", "5 "])
def test_a_number_is_a_whole_number_of_at_least_one(name: str, value: str) -> None:
    """The message names the variable and what it holds."""
    with pytest.raises(InvalidRequest, match=f"{name} must be a whole number.*`{value}`"):
        Settings.read({name: value})


def test_an_empty_variable_is_an_absent_one() -> None:
    """As compose files pass them."""
    names = [*NUMBERS, "REDIS_URL", "ASSAY_HOME", "ASSAY_STORE", "ASSAY_API_KEYS_FILE"]
    assert Settings.read(dict.fromkeys(names, "")) == Settings.read({})


def test_a_file_of_connections_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "connections.json"
    with pytest.raises(InvalidRequest, match=f"`{file}`, cannot be read: no such file"):
        Settings.read({"ASSAY_CONNECTIONS_FILE": str(file)})
    file.write_bytes(b"\xff")
    with pytest.raises(InvalidRequest, match=f"`{file}`, cannot be read: it is not UTF-8"):
        Settings.read({"ASSAY_CONNECTIONS_FILE": str(file)})


def test_services_need_a_redis(tmp_path: Path) -> None:
    """The message says what starts one."""
    from service.wiring import build

    with pytest.raises(InvalidRequest, match="assay serve"):
        build(Settings.read({"ASSAY_HOME": str(tmp_path)}))
