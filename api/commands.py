"""Commands of the door: `assay keys`, `assay openapi`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class ScopeName(StrEnum):
    """What a key may do."""

    read = "read"
    submit = "submit"
    admin = "admin"


SCOPES = (
    "read: see data, reports, gates and baselines. submit: upload, run checks and gates, cancel, "
    "delete datasets, name baselines. admin: all of it. Repeatable."
)
KeysFile = Annotated[Path, typer.Option("--file", envvar="ASSAY_API_KEYS_FILE", help="Keys file.")]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="As `assay keys list` shows it.")]

keys = typer.Typer(help="API keys.", no_args_is_help=True)


@keys.callback()
def _keys() -> None:
    """API keys."""


@keys.command()
def create(
    project: Annotated[str, typer.Option(help="Project the key acts in.")],
    scope: Annotated[list[ScopeName], typer.Option(help=SCOPES)],
    file: KeysFile,
) -> None:
    """Create a key; it is printed once and kept only as a hash."""
    from api.keys import Scope, create_key

    with _stated():
        typer.echo(create_key(file, project, [Scope(name.value) for name in scope]))


@keys.command("list")
def list_keys(
    file: KeysFile,
    project: Annotated[str | None, typer.Option(help="Only keys of this project.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List keys by id: project, scopes, age. Secrets are not kept, so none is shown."""
    from api.keys import read_keys

    with _stated():
        found = [one for one in read_keys(file) if project in (None, one.project)]
    shown = [one.model_dump(mode="json", exclude={"sha256"}) for one in found]
    if as_json:
        typer.echo(json.dumps(shown, indent=2))
        return
    typer.echo(f"{'id':<12}  {'project':<20}  {'scopes':<17}  created")
    for one in shown:
        ends = f"  until {one['expires_at'][:16]}" if one["expires_at"] else ""
        typer.echo(
            f"{one['id']}  {one['project']:<20}  {','.join(one['scopes']):<17}  "
            f"{one['created_at'][:16]}{ends}"
        )


@keys.command()
def revoke(key_id: KeyId, file: KeysFile) -> None:
    """Make a key worthless, at once, in every running API that reads this file."""
    from api.keys import revoke_key

    with _stated():
        revoke_key(file, key_id)
        typer.echo(f"{key_id} is revoked", err=True)


@keys.command()
def rotate(
    key_id: KeyId,
    file: KeysFile,
    keep_old_for: Annotated[
        int, typer.Option(min=0, metavar="SECONDS", help="How long the old key still counts.")
    ] = 0,
) -> None:
    """Print a new key for the same project and scopes, and revoke the old one."""
    from datetime import timedelta

    from api.keys import rotate_key

    with _stated():
        typer.echo(rotate_key(file, key_id, timedelta(seconds=keep_old_for)))


@contextmanager
def _stated() -> Iterator[None]:
    """A fault of the command or the file ends it with exit code 2."""
    from service.errors import AssayError

    try:
        yield
    except FileNotFoundError as error:
        typer.echo(
            f"there is no keys file `{error.filename}`; `assay keys create` makes one", err=True
        )
        raise typer.Exit(2) from None
    except OSError as error:
        typer.echo(f"the keys file cannot be changed: {error.strerror}", err=True)
        raise typer.Exit(2) from None
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
