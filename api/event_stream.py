"""Server-Sent Events on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

MEDIA_TYPE = "text/event-stream"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}
"""No proxy keeps what passes, or waits for more of it."""
HEARTBEAT = b": nothing new\n\n"
log = structlog.get_logger()


def encoded(event_id: str, kind: str, data: str) -> bytes:
    """One event, whose data are one line."""
    return f"id: {event_id}\nevent: {kind}\ndata: {data}\n\n".encode()


class EventStream(StreamingResponse):
    """Events for one listener, until it goes, or takes none for a while."""

    media_type = MEDIA_TYPE

    def __init__(self, events: AsyncGenerator[bytes, None], send_s: float) -> None:
        super().__init__(events, headers=HEADERS)
        self._events, self._send_s = events, send_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def promptly(message: Message) -> None:
            async with asyncio.timeout(self._send_s):
                await send(message)

        async with aclosing(self._events):
            try:
                await super().__call__(scope, receive, promptly)
            except TimeoutError:
                log.info("listener is left: it takes no events", seconds=self._send_s)
