"""What other distributions add: commands (`assay.commands`) and local runs (`assay.local`)."""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from assay_client.located import Json
from assay_client.problems import AssayError

COMMANDS = "assay.commands"
LOCAL = "assay.local"

Charts = Iterable[tuple[str, Callable[[], bytes]]]
"""Charts by name, and what draws or fetches each as SVG."""


def entries(group: str) -> dict[str, EntryPoint]:
    """Entry points by name; the first on the path wins."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        found.setdefault(entry.name, entry)
    return found


class Commands(TyperGroup):
    """Commands of the client, then those of other distributions, imported when they are invoked."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return own + sorted(set(entries(COMMANDS)) - set(own))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        entry = None if own is not None else entries(COMMANDS).get(cmd_name)
        return own if entry is None else load_command(entry)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = formatter.width - 6 - max(map(len, self.list_commands(ctx)))
        rows = [(name, own.get_short_help_str(width)) for name, own in self.commands.items()]
        rows += [
            (name, summary(entry))
            for name, entry in sorted(entries(COMMANDS).items())
            if name not in self.commands
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def load_command(entry: EntryPoint) -> TyperCommand | TyperGroup:
    """The command an entry point names: a Typer app or a plain function."""
    try:
        target = entry.load()
    except (ImportError, AttributeError) as error:
        raise AssayError(
            "unavailable",
            f"`assay {entry.name}` cannot be loaded from {entry.value}: {error}",
            title="A command cannot be loaded",
        ) from error
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(target, typer.Typer):
        app.add_typer(target, name=entry.name)
        command = typer.main.get_group(app).commands[entry.name]
    else:
        app.command(entry.name)(target)
        command = typer.main.get_command(app)
    if not isinstance(command, (TyperCommand, TyperGroup)):
        raise TypeError(f"{entry.value} is no command")
    return command


def summary(entry: EntryPoint) -> str:
    """First line of what the entry point says of itself, read from source, not imported."""
    origin = entry.dist.name if entry.dist is not None else entry.module
    try:
        spec = find_spec(entry.module)
        if spec is None or spec.origin is None:
            return f"(from {origin}, which is not complete)"
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (ImportError, OSError, SyntaxError, ValueError):
        return f"(from {origin}, which is not complete)"
    for node in tree.body:
        said = _said(node, entry.attr)
        if said:
            return said.strip().splitlines()[0]
    return f"(from {origin})"


def _said(node: ast.stmt, name: str) -> str | None:
    """Docstring of the function `name`, or `help=` of the Typer app assigned to it."""
    if isinstance(node, ast.FunctionDef) and node.name == name:
        return ast.get_docstring(node)
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return None
    if not any(isinstance(target, ast.Name) and target.id == name for target in node.targets):
        return None
    for keyword in node.value.keywords:
        if keyword.arg == "help" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return None


def run_local(request: Json, base: Path, progress: Callable[[str, int, int], None]) -> bytes:
    """The report of a request run in this process."""
    run = _local("run")
    with _stated():
        return bytes(run(request, base, progress))


def charts_local() -> Callable[[bytes], Charts]:
    """What draws the charts of a report as SVG here; refused where there is nothing to draw with."""
    charts = _local("charts")
    with _stated():
        pictures = charts()

    def drawn(draw: Callable[[], bytes]) -> bytes:
        with _stated():
            return bytes(draw())

    def charts_of(report: bytes) -> Charts:
        with _stated():
            found = dict(pictures(report))
        for name, draw in found.items():
            yield name, partial(drawn, draw)

    return charts_of


def gate_local(
    policy: Json, inputs: Json, base: Path, progress: Callable[[str, int, int], None]
) -> tuple[Json, bytes]:
    """A gate run judged in this process, and its page."""
    judge = _local("gate")
    with _stated():
        run, page = judge(policy, inputs, base, progress)
    return dict(run), str(page).encode()


def wanted_local(policy: Json) -> dict[str, str]:
    """What a policy wants, by the installed service."""
    wanted = _local("wanted")
    with _stated():
        return dict(wanted(policy))


def local_kinds() -> list[Json]:
    """The catalogue of the installed service."""
    kinds = _local("kinds")
    with _stated():
        return list(kinds())


def local_kind(kind: str) -> Json:
    """One check of it."""
    kinds = local_kinds()
    for one in kinds:
        if one["kind"] == kind:
            return one
    known = [str(one["kind"]) for one in kinds]
    close = get_close_matches(kind, known, n=1, cutoff=0.4)
    hint = f"did you mean `{close[0]}`?" if close else f"there are {', '.join(known)}"
    raise AssayError("unknown-check", f"there is no check `{kind}`; {hint}")


def _local(name: str) -> Callable[..., Any]:
    entry = entries(LOCAL).get(name)
    if entry is None:
        raise AssayError("unavailable", "install embedding-assay for --local")
    with contextlib.redirect_stdout(sys.stderr):
        try:
            loaded: Callable[..., Any] = entry.load()
        except (ImportError, AttributeError) as error:
            raise AssayError(
                "unavailable",
                f"--local cannot be loaded from {entry.value}: {error}",
                title="A local run is not possible",
            ) from error
    return loaded


@contextlib.contextmanager
def _stated() -> Iterator[None]:
    """Keep standard output for the report, and turn stated problems into `AssayError`."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            yield
        except Exception as error:
            code, detail = getattr(error, "code", None), getattr(error, "detail", None)
            faults = getattr(error, "faults", None)
            if not isinstance(code, str) or not isinstance(detail, str) or faults is None:
                raise
            raise AssayError(
                code,
                detail,
                title=str(getattr(error, "title", "")),
                errors=[
                    {
                        key: getattr(fault, key, None)
                        for key in ("pointer", "message", "count", "rows")
                    }
                    for fault in faults
                ],
            ) from error
