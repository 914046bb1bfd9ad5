"""Whether the service is alive and ready, what it allows, and what it counts."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from api.deps import LONGEST_WAIT_S, Reader, Use
from api.problems import answers, guarded
from api.queries import refuse_unknown
from api.rates import Kind
from service.checks import CATALOGUE
from service.errors import Unavailable
from service.job import Pool
from service.operations import Services
from service.references import Model
from service.wiring import OUTAGES

READY_WITHIN_S = 3.0
Sight = tuple[list[str], dict[Pool, int]]
router = APIRouter(tags=["service"])


class Health(Model):
    status: str


class Readiness(Health):
    workers: dict[Pool, int]
    """Live workers by queue; with fewer than two for shards, each job is computed by one process."""


class RatesView(Model):
    """Requests one key may send in a minute; more get 429."""

    uploads: int
    submits: int
    """Everything else that starts, stops or changes something."""
    polls: int


class UsageView(Model):
    """What this project holds now."""

    jobs: int
    """Those that have not ended."""
    bytes: int
    """Size of its datasets."""


class LimitsView(Model):
    """What is refused with 413, 422 or 429 above it."""

    body_bytes: int
    """Upload of rows."""
    text_bytes: int
    """JSON and base64 bodies."""
    csv_bytes: int
    """CSV bodies."""
    names_bytes: int
    """Memory that ids and labels of a table or an import may take."""
    rows: int
    dimensions: int
    queue_depth: int
    """Jobs that may wait."""
    wait_s: int
    """Longest `Prefer: wait`."""
    deadline_s: int
    """Seconds a job may run."""
    rows_per_check: dict[str, int]
    """Row limits of checks that have one."""
    requests_per_minute: RatesView
    project_jobs: int
    """Unfinished jobs a project may have."""
    project_bytes: int
    """Size of all datasets a project may have."""
    dataset_retention_s: int | None
    """Seconds without a use after which a dataset that nothing needs is deleted; null keeps it."""
    used: UsageView


@router.get("/healthz", dependencies=[Depends(refuse_unknown)])
def alive() -> Health:
    """The process answers."""
    return Health(status="alive")


class Looker:
    """Looks at queue and store, one look at a time, on a thread of its own."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ready")
        self._look: Future[Sight] | None = None

    async def look(self) -> Sight:
        """What does not answer, and who works; a look that hangs is waited for by no other thread."""
        if self._look is None or self._look.done():
            self._look = self._thread.submit(self._see)
        try:
            look = asyncio.shield(asyncio.wrap_future(self._look))
            return await asyncio.wait_for(look, READY_WITHIN_S)
        except TimeoutError:
            return ["the queue does not answer"], {}

    def _see(self) -> Sight:
        missing, workers = [], {}
        try:
            workers = {pool: self._services.queue.workers(pool) for pool in Pool}
            if workers[Pool.jobs] == 0:
                missing.append("no live worker (start one with `assay worker`)")
        except OUTAGES as error:
            missing.append(f"the queue does not answer ({type(error).__name__})")
        if not self._services.datasets.reachable():
            missing.append("the object store cannot be written")
        return missing, workers


@router.get("/readyz", responses=answers("unavailable"), dependencies=[Depends(refuse_unknown)])
async def ready(request: Request) -> Readiness:
    """Redis, the store and at least one worker answer; otherwise 503 says what is missing."""
    missing, workers = await request.app.state.looker.look()
    if missing:
        raise Unavailable("Not ready: " + "; ".join(missing) + ".")
    return Readiness(status="ready", workers=workers)


@router.get("/v1/limits", responses=guarded())
def limits(services: Use, caller: Reader) -> LimitsView:
    """Declared limits."""
    return LimitsView(
        body_bytes=services.limits.body_bytes,
        text_bytes=services.limits.text_bytes,
        csv_bytes=services.limits.csv_bytes,
        names_bytes=services.limits.names_bytes,
        rows=services.limits.rows,
        dimensions=services.limits.dimensions,
        queue_depth=services.queue_depth,
        wait_s=LONGEST_WAIT_S,
        deadline_s=services.deadline_s,
        rows_per_check={
            check.kind: check.row_limit for check in CATALOGUE if check.row_limit is not None
        },
        requests_per_minute=RatesView(
            **{kind.value: kind.per_minute(services.quotas) for kind in Kind}
        ),
        project_jobs=services.quotas.project_jobs,
        project_bytes=services.quotas.project_bytes,
        dataset_retention_s=services.quotas.dataset_retention_s,
        used=UsageView(
            jobs=services.jobs.unfinished(caller.project),
            bytes=services.datasets.stored_bytes(caller.project),
        ),
    )


@router.get(
    "/metrics",
    response_class=Response,
    responses=guarded(),
)
def metrics(request: Request, services: Use, caller: Reader) -> Response:
    """Prometheus metrics."""
    return Response(request.app.state.metrics.render(services), media_type=CONTENT_TYPE_LATEST)
