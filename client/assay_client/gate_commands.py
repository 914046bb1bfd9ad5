"""Commands about releases: `assay gate`, `assay gates`, `assay baselines`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay_client import refusing, requests
from assay_client.commands import AsJson, Local, Server, Tag, Tags, connected, displayed, going_on
from assay_client.extensions import gate_local, wanted_local
from assay_client.gates import promotions, refuse_misfits, refuse_name, refuse_strays
from assay_client.located import Json
from assay_client.problems import EXIT_UNAVAILABLE, AssayError, Mistake
from assay_client.terminal import complain, console, log, print_json, refuse_unwritable, save, write

if TYPE_CHECKING:
    from assay_client.api import Assay

EXIT_BY_VERDICT = {"pass": 0, "fail": 1, "inconclusive": 3, "invalid": 4}
Promote = Annotated[
    list[str] | None,
    typer.Option(
        "--promote", metavar="INPUT=BASELINE", help="Make an input the baseline if it passes."
    ),
]


@dataclass(frozen=True)
class Outputs:
    """Files for whoever reads the verdict elsewhere; they are there whatever happened."""

    markdown: Path | None
    junit: Path | None

    def refuse_unwritable(self) -> None:
        """Refuse files that cannot be written while there is no verdict to lose."""
        for file in (self.markdown, self.junit):
            if file is not None:
                refuse_unwritable(file)

    def of_run(self, run: Json, page: Callable[[], bytes], as_json: bool) -> None:
        """A run that has ended, with its page; what cannot be had or written changes no verdict."""
        from assay_client.verdicts import junit

        for file, made in ((self.markdown, page), (self.junit, lambda: junit(run))):
            if file is not None:
                try:
                    save(file, made())
                except AssayError as missing:
                    complain(missing, as_json, exit_of(run))

    def of_error(self, policy: str, error: AssayError) -> None:
        """Why there is no verdict; where that cannot be written, the error is still the first."""
        from assay_client.verdicts import junit_of_error, markdown_of_error

        for file, data in (
            (self.markdown, markdown_of_error(policy, error)),
            (self.junit, junit_of_error(policy, error)),
        ):
            if file is not None:
                try:
                    save(file, data)
                except Mistake as unwritten:
                    if unwritten.detail != error.detail:
                        log(unwritten.detail)


def gate(
    context: typer.Context,
    policy: Annotated[Path, typer.Argument(metavar="POLICY", help="YAML or JSON.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="--input NAME=FILE", hidden=True)
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=FILE", help="Data for an input of the policy."),
    ] = None,
    promote: Promote = None,
    tag: Tags = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it for a pull request too.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it as JUnit XML too.")
    ] = None,
    local: Local = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """
    Judge a policy; the exit code is the verdict.

    Inputs are name=file.npy, name=rows.csv:COLUMN for a column, name=baseline:NAME for what was
    approved, or name=pgvector:connection=...,table=... for rows of a store the server reads.
    Faults of the policy are shown before anything is uploaded.
    """
    if local and (server is not None or promote or tag):
        raise Mistake(
            "--local excludes --server, --promote and --tag: baselines and tags are kept by a server"
        )
    options = [name for option in context.command.params for name in option.opts]
    strays = [*([str(policy)] if str(policy).startswith("-") else []), *(words or [])]
    name, outputs = policy.stem, Outputs(markdown, junit)
    try:
        refuse_strays(strays, options)
        outputs.refuse_unwritable()
        rules = requests.read_policy(policy)
        name = str(rules.get("name") or name)
        bound, promoted = requests.bindings(inputs or []), promotions(promote or [])
        tags = requests.tags(tag or [])
        if local:
            run, page = _judged_here(rules, bound)
        else:
            with connected(server) as assay:
                run = _judged(assay, rules, bound, promoted, tags)
            page = partial(_page, server, str(run["id"]))
    except AssayError as error:
        outputs.of_error(name, error)
        raise
    _print_gate(run, as_json)
    outputs.of_run(run, page, as_json)
    if promoted:
        with connected(server) as assay:
            _promote(assay, run, promoted)
    raise typer.Exit(exit_of(run))


def exit_of(run: Json) -> int:
    """How the command ends after a run, whatever could not be written of it."""
    return EXIT_BY_VERDICT.get(str(run.get("verdict")), EXIT_UNAVAILABLE)


def _judged_here(rules: Json, bound: Json) -> tuple[Json, Callable[[], bytes]]:
    with displayed() as display:
        refusing.refuse_elsewhere(bound)
        refuse_misfits(wanted_local, rules, bound, {})
        refusing.refuse_unreadable(bound, Path())
        run, page = gate_local(rules, bound, Path(), display.stage)
        return run, lambda: page


def _judged(
    assay: Assay, rules: Json, bound: Json, promoted: Mapping[str, str], tags: Mapping[str, str]
) -> Json:
    with displayed() as display:
        refuse_misfits(lambda policy: assay.validate(policy)["inputs"], rules, bound, promoted)
        bound = assay.upload_files(bound, progress=display.upload)
        run: Any = assay.start_gate(rules, bound, tags=tags)
        log(f"gate run {run['id']}")
        with going_on(
            f"gate run {run['id']}",
            f"read it with `assay gates {run['id']}`, stop it with `assay gates {run['id']} --cancel`",
        ):
            found: Any = assay.wait_gate(run, display.gate)
    return dict(found)


def _page(server: str | None, run_id: str) -> bytes:
    with connected(server) as assay:
        return assay.gate_markdown(run_id)


def _promote(assay: Assay, run: Json, promoted: Mapping[str, str]) -> None:
    """Let baselines stand for inputs of a run that passed; of another nothing is promoted."""
    if promoted and run.get("verdict") != "pass":
        log(f"nothing is promoted: the verdict is {run.get('verdict') or run['state']}")
        return
    for name, baseline in promoted.items():
        found = assay.promote(run["id"], name, baseline)
        log(f"baseline {baseline} is {found['dataset']} (version {found['version']})")


def gates(
    run: Annotated[str | None, typer.Argument(metavar="[ID]")] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop the run and its jobs.")] = False,
    promote: Promote = None,
    tag: Tag = None,
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List the newest gate runs, or show, cancel or promote one."""
    if (cancel or promote) and run is None:
        raise Mistake(f"say which run: `assay gates ID --{'cancel' if cancel else 'promote'}`")
    promoted = promotions(promote or [])
    with connected(server) as assay:
        if run is not None:
            one: Any = assay.cancel_gate(run) if cancel else assay.gate_run(run)
            if cancel and one["state"] != "cancelled":
                log(f"gate run {run} has ended already; there was nothing to cancel")
            _promote(assay, one, promoted)
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


