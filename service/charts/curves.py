"""Numbers with their bands along a name that is a number: a cutoff, a dose, a severity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from service.chart import Curves
from service.charts.paths import Value, values
from service.charts.picture import (
    COLOURS,
    EXACT,
    FAINT,
    GREY,
    MOST_PANELS,
    MOST_POINTS,
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
from service.charts.words import reason
from service.report import ReportBase

HEIGHT = 240
DASHES = (("dashed", [5, 3]), ("dotted", [1, 3]))
MOST_LABELS = 12
"""Points of an axis that are all labelled."""


def curves(chart: Curves, report: ReportBase) -> Picture | Nothing:
    """Curves of a chart, a panel below the other where there are several."""
    marks = table(
        report.results,
        chart.shown,
        colours=chart.colours,
        panels=chart.panels,
        along=chart.along,
    )
    if not any(one.value.estimate is not None for one in marks):
        return Nothing(reason(marks[0].value) if marks else "The report holds none of its numbers.")
    marks = [*_starts(chart, report, marks), *marks]
    drawn, left_out = _fewer(marks)
    across = lines(report.results, chart.lines)
    labels = list(dict.fromkeys(label for one in drawn for label in one.beside))
    colours = list(dict.fromkeys(one.colour for one in drawn))
    panels = []
    for name in dict.fromkeys(one.panel for one in drawn):
        here = [one for one in drawn if one.panel == name]
        axis = axis_of(report, here, chart.axis)
        if chart.panels:
            axis = ": ".join(filter(None, (name, axis)))
        panels.append(_panel(chart, here, axis, across, labels, colours))
    legend = [
        level(report, [one.value for one in drawn]).replace("lines", "bands"),
        *(f"{dash}: {label}" for (dash, _), label in zip(DASHES, labels, strict=False)),
        *(f"dashed line: {label}" for label in across),
    ]
    return picture(chart, stacked(panels), legend, drawn, left_out)


def _starts(chart: Curves, report: ReportBase, marks: Sequence[Mark]) -> list[Mark]:
    """The point at 0 that curves have in common, once for each."""
    if chart.start is None:
        return []
    if isinstance(chart.start, str):
        found = values(report.results, chart.start)
    else:
        found = [Value({}, "", chart.start)]
    curves = {(one.panel, one.row, one.colour): one for one in marks}
    return [
        replace(one, x=0, value=replace(start, names={}), beside={})
        for one in curves.values()
        for start in found[:1]
    ]


def _fewer(marks: Sequence[Mark]) -> tuple[list[Mark], list[str]]:
    """The first panels, colours and points of each curve, and what is left out."""
    panels = list(dict.fromkeys(one.panel for one in marks))[:MOST_PANELS]
    colours = list(dict.fromkeys(one.colour for one in marks))
    taken: dict[tuple[str, str], int] = {}
    drawn = []
    for one in marks:
        curve = (one.panel, one.colour)
        taken[curve] = taken.get(curve, 0) + 1
        if (
            one.panel in panels
            and one.colour in colours[: len(COLOURS)]
            and taken[curve] <= MOST_POINTS
        ):
            drawn.append(one)
    more = (
        (len(colours) - len(COLOURS), "curves"),
        (max(taken.values(), default=0) - MOST_POINTS, "points"),
    )
    return drawn, [f"{count} more {what} are in the report." for count, what in more if count > 0]


def _panel(
    chart: Curves,
    marks: Sequence[Mark],
    axis: str,
    across: Mapping[str, float],
    labels: Sequence[str],
    colours: Sequence[str],
) -> Spec:
    at = sorted({_x(one) for one in marks if one.value.estimate is not None})
    scale: Spec = {"zero": False}
    if chart.scale == "log" and len(at) > 1:
        scale = {"type": "log"}
    ticks: Spec = {"grid": False, "format": EXACT}
    if len(at) <= MOST_LABELS:
        ticks["values"] = at
    x = {
        "x": {
            "field": "x",
            "type": "quantitative",
            "title": chart.told or chart.along,
            "scale": scale,
            "axis": ticks,
        }
    }

    def y(field: str) -> Spec:
        return {
            "field": field,
            "type": "quantitative",
            "title": axis or None,
            "scale": {"zero": chart.zero},
        }

    known = [
        {**_where(one), "value": found.estimate, "low": found.low, "high": found.high}
        for one in marks
        if (found := one.value).estimate is not None
    ]
    ranged = [one for one in known if one["low"] is not None]
    band = {"type": "area", "opacity": 0.18} if len(at) > 1 else {"type": "rule", "strokeWidth": 2}
    layers: list[Spec] = [
        {
            "data": {
                "values": [{"value": value, "line": label} for label, value in across.items()]
            },
            "mark": {"type": "rule", **FAINT},
            "encoding": {"y": y("value")},
        }
    ]
    for (_, dash), label in zip(DASHES, labels, strict=False):
        near, shade = _beside(marks, label)
        layers.append(
            {
                "data": {"values": near},
                "mark": {"type": "line", "strokeDash": dash, "strokeWidth": 1.2,
                         "point": {"filled": False, "size": 12, "strokeWidth": 1}},
                "encoding": {
                    **x, "y": y("value"),
                    **(coloured(colours, shapes=False) if shade else {"color": {"value": GREY}}),
                },
            }
        )  # fmt: skip
    layers += [
        {
            "data": {"values": ranged},
            "mark": band,
            "encoding": {
                **x, "y": y("low"), "y2": {"field": "high"}, **coloured(colours, shapes=False),
            },
        },
        {
            "data": {"values": known},
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {**x, "y": y("value"), **coloured(colours, shapes=False)},
        },
        {
            "data": {"values": known},
            "mark": {"type": "point", "filled": True, "size": 40, "opacity": 1},
            "encoding": {**x, "y": y("value"), **coloured(colours)},
        },
    ]  # fmt: skip
    shown = [one for one in layers if one["data"]["values"]]
    return {"width": WIDTH, "height": HEIGHT, "layer": shown}


def _where(one: Mark) -> Spec:
    return {"x": _x(one), "colour": one.colour}


def _x(one: Mark) -> float:
    return 0.0 if one.x is None else one.x


def _beside(marks: Sequence[Mark], label: str) -> tuple[list[Spec], bool]:
    """What stands beside the curves, once where it is the same for all, and whether it is not."""
    found = {(one.colour, _x(one)): one.beside[label] for one in marks if label in one.beside}
    common = {(x, value) for (_, x), value in found.items()}
    if len(common) == len({x for x, _ in common}):
        once = sorted(common)
        return [{"x": x, "value": value, "beside": label} for x, value in once], False
    return [
        {"x": x, "colour": colour, "value": value, "beside": label}
        for (colour, x), value in found.items()
    ], True
