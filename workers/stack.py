"""The whole service on one machine: embedded server, API, workers, sweeper."""

from __future__ import annotations

import fcntl
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import structlog
from redis import Redis
from redis.exceptions import RedisError

from service.errors import InvalidRequest
from service.job import Pool
from service.settings import Settings, cores
from service.storage.queue import RqQueue
from service.storage.redis import RedisJobs, connect
from service.wiring import OUTAGES, build
from workers import embedded
from workers.supervisor import Child, Supervisor
from workers.sweeper import EVERY_S, Sweeper

SWEEPER_RETRIES = 0
SWEEPER_TIMEOUT_S = 3.0
"""A sweep is made again soon; meanwhile nothing may keep processes from being restarted."""
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
log = structlog.get_logger()


@dataclass
class Stack:
    """Processes of one service and the lock that makes them the only ones on their folder."""

    supervisor: Supervisor
    redis_url: str
    lock: IO[bytes] | None


def assemble(
    settings: Settings,
    workers: int,
    shard_workers: int = 0,
    api: tuple[str, int] | None = None,
    *,
    warm: bool = False,
) -> Stack:
    """
    Children for workers of both pools, an API at `api` (host, port), and a server without REDIS_URL;
    with `warm` one more that compiles the kernels and ends.

    Raises InvalidRequest where the API would be public without keys, or the folder is in use.
    """
    if api is not None and api[0] not in LOOPBACK and settings.api_keys_file is None:
        raise InvalidRequest(
            f"Binding {api[0]} without API keys is refused. Create a key with `assay keys create` and "
            "set ASSAY_API_KEYS_FILE."
        )
    if settings.api_keys_file is not None and not settings.api_keys_file.is_file():
        raise InvalidRequest(
            f"ASSAY_API_KEYS_FILE names {settings.api_keys_file}, which is not there; create a key "
            "with `assay keys create`."
        )
    if api is not None:
        _refuse_taken(*api)
    _refuse_unusable(settings.home, "ASSAY_HOME")
    _refuse_unusable(settings.store, "ASSAY_STORE")
    children: list[Child] = []
    lock = None
    redis_url = settings.redis_url
    if redis_url is None:
        folder = settings.home / "server"
        lock = _own(folder)
        redis_url = embedded.url(folder)
        _stop_orphan(redis_url)
        server = Child("server", embedded.command(folder), {})
        server.start()
        embedded.wait_until_ready(redis_url)
        children.append(server)
    env = {
        "REDIS_URL": redis_url,
        "OPENBLAS_NUM_THREADS": "1",
        "NUMBA_THREADING_LAYER": "workqueue",
    }
    if api is not None:
        children.append(Child("api", _uvicorn(*api), env))
    for pool, count in ((Pool.jobs, workers), (Pool.shards, shard_workers)):
        threads = str(_threads(settings, count))
        command = [sys.executable, "-m", "workers.main", pool.value]
        children += [
            Child(
                f"{pool.value}-worker-{i + 1}",
                command,
                {**env, "ASSAY_THREADS": threads, "OMP_NUM_THREADS": threads},
            )
            for i in range(count)
        ]
    if warm:
        children.append(Child("warm", [sys.executable, "-m", "workers.warm"], env, once=True))
    return Stack(
        Supervisor(children, tick=_sweeping(settings, redis_url), tick_s=EVERY_S), redis_url, lock
    )


def _threads(settings: Settings, workers: int) -> int:
    """
    Threads of one worker: all cores, divided among its pool, unless a number was set.

    Each pool may use the whole machine: while one works on a sharded job the other mostly waits, and
    where it does not, shards are nice.
    """
    if settings.threads != cores():
        return settings.threads
    return max(1, cores() // max(1, workers))


def _uvicorn(host: str, port: int) -> list[str]:
    return [
        sys.executable, "-m", "uvicorn", "api.main:from_environment", "--factory",
        "--host", host, "--port", str(port), "--no-access-log", "--no-proxy-headers",
        "--log-level", "warning", "--timeout-graceful-shutdown", "3", "--limit-concurrency", "512",
    ]  # fmt: skip


def _refuse_taken(host: str, port: int) -> None:
    """A port somebody else listens on: clients would talk to them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise InvalidRequest(
                f"{host}:{port} cannot be served: {error.strerror}. Choose another with --port."
            ) from None


def _refuse_unusable(folder: Path, variable: str) -> None:
    """A folder that cannot be made or written: every process would fail on it in its own words."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidRequest(
            f"{folder} cannot be used: {error.strerror}. Set {variable} to a folder that can be made "
            "and written."
        ) from None


def _own(folder: Path) -> IO[bytes]:
    """Hold the folder's lock as long as this process lives."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = (folder / "lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise InvalidRequest(
            f"Another `assay serve` uses {folder.parent}; stop it or set ASSAY_HOME."
        ) from None
    return lock


def _stop_orphan(url: str) -> None:
    """A server whose supervisor was killed where that could not take it along."""
    try:
        with Redis.from_url(url, socket_timeout=2) as client:
            client.shutdown(save=False)
    except (RedisError, OSError):
        return


def _sweeping(settings: Settings, redis_url: str) -> Callable[[], None]:
    redis = connect(redis_url, SWEEPER_RETRIES, SWEEPER_TIMEOUT_S)
    sweeper = Sweeper(
        build(replace(settings, redis_url=redis_url), SWEEPER_RETRIES, SWEEPER_TIMEOUT_S),
        RedisJobs(redis, settings.retention_s),
        RqQueue(redis, settings.attempts),
        settings.retention_s,
    )

    def sweep() -> None:
        try:
            sweeper.sweep()
        except OUTAGES as error:
            log.warning("sweep postponed", error=type(error).__name__)
        except Exception:  # a fault here must not take the API and the workers down
            log.exception("sweep broke")

    return sweep
