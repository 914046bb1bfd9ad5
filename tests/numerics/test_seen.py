"""Rows seen before, by sets of tuples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.numerics.seen import seen


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.sampled_from(["f2", "f4", "f8"]))
def test_rows_are_found_wherever_they_stand(seed: int, d: int, kind: str) -> None:
    random = np.random.default_rng(seed)
    rows = random.integers(-2, 3, size=(random.integers(1, 40), d)).astype(kind)
    others = random.integers(-2, 3, size=(random.integers(1, 40), d)).astype("f4")
    known = {tuple(row.tolist()) for row in others}
    assert seen(rows, others, 2).tolist() == [tuple(row.tolist()) in known for row in rows]


@pytest.mark.parametrize("apart", [1e-7, 0.0, -0.0])
def test_a_row_is_seen_only_where_every_number_is_equal(apart: float) -> None:
    """Zeros of either sign are equal; repeats among the rows themselves are nothing."""
    others = np.array([[1.0, 0.0]])
    rows = np.array([[1.0, apart], [2.0, 0.0], [2.0, 0.0]])
    assert seen(rows, others, 1).tolist() == [apart == 0, False, False]
