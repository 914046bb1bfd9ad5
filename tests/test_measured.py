"""Measures of the sample reports, against the JSON and the JSON Schema of their results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.measured import declares, matches, measured, reasons
from service.report import load_report
from service.request import BY_KIND

ROOT = Path(__file__).parent
FILES = sorted((ROOT / "data" / "reports" / "1.0").glob("*.json"))


def declared(
    value: Any, schema: dict[str, Any], defined: dict[str, Any], path: str = ""
) -> Iterator[tuple[str, Any]]:
    """Path and JSON of every field the schema declares a measure; maps and lists by their schema."""
    if "$ref" in schema:
        schema = defined[schema["$ref"].rpartition("/")[2]]
    if "allOf" in schema:
        schema = schema["allOf"][0]
        yield from declared(value, schema, defined, path)
        return
    if "anyOf" in schema:
        schema = next(one for one in schema["anyOf"] if one.get("type") != "null")
        yield from declared(value, schema, defined, path)
        return
    if not isinstance(value, dict):
        return
    for key, one in value.items():
        patterns = schema.get("patternProperties", {})
        inner = schema.get("properties", {}).get(key) or next(
            (found for pattern, found in patterns.items() if re.search(pattern, key)),
            schema.get("additionalProperties"),
        )
        if key == "undefined" or not isinstance(inner, dict):
            continue
        if "measure" in inner:
            is_map = isinstance(one, dict) and "estimate" not in one
            yield from (
                ((f"{path}{key}.{k}", v) for k, v in one.items())
                if is_map
                else [(f"{path}{key}", one)]
            )
        else:
            yield from declared(one, inner, defined, f"{path}{key}.")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_all_declared_measures_are_found_with_their_values(file: Path) -> None:
    """No more and no fewer, numbers and intervals as they stand in the JSON of today's fields."""
    stored = json.loads(load_report(file.read_bytes()).model_dump_json())
    schema = json.loads((ROOT.parent / f"openapi/reports/{stored['kind']}.schema.json").read_text())
    expected = dict(declared(stored["results"], schema["properties"]["results"], schema["$defs"]))
    found = {one.path: one for one in measured(load_report(file.read_bytes()))}
    assert found.keys() == expected.keys()
    assert found
    for path, one in found.items():
        value = expected[path]
        estimate = value["estimate"] if isinstance(value, dict) else value
        interval = value["interval"] if isinstance(value, dict) else None
        assert one.estimate == estimate
        assert (None if one.interval is None else one.interval.model_dump()) == interval
        assert ("estimate" in one.undefined) == (estimate is None)
        assert ("interval" in one.undefined) == (interval is None)
        assert declares(BY_KIND[stored["kind"]], path)
        assert matches(path, path)
        assert matches(path, one.measure.path)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_null_has_its_reason_by_path(file: Path) -> None:
    """Counted in the JSON."""

    def nulls(node: Any, path: str) -> Iterator[str]:
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, one in items:
            if one is None:
                yield f"{path}{key}"
            elif isinstance(one, (dict, list)) and key != "undefined":
                yield from nulls(one, f"{path}{key}.")

    stored = json.loads(file.read_text())
    found = [path for path, _ in reasons(load_report(file.read_bytes()))]
    assert sorted(found) == sorted(nulls(stored["results"], ""))


def test_a_name_in_braces_stands_for_every_name_and_for_nothing_else() -> None:
    """`k` for numbers; dots part names."""
    path = "conditions.fp16_gallery.overlap@10"
    assert matches(path, "conditions.{condition}.overlap@{k}")
    assert not matches(path, "conditions.{condition}.overlap@1")
    assert not matches(path, "conditions.{condition}.jaccard@{k}")
    assert not matches("conditions.a.b.overlap@10", "conditions.{condition}.overlap@{k}")
    assert not matches("raw.gap", "raw.gab")
    assert not matches("rawxgap", "raw.gap"), "a dot is a dot"
    check = BY_KIND["neighbour_stability"]
    assert declares(check, path)
    assert declares(check, "conditions.{condition}.overlap@{k}")
    assert not declares(check, "conditions.fp16_gallery.overlapp@10")
