"""Listings: newest first, stable while new items arrive, cut into pages by a cursor."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Protocol

from service.errors import InvalidRequest
from service.ports import Item, Page

CURSOR = re.compile(r"([0-9]{1,16})-((?:job|gate|ds)_[0-9a-f]{24})")
Place = tuple[int, str]
"""Microsecond of creation, then id."""


class Dated(Protocol):
    """What can be listed by the time it was made."""

    @property
    def id(self) -> str: ...

    @property
    def created_at(self) -> datetime: ...


def position(item: Dated) -> Place:
    """Place of an item in a listing."""
    return int(item.created_at.timestamp() * 1_000_000), item.id


def after(cursor: str | None) -> Place | None:
    """The place a page starts after; None for the first page."""
    if cursor is None:
        return None
    match = CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidRequest("`cursor` is not one that a listing returned.")
    return int(match[1]), match[2]


def cut(
    items: Iterable[Item], limit: int, cursor: str | None, place: Callable[[Item], Place]
) -> Page[Item]:
    """One page of all items, or of the first of those that follow the cursor."""
    start = after(cursor)
    newest = sorted(items, key=place, reverse=True)
    found = [item for item in newest if start is None or place(item) < start]
    more = len(found) > limit
    return Page(found[:limit], "{}-{}".format(*place(found[limit - 1])) if more else None)
