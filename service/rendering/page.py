"""A report as one page of HTML that loads nothing and runs nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel

from service.rendering.numbers import shown
from service.rendering.outline import Head, Listing, block, listing
from service.report import ReportBase, ReportedInputs, ReportedParts
from service.request import check_of
from service.user_text import visible

BESIDE = 5
"""Objects side by side in one table, as many as fit on paper."""
HERE = Path(__file__).parent
STYLE = (HERE / "report.css").read_text(encoding="utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Nothing but the page's own style, whatever a label says."""


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(HERE),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.tests["a_number"] = _number
_ENVIRONMENT.filters |= {"shown": shown, "visible": lambda value: visible(str(value))}


@dataclass(frozen=True)
class Drawing:
    """A chart as the page shows it."""

    name: str
    question: str
    svg: str | None
    """Of our own making: it is not escaped; None where it could not be drawn."""


def report_page(report: ReportBase, drawings: Sequence[Drawing] = ()) -> str:
    """Everything in a report, each value with its sentence, each null with its reason; and drawings."""
    check = check_of(report.kind)
    sections = {
        "results": block(Head("Results"), {"": report.results}),
        "params": block(Head("Parameters"), {"": report.params}),
        "environment": block(Head("Environment"), {"": report.environment}),
        "timing": block(Head("Timing"), {"": report.timing}),
    }
    return _ENVIRONMENT.get_template("report.html").render(
        check=check,
        report=report,
        inputs=_inputs(report.inputs),
        style=STYLE,
        beside=BESIDE,
        drawings=drawings,
        **sections,
    )


def _inputs(inputs: ReportedInputs) -> list[Listing]:
    """One listing for each shape of input: vectors, columns, tables."""
    named: dict[type[BaseModel], list[tuple[str, BaseModel]]] = {}
    for role, value in inputs.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ReportedParts):
                for part, matrix in (one.model_extra or {}).items():
                    named.setdefault(type(matrix), []).append((f"{one.name} {part}", matrix))
            else:
                named.setdefault(type(one), []).append((role, one))
    return [
        listing(Head(""), [one for _, one in some], [label for label, _ in some])
        for some in named.values()
    ]
