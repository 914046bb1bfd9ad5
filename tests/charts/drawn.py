"""Specifications and drawings taken apart without the code that makes them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altair
import jsonschema

SVG = "{http://www.w3.org/2000/svg}"
ELEMENTS = {"svg", "g", "path", "rect", "line", "text", "tspan"}
SCHEMA = Path(altair.__file__).parent / "vegalite/v6/schema/vega-lite-schema.json"
VALIDATOR = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text()))


def faults(spec: dict[str, Any]) -> list[str]:
    """What the schema of Vega-Lite has against a specification."""
    return [str(error.message)[:300] for error in VALIDATOR.iter_errors(spec)]


def objects(node: Any) -> Iterator[dict[str, Any]]:
    """Every object of a JSON value."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for one in node:
            yield from objects(one)


def data(spec: dict[str, Any], mark: str) -> list[dict[str, Any]]:
    """The rows of all layers of one kind of mark, in order."""
    return [
        row
        for one in objects(spec)
        if isinstance(one.get("mark"), dict) and one["mark"]["type"] == mark
        for row in one["data"]["values"]
    ]


def values(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of all filled points: the numbers themselves."""
    return [
        row
        for one in objects(spec)
        if isinstance(one.get("mark"), dict)
        and one["mark"]["type"] == "point"
        and one["mark"].get("filled")
        for row in one["data"]["values"]
    ]


def numbers(node: Any) -> Counter[float]:
    """Every number of a JSON value, as often as it is there."""
    if isinstance(node, dict):
        node = list(node.values())
    if isinstance(node, list):
        return sum(map(numbers, node), Counter())
    is_number = isinstance(node, (int, float)) and not isinstance(node, bool)
    return Counter([float(node)]) if is_number else Counter()


def parsed(svg: bytes) -> ElementTree.Element:
    """An SVG, read as XML; anything in it that could act is an error."""
    root = ElementTree.fromstring(svg)
    for one in root.iter():
        assert one.tag.removeprefix(SVG) in ELEMENTS, one.tag
        for name, value in one.attrib.items():
            assert not name.lower().startswith("on"), name
            assert name not in ("style", "id"), name
            assert not name.endswith("href"), name
            assert name == "aria-label" or "url(" not in value, value
    return root


def marks(svg: bytes, kind: str) -> int:
    """How many marks of a kind are drawn, legends and axes left out: symbol, rule, rect, text, line."""
    return sum(
        len(list(group))
        for group in parsed(svg).iter(f"{SVG}g")
        if {f"mark-{kind}", "role-mark"} <= set(group.get("class", "").split())
    )


def words(svg: bytes) -> list[str]:
    """Every text of a drawing."""
    return ["".join(one.itertext()) for one in parsed(svg).iter(f"{SVG}text")]
