"""What metadata already forbids of the inputs of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.check import Check, Params, Slot
from service.dataset import Dataset, Labels
from service.dataset_record import DatasetRecord, Found
from service.errors import (
    AssayError,
    DimensionMismatch,
    Fault,
    IdsMismatch,
    InvalidRequest,
    MissingLabels,
    NonFiniteRows,
    ShapeMismatch,
    TooFewGroups,
    TooFewRows,
    ZeroRows,
    counted,
    did_you_mean,
    first,
)
from service.relevance import judged_rows, refuse_unanswerable, resolve

Ids = tuple[str, ...] | None
SHOWN_COLUMNS = 20
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
"""What files are separated by that should be separated by commas."""


@dataclass(frozen=True)
class Given:
    """One input of a request as far as metadata tells."""

    slot: Slot
    record: DatasetRecord
    column: str | None = None
    place: int | None = None
    """Where it stands among several models."""
    at: str | None = None
    """Where it stands in the request, if not under its role."""

    called: str | None = None
    """What errors call it, if not by its role."""

    @property
    def name(self) -> str:
        return self.called or self.slot.name

    @property
    def pointer(self) -> str:
        if self.at is not None:
            return self.at
        here = f"/inputs/{self.slot.name}"
        return here if self.place is None else f"{here}/{self.place}"

    @property
    def sha256(self) -> str:
        """Identity of the input in a request digest: a column with the ids it may be aligned by."""
        if self.column is None:
            return self.record.sha256
        values, ids = self.record.columns[self.column].sha256, self.record.ids_sha256
        return values if ids is None else f"{values}/{ids}"


@dataclass(frozen=True)
class Store:
    """How to look into a dataset when an error has to name rows."""

    ids: Callable[[DatasetRecord], Ids]
    column: Callable[[DatasetRecord, str], Labels]


def refuse(
    check: Check, given: Mapping[str, Given], params: Params, store: Store, seed: int = 0
) -> None:
    """Raise for everything that is wrong and knowable without reading a vector."""
    for one in given.values():
        _refuse_wrong_kind(one)
    for group in _row_sets(given.values()):
        _refuse_unpaired(group, params, store)
    roles = [one for one in given.values() if one.slot.kind == "vectors"]
    _refuse_unlabelled(check, given, roles)
    _refuse_dimensions([one for one in roles if one.slot.most is None])
    for matrices in _models(roles):
        _refuse_dimensions(matrices)
    tables = [one for one in given.values() if one.slot.kind == "table"]
    for one in tables:
        _refuse_sizes(check, one, params)
    if check.examine is not None and len(tables) == len(given) > 0:
        check.examine(check.inputs(**{one.slot.name: _table(one, store) for one in tables}), params)
    for one in roles:
        _refuse_sizes(check, one, params)
        if params.on_bad_rows == "error":
            _refuse_bad_rows(one, params, store)
    for one in given.values():
        if one.slot.kind == "relevance":
            _refuse_relevance(one, given, params, store)
        elif one.column is not None:
            _refuse_labels(one, one.column, params, store)
    if check.refuse is not None and params.on_bad_rows == "error" and not params.align_by_ids:
        columns = {
            one.slot.name: store.column(one.record, one.column)
            for one in given.values()
            if one.column is not None and one.slot.kind == "column"
        }
        check.refuse(columns, _shapes(roles), params, seed)


def _refuse_unlabelled(check: Check, given: Mapping[str, Given], roles: list[Given]) -> None:
    there = {one.slot.rows: one for one in roles}
    for slot in check.slots:
        if slot.always and slot.name not in given and slot.rows in there:
            raise MissingLabels(
                f"`{there[slot.rows].slot.rows}` is given without `{slot.name}`.",
                [Fault(pointer=f"/inputs/{slot.name}", message="give one label for each row")],
            )


def _shapes(roles: Iterable[Given]) -> dict[str, tuple[int, int]]:
    """Rows and most dimensions of each row set."""
    shapes: dict[str, tuple[int, int]] = {}
    for one in roles:
        _, widest = shapes.get(one.slot.rows, (0, 0))
        shapes[one.slot.rows] = (one.record.n, max(widest, one.record.d or 0))
    return shapes


def _table(one: Given, store: Store) -> Dataset:
    columns = {name: store.column(one.record, name) for name in one.record.columns}
    return Dataset(None, store.ids(one.record), columns)


def _models(roles: Iterable[Given]) -> Iterator[list[Given]]:
    """The matrices of each model that has several."""
    found: dict[tuple[str, int], list[Given]] = {}
    for one in roles:
        if one.place is not None:
            found.setdefault((one.slot.name, one.place), []).append(one)
    yield from found.values()


def _refuse_relevance(one: Given, given: Mapping[str, Given], params: Params, store: Store) -> None:
    """Everything that is wrong with a relevance, which is small enough to be read."""
    names = _names(one, given.values(), store)
    cells = judged_rows(store.column(one.record, one.column or ""), names, one.pointer)
    if params.on_bad_rows == "error":
        refuse_unanswerable(cells, names, one.pointer)
        among = _rows_of(one.slot, given.values())
        documents = next(filter(None, map(store.ids, (other.record for other in among))), None)
        resolve(cells, documents, among[0].record.n, names, one.pointer)


def _names(one: Given, given: Iterable[Given], store: Store) -> Ids:
    """Ids of the rows of a column: its own, or those of what it is paired with."""
    paired = [one, *(other for other in given if other.slot.rows == one.slot.rows)]
    return next(filter(None, (store.ids(other.record) for other in paired)), None)


def _rows_of(slot: Slot, given: Iterable[Given]) -> list[Given]:
    """What holds the rows that a relevance names."""
    name, _, part = (slot.among or "").partition(".")
    return [one for one in given if one.slot.name == name and part in ("", one.slot.rows)]


def _row_sets(given: Iterable[Given]) -> Iterator[list[Given]]:
    sets: dict[str, list[Given]] = {}
    for one in given:
        sets.setdefault(one.slot.rows, []).append(one)
    yield from sets.values()


def _refuse_wrong_kind(one: Given) -> None:
    name = one.record.name or one.record.id
    if one.slot.kind == "vectors" and one.record.d is None:
        raise InvalidRequest(
            f"`{one.name}` takes vectors; dataset {name} has columns only.",
            [Fault(pointer=one.pointer, message="use it as a column, or upload vectors")],
        )
    if one.slot.kind == "table" and not one.record.columns:
        raise InvalidRequest(
            f"`{one.name}` takes a table; dataset {name} has no columns.",
            [Fault(pointer=one.pointer, message="upload a CSV")],
        )
    if one.column is not None and one.column not in one.record.columns:
        raise InvalidRequest(
            f"Dataset {name} has no column `{one.column}`.",
            [Fault(pointer=one.pointer, message=_columns(one.column, list(one.record.columns)))],
        )


def _columns(asked: str, known: Sequence[str]) -> str:
    """What an unknown column may have been, and all there are."""
    if len(known) == 1 and (mark := next((one for one in SEPARATORS if one in known[0]), None)):
        return (
            f"its only column is `{known[0]}`: this file is separated by {SEPARATORS[mark]}; separate "
            "its columns by commas"
        )
    hint = did_you_mean(asked, known)
    shown = ", ".join(known[:SHOWN_COLUMNS]) + (", ..." if len(known) > SHOWN_COLUMNS else "")
    return hint if hint.startswith("known") else f"{hint} It has {shown}"


def _refuse_unpaired(group: list[Given], params: Params, store: Store) -> None:
    if params.align_by_ids and len(group) > 1:
        _refuse_nothing_to_align_by(group)
        _refuse_other_ids(group, params, store)
    lead = group[0]
    for other in group[1:]:
        if other.record.n != lead.record.n:
            raise ShapeMismatch(
                f"`{lead.name}` has {lead.record.n} rows and `{other.name}` has "
                f"{other.record.n}; they are paired row by row.",
                [
                    Fault(pointer=lead.pointer, message=f"{lead.record.n} rows"),
                    Fault(pointer=other.pointer, message=f"{other.record.n} rows"),
                ],
            )
    _refuse_other_ids(group, params, store)


def _refuse_other_ids(group: list[Given], params: Params, store: Store) -> None:
    """Where rows are paired by place their ids are equal there; by id, both have the same ids."""
    with_ids = [one for one in group if one.record.ids_sha256 is not None]
    for other in with_ids[1:]:
        if other.record.ids_sha256 != with_ids[0].record.ids_sha256:
            ours = store.ids(with_ids[0].record) or ()
            theirs = store.ids(other.record) or ()
            if params.align_by_ids:
                _refuse_missing_ids(with_ids[0], other, ours, theirs)
            else:
                _refuse_places(with_ids[0], other, ours, theirs)


def _refuse_nothing_to_align_by(group: list[Given]) -> None:
    """Vectors without ids, and columns without where it matters which vectors they follow."""
    orders = {one.record.ids_sha256 for one in group} - {None}
    without = [
        one
        for one in group
        if one.record.ids_sha256 is None and (one.column is None or len(orders) > 1)
    ]
    if without:
        names = ", ".join(f"`{one.slot.name}`" for one in without)
        raise IdsMismatch(
            f"`align_by_ids` needs ids of all paired rows; {names} came without.",
            [
                Fault(pointer=one.pointer, message="name its id column, or pair by position")
                for one in without
            ],
        )


def _refuse_places(
    lead: Given, other: Given, ours: tuple[str, ...], theirs: tuple[str, ...]
) -> None:
    wrong = [mine for mine, other_id in zip(ours, theirs, strict=True) if mine != other_id]
    message = "these rows carry another id; `align_by_ids` matches equal ids in any order"
    raise IdsMismatch(
        f"`{lead.name}` and `{other.name}` are paired and carry different ids.",
        [Fault(pointer=other.pointer, message=message, count=len(wrong), rows=first(wrong))],
    )


def _refuse_missing_ids(
    lead: Given, other: Given, ours: tuple[str, ...], theirs: tuple[str, ...]
) -> None:
    faults = [
        Fault(
            pointer=one.pointer,
            message=f"these ids of `{whole.name}` are not here",
            count=len(missing),
            rows=first(missing),
        )
        for one, whole, missing in (
            (lead, other, sorted(set(theirs) - set(ours))),
            (other, lead, sorted(set(ours) - set(theirs))),
        )
        if missing
    ]
    if faults:
        raise IdsMismatch(
            f"`{lead.name}` and `{other.name}` are paired by id, and some ids are on one side only.",
            faults,
        )


def _refuse_dimensions(roles: list[Given]) -> None:
    if len({one.record.d for one in roles}) > 1:
        raise DimensionMismatch(
            "All vectors of this check must have the same number of dimensions.",
            [Fault(pointer=one.pointer, message=f"{one.record.d} dimensions") for one in roles],
        )


def _refuse_sizes(check: Check, one: Given, params: Params) -> None:
    fewest = one.slot.fewest(params)
    if one.record.n < fewest:
        way_out = f"at least {fewest} rows"
        if setting := one.slot.more_than or one.slot.as_many_as:
            way_out += f", or a smaller `{setting}`"
        raise TooFewRows(
            f"`{one.name}` has {one.record.n} rows; `{check.kind}` needs {fewest}.",
            [Fault(pointer=one.pointer, message=way_out)],
        )
    if one.slot.wider_than is not None:
        wanted = min(getattr(params, one.slot.wider_than))
        if (one.record.d or 0) <= wanted:
            raise InvalidRequest(
                f"`{one.name}` has {one.record.d} dimensions and none of "
                f"`{one.slot.wider_than}` is smaller.",
                [
                    Fault(
                        pointer=f"/params/{one.slot.wider_than}",
                        message=f"name a number below {one.record.d}",
                    )
                ],
            )
    if check.row_limit is not None and one.record.n > check.row_limit:
        raise InvalidRequest(
            f"`{one.name}` has {one.record.n} rows; `{check.kind}` takes at most "
            f"{check.row_limit}.",
            [Fault(pointer=one.pointer, message="send a sample of the rows")],
        )


def _refuse_bad_rows(one: Given, params: Params, store: Store) -> None:
    facts = one.record.facts
    if facts is None:
        return
    faults: list[tuple[type[AssayError], str, Found]] = [
        (NonFiniteRows, "holds NaN or infinity in {}", facts.non_finite_rows),
    ]
    if not one.slot.takes_zeros(params):
        faults.append((ZeroRows, "has no direction in {}, where all is zero", facts.zero_rows))
    for error, what, found in faults:
        if found.count:
            ids = store.ids(one.record)
            raise error(
                f"`{one.name}` {what.format(counted(found.count, 'row'))}.",
                [
                    Fault(
                        pointer=one.pointer,
                        message='repair them, or drop them with `"on_bad_rows": "drop"`',
                        count=found.count,
                        rows=[str(row) if ids is None else ids[row] for row in found.rows],
                    )
                ],
            )


def _refuse_labels(one: Given, column: str, params: Params, store: Store) -> None:
    facts = one.record.columns[column]
    if facts.missing and params.on_bad_rows == "error":
        rows = np.flatnonzero(store.column(one.record, column).codes < 0)
        ids = store.ids(one.record)
        raise MissingLabels(
            f"`{one.name}` has no label in {counted(facts.missing, 'row')}.",
            [
                Fault(
                    pointer=one.pointer,
                    message='label them, or drop them with `"on_bad_rows": "drop"`',
                    count=facts.missing,
                    rows=first([str(row) if ids is None else ids[row] for row in rows[:10]]),
                )
            ],
        )
    if facts.distinct < one.slot.least:
        raise TooFewGroups(
            f"`{one.name}` has {facts.distinct} groups; at least {one.slot.least} are needed.",
            [Fault(pointer=one.pointer, message="use a column with two or more labels")],
        )
    if one.slot.numeric and facts.type in ("string", "mixed"):
        try:
            _ = store.column(one.record, column).numbers
        except InvalidRequest as error:
            raise InvalidRequest(
                f"`{one.name}` takes numbers.",
                [Fault(pointer=one.pointer, message=error.detail)],
            ) from None
