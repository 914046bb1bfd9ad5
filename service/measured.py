"""The declared measures of a report with the values they have in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from service.check import Check, Estimate, Measure, Results, Undefined
from service.numerics.resampling import Interval
from service.report import ReportBase
from service.request import check_of
from service.stated import stated

PLACE = re.compile(r"\\\{(\w+)\\\}")
"""A name, or k, that stands in a declared path, once that is escaped."""


NO_INTERVAL = Undefined(code="scalar", message="This measure is a number without an interval.")
OLDER = Undefined(code="older_report", message="The report is older than this measure.")


@dataclass(frozen=True)
class Measured:
    """One measure of a report."""

    path: str
    """Where it stands in `results`, names filled in."""
    measure: Measure
    estimate: float | None
    interval: Interval | None
    undefined: Mapping[str, Undefined]
    """Why there is no estimate, or no interval."""


def measured(report: ReportBase) -> Iterator[Measured]:
    """Every measure the report has a value of, or a reason for, in reading order."""
    declared = {fields(one.path): one for one in check_of(report.kind).measures}
    yield from _of_results(report.results, "", "", declared)


def reasons(report: ReportBase) -> Iterator[tuple[str, Undefined]]:
    """Every null of the results, by its path, and why it is null."""
    yield from _reasons(report.results, "")


def matches(path: str, wanted: str) -> bool:
    """Whether a path is the one that is wanted, or one of those a declared path stands for."""
    return re.fullmatch(_pattern(wanted), path) is not None


def declares(check: Check, wanted: str) -> bool:
    """Whether reports of a check may have a measure of that path; a declared path is one too."""
    return any(wanted == one.path or matches(wanted, one.path) for one in check.measures)


def _pattern(declared: str) -> str:
    return PLACE.sub(
        lambda place: "[0-9]+" if place[1] == "k" else "[A-Za-z0-9_]+", re.escape(declared)
    )


def fields(path: str) -> str:
    """A declared path without the names in it."""
    keys = (key.partition("@")[0] for key in path.split("."))
    return ".".join(key for key in keys if not key.startswith("{"))


def _of_results(
    results: Results, path: str, above: str, declared: Mapping[str, Measure]
) -> Iterator[Measured]:
    for one in stated(results):
        here, field = f"{path}{one.key}", f"{above}{one.name}"
        found = declared.get(field)
        for place, value in _named(one.value, here):
            if found is not None:
                yield _measured(place, found, value, results.undefined.get(one.key))
            elif isinstance(value, Results):
                yield from _of_results(value, f"{place}.", f"{field}.", declared)


def _named(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """A value, or those of a map by name, with their paths."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _named(one, f"{path}.{name}")
    else:
        yield path, value


def _measured(path: str, measure: Measure, value: Any, why: Undefined | None) -> Measured:
    if isinstance(value, Estimate):
        return Measured(path, measure, value.estimate, value.interval, value.undefined)
    if value is not None:
        return Measured(path, measure, value, None, {"interval": NO_INTERVAL})
    return Measured(
        path, measure, None, None, dict.fromkeys(("estimate", "interval"), why or OLDER)
    )


def _reasons(value: Any, path: str) -> Iterator[tuple[str, Undefined]]:
    if isinstance(value, Results):
        for key, why in value.undefined.items():
            yield f"{path}{key}", why
        for one in stated(value):
            yield from _reasons(one.value, f"{path}{one.key}.")
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _reasons(one, f"{path}{name}.")
    elif isinstance(value, list):
        for i, one in enumerate(value):
            yield from _reasons(one, f"{path}{i}.")
