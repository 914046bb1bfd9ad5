"""Settings to services: the only place that picks implementations."""

from __future__ import annotations

from obstore.exceptions import BaseError
from redis.exceptions import RedisError

from service.errors import InvalidRequest
from service.operations import Services
from service.settings import Settings
from service.sources import NamedSources
from service.storage.object_baselines import ObjectBaselines
from service.storage.object_reports import ObjectParts, ObjectReports
from service.storage.objects import ObjectDatasets
from service.storage.queue import RqQueue
from service.storage.redis import RedisClaims, RedisGates, RedisJobs, RedisRates, connect

RATES_TIMEOUT_S = 0.5
"""Counting holds up no request for longer."""

OUTAGES: tuple[type[Exception], ...] = (RedisError, BaseError)
"""What the parts raise when they do not answer."""


def build(settings: Settings, retries: int = 120, timeout_s: float = 30) -> Services:
    """Services on Redis and an object store; `retries` and `timeout_s` bound an outage's effect."""
    if settings.redis_url is None:
        raise InvalidRequest("REDIS_URL is not set; `assay serve` starts a server by itself.")
    redis = connect(settings.redis_url, retries, timeout_s)
    return Services(
        datasets=ObjectDatasets(settings.store),
        reports=ObjectReports(settings.store),
        jobs=RedisJobs(redis, settings.retention_s),
        gates=RedisGates(redis, settings.retention_s),
        claims=RedisClaims(redis),
        rates=RedisRates(connect(settings.redis_url, 0, RATES_TIMEOUT_S)),
        queue=RqQueue(redis, settings.attempts),
        parts=ObjectParts(settings.store),
        baselines=ObjectBaselines(settings.store),
        sources=NamedSources(
            settings.connections, settings.home / "scratch", settings.limits.body_bytes
        ),
        limits=settings.limits,
        quotas=settings.quotas,
        threads=settings.threads,
        deadline_s=settings.deadline_s,
        queue_depth=settings.queue_depth,
        attempts=settings.attempts,
        outages=(*OUTAGES, OSError),
    )
