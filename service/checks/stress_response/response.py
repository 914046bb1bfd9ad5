"""How each instrument follows each damage, in words a reader can check against the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from service.check import Undefined
from service.checks.stress_response.declared import (
    Condition,
    Direction,
    Instruments,
    Response,
    instrument_value,
)

SAME = 1e-9
"""Steps within this share of the largest value are rounding."""
NO_INSTRUMENTS = {"undefined", "unresolved", "probe_iterations", "probe_converged"}
INSTRUMENTS = tuple(name for name in Instruments.model_fields if name not in NO_INSTRUMENTS)


def responses(native: Instruments, conditions: Mapping[str, Condition], k: int) -> list[Response]:
    """Every instrument under every damage that both states can be read in."""
    damages = dict.fromkeys(found.damage for found in conditions.values())
    return [
        response
        for damage in damages
        for name in INSTRUMENTS
        for response in _of(name, native, [c for c in conditions.values() if c.damage == damage], k)
    ]


def _of(name: str, native: Instruments, series: list[Condition], k: int) -> Iterator[Response]:
    start = instrument_value(native, name, k)
    read = [(one.severity, instrument_value(one, name, k)) for one in series]
    known = [(severity, value) for severity, value in read if value is not None]
    if start is None or not known:
        return
    values = np.array([start, *(value for _, value in known)])
    small = SAME * float(np.abs(values).max())
    away = np.abs(values - start)
    far = int(away.argmax()) if away.max() > small else 0
    yield Response.build(
        damage=series[0].damage,
        instrument=name if not isinstance(getattr(native, name), dict) else f"{name}@{k}",
        direction=_direction(np.diff(values), small),
        native=start,
        furthest=float(values[far]),
        at=known[far - 1][0] if far else 0.0,
        relative=Undefined(code="zero_native", message="The value as given is 0 beside the others.")
        if abs(start) <= small
        else float(values[far] / start - 1),
    )


def _direction(steps: np.ndarray, small: float) -> Direction:
    up, down = bool((steps > small).any()), bool((steps < -small).any())
    if up and down:
        return "mixed"
    return "rising" if up else "falling" if down else "unchanged"
