"""A request becomes a job that can run: its data are stored datasets, and nothing forbids it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from service.binding import column_of, vectors_of
from service.check import Check, Slot
from service.errors import Fault, Internal, InvalidRequest
from service.inputs import Given, Store, refuse
from service.job import StoredInputs
from service.references import (
    BaselineColumn,
    BaselineRef,
    ColumnRef,
    DatasetRef,
    InlineColumn,
    InlineVectors,
    NamedBaseline,
    NamedDataset,
    NamedVectors,
    SourceRef,
)
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
    if isinstance(value, (BaselineRef, InlineVectors)):
        return DatasetRef(dataset=vectors_of(services, project, value))
    if isinstance(value, (BaselineColumn, InlineColumn)):
        return column_of(services, project, name, value)
    return value


def sources_of(request: RequestBase) -> Iterator[tuple[str, SourceRef]]:
    """Every source of a request, with its place."""
    for name, value in request.inputs:
        if isinstance(value, SourceRef):
            yield f"/inputs/{name}", value
        elif isinstance(value, list):
            for place, one in enumerate(value):
                if isinstance(one, SourceRef):
                    yield f"/inputs/{name}/{place}", one


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
    given = _given(services, project, check, resolved)
    store = Store(
        ids=lambda record: services.datasets.ids(project, record.id),
        column=lambda record, name: services.datasets.column(project, record.id, name),
    )
    refuse(check, given, request.params, store)
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


def _stored(
    services: Services, project: str, check: Check, request: RequestBase, imported: Imported
) -> StoredInputs:
    """Inputs as references to stored data only."""
    result: StoredInputs = {}
    asked = {name: value for name, value in request.inputs if value is not None}

    def dataset(value: Any) -> str:
        if isinstance(value, SourceRef):
            return imported[source_key(value)]
        if isinstance(value, DatasetRef):
            return value.dataset
        raise Internal("A request is bound before it is settled.")

    for slot in check.slots_of(asked):
        value = asked.get(slot.name)
        if isinstance(value, list):
            names = [one.name or f"model_{i}" for i, one in enumerate(value, start=1)]
            if len(set(names)) != len(names):
                raise InvalidRequest(f"The names in `{slot.name}` are not unique: {names}.")
            result[slot.name] = [
                NamedDataset(dataset=dataset(one), name=name)
                for name, one in zip(names, value, strict=True)
            ]
        elif isinstance(value, ColumnRef):
            default = _default_dataset(slot, result)
            result[slot.name] = column_of(services, project, slot.name, value, default)
        elif value is not None:
            result[slot.name] = DatasetRef(dataset=dataset(value))
    return result


def _default_dataset(slot: Slot, result: StoredInputs) -> str | None:
    """The dataset of the role a column belongs to; of several models, the first."""
    source = result.get(slot.of or "")
    if isinstance(source, list):
        source = source[0]
    return None if source is None else source.dataset


def _given(
    services: Services, project: str, check: Check, inputs: StoredInputs
) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for slot in check.slots_of(inputs):
        value = inputs.get(slot.name)
        if value is not None and slot.of is not None and slot.of not in inputs:
            raise InvalidRequest(
                f"`{slot.name}` is a column of `{slot.of}`, which is not given.",
                [Fault(pointer=f"/inputs/{slot.name}", message=f"give `{slot.of}` too")],
            )
        if isinstance(value, list):
            for place, one in enumerate(value):
                record = services.datasets.record(project, one.dataset)
                given[f"{slot.name}/{place}/{one.name}"] = Given(slot, record, place=place)
        elif value is not None:
            record = services.datasets.record(project, value.dataset or "")
            column = value.column if isinstance(value, ColumnRef) else None
            given[slot.name] = Given(slot, record, column)
    return given
