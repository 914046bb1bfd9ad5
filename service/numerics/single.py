# mypy: disable-error-code="arg-type, no-any-return, return-value"
# Scalars are machine words once compiled.
"""Rows as float32 arithmetic sees them: brought to length one in float32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from service.numerics.coded import Coded, coded
from service.numerics.compiled import compiled
from service.numerics.pairs import dot_single
from service.numerics.rows import blocks, ordered_map

Single = NDArray[np.float32]


@compiled
def shorten(rows: Single) -> None:
    """Divide each row by its length, both in float32, in place; zero rows stay."""
    for i in range(len(rows)):
        length = np.float32(np.sqrt(np.float32(dot_single(rows[i], rows[i]))))
        if length > 0:
            for j in range(rows.shape[1]):
                rows[i, j] /= length


def in_single(rows: Coded, threads: int) -> Coded:
    """
    Rows in float32, a new array, for scores that are sums of float32 products.

    Each row is scaled by a power of two first, so that nothing overflows. Rows that are scored by
    direction are then divided by their length, in float32; for others `divisors` takes the power back.

    Parameters
    ----------
    rows : Coded
    """
    out = np.empty((rows.n, rows.d), np.float32)
    power = np.ones(rows.n)

    def copy(which: slice) -> None:
        x = rows.take(which)
        largest = np.abs(x).max(axis=1)
        exponent = np.floor(np.log2(largest, out=np.zeros(len(x)), where=largest > 0))
        power[which] = 2.0 ** -np.clip(exponent, -1000, 1000)
        out[which] = x * power[which, None]
        if rows.cosine:
            shorten(out[which])

    for _ in ordered_map(copy, blocks(rows.n, rows.d), threads):
        pass
    return replace(coded(out, cosine=False), divisors=np.ones(rows.n) if rows.cosine else power)
