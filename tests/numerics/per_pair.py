"""Scores of pairs and lists of the best as their definitions say, in numpy and in integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def lanes(x: Array, y: Array) -> Array:
    """Eight lanes of products, their tree and the places beyond them, over the last axis."""
    products = x * y
    d = products.shape[-1]
    eight = np.zeros((*products.shape[:-1], 8), products.dtype)
    for j in range(0, d - d % 8, 8):
        eight = eight + products[..., j : j + 8]
    four = eight[..., :4] + eight[..., 4:]
    two = four[..., :2] + four[..., 2:]
    rest = np.zeros(products.shape[:-1], products.dtype)
    for j in range(d - d % 8, d):
        rest = rest + products[..., j]
    return np.asarray((two[..., 0] + two[..., 1]) + rest)


@dataclass(frozen=True)
class Plain:
    """Rows in float64 and what a score divides by."""

    rows: Array
    by: Array

    @classmethod
    def of(cls, rows: Array, *, cosine: bool) -> Plain:
        """Float64 rows; a row of zeros, and every row where scores are products, divides by one."""
        x = rows.astype(np.float64)
        lengths = np.sqrt(lanes(x, x)) if cosine else np.ones(len(x))
        return cls(x, np.where(lengths == 0, 1.0, lengths))

    def scores(self, gallery: Plain) -> Array:
        """Score of every pair, (m, n)."""
        dots = np.stack([lanes(row, gallery.rows) for row in self.rows])
        return dots / (self.by[:, None] * gallery.by)

    def exact(self, gallery: Plain) -> Array:
        """The same in integers, rounded once, (m, n)."""
        above, below = integers(self.rows), integers(gallery.rows)
        products = above[0] @ below[0].T
        left, right = integers(self.by), integers(gallery.by)
        divisors = left[0][:, None] * right[0]
        shift = above[1] + below[1] - left[1] - right[1]
        if shift >= 0:
            divisors = divisors << shift
        else:
            products = products << -shift
        return np.asarray((products / divisors).astype(np.float64))


def integers(x: Array) -> tuple[Array, int]:
    """Integers and the power of two that divides them to give x."""
    fractions, exponents = np.frexp(x)
    shift = 53 - int(exponents.min(initial=0, where=x != 0))
    whole = (fractions * 2.0**53).astype(np.int64).astype(object)
    return whole << np.where(x == 0, 0, exponents + shift - 53).astype(object), shift


def best(scores: Array, k: int, own: Array | None = None) -> tuple[Array, Array, Array]:
    """Ids and scores of the k best, score descending and row ascending, and the gap after them."""
    m, n = scores.shape
    rows = np.broadcast_to(np.arange(n), (m, n))
    order = np.lexsort((rows, -scores), axis=1)
    if own is not None:
        order = order[order != own[:, None]].reshape(m, n - 1)
    ranked = np.take_along_axis(scores, order, axis=1)
    gap = ranked[:, k - 1] - ranked[:, k] if ranked.shape[1] > k else np.full(m, np.inf)
    return order[:, :k], ranked[:, :k], gap
