"""Values of a request become references to stored data: inline data is kept, baselines looked up."""

from __future__ import annotations

from service.dataset import Labels
from service.errors import InvalidRequest
from service.formats import Parsed
from service.formats.json_body import inline_columns, inline_rows
from service.references import (
    BaselineColumn,
    BaselineRef,
    ColumnRef,
    DatasetRef,
    InlineColumn,
    InlineRelevance,
    InlineTable,
    InlineVectors,
)
from service.relevance import as_cells
from service.services import Services
from service.uploads import commit


def vectors_of(
    services: Services,
    project: str,
    value: DatasetRef | BaselineRef | InlineVectors | InlineTable,
) -> str:
    """Id of the dataset that holds a value's rows."""
    if isinstance(value, DatasetRef):
        return value.dataset
    if isinstance(value, BaselineRef):
        return services.baselines.get(project, value.baseline).dataset
    draft = services.datasets.draft(project)
    try:
        if isinstance(value, InlineTable):
            parsed = inline_columns(value, services.limits)
        else:
            parsed = inline_rows(value, draft, services.limits)
        record, _ = commit(services, draft, parsed, None, None)
    except BaseException:
        services.datasets.discard(draft)
        raise
    return record.id


def column_of(
    services: Services,
    project: str,
    name: str,
    value: ColumnRef | BaselineColumn | InlineColumn | InlineRelevance,
    default: str | None = None,
) -> ColumnRef:
    """The column of a stored dataset that holds a value; `default` is the dataset it is read from."""
    if isinstance(value, (InlineColumn, InlineRelevance)):
        return _store(services, project, name, value)
    if isinstance(value, BaselineColumn):
        dataset: str | None = services.baselines.get(project, value.baseline).dataset
    else:
        dataset = value.dataset or default
    if dataset is None:
        raise InvalidRequest(f"`{name}` needs a `dataset` to read its column from.")
    return ColumnRef(dataset=dataset, column=value.column)


def _store(
    services: Services, project: str, name: str, value: InlineColumn | InlineRelevance
) -> ColumnRef:
    column = (
        as_cells(value.values) if isinstance(value, InlineRelevance) else Labels.of(value.values)
    )
    if not len(column):
        raise InvalidRequest(f"`{name}` has no values.")
    services.limits.refuse_rows(len(column))
    draft = services.datasets.draft(project)
    parsed = Parsed(len(column), None, None, 0, None, None, columns={"values": column})
    try:
        record, _ = commit(services, draft, parsed, None, None)
    except BaseException:
        services.datasets.discard(draft)
        raise
    return ColumnRef(dataset=record.id, column="values")
