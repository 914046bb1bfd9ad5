"""A threshold that decides something, whatever the measure."""

from __future__ import annotations

from service.check import Measure


def inside(measure: Measure) -> float:
    """A value between the ends that are declared."""
    low, high = measure.low, measure.high
    if low is None or high is None:
        return 0.0 if low is high else low + 1 if low is not None else high - 1  # type: ignore[operator]
    return (low + high) / 2
