"""Estimates: an interval, or the reason why there is none."""

from __future__ import annotations

import numpy as np

from service.estimates import Scale, unpaired_estimate
from service.results import Params


def test_an_interval_without_a_finite_end_is_undefined() -> None:
    """By hand: e to the power of some thousands."""
    without = (np.array([0.0, 0, 0, 0, 900]), np.array([0.0, 0, 0, 0, 900]))
    scale = Scale(0.0, lambda power: float(np.exp(min(power, 1e6))))
    with np.errstate(over="ignore"):
        found = unpaired_estimate(1.0, without, Params(), "row", scale)
    assert found.undefined["interval"].code == "unbounded"
