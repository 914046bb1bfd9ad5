"""Errors: one tree, stable codes, and faults that survive a process boundary."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from service import errors
from service.errors import AssayError, Fault, InvalidRequest, NonFiniteRows, first
from service.job import Failure
from service.operations import JobFailed


def tree(root: type[AssayError] = AssayError) -> Iterator[type[AssayError]]:
    for found in root.__subclasses__():
        if found.__module__ == errors.__name__:
            yield found
            yield from tree(found)


def test_every_error_has_a_code_of_its_own_and_a_title() -> None:
    """Slugs, no two alike."""
    codes = [error.code for error in tree()]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch("[a-z]+(-[a-z]+)*", code) for code in codes)
    assert all(error.title for error in tree())


def test_refusals_of_content_can_be_caught_together() -> None:
    """Everything a caller has to change in the request is an `InvalidRequest`."""
    refusals = {error.code for error in tree(InvalidRequest)}
    assert refusals >= {
        "shape-mismatch", "dimension-mismatch", "ids-mismatch", "duplicate-ids",
        "non-finite-rows", "zero-rows", "too-few-rows", "too-few-groups", "missing-labels",
    }  # fmt: skip


def test_a_failure_keeps_everything_of_its_error() -> None:
    """Code, title, detail, faults; and the error made of it again is the same failure."""
    fault = Fault(pointer="/inputs/a", message="m", count=1, rows=["3"])
    failure = Failure.of(NonFiniteRows("One row.", [fault]))
    assert failure.model_dump() == {
        "code": "non-finite-rows", "title": NonFiniteRows.title, "detail": "One row.",
        "errors": [{"pointer": "/inputs/a", "message": "m", "count": 1, "rows": ["3"]}],
    }  # fmt: skip
    again = JobFailed(failure)
    assert (again.failure, again.faults) == (failure, (fault,))


def test_ten_rows_are_shown() -> None:
    """However many there are."""
    assert first([str(i) for i in range(25)]) == [str(i) for i in range(10)]
    assert first(("a",)) == ["a"]


def test_a_fault_is_closed() -> None:
    """A typo in a field is an error here, not a silent loss."""
    with pytest.raises(ValidationError):
        Fault(pointer="/a", message="m", row=["x"])
