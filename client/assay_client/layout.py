"""Results as lines: labels left, values under each other, objects of one kind side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from assay_client.values import Cell, cell, is_estimate, is_section, is_table

INDENT = 2
GUTTER = 2
MOST_ROWS = 20
ALONE = 9
"""Least width of the numbers where there is one column, so that all blocks line up."""
UNCERTAINTY = ("estimate", "interval", "undefined")

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A label with one cell for each column; without cells it opens a section."""

    label: str
    depth: int
    cells: Sequence[Cell] = field(default_factory=list)


def results(value: Object, width: int) -> Iterator[RenderableType]:
    """Every result, in the order of the report."""
    labels = min(_label_width(value, 0), width // 2)
    yield from _section(value, 0, labels, width)


def _section(value: Object, depth: int, labels: int, width: int) -> Iterator[RenderableType]:
    alike = _alike(value)
    done: set[str] = set()
    block: list[str] = []

    def flush() -> Iterator[RenderableType]:
        if block:
            rows = [row for key in block for row in _rows([value], key, depth)]
            yield from _lines(rows, [""], labels, width)
            block.clear()

    for key, part in value.items():
        if key in done or key == "undefined":
            continue
        if is_table(part):
            yield from flush()
            yield _title(f"{key} ({len(part)})", depth)
            yield Padding(_table(part), (0, 0, 0, (depth + 1) * INDENT))
        elif not is_section(part):
            block.append(key)
        elif len(group := alike[_shape(part)]) > 1:
            yield from flush()
            done |= set(group)
            objects = [value[name] for name in group]
            rows = [row for name in _keys(objects) for row in _rows(objects, name, depth)]
            if depth == 0:
                yield Text()
            yield from _lines(rows, group, labels, width)
            for name in group:
                yield from _tables(value[name], f"{name}.", depth)
            if depth == 0:
                yield Text()
        else:
            yield from flush()
            yield _title(key, depth)
            yield from _section(part, depth + 1, labels, width)
    yield from flush()


def _alike(value: Object) -> dict[frozenset[str], list[str]]:
    """Names of the objects in `value`, by the keys they have."""
    found: dict[frozenset[str], list[str]] = {}
    for key, part in value.items():
        if key != "undefined" and is_section(part):
            found.setdefault(_shape(part), []).append(key)
    return found


def _shape(value: Object) -> frozenset[str]:
    return frozenset(value) - {"undefined"}


def _keys(objects: Sequence[Object]) -> list[str]:
    return [key for key in dict.fromkeys(k for o in objects for k in o) if key != "undefined"]


def _rows(objects: Sequence[Object], key: str, depth: int) -> Iterator[Row]:
    """The rows of one key of objects that stand side by side."""
    values: list[Any] = [one.get(key) for one in objects]
    if any(map(is_table, values)):
        return
    if any(map(is_section, values)):
        parts: list[Object] = [part if is_section(part) else {} for part in values]
        yield Row(key, depth)
        for name in _keys(parts):
            yield from _rows(parts, name, depth + 1)
        return
    yield Row(key, depth, [cell(one, key) for one in objects])
    estimates: list[Object] = [part if is_estimate(part) else {} for part in values]
    for name in _keys(estimates):
        if name not in UNCERTAINTY:
            yield from _rows(estimates, name, depth + 1)


def _tables(value: Object, prefix: str, depth: int) -> Iterator[RenderableType]:
    """The lists of objects inside an object that was shown as a column."""
    for key, part in value.items():
        if is_table(part):
            yield _title(f"{prefix}{key} ({len(part)})", depth)
            yield Padding(_table(part), (0, 0, 0, (depth + 1) * INDENT))
        elif is_section(part) and key != "undefined":
            yield from _tables(part, f"{prefix}{key}.", depth)


def _lines(
    rows: Sequence[Row], names: Sequence[str], labels: int, width: int
) -> Iterator[RenderableType]:
    """Rows in columns: intervals beside their values, or below where the width needs that."""
    inline = [_Column(rows, i, name, below=False) for i, name in enumerate(names)]
    room = width - labels
    if sum(GUTTER + column.width for column in inline) <= room:
        yield from _draw(rows, inline, labels)
        return
    group: list[_Column] = []
    for i, name in enumerate(names):
        column = _Column(rows, i, name, below=True)
        if group and sum(GUTTER + one.width for one in [*group, column]) > room:
            yield from _draw(rows, group, labels)
            group = []
        group.append(column)
    yield from _draw(rows, group, labels)


class _Column:
    """How wide the values and intervals of one column are."""

    def __init__(self, rows: Sequence[Row], index: int, name: str, *, below: bool) -> None:
        self.index = index
        self.name = name
        self.below = below
        cells = [row.cells[index] for row in rows if row.cells]
        numbers = [cell_len(one.text) for one in cells if one.number]
        others = [cell_len(one.text) for one in cells if not one.number]
        intervals = max((cell_len(one.interval) for one in cells), default=0)
        self.numbers = max([*numbers, cell_len(name)]) if name else max([*numbers, ALONE])
        if below:
            self.numbers = max(self.numbers, intervals)
            intervals = 0
        self.width = max([self.numbers + (intervals + 1 if intervals else 0), *others])

    def value(self, one: Cell) -> Text:
        if one.missing:
            text = Text(one.text, style="yellow")
        elif not one.number and (self.name == "" or cell_len(one.text) > self.numbers):
            text = Text(one.text)
        else:
            text = Text(_right(one.text, self.numbers))
            if one.interval and not self.below:
                text.append(f" {one.interval}", style="dim")
        return _fill(text, self.width)

    def interval(self, one: Cell) -> Text:
        return _fill(Text(_right(one.interval, self.numbers), style="dim"), self.width)

    def head(self) -> Text:
        return _fill(Text(_right(self.name, self.numbers), style="bold"), self.width)


def _draw(rows: Sequence[Row], columns: Sequence[_Column], labels: int) -> Iterator[Text]:
    if any(column.name for column in columns):
        yield _join(Text(" " * labels), [column.head() for column in columns])
    for row in rows:
        label = Text(" " * (row.depth * INDENT) + row.label)
        if not row.cells:
            yield label
            continue
        if label.cell_len > labels:
            yield label
            label = Text()
        cells = [(column, row.cells[column.index]) for column in columns]
        yield _join(_fill(label, labels), [column.value(one) for column, one in cells])
        if any(one.interval and column.below for column, one in cells):
            yield _join(Text(" " * labels), [column.interval(one) for column, one in cells])


def _join(label: Text, parts: Sequence[Text]) -> Text:
    line = label.copy()
    for part in parts:
        line.append(" " * GUTTER)
        line.append_text(part)
    line.rstrip()
    return line


def _fill(text: Text, width: int) -> Text:
    text.pad_right(max(0, width - text.cell_len))
    return text


def _right(text: str, width: int) -> str:
    return " " * max(0, width - cell_len(text)) + text


def _title(text: str, depth: int) -> Text:
    return Text(" " * (depth * INDENT) + text, style="bold")


def _table(items: Sequence[Object]) -> Table:
    """A list of objects, one to a line."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GUTTER, 0, 0))
    shown = [dict(_flat(item, "")) for item in items[:MOST_ROWS]]
    keys = list(dict.fromkeys(key for item in shown for key in item))
    for key in keys:
        numeric = all(item[key].number for item in shown if key in item)
        table.add_column(key, justify="right" if numeric else "left", overflow="fold")
    for item in shown:
        cells = [item.get(key, Cell()) for key in keys]
        table.add_row(*[Text(" ".join(filter(None, (one.text, one.interval)))) for one in cells])
    if len(items) > MOST_ROWS:
        table.add_row(Text(f"... {len(items) - MOST_ROWS} more", style="dim"))
    return table


def _flat(item: Object, prefix: str) -> Iterator[tuple[str, Cell]]:
    for key, value in item.items():
        if is_section(value) and key != "undefined":
            yield from _flat(value, f"{prefix}{key}.")
        elif is_table(value):
            yield f"{prefix}{key}", Cell(f"{len(value)} entries")
        elif key != "undefined":
            yield f"{prefix}{key}", cell(item, key)


def _label_width(value: Object, depth: int) -> int:
    """Columns the longest label takes, with its indentation."""
    alike = _alike(value)
    widest = 0
    for key, part in value.items():
        if key == "undefined" or is_table(part):
            continue
        beside = is_section(part) and len(alike[_shape(part)]) > 1
        if not beside:
            widest = max(widest, depth * INDENT + len(key))
        if is_section(part):
            widest = max(widest, _label_width(part, depth if beside else depth + 1))
        elif is_estimate(part):
            more = {name: one for name, one in part.items() if name not in UNCERTAINTY}
            widest = max(widest, _label_width(more, depth + 1))
    return widest
