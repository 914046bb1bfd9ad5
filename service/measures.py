"""The numbers of a report that gates, dashboards and the catalogue know, and their declarations."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Field

from service.chart import Chart, Dots, Shown
from service.references import Model
from service.results import Estimate, PValue, Results, at_k

Invariance = Literal[
    "row_scale", "uniform_scale", "orthogonal", "isometry", "similarity", "monotone"
]
Drawn = Literal["test", "held-out"]


def measure(
    *,
    unit: str = "1",
    low: float | None = None,
    high: float | None = None,
    better: Literal["higher", "lower"] | None = None,
    invariance: tuple[Invariance, ...] = (),
    needs: tuple[str, ...] = (),
    drawn: Drawn | None = None,
    default: Any = ...,
) -> Any:
    """
    Declare a number that gates, dashboards and the catalogue know.

    `invariance` names the maps of the rows it finally uses that leave it unchanged; `needs`, the
    roles and params without which it is null; a p-value that is a bare number has unit "p";
    `drawn` says which rows its units are where they are some of all; `default` is for old reports.
    """
    declared: dict[str, Any] = {
        "unit": unit,
        "low": low,
        "high": high,
        "better": better,
        "invariance": list(invariance),
        "needs": list(needs),
        **({} if drawn is None else {"drawn": drawn}),
    }
    return Field(default=default, json_schema_extra={"measure": declared})


def optional(*, needs: tuple[str, ...], default: Any = ...) -> Any:
    """Declare results that are null without these roles and params; `default` is for old reports."""
    return Field(default=default, json_schema_extra={"needs": list(needs)})


def by_rounding(default: Any = ...) -> Any:
    """
    Declare a number that rounding decides, as how an iteration ended: it may differ between CPU types,
    where all else agrees (`assay verify`).
    """
    return Field(default=default, json_schema_extra={"by_rounding": True})


def named(place: str) -> Any:
    """Declare results by name; `place` stands for the name in measure paths, see `Params.names`."""
    return Field(json_schema_extra={"named": place})


class Measure(Model):
    """A measure as the catalogue shows it."""

    path: str
    """Where it stands in `results`, keys joined by dots."""
    description: str
    unit: str
    low: float | None
    """Smallest possible value."""
    high: float | None
    """Largest possible value."""
    better: Literal["higher", "lower"] | None
    """Direction, where there is one."""
    invariance: list[Invariance]
    """Maps of the rows it finally uses that leave it unchanged; empty for none."""
    needs: list[str]
    """Roles and params without which it is null."""
    shape: Literal["scalar", "estimated", "p_value"]
    drawn: Drawn | None = None
    """Which rows its units are, where its interval rests on some of all."""

    @property
    def is_p_value(self) -> bool:
        return self.shape == "p_value" or self.unit == "p"


SHAPES: dict[type, str] = {Estimate: "estimated", PValue: "p_value"}


@cache
def measures(results: type[Results]) -> tuple[Measure, ...]:
    """Every measure of results, in reading order."""
    return tuple(_measures(results, ""))


def _measures(
    model: type[BaseModel], prefix: str, needs: tuple[str, ...] = ()
) -> Iterator[Measure]:
    for name, info in model.model_fields.items():
        extra = info.json_schema_extra
        declared: Mapping[str, Any] = extra if isinstance(extra, dict) else {}
        kind, names = _by_name(info.annotation, declared.get("named"))
        if isinstance(found := declared.get("measure"), dict):
            yield Measure.model_validate(
                {
                    **found,
                    "needs": [*needs, *found["needs"]],
                    "path": f"{prefix}{name}{names}",
                    "description": info.description or "",
                    "shape": SHAPES.get(kind, "scalar"),
                }
            )
        elif isinstance(kind, type) and issubclass(kind, Results):
            inner = (*needs, *declared.get("needs", ()))
            yield from _measures(kind, f"{prefix}{name}{names}.", inner)


def _by_name(annotation: Any, named: Any) -> tuple[Any, str]:
    """The type of a field, and what stands after its name for the keys of the maps around that type."""
    if at_k(annotation):
        return get_args(annotation)[1], "@{k}"
    keys = 0
    kind = _alternatives(annotation)[0]
    while get_origin(kind) is dict:
        kind, keys = get_args(kind)[1], keys + 1
    if named is not None:
        return kind, f".{{{named}}}"
    return kind, ("", ".{model}", ".{later}.{earlier}")[keys]


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(a for a in get_args(annotation) if a is not type(None))
    return (annotation,)


def pictured(measures: tuple[Measure, ...]) -> tuple[Chart, ...]:
    """A picture of the measures of each scale, p-values left out, for results that declare none."""
    scales: dict[tuple[str, float | None, float | None], list[Shown]] = {}
    for one in measures:
        if not one.is_p_value:
            scales.setdefault((one.unit, one.low, one.high), []).append(Shown(one.path))
    return tuple(
        Dots(f"measures_{place}", "What do the measures say?", tuple(shown))
        for place, shown in enumerate(scales.values(), start=1)
    )
