"""Numbers with their intervals, one row for each name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from service.chart import Dots
from service.charts.paths import values
from service.charts.picture import (
    COLOURS,
    FAINT,
    GREY,
    INK,
    MOST_PANELS,
    MOST_ROWS,
    WIDTH,
    Nothing,
    Picture,
    Spec,
    axis_of,
    coloured,
    level,
    picture,
    stacked,
)
from service.charts.table import Mark, lines, table
from service.charts.words import cut, reason
from service.report import ReportBase

STEP, ROOM = 14, 12
"""Pixels of each colour of a row, and between rows."""
TICKS = (GREY, INK)
MOST_EACH = 200
"""Small dots of one row."""


def dots(chart: Dots, report: ReportBase) -> Picture | Nothing:
    """Numbers of a chart, of as many rows as are legible."""
    marks = table(report.results, chart.shown, colours=chart.colours, panels=chart.panels)
    drawn, left_out = _fewer(marks)
    if not any(one.value.estimate is not None for one in drawn):
        return Nothing(reason(marks[0].value) if marks else "The report holds none of its numbers.")
    across = lines(report.results, chart.lines)
    labels = list(dict.fromkeys(label for one in drawn for label in one.beside))
    colours = list(dict.fromkeys(one.colour for one in drawn))
    panels = []
    for name in dict.fromkeys(one.panel for one in drawn):
        here = [one for one in drawn if one.panel == name]
        axis = axis_of(report, chart.shown[0].path, chart.axis)
        if chart.panels:
            axis = ": ".join(filter(None, (name, axis)))
        each = _each(chart, report, here)
        panels.append(_panel(chart, here, axis, across, labels, colours, each))
    legend = [
        level(report, [one.value for one in drawn]),
        *(
            f"{shade} tick: {label}"
            for shade, label in zip(("grey", "black"), labels, strict=False)
        ),
        *(f"dashed: {label}" for label in across),
        f"small circles: each {chart.each.rpartition('{')[2].partition('}')[0]}"
        if chart.each
        else "",
    ]
    return picture(chart, stacked(panels), legend, drawn, left_out)


def _fewer(marks: Sequence[Mark]) -> tuple[list[Mark], list[str]]:
    """The first panels, colours and rows of each, and what is left out."""
    panels = list(dict.fromkeys(one.panel for one in marks))
    colours = list(dict.fromkeys(one.colour for one in marks))
    rows: dict[str, dict[str, None]] = {}
    for one in marks:
        rows.setdefault(one.panel, {}).setdefault(one.row)
    kept = {panel: set(list(found)[:MOST_ROWS]) for panel, found in rows.items()}
    drawn = [
        one
        for one in marks
        if one.panel in panels[:MOST_PANELS]
        and one.colour in colours[: len(COLOURS)]
        and one.row in kept[one.panel]
    ]
    more = (
        (len(panels) - MOST_PANELS, "panels"),
        (len(colours) - len(COLOURS), "colours"),
        (max((len(found) for found in rows.values()), default=0) - MOST_ROWS, "rows"),
    )
    left = [f"{count} more {what} are in the report." for count, what in more if count > 0]
    return drawn, left


def _panel(
    chart: Dots,
    marks: Sequence[Mark],
    axis: str,
    across: Mapping[str, float],
    labels: Sequence[str],
    colours: Sequence[str],
    each: Sequence[Spec],
) -> Spec:
    rows = list(dict.fromkeys(one.row for one in marks))
    several = len(colours) > 1
    scale: Spec = {"type": chart.scale}
    if chart.scale != "log":
        scale["zero"] = chart.zero

    def x(field: str) -> Spec:
        return {"field": field, "type": "quantitative", "title": axis or None, "scale": scale}

    y: Spec = {
        "y": {
            "field": "row",
            "type": "nominal",
            "title": None,
            "scale": {"domain": rows, "padding": 0.1},
            "axis": {"ticks": False, "domain": False, "grid": several, "labelPadding": 6},
        }
    }
    if several:
        offset = {"domain": list(colours), "padding": 0.3}
        y["yOffset"] = {"field": "colour", "type": "nominal", "scale": offset}
    data = [_datum(one) for one in marks]
    known = [one for one in data if one["value"] is not None]
    ranged = [one for one in known if one["low"] is not None]
    unknown = [one for one in data if one["value"] is None]
    layers: list[Spec] = [
        {
            "data": {"values": [{"value": at, "line": label} for label, at in across.items()]},
            "mark": {"type": "rule", **FAINT},
            "encoding": {"x": x("value")},
        }
    ]
    for label, shade in zip(labels, TICKS, strict=False):
        near = [
            {**_where(one), "value": one.beside[label], "beside": label}
            for one in marks
            if label in one.beside
        ]
        layers.append(
            {
                "data": {"values": near},
                "mark": {"type": "tick", "color": shade, "thickness": 2, "size": STEP},
                "encoding": {"x": x("value"), **y},
            }
        )
    layers += [
        {
            "data": {"values": list(each)},
            "mark": {"type": "point", "size": 18, "color": GREY, "opacity": 0.7, "strokeWidth": 1},
            "encoding": {"x": x("value"), **y},
        },
        {
            "data": {"values": ranged},
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {
                "x": x("low"), "x2": {"field": "high"}, **y, **coloured(colours, shapes=False),
            },
        },
        {
            "data": {"values": known},
            "mark": {"type": "point", "filled": True, "size": 55, "opacity": 1},
            "encoding": {"x": x("value"), **y, **coloured(colours)},
        },
        {
            "data": {"values": unknown},
            "mark": {"type": "text", "align": "left", "fontStyle": "italic", "fontSize": 10,
                     "color": GREY},
            "encoding": {"x": {"value": 4}, **y, "text": {"field": "why", "type": "nominal"}},
        },
    ]  # fmt: skip
    height = len(rows) * (STEP * max(1, len(colours)) + ROOM)
    shown = [one for one in layers if one["data"]["values"]]
    return {"width": WIDTH, "height": height, "layer": shown}


def _where(one: Mark) -> Spec:
    return {"row": one.row, "colour": one.colour}


def _datum(one: Mark) -> Spec:
    found = one.value
    known = {"value": found.estimate, "low": found.low, "high": found.high}
    why = {} if found.estimate is not None else {"why": f"undefined: {cut(reason(found))}"}
    return {**_where(one), **known, **why}


def _each(chart: Dots, report: ReportBase, marks: Sequence[Mark]) -> list[Spec]:
    """What numbers are means of, in their rows."""
    if not chart.each:
        return []
    found = values(report.results, chart.each)
    return [
        {**_where(one), "value": single.estimate}
        for one in marks
        for single in [each for each in found if one.value.names.items() <= each.names.items()][
            :MOST_EACH
        ]
        if single.estimate is not None
    ]
