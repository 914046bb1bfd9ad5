"""Means over classes of the means of their rows, and what they are without each unit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.numerics.rows import Floats

Codes = NDArray[np.int64]


@dataclass(frozen=True)
class ClassMeans:
    """
    A mean over classes.

    Attributes
    ----------
    value : float
    deleted : (G,) without each unit; NaN where no row would be left
    cells : (c,) mean of the rows of each unit in each class it has rows of
    weights : (c,) theirs where classes weigh the same, and so do the units of one; 1 in all
    trials : float
        Classes times the fewest units of one: a class of few is known no better than they allow,
        however many units the others have.
    rows : float
        Classes times the fewest rows of one.
    """

    value: float
    deleted: Floats
    cells: Floats
    weights: Floats
    trials: float
    rows: float


def class_means(values: Floats, codes: Codes, of_row: Codes) -> ClassMeans:
    """
    Mean over classes of the mean value of their rows.

    Without a unit, a class is the mean of its rows left, and a class without any drops out.

    Parameters
    ----------
    values : (m,) by row, m >= 1
    codes, of_row : (m,) class and unit of each row; of one class, the plain mean
    """
    _, kind = np.unique(codes, return_inverse=True)
    _, owner = np.unique(of_row, return_inverse=True)
    counts = np.bincount(kind)
    means = np.bincount(kind, weights=values) / counts
    pairs, cell = np.unique(owner * len(counts) + kind, return_inverse=True)
    owner, kind = np.divmod(pairs, len(counts))
    size, total = np.bincount(cell), np.bincount(cell, weights=values)
    left = counts[kind] - size
    moved = (size * means[kind] - total) / np.maximum(left, 1)
    lost = left == 0
    remaining = len(counts) - np.bincount(owner, weights=lost)
    sums = means.sum() + np.bincount(owner, weights=np.where(lost, -means[kind], moved))
    deleted = np.divide(sums, remaining, out=np.full(len(sums), np.nan), where=remaining > 0)
    units = np.bincount(kind)
    return ClassMeans(
        float(means.mean()),
        deleted,
        cells=total / size,
        weights=1 / (units[kind] * len(counts)),
        trials=float(len(counts) * units.min()),
        rows=float(len(counts) * counts.min()),
    )
