"""What pictures a check has: which of its numbers stand beside which, and the question they answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MEASURE = "measure"
"""What numbers differ by where a picture shows several paths."""
Line = float | str
"""A number, or the path of one."""


@dataclass(frozen=True)
class Shown:
    """
    Numbers at one path of the results, by the names in braces.

    `{model}` is any key of a map, or of items of a list their field of that name, else their place;
    `{damage,severity}` are two fields of one item, `{scoring:raw|centred}` is one of these keys. k is
    part of what a measure is called, unless a curve runs along it; `{later}.{earlier}` is one name,
    `pair`.
    """

    path: str
    label: str = ""
    """What it is called; by default the last key."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """What gives it a meaning, by what that is called: paths with some of the same names, or none."""


@dataclass(frozen=True)
class Chart:
    """A picture; `name` is part of its address, `question` its title."""

    name: str
    question: str
    shown: tuple[Shown, ...]


@dataclass(frozen=True)
class Dots(Chart):
    """Numbers with their intervals, a row for each name that is neither a colour nor a panel."""

    axis: str = ""
    """What the numbers are; by default the unit of the measure."""
    colours: str = ""
    """The name (or `measure`) that colours tell apart."""
    panels: str = ""
    """The names (or `measure`), with commas, that have a scale and a panel for each."""
    lines: Mapping[str, Line] = field(default_factory=dict)
    """Lines through all rows, by what they are."""
    each: str = ""
    """The path of what a number is a mean of: small dots."""
    scale: Literal["linear", "log", "sqrt"] = "linear"
    zero: bool = True
    """Whether the scale begins at 0."""


@dataclass(frozen=True)
class Curves(Chart):
    """Numbers with their bands along a name that is a number."""

    along: str = ""
    axis: str = ""
    colours: str = ""
    panels: str = ""
    lines: Mapping[str, Line] = field(default_factory=dict)
    start: Line | None = None
    """The number that all curves have at 0."""
    scale: Literal["linear", "log"] = "linear"
    """Of what it is along."""
    told: str = ""
    """What it is along."""
    zero: bool = True


@dataclass(frozen=True)
class Bars(Chart):
    """Counts that add up, a bar for each name."""

    axis: str = ""


@dataclass(frozen=True)
class Trade(Chart):
    """A price against what it buys, a point for each name."""

    price: str = ""
    """The path of the price, with the same names."""
    told: str = ""
    """What the price is."""
    axis: str = ""
    whole: tuple[str, str, float] | None = None
    """Name, path of the price and value of what everything is compared with."""
    joined: str = ""
    """The path of the names that no other beats."""
