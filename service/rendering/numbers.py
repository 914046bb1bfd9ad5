"""Numbers as people read them."""

from __future__ import annotations

DIGITS = 4
LARGE = 10.0 ** (DIGITS + 5)


def shown(value: float | None) -> str:
    """Whole numbers whole, others to four digits; large ones without an exponent while they can be."""
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    if 10.0**DIGITS <= abs(value) < LARGE:
        return f"{value:,.0f}"
    return f"{value:.{DIGITS}g}"
