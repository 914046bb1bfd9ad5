"""The pictures of a report: those of its check that have a number to show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from service.chart import Bars, Chart, Curves, Dots, Trade
from service.charts.bars import bars
from service.charts.curves import curves
from service.charts.dots import dots
from service.charts.picture import Nothing, Picture
from service.charts.trade import trade
from service.errors import UnknownChart, did_you_mean
from service.report import ReportBase
from service.request import check_of

KINDS: dict[type[Chart], Callable[[Any, ReportBase], Picture | Nothing]] = {
    Dots: dots,
    Curves: curves,
    Bars: bars,
    Trade: trade,
}


def pictures(report: ReportBase) -> Iterator[Picture]:
    """Pictures in declared order; those without a number are left out."""
    for chart in check_of(report.kind).charts:
        found = KINDS[type(chart)](chart, report)
        if isinstance(found, Picture):
            yield found


def chart_of(report: ReportBase, name: str) -> Picture:
    """The picture of that name; raises where there is none, or none of its numbers."""
    charts = {chart.name: chart for chart in check_of(report.kind).charts}
    if name not in charts:
        has = [one.name for one in pictures(report)]
        hint = did_you_mean(name, has)
        raise UnknownChart(f"A `{report.kind}` report has no chart of this name; {hint}")
    found = KINDS[type(charts[name])](charts[name], report)
    if isinstance(found, Nothing):
        raise UnknownChart(f"There is nothing to draw in `{name}`. {found.why}")
    return found
