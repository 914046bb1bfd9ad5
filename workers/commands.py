"""Commands that need the server's packages: `assay serve`, `worker`, `reindex`, `verify`, `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXIT_DIFFERS = 1
EXIT_USAGE = 2
EXIT_UNAVAILABLE = 4


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    workers: Annotated[
        int, typer.Option(min=1, help="Worker processes for jobs, and as many for shards of jobs.")
    ] = 1,
) -> None:
    """Start everything on this machine: API, workers and, without REDIS_URL, a server."""
    _run(workers, workers, (host, port))


def worker(
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    shards: Annotated[
        bool, typer.Option("--shards", help="Work on shards of jobs instead of whole jobs.")
    ] = False,
) -> None:
    """Start workers (and a sweeper) for the service behind REDIS_URL and ASSAY_STORE."""
    _run(*((0, workers) if shards else (workers, 0)), None)


def _run(workers: int, shard_workers: int, api: tuple[str, int] | None) -> None:
    import logging

    from service import logs
    from service.errors import AssayError
    from service.settings import Settings
    from workers.readiness import address_of, tell_when_ready
    from workers.stack import assemble
    from workers.supervisor import ASKED_S, PATIENCE_S

    try:
        settings = Settings.read()
        logs.configure(logging.getLevelNamesMapping()[settings.log_level.upper()])
        if api is None and settings.redis_url is None:
            typer.echo("REDIS_URL is not set; `assay serve` brings its own server.", err=True)
            raise typer.Exit(2)
        stack = assemble(settings, workers, shard_workers, api, warm=True)
    except AssayError as error:
        typer.echo(error.detail, err=True)
        raise typer.Exit(2) from None
    if api is not None:
        address = address_of(*api)
        _say(
            f"Assay starts at {address} (docs at /docs); data in {settings.home} (ASSAY_HOME). Stop "
            "with Ctrl-C."
        )
        tell_when_ready(address, workers, _say)
    stack.supervisor.stopped = lambda: _say(
        f"Stopping; a job that runs is given {ASKED_S + PATIENCE_S:.0f} s, and is begun again at the "
        "next start."
    )
    stack.supervisor.run()
    if stack.supervisor.gave_up is not None:
        _say(f"{stack.supervisor.gave_up} Nothing that was accepted is lost.")
        raise typer.Exit(EXIT_UNAVAILABLE)
    if api is not None:
        _say(f"Assay has stopped; data stay in {settings.home}.")


def _say(line: str) -> None:
    typer.echo(line, err=True)


def reindex(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """
    Make the index of the object store again from its datasets; says what each project holds.

    Exit code 1 if the record of a dataset cannot be read; such datasets are named and left as they are.
    """
    import json
    import logging
    from dataclasses import asdict

    from service import logs
    from service.errors import AssayError
    from service.settings import Settings
    from service.storage.reindexing import reindex as every_project

    logs.configure(logging.WARNING)
    try:
        root = Settings.read().store
    except AssayError as error:
        typer.echo(error.detail, err=True)
        raise typer.Exit(2) from None
    if not root.is_dir():
        typer.echo(f"There is no store at {root}; ASSAY_STORE or ASSAY_HOME names it.", err=True)
        raise typer.Exit(2)
    found = []
    for one in every_project(root):
        found.append(asdict(one))
        if not as_json:
            typer.echo(
                f"{one.project}: {one.datasets} datasets, {one.baselines} baselines, {one.reports} "
                f"reports; {one.restored} contents restored, {one.repeated} repeated, "
                f"{one.dropped} bodies dropped"
            )
        for dataset in one.damaged:
            typer.echo(
                f"{one.project}: {dataset} is damaged: restore its dataset.json from a backup, or "
                "delete it",
                err=True,
            )
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    if any(one["damaged"] for one in found):
        raise typer.Exit(1)


def verify(
    report: Annotated[
        Path, typer.Argument(metavar="REPORT.JSON", help="A report of this service.")
    ],
    project: Annotated[
        str | None,
        typer.Option(help="Where its data are; default the first project that has them."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """
    Recompute a report from the stored datasets it names, and show where it says something else.

    Data are found by id, or by content, in the store of ASSAY_STORE or ASSAY_HOME. In the environment
    of the report every number must be the same; in another, floats within 1e-9 of themselves. Exit
    codes: 0 equal, 1 differs, 2 usage, 4 no report, or its data are gone.
    """
    import json
    import logging

    from assay_client.commands import displayed

    from service import logs
    from service.errors import AssayError
    from service.settings import Settings
    from workers import verifying

    try:
        data, settings = report.read_bytes(), Settings.read()
    except OSError as error:
        typer.echo(f"`{report}` cannot be read: {error.strerror}.", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    except AssayError as error:
        typer.echo(error.detail, err=True)
        raise typer.Exit(EXIT_USAGE) from None
    logs.configure(logging.WARNING)
    try:
        with displayed() as display:
            found = verifying.verified(settings, data, project, display.stage)
    except AssayError as error:
        faults = [f"  {fault.pointer}: {fault.message}" for fault in error.faults]
        typer.echo("\n".join([error.detail, *faults]), err=True)
        raise typer.Exit(EXIT_UNAVAILABLE) from None
    if as_json:
        typer.echo(json.dumps(verifying.as_json(found)))
    else:
        typer.echo("\n".join(verifying.lines(found)))
    raise typer.Exit(0 if found.equal else EXIT_DIFFERS)


def demo() -> None:
    """Run the main job on sample embeddings against a service started for it; exit by the verdict."""
    from workers.demo import run

    raise typer.Exit(run())
