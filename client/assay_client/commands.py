"""What commands share: options, a client, progress, and what is said of a job left behind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from assay_client.problems import AssayError
from assay_client.terminal import log

if TYPE_CHECKING:
    from assay_client.api import Assay
    from assay_client.progress import Display

Server = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help="Server; default $ASSAY_SERVER, else this host."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="NAME:VALUE", help="A tag to find it by; repeatable."),
]
Tag = Annotated[str | None, typer.Option("--tag", metavar="NAME:VALUE", help="Only with this tag.")]
Local = Annotated[bool, typer.Option("--local", help="Use the service installed here, no server.")]


@contextlib.contextmanager
def connected(server: str | None) -> Iterator[Assay]:
    """A client, closed at the end."""
    from assay_client.api import Assay

    with Assay(server, tell=log) as assay:
        yield assay


@contextlib.contextmanager
def displayed() -> Iterator[Display]:
    """Progress, wiped at the end."""
    from assay_client.progress import Display

    with Display() as display:
        yield display


@contextlib.contextmanager
def going_on(what: str, how: str) -> Iterator[None]:
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
