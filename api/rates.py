"""
Rate limits at the door: one bucket for each key and kind of request.

Declared in the header fields of draft-ietf-httpapi-ratelimit-headers-11: `RateLimit-Policy` says what
is allowed, `RateLimit` what is left; a refusal has `Retry-After`.
"""

from __future__ import annotations

import math
from enum import StrEnum

import structlog
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.auth import Identity
from service.allowance import WINDOW_S, Quotas
from service.errors import RateLimited
from service.operations import Services
from service.wiring import OUTAGES

FIELDS = "rate_limit_fields"
log = structlog.get_logger()


class Kind(StrEnum):
    """What a request asks of the service."""

    uploads = "uploads"
    submits = "submits"
    polls = "polls"

    def per_minute(self, quotas: Quotas) -> int:
        found: int = getattr(quotas, f"{self.value}_per_minute")
        return found


def allow(request: Request, services: Services, identity: Identity, kind: Kind) -> None:
    """Take one request from the caller's bucket; without a store to count in, all are allowed."""
    per_minute = kind.per_minute(services.quotas)
    try:
        taken = services.rates.take(f"{identity.project}:{identity.key}:{kind.value}", per_minute)
    except OUTAGES as error:
        log.warning("requests are not counted", error=type(error).__name__)
        return
    setattr(
        request.state,
        FIELDS,
        {
            "RateLimit-Policy": f'"{kind.value}";q={per_minute};w={WINDOW_S}',
            "RateLimit": f'"{kind.value}";r={taken.left};t={math.ceil(taken.full_s)}',
        },
    )
    if not taken.granted:
        raise RateLimited(
            f"This key may send {per_minute} {kind.value} a minute; the next in {taken.next_s:.2g} s.",
            retry_after_s=max(1, math.ceil(taken.next_s)),
        )


class Declared:
    """Adds what `allow` has found to whatever answer there is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})

        async def declare(message: Message) -> None:
            if message["type"] == "http.response.start" and FIELDS in state:
                MutableHeaders(scope=message).update(state[FIELDS])
            await send(message)

        await self._app(scope, receive, declare)
