"""A page as a browser takes it apart: elements, text, and the numbers in `<data>`."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser
from typing import Any

HOW = ("level", "resamples")
"""Stated once for all intervals of a row that were made in one way."""
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Reads a page; whatever is not closed in order is an error."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.numbers: Counter[float] = Counter()
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag == "data":
            self.numbers[float(dict(attrs)["value"] or "")] += 1
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text += data


def numbers(node: Any) -> Counter[float]:
    """Every number in a JSON value, as often as it is there, but how intervals were made."""
    if isinstance(node, dict):
        how = HOW if "method" in node else ()
        return sum((numbers(one) for key, one in node.items() if key not in how), Counter())
    if isinstance(node, list):
        return sum((numbers(one) for one in node), Counter())
    is_number = isinstance(node, (int, float)) and not isinstance(node, bool)
    return Counter([float(node)] if is_number else [])


def ways(node: Any) -> set[float]:
    """The numbers that say how intervals were made."""
    if isinstance(node, list):
        return set().union(*map(ways, node))
    if not isinstance(node, dict):
        return set()
    here = {float(node[key]) for key in HOW} if "method" in node else set()
    return here.union(*map(ways, node.values()))


def reasons(node: Any) -> list[str]:
    """Every sentence that says why something is null."""
    if isinstance(node, list):
        return [text for one in node for text in reasons(one)]
    if not isinstance(node, dict):
        return []
    found = [why["message"] for why in node.get("undefined", {}).values()]
    return found + [text for one in node.values() for text in reasons(one)]


def strings(node: Any) -> list[str]:
    """Every text in a JSON value."""
    if isinstance(node, dict):
        return [text for one in node.values() for text in strings(one)]
    if isinstance(node, list):
        return [text for one in node for text in strings(one)]
    return [node] if isinstance(node, str) else []
