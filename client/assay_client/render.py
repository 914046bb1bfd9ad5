"""A report as people read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from assay_client.layout import results
from assay_client.listing import fitted, listing
from assay_client.located import Json
from assay_client.progress import duration
from assay_client.values import is_estimate, plain, printable

STAGES_SHOWN = 3
NAMES_SHOWN = 4


def show_report(report: Json, console: Console) -> None:
    """Print what was asked, what came out, what it says and what it does not say."""
    for part in _report(report, console):
        console.print(part, highlight=False, markup=False, emoji=False, crop=False)


def hang(console: Console, head: str, text: str, style: str = "") -> Iterator[Text]:
    """Text after a head, wrapped under itself."""
    indent = cell_len(head)
    lines = Text(printable(text)).wrap(console, max(20, console.width - indent))
    for i, line in enumerate(lines):
        line.rstrip()
        yield Text.assemble(" " * indent if i else head, line, style=style)


def _report(report: Json, console: Console) -> Iterator[RenderableType]:
    yield Text.assemble(
        (report["kind"], "bold"),
        (f"  version {report['kind_version']}, seed {report['seed']}", "dim"),
    )
    yield fitted(_inputs(report["inputs"]), console)
    params = ", ".join(f"{name}={json.dumps(v)}" for name, v in report["params"].items())
    yield from hang(console, "params  ", params, "dim")
    yield Text()
    yield from results(report["results"], console.width)
    for line in _intervals(report["results"]):
        yield from hang(console, "[low, high]  ", line, "dim")
    yield from _bullets(console, "Readings", report["readings"], "")
    warnings = [f"{w['code']}: {w['message']} ({w['where']})" for w in report["warnings"]]
    yield from _bullets(console, "Warnings", warnings, "yellow")
    yield from _bullets(console, "Scope", report["scope"], "dim")
    yield Text()
    yield Text(f"digest  {report['digest']}", style="dim")
    yield from hang(console, "timing  ", _timing(report["timing"]), "dim")


def _bullets(console: Console, title: str, lines: list[str], style: str) -> Iterator[Text]:
    if lines:
        yield Text()
        yield Text(title, style=f"bold {style}")
    for line in lines:
        yield from hang(console, "• ", line, style)


def _inputs(inputs: Json) -> Table:
    table = listing("role", "rows", "column or model", "dataset", whole=["dataset"])
    for role, value in _listed(inputs):
        size = plain(value.get("n"))
        if value.get("d") is not None:
            size += f" x {plain(value['d'])} {value.get('dtype') or ''}"
        name = value.get("column") or (value.get("spec") or {}).get("model") or ""
        cells = (role, size, name, value.get("dataset") or "")
        table.add_row(*[Text(printable(str(text))) for text in cells])
    return table


def _listed(inputs: Json) -> Iterator[tuple[str, Json]]:
    """Each matrix and column with its role, and its model and part where it has them."""
    for role, value in inputs.items():
        if not isinstance(value, list):
            yield role, value
            continue
        for one in value:
            parts = {part: inner for part, inner in one.items() if isinstance(inner, dict)}
            if "dataset" in one:
                yield f"{role} {one['name']}", one
            else:
                yield from ((f"{role} {one['name']} {part}", parts[part]) for part in parts)


def _intervals(value: Json) -> Iterator[str]:
    """What the intervals are, said once, and of which results where they are not all alike."""
    found: dict[tuple[Any, ...], tuple[dict[str, None], dict[str, None]]] = {}
    for name, one in _walk(value):
        methods, names = found.setdefault((one["level"], one["resamples"], one["unit"]), ({}, {}))
        methods[one["method"]] = names[name] = None
    for (level, count, unit), (methods, names) in found.items():
        over = "" if count is None else f" over {count:,} {unit}s"
        shown = [*list(names)[:NAMES_SHOWN], *(["..."] if len(names) > NAMES_SHOWN else [])]
        of = f" ({', '.join(shown)})" if len(found) > 1 else ""
        yield f"level {level:g}, {', '.join(methods)}{over}{of}"


def _walk(value: Any, name: str = "") -> Iterator[tuple[str, Json]]:
    """Every interval with the name of its result."""
    if is_estimate(value):
        if value["interval"] is not None:
            yield name, value["interval"]
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _walk(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from _walk(part, name)


def _timing(timing: Json) -> str:
    stages = sorted(timing.get("stages", {}).items(), key=lambda item: -item[1])
    longest = ", ".join(f"{name} {duration(s)}" for name, s in stages[:STAGES_SHOWN])
    return duration(timing["run_s"]) + (f"; longest {longest}" if longest else "")
