"""A request becomes a job that can run: its data are stored datasets, and nothing forbids it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from service.binding import column_of, vectors_of
from service.check import BARE, Check, Slot
from service.errors import Fault, Internal, InvalidRequest
from service.job import StoredInputs
from service.references import (
    BaselineColumn,
    BaselineRef,
    ColumnRef,
    DatasetRef,
    InlineColumn,
    InlineRelevance,
    InlineTable,
    InlineVectors,
    Model,
    NamedBaseline,
    NamedDataset,
    NamedParts,
    NamedVectors,
    SourceRef,
)
from service.refusing import Given, Store, refuse
from service.request import RequestBase, check_of, request_digest
from service.services import Services

GIB = 1 << 30
Imported = Mapping[str, str]
"""Dataset by source, see `source_key`."""


def bound(services: Services, project: str, request: RequestBase) -> RequestBase:
    """The same request with inline data stored and baselines looked up; sources stay."""
    values = {
        name: _bound(services, project, name, value)
        for name, value in request.inputs
        if value is not None
    }
    return request.model_copy(update={"inputs": request.inputs.model_copy(update=values)})


def _bound(services: Services, project: str, name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_bound(services, project, name, one) for one in value]
    if isinstance(value, (NamedBaseline, NamedVectors)):
        return NamedDataset(dataset=vectors_of(services, project, value), name=value.name)
    if isinstance(value, (BaselineRef, InlineVectors, InlineTable)):
        return DatasetRef(dataset=vectors_of(services, project, value))
    if isinstance(value, (BaselineColumn, InlineColumn, InlineRelevance)):
        return column_of(services, project, name, value)
    if isinstance(value, (DatasetRef, ColumnRef, SourceRef)) or not isinstance(value, Model):
        return value
    parts = {part: _bound(services, project, name, one) for part, one in value}
    return value.model_copy(update=parts)


def sources_of(request: RequestBase) -> Iterator[SourceRef]:
    """Every source of a request."""
    for _, value in request.inputs:
        yield from _sources(value)


def _sources(value: Any) -> Iterator[SourceRef]:
    if isinstance(value, SourceRef):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _sources(one)
    elif isinstance(value, Model):
        for _, one in value:
            yield from _sources(one)


def source_key(value: SourceRef) -> str:
    """What makes two sources of a request the same."""
    return SourceRef(source=value.source, spec=value.spec).model_dump_json()


def settled(
    services: Services, project: str, request: RequestBase, imported: Imported
) -> dict[str, Any]:
    """
    What a job record holds of a bound request whose sources are imported.

    Refuses what metadata forbids.
    """
    check = check_of(request.kind)
    resolved = _stored(services, project, check, request, imported)
    bare = {role for role, value in request.inputs if value is not None} - set(resolved)
    given = _given(services, project, check, resolved, bool(bare))
    store = Store(
        ids=lambda record: services.datasets.ids(project, record.id),
        column=lambda record, name: services.datasets.column(project, record.id, name),
    )
    refuse(check, given, request.params, store, request.seed)
    input_bytes = sum(one.record.bytes for one in given.values() if one.column is None)
    return {
        "inputs": resolved,
        "request_digest": request_digest(
            check.kind,
            check.version,
            {name: one.sha256 for name, one in given.items()},
            request.params,
            request.seed,
        ),
        "memory_bytes": input_bytes + check.memory_bytes(input_bytes) + GIB,
    }


def _dataset(value: Any, imported: Imported) -> str:
    if isinstance(value, SourceRef):
        return imported[source_key(value)]
    if isinstance(value, DatasetRef):
        return value.dataset
    raise Internal("A request is bound before it is settled.")


def _stored(
    services: Services, project: str, check: Check, request: RequestBase, imported: Imported
) -> StoredInputs:
    """Inputs as references to stored data only."""
    result: StoredInputs = {}
    asked = {name: value for name, value in request.inputs if value is not None}
    for slot in check.slots_of(asked):
        value = asked.get(slot.name)
        if slot.several:
            result[slot.name] = _parts(slot, value, asked, imported)
        elif isinstance(value, list):
            names = _names(slot, value)
            result[slot.name] = [
                NamedDataset(dataset=_dataset(one, imported), name=name)
                for name, one in zip(names, value, strict=True)
            ]
        elif isinstance(value, (DatasetRef, SourceRef)):
            result[slot.name] = DatasetRef(dataset=_dataset(value, imported))
        elif value is not None:
            _refuse_lonely(slot, result)
            default = _default_dataset(slot, result)
            result[slot.name] = column_of(services, project, slot.name, value, default)
    return result


def _names(slot: Slot, models: list[Any]) -> list[str]:
    names = [one.name or f"model_{i}" for i, one in enumerate(models, start=1)]
    if len(set(names)) != len(names):
        raise InvalidRequest(f"The names in `{slot.name}` are not unique: {names}.")
    return names


def _parts(
    slot: Slot, models: list[Any] | None, asked: dict[str, Any], imported: Imported
) -> list[NamedDataset | NamedParts]:
    """Models of several matrices, listed or one by bare roles."""
    if models is None:
        given = [(BARE, {part: asked.get(part) for part in slot.parts})]
    else:
        given = [
            (name, {part: getattr(one, part) for part in slot.parts})
            for name, one in zip(_names(slot, models), models, strict=True)
        ]
    return [
        NamedParts.model_validate(
            {
                "name": name,
                **{
                    part: DatasetRef(dataset=_dataset(value, imported))
                    for part, value in parts.items()
                    if value is not None
                },
            }
        )
        for name, parts in given
    ]


def _default_dataset(slot: Slot, result: StoredInputs) -> str | None:
    """The dataset of the role a column belongs to; of several models, the first."""
    role, _, part = (slot.of or "").partition(".")
    source = result.get(role)
    if isinstance(source, list):
        one = source[0]
        if not isinstance(one, NamedParts):
            return one.dataset
        return one.parts[part].dataset if part in one.parts else None
    return None if source is None else source.dataset


def _is_given(role: str, inputs: StoredInputs) -> bool:
    """Whether there is a role, or a matrix of each of its models: `models.test`."""
    name, _, part = role.partition(".")
    value = inputs.get(name)
    one = value[0] if isinstance(value, list) else value
    return part in one.parts if isinstance(one, NamedParts) else one is not None


def _refuse_lonely(slot: Slot, inputs: StoredInputs) -> None:
    if slot.of is not None and not _is_given(slot.of, inputs):
        raise InvalidRequest(
            f"`{slot.name}` is a column of `{slot.of}`, which is not given.",
            [Fault(pointer=f"/inputs/{slot.name}", message=f"give `{slot.of}` too")],
        )


def _given(
    services: Services, project: str, check: Check, inputs: StoredInputs, bare: bool
) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for slot in check.slots_of(inputs):
        value = inputs.get(slot.name)
        if isinstance(value, list):
            for place, one in enumerate(value):
                here = f"{slot.name}/{place}/{one.name}"
                if isinstance(one, NamedParts):
                    for part, ref in one.parts.items():
                        record = services.datasets.usable(project, ref.dataset)
                        at = f"/inputs/{part}" if bare else f"/inputs/{slot.name}/{place}/{part}"
                        called = part if bare else f"{slot.name}/{one.name}/{part}"
                        given[f"{here}/{part}"] = Given(
                            slot.part(part), record, place=place, at=at, called=called
                        )
                    continue
                record = services.datasets.usable(project, one.dataset)
                called = f"{slot.name}/{one.name}"
                given[here] = Given(slot, record, place=place, called=called)
        elif value is not None:
            record = services.datasets.usable(project, value.dataset or "")
            column = value.column if isinstance(value, ColumnRef) else None
            given[slot.name] = Given(slot, record, column)
    return given
