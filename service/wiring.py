"""Settings to services: the only place that picks implementations."""

from __future__ import annotations

from redis import Redis

from service.errors import InvalidRequest
from service.operations import Services
from service.settings import Settings
from service.storage.objects import ObjectDatasets, ObjectReports
from service.storage.queue import RqQueue
from service.storage.redis import RedisGates, RedisJobs, connect


def build(settings: Settings, redis: Redis | None = None) -> Services:
    """Services on Redis and an object store."""
    if redis is None:
        if settings.redis_url is None:
            raise InvalidRequest("REDIS_URL is not set; `assay serve` starts a server by itself.")
        redis = connect(settings.redis_url)
    return Services(
        datasets=ObjectDatasets(settings.store),
        reports=ObjectReports(settings.store),
        jobs=RedisJobs(redis, settings.retention_s),
        gates=RedisGates(redis, settings.retention_s),
        queue=RqQueue(redis, settings.attempts),
        limits=settings.limits,
        threads=settings.threads,
        deadline_s=settings.deadline_s,
        queue_depth=settings.queue_depth,
        attempts=settings.attempts,
    )
