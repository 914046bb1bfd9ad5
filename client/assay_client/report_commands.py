"""Commands about reports: `assay reports`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay_client.commands import AsJson, Server, connected
from assay_client.problems import Mistake
from assay_client.terminal import print_report, save, write


def reports(
    job: Annotated[str, typer.Argument(metavar="JOB_ID")],
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the summary for a pull request.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page to read there.")
    ] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Print the report of a job, or its summary, or write it as a page."""
    if markdown and as_json:
        raise Mistake("--markdown and --json exclude each other")
    with connected(server) as assay:
        if html is not None:
            save(html, assay.report_html(job))
        if markdown:
            write(assay.report_markdown(job))
        elif html is None or as_json:
            print_report(assay.report_bytes(job), as_json)
