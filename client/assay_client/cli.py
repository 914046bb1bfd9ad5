"""
The `assay` command.

Exit codes: 0 done or pass, 1 fail, 2 usage, 3 inconclusive, 4 invalid or unavailable; of a problem
they follow its code (`problems.exit_code`).
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from assay_client import chart_commands, gate_commands, refusing, report_commands, requests
from assay_client.chart_commands import charts_of, save_charts
from assay_client.commands import AsJson, Local, Server, Tag, Tags, connected, displayed, going_on
from assay_client.extensions import (
    Charts,
    Commands,
    charts_local,
    local_kind,
    local_kinds,
    run_local,
)
from assay_client.located import Json
from assay_client.problems import EXIT_UNAVAILABLE, AssayError, Mistake, exit_code
from assay_client.terminal import (
    complain,
    console,
    log,
    print_json,
    print_report,
    refuse_unwritable,
    save,
    write,
)

INTERRUPTED = 130

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Test embeddings before they are trusted.",
    epilog="Exit codes: 0 done or pass, 1 fail, 2 usage, 3 inconclusive, 4 invalid or unavailable.",
)


@app.command(context_settings={"ignore_unknown_options": True})
def check(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KIND [--ROLE FILE]...", show_default=False),
    ] = None,
    request: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Request body; data may be named by {'path': ...}."),
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A parameter of the check.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random draw.")] = None,
    tag: Tags = None,
    local: Local = False,
    server: Server = None,
    as_json: AsJson = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write report.json there too.")
    ] = None,
    charts: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the charts there, as SVG.")
    ] = None,
) -> None:
    """
    Run one check and print its report.

    Roles are the options no other name has: --a A.npy --b B.npy, and --groups rows.csv:COLUMN for
    a column, rows.csv for a role that takes a table; --models NAME=FILE, repeated, for a role of
    several models; of a table 'rows.parquet?vector_column=V&id_column=ID';
    pgvector:connection=...,table=... for rows of a store the server reads. `assay checks KIND`
    lists the roles and params of a check.
    """
    if local and (server is not None or tag):
        raise Mistake("--local excludes --server and --tag: tags are kept by a server")
    options = [name for option in context.command.params for name in option.opts]
    body, base = requests.build(
        words or [], request=request, params=param or [], seed=seed, tag=tag or [], options=options
    )
    if out is not None:
        refuse_unwritable(out / "report.json")
    if charts is not None:
        refuse_unwritable(charts / "*.svg")
    try:
        data, drawn = _run_local(body, base, charts) if local else _run_remote(body, base, server)
    except AssayError as error:
        error.kind = body["kind"]
        raise
    print_report(data, as_json)
    if out is not None:
        save(out / "report.json", data, "report")
    if charts is not None:
        save_charts(charts, drawn, as_json)


app.command(context_settings={"ignore_unknown_options": True})(gate_commands.gate)
app.command()(gate_commands.gates)
app.add_typer(gate_commands.baselines, name="baselines")
app.command()(report_commands.reports)
app.command()(chart_commands.chart)


@app.command()
def checks(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]")] = None,
    local: Local = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List the checks, or show one: its roles, params and measures."""
    found: Any
    if local:
        found = local_kinds() if kind is None else local_kind(kind)
    else:
        with connected(server) as assay:
            found = assay.checks() if kind is None else assay.check(kind)
    if as_json:
        print_json(found)
        return
    from assay_client.tables import show_check, show_checks

    if kind is None:
        show_checks(found, console())
    else:
        show_check(found, console())


@app.command()
def upload(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=".npy, .parquet, .arrow or .csv")],
    name: Annotated[str | None, typer.Option(help="Name; default that of the file.")] = None,
    vector_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Vectors of a table, if several can be.")
    ] = None,
    id_column: Annotated[str | None, typer.Option(metavar="COLUMN", help="Ids of a table.")] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Store a file; prints the id of the dataset."""
    with connected(server) as assay, displayed() as display:
        dataset = assay.upload(
            file, name, display.upload, vector_column=vector_column, id_column=id_column
        )
    if as_json:
        print_json(dataset)
    else:
        write(f"{dataset['id']}\n".encode())


@app.command(name="import")
def import_rows(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="parquet, npy, faiss, pgvector, ...")],
    where: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...", help="connection=lake path=rows.parquet id=doc ..."
        ),
    ],
    name: Annotated[str | None, typer.Option(help="Name of the dataset.")] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Let the server read rows from a store its operator has named; prints the id of the dataset."""
    source = {"kind": kind, **dict(map(requests.source_field, where))}
    with connected(server) as assay, displayed() as display:
        dataset = assay.import_dataset(source, name, display.job)
    if as_json:
        print_json(dataset)
    else:
        write(f"{dataset['id']}\n".encode())


