"""
The `assay` command.

Exit codes: 0 done or pass, 1 fail, 2 usage, 3 inconclusive, 4 invalid or unavailable.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.main import get_command

from assay_client import requests
from assay_client.extensions import Commands, local_kind, local_kinds, run_local
from assay_client.problems import AssayError, Mistake
from assay_client.requests import Json
from assay_client.terminal import complain, console, log, print_json, print_report, save, write

if TYPE_CHECKING:
    from assay_client.api import Assay
    from assay_client.progress import Display

EXIT_USAGE = 2
EXIT_UNAVAILABLE = 4
EXIT_BY_VERDICT = {"pass": 0, "fail": 1, "inconclusive": 3, "invalid": 4}
INTERRUPTED = 130

Server = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help="Server; default $ASSAY_SERVER, else this host."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Local = Annotated[bool, typer.Option("--local", help="Use the service installed here, no server.")]

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
    local: Local = False,
    server: Server = None,
    as_json: AsJson = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write report.json there too.")
    ] = None,
) -> None:
    """
    Run one check and print its report.

    Roles are the options no other name has: --a A.npy --b B.npy, and --groups rows.csv:COLUMN for
    a column, rows.csv for a role that takes a table; --models NAME=FILE, repeated, for a role of
    several models. `assay checks KIND` lists the roles and params of a check.
    """
    if local and server is not None:
        raise Mistake("--local and --server exclude each other")
    options = [name for option in context.command.params for name in option.opts]
    body, base = requests.build(
        words or [], request=request, params=param or [], seed=seed, options=options
    )
    if local:
        if requests.whole_tables(body["inputs"], base):
            requests.refuse_tables(body, base, local_kind(body["kind"]))
        with _display() as display:
            data = run_local(body, base, display.stage)
    else:
        data = _run_remote(body, base, server)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "report.json").write_bytes(data)
        log(f"report written to {out / 'report.json'}")
    print_report(data, as_json)


@app.command()
def gate(
    policy: Annotated[Path, typer.Argument(metavar="POLICY", help="YAML or JSON.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=FILE", help="Data for an input of the policy."),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it for a pull request too.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it as JUnit XML too.")
    ] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """
    Judge a policy; the exit code is the verdict.

    Inputs are name=file.npy, name=rows.csv:COLUMN for a column, or name=baseline:NAME for what was
    approved. Faults of the policy are shown before anything is uploaded.
    """
    from assay_client.gates import refuse_misfits

    rules, bound = requests.read_policy(policy), requests.bindings(inputs or [])
    with _assay(server) as assay, _display() as display:
        refuse_misfits(assay, rules, bound)
        bound = assay.upload_files(bound, progress=display.upload)
        run: Any = assay.start_gate(rules, bound)
        log(f"gate run {run['id']}")
        with _going_on(
            f"gate run {run['id']}",
            f"read it with `assay gates {run['id']}`, stop it with `assay gates {run['id']} --cancel`",
        ):
            run = assay.wait_gate(run, display.gate)
        if markdown is not None:
            save(markdown, assay.gate_markdown(run))
    if junit is not None:
        from assay_client.verdicts import junit as as_junit

        save(junit, as_junit(run))
    _print_gate(run, as_json)
    raise typer.Exit(EXIT_BY_VERDICT.get(str(run.get("verdict")), EXIT_UNAVAILABLE))


@app.command()
def gates(
    run: Annotated[str | None, typer.Argument(metavar="[ID]")] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop the run and its jobs.")] = False,
    tag: Annotated[
        str | None, typer.Option(metavar="NAME:VALUE", help="Only with this tag.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List the newest gate runs, or show or cancel one."""
    if cancel and run is None:
        raise Mistake("say which run to cancel: `assay gates ID --cancel`")
    with _assay(server) as assay:
        if run is not None:
            one: Any = assay.cancel_gate(run) if cancel else assay.gate_run(run)
            _print_gate(one, as_json)
            return
        found: Any = assay.gate_runs(tag=tag, limit=limit)
    if as_json:
        print_json(found)
        return
    from assay_client.verdicts import show_gates

    show_gates(found, console())


