"""
Every environment variable.

    REDIS_URL                      redis:// or unix:// of a Redis or Valkey >= 6.2; `assay serve` starts
                                   one of its own without it
    ASSAY_HOME                     folder for the store and the embedded server      (~/.assay)
    ASSAY_STORE                    folder of the object store                        ($ASSAY_HOME/store)
    ASSAY_API_KEYS_FILE            hashed API keys; without it only loopback is served
    ASSAY_CONNECTIONS_FILE         JSON file of named connections to stores
    ASSAY_CONNECTIONS              the same as text; its names come before those of the file
    ASSAY_THREADS                  threads of one job                               (cores)
    ASSAY_JOB_DEADLINE_S           seconds a job may run                             (3600)
    ASSAY_JOB_ATTEMPTS             processes that may die on one job                 (3)
    ASSAY_JOB_RETENTION_S          seconds an ended job is kept                      (2592000)
    ASSAY_DATASET_RETENTION_S      seconds without a use after which a dataset goes that no baseline
                                   and no job needs; without it datasets stay
    ASSAY_QUEUE_DEPTH              jobs that may wait                                (10000)
    ASSAY_MAX_BODY_BYTES           largest upload                                    (8589934592)
    ASSAY_MAX_ROWS                 most rows of a dataset                            (100000000)
    ASSAY_MAX_DIMENSIONS           most dimensions of a row                          (4096)
    ASSAY_UPLOADS_PER_MINUTE       uploads of one key                                (1200)
    ASSAY_SUBMITS_PER_MINUTE       other changing requests of one key                (6000)
    ASSAY_POLLS_PER_MINUTE         reading requests of one key                       (30000)
    ASSAY_PROJECT_JOBS             unfinished jobs of one project                    (5000)
    ASSAY_PROJECT_BYTES            size of all datasets of one project               (274877906944)
    ASSAY_CORS_ORIGINS             origins whose pages may ask, https://a.example,...  (none)
    ASSAY_LOG_LEVEL                debug, info, warning, error                       (info)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from service.allowance import Quotas
from service.errors import InvalidRequest
from service.formats import Limits
from service.sources.connection import Connection, read_connections


@dataclass(frozen=True)
class Settings:
    """What the environment says."""

    redis_url: str | None
    home: Path
    store: Path
    api_keys_file: Path | None
    connections: Mapping[str, Connection] = field(repr=False)
    threads: int
    deadline_s: int
    attempts: int
    retention_s: int
    queue_depth: int
    log_level: str
    cors_origins: tuple[str, ...]
    limits: Limits
    quotas: Quotas

    @classmethod
    def read(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Settings of this process."""
        env = os.environ if env is None else env
        home = Path(env.get("ASSAY_HOME") or Path.home() / ".assay").expanduser().absolute()
        keys = env.get("ASSAY_API_KEYS_FILE")
        standard, allowed = Limits(), Quotas()
        return cls(
            redis_url=env.get("REDIS_URL") or None,
            home=home,
            store=Path(env.get("ASSAY_STORE") or home / "store").expanduser().absolute(),
            api_keys_file=Path(keys) if keys else None,
            connections=_connections(env),
            threads=_number(env, "ASSAY_THREADS", cores()),
            deadline_s=_number(env, "ASSAY_JOB_DEADLINE_S", 3600),
            attempts=_number(env, "ASSAY_JOB_ATTEMPTS", 3),
            retention_s=_number(env, "ASSAY_JOB_RETENTION_S", 30 * 86_400),
            queue_depth=_number(env, "ASSAY_QUEUE_DEPTH", 10_000),
            log_level=env.get("ASSAY_LOG_LEVEL", "info"),
            cors_origins=tuple(filter(None, env.get("ASSAY_CORS_ORIGINS", "").split(","))),
            limits=Limits(
                body_bytes=_number(env, "ASSAY_MAX_BODY_BYTES", standard.body_bytes),
                rows=_number(env, "ASSAY_MAX_ROWS", standard.rows),
                dimensions=_number(env, "ASSAY_MAX_DIMENSIONS", standard.dimensions),
            ),
            quotas=Quotas(
                uploads_per_minute=_number(
                    env, "ASSAY_UPLOADS_PER_MINUTE", allowed.uploads_per_minute
                ),
                submits_per_minute=_number(
                    env, "ASSAY_SUBMITS_PER_MINUTE", allowed.submits_per_minute
                ),
                polls_per_minute=_number(env, "ASSAY_POLLS_PER_MINUTE", allowed.polls_per_minute),
                project_jobs=_number(env, "ASSAY_PROJECT_JOBS", allowed.project_jobs),
                project_bytes=_number(env, "ASSAY_PROJECT_BYTES", allowed.project_bytes),
                dataset_retention_s=_number(env, "ASSAY_DATASET_RETENTION_S", 0) or None,
            ),
        )


def cores() -> int:
    """Processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _connections(env: Mapping[str, str]) -> dict[str, Connection]:
    found = {}
    if path := env.get("ASSAY_CONNECTIONS_FILE"):
        try:
            found = read_connections(Path(path).expanduser().read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(
                f"ASSAY_CONNECTIONS_FILE, `{path}`, cannot be read: {_why(error)}."
            ) from None
    if text := env.get("ASSAY_CONNECTIONS"):
        found |= read_connections(text)
    return found


def _why(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, OSError):
        return (error.strerror or type(error).__name__).lower()
    return "it is not UTF-8"


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name)
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise InvalidRequest(f"{name} must be a whole number of at least 1; got `{text}`.")
    return int(text)
