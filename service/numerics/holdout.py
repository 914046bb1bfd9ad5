"""Rows held out by whole units, so that nothing is judged by what it was fitted on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from service.numerics.permutation import shuffled, stream

Codes = NDArray[np.int64]


def held_out(
    codes: Codes, units: Codes, share: float, seed: int, purpose: str
) -> NDArray[np.bool_]:
    """
    Draw units to hold out, a share of those of each class, and mark their rows.

    A unit counts to the class most of its rows have. Of two or more units of a class at least one
    is held out and one is not; a class of one unit is not held out.

    Parameters
    ----------
    codes : (n,) int64
        Class of each row.
    units : (n,) int64
        Unit of each row.
    share : float in (0, 1)
    seed, purpose : the stream of the draw

    Returns
    -------
    (n,) bool
        All False where each class has one unit.
    """
    _, codes = np.unique(codes, return_inverse=True)
    _, units = np.unique(units, return_inverse=True)
    count = int(units.max()) + 1
    cells, sizes = np.unique(units * (int(codes.max()) + 1) + codes, return_counts=True)
    owner, kind = np.divmod(cells, int(codes.max()) + 1)
    largest = np.lexsort((-kind, sizes, owner))  # the last of each owner: most rows, lowest class
    stratum = np.empty(count, np.int64)
    stratum[owner[largest]] = kind[largest]
    members = np.bincount(stratum)
    taken = np.clip(np.floor(share * members + 0.5).astype(np.int64), members > 1, members - 1)
    order = shuffled(stream(seed, purpose, 0), count)
    order = order[np.argsort(stratum[order], kind="stable")]
    place = np.arange(count) - np.repeat(np.cumsum(members) - members, members)
    chosen = np.zeros(count, dtype=bool)
    chosen[order] = place < taken[stratum[order]]
    return np.asarray(chosen[units])
