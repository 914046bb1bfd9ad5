"""Faults in our own words: what is wrong, and what would be right."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import Fault, InvalidRequest
from service.request import BY_KIND, parse_request

ROWS: dict[str, Any] = {"dataset": "ds_1"}
GEOMETRY: dict[str, Any] = {"kind": "geometry", "inputs": {"vectors": ROWS}}
VALIDATORS_OWN = re.compile(
    r"Field required|Extra inputs|not permitted|[Ii]nput should|Value error|valid (string|integer)"
)


def faults(body: Any) -> tuple[Fault, ...]:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(body)
    return caught.value.faults


@pytest.mark.parametrize(
    ("change", "place", "says"),
    [
        ({"inputs": {}}, "/inputs/vectors", "is required: Rows to describe"),
        ({"inputs": []}, "/inputs", "takes an object, not a list"),
        ({"inputs": {"vectors": "ds_1"}}, "/inputs/vectors",
         'takes an object: `{"dataset": ID}`, `{"baseline": NAME}`, `{"vectors": ROWS}` or '
         '`{"source": {...}}`'),
        ({"inputs": {"vectors": {"datset": "ds_1"}}}, "/inputs/vectors/datset",
         "there is no `datset` here; did you mean `dataset`?"),
        ({"inputs": {"vectors": {"dataset": 1}}}, "/inputs/vectors/dataset",
         "takes text, not a number"),
        ({"inputs": {"vectors": ROWS, "groups": "intent"}}, "/inputs/groups",
         'takes an object: `{"column": NAME}`, `{"dataset": ID, "column": NAME}`, '
         '`{"baseline": NAME, "column": NAME}` or `{"values": [...]}`'),
        ({"params": {"max_spectrm": 3}}, "/params/max_spectrm", "did you mean `max_spectrum`?"),
        ({"params": {"max_spectrum": 1.5}}, "/params/max_spectrum",
         "takes a whole number, not a fraction"),
        ({"params": 1.5}, "/params", "takes an object, not a number"),
        ({"inputs": {"vectors": {"dataset": 1.5}}}, "/inputs/vectors/dataset",
         "takes text, not a number"),
        ({"params": {"max_spectrum": 0}}, "/params/max_spectrum", "takes 1 or more"),
        ({"params": {"max_spectrum": None}}, "/params/max_spectrum",
         "takes a whole number, not null"),
        ({"params": {"level": 1}}, "/params/level", "takes 0.999999 or less"),
        ({"params": {"census": "x"}}, "/params/census", "takes true or false"),
        ({"params": {"on_bad_rows": "skip"}}, "/params/on_bad_rows", "takes 'error' or 'drop'"),
        ({"seed": "x"}, "/seed", "takes a whole number"),
        ({"tags": []}, "/tags", "takes an object, not a list"),
        ({"tgs": {}}, "/tgs", "there is no `tgs` here; did you mean `tags`?"),
        ({"kind": 3}, "", "`kind` is one of 'geometry', 'search_hygiene'"),
    ],
    ids=str,
)  # fmt: skip
def test_a_fault_says_what_would_be_right(change: dict[str, Any], place: str, says: str) -> None:
    """By its place in the body."""
    found = {one.pointer: one.message for one in faults({**GEOMETRY, **change})}
    assert says in found[place]


def test_a_key_that_is_like_no_other_is_answered_with_all_there_are() -> None:
    """`dataset` is no misspelled `test`."""
    found = faults({"kind": "linear_probe", "inputs": {"models": [ROWS]}})
    assert "there is no `dataset` here; known: name, rows, test" in [one.message for one in found]


def test_one_place_is_not_places() -> None:
    """Counted as people count."""
    for change, says in (
        ({"seed": -1}, "1 place is not valid: /seed."),
        ({"seed": -1, "tags": 1}, "2 places are not valid: /seed, /tags."),
    ):
        with pytest.raises(InvalidRequest) as caught:
            parse_request({**GEOMETRY, **change})
        assert caught.value.detail == says


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("group_structure", '`[{"name": NAME, "dataset": ID}, ...]`'),
        ("linear_probe", '`[{"name": NAME, "rows": {"dataset": ID}}, ...]`'),
        (
            "retrieval",
            '`[{"name": NAME, "queries": {"dataset": ID}, "documents": {"dataset": ID}}, ...]`',
        ),
    ],
)
def test_models_by_name_are_answered_with_the_form_of_a_list(kind: str, form: str) -> None:
    """An object of models reads well and means nothing here."""
    found = faults({"kind": kind, "inputs": {"models": {"old": ROWS, "new": ROWS}}})
    assert f"takes a list of models: {form}" in [one.message for one in found]


def test_a_secret_in_the_wrong_place_is_not_repeated() -> None:
    """The kind of a value is named, never the value."""
    assert "hunter2" not in str(faults({**GEOMETRY, "seed": "hunter2", "tags": ["hunter2"]}))


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _places(one, (*path, key))
    if isinstance(value, list):
        for i, one in enumerate(value):
            yield from _places(one, (*path, i))


WHOLE: dict[str, Any] = {
    **GEOMETRY,
    "inputs": {
        "vectors": {"source": {"kind": "pgvector", "connection": "c", "table": "t", "vector": "v",
                               "id": "i", "where": [{"column": "a", "op": "in", "value": [1]}]}},
        "groups": {"values": ["a", 1, None]},
    },
    "params": {"max_spectrum": 8, "level": 0.9, "on_bad_rows": "drop", "census": False},
    "seed": 1,
    "tags": {"a": "b"},
}  # fmt: skip
WRONG = st.sampled_from(
    [
        None,
        True,
        -1,
        1.5,
        2**70,
        float("nan"),
        "",
        "x" * 600,
        [],
        [[]],
        {},
        {"strange": {}},
        {"": 1},
    ]
)


@given(st.sampled_from(list(_places(WHOLE))[1:]), WRONG, st.booleans())
def test_no_fault_is_in_the_words_of_a_validator(
    path: tuple[Any, ...], wrong: Any, remove: bool
) -> None:
    """Whatever stands wherever, or is missing there."""
    body = copy.deepcopy(WHOLE)
    place: Any = body
    for step in path[:-1]:
        place = place[step]
    if remove:
        del place[path[-1]]
    else:
        place[path[-1]] = wrong
    try:
        parse_request(body)
    except InvalidRequest as error:
        for fault in error.faults:
            assert not VALIDATORS_OWN.search(fault.message), fault


@pytest.mark.parametrize("kind", BY_KIND)
def test_every_check_answers_an_empty_request_in_these_words(kind: str) -> None:
    """With what each role is, where it has roles."""
    for inputs in ({}, {"strange": 1}):
        body = {"kind": kind, "inputs": inputs, "params": {"strange": 1}, "sed": 1}
        for fault in faults(body):
            assert not VALIDATORS_OWN.search(fault.message), fault
