"""
Charts of the sample reports, which were made by the checks: their numbers are those of the report.

What stands in a report is read from its JSON and its JSON Schema, which charts are not made from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.chart import Bars, Chart, Curves, Dots, Trade
from service.charts import Painter, chart_of, pictures
from service.checks import CATALOGUE
from service.errors import UnknownChart
from service.report import load_report

from .drawn import data, faults, marks, numbers, objects, parsed, values, words

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "tests/data/reports/1.0"
FILES = sorted(FOLDER.glob("*.json"))
SCHEMAS = ROOT / "openapi/reports"

files = pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
declared = pytest.mark.parametrize(
    ("kind", "chart"),
    [
        pytest.param(check.kind, chart, id=f"{check.kind}-{chart.name}")
        for check in CATALOGUE
        for chart in check.charts
    ],
)


def of(file: Path, name: str) -> dict[str, Any]:
    return chart_of(load_report(file.read_bytes()), name).spec


def results(kind: str) -> Any:
    return json.loads((FOLDER / f"{kind}.json").read_text())["results"]


def spec(kind: str, name: str) -> dict[str, Any]:
    return of(FOLDER / f"{kind}.json", name)


def told(found: dict[str, Any]) -> tuple[float, float | None, float | None]:
    """An estimate as the report has it."""
    interval = found["interval"] or {"low": None, "high": None}
    return found["estimate"], interval["low"], interval["high"]


def drawn(row: dict[str, Any]) -> tuple[float, float | None, float | None]:
    return row["value"], row["low"], row["high"]


def test_every_check_has_charts_and_each_a_name_of_its_own() -> None:
    for check in CATALOGUE:
        names = [chart.name for chart in check.results.charts]
        assert names, check.kind
        assert len(set(names)) == len(names)
        assert all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in names)
        assert all(re.fullmatch("[A-Z].*[?]", chart.question) for chart in check.results.charts)


@files
def test_every_report_has_a_chart(file: Path) -> None:
    assert list(pictures(load_report(file.read_bytes())))


def paths(chart: Chart) -> Iterator[str]:
    """Every path a chart declares."""
    for one in chart.shown:
        yield one.path
        yield from one.beside.values()
    if isinstance(chart, (Dots, Curves)):
        yield from (line for line in chart.lines.values() if isinstance(line, str))
    if isinstance(chart, Dots) and chart.each:
        yield chart.each
    if isinstance(chart, Curves) and isinstance(chart.start, str):
        yield chart.start
    if isinstance(chart, Trade):
        yield chart.price
        if chart.whole is not None:
            yield chart.whole[1]


def inside(schema: Any, defined: Any, key: str) -> Iterator[Any]:
    """The schemas a key of a path may lead to."""
    if "$ref" in schema:
        yield from inside(defined[schema["$ref"].rpartition("/")[2]], defined, key)
        return
    for branch in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        yield from inside(branch, defined, key)
    if key.startswith("{"):
        if ":" in key:
            for one in key.strip("{}").partition(":")[2].split("|"):
                assert one in schema["properties"], one
                yield schema["properties"][one]
            return
        if isinstance(schema.get("additionalProperties"), dict):
            yield schema["additionalProperties"]
        if "items" in schema:
            yield schema["items"]
        if "patternProperties" in schema and not schema.get("properties"):
            yield from schema["patternProperties"].values()
        if schema.get("type") == "object" and "propertyNames" in schema and "properties" in schema:
            yield from schema["properties"].values()
    else:
        plain = key.replace("{k}", "10")
        if plain in schema.get("properties", {}):
            yield schema["properties"][plain]
        for pattern, found in schema.get("patternProperties", {}).items():
            if re.search(pattern, plain):
                yield found


def is_number(schema: Any, defined: Any) -> bool:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return name in ("Estimate", "PValue") or is_number(defined[name], defined)
    branches = (*schema.get("anyOf", ()), *schema.get("allOf", ()))
    return schema.get("type") in ("number", "integer") or any(
        is_number(one, defined) for one in branches
    )


@declared
def test_every_path_leads_to_a_number(kind: str, chart: Chart) -> None:
    """By the JSON Schema of the report: a path misspelled would be a picture that is never there."""
    whole = json.loads((SCHEMAS / f"{kind}.schema.json").read_text())
    defined = whole["$defs"]
    for path in paths(chart):
        found = [whole["properties"]["results"]]
        for key in path.split("."):
            found = [one for schema in found for one in inside(schema, defined, key)]
            assert found, (path, key)
        assert any(is_number(one, defined) for one in found), path
    if isinstance(chart, Trade) and chart.joined:
        name = whole["properties"]["results"]["$ref"].rpartition("/")[2]
        assert defined[name]["properties"][chart.joined]["type"] == "array"


@files
def test_every_chart_is_vega_lite_that_refers_to_nothing(file: Path) -> None:
    """By the schema of Vega-Lite; no address, no transform, no expression."""
    for picture in pictures(load_report(file.read_bytes())):
        assert faults(picture.spec) == [], picture.name
        found = list(objects(picture.spec))
        assert all(one.keys().isdisjoint({"url", "expr", "signal", "transform"}) for one in found)
        assert all(one["data"].keys() == {"values"} for one in found if "data" in one)
        assert picture.spec["$schema"].startswith("https://vega.github.io/schema/vega-lite/v6")
        assert json.loads(json.dumps(picture.spec, allow_nan=False)) == picture.spec


def test_the_schema_refuses_what_is_no_vega_lite() -> None:
    assert faults({"data": {"values": []}, "mark": "smear"})


@files
def test_every_number_of_a_chart_is_in_its_report(file: Path) -> None:
    """As often at most as it is declared; lines and starts that are constants excepted."""
    report = json.loads(file.read_text())
    there = numbers(report["results"]).keys() | {0.0, 0.05, 0.5, 1.0}
    for picture in pictures(load_report(file.read_bytes())):
        for layer in objects(picture.spec):
            for row in layer.get("data", {}).get("values", ()):
                for key in ("value", "low", "high", "price"):
                    assert row.get(key) is None or float(row[key]) in there, (picture.name, row)


@files
def test_a_drawing_has_a_mark_for_each_number(file: Path, painter: Painter) -> None:
    """Points, intervals, bars and texts counted in the SVG."""
    for picture in pictures(load_report(file.read_bytes())):
        svg = painter.draw(picture, "svg")
        points = len(data(picture.spec, "point"))
        beside = sum(
            len(one["data"]["values"])
            for one in objects(picture.spec)
            if isinstance(one.get("mark"), dict) and one["mark"].get("point")
        )
        assert marks(svg, "symbol") == points + beside, picture.name
        ticks = data(picture.spec, "tick") + data(picture.spec, "bar")
        assert marks(svg, "rect") == len(ticks), picture.name
        assert marks(svg, "rule") == len(data(picture.spec, "rule")), picture.name
        assert marks(svg, "text") == len(data(picture.spec, "text")), picture.name
        seen = " ".join(words(svg))
        for row in values(picture.spec):
            assert "price" in row or str(row.get("row", "")) in seen
        assert parsed(svg).get("aria-label") == picture.told == picture.spec["description"]
        assert parsed(svg).get("role") == "img"


@files
def test_the_words_of_a_chart_say_its_question_and_its_numbers(file: Path) -> None:
    for picture in pictures(load_report(file.read_bytes())):
        assert picture.told.startswith(picture.question)
        for row in values(picture.spec)[:20]:
            if "row" in row or "x" in row:
                assert any(text in picture.told for text in written(row["value"])), row


def written(value: float) -> set[str]:
    """A number to four digits, as people write it."""
    return {f"{value:,}", f"{value:.4g}", f"{value:,.0f}"}


def test_retrieval_draws_hits_by_k_with_what_chance_gives() -> None:
    found, chart = results("retrieval"), spec("retrieval", "hit")
    expected = {
        (name, float(k.partition("@")[2])): told(value)
        for name, model in found["models"].items()
        for k, value in model.items()
        if k.startswith("hit@")
    }
    assert {(row["colour"], row["x"]): drawn(row) for row in values(chart)} == expected
    chance = {
        float(k.partition("@")[2]): v for k, v in found.items() if k.startswith("chance_hit@")
    }
    lines = data(chart, "line")
    assert chance.items() <= {
        (row["x"], row["value"]) for row in lines if row.get("beside") == "order at random"
    }


def test_retrieval_draws_paired_differences_around_no_difference() -> None:
    found, chart = results("retrieval"), spec("retrieval", "differences")
    expected = {
        f"{later} − {earlier}": told(pair["mrr"])
        for later, others in found["differences"].items()
        for earlier, pair in others.items()
    }
    panel = next(one for one in chart["vconcat"] if "MRR" in json.dumps(one))
    assert {row["row"]: drawn(row) for row in values(panel)} == expected
    assert {"value": 0, "line": "no difference"} in data(panel, "rule")


def test_label_neighbours_draws_labels_beside_their_floors() -> None:
    found, chart = results("label_neighbours"), spec("label_neighbours", "labels")
    rows = [(row["label"], row["precision"], row["floor"]) for row in found["classes"][:40]]
    assert [(row["row"], row["value"]) for row in values(chart)] == [one[:2] for one in rows]
    floors = {row["row"]: row["value"] for row in data(chart, "tick")}
    assert floors == {label: floor for label, _, floor in rows}


def test_compression_draws_bytes_against_neighbours_and_the_frontier() -> None:
    found, chart = results("compression"), spec("compression", "bytes")
    expected = {
        name: (one["bytes_per_vector"], *told(one[f"overlap@{found['k']}"]))
        for name, one in found["variants"].items()
        if one["bytes_per_vector"] is not None
    }
    expected["native"] = (found["native"]["bytes_per_vector"], 1.0, None, None)
    assert {row["row"]: (row["price"], *drawn(row)) for row in values(chart)} == expected
    assert {row["row"] for row in data(chart, "line")} == set(found["frontier"])
    assert {row["row"] for row in values(chart) if row["best"]} == set(found["frontier"])


def test_stress_response_draws_a_curve_for_each_damage_from_the_rows_as_given() -> None:
    found, chart = results("stress_response"), spec("stress_response", "labels")
    key = f"label_precision@{found['k']}"
    expected = {
        (one["damage"], one["severity"]): told(one[key])
        for one in found["conditions"].values()
        if one[key]["estimate"] is not None
    }
    for damage in {damage for damage, _ in expected}:
        expected[damage, 0] = told(found["native"][key])
    assert {(row["colour"], row["x"]): drawn(row) for row in values(chart)} == expected
    assert data(chart, "rule") == [{"value": found["label_floor"], "line": "random neighbours"}]


def test_seed_contrasts_draws_each_seed_under_its_mean() -> None:
    found, chart = results("seed_contrasts"), spec("seed_contrasts", "differences")
    panels = chart.get("vconcat", [chart])
    metrics = list(next(iter(found["contrasts"].values()))["metrics"])
    for metric, panel in zip(metrics, panels, strict=True):
        by_contrast = {name: one["metrics"][metric] for name, one in found["contrasts"].items()}
        means = {row["row"]: drawn(row) for row in values(panel)}
        assert means == {name: told(one["mean"]) for name, one in by_contrast.items()}
        small = [row for row in data(panel, "point") if "low" not in row]
        for name, one in by_contrast.items():
            seeds = [row["value"] for row in small if row["row"] == name]
            assert seeds == [each["difference"] for each in one["differences"]]


def test_neighbour_stability_draws_counts_that_add_up_to_the_queries() -> None:
    found, chart = results("neighbour_stability"), spec("neighbour_stability", "proved")
    keys = ("certified", "uncertified_unchanged", "changed_queries")
    sums: dict[str, float] = {}
    for row in data(chart, "bar"):
        sums[row["row"]] = sums.get(row["row"], 0) + row["value"]
    judged = {
        name: found["queries"]
        for name, one in found["conditions"].items()
        if all(one[key] is not None for key in keys)
    }
    assert judged
    assert sums == judged


def test_group_structure_draws_r2_beside_what_permuted_labels_give() -> None:
    found, chart = results("group_structure"), spec("group_structure", "variation")
    assert {row["row"]: drawn(row) for row in values(chart)} == {
        name: told(one["r2"]) for name, one in found["models"].items()
    }
    assert {row["row"]: row["value"] for row in data(chart, "tick")} == {
        name: one["r2_expected"] for name, one in found["models"].items()
    }


@pytest.mark.parametrize(
    ("kind", "name", "rows"),
    [
        ("geometry", "directions", {
            "participation ratio": "participation_ratio", "stable rank": "stable_rank",
            "rankme": "rankme", "rankme centred": "rankme_centred",
        }),
        ("search_hygiene", "rows", {
            "with a near duplicate": "near_duplicates.rows", "outliers": "outliers.rows",
            "on islands": "islands.rows", "alone": "islands.alone",
        }),
        ("drift", "p_values", {
            "MMD, Gaussian": "mmd.gaussian_p", "classifier": "classifier.p",
            "PERMANOVA F2": "permanova.p_f2", "spread": "dispersion.p",
        }),
        ("cosine_floor", "gap", {
            "raw": "raw.gap_over_floor_sd", "centred": "centred.gap_over_floor_sd",
        }),
        ("power", "groups", {"for the correlation": "groups_for_correlation"}),
        ("model_comparison", "agreement", {}),
        ("linear_probe", "accuracy", {}),
    ],
)  # fmt: skip
def test_a_row_is_the_number_it_is_called(kind: str, name: str, rows: dict[str, str]) -> None:
    """Looked up key by key in the JSON."""
    shown = {row["row"]: row for row in values(spec(kind, name))}
    assert shown
    for row, path in rows.items():
        value = results(kind)
        for key in path.split("."):
            value = value[key]
        number = value["estimate"] if isinstance(value, dict) else value
        if number is None:
            assert row not in shown
        else:
            assert shown[row]["value"] == number


def test_what_is_null_is_said_and_not_drawn(painter: Painter) -> None:
    """A row without a number has its reason in its place, and no point."""
    report = json.loads((FOLDER / "neighbour_stability.json").read_text())
    name = next(iter(report["results"]["conditions"]))
    key = f"overlap@{report['results']['k']}"
    why = {"code": "overflow", "message": "Rows became infinite."}
    nothing = {"estimate": None, "interval": None, "undefined": {"estimate": why, "interval": why}}
    report["results"]["conditions"][name][key] = nothing
    picture = chart_of(load_report(json.dumps(report).encode()), "overlap")
    assert name not in {row["row"] for row in values(picture.spec)}
    assert {"undefined: Rows became infinite."} == {
        row["why"] for row in data(picture.spec, "text") if row["row"] == name
    }
    assert f"{name}" in picture.told
    assert "undefined: Rows became infinite." in picture.told
    assert "undefined: Rows became infinite." in words(painter.draw(picture, "svg"))


def test_a_curve_says_what_it_has_no_point_for() -> None:
    report = json.loads((FOLDER / "stress_response.json").read_text())
    key = f"overlap@{report['results']['k']}"
    condition = next(iter(report["results"]["conditions"].values()))
    why = {"code": "zero_rows", "message": "Nothing is left of a row."}
    condition[key] = {
        "estimate": None, "interval": None, "undefined": {"estimate": why, "interval": why},
    }  # fmt: skip
    found = chart_of(load_report(json.dumps(report).encode()), "overlap").spec
    place = (condition["damage"], condition["severity"])
    assert place not in {(row["colour"], row["x"]) for row in values(found)}
    assert "Nothing is left of a row." in " ".join(found["title"]["subtitle"])


def test_a_chart_of_that_name_is_suggested_or_what_it_lacks_is_said() -> None:
    report = load_report((FOLDER / "geometry_equal_rows.json").read_bytes())
    with pytest.raises(UnknownChart, match="did you mean `spread`"):
        chart_of(report, "spred")
    with pytest.raises(UnknownChart, match=r"There is nothing to draw in `spectrum`\. .*equal"):
        chart_of(report, "spectrum")


def test_bars_have_no_more_parts_than_colours() -> None:
    for check in CATALOGUE:
        for chart in check.charts:
            assert not isinstance(chart, Bars) or len(chart.shown) <= 3


@pytest.mark.parametrize("file", [ROOT / "examples/charts/compression_bytes.svg", None])
def test_no_name_lies_on_the_line_that_joins_points(file: Path | None, painter: Painter) -> None:
    """In the drawing: a thousand points of the line against a box about each text."""
    report = load_report((FOLDER / "compression.json").read_bytes())
    svg = painter.draw(chart_of(report, "bytes"), "svg") if file is None else file.read_bytes()
    (line,) = re.findall(rb'<path d="M([-\d.,L]+)"[^>]*opacity="0.6"', svg)
    ends = np.array([[float(n) for n in end.split(b",")] for end in line.split(b"L")])
    x = np.linspace(ends[0, 0], ends[-1, 0], 1000)
    y = np.interp(x, *ends.T)
    texts = re.findall(
        rb'<text text-anchor="(start|end)" transform="translate\(([\d.]+),([\d.]+)\)"'
        rb"[^>]*>((?:native|pca|prefix)\w*)<",
        svg,
    )
    assert len(texts) >= 3
    for anchor, left, base, name in texts:
        start, width = float(left), 5.0 * len(name)
        low = start - (width if anchor == b"end" else 0)
        beneath = (low <= x) & (x <= low + width)
        assert not (beneath & (float(base) - 8 <= y) & (y <= float(base) + 2)).any(), name