baselines = typer.Typer(help="Name approved datasets.", no_args_is_help=True)
BaselineName = Annotated[str, typer.Argument(metavar="NAME")]


@baselines.command("list")
def list_baselines(server: Server = None, as_json: AsJson = False) -> None:
    """List what every baseline stands for."""
    with connected(server) as assay:
        found: Any = assay.baselines()
    _print_baselines(found, as_json, "no baselines")


@baselines.command()
def show(name: BaselineName, server: Server = None, as_json: AsJson = False) -> None:
    """Show what a baseline stands for, and what it stood for."""
    with connected(server) as assay:
        found: Any = assay.baseline(name)
    if as_json:
        print_json(found)
    else:
        _print_baselines(found["history"], as_json, "")


@baselines.command("set")
def set_baseline(
    name: BaselineName,
    rows: Annotated[
        str,
        typer.Argument(
            metavar="DATASET|FILE", help="ds_..., baseline:NAME, a file, or KIND:connection=..."
        ),
    ],
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Let a baseline stand for a dataset; a file is uploaded first."""
    refuse_name(name)
    value = requests.source(rows, Path(), name)
    if "column" in value:
        raise Mistake(f"`{rows}`: a baseline stands for vectors, not for a column")
    with connected(server) as assay, displayed() as display:
        if "source" in value:
            dataset = str(assay.import_dataset(value["source"], None, display.job)["id"])
        elif "baseline" in value:
            dataset = assay.baseline(value["baseline"])["dataset"]
        else:
            dataset = assay.upload_files({name: value}, progress=display.upload)[name]["dataset"]
        found: Any = assay.set_baseline(name, dataset)
    if as_json:
        print_json(found)
    else:
        write(f"{found['dataset']}\n".encode())


def _print_baselines(found: list[Json], as_json: bool, none: str) -> None:
    if as_json:
        print_json(found)
        return
    from assay_client.tables import show_baselines

    show_baselines(found, console(), none)
