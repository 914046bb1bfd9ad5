"""The application: routes, problems, metrics and the document that describes them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import RedirectResponse

import service
from api import problems
from api.contracts import describe
from api.keys import Keys
from api.leaving import leaving
from api.metrics import Measured, Metrics
from api.rates import Declared
from api.routes import baselines, charts, checks, datasets, events, gates, health, jobs, reports
from api.streams import Pace, Streams
from service import logs
from service.charts import Painter
from service.operations import Services
from service.settings import Settings
from service.wiring import build

RETRIES = 4
TIMEOUT_S = 3.0
"""A request sits out a restart of Redis, not an outage."""
ASKED_WITH = (
    "Authorization", "Content-Digest", "Idempotency-Key", "If-None-Match", "Last-Event-ID", "Prefer",
)  # fmt: skip
ANSWERED_WITH = (
    "ETag", "Link", "Location", "Preference-Applied", "RateLimit", "RateLimit-Policy", "Retry-After",
)  # fmt: skip
"""Headers that pages of other origins may send, and read."""
REFUSED = problems.answers("invalid-request")

ROUTERS = (
    datasets.router,
    baselines.router,
    checks.router,
    jobs.router,
    charts.router,
    events.router,
    reports.router,
    gates.router,
    health.router,
)


def create_app(
    services: Services,
    keys: Keys | None = None,
    pace: Pace | None = None,
    cors_origins: Sequence[str] = (),
) -> FastAPI:
    """The application over any services."""
    streams = Streams(services, pace)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with leaving(streams.close), closing(app.state.painter):
            yield

    app = FastAPI(
        title="Assay",
        version=service.__version__,
        summary="Tests embeddings before they are trusted.",
        docs_url="/docs",
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.services = services
    app.state.keys = keys
    app.state.streams = streams
    app.state.painter = Painter()
    app.state.metrics = Metrics(lambda: streams.open)
    app.state.looker = health.Looker(services)
    app.add_middleware(Declared)
    app.add_middleware(Measured, metrics=app.state.metrics)
    if cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=cors_origins,
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=ASKED_WITH,
            expose_headers=ANSWERED_WITH,
        )
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router, responses=REFUSED)
    app.add_api_route("/", _home, include_in_schema=False)
    describe(app)
    return app


def _home() -> RedirectResponse:
    return RedirectResponse("/docs")


def from_environment() -> FastAPI:
    """The application of this environment, for uvicorn."""
    settings = Settings.read()
    logs.configure(logging.getLevelNamesMapping()[settings.log_level.upper()])
    keys = None if settings.api_keys_file is None else Keys(settings.api_keys_file)
    services = build(settings, RETRIES, TIMEOUT_S)
    return create_app(services, keys, cors_origins=settings.cors_origins)
