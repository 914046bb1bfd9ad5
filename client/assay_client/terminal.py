"""What the command line prints: results on standard output, everything else on standard error."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import typer

from assay_client.problems import AssayError, Mistake, exit_code, next_step
from assay_client.values import printable

if TYPE_CHECKING:
    from rich.console import Console


def print_report(data: bytes, as_json: bool) -> None:
    """A report: its bytes as they are, or as people read it."""
    if as_json:
        write(data)
        return
    from assay_client.render import show_report

    show_report(json.loads(data), console())


def print_json(value: Any) -> None:
    """A JSON value, in one line like a report."""
    write(f"{json.dumps(value)}\n".encode())


def write(data: bytes) -> None:
    """Bytes to standard output; a reader that leaves early changes no exit code."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        discard_output()


def refuse_unwritable(file: Path) -> None:
    """Refuse a file that cannot be written, before there is anything to lose; it stays as it is."""
    with _saying(file):
        if file.parent.is_file():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not file.exists():
            TemporaryFile(dir=file.parent).close()
        elif not os.access(file, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def save(file: Path, data: bytes, what: str = "") -> None:
    """Bytes to a file that somebody asked for."""
    with _saying(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    log(f"{what} written to {file}".lstrip())


@contextmanager
def _saying(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Mistake(f"`{file}` cannot be written: {error.strerror}") from None


def discard_output() -> None:
    """Nobody reads any more; the flush at exit must not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console() -> Console:
    """Where tables go."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True
            discard_output()

    return Output(highlight=False, markup=False, emoji=False)


def complain(error: AssayError, as_json: bool = False, code: int | None = None) -> None:
    """
    A problem: what, where, and what to do next; as JSON, the last line of standard error.

    `code` is how the command ends, where that does not follow from the problem.
    """
    if as_json:
        log(
            json.dumps(
                {
                    "code": error.code,
                    "title": error.title,
                    "detail": error.detail,
                    "errors": error.errors,
                    "next_step": next_step(error),
                    "exit_code": exit_code(error) if code is None else code,
                }
            )
        )
        return
    first, *faults = printable(str(error)).splitlines()
    typer.secho("error: ", err=True, nl=False, fg="red", bold=True)
    log("\n".join([first, *faults]))
    if step := next_step(error):
        log(f"next: {step}")


def log(line: str) -> None:
    """A line for people, kept apart from results."""
    typer.echo(line, err=True)
