"""Relevance: read as it was meant, refused with the rows concerned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.dataset import Labels
from service.errors import DuplicateIds, IdsMismatch, InvalidRequest, MissingLabels
from service.relevance import Relevance, as_cells, judged_rows, refuse_unanswerable, resolve

DOCUMENTS = ("a", "b", "c", "[d]")
HERE = "/inputs/relevance"


def read(cells: Labels, documents: tuple[str, ...] | None = DOCUMENTS, n: int = 4) -> list[Any]:
    """Documents and grades of each query."""
    judged = judged_rows(cells, None, HERE)
    refuse_unanswerable(judged, None, HERE)
    found = resolve(judged, documents, n, None, HERE)
    rows, grades = found.rows.tolist(), found.grades.tolist()
    return [
        list(zip(rows[start:stop], grades[start:stop], strict=True))
        for start, stop in zip(found.starts[:-1], found.starts[1:], strict=True)
    ]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("b", [(1, 1.0)]),
        ('["c", "a"]', [(0, 1.0), (2, 1.0)]),
        ('[["c", 2], "a", ["b", 0]]', [(0, 1.0), (2, 2.0)]),
        ('["[d]"]', [(3, 1.0)]),
        (" b ", [(1, 1.0)]),
    ],
)
def test_a_cell_is_one_id_or_a_list(cell: str, expected: list[Any]) -> None:
    """Written out by hand; grade 0 is not relevant, and an id that looks like a list needs a list."""
    assert read(Labels.of([cell, "a"])) == [expected, [(0, 1.0)]]


def test_documents_without_ids_are_numbered() -> None:
    """By text or by integers, as a column may hold either; 04 is no number."""
    assert read(Labels.of(["[3, 0]", 2]), None) == [[(0, 1.0), (3, 1.0)], [(2, 1.0)]]
    for wrong in ("4", "-1", "04", "1.0", "²"):
        with pytest.raises(IdsMismatch):
            read(Labels.of([wrong]), None)


@given(st.lists(st.dictionaries(st.sampled_from(DOCUMENTS), st.floats(0.5, 9), min_size=1)))
def test_what_is_sent_inline_is_what_is_read(values: list[dict[str, float]]) -> None:
    """Compared with the pairs that were sent, in any order."""
    sent = [[(name, grade) for name, grade in one.items()] for one in values]
    expected = [sorted((DOCUMENTS.index(name), grade) for name, grade in one) for one in sent]
    assert read(as_cells(sent)) == expected
    turned = as_cells([one[::-1] for one in sent])
    assert turned.sha256 == as_cells(sent).sha256


@pytest.mark.parametrize(
    ("error", "cells", "rows", "says"),
    [
        (IdsMismatch, ["a", "x", '["a", "y"]'], ["1", "2"], "`x` is not among the 4 ids"),
        (DuplicateIds, ["a", '["b", ["b", 2]]'], ["1"], "once"),
        (MissingLabels, ["a", None, '[["b", 0]]', "[]", ""], ["1", "2", "3", "4"], "drop"),
        (InvalidRequest, ["a", "[1, 2"], ["1"], "JSON list"),
        (InvalidRequest, ["a", '[["b", -1]]'], ["1"], "grade"),
        (InvalidRequest, ["a", '[["b", true]]'], ["1"], "grade"),
        (InvalidRequest, ["a", '[["b", 1e999]]'], ["1"], "grade"),
        (InvalidRequest, ["a", "[{}]"], ["1"], "neither"),
        (InvalidRequest, ["a", 1.5], ["1"], "no document id"),
    ],
)
def test_wrong_cells_are_refused_with_their_rows(
    error: type[InvalidRequest], cells: list[Any], rows: list[str], says: str
) -> None:
    """Rows counted by hand."""
    with pytest.raises(InvalidRequest) as caught:
        read(Labels.of(cells))
    assert type(caught.value) is error
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.count, fault.rows) == (HERE, len(rows), rows)
    assert says in fault.message


def test_ids_of_documents_that_have_none_are_refused_with_where_ids_come_from() -> None:
    """Aligning would not help: there is nothing to align."""
    with pytest.raises(IdsMismatch) as caught:
        read(Labels.of(["r0"]), None)
    assert "`documents` have no ids" in caught.value.faults[0].message
    assert "id_column" in caught.value.faults[0].message


def test_rows_are_named_by_the_ids_of_queries() -> None:
    """Where there are ids."""
    with pytest.raises(MissingLabels) as caught:
        refuse_unanswerable(Labels.of(["a", None]), ("q1", "q2"), HERE)
    assert caught.value.faults[0].rows == ["q2"]


def test_relevance_by_rows_is_sorted_within_a_query() -> None:
    """By hand."""
    found = Relevance.of([[3, (1, 2.0)], [0]])
    assert found.starts.tolist() == [0, 2, 3]
    assert found.rows.tolist() == [1, 3, 0]
    assert found.grades.tolist() == [2.0, 1.0, 1.0]
    assert len(found) == 2
    assert found.rows.dtype == np.int64
