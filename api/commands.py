"""Commands of the door: `assay keys`, `assay openapi`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class ScopeName(StrEnum):
    """What a key may do."""

    read = "read"
    submit = "submit"
    admin = "admin"


keys = typer.Typer(help="API keys.", no_args_is_help=True)


@keys.callback()
def _keys() -> None:
    """API keys."""


@keys.command()
def create(
    project: Annotated[str, typer.Option(help="Project the key acts in.")],
    scope: Annotated[list[ScopeName], typer.Option(help="Repeatable.")],
    file: Annotated[Path, typer.Option(envvar="ASSAY_API_KEYS_FILE", help="Keys file.")],
) -> None:
    """Create a key; it is printed once and kept only as a hash."""
    from api.auth import Scope, create_key
    from service.errors import AssayError

    try:
        typer.echo(create_key(file, project, [Scope(name.value) for name in scope]))
    except (AssayError, ValueError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


def openapi(
    folder: Annotated[Path, typer.Argument(help="Where to write the contract.")],
) -> None:
    """Write openapi.json, the schemas of reports and policies, and the catalogue page."""
    from api.contracts import write_contract

    for path in write_contract(folder):
        typer.echo(str(path))
