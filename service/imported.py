"""What a reader of a report should know of how its rows were read from a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from service.context import Warned
from service.dataset_record import DatasetRecord
from service.source_reference import Provenance


def warnings_of(inputs: Iterable[tuple[str, DatasetRecord]]) -> list[Warned]:
    """Rows that were left out or read back from codes, once for each dataset, with all its roles."""
    roles: dict[str, list[str]] = {}
    sources: dict[str, Provenance] = {}
    for role, record in inputs:
        if isinstance(record.spec.source, Provenance):
            sources[record.id] = record.spec.source
            roles.setdefault(record.id, []).append(f"inputs/{role}")
    return [
        Warned(code=code, message=message, where=", ".join(roles[dataset]))
        for dataset, source in sources.items()
        for code, message in _told(source)
    ]


def _told(source: Provenance) -> Iterator[tuple[str, str]]:
    rows = f"rows of `{source.location}` ({source.kind})"
    if missing := source.missing_vectors:
        left_out = "has no vector and was" if missing == 1 else "have no vector and were"
        first = f", first: {', '.join(source.missing_ids)}" if source.missing_ids else ""
        yield (
            "missing_vectors",
            f"{missing} of {source.rows + missing} {rows} {left_out} left out{first}.",
        )
    if source.lossy:
        kept = f" ({source.stored_as})" if source.stored_as else ""
        yield (
            "lossy_storage",
            f"The {rows} were read back from codes{kept}: they are what the store has kept, not what "
            "was written to it.",
        )
