"""Carry flows out over HTTP: one driver that waits, one that lets others run meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import httpx
from httpx_sse import EventSource

from assay_client.exchange import is_stream, without_credentials
from assay_client.payload import Payload
from assay_client.problems import Mistake
from assay_client.steps import Flow, HangUp, Hear, Pause, Send, Step, UploadProgress, Work

T = TypeVar("T")
TIMEOUT = httpx.Timeout(connect=10, read=150, write=150, pool=10)
SILENCE = httpx.Timeout(connect=10, read=45, write=150, pool=10)
"""A server that tells events says at least every 15 s that it is there."""
EVENTS = "assay_events"
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class Driver:
    """Carries flows out and waits."""

    def __init__(
        self, server: str, api_key: str | None, transport: httpx.BaseTransport | None = None
    ) -> None:
        options = _options(server, api_key)
        self._client = httpx.Client(**options, transport=transport)

    def run(self, flow: Flow[T]) -> T:
        """The value a flow returns."""
        try:
            step = next(flow)
            while True:
                try:
                    outcome = self._perform(step)
                except Exception as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(outcome)
        except StopIteration as end:
            found: T = end.value
            return found
        finally:
            flow.close()

    def _perform(self, step: Step) -> Any:
        if isinstance(step, Pause):
            return time.sleep(step.seconds)
        if isinstance(step, Work):
            return step.do()
        if isinstance(step, Hear):
            for event in _events(step.answer, EventSource.iter_sse):
                if event.data:  # comments come as events without
                    return event
            return None
        if isinstance(step, HangUp):
            return step.answer.close()
        content = None if step.payload is None else _told(step.payload, step.progress)
        request = self._client.build_request(**_request(step), content=content)
        answer = self._client.send(request, stream=step.stream)
        if _to_be_read(step, answer):
            answer.read()
        return answer

    def close(self) -> None:
        self._client.close()


class AsyncDriver:
    """Carries flows out on an event loop."""

    def __init__(
        self, server: str, api_key: str | None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        options = _options(server, api_key)
        self._client = httpx.AsyncClient(**options, transport=transport)

    async def run(self, flow: Flow[T]) -> T:
        """The value a flow returns."""
        try:
            step = next(flow)
            while True:
                try:
                    outcome = await self._perform(step)
                except Exception as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(outcome)
        except StopIteration as end:
            found: T = end.value
            return found
        finally:
            flow.close()

    async def _perform(self, step: Step) -> Any:
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, Work):
            return await asyncio.to_thread(step.do)
        if isinstance(step, Hear):
            async for event in _events(step.answer, EventSource.aiter_sse):
                if event.data:
                    return event
            return None
        if isinstance(step, HangUp):
            await _events(step.answer, EventSource.aiter_sse).aclose()
            return await step.answer.aclose()
        content = None if step.payload is None else _unhurried(_told(step.payload, step.progress))
        request = self._client.build_request(**_request(step), content=content)
        answer = await self._client.send(request, stream=step.stream)
        if _to_be_read(step, answer):
            await answer.aread()
        return answer

    async def close(self) -> None:
        await self._client.aclose()


def address(server: str) -> httpx.URL:
    """The address of a server, or a mistake that does not show its credentials."""
    try:
        url = httpx.URL(server.rstrip("/"))
    except httpx.InvalidURL as error:
        raise Mistake(f"this is no address of a server: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise Mistake(
            f"`{without_credentials(url)}` is no address of a server: give http:// or https:// and "
            "a host"
        )
    if url.path.rstrip("/").endswith("/v1"):
        raise Mistake(f"`{without_credentials(url)}`: leave out `/v1`, which the client adds")
    return url


def _options(server: str, api_key: str | None) -> dict[str, Any]:
    url = address(server)
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise Mistake("the API key holds characters no key has; copy it again")
    return {
        "base_url": url,
        "headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
        "timeout": TIMEOUT,
        "trust_env": url.host not in LOOPBACK,
    }


def _events(answer: httpx.Response, told: Callable[[EventSource], T]) -> T:
    """The events of an open answer, which stay where they are between two steps."""
    events: T = answer.extensions.setdefault(EVENTS, told(EventSource(answer)))
    return events


def _to_be_read(send: Send, answer: httpx.Response) -> bool:
    """Whether an open answer is something else than events."""
    return send.stream and not is_stream(answer)


def _request(send: Send) -> dict[str, Any]:
    return {
        "method": send.method,
        "url": send.path,
        "headers": send.headers,
        "params": send.query,
        "json": send.json,
        "timeout": SILENCE if send.stream else TIMEOUT,
    }


def _told(payload: Payload, progress: UploadProgress | None) -> Iterator[bytes]:
    sent = 0
    for piece in payload.pieces():
        yield piece  # type: ignore[misc]  # what is sent may be any buffer
        sent += len(piece)
        if progress is not None:
            progress(payload.name or "upload", sent, payload.size)


async def _unhurried(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Pieces read on a thread, so that a slow disk stops nobody else."""
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
