"""Euclidean neighbours as neighbours by inner product."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from service.numerics.coded import Coded, coded
from service.numerics.rows import Floats


def euclidean(rows: Floats) -> tuple[Coded, Coded]:
    """
    Rows as they are found and as they ask, so that products rank as Euclidean distances do.

    (q, 1) . (g, -|g|^2 / 2) = (|q|^2 - |q - g|^2) / 2. Rows are centred, so that a common offset costs
    no digits, and brought to a longest of about 1.

    Parameters
    ----------
    rows : (n, d) float64, not all equal, lengths within the range whose squares float64 holds

    Notes
    -----
    Equal rows score equally; rows at equal distances may differ by the rounding that `Search.tau`
    bounds. Memory one copy of the rows.
    """
    n, d = rows.shape
    codes = np.empty((n, d + 1))
    np.subtract(rows, rows.mean(axis=0), out=codes[:, :d])
    longest = np.sqrt(np.einsum("ij,ij->i", codes[:, :d], codes[:, :d]).max())
    if longest > 0:
        codes[:, :d] *= 2.0 ** -np.floor(np.log2(longest))
    codes[:, d] = -np.einsum("ij,ij->i", codes[:, :d], codes[:, :d]) / 2
    found = coded(codes, cosine=False)
    last = np.zeros(d + 1)
    last[d] = 1
    return found, replace(found, low=last, scale=1 - last)
