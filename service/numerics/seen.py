"""Rows that occur among other rows too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from service.numerics.rows import Rows, row_classes


def seen(rows: Rows, others: Rows, threads: int) -> NDArray[np.bool_]:
    """
    Which of some rows are equal to one of others, (m,); see `row_classes`.

    Parameters
    ----------
    rows, others : (m, d) and (n, d)

    Notes
    -----
    Time O((m + n) d), memory both once more.
    """
    classes = row_classes(np.concatenate([others, rows]), threads)
    return np.asarray(classes[len(others) :] < len(others))