@app.command()
def datasets(
    dataset: Annotated[str | None, typer.Argument(metavar="[ID]")] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete it; reports on it stay.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List the newest datasets, or show or delete one."""
    if delete:
        if dataset is None:
            raise Mistake("say which dataset to delete: `assay datasets ID --delete`")
        with connected(server) as assay, _listed():
            assay.delete_dataset(dataset)
        log(f"{dataset} is deleted")
        return
    with connected(server) as assay, _listed():
        found: Any = assay.datasets(limit=limit) if dataset is None else assay.dataset(dataset)
    if as_json:
        print_json(found)
        return
    from assay_client.tables import show_dataset, show_datasets

    if dataset is None:
        show_datasets(found, console())
    else:
        show_dataset(found, console())


@contextlib.contextmanager
def _listed() -> Iterator[None]:
    """Of a dataset that was named alone, the list helps, not another upload."""
    try:
        yield
    except AssayError as error:
        if error.code == "unknown-dataset":
            error.advice = "`assay datasets` lists what there is"
        raise


@app.command()
def jobs(
    job: Annotated[str | None, typer.Argument(metavar="[ID]")] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop the job.")] = False,
    state: Annotated[
        str | None, typer.Option(help="queued, running, succeeded, failed or cancelled.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Kind of check.")] = None,
    tag: Tag = None,
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List the newest jobs, or show or cancel one."""
    if cancel and job is None:
        raise Mistake("say which job to cancel: `assay jobs ID --cancel`")
    with connected(server) as assay:
        found: Any
        if job is None:
            found = assay.jobs(state=state, kind=kind, tag=tag, limit=limit)
        else:
            found = assay.cancel(job) if cancel else assay.job(job)
            if cancel and found["state"] != "cancelled":
                log(f"job {job} has ended already; there was nothing to cancel")
    if as_json:
        print_json(found)
        return
    from assay_client.tables import show_job, show_jobs

    if job is None:
        show_jobs(found, console())
    else:
        show_job(found, console())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    as_json = "--json" in (sys.argv[1:] if arguments is None else arguments)
    try:
        code = get_command(app).main(arguments, prog_name="assay", standalone_mode=False)
    except AssayError as error:
        complain(error, as_json)
        return exit_code(error)
    except typer.Abort as abort:
        if isinstance(abort.__cause__, EOFError):  # of a file: nobody was asked anything
            return _crashed(abort.__cause__, as_json)
        code = INTERRUPTED
    except Exception as error:
        return _misused(error, as_json) if hasattr(error, "show") else _crashed(error, as_json)
    if code == INTERRUPTED:
        if as_json:
            complain(AssayError("interrupted", "interrupted"), as_json)
        else:
            log("interrupted")
        return EXIT_UNAVAILABLE
    return code if isinstance(code, int) else 0


def _crashed(error: BaseException, as_json: bool) -> int:
    traceback.print_exception(error)
    if as_json:
        complain(AssayError("internal", f"{type(error).__name__}: {error}"), as_json)
    return EXIT_UNAVAILABLE


def _misused(error: Any, as_json: bool) -> int:
    """Options and arguments that Typer refuses."""
    if as_json:
        complain(Mistake(error.format_message()), as_json)
    else:
        error.show()
    return int(error.exit_code)


def main() -> NoReturn:
    """Entry point of the `assay` script."""
    sys.exit(run())


def _run_local(body: Json, base: Path, charts: Path | None) -> tuple[bytes, Charts]:
    draw = None if charts is None else charts_local()
    refusing.refuse_elsewhere(body["inputs"])
    body = refusing.fitted(body, base, local_kind(body["kind"]))
    with displayed() as display:
        data = run_local(body, base, display.stage)
    return data, () if draw is None else draw(data)


def _run_remote(body: Json, base: Path, server: str | None) -> tuple[bytes, Charts]:
    with connected(server) as assay, displayed() as display:
        body = refusing.fitted(body, base, assay.check(body["kind"]))
        inputs = assay.upload_files(body["inputs"], base, display.upload)
        job = assay.submit({**body, "inputs": inputs})
        log(f"job {job['id']}")
        with going_on(
            f"job {job['id']}",
            f"read it with `assay reports {job['id']}`, cancel it with `assay jobs {job['id']} "
            "--cancel`",
        ):
            job = assay.wait(job, display.job)
        if job["state"] != "succeeded":
            from assay_client.flows import failure

            raise failure(job)
        if job.get("cached"):
            log("answered from a stored report")
        return assay.report_bytes(job), charts_of(server, job)


if __name__ == "__main__":
    main()
