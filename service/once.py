"""A request with an `Idempotency-Key` is carried out once, however often it is sent."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from service.errors import AssayError, Internal, Unavailable
from service.job import new_id
from service.ports import Claims

KEPT_S = 86_400.0
HELD_S = 15.0
"""After that the request that holds a key is taken for dead; two at once are harmless."""
ANOTHER_BODY = "This key was sent with another body within a day; use a new key for a new request."
STILL_ANSWERED = "A request with this key is being answered; send it again."


@contextmanager
def once(
    claims: Claims, project: str, path: str, key: str | None, body: Any, prefix: str
) -> Iterator[str]:
    """
    The id of the resource this request is to create, the same for every repeat within a day.

    What creates it has to leave a resource of this id alone. A refusal undoes the binding, so the
    key can be used again; an outage does not, because half of the work may be done.
    """
    fresh = new_id(prefix)
    if key is None:
        yield fresh
        return
    name, holder = _digest([project, path, key]), secrets.token_hex(8)
    bound = claims.claim(name, _digest(body), fresh, holder)
    forget = False
    try:
        yield bound
    except AssayError as error:
        forget = not isinstance(error, (Internal, Unavailable))
        raise
    finally:
        claims.release(name, holder, forget=forget)


def part_of(whole: str, part: Any, prefix: str) -> str:
    """The id of a part of a resource: as hard to guess, and the same on every attempt."""
    return f"{prefix}_{_digest([whole, part])[:24]}"


def _digest(content: Any) -> str:
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
