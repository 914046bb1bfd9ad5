"""What metadata forbids, against hand-made inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.checks.compression import compression
from service.checks.cosine_floor import cosine_floor
from service.checks.drift import drift
from service.checks.geometry import geometry
from service.checks.group_structure import group_structure
from service.errors import (
    DimensionMismatch,
    IdsMismatch,
    InvalidRequest,
    MissingLabels,
    NonFiniteRows,
    ShapeMismatch,
    TooFewGroups,
    TooFewRows,
    ZeroRows,
)
from service.refusing import Given, Store, refuse

ALIGN = {"align_by_ids": True}
DROP = {"on_bad_rows": "drop"}
X = np.random.default_rng(17).normal(size=(12, 4))
IDS = [f"r{i:02}" for i in range(12)]


@pytest.fixture
def check_metadata(store: Any, services: Any) -> Any:
    """Store these inputs and refuse by their metadata: arrays, JSON bodies, (body, column)."""

    def run(check: Any, params: dict[str, Any] | None = None, **inputs: Any) -> None:
        slots = {slot.name: slot for slot in check.slots}
        given = {}
        for name, value in inputs.items():
            body, column = value if isinstance(value, tuple) else (value, None)
            given[name] = Given(slots[name], store(body), column)
        look = Store(
            ids=lambda record: services.datasets.ids("default", record.id),
            column=lambda record, name: services.datasets.column("default", record.id, name),
        )
        refuse(check, given, check.params(**(params or {})), look)

    return run


def rows(n: int = 12, d: int = 4, **more: Any) -> dict[str, Any]:
    """A JSON body of the first n rows and d dimensions."""
    return {"vectors": X[:n, :d].tolist(), **more}


def labels(values: list[Any], **more: Any) -> tuple[dict[str, Any], str]:
    """A columns dataset and the name of its column."""
    return {"columns": {"g": values}, **more}, "g"


def test_good_inputs_pass(check_metadata: Any) -> None:
    """Alone, paired, with groups, with ids on none, one or all of them."""
    check_metadata(geometry, vectors=rows())
    check_metadata(geometry, vectors=rows(ids=IDS), groups=labels(["a", "b"] * 6))
    check_metadata(
        cosine_floor, a=rows(ids=IDS), b=rows(ids=IDS), groups=labels(list("abcdef") * 2)
    )
    check_metadata(cosine_floor, a=rows(ids=IDS), b=rows(), fit_a=rows(5, ids=IDS[:5]))


@pytest.mark.parametrize(
    ("error", "inputs"),
    [
        (ShapeMismatch, {"a": rows(), "b": rows(11)}),
        (ShapeMismatch, {"a": rows(), "b": rows(), "groups": labels(["a", "b"])}),
        (DimensionMismatch, {"a": rows(), "b": rows(12, 3)}),
        (DimensionMismatch, {"a": rows(), "b": rows(), "fit_b": rows(5, 3)}),
        (TooFewRows, {"a": rows(2), "b": rows(2)}),
        (InvalidRequest, {"a": rows(), "b": labels(["a", "b"] * 6)[0]}),
        (InvalidRequest, {"a": rows(), "b": rows(), "groups": (rows(), "g")}),
        (TooFewGroups, {"a": rows(), "b": rows(), "groups": labels(["a"] * 12)}),
        (MissingLabels, {"a": rows(), "b": rows(), "groups": labels(["a", None] * 6)}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "-".join(value),
)
def test_what_metadata_forbids_is_refused(
    error: type[Exception], inputs: dict[str, Any], check_metadata: Any
) -> None:
    """Each fault points to the role it is about."""
    with pytest.raises(error) as caught:
        check_metadata(cosine_floor, **inputs)
    assert caught.value.code == error.code
    assert all(fault.pointer.startswith("/inputs/") for fault in caught.value.faults)
    assert caught.value.faults


@pytest.mark.parametrize(
    ("value", "error"), [(np.nan, NonFiniteRows), (np.inf, NonFiniteRows), (0.0, ZeroRows)]
)
def test_bad_rows_are_refused_or_left_to_be_dropped(
    value: float, error: type[Exception], check_metadata: Any, store: Any, services: Any
) -> None:
    """In every role; the first ten are named, by id where there are ids."""
    bad = X.copy()
    bad[1:] = value
    for inputs in ({"a": bad, "b": X}, {"a": X, "b": bad}, {"a": X, "b": X, "fit_b": bad}):
        with pytest.raises(error) as caught:
            check_metadata(cosine_floor, **inputs)
        (fault,) = caught.value.faults
        assert (fault.count, fault.rows) == (11, [str(i) for i in range(1, 11)])
        assert "drop" in fault.message
        check_metadata(cosine_floor, DROP, **inputs)


def test_zero_rows_are_refused_only_where_a_direction_is_needed(check_metadata: Any) -> None:
    """By slot, and by the parameter that a slot names; rows that are not finite never pass."""
    zero = X.copy()
    zero[3] = 0
    groups = labels(["a", "b"] * 6)
    for check, inputs in (
        (drift, {"baseline": zero, "batch": X}),
        (drift, {"baseline": X, "batch": zero}),
        (group_structure, {"models": zero, "groups": groups}),
    ):
        check_metadata(check, {"normalise": False}, **inputs)
        with pytest.raises(ZeroRows):
            check_metadata(check, {"normalise": True}, **inputs)
    bad = X.copy()
    bad[3, 1] = np.nan
    with pytest.raises(NonFiniteRows):
        check_metadata(drift, {"normalise": False}, baseline=bad, batch=X)


def test_bad_rows_are_named_by_their_ids(check_metadata: Any) -> None:
    """A zero row and a missing label."""
    zero = rows(ids=IDS)
    zero["vectors"][3] = [0.0] * 4
    with pytest.raises(ZeroRows) as caught:
        check_metadata(geometry, vectors=zero)
    assert caught.value.faults[0].rows == ["r03"]
    groups = labels(["a", "b", None, "a"] * 3, ids=IDS)
    with pytest.raises(MissingLabels) as caught:
        check_metadata(geometry, vectors=rows(ids=IDS), groups=groups)
    assert caught.value.faults[0].rows == ["r02", "r06", "r10"]


def test_ids_of_paired_inputs_are_one_sequence(check_metadata: Any) -> None:
    """Counted by position; with `align_by_ids` only what one side lacks counts."""
    turned = [*IDS[:3], *IDS[:2:-1]]
    with pytest.raises(IdsMismatch) as caught:
        check_metadata(cosine_floor, a=rows(ids=IDS), b=rows(ids=turned))
    (fault,) = caught.value.faults
    different = sum(one != other for one, other in zip(IDS, turned, strict=True))
    assert (fault.pointer, fault.count) == ("/inputs/b", different)
    check_metadata(cosine_floor, ALIGN, a=rows(ids=IDS), b=rows(ids=turned))

    with pytest.raises(IdsMismatch) as caught:
        check_metadata(cosine_floor, ALIGN, a=rows(ids=IDS), b=rows(ids=[*IDS[1:], "new"]))
    told = [(fault.pointer, fault.message, fault.rows) for fault in caught.value.faults]
    assert told == [
        ("/inputs/a", "these ids of `b` are not here", ["new"]),
        ("/inputs/b", "these ids of `a` are not here", ["r00"]),
    ]


def test_sides_of_different_length_lack_ids_where_rows_are_paired_by_id(
    check_metadata: Any,
) -> None:
    """Only by place are they paired row by row; without ids there is nothing to pair by."""
    short = {**rows(ids=IDS[2:]), "vectors": X[2:].tolist()}
    with pytest.raises(IdsMismatch) as caught:
        check_metadata(cosine_floor, ALIGN, a=rows(ids=IDS), b=short)
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.count, fault.rows) == ("/inputs/b", 2, IDS[:2])
    with pytest.raises(IdsMismatch, match="needs ids of all paired rows; `a`, `b` came without"):
        check_metadata(cosine_floor, ALIGN, a=X, b=X[2:])
    with pytest.raises(ShapeMismatch, match="paired row by row"):
        check_metadata(cosine_floor, a=rows(ids=IDS), b=short)
    few = labels(["a", "b"] * 5)
    with pytest.raises(ShapeMismatch, match="`groups` has 10"):
        check_metadata(cosine_floor, ALIGN, a=rows(ids=IDS), b=rows(ids=IDS[::1]), groups=few)


def test_rows_without_ids_are_not_aligned_by_position(check_metadata: Any) -> None:
    """A column may follow the rows it stands beside as long as these stand in one order."""
    turned, groups = IDS[::-1], labels(list("abcdef") * 2)
    check_metadata(cosine_floor, ALIGN, a=rows(ids=IDS), b=rows(ids=turned))
    check_metadata(cosine_floor, ALIGN, a=rows(ids=IDS), b=rows(ids=IDS), groups=groups)
    for a, b, more, named in (
        (rows(), rows(), {}, ["/inputs/a", "/inputs/b"]),
        (rows(ids=IDS), rows(), {}, ["/inputs/b"]),
        (rows(ids=IDS), rows(ids=turned), {"groups": groups}, ["/inputs/groups"]),
    ):
        with pytest.raises(IdsMismatch, match="needs ids") as caught:
            check_metadata(cosine_floor, ALIGN, a=a, b=b, **more)
        assert [fault.pointer for fault in caught.value.faults] == named


def test_ids_count_between_any_two_paired_inputs(check_metadata: Any) -> None:
    """Also where the first input has none; rows of a mean are paired with nothing."""
    with pytest.raises(IdsMismatch):
        check_metadata(
            cosine_floor, a=rows(), b=rows(ids=IDS), groups=labels(["a", "b"] * 6, ids=IDS[::-1])
        )
    check_metadata(cosine_floor, a=rows(ids=IDS), b=rows(ids=IDS), fit_a=rows(ids=IDS[::-1]))


def test_an_unknown_column_gets_the_nearest_name_or_all(check_metadata: Any) -> None:
    """`intnet`, and something unlike anything."""
    body = rows(columns={"intent": ["a", "b"] * 6, "domain": ["x", "y"] * 6})
    for asked, hint in (
        ("intnet", "did you mean `intent`? It has intent, domain"),
        ("zz", "intent, domain"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            check_metadata(geometry, vectors=body, groups=(body, asked))
        assert hint in caught.value.faults[0].message


def test_a_list_of_dimensions_needs_one_that_is_fewer(check_metadata: Any) -> None:
    """Closed form: four dimensions against the smallest asked for."""
    check_metadata(compression, {"dims": [9, 3], "k": 3}, vectors=X)
    for dims in ([4], [9, 4]):
        with pytest.raises(InvalidRequest) as caught:
            check_metadata(compression, {"dims": dims, "k": 3}, vectors=X)
        (fault,) = caught.value.faults
        assert (fault.pointer, fault.message) == ("/params/dims", "name a number below 4")


@pytest.mark.parametrize(
    ("header", "word"), [("intent;x", "semicolons"), ("intent\tx", "tabs"), ("intent|x", "bars")]
)
def test_a_file_that_is_not_separated_by_commas_is_told_so(
    header: str, word: str, check_metadata: Any
) -> None:
    """Rather than that its one column is what was meant."""
    groups = ({"columns": {header: [f"{i};1" for i in range(12)]}}, "intent")
    with pytest.raises(InvalidRequest) as refused:
        check_metadata(geometry, vectors=rows(), groups=groups)
    (fault,) = refused.value.faults
    assert fault.message == (
        f"its only column is `{header}`: this file is separated by {word}; separate its columns by "
        "commas"
    )
