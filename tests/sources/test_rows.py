"""Cells as labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.errors import InvalidRequest
from service.sources.rows import Paging, label


@pytest.mark.parametrize("value", [None, True, 0, -3, "", "nan", 0.5, -0.0, 1e308])
def test_what_json_has_a_scalar_for_is_kept(value: Any) -> None:
    assert label(value, "c") is value


@pytest.mark.parametrize("value", [float("nan"), np.float64("nan")], ids=["python", "numpy"])
def test_nan_is_missing(value: float) -> None:
    """As it is in a Parquet file, whose rows come through no adapter."""
    assert label(value, "c") is None
    page = Paging("<f4", ["c"]).page([1, 2], [[1.0], [2.0]], {"c": [value, 1.5]})
    assert page.columns == {"c": [None, 1.5]}


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), [1], {}, b"x"])
def test_what_is_no_scalar_of_json_is_refused_by_its_column(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="Column `c`"):
        label(value, "c")