def _print_gate(run: Json, as_json: bool) -> None:
    if as_json:
        print_json(run)
        return
    from assay_client.verdicts import show_gate

    show_gate(run, console())


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
        with _assay(server) as assay:
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
    file: Annotated[Path, typer.Argument(metavar="FILE", help=".npy or .csv")],
    name: Annotated[str | None, typer.Option(help="Name; default that of the file.")] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Store a file; prints the id of the dataset."""
    with _assay(server) as assay, _display() as display:
        dataset = assay.upload(file, name, display.upload)
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
    source = {"kind": kind, **dict(map(requests.parameter, where))}
    with _assay(server) as assay, _display() as display:
        dataset = assay.import_dataset(source, name, display.job)
    if as_json:
        print_json(dataset)
    else:
        write(f"{dataset['id']}\n".encode())


@app.command()
def datasets(
    dataset: Annotated[str | None, typer.Argument(metavar="[ID]")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List the newest datasets, or show one."""
    with _assay(server) as assay:
        found: Any = assay.datasets(limit=limit) if dataset is None else assay.dataset(dataset)
    if as_json:
        print_json(found)
        return
    from assay_client.tables import show_dataset, show_datasets

    if dataset is None:
        show_datasets(found, console())
    else:
        show_dataset(found, console())


@app.command()
def jobs(
    job: Annotated[str | None, typer.Argument(metavar="[ID]")] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop the job.")] = False,
    state: Annotated[
        str | None, typer.Option(help="queued, running, succeeded, failed or cancelled.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Kind of check.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List the newest jobs, or show or cancel one."""
    if cancel and job is None:
        raise Mistake("say which job to cancel: `assay jobs ID --cancel`")
    with _assay(server) as assay:
        found: Any
        if job is None:
            found = assay.jobs(state=state, kind=kind, limit=limit)
        else:
            found = assay.cancel(job) if cancel else assay.job(job)
    if as_json:
        print_json(found)
        return
    from assay_client.tables import show_job, show_jobs

    if job is None:
        show_jobs(found, console())
    else:
        show_job(found, console())


@app.command()
def reports(
    job: Annotated[str, typer.Argument(metavar="JOB_ID")],
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Print the report of a job."""
    with _assay(server) as assay:
        data = assay.report_bytes(job)
    print_report(data, as_json)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        code = get_command(app).main(arguments, prog_name="assay", standalone_mode=False)
    except typer.Abort:
        code = INTERRUPTED
    except AssayError as error:
        complain(error)
        return EXIT_USAGE if isinstance(error, Mistake) else EXIT_UNAVAILABLE
    except Exception as error:
        show, usage = getattr(error, "show", None), getattr(error, "exit_code", None)
        if show is None or usage is None:
            traceback.print_exc()
            return EXIT_UNAVAILABLE
        show()
        return int(usage)
    if code == INTERRUPTED:
        log("interrupted")
        return EXIT_UNAVAILABLE
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """Entry point of the `assay` script."""
    sys.exit(run())


def _run_remote(body: Json, base: Path, server: str | None) -> bytes:
    with _assay(server) as assay, _display() as display:
        if requests.files(body["inputs"], base):
            check = assay.check(body["kind"])
            requests.refuse_unknown(body, check)
            requests.refuse_tables(body, base, check)
        inputs = assay.upload_files(body["inputs"], base, display.upload)
        job = assay.submit({**body, "inputs": inputs})
        log(f"job {job['id']}")
        with _going_on(
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
        return assay.report_bytes(job)


@contextlib.contextmanager
def _assay(server: str | None) -> Iterator[Assay]:
    from assay_client.api import Assay

    with Assay(server, tell=log) as assay:
        yield assay


@contextlib.contextmanager
def _display() -> Iterator[Display]:
    from assay_client.progress import Display

    with Display() as display:
        yield display


@contextlib.contextmanager
def _going_on(what: str, how: str) -> Iterator[None]:
    """Leaving does not cancel: say what goes on and how to stop it."""
    try:
        yield
    except KeyboardInterrupt:
        raise AssayError("interrupted", f"{what} goes on; {how}") from None
    except AssayError as error:
        if error.code != "server-unreachable":
            raise
        detail = f"{error.detail} {what} goes on when the server is back; {how}"
        raise AssayError(error.code, detail, title=error.title) from None


if __name__ == "__main__":
    main()
