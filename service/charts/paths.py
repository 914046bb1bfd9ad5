"""Numbers of results by declared paths, each with the names that stand in its places."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from service.check import Estimate, Results, Undefined
from service.measured import OLDER
from service.stated import stated

PLACE = re.compile(r"\\\{([\w,]+)(?::([\w|\\]+))?\\\}")
"""A place of a key, once that is escaped: its names, and the keys it stands for where not all."""


@dataclass(frozen=True)
class Name:
    """What stands in a place; 1, 1.0 and true are three names."""

    value: str | int | float | bool
    kind: type

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Value:
    """One number."""

    names: Mapping[str, Name]
    """What stands in the places of its path."""
    key: str
    """The last key, as in the report."""
    estimate: float | None
    low: float | None = None
    high: float | None = None
    why: Undefined | None = None
    """Why there is no estimate."""


def values(results: Results, path: str) -> list[Value]:
    """What stands at a path, in reading order; of what is null as a whole, that and why."""
    return list(_values(results, path.split("."), {}, "", None))


def number(results: Results, path: str) -> float | None:
    """The number at a path without places."""
    found = values(results, path)
    return found[0].estimate if found else None


def _values(
    node: Any, keys: list[str], names: Mapping[str, Name], key: str, why: Undefined | None
) -> Iterator[Value]:
    if node is None:
        yield Value(names, key, None, why=why or OLDER)
    elif not keys:
        yield from _value(node, names, key)
    else:
        pattern, places = _compiled(keys[0])
        for found, child, reason in _children(node):
            if (match := pattern.fullmatch(found)) is not None:
                told = {name: _named(child, name, match[1]) for name in places}
                yield from _values(child, keys[1:], {**names, **told}, found, reason)


def _named(item: Any, name: str, key: str) -> Name:
    """The field of that name, where the item has one; else its key."""
    own = isinstance(item, BaseModel) and name in type(item).model_fields
    value = getattr(item, name) if own else key
    return Name(value, type(value))


def _value(node: Any, names: Mapping[str, Name], key: str) -> Iterator[Value]:
    if isinstance(node, Estimate):
        interval = node.interval
        low, high = (None, None) if interval is None else (interval.low, interval.high)
        yield Value(names, key, node.estimate, low, high, node.undefined.get("estimate"))
    elif isinstance(node, (int, float)):
        yield Value(names, key, node)


def _children(node: Any) -> Iterator[tuple[str, Any, Undefined | None]]:
    if isinstance(node, BaseModel):
        reasons = node.undefined if isinstance(node, Results) else {}
        for one in stated(node):
            yield one.key, one.value, reasons.get(one.key)
    elif isinstance(node, dict):
        for key, child in node.items():
            yield str(key), child, None
    elif isinstance(node, list):
        for place, child in enumerate(node, start=1):
            yield str(place), child, None


@cache
def _compiled(key: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    """What keys match, and the names they give."""
    places: list[str] = []

    def group(place: re.Match[str]) -> str:
        names = place[1].split(",")
        places.extend(names)
        these = (place[2] or ".+").replace("\\|", "|")
        return f"(?P<{names[0]}>{these})"

    return re.compile(PLACE.sub(group, re.escape(key)), re.DOTALL), tuple(places)
