"""What users wrote stays text: in specifications it is data, in drawings it is words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.charts import Painter, Picture, chart_of, pictures
from service.charts.words import apart, spelled
from service.report import load_report

from .drawn import data, faults, marks, objects, parsed, values, words

FOLDER = Path(__file__).parent.parent / "data" / "reports" / "1.0"
NONCHARACTERS = [
    0xFDD0,
    0xFDEF,
    *(16**4 * plane + end for plane in (1, 16) for end in (0xFFFE, 0xFFFF)),
]
HOSTILE = [
    "<script>alert(1)</script>",
    '"><image href="http://127.0.0.1:9/x" onload="alert(1)"/>',
    "]]></text></svg><script>alert(1)</script>",
    "datum.value; open('http://127.0.0.1:9')",
    '{"expr": "warn(1)"}',
    '{"signal": "width"}',
    "' + alert(1) + '",
    "\\u003cscript\\u003e ${7 * 7} {{ 7 * 7 }}",
    "&lt;b&gt; &amp; %3Cb%3E",
    "\N{RIGHT-TO-LEFT OVERRIDE}drowssap",
    "new\nline\ttab\x00nul\x1b[31m\ufffe\uffff",
    "\ufffe\uffff",
    "".join(map(chr, NONCHARACTERS)),
    "null",
    "__proto__",
    "constructor",
    "",
]


def labelled(labels: list[Any], kind: str = "label_neighbours") -> Any:
    report = json.loads((FOLDER / f"{kind}.json").read_text())
    classes = report["results"]["classes"]
    report["results"]["classes"] = [
        {**classes[0], "label": label, "precision": (i + 1) / 100} for i, label in enumerate(labels)
    ]
    return load_report(json.dumps(report).encode())


@pytest.mark.parametrize("label", HOSTILE)
def test_a_label_is_data_in_a_specification_and_words_in_a_drawing(
    label: str, painter: Painter
) -> None:
    """The same objects and elements as of a tame label, and the label to be read."""
    tame = chart_of(labelled(["tame", "other"]), "labels")
    wild = chart_of(labelled([label, "other"]), "labels")
    assert faults(wild.spec) == []
    shape = [sorted(one) for one in objects(wild.spec)]
    assert shape == [sorted(one) for one in objects(tame.spec)]
    svg = painter.draw(wild, "svg")
    assert [one.tag for one in parsed(svg).iter()] == [
        one.tag for one in parsed(painter.draw(tame, "svg")).iter()
    ]
    (row,) = {row["row"] for row in values(wild.spec)} - {"other"}
    assert row in words(svg)
    assert row in parsed(svg).get("aria-label", "")
    assert painter.draw(wild, "png").startswith(b"\x89PNG")


def test_ids_models_and_reasons_are_data_as_well(painter: Painter) -> None:
    """Hubs by id, seeds by name, and what a null says."""
    report = json.loads((FOLDER / "search_hygiene.json").read_text())
    report["results"]["hubness"]["hubs"] = [
        {"id": label, "lists": i + 20} for i, label in enumerate(HOSTILE)
    ]
    hubs = chart_of(load_report(json.dumps(report).encode()), "hubs")
    assert marks(painter.draw(hubs, "svg"), "symbol") == len(HOSTILE)

    report = json.loads((FOLDER / "group_structure.json").read_text())
    model = next(iter(report["results"]["models"].values()))
    why = {"code": "x", "message": "</text><script>alert(1)</script> {{ 7 * 7 }}"}
    model["r2"] = {
        "estimate": None, "interval": None, "undefined": {"estimate": why, "interval": why},
    }  # fmt: skip
    for picture in pictures(load_report(json.dumps(report).encode())):
        assert faults(picture.spec) == []
        parsed(painter.draw(picture, "svg"))


def test_a_name_of_more_letters_than_fit_is_cut_and_stays_apart(painter: Painter) -> None:
    """Labels alike in their first letters, or only in what is visible, are rows of their own."""
    labels = ["x" * 200 + "a", "x" * 200 + "b", True, "True", 1, "1", "\n", "[U+000A]"]
    picture = chart_of(labelled(labels), "labels")
    rows = [row["row"] for row in values(picture.spec)]
    assert len(set(rows)) == len(labels)
    assert max(map(len, rows)) < 45
    assert marks(painter.draw(picture, "svg"), "symbol") == len(labels)


def test_more_rows_than_are_legible_are_counted(painter: Painter) -> None:
    """Ten thousand labels are forty rows and a sentence."""
    picture = chart_of(labelled([f"label {i}" for i in range(10_000)]), "labels")
    assert len(values(picture.spec)) == 40
    assert "9960 more rows are in the report." in picture.spec["title"]["subtitle"]
    assert "9960 more rows are in the report." in picture.told
    assert len(painter.draw(picture, "svg")) < 100_000


def test_more_models_than_colours_are_counted() -> None:
    report = json.loads((FOLDER / "model_comparison.json").read_text())
    pair = next(iter(next(iter(report["results"]["pairs"].values())).values()))
    report["results"]["pairs"] = {
        f"m{i}": {f"m{j}": pair for j in range(i)} for i in range(1, 8)
    }  # 28 pairs
    picture = chart_of(load_report(json.dumps(report).encode()), "agreement")
    assert len({row["colour"] for row in values(picture.spec)}) == 8
    assert "20 more colours are in the report." in picture.told


def test_more_points_than_a_curve_shows_are_counted(painter: Painter) -> None:
    report = json.loads((FOLDER / "geometry.json").read_text())
    report["results"]["spectrum"]["leading_shares"] = [1 / (i + 1) for i in range(4096)]
    picture = chart_of(load_report(json.dumps(report).encode()), "spectrum")
    assert [row["x"] for row in values(picture.spec)] == list(range(1, 257))
    assert "3840 more points are in the report." in picture.told
    assert len(painter.draw(picture, "svg")) < 200_000


@given(st.lists(st.tuples(st.text(max_size=60), st.integers() | st.booleans()), unique=True))
@settings(max_examples=200)
def test_texts_of_different_names_are_different_and_can_be_seen(
    names: list[tuple[Any, ...]],
) -> None:
    found = apart(names)
    assert len(set(found.values())) == len(found)
    for text in found.values():
        assert text.isprintable() or "\xa0" in text or any(c.isspace() for c in text)
        assert not any(c in text for c in "\n\r\t\x00\u202e\ufffe")


@given(st.text(max_size=80))
def test_a_name_is_one_line_of_characters_that_xml_can_hold(name: str) -> None:
    text = spelled(name)
    assert 0 < len(text) <= 36
    assert not any(ord(c) < 32 or c in "\ufffe\uffff" or 0xD800 <= ord(c) < 0xE000 for c in text)


def test_a_picture_is_the_same_each_time() -> None:
    """Specifications have no clock, no chance and no order of a set in them."""
    for file in sorted(FOLDER.glob("*.json")):
        report = load_report(file.read_bytes())
        one, other = ([json.dumps(each.spec) for each in pictures(report)] for _ in range(2))
        assert one == other


def test_data_of_layers_are_of_the_rows_that_are_shown() -> None:
    picture: Picture = chart_of(labelled(HOSTILE), "labels")
    rows = {row["row"] for row in values(picture.spec)}
    assert {row["row"] for row in data(picture.spec, "tick")} == rows
