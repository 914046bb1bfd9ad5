"""Lists of records: ids stay whole, on a terminal the rest folds, to a pipe each row is a line."""

from __future__ import annotations

from collections.abc import Collection

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

GUTTER = 2


def listing(*columns: str, whole: Collection[str] = (), header: bool = True) -> Table:
    """An empty list; the cells of the columns in `whole` are never folded."""
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, GUTTER, 0, 0),
        header_style="dim",
        show_header=header,
    )
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in whole)
    return table


def fitted(table: Table, console: Console) -> Table:
    """The same as wide as it may be, and at least so wide that no word is cut."""
    gutters = GUTTER * (len(table.columns) - 1)
    widest = gutters + sum(map(_line, table.columns))
    least = gutters + sum(_line(one) if one.no_wrap else _word(one) for one in table.columns)
    table.width = max(min(widest, console.width), least) if console.is_terminal else widest
    return table


def print_list(table: Table, console: Console) -> None:
    """Print a list; what goes to a pipe is not padded."""
    if console.is_terminal:
        console.print(fitted(table, console), crop=False)
        return
    with console.capture() as capture:
        console.print(fitted(table, console), crop=False)
    for line in capture.get().splitlines():
        console.print(Text(line.rstrip()), crop=False, soft_wrap=True)


def _line(column: Column) -> int:
    return max((cell_len(text) for text in _texts(column)), default=0)


def _word(column: Column) -> int:
    return max((cell_len(word) for text in _texts(column) for word in text.split()), default=0)


def _texts(column: Column) -> list[str]:
    return [line for cell in (column.header, *column.cells) for line in str(cell).splitlines()]
