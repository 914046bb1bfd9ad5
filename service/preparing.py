"""How stored rows become the inputs of a check: aligned, whole, in their roles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.check import Check, Inputs, Params, Slot, Warned
from service.dataset import Dataset, Labels
from service.errors import Fault, TooFewGroups, TooFewRows
from service.numerics.rows import blocks, row_facts
from service.relevance import Relevance, judged_rows, refuse_unanswerable, resolve

Ids = tuple[str, ...] | None


@dataclass(frozen=True)
class Loaded:
    """One input with its data; a column brings the ids of its dataset."""

    slot: Slot
    data: Dataset | Labels
    ids: Ids
    model: str | None = None
    """Its name among several models."""
    part: str | None = None
    """Which of its matrices, where a model has several."""


def prepare(
    check: Check, loaded: Mapping[str, Loaded], params: Params
) -> tuple[Inputs, list[Warned]]:
    """
    Align paired inputs by ids and drop bad rows of all of them together, where that was asked for.

    Nothing is copied unless rows move or go.
    """
    ready = {name: _read(one, loaded.values()) for name, one in loaded.items()}
    warnings: list[Warned] = []
    sets: dict[str, list[str]] = {}
    for name, one in ready.items():
        sets.setdefault(one.slot.rows, []).append(name)
    for names in sets.values():
        with_ids = [name for name in names if ready[name].ids is not None]
        if params.align_by_ids:
            for name in with_ids[1:]:
                ready[name] = _aligned(ready[with_ids[0]], ready[name])
        if params.on_bad_rows == "drop":
            keep = np.logical_and.reduce([_good(ready[name], params) for name in names])
            if gone := int(np.count_nonzero(~keep)):
                warnings.append(_dropped(names, ready[(with_ids or names)[0]], keep, gone))
                least = max(
                    ready[name].slot.fewest(params) for name in names if ready[name].slot.of is None
                )
                if int(keep.sum()) < least:
                    raise TooFewRows(
                        f"{int(keep.sum())} rows are left of {', '.join(names)} after dropping "
                        f"{gone}; `{check.kind}` needs {least}."
                    )
                for name in names:
                    ready[name] = _kept(ready[name], keep)
                    _refuse_one_group(ready[name])
    values: dict[str, Any] = {}
    for one in ready.values():
        if one.slot.kind == "relevance":
            values[one.slot.name] = _resolved(one, ready.values())
        elif one.model is None:
            values[one.slot.name] = one.data
        elif one.part is not None:
            model = values.setdefault(one.slot.name, {}).setdefault(one.model, {})
            model[one.part] = one.data
        else:
            values.setdefault(one.slot.name, {})[one.model] = one.data
    return check.inputs(**values), warnings


def _kept(one: Loaded, keep: NDArray[np.bool_]) -> Loaded:
    """The chosen rows, by the names they had."""
    left = np.flatnonzero(keep)
    ids = tuple(str(row) if one.ids is None else one.ids[row] for row in left)
    return replace(one, data=one.data.keep(keep), ids=ids)


def _read(one: Loaded, loaded: Iterable[Loaded]) -> Loaded:
    """A relevance without the cells that name nothing relevant; what else there is, as it is."""
    if one.slot.kind != "relevance" or isinstance(one.data, Dataset):
        return one
    at = f"/inputs/{one.slot.name}"
    return replace(one, data=judged_rows(one.data, _ids_of(one.slot.rows, loaded), at))


def _resolved(one: Loaded, ready: Iterable[Loaded]) -> Relevance:
    """A relevance as rows of its documents, as far as they are still there."""
    cells, at = one.data, f"/inputs/{one.slot.name}"
    if isinstance(cells, Dataset):
        raise TypeError("A relevance is loaded as a column.")
    ready = list(ready)
    names = _ids_of(one.slot.rows, ready)
    refuse_unanswerable(cells, names, at)
    name, _, part = (one.slot.among or "").partition(".")
    among = [other for other in ready if other.slot.name == name and part in ("", other.slot.rows)]
    documents = _ids_of(among[0].slot.rows, ready)
    data = among[0].data
    return resolve(cells, documents, data.n if isinstance(data, Dataset) else 0, names, at)


def _ids_of(rows: str, loaded: Iterable[Loaded]) -> Ids:
    """Ids of a row set."""
    return next((one.ids for one in loaded if one.slot.rows == rows and one.ids is not None), None)


def _refuse_one_group(one: Loaded) -> None:
    if isinstance(one.data, Labels) and len(one.data.levels) < one.slot.least:
        raise TooFewGroups(
            f"{len(one.data.levels)} groups of `{one.slot.name}` are left after dropping rows; at "
            f"least {one.slot.least} are needed.",
            [Fault(pointer=f"/inputs/{one.slot.name}", message="repair the rows, or regroup them")],
        )


def _dropped(names: list[str], lead: Loaded, keep: NDArray[np.bool_], gone: int) -> Warned:
    rows = np.flatnonzero(~keep)[:10]
    shown = ", ".join(str(row) if lead.ids is None else lead.ids[row] for row in rows)
    return Warned(
        code="rows_dropped",
        message=f"{gone} of {len(keep)} rows dropped (non-finite, zero, or without a label), first: "
        f"{shown}.",
        where=", ".join(f"inputs/{name}" for name in names),
    )


def _aligned(lead: Loaded, other: Loaded) -> Loaded:
    if lead.ids is None or other.ids is None or lead.ids == other.ids:
        return other
    place = {value: row for row, value in enumerate(other.ids)}
    order = np.array([place[value] for value in lead.ids], dtype=np.int64)
    if isinstance(other.data, Labels):
        return replace(other, data=other.data.keep(order), ids=lead.ids)
    rows = other.data.vectors[order]
    return replace(other, data=Dataset(rows, lead.ids, {}, other.data.spec), ids=lead.ids)


def _good(one: Loaded, params: Params) -> NDArray[np.bool_]:
    """Rows that are finite, not zero where that is no row to use, and labelled."""
    data = one.data
    if isinstance(data, Labels):
        present: NDArray[np.bool_] = data.codes >= 0
        return present
    good = np.ones(data.n, dtype=bool)
    if data.rows is None:
        return good
    rows = data.rows
    for which in blocks(*rows.shape):
        facts = row_facts(rows[which], which.start)
        good[facts.non_finite] = False
        if not one.slot.takes_zeros(params):
            good[facts.zero] = False
    return good
