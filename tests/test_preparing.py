"""Stored rows as inputs: alignment and dropping, against numpy indexing by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.check import Params
from service.checks.cosine_floor import cosine_floor
from service.checks.drift import drift
from service.checks.geometry import geometry
from service.dataset import Dataset, Labels
from service.errors import (
    TooFewGroups,
    TooFewRows,
)
from service.preparing import Loaded, prepare

ALIGN = {"align_by_ids": True}
DROP = {"on_bad_rows": "drop"}
X = np.random.default_rng(17).normal(size=(12, 4))
IDS = [f"r{i:02}" for i in range(12)]


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


def test_zero_rows_stay_where_none_needs_a_direction() -> None:
    """Dropped as unit rows, kept as given; NaN goes either way."""
    rows = X.copy()
    rows[1], rows[4] = 0, np.nan
    for normalise, left in ((True, 10), (False, 11)):
        inputs, warnings = ready(
            drift, {**DROP, "normalise": normalise}, baseline=(rows, None), batch=(X, None)
        )
        assert (inputs.baseline.n, inputs.batch.n) == (left, 12)
        assert f"{12 - left} of 12" in warnings[0].message


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
