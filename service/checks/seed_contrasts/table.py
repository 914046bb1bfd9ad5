"""The table of runs as matched pairs, and everything that can be wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.checks.seed_contrasts.declared import (
    Contrast,
    SeedContrastsInputs,
    SeedContrastsParams,
)
from service.dataset import Dataset, Labels
from service.errors import (
    DuplicateIds,
    Fault,
    IdsMismatch,
    InvalidRequest,
    MissingLabels,
    NonFiniteRows,
    TooFewGroups,
    did_you_mean,
    first,
)
from service.numerics.paired import FEWEST_PAIRS
from service.numerics.rows import Floats
from service.references import Label

AT = "/inputs/runs"
LARGEST = 1e150
"""Squares of larger numbers leave float64."""
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Pairs:
    """The runs of one contrast, seed by seed."""

    contrast: Contrast
    seeds: tuple[Label, ...]
    a: Rows
    b: Rows


@dataclass(frozen=True)
class Runs:
    """What a request compares."""

    pairs: tuple[Pairs, ...]
    """By contrast."""
    metrics: tuple[Floats, ...]
    """Of each row of the table, NaN where no contrast looks; by metric."""
    used: int
    dropped: Rows
    """Rows left out for a missing cell."""


def runs_of(inputs: SeedContrastsInputs, params: SeedContrastsParams) -> Runs:
    """Matched pairs of every contrast; raises for what is not one table of matched runs."""
    table = inputs.runs
    columns = _columns(table, params)
    conditions, seeds = columns[params.condition], columns[params.seed]
    wanted = _conditions(conditions, params)
    used = np.isin(conditions.codes, sorted({code for pair in wanted for code in pair}))
    missing = np.logical_or.reduce([column.codes < 0 for column in columns.values()])
    missing &= used | (conditions.codes < 0)
    if params.on_bad_rows == "error":
        _refuse_missing(table, columns, missing)
    used &= ~missing
    metrics = tuple(
        _numbers(table, columns[metric.column], metric.column, used, place)
        for place, metric in enumerate(params.metrics)
    )
    _refuse_repeated(table, conditions, seeds, used)
    pairs = tuple(
        _matched(place, contrast, codes, conditions, seeds, used)
        for place, (contrast, codes) in enumerate(zip(params.contrasts, wanted, strict=True))
    )
    return Runs(pairs, metrics, int(used.sum()), np.flatnonzero(missing))


def _columns(table: Dataset, params: SeedContrastsParams) -> dict[str, Labels]:
    """The columns of the request, in order."""
    known = table.columns
    places = {"/params/condition": params.condition, "/params/seed": params.seed}
    places |= {f"/params/metrics/{i}": one.column for i, one in enumerate(params.metrics)}
    faults = [
        Fault(pointer=place, message=f"no column `{name}`; {did_you_mean(name, known)}")
        for place, name in places.items()
        if name not in known
    ]
    if faults:
        raise InvalidRequest("`runs` lacks columns that the request names.", faults)
    if not params.metrics:
        rest = [name for name in known if name not in (params.condition, params.seed)]
        raise InvalidRequest(
            "No metric is named.",
            [Fault(pointer="/params/metrics", message=f"name some of: {', '.join(rest[:20])}")],
        )
    return {name: known[name] for name in places.values()}


def _conditions(column: Labels, params: SeedContrastsParams) -> list[tuple[int, int]]:
    """The codes of both conditions of each contrast."""
    codes = {(type(level), level): code for code, level in enumerate(column.levels)}
    names = [str(level) for level in column.levels]
    if not params.contrasts:
        example = ", ".join(f'"{side}": "{name}"' for side, name in zip("ab", names, strict=False))
        raise InvalidRequest(
            "No contrast is declared.",
            [Fault(pointer="/params/contrasts", message=f"declare some, [{{{example}}}] say")],
        )
    faults = [
        Fault(
            pointer=f"/params/contrasts/{place}/{side}",
            message=_unknown(condition[1], column.levels),
        )
        for place, contrast in enumerate(params.contrasts)
        for side, condition in zip("ab", contrast.conditions, strict=True)
        if condition not in codes
    ]
    if faults:
        raise InvalidRequest(f"`{params.condition}` has no such condition.", faults[:10])
    return [(codes[a], codes[b]) for a, b in (contrast.conditions for contrast in params.contrasts)]


def _unknown(condition: Label, levels: Sequence[Label]) -> str:
    """What an unknown condition may have been: one of another JSON type, or of a similar name."""
    for level in levels:
        if str(level) == str(condition):
            kinds = type(level).__name__, type(condition).__name__
            return f"`{level}` is a {kinds[0]} in the table and a {kinds[1]} here"
    return f"no condition `{condition}`; {did_you_mean(str(condition), map(str, levels))}"


def _refuse_missing(
    table: Dataset, columns: Mapping[str, Labels], missing: NDArray[np.bool_]
) -> None:
    faults = []
    for name, column in columns.items():
        rows = np.flatnonzero(missing & (column.codes < 0))
        if len(rows):
            message = f"column `{name}` is empty in these rows"
            found = table.name_rows(rows)
            faults.append(Fault(pointer=AT, message=message, count=len(rows), rows=found))
    if faults:
        raise MissingLabels(
            f"{int(missing.sum())} runs lack a condition, a seed or a metric.", faults
        )


def _numbers(
    table: Dataset, column: Labels, name: str, used: NDArray[np.bool_], place: int
) -> Floats:
    """A metric as float64; every run that is compared has one."""
    here = f"/params/metrics/{place}"
    values = np.full(len(column), np.nan)
    try:
        values[used] = column.keep(used).numbers
    except InvalidRequest as error:
        fault = Fault(pointer=here, message=error.detail)
        raise InvalidRequest(f"`{name}` is no column of numbers.", [fault]) from None
    wrong = np.flatnonzero(used & ~(np.abs(values) <= LARGEST))
    if len(wrong):
        message = f"a number between -{LARGEST:g} and {LARGEST:g} is needed"
        rows = table.name_rows(wrong)
        raise NonFiniteRows(
            f"{len(wrong)} runs have a `{name}` that is not finite.",
            [Fault(pointer=here, message=message, count=len(wrong), rows=rows)],
        )
    return values


def _refuse_repeated(
    table: Dataset, conditions: Labels, seeds: Labels, used: NDArray[np.bool_]
) -> None:
    rows = np.flatnonzero(used)
    key = conditions.dense[rows] * (len(seeds.levels) + 1) + seeds.dense[rows]
    _, where = np.unique(key, return_index=True)
    again = np.delete(rows, where)
    if len(again):
        condition, seed = (column.levels[column.codes[again[0]]] for column in (conditions, seeds))
        message = f"one run of each is needed; first repeated: `{condition}`, seed {seed}"
        found = table.name_rows(again)
        raise DuplicateIds(
            f"{len(again)} runs repeat a condition and seed.",
            [Fault(pointer=AT, message=message, count=len(again), rows=found)],
        )


def _matched(
    place: int,
    contrast: Contrast,
    codes: tuple[int, int],
    conditions: Labels,
    seeds: Labels,
    used: NDArray[np.bool_],
) -> Pairs:
    here = f"/params/contrasts/{place}"
    rows_of = [
        {
            int(seeds.codes[row]): int(row)
            for row in np.flatnonzero(used & (conditions.codes == one))
        }
        for one in codes
    ]
    a, b = rows_of
    faults = [
        Fault(
            pointer=f"{here}/{side}",
            message=f"`{condition}` was not run with these seeds",
            count=len(lacking),
            rows=first([str(seeds.levels[seed]) for seed in lacking]),
        )
        for side, condition, lacking in (
            ("a", contrast.a, [seed for seed in b if seed not in a]),
            ("b", contrast.b, [seed for seed in a if seed not in b]),
        )
        if lacking
    ]
    if faults:
        raise IdsMismatch(
            f"`{contrast.a}` and `{contrast.b}` were not run with the same seeds.", faults
        )
    if len(a) < FEWEST_PAIRS:
        raise TooFewGroups(
            f"`{contrast.a}` and `{contrast.b}` share {len(a)} seeds; at least {FEWEST_PAIRS} are "
            "needed.",
            [Fault(pointer=here, message="run both with more seeds")],
        )
    return Pairs(
        contrast=contrast,
        seeds=tuple(seeds.levels[seed] for seed in a),
        a=np.array(list(a.values()), dtype=np.int64),
        b=np.array([b[seed] for seed in a], dtype=np.int64),
    )
