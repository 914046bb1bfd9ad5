"""Two sources under one another, against stacked arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.numerics.joined import Joined
from service.numerics.rows import Directions, Stored

ONE = np.random.default_rng(0).normal(size=(5, 3))
OTHER = np.random.default_rng(1).normal(size=(7, 3)).astype(np.float32)
STACKED = np.vstack([ONE, OTHER])


@given(st.integers(0, 12), st.integers(0, 12))
def test_a_range_of_rows_is_that_of_the_stacked_rows(start: int, stop: int) -> None:
    """numpy; before, across and after the border, and empty."""
    joined = Joined(Stored(ONE), Stored(OTHER))
    assert (joined.n, joined.d) == STACKED.shape
    np.testing.assert_array_equal(joined.take(slice(start, stop)), STACKED[start:stop])


@given(st.lists(st.integers(0, 11), max_size=20))
def test_chosen_rows_are_those_of_the_stacked_rows_in_their_order(rows: list[int]) -> None:
    """numpy; of one side alone, of both, none, and repeated."""
    which = np.array(rows, dtype=np.int64)
    joined = Joined(Directions(ONE), Directions(OTHER))
    wanted = STACKED / np.linalg.norm(STACKED, axis=1, keepdims=True)
    assert joined.take(which) == pytest.approx(wanted[which])
