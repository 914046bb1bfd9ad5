"""What routes are given: services, the caller, bodies, waiting and conditional answers."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Request, Response
from pydantic import BaseModel

from api.auth import Identity, identify
from api.keys import Keys, Scope
from api.queries import refuse_unknown
from api.rates import Kind, allow
from service.errors import (
    AssayError,
    BodyStalled,
    InvalidRequest,
    PayloadTooLarge,
    UnsupportedFormat,
)
from service.formats.json_body import decode_json
from service.operations import Services

LONGEST_WAIT_S = 60
WAIT = re.compile(r"(?:^|,)\s*wait\s*=\s*\"?(\d{1,6})\"?\s*(?:,|;|$)", re.IGNORECASE)
PATIENCE_S = 60.0
SLOWEST_BYTES_S = 10_000
T = TypeVar("T")


def services_of(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


def _caller(scope: Scope, kind: Kind) -> Callable[[Request], Identity]:
    def caller(request: Request) -> Identity:
        keys: Keys | None = request.app.state.keys
        identity = identify(request, keys)
        identity.need(scope)
        allow(request, services_of(request), identity, kind)
        refuse_unknown(request)
        return identity

    return caller


def still_is(request: Request, caller: Identity) -> bool:
    """Whether a request that goes on would still be the caller's."""
    try:
        return identify(request, request.app.state.keys) == caller
    except AssayError:
        return False


Use = Annotated[Services, Depends(services_of)]
Reader = Annotated[Identity, Depends(_caller(Scope.read, Kind.polls))]
Submitter = Annotated[Identity, Depends(_caller(Scope.submit, Kind.submits))]
Uploader = Annotated[Identity, Depends(_caller(Scope.submit, Kind.uploads))]


IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,200}")


def _key(
    idempotency_key: Annotated[
        str | None,
        Header(
            description="Makes a repeat of the request harmless: kept for a day, 1-200 characters."
        ),
    ] = None,
) -> str | None:
    """The `Idempotency-Key`; a structured string (in quotes) and the bare text are the same key."""
    if idempotency_key is None:
        return None
    key = idempotency_key.strip().removeprefix('"').removesuffix('"')
    if not IDEMPOTENCY_KEY.fullmatch(key):
        raise InvalidRequest("`Idempotency-Key` is 1-200 visible ASCII characters.")
    return key


Once = Annotated[str | None, Depends(_key)]


async def chunks(request: Request, limit: int, piece: int) -> AsyncIterator[bytes]:
    """
    The body in pieces, counted as they arrive.

    Over the limit it is refused at once, and when it keeps us waiting for longer than a minute and
    the time that a connection of 10 kB/s takes.
    """
    encoded = ", ".join(request.headers.getlist("content-encoding"))
    if any(one.strip().lower() not in ("", "identity") for one in encoded.split(",")):
        raise UnsupportedFormat(
            f"The body is encoded as `{encoded[:80]}`; send it as it is (Content-Encoding: identity, "
            "or none). Parquet and Arrow hold their own compression."
        )
    claimed = request.headers.get("content-length", "")
    if claimed.isdecimal() and int(claimed) > limit:
        raise PayloadTooLarge(f"The body has {claimed} bytes; at most {limit} are taken.")
    received, waiting, waited = 0, 0, 0.0
    parts: list[bytes] = []
    arriving = request.stream()
    while True:
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S + received / SLOWEST_BYTES_S - waited):
                chunk = await anext(arriving, None)
        except TimeoutError:
            raise BodyStalled(
                f"{received} bytes of the body came in time, and not its end."
            ) from None
        if chunk is None:
            break
        waited += time.monotonic() - began
        received += len(chunk)
        waiting += len(chunk)
        if received > limit:
            raise PayloadTooLarge(f"The body is over {limit} bytes.")
        parts.append(chunk)
        if waiting >= piece:
            yield b"".join(parts)
            parts.clear()
            waiting = 0
    if waiting:
        yield b"".join(parts)


async def json_body(request: Request, limit: int) -> Any:
    """Decoded JSON of a bounded body, parsed off the event loop."""
    body = bytearray()
    async for chunk in chunks(request, limit, 1 << 16):
        body += chunk
    return await asyncio.to_thread(decode_json, bytes(body))


def wanted_wait(request: Request) -> int | None:
    """Seconds of `Prefer: wait=N` (RFC 7240), at most 60."""
    match = WAIT.search(", ".join(request.headers.getlist("prefer")))
    return min(int(match[1]), LONGEST_WAIT_S) if match else None


def wanted_tag(tag: str | None) -> tuple[str, str] | None:
    """Name and value of `name:value`."""
    if tag is None:
        return None
    name, colon, value = tag.partition(":")
    if not colon:
        raise InvalidRequest("`tag` is `name:value`.")
    return name, value


async def wait_for(read: Callable[[], T], ended: Callable[[T], bool], seconds: int | None) -> T:
    """Read until it has ended or the time is up, without holding a thread."""
    until = time.monotonic() + (seconds or 0)
    pause = 0.02
    while True:
        found = await asyncio.to_thread(read)
        left = until - time.monotonic()
        if ended(found) or left <= 0:
            return found
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, 0.5)


def unchanged(request: Request, tag: str) -> bool:
    """Whether the caller has what this ETag stands for."""
    known = {
        part.strip().removeprefix("W/")
        for part in request.headers.get("if-none-match", "").split(",")
    }
    return tag in known or "*" in known


def conditional(
    request: Request,
    content: BaseModel | bytes,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
    media_type: str = "application/json",
) -> Response:
    """A body with a strong ETag, or 304 where the caller has it already."""
    data = content if isinstance(content, bytes) else content.model_dump_json().encode()
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    sent = {"ETag": tag, "Cache-Control": "no-cache", **(headers or {})}
    if request.method in ("GET", "HEAD") and unchanged(request, tag):
        return Response(status_code=304, headers=sent)
    return Response(data, status, sent, media_type)


def applied(seconds: int | None) -> dict[str, str]:
    """The header that says a wait was honoured."""
    return {} if seconds is None else {"Preference-Applied": f"wait={seconds}"}
