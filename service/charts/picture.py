"""A picture: a Vega-Lite specification that holds its own numbers, and the same in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.chart import Chart
from service.charts.paths import Value
from service.charts.table import Mark
from service.charts.words import MOST_NOTES, MOST_TOLD, cut, lines, more, numbers, reason, some
from service.check import Measure
from service.measured import fields
from service.report import ReportBase
from service.request import check_of

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
Spec = dict[str, Any]
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255")
"""Okabe and Ito's, which colour-blind people tell apart, but for its yellow, unseen on white."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "stroke", "wedge")
GREY, INK = "#767676", "#1b1f24"
FAINT = {"color": GREY, "strokeDash": [4, 3], "strokeWidth": 1}
EXACT = ".6~g"
"""How labels of an axis are written; without a precision they are rounded to the step of the axis."""
WIDTH = 460
MOST_ROWS = 40
MOST_PANELS = 8
MOST_POINTS = 256
"""Of one curve."""
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
CONFIG: Spec = {
    "font": FONT,
    "aria": False,
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "labelLimit": 260,
        "labelFlush": False,
        "tickCount": 6,
        "labelColor": INK,
        "titleColor": INK,
        "gridColor": "#e6e8eb",
        "domainColor": "#b8bec5",
        "tickColor": "#b8bec5",
    },
    "legend": {
        "orient": "bottom",
        "title": None,
        "columns": 4,
        "labelFontSize": 11,
        "labelLimit": 200,
        "labelColor": INK,
        "symbolOpacity": 1,
    },
    "title": {
        "anchor": "start",
        "frame": "bounds",
        "fontSize": 14,
        "color": INK,
        "subtitleFontSize": 11,
        "subtitleColor": "#59636e",
        "offset": 12,
        "subtitlePadding": 4,
    },
    "concat": {"spacing": 24},
}


@dataclass(frozen=True)
class Picture:
    """One picture of a report."""

    name: str
    question: str
    spec: Spec
    """Vega-Lite, complete: its numbers are in it and it refers to nothing."""
    told: str
    """What it shows, in words and numbers."""


@dataclass(frozen=True)
class Nothing:
    """A picture without a number to show."""

    why: str


def picture(
    chart: Chart,
    body: Spec,
    legend: Sequence[str],
    marks: Sequence[Mark],
    left_out: Sequence[str] = (),
    spoken: Sequence[Mark] = (),
) -> Picture:
    """
    A picture around what is drawn; `legend` says what the marks are.

    Of nulls the lines under the title say why, but of those that are `spoken` of where they stand.
    """
    said_there = set(map(id, spoken))
    notes = [*left_out, *undrawn([one for one in marks if id(one) not in said_there])]
    said = "; ".join(filter(None, legend))
    told = text(chart.question, marks, said, notes)
    shown = some([cut(note, 180) for note in notes], MOST_NOTES)
    spec = {
        "$schema": SCHEMA,
        "description": told,
        "background": "white",
        "padding": 8,
        "title": {
            "text": lines([chart.question]),
            "subtitle": lines([f"{said[:1].upper()}{said[1:]}." if said else "", *shown]),
        },
        **body,
        "config": CONFIG,
    }
    return Picture(chart.name, chart.question, spec, told)


def text(question: str, marks: Sequence[Mark], said: str, notes: Sequence[str]) -> str:
    """Question, numbers, and what is not drawn."""
    told = []
    for one in marks[:MOST_TOLD]:
        near = "".join(f", {label} {value:.4g}" for label, value in one.beside.items())
        told.append(
            f"{place(one)}: {numbers(one.value)}{near}" if place(one) else numbers(one.value)
        )
    values = "; ".join([*told, *more(len(marks), MOST_TOLD)])
    return " ".join([question, f"{values}.", *([f"({said}.)"] if said else []), *notes])


def place(one: Mark) -> str:
    """Where a number stands, in words."""
    along = "" if one.x is None else f"{one.x:g}"
    names = dict.fromkeys((one.panel, one.row, one.colour, one.measure, along))
    return ", ".join(filter(None, names))


def undrawn(marks: Sequence[Mark]) -> list[str]:
    """Each reason for which numbers are not there, with where."""
    found: dict[str, list[str]] = {}
    for one in marks:
        if one.value.estimate is None:
            found.setdefault(reason(one.value), []).append(one.panel or place(one))
    return [
        f"Undefined: {'; '.join(some(list(dict.fromkeys(places)), 3))}. {why}"
        for why, places in found.items()
    ]


def axis_of(report: ReportBase, marks: Sequence[Mark], told: str) -> str:
    """What numbers are: what is declared, else their unit, and their direction where it is one."""
    paths = {fields(one.path) for one in marks}
    found = [one for one in check_of(report.kind).measures if fields(one.path) in paths]
    units = {_unit(one) for one in found}
    directions = {one.better for one in found}
    unit = units.pop() if len(units) == 1 else ""
    better = directions.pop() if len(directions) == 1 else None
    return ", ".join(filter(None, (told or unit, f"{better} is better" if better else "")))


def _unit(one: Measure) -> str:
    if one.unit == "1":
        return "share" if (one.low, one.high) == (0, 1) else ""
    return one.unit


def level(report: ReportBase, found: Sequence[Value]) -> str:
    """What the lines through marks are."""
    if not any(one.low is not None for one in found):
        return ""
    return f"lines are {100 * report.params.level:.6g} % intervals"


def coloured(names: Sequence[str], *, shapes: bool = True) -> Spec:
    """Encoding of names by colour and shape; of none, of one colour."""
    if names in ([], [""]):
        return {"color": {"value": COLOURS[0]}}
    domain = list(names)
    spec: Spec = {"color": _channel(domain, COLOURS)}
    if shapes:
        spec["shape"] = _channel(domain, SHAPES)
    return spec


def _channel(domain: list[str], range_: Sequence[str]) -> Spec:
    return {
        "field": "colour",
        "type": "nominal",
        "scale": {"domain": domain, "range": list(range_[: len(domain)])},
    }


def stacked(panels: Sequence[Spec]) -> Spec:
    """Panels below one another; one alone as it is."""
    return dict(panels[0]) if len(panels) == 1 else {"vconcat": list(panels)}
