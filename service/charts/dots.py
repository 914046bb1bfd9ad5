"""Numbers with their intervals, one row for each name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from service.chart import Dots
from service.charts.paths import values
from service.charts.picture import (
    COLOURS,
    EXACT,
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

STEP, ROOM, LITTLE_ROOM = 14, 12, 4
"""Pixels of each colour of a row, and between rows, few and many."""
MANY_ROWS = 12
P_VALUES = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1]
NEAR_ALL = 0.7
"""Shares up to here need no scale up to 1."""
ROUNDING = 1e-9
TICKS = (GREY, INK)
MOST_EACH = 200
"""Small dots of one row."""


def dots(chart: Dots, report: ReportBase) -> Picture | Nothing:
    """Numbers of a chart, of as many rows as are legible."""
    marks = table(report.results, chart.shown, colours=chart.colours, panels=chart.panels)
    drawn, left_out = _fewer(_panels_with_numbers(marks))
    if not any(one.value.estimate is not None for one in drawn):
        return Nothing(reason(marks[0].value) if marks else "The report holds none of its numbers.")
    across = lines(report.results, chart.lines)
    labels = list(dict.fromkeys(label for one in drawn for label in one.beside))
    colours = list(dict.fromkeys(one.colour for one in drawn))
    panels = []
    for name in dict.fromkeys(one.panel for one in drawn):
        here = [one for one in drawn if one.panel == name]
        axis = axis_of(report, here, chart.axis)
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
    empty = [one for one in marks if one.panel not in {other.panel for other in drawn}]
    return picture(chart, stacked(panels), legend, [*drawn, *empty], left_out, drawn)


def _panels_with_numbers(marks: Sequence[Mark]) -> list[Mark]:
    known = {one.panel for one in marks if one.value.estimate is not None}
    return [one for one in marks if one.panel in known]


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
    scale = _scale(chart, marks, [*across.values()])
    ticks = {"values": P_VALUES, "format": EXACT} if chart.scale == "sqrt" else {}

    def x(field: str) -> Spec:
        return {
            "field": field,
            "type": "quantitative",
            "title": axis or None,
            "scale": scale,
            "axis": ticks,
        }

    y: Spec = {
        "y": {
            "field": "row",
            "type": "nominal",
            "title": None,
            "scale": {"type": "band", "domain": rows},
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
    silent = {one["row"] for one in data} - {one["row"] for one in known}
    of_rows = {one["row"]: one for one in reversed(unknown) if one["row"] in silent}
    of_marks = [one for one in unknown if one["row"] not in silent]
    row = {"y": y["y"]}
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
        *(
            {
                "data": {"values": which},
                "mark": {"type": "text", "align": "left", "fontStyle": "italic", "fontSize": 10,
                         "color": GREY},
                "encoding": {"x": {"value": 4}, **where, "text": {"field": "why", "type": "nominal"}},
            }
            for which, where in ((of_marks, y), (list(of_rows.values()), row))
        ),
    ]  # fmt: skip
    room = ROOM if len(rows) <= MANY_ROWS else LITTLE_ROOM
    height = len(rows) * (STEP * max(1, len(colours)) + room)
    shown = [one for one in layers if one["data"]["values"]]
    return {"width": WIDTH, "height": height, "layer": shown}


def _scale(chart: Dots, marks: Sequence[Mark], across: Sequence[float]) -> Spec:
    """From 0 where that is asked for; up to 1 where shares come near it; of p-values, all."""
    if chart.scale == "log":
        return {"type": "log"}
    if chart.scale == "sqrt":
        return {"type": "sqrt", "domain": [0, 1]}
    ends = [end for one in marks for end in (one.value.estimate, one.value.high) if end is not None]
    most = max([*ends, *across, *(value for one in marks for value in one.beside.values())])
    to_one = chart.zero and NEAR_ALL < most <= 1 + ROUNDING
    return {"type": "linear", "zero": chart.zero, **({"domainMax": 1} if to_one else {})}


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
