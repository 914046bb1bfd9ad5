"""Commands about charts: `assay chart`, and the charts of a check that was run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from assay_client.commands import AsJson, Server, connected
from assay_client.extensions import Charts
from assay_client.problems import AssayError, Mistake
from assay_client.records import CHART_FORMATS, Job
from assay_client.terminal import complain, print_json, save, write
from assay_client.values import printable


def chart(
    job: Annotated[str, typer.Argument(metavar="JOB_ID")],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write it there: .svg, .png or .vl.json (Vega-Lite).",
        ),
    ] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List the charts of a report, or get one: as SVG, or by the end of the file's name."""
    if name is None and out is not None:
        raise Mistake("say which chart: `assay chart JOB_ID NAME -o FILE`")
    if name is not None and as_json:
        raise Mistake("--json is for the list; `-o FILE.vl.json` writes a chart as JSON")
    format = "svg" if out is None else _format(out)
    with connected(server) as assay:
        if name is None:
            found = assay.charts(job)
            if as_json:
                print_json(found)
            else:
                width = max((len(one["name"]) for one in found), default=0)
                lines = [f"{one['name']:{width}}  {one['title']}\n" for one in found]
                write(printable("".join(lines)).encode())
            return
        drawn = assay.chart(job, name, format)
    if out is None:
        write(drawn)
    else:
        save(out, drawn)


def charts_of(server: str | None, job: Job) -> Charts:
    """The charts of a job that has succeeded, each fetched when it is wanted."""
    with connected(server) as assay:
        for one in assay.charts(job):
            yield one["name"], partial(assay.chart, job, one["name"])


def save_charts(folder: Path, charts: Charts, as_json: bool) -> None:
    """One SVG for each; what fails is told, and costs no other."""
    failures = []
    for name, draw in charts:
        try:
            save(folder / f"{name}.svg", draw())
        except AssayError as error:
            error.detail = f"chart `{name}`: {error.detail}"
            failures.append(error)
    for failure in failures[:-1]:
        complain(failure, as_json)
    for failure in failures[-1:]:
        raise failure


def _format(file: Path) -> str:
    for format in CHART_FORMATS:
        if file.name.lower().endswith(f".{format}"):
            return format
    ends = ", ".join(f".{format}" for format in CHART_FORMATS)
    raise Mistake(f"`{file}`: the name of a chart's file ends in {ends}")
