"""Errors on the wire: RFC 9457 for every 4xx and 5xx, one status per code."""

from __future__ import annotations

from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from service.errors import AssayError, Fault, RateLimited, Unavailable, pointer_to
from service.job import Failure
from service.operations import JobFailed
from service.redaction import hidden
from service.references import Model
from service.request import SHOWN_FAULTS, places_of
from service.wiring import OUTAGES
from service.wording import said

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 2

STATUS = {
    "invalid-request": 422,
    "shape-mismatch": 422,
    "dimension-mismatch": 422,
    "ids-mismatch": 422,
    "duplicate-ids": 422,
    "non-finite-rows": 422,
    "zero-rows": 422,
    "too-few-rows": 422,
    "too-few-groups": 422,
    "missing-labels": 422,
    "unknown-check": 404,
    "unknown-dataset": 404,
    "damaged-dataset": 500,
    "unknown-job": 404,
    "unknown-chart": 404,
    "unknown-gate": 404,
    "unknown-baseline": 404,
    "gate-not-passed": 409,
    "unknown-path": 404,
    "method-not-allowed": 405,
    "report-not-ready": 409,
    "cancelled": 409,
    "unsupported-format": 415,
    "not-acceptable": 406,
    "charts-not-installed": 501,
    "malformed-payload": 422,
    "payload-too-large": 413,
    "body-stalled": 408,
    "dataset-in-use": 409,
    "source-unreachable": 502,
    "source-denied": 403,
    "source-inconsistent": 409,
    "unauthorised": 401,
    "forbidden": 403,
    "queue-full": 429,
    "rate-limited": 429,
    "idempotency-conflict": 422,
    "idempotency-in-flight": 409,
    "timed-out": 504,
    "out-of-memory": 507,
    "worker-lost": 500,
    "unavailable": 503,
    "internal": 500,
}

RETRIED = {"report-not-ready", "queue-full", "idempotency-in-flight", "unavailable"}
"""Codes that come with `Retry-After`."""

log = structlog.get_logger()


class Problem(Model):
    """What went wrong, for programs (`code`) and for people (`detail`)."""

    type: str
    """`/problems/<code>`."""
    title: str
    status: int
    detail: str
    code: str
    """Stable; never changes meaning."""
    errors: list[Fault]
    """Each fault with its place, and the rows concerned."""


def problem(failure: Failure, status: int | None = None) -> Problem:
    """The wire form of a failure."""
    return Problem(
        type=f"/problems/{failure.code}",
        title=failure.title,
        status=STATUS[failure.code] if status is None else status,
        detail=hidden(failure.detail),
        code=failure.code,
        errors=[
            fault.model_copy(
                update={"pointer": hidden(fault.pointer), "message": hidden(fault.message)}
            )
            for fault in failure.errors
        ],
    )


def answers(*codes: str) -> dict[int | str, dict[str, Any]]:
    """`responses=` of a route from the codes it may end with."""
    found: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        entry = found.setdefault(
            STATUS[code], {"description": "", "content": {MEDIA_TYPE: {}}, "model": Problem}
        )
        entry["description"] = ", ".join(filter(None, [entry["description"], f"`{code}`"]))
    return found


def guarded(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The same of a route that asks for a key."""
    return answers(*codes, "unauthorised", "forbidden", "rate-limited")


def install(app: FastAPI) -> None:
    """Answer every error with a problem."""
    app.add_exception_handler(AssayError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unknown)
    for outage in OUTAGES:
        app.add_exception_handler(outage, _outage)


def respond(shown: Problem, headers: dict[str, str] | None = None) -> JSONResponse:
    """A problem as a response."""
    return JSONResponse(shown.model_dump(mode="json"), shown.status, headers, media_type=MEDIA_TYPE)


async def _known(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, JobFailed):
        return respond(problem(error.failure, status=409))
    if not isinstance(error, AssayError):
        raise error
    shown = problem(Failure.of(error))
    headers = {}
    if shown.code in RETRIED:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(error, RateLimited):
        headers["Retry-After"] = str(error.retry_after_s)
    if shown.code == "body-stalled":
        headers["Connection"] = "close"
    if shown.code == "unauthorised":
        headers["WWW-Authenticate"] = "Bearer"
    return respond(shown, headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        raise error
    faults = [
        Fault(pointer=pointer_to(*item["loc"]), message=said(item))
        for item in error.errors()[:SHOWN_FAULTS]
    ]
    places = ", ".join(sorted({fault.pointer for fault in faults}))
    failure = Failure(
        code="invalid-request",
        title="The request is not valid",
        detail=f"{places_of(len(faults))} not valid: {places}.",
        errors=faults,
    )
    return respond(problem(failure))


async def _http(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    known = {404: "unknown-path", 405: "method-not-allowed"}
    code = known.get(error.status_code, "invalid-request")
    failure = Failure(
        code=code,
        title=str(error.detail),
        detail=f"{request.method} {request.url.path}: {error.detail}.",
        errors=[],
    )
    return respond(problem(failure, error.status_code), dict(error.headers or {}))


async def _outage(request: Request, error: Exception) -> JSONResponse:
    log.error("a part does not answer", route=_route(request), error=type(error).__name__)
    return await _known(request, Unavailable("The queue or the store does not answer; try again."))


def _route(request: Request) -> str:
    """The template of the path: what was asked for may be anything."""
    return str(getattr(request.scope.get("route"), "path", "other"))


async def _unknown(request: Request, error: Exception) -> JSONResponse:
    log.error("request broke", method=request.method, route=_route(request), exc_info=error)
    failure = Failure(
        code="internal",
        title="Internal error",
        detail="Something broke here; the log of the service says what.",
        errors=[],
    )
    return respond(problem(failure))
