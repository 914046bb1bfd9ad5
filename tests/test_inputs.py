"""Inputs: what metadata forbids is refused with the rows concerned; what is asked for is prepared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.check import Params
from service.checks.compression import compression
from service.checks.cosine_floor import cosine_floor
from service.checks.geometry import geometry
from service.dataset import Dataset, Labels
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
from service.inputs import Given, Loaded, Store, prepare, refuse

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
    assert caught.value.faults[0].rows == ["new", "r00"]


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
    for asked, hint in (("intnet", "did you mean `intent`"), ("zz", "intent, domain")):
        with pytest.raises(InvalidRequest) as caught:
            check_metadata(geometry, vectors=body, groups=(body, asked))
        assert hint in caught.value.faults[0].message


def ready(check: Any, params: dict[str, Any], **inputs: Any) -> tuple[Any, list[Any]]:
    """Prepare inputs given as (data, ids)."""
    slots = {slot.name: slot for slot in check.slots}
    loaded = {}
    for name, (data, ids) in inputs.items():
        kept = Dataset(data) if isinstance(data, np.ndarray) else Labels.of(data)
        loaded[name] = Loaded(slots[name], kept, None if ids is None else tuple(ids))
    return prepare(check, loaded, check.params(**params))


def test_nothing_is_copied_where_nothing_moves() -> None:
    """The rows are the very array, drop and align asked for or not."""
    for params in ({}, DROP, ALIGN, {**DROP, **ALIGN}):
        inputs, warnings = ready(geometry, params, vectors=(X, IDS))
        assert inputs.vectors.vectors is X
        assert warnings == []


def test_aligned_inputs_follow_the_first_that_has_ids() -> None:
    """Rows and labels, each brought by its ids; inputs without ids stay in their order."""
    order = np.random.default_rng(3).permutation(12)
    values = [f"g{i % 5}" for i in range(12)]
    inputs, warnings = ready(
        cosine_floor, ALIGN, a=(X, IDS), b=(2 * X[order], [IDS[i] for i in order]),
        groups=([values[i] for i in order], [IDS[i] for i in order]),
    )  # fmt: skip
    assert np.array_equal(inputs.b.vectors, 2 * X)
    groups = inputs.groups
    assert [groups.levels[code] for code in groups.codes] == values
    assert groups.dense.tolist() == Labels.of(values).dense.tolist()
    assert warnings == []

    inputs, _ = ready(
        cosine_floor, ALIGN, a=(X, None), b=(X, IDS), groups=(values[::-1], IDS[::-1])
    )
    assert np.array_equal(inputs.a.vectors, X)
    assert [inputs.groups.levels[code] for code in inputs.groups.codes] == values


def test_bad_rows_leave_all_paired_inputs_together_and_no_other() -> None:
    """NaN in a, zero in b, no label: three rows go; the rows of the mean lose only their own."""
    a, b, fit = X.copy(), X.copy(), X.copy()
    a[1], b[4], fit[:2] = np.inf, 0, np.nan
    values = [f"g{i % 5}" if i != 7 else None for i in range(12)]
    inputs, warnings = ready(
        cosine_floor, DROP, a=(a, IDS), b=(b, IDS), groups=(values, None), fit_a=(fit, None)
    )
    keep = [i for i in range(12) if i not in (1, 4, 7)]
    assert np.array_equal(inputs.a.vectors, a[keep])
    assert np.array_equal(inputs.b.vectors, b[keep])
    assert len(inputs.groups) == 9
    assert np.array_equal(inputs.fit_a.vectors, fit[2:])
    paired, mean = warnings
    assert (paired.code, mean.code) == ("rows_dropped", "rows_dropped")
    assert paired.where == "inputs/a, inputs/b, inputs/groups"
    assert "3 of 12" in paired.message
    assert "r01, r04, r07" in paired.message
    assert mean.where == "inputs/fit_a"
    assert "2 of 12" in mean.message


def test_dropping_says_the_first_ten_of_many() -> None:
    """Eleven of twelve rows."""
    bad = X.copy()
    bad[1:] = 0
    _, (said,) = ready(geometry, DROP, vectors=(bad, None))
    assert "11 of 12" in said.message
    assert "1, 2, 3, 4, 5, 6, 7, 8, 9, 10" in said.message
    assert "11." not in said.message


def test_too_few_rows_after_dropping_are_refused() -> None:
    """Two of twelve pairs are left; three are needed; none of a matrix is none."""
    bad = X.copy()
    bad[2:] = np.nan
    with pytest.raises(TooFewRows, match="2 rows are left of a, b after dropping 10"):
        ready(cosine_floor, DROP, a=(bad, None), b=(X, None))
    with pytest.raises(TooFewRows, match="0 rows are left of vectors"):
        ready(geometry, DROP, vectors=(np.zeros((3, 2)), None))


def test_labels_left_alone_are_not_a_group_structure() -> None:
    """The only row of the second group goes: one group is left, which is no grouping."""
    bad = X.copy()
    bad[11] = np.nan
    with pytest.raises(TooFewGroups):
        ready(geometry, DROP, vectors=(bad, None), groups=(["a"] * 11 + ["b"], None))


def test_the_common_params_are_those_of_the_contract() -> None:
    """Defaults refuse; a level is a share below one."""
    found = Params()
    assert (found.level, found.on_bad_rows, found.align_by_ids, found.census) == (
        0.95, "error", False, False,
    )  # fmt: skip


def test_a_list_of_dimensions_needs_one_that_is_fewer(check_metadata: Any) -> None:
    """Closed form: four dimensions against the smallest asked for."""
    check_metadata(compression, {"dims": [9, 3], "k": 3}, vectors=X)
    for dims in ([4], [9, 4]):
        with pytest.raises(InvalidRequest) as caught:
            check_metadata(compression, {"dims": dims, "k": 3}, vectors=X)
        (fault,) = caught.value.faults
        assert (fault.pointer, fault.message) == ("/params/dims", "name a number below 4")
