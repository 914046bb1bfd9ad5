"""Values of a report as short text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_DECIMALS = 8
LIST_CHARACTERS = 36


@dataclass(frozen=True)
class Cell:
    """One value: its text, its interval, and whether it stands for a missing one."""

    text: str = ""
    interval: str = ""
    number: bool = False
    missing: bool = False


def is_estimate(value: Any) -> bool:
    """Whether a value carries its uncertainty."""
    return isinstance(value, dict) and "estimate" in value and "interval" in value


def is_interval(value: Any) -> bool:
    """Whether a value is an interval that stands alone."""
    return isinstance(value, dict) and {"low", "high", "level", "method"} <= value.keys()


def is_section(value: Any) -> bool:
    """Whether a value is an object of further results."""
    return isinstance(value, dict) and not is_estimate(value) and not is_interval(value)


def is_table(value: Any) -> bool:
    """Whether a value is a list of objects."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def cell(owner: Mapping[str, Any], key: str) -> Cell:
    """The value at `key`; where it is null, the reason its owner gives."""
    if key not in owner:
        return Cell()
    value = owner[key]
    if value is None:
        return _undefined(owner, key)
    if is_interval(value):
        places = decimals(value["low"], value["high"] - value["low"])
        return Cell(f"[{number(value['low'], places)}, {number(value['high'], places)}]")
    if not is_estimate(value):
        return Cell(plain(value), number=isinstance(value, (int, float)))
    estimate, interval = value["estimate"], value["interval"]
    if estimate is None:
        return _undefined(value, "estimate")
    if interval is None:
        why = _undefined(value, "interval").text.removeprefix("undefined: ")
        return Cell(number(float(estimate)), f"(no interval: {why})", number=True)
    low, high = interval["low"], interval["high"]
    places = decimals(estimate, high - low)
    return Cell(
        number(estimate, places),
        f"[{number(low, places)}, {number(high, places)}]",
        number=True,
    )


def plain(value: Any) -> str:
    """A value that is no estimate."""
    if value is None:
        return "undefined"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, list):
        return _list(value)
    return printable(str(value))


def number(value: float, places: int | None = None) -> str:
    """A number in as many digits as one reads, or in these."""
    if places is None:
        if isinstance(value, int):
            return f"{value:,}"
        if 0 < abs(value) < 1e-3 or abs(value) >= 1e9:
            return f"{value:.3g}"
        places = decimals(value)
    return f"{value:,.{places}f}"


def decimals(value: float, width: float | None = None) -> int:
    """Digits after the point, at least two of an interval's width."""
    places = 4 if abs(value) < 1e3 else 1
    if width:
        places = max(places, 1 - math.floor(math.log10(abs(width))))
    return min(places, MOST_DECIMALS)


def printable(text: str) -> str:
    """Without characters that could steer a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def missing_vectors(dataset: Mapping[str, Any]) -> str:
    """What an import has left out, if anything, for people."""
    source = (dataset.get("spec") or {}).get("source")
    missing = source.get("missing_vectors") if isinstance(source, dict) else None
    if not isinstance(source, dict) or not missing:
        return ""
    first = ", ".join(map(str, source.get("missing_ids") or ()))
    return f"left out of {source['rows'] + missing} rows, without a vector: {missing} ({first})"


def _undefined(owner: Mapping[str, Any], key: str) -> Cell:
    reason = (owner.get("undefined") or {}).get(key) or {}
    code = reason.get("code")
    return Cell(f"undefined: {printable(str(code))}" if code else "undefined", missing=True)


def _list(values: list[Any]) -> str:
    if not values:
        return "none"
    shown = ""
    for i, value in enumerate(values):
        longer = f"{shown}, {plain(value)}" if i else plain(value)
        if i and len(longer) > LIST_CHARACTERS:
            return f"{shown}, ... ({len(values)})"
        shown = longer
    return shown
