"""Commands about reports: `assay reports`, for one job or over time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay_client.commands import AsJson, Server, connected
from assay_client.problems import Mistake
from assay_client.terminal import console, print_json, print_report, refuse_unwritable, save, write


def reports(
    job: Annotated[str | None, typer.Argument(metavar="[JOB_ID]")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the summary for a pull request.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page to read there.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Over time: only of this check.")] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Over time: only this measure of results; repeatable."),
    ] = None,
    tag: Annotated[
        str | None, typer.Option(metavar="NAME:VALUE", help="Over time: only with this tag.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="ID", help="Over time: only about this dataset.")
    ] = None,
    computed: Annotated[
        bool, typer.Option("--computed", help="Over time: none that repeats a stored report.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Over time: how many reports.")] = 20,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Over time: print CSV and nothing else.")
    ] = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """
    Print the report of a job, its summary, or a page of it; without a job, measures over time.

    A measure is a path of `results`; a path of the catalogue, `conditions.{condition}.changed`
    say, stands for all its names.
    """
    over_time = bool(kind or measure or tag or dataset or computed or as_csv)
    if sum((markdown, as_csv, as_json)) > 1:
        raise Mistake("--markdown, --csv and --json exclude each other")
    if job is None and (markdown or html is not None):
        raise Mistake("say which report: `assay reports JOB_ID --markdown`")
    if job is not None and over_time:
        raise Mistake(
            "--kind, --measure, --tag, --dataset, --computed and --csv are for reports over time"
        )
    if job is not None:
        _show_one(job, markdown, html, server, as_json)
        return
    with connected(server) as assay:
        if as_csv:
            write(
                assay.history_csv(
                    kind=kind,
                    measures=measure or (),
                    tag=tag,
                    dataset=dataset,
                    computed=computed,
                    limit=limit,
                )
            )
            return
        found = assay.history(
            kind=kind,
            measures=measure or (),
            tag=tag,
            dataset=dataset,
            computed=computed,
            limit=limit,
        )
    if as_json:
        print_json(found)
        return
    from assay_client.tables import show_history

    show_history(found, console())


def _show_one(
    job: str, markdown: bool, html: Path | None, server: str | None, as_json: bool
) -> None:
    if html is not None:
        refuse_unwritable(html)
    with connected(server) as assay:
        if html is not None:
            save(html, assay.report_html(job))
        if markdown:
            write(assay.report_markdown(job))
        elif html is None or as_json:
            print_report(assay.report_bytes(job), as_json)
