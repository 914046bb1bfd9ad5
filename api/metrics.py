"""What the service counts, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.job import Pool
from service.operations import Services

READING, FAULTY = ("GET", "HEAD"), 400
"""Reading that succeeds is most of what is asked, and tells nothing: it is logged for debugging."""

log = structlog.get_logger()


class Metrics:
    """Counters of one application."""

    def __init__(self, streams: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "assay_requests", "Requests answered.", ["method", "route", "status"],
            registry=self.registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "assay_request_seconds", "Time to answer.", ["route"], registry=self.registry
        )
        self.bytes_in = Counter(
            "assay_bytes_in", "Bytes of uploads received.", registry=self.registry
        )
        self.depth = Gauge(
            "assay_queue_depth", "Jobs, or shards of jobs, waiting.", ["queue"],
            registry=self.registry,
        )  # fmt: skip
        self.workers = Gauge("assay_workers", "Live workers.", ["queue"], registry=self.registry)
        self.active = Gauge(
            "assay_jobs_active", "Jobs that have not ended.", registry=self.registry
        )
        self.streams = Gauge(
            "assay_event_streams", "Streams of events that are open.", registry=self.registry
        )
        self.streams.set_function(streams)
        self.ended = Gauge(
            "assay_jobs_ended", "Jobs that have ended.", ["kind", "state"], registry=self.registry
        )

    def render(self, services: Services) -> bytes:
        """All metrics as text, with the queue as it is now."""
        for pool in Pool:
            self.depth.labels(pool.value).set(services.queue.depth(pool))
            self.workers.labels(pool.value).set(services.queue.workers(pool))
        self.active.set(len(services.jobs.active()))
        for (kind, state), count in services.jobs.ended().items():
            self.ended.labels(kind, state).set(count)
        return generate_latest(self.registry)


class Measured:
    """Counts and logs each request by its route, never by what it asked for."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            seconds = time.perf_counter() - started
            self._metrics.requests.labels(scope["method"], route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(seconds)
            if route not in ("/healthz", "/metrics", "/readyz"):
                note = log.debug if scope["method"] in READING and status < FAULTY else log.info
                note(
                    "request",
                    method=scope["method"],
                    route=route,
                    status=status,
                    ms=round(1000 * seconds, 1),
                )
