"""What pictures say in words: names that fit an axis, numbers, and what is not drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from service.charts.paths import Name, Value
from service.rendering.numbers import shown
from service.user_text import visible

LONGEST_NAME = 36
LONGEST_REASON = 70
MOST_TOLD = 60
"""Numbers that the text of a picture says; the report has all."""
LINE = 92
"""Characters of a line under a title."""
MOST_NOTES = 5


def spelled(name: Name) -> str:
    """A name as one line that shows all its characters, cut where it is long."""
    text = visible(str(name)) or "(empty)"
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"


def apart(names: Iterable[tuple[Name, ...]]) -> dict[tuple[Name, ...], str]:
    """A text for each, in order; where two would look alike, the later are numbered."""
    found: dict[tuple[Name, ...], str] = {}
    taken: set[str] = set()
    for one in names:
        if one in found:
            continue
        text = ", ".join(map(spelled, one))
        unique, place = text, 2
        while unique in taken:
            unique, place = f"{text} ({place})", place + 1
        taken.add(unique)
        found[one] = unique
    return found


def plain(key: str) -> str:
    """A key as words."""
    return key.replace("_", " ")


def numbers(one: Value) -> str:
    """A number and its interval, or why there is none."""
    if one.estimate is None:
        return f"undefined: {reason(one)}"
    if one.low is None or one.high is None:
        return shown(one.estimate)
    return f"{shown(one.estimate)} [{shown(one.low)}, {shown(one.high)}]"


def reason(one: Value) -> str:
    """Why there is no number."""
    return "" if one.why is None else visible(one.why.message)


def cut(text: str, longest: int = LONGEST_REASON) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def lines(sentences: Iterable[str]) -> list[str]:
    """Sentences as lines under a title."""
    return [line for one in sentences for line in textwrap.wrap(one, LINE, max_lines=3)]


def some(texts: Sequence[str], most: int) -> list[str]:
    """The first of them, and how many more there are."""
    return [*texts[:most], *more(len(texts), most)]


def more(count: int, most: int) -> list[str]:
    """How many there are beside the first."""
    return [f"and {count - most} more"] if count > most else []
