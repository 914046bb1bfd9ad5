"""Counts that add up, one bar for each name."""

from __future__ import annotations

from service.chart import Bars
from service.charts.picture import (
    COLOURS,
    MOST_ROWS,
    WIDTH,
    Nothing,
    Picture,
    axis_of,
    picture,
)
from service.charts.table import table
from service.charts.words import reason
from service.report import ReportBase

STEP = 24
SHADES = (COLOURS[0], COLOURS[5], COLOURS[1])
"""The last part stands out."""


def bars(chart: Bars, report: ReportBase) -> Picture | Nothing:
    """Bars from 0, their parts in declared order."""
    marks = table(report.results, chart.shown, colours="measure")
    if not any(one.value.estimate is not None for one in marks):
        return Nothing(reason(marks[0].value) if marks else "The report holds none of its numbers.")
    rows = list(dict.fromkeys(one.row for one in marks))
    drawn = [one for one in marks if one.row in set(rows[:MOST_ROWS])]
    left_out = [f"{len(rows) - MOST_ROWS} more rows are in the report."]
    parts = list(dict.fromkeys(one.colour for one in drawn))
    data = [
        {
            "row": one.row,
            "colour": one.colour,
            "place": parts.index(one.colour),
            "value": one.value.estimate,
        }
        for one in drawn
        if one.value.estimate is not None
    ]
    body = {
        "width": WIDTH,
        "height": STEP * len(rows[:MOST_ROWS]),
        "data": {"values": data},
        "mark": {"type": "bar", "height": {"band": 0.7}},
        "encoding": {
            "x": {
                "field": "value",
                "type": "quantitative",
                "title": axis_of(report, marks, chart.axis) or None,
                "stack": "zero",
            },
            "y": {
                "field": "row",
                "type": "nominal",
                "title": None,
                "scale": {"domain": rows[:MOST_ROWS]},
                "axis": {"ticks": False, "domain": False, "labelPadding": 6},
            },
            "color": {
                "field": "colour",
                "type": "nominal",
                "scale": {"domain": parts, "range": list(SHADES[: len(parts)])},
            },
            "order": {"field": "place", "type": "quantitative"},
        },
    }
    return picture(chart, body, [], drawn, left_out if len(rows) > MOST_ROWS else [])
