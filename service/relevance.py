"""
Relevance: which documents are right for each query, and how right.

It is kept as a column of text, one cell for each query: a JSON list of document ids or of
`[id, grade]`, or one bare id. So it is stored, hashed, paired and aligned as every column is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.dataset import Labels
from service.errors import (
    AssayError,
    DuplicateIds,
    Fault,
    IdsMismatch,
    InvalidRequest,
    MissingLabels,
    first,
)
from service.references import Label

Ids = Sequence[str] | None
LIST = "["
NO_IDS = "row numbers, and `documents` have no ids: store them with ids (`id_column` of a table)"


@dataclass(frozen=True, eq=False)
class Relevance:
    """
    Relevant documents of each query.

    Attributes
    ----------
    starts : (m + 1,) int64
        Where the documents of each query begin.
    rows : (p,) int64, ascending within a query
        Rows of the documents.
    grades : (p,) float64, positive
    """

    starts: NDArray[np.int64]
    rows: NDArray[np.int64]
    grades: NDArray[np.float64]

    @classmethod
    def of(cls, rows: Iterable[Iterable[int | tuple[int, float]]]) -> Relevance:
        """From row numbers of documents, or pairs of them with grades, for each query."""
        pairs = [
            sorted((one, 1.0) if isinstance(one, int) else one for one in some) for some in rows
        ]
        counts = [len(some) for some in pairs]
        return cls(
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            np.array([row for some in pairs for row, _ in some], np.int64),
            np.array([grade for some in pairs for _, grade in some], np.float64),
        )

    def __len__(self) -> int:
        return len(self.starts) - 1


def as_cells(values: Iterable[Sequence[Any] | None]) -> Labels:
    """A column of text from lists of ids or `[id, grade]`; an empty list is a missing cell."""
    return Labels.of(None if not some else _written(some) for some in values)


def _written(some: Sequence[Any]) -> str:
    pairs = [(one, 1.0) if isinstance(one, (str, int)) else tuple(one) for one in some]
    ordered = sorted((str(document), float(grade)) for document, grade in pairs)
    return json.dumps(ordered, ensure_ascii=False)


def judged_rows(cells: Labels, names: Ids, pointer: str) -> Labels:
    """
    The same cells, missing where no document is relevant: left empty, or of grades 0 only.

    Raises InvalidRequest where a cell cannot be read, DuplicateIds where it names a document twice.
    """
    read: list[list[tuple[str, float]]] = []
    wrong: dict[int, str] = {}
    for code, level in enumerate(cells.levels):
        try:
            read.append(_read(level))
        except ValueError as error:
            read.append([])
            wrong[code] = str(error)
    if wrong:
        raise _at_rows(InvalidRequest, cells, wrong, names, pointer, "cannot be read")
    repeated = {
        code: "name each document once"
        for code, pairs in enumerate(read)
        if len({document for document, _ in pairs}) < len(pairs)
    }
    if repeated:
        raise _at_rows(DuplicateIds, cells, repeated, names, pointer, "name a document twice")
    some = np.array([any(grade > 0 for _, grade in pairs) for pairs in read] + [False])
    codes = np.where(some[cells.codes], cells.codes, -1).astype(np.int32)
    return Labels(cells.levels, codes)


def refuse_unanswerable(cells: Labels, names: Ids, pointer: str) -> None:
    """Raise for queries without a relevant document; the cells are those of `judged_rows`."""
    rows = np.flatnonzero(cells.codes < 0)
    if len(rows):
        raise MissingLabels(
            f"{len(rows)} queries have no relevant document.",
            [
                Fault(
                    pointer=pointer,
                    message='name one for each, or drop them with `"on_bad_rows": "drop"`',
                    count=len(rows),
                    rows=_named(rows, names),
                )
            ],
        )


def resolve(cells: Labels, documents: Ids, n: int, names: Ids, pointer: str) -> Relevance:
    """
    Rows of the documents that cells name; all cells hold one.

    Parameters
    ----------
    cells : Labels, as `judged_rows` gives them
    documents : ids of the documents, None where they are numbered
    n : number of documents
    names : ids of the queries, for errors
    pointer : where the column stands in the request

    Raises
    ------
    IdsMismatch
        Where a document is not there.
    """
    place = None if documents is None else {name: row for row, name in enumerate(documents)}
    used = np.unique(cells.codes)
    of_level: dict[int, list[tuple[int, float]]] = {}
    unknown: dict[int, str] = {}
    for code in used.tolist():
        found = []
        for document, grade in _read(cells.levels[code]):
            row = _numbered(document, n) if place is None else place.get(document)
            if row is None:
                there = NO_IDS if place is None else "ids of `documents`"
                unknown.setdefault(code, f"`{document[:40]}` is not among the {n} {there}")
            elif grade > 0:
                found.append((row, grade))
        of_level[code] = sorted(found)
    if unknown:
        raise _at_rows(IdsMismatch, cells, unknown, names, pointer, "name unknown documents")
    return Relevance.of(of_level[code] for code in cells.codes.tolist())


def _read(level: Label) -> list[tuple[str, float]]:
    """Documents and grades of a cell."""
    if isinstance(level, (bool, float)):
        raise ValueError(f"`{level}` is no document id")
    if isinstance(level, int):
        return [(str(level), 1.0)]
    text = level.strip()
    if not text.startswith(LIST):
        return [(text, 1.0)] if text else []
    try:
        listed = json.loads(text)
    except ValueError:
        raise ValueError(f"`{text[:40]}` is no JSON list of document ids") from None
    return [_pair(one) for one in listed]


def _pair(one: Any) -> tuple[str, float]:
    document, grade = one if isinstance(one, list) and len(one) == 2 else (one, 1.0)
    if isinstance(document, bool) or not isinstance(document, (str, int)):
        raise ValueError(f"`{str(one)[:40]}` is neither a document id nor [id, grade]")
    number = isinstance(grade, (int, float)) and not isinstance(grade, bool)
    if not number or not math.isfinite(grade) or grade < 0:
        raise ValueError(f"`{str(grade)[:40]}` is no grade: a number from 0 up")
    return str(document), float(grade)


def _numbered(document: str, n: int) -> int | None:
    """The row a number names, where documents have no ids."""
    plain = document.isascii() and document.isdigit() and document == str(int(document))
    return int(document) if plain and int(document) < n else None


def _at_rows(
    error: type[AssayError],
    cells: Labels,
    wrong: dict[int, str],
    names: Ids,
    pointer: str,
    what: str,
) -> AssayError:
    rows = np.flatnonzero(np.isin(cells.codes, list(wrong)))
    message = next(iter(wrong.values()))
    return error(
        f"{len(rows)} cells of the relevance {what}.",
        [Fault(pointer=pointer, message=message, count=len(rows), rows=_named(rows, names))],
    )


def _named(rows: NDArray[np.integer], names: Ids) -> list[str]:
    return first([str(row) if names is None else names[row] for row in rows[:10]])
