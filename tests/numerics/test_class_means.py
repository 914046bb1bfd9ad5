"""Means over classes against loops that leave each unit out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.numerics.class_means import class_means

ROWS = st.lists(
    st.tuples(st.floats(-1, 1), st.integers(-3, 3), st.integers(0, 5)), min_size=1, max_size=40
)


def plain(values: NDArray[np.float64], codes: NDArray[np.int64]) -> float:
    classes = sorted(set(codes.tolist()))
    if not classes:
        return float("nan")
    return float(np.mean([values[codes == one].mean() for one in classes]))


@given(rows=ROWS)
def test_each_unit_is_left_out_and_each_stands_alone(rows: list[tuple[float, int, int]]) -> None:
    """Boolean masks and numpy's mean."""
    values, codes, units = (np.array(column) for column in zip(*rows, strict=True))
    got = class_means(values, codes, units)
    names = sorted(set(units.tolist()))
    assert got.value == pytest.approx(plain(values, codes), abs=1e-12)
    without = [plain(values[units != one], codes[units != one]) for one in names]
    assert got.deleted == pytest.approx(np.array(without), abs=1e-12, nan_ok=True)
    kinds = sorted(set(codes.tolist()))
    cells = [
        (values[inside].mean(), 1 / len(set(units[codes == kind].tolist())) / len(kinds))
        for one in names
        for kind in kinds
        if (inside := (units == one) & (codes == kind)).any()
    ]
    assert got.cells == pytest.approx(np.array([mean for mean, _ in cells]), abs=1e-12)
    assert got.weights == pytest.approx(np.array([weight for _, weight in cells]), abs=1e-12)
    fewest = min(len(set(units[codes == kind].tolist())) for kind in kinds)
    assert got.trials == len(kinds) * fewest
