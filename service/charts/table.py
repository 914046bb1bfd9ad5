"""The numbers of one picture as rows, colours and panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.chart import MEASURE, Line, Shown
from service.charts.paths import Name, Value, number, values
from service.charts.words import apart, plain
from service.results import Results

PAIR = ("later", "earlier")
DIFFERENCES = "differences."
"""How paths of differences begin: the later of two models minus the earlier."""


@dataclass(frozen=True)
class Mark:
    """One number, and where it stands."""

    panel: str
    row: str
    colour: str
    x: float | None
    """The name it is along, where there is one."""
    measure: str
    path: str
    """Where it is declared."""
    value: Value
    beside: Mapping[str, float]
    """What gives it a meaning, by what that is called."""


@dataclass(frozen=True)
class Named:
    """A number with all its names."""

    measure: str
    path: str
    """Where it is declared."""
    value: Value
    beside: Mapping[str, float]
    names: Mapping[str, Name]


def table(
    results: Results,
    shown: Sequence[Shown],
    *,
    colours: str = "",
    panels: str = "",
    along: str = "",
) -> list[Mark]:
    """
    What stands at all paths; names that are neither colour, panel nor `along` make the rows.

    Two models, `later` and `earlier`, are one name, `pair`; k is part of the measure.
    """
    found = [one for each in shown for one in _named(results, each, along)]
    several = len({one.measure for one in found}) > 1
    panel_names = tuple(filter(None, panels.split(",")))
    taken = {colours, along, *panel_names}

    def rest(one: Named) -> tuple[str, ...]:
        names = tuple(name for name in one.names if name not in (*taken, MEASURE))
        by_measure = MEASURE not in taken and (several or not names)
        return (MEASURE, *names) if by_measure else names

    keys = [(_key(one, (panels,)), _key(one, rest(one)), _key(one, (colours,))) for one in found]
    panel, row, colour = (apart(key[i] for key in keys) for i in range(3))
    return [
        Mark(
            panel[where],
            row[line],
            colour[shade],
            float(str(one.names[along])) if along in one.names else None,
            one.measure,
            one.path,
            one.value,
            one.beside,
        )
        for one, (where, line, shade) in zip(found, keys, strict=True)
    ]


def lines(results: Results, declared: Mapping[str, Line]) -> dict[str, float]:
    """The lines that have a number."""
    at = {
        label: number(results, line) if isinstance(line, str) else line
        for label, line in declared.items()
    }
    return {label: value for label, value in at.items() if value is not None}


class Beside:
    """Numbers by some of the names that others have."""

    def __init__(self, found: Sequence[Value]) -> None:
        self._places = tuple(found[0].names) if found else ()
        self._found = {tuple(one.names.values()): one.estimate for one in found}

    def of(self, names: Mapping[str, Name]) -> float | None:
        """The one with these names."""
        if not names.keys() >= set(self._places):
            return None
        return self._found.get(tuple(names[place] for place in self._places))


def _named(results: Results, shown: Shown, along: str) -> list[Named]:
    beside = {label: Beside(values(results, path)) for label, path in shown.beside.items()}
    found = []
    for one in values(results, shown.path):
        names = dict(one.names)
        if PAIR[0] in names:
            sign = " − " if shown.path.startswith(DIFFERENCES) else " / "
            names["pair"] = Name(sign.join(str(names.pop(name)) for name in PAIR), str)
        at = names.pop("k", None) if along != "k" else None
        key = shown.label or plain(shown.path.rpartition(".")[2].partition("@")[0])
        measure = key if at is None else f"{key}@{at}"
        near = {label: some.of(one.names) for label, some in beside.items()}
        given = {label: value for label, value in near.items() if value is not None}
        found.append(Named(measure, shown.path, one, given, {**names, MEASURE: Name(measure, str)}))
    return found


def _key(one: Named, names: tuple[str, ...]) -> tuple[Name, ...]:
    return tuple(one.names[name] for name in names if name in one.names)
