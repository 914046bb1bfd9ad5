"""A report as blocks of rows: what a page shows, whatever the check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from service.results import Estimate, Results, Undefined
from service.stated import Stated, stated

BESIDE = " / "
"""Between the names of maps inside maps."""


@dataclass(frozen=True)
class Cell:
    """One value with what belongs to it."""

    value: Any
    """As in JSON: a number, text, a list, an object."""
    reason: Undefined | None = None
    """Why it is null."""
    low: float | None = None
    high: float | None = None
    no_interval: Undefined | None = None
    """Why an estimate has no interval."""
    how: Mapping[str, Any] = field(default_factory=dict)
    """How the interval was made."""
    rest: Mapping[str, Any] = field(default_factory=dict)
    """What else an estimate says."""


@dataclass(frozen=True)
class Head:
    """The name of a row or column, and its sentence."""

    key: str
    description: str = ""
    about: str = ""
    """Unit, range and direction of a measure."""


@dataclass(frozen=True)
class Row:
    head: Head
    cells: Sequence[Cell | None]

    @property
    def how(self) -> Mapping[str, Any]:
        """How every interval of the row was made, where that is the same for all."""
        ways = [one.how for one in self.cells if one is not None and one.how]
        return ways[0] if ways and all(way == ways[0] for way in ways) else {}


@dataclass(frozen=True)
class Listing:
    """Objects of a list, one to a line."""

    head: Head
    columns: Sequence[Head]
    rows: Sequence[Sequence[Cell | None]]


@dataclass(frozen=True)
class Block:
    """An object, or several of one type side by side."""

    head: Head
    columns: Sequence[str]
    """Names of the objects; one empty name where there is one object."""
    rows: Sequence[Row]
    listings: Sequence[Listing]
    blocks: Sequence[Block]


def block(head: Head, objects: Mapping[str, BaseModel]) -> Block:
    """Objects of one type side by side, what they hold below."""
    rows: list[Row] = []
    listings: list[Listing] = []
    blocks: list[Block] = []
    for key, found in _side_by_side(objects).items():
        given = {name: one.value for name, one in found.items() if one.value is not None}
        some = next(iter(given.values()), None)
        here = _head(next(iter(found.values())))
        if _is_part(some):
            if len(given) < len(objects):
                rows.append(Row(here, [_null_cell(objects[name], found, name) for name in objects]))
            nested = {
                _join(name, inner): one
                for name, value in given.items()
                for inner, one in _entries(value)
            }
            blocks.append(block(here, nested))
        elif isinstance(some, list) and some and isinstance(some[0], BaseModel):
            if len(given) < len(objects):
                rows.append(Row(here, [_null_cell(objects[name], found, name) for name in objects]))
            for name, value in given.items():
                titled = Head(_join(name, key), here.description, here.about)
                listings.append(listing(titled, value))
        else:
            cells = [
                cell(found[name].value, _reason(objects[name], key)) if name in found else None
                for name in objects
            ]
            rows.append(Row(here, cells))
    return Block(head, list(objects), rows, listings, blocks)


def listing(head: Head, items: Sequence[BaseModel], labels: Sequence[str] = ()) -> Listing:
    """A list of objects; `labels` name them."""
    found = [{one.key: one for one in stated(item)} for item in items]
    columns: dict[str, Head] = {}
    for item in found:
        for key, one in item.items():
            columns.setdefault(key, _head(one))
    rows = [
        [cell(item[key].value, _reason(owner, key)) if key in item else None for key in columns]
        for owner, item in zip(items, found, strict=True)
    ]
    if labels:
        named = [[Cell(label), *row] for label, row in zip(labels, rows, strict=True)]
        return Listing(head, [Head("role"), *columns.values()], named)
    return Listing(head, list(columns.values()), rows)


def cell(value: Any, reason: Undefined | None = None) -> Cell:
    """A value as a cell; an estimate with its interval."""
    if isinstance(value, Estimate):
        content = value.model_dump(mode="json", exclude={"undefined"})
        interval = content.pop("interval") or {}
        undefined, no_interval = (value.undefined.get(key) for key in ("estimate", "interval"))
        return Cell(
            content.pop("estimate"),
            undefined,
            interval.pop("low", None),
            interval.pop("high", None),
            no_interval if no_interval != undefined else None,
            interval,
            content,
        )
    return Cell(_plain(value), reason)


def _plain(value: Any) -> Any:
    """The value as in JSON, reasons of nulls included."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value


def _side_by_side(objects: Mapping[str, BaseModel]) -> dict[str, dict[str, Stated]]:
    """By key, the values of all objects that have it."""
    found: dict[str, dict[str, Stated]] = {}
    for name, one in objects.items():
        for value in stated(one):
            found.setdefault(value.key, {})[name] = value
    return found


def _is_part(value: Any) -> bool:
    """Whether a value is objects of its own, alone or by name."""
    if isinstance(value, dict):
        return bool(value) and all(_is_part(one) for one in value.values())
    return isinstance(value, BaseModel) and not isinstance(value, (Estimate, Undefined))


def _entries(value: Any, name: str = "") -> Iterator[tuple[str, BaseModel]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _entries(one, _join(name, str(key)))
    else:
        yield name, value


def _null_cell(owner: BaseModel, found: Mapping[str, Stated], name: str) -> Cell | None:
    """The null of one object where others have parts, which are shown below."""
    if name not in found or found[name].value is not None:
        return None
    return Cell(None, _reason(owner, found[name].key))


def _reason(owner: BaseModel, key: str) -> Undefined | None:
    return owner.undefined.get(key) if isinstance(owner, Results) else None


def _join(*names: str) -> str:
    return BESIDE.join(filter(None, names))


def _head(one: Stated) -> Head:
    declared = one.declared.get("measure")
    return Head(one.key, one.description, _about(declared) if isinstance(declared, dict) else "")


def _about(declared: Mapping[str, Any]) -> str:
    """Unit, range and direction of a measure."""
    unit, better = declared["unit"], declared["better"]
    return ", ".join(filter(None, _told(unit, declared["low"], declared["high"], better)))


def _told(unit: str, low: float | None, high: float | None, better: str | None) -> Iterable[str]:
    yield "" if unit in ("1", "p") else unit
    if low is not None and high is not None:
        yield f"from {low:g} to {high:g}"
    elif low is not None or high is not None:
        yield f"at least {low:g}" if low is not None else f"at most {high:g}"
    yield f"{better} is better" if better else ""
