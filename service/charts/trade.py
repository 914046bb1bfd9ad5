"""A price against what it buys, and which choices no other beats."""

from __future__ import annotations

from collections.abc import Sequence

from service.chart import Trade
from service.charts.paths import Name, number, values
from service.charts.picture import (
    COLOURS,
    EXACT,
    GREY,
    INK,
    WIDTH,
    Nothing,
    Picture,
    Spec,
    axis_of,
    level,
    picture,
)
from service.charts.table import Mark, table
from service.charts.words import reason, some
from service.report import ReportBase
from service.results import Results

HEIGHT = 280
MOST_POINTS = 300
CLOSE = 0.05
"""Texts closer than this share of the height cover each other."""
OFF = 8
"""Pixels between a point and its text, on the side where the line does not go."""
MOST_IN_ONE = 2
"""Names of points that lie together."""
MOST_NAMED = 14
"""Points that all have their names beside them; of more, those that no other beats."""


def trade(chart: Trade, report: ReportBase) -> Picture | Nothing:
    """A point for each name; those that no other beats are joined."""
    shown = chart.shown[0]
    marks = table(report.results, (shown,))
    prices = {tuple(one.names.items()): one.estimate for one in values(report.results, chart.price)}
    points = [
        _point(one, price)
        for one in marks
        if one.value.estimate is not None and (price := prices.get(_names(one))) is not None
    ]
    if not points:
        return Nothing(reason(marks[0].value) if marks else "The report holds none of its numbers.")
    if chart.whole is not None:
        name, path, value = chart.whole
        at = number(report.results, path)
        if at is not None:
            points.insert(0, {"row": name, "price": at, "value": value, "low": None, "high": None})
    best = _joined(report.results, chart.joined)
    for one in points:
        one["best"] = one["row"] in best
    drawn = points[:MOST_POINTS]
    named = _labels([one for one in drawn if len(drawn) <= MOST_NAMED or one["best"]])
    frontier = sorted((one for one in drawn if one["best"]), key=lambda one: one["price"])
    body = _body(chart, axis_of(report, marks, chart.axis), drawn, frontier, named)
    legend = [
        level(report, [one.value for one in marks]),
        "blue, joined: no other is better at once in all that is compared" if frontier else "",
    ]
    more = len(points) - len(drawn)
    left_out = [f"{more} more points are in the report."] if more else []
    return picture(chart, body, legend, marks, left_out)


def _names(one: Mark) -> tuple[tuple[str, Name], ...]:
    return tuple((name, found) for name, found in one.value.names.items() if name != "k")


def _point(one: Mark, price: float) -> Spec:
    found = one.value
    return {
        "row": one.row, "price": price, "value": found.estimate, "low": found.low,
        "high": found.high,
    }  # fmt: skip


def _joined(results: Results, path: str) -> set[str]:
    """The names that no other beats."""
    names = getattr(results, path, None) if path else None
    return set(names or ())


def _labels(points: Sequence[Spec]) -> list[Spec]:
    """A text for each point, one for those that lie where a text would cover another."""
    seen = [end for one in points for end in (one["value"], one["low"], one["high"])]
    known = [end for end in seen if end is not None]
    near = CLOSE * (max(known) - min(known)) if known else 0
    together: list[list[Spec]] = []
    for one in sorted(points, key=lambda one: (one["price"], -one["value"])):
        first = together[-1][0] if together else None
        if first and first["price"] == one["price"] and first["value"] - one["value"] <= near:
            together[-1].append(one)
        else:
            together.append([one])
    return [
        {
            "name": ", ".join(some([one["row"] for one in close], MOST_IN_ONE)),
            "price": close[0]["price"],
            "value": close[0]["value"],
        }
        for close in together[: 2 * MOST_NAMED]
    ]


def _body(
    chart: Trade, axis: str, points: Sequence[Spec], frontier: Sequence[Spec], named: Sequence[Spec]
) -> Spec:
    dearest = max(one["price"] for one in points)
    x = {
        "x": {
            "field": "price",
            "type": "quantitative",
            "title": chart.told,
            "scale": {"type": "log", "nice": False, "padding": 48},
            "axis": {
                "values": sorted({one["price"] for one in points}),
                "format": EXACT,
                "grid": False,
                "labelOverlap": "greedy",
            },
        }
    }

    def y(field: str) -> Spec:
        scale = {"zero": False, "nice": False, "padding": 10}
        return {"field": field, "type": "quantitative", "title": axis or None, "scale": scale}

    rises = bool(frontier) and frontier[0]["value"] < frontier[-1]["value"]
    free = OFF if rises else -OFF
    shade = {"condition": {"test": {"field": "best", "equal": True}, "value": COLOURS[0]},
             "value": GREY}  # fmt: skip
    layers: list[Spec] = [
        {
            "data": {"values": list(frontier)},
            "mark": {"type": "line", "color": COLOURS[0], "strokeWidth": 1.5, "opacity": 0.6},
            "encoding": {**x, "y": y("value")},
        },
        {
            "data": {"values": [one for one in points if one["low"] is not None]},
            "mark": {"type": "rule", "strokeWidth": 1.5},
            "encoding": {**x, "y": y("low"), "y2": {"field": "high"}, "color": shade},
        },
        {
            "data": {"values": list(points)},
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
            "encoding": {**x, "y": y("value"), "color": shade},
        },
        *(
            {
                "data": {"values": [one for one in named if (one["price"] == dearest) is last]},
                "mark": {"type": "text", "align": side, "dx": away, "dy": off, "fontSize": 11,
                         "color": INK},
                "encoding": {**x, "y": y("value"), "text": {"field": "name", "type": "nominal"}},
            }
            for last, side, away, off in (
                (False, "left", 8, free), (True, "right", -8, -free),
            )
        ),
    ]  # fmt: skip
    shown = [one for one in layers if one["data"]["values"]]
    return {"width": WIDTH, "height": HEIGHT, "layer": shown}
