"""Debiased linear CKA of two sets of features of the same rows, with and without each unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.numerics.alignment import NO_SPREAD
from service.numerics.moments import GRAM_BYTES_IN_FLIGHT, Units
from service.numerics.rows import Floats, Source, mean_row, ordered_map

FEWEST_ROWS = 4
ROUNDING = 1e-12
"""Share of the sum it is a difference of, up to which an HSIC of a set with itself is zero."""


@dataclass(frozen=True)
class Hsic:
    """
    n (n - 3) times the unbiased HSIC of two sets of features with linear kernels.

    Attributes
    ----------
    value : float
    deleted : (G,) float64
        The same without each unit in turn; NaN where fewer than four rows are left.
    """

    value: float
    deleted: Floats


def hsic(
    x: Source,
    y: Source,
    units: Units,
    threads: int,
    step: Callable[[int, int], None] = lambda done, total: None,
) -> Hsic:
    r"""
    Unbiased HSIC, times n (n - 3), and its value without each unit, without a matrix of pairs.

    Song et al. give it through the kernel matrices K, L with zero diagonals:
    tr(KL) + (1'K1)(1'L1)/((n-1)(n-2)) - 2/(n-2) 1'KL1. It does not change when the rows are moved, so
    rows are centred. Then K1 = -p with p_i = |x_i|^2, L1 = -q, and with C = X'Y all that is left is

    .. math:: \|C\|^2 - \frac{n}{n-2} \sum_i p_i q_i + \frac{\sum p_i \sum q_i}{(n-1)(n-2)}.

    A set with itself is zero where it varies by no more than rounding.

    Parameters
    ----------
    x, y : rows of length about 1 at most, (n, d) and (n, e), n >= 4
    units : Units
    threads : int
    step : told of the second pass, the one that leaves out units

    Notes
    -----
    Two passes of time O(n d e) each, O(sum_g min(n_g, d) n_g d) more inside units; memory a few blocks
    and (d, e) matrices.

    References
    ----------
    Song, Smola, Gretton, Bedo, Borgwardt, "Feature selection via dependence maximization", JMLR 13,
    2012, equation 5. Szekely, Rizzo, Ann. Statist. 42(6), 2014, doi:10.1214/14-AOS1255: it is an inner
    product of U-centred matrices, so a CKA of it lies in [-1, 1].
    """
    n, wide = units.n, max(x.d, y.d)
    pair = _Pair(x, y, mean_row(x, threads), mean_row(y, threads))
    spans = units.chunks(wide)
    gram_threads = max(1, min(threads, GRAM_BYTES_IN_FLIGHT // (16 * x.d * y.d)))

    def products(span: tuple[int, int]) -> tuple[Floats, Floats, Floats]:
        cross, by_q, by_p = np.zeros((x.d, y.d)), np.zeros(x.d), np.zeros(y.d)
        for piece in units.pieces(*span, wide):
            u, v = pair.take(piece)
            cross += u.T @ v
            by_q += _squares(v) @ u
            by_p += _squares(u) @ v
        return cross, by_q, by_p

    total = _Total(np.zeros((x.d, y.d)), np.zeros(x.d), np.zeros(y.d))
    for cross, by_q, by_p in ordered_map(products, spans, gram_threads):
        total.cross[:] += cross
        total.by_q[:] += by_q
        total.by_p[:] += by_p

    parts: list[_Inside] = []
    inside = ordered_map(lambda span: _inside(pair, units, span, wide, total), spans, gram_threads)
    for done, part in enumerate(inside, start=1):
        parts.append(part)
        step(done, len(spans))
    left = _Inside(*(np.concatenate(column) for column in zip(*map(_columns, parts), strict=True)))

    squared = float(np.square(total.cross).sum())
    p, q, pq = (float(column.sum()) for column in (left.p, left.q, left.pq))
    value = squared - n / (n - 2) * pq + p * q / ((n - 1) * (n - 2))
    m = (n - units.counts).astype(np.float64)
    rest_p, rest_q, rest_pq = p - left.p, q - left.q, pq - left.pq
    trace = squared - 2 * left.across + left.own - rest_pq
    ones = (left.length_x - rest_p) * (left.length_y - rest_q)
    with np.errstate(divide="ignore", invalid="ignore"):
        deleted = trace + ones / ((m - 1) * (m - 2)) - 2 / (m - 2) * (left.rows + rest_pq)
    if x is y:
        varies = p > NO_SPREAD * n and value > ROUNDING * squared
        value = value if varies else 0.0
        deleted = np.where(varies & (deleted > ROUNDING * squared), deleted, 0.0)
    return Hsic(value, np.where(m >= FEWEST_ROWS, deleted, np.nan))


def cka(xy: Hsic, xx: Hsic, yy: Hsic) -> tuple[float | None, Floats]:
    """
    Debiased linear CKA, None where a set does not vary, and its value without each unit.

    References
    ----------
    Kornblith, Norouzi, Lee, Hinton, "Similarity of neural network representations revisited", ICML
    2019, arXiv:1905.00414.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        deleted = xy.deleted / (np.sqrt(xx.deleted) * np.sqrt(yy.deleted))
    if xx.value <= 0 or yy.value <= 0:
        return None, deleted
    return float(np.clip(xy.value / (np.sqrt(xx.value) * np.sqrt(yy.value)), -1, 1)), deleted


@dataclass(frozen=True)
class _Pair:
    """Two sources, centred."""

    x: Source
    y: Source
    mean_x: Floats
    mean_y: Floats

    def take(self, which: slice | NDArray[np.int64]) -> tuple[Floats, Floats]:
        u = self.x.take(which) - self.mean_x
        return u, u if self.x is self.y else self.y.take(which) - self.mean_y


@dataclass(frozen=True)
class _Total:
    """C = X'Y, sum_i q_i x_i and sum_i p_i y_i over all rows."""

    cross: Floats
    by_q: Floats
    by_p: Floats


@dataclass(frozen=True)
class _Inside:
    """
    What leaving out each unit needs, (G,), with a and b the sums of its rows.

    Attributes
    ----------
    p, q, pq : sums over its rows
    length_x, length_y : |a|^2, |b|^2
    across : sum of x_i C y_i over its rows
    own : |C_u|^2 of its own rows
    rows : sum over all other rows of (x_i.a + p_i) (y_i.b + q_i), less their sum of p_i q_i
    """

    p: Floats
    q: Floats
    pq: Floats
    length_x: Floats
    length_y: Floats
    across: Floats
    own: Floats
    rows: Floats


def _columns(part: _Inside) -> tuple[Floats, ...]:
    return (
        part.p, part.q, part.pq, part.length_x, part.length_y, part.across, part.own, part.rows
    )  # fmt: skip


def _squares(x: Floats) -> Floats:
    return np.asarray(np.einsum("ij,ij->i", x, x))


def _dots(x: Floats, y: Floats) -> Floats:
    return np.asarray(np.einsum("ij,ij->i", x, y))


def _inside(pair: _Pair, units: Units, span: tuple[int, int], wide: int, total: _Total) -> _Inside:
    pieces = units.pieces(*span, wide)
    if len(pieces) > 1:
        return _large_unit(pair, pieces, total)
    x, y = pair.take(pieces[0])
    p, q = _squares(x), _squares(y)
    across = _dots(x @ total.cross, y)
    if units.order is None:
        rows = across + x @ total.by_q + y @ total.by_p - 3 * p * q
        return _Inside(p, q, p * q, p, q, across, p * q, rows)
    sizes = units.counts[span[0] : span[1]]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    unit_of_row = np.repeat(np.arange(len(sizes)), sizes)

    def by_unit(values: Floats) -> Floats:
        return np.asarray(np.add.reduceat(values, starts))

    a, b = by_unit(x), by_unit(y)
    on_a, on_b = _dots(x, a[unit_of_row]), _dots(y, b[unit_of_row])
    rows = _dots(a @ total.cross, b) + a @ total.by_q + b @ total.by_p
    own = np.empty(len(sizes))
    for size in np.unique(sizes):
        chosen = np.flatnonzero(sizes == size)
        which = starts[chosen, None] + np.arange(size)
        own[chosen] = _squared_products(x[which], y[which])
    return _Inside(
        by_unit(p), by_unit(q), by_unit(p * q), _squares(a), _squares(b), by_unit(across), own,
        rows - by_unit(on_a * on_b + on_a * q + on_b * p),
    )  # fmt: skip


def _squared_products(x: Floats, y: Floats) -> Floats:
    """|X'Y|^2 of each of m stacked units; x, y are (m, s, d) and (m, s, e)."""
    if x.shape[1] <= min(x.shape[2], y.shape[2]):
        inner = (x @ x.transpose(0, 2, 1)) * (y @ y.transpose(0, 2, 1))
        return np.asarray(inner.sum(axis=(1, 2)))
    return np.array([float(np.square(u.T @ v).sum()) for u, v in zip(x, y, strict=True)])


def _large_unit(pair: _Pair, pieces: list[slice | NDArray[np.int64]], total: _Total) -> _Inside:
    """One unit larger than a block."""
    a, b = np.zeros(pair.x.d), np.zeros(pair.y.d)
    for piece in pieces:
        x, y = pair.take(piece)
        a += x.sum(axis=0)
        b += y.sum(axis=0)
    own = np.zeros((pair.x.d, pair.y.d))
    p_sum = q_sum = pq_sum = across = inside = 0.0
    for piece in pieces:
        x, y = pair.take(piece)
        p, q, on_a, on_b = _squares(x), _squares(y), x @ a, y @ b
        own += x.T @ y
        across += float(_dots(x @ total.cross, y).sum())
        inside += float((on_a * on_b + on_a * q + on_b * p).sum())
        p_sum, q_sum, pq_sum = p_sum + p.sum(), q_sum + q.sum(), pq_sum + (p * q).sum()
    rows = float(a @ total.cross @ b + a @ total.by_q + b @ total.by_p) - inside
    sums = (p_sum, q_sum, pq_sum, a @ a, b @ b, across, np.square(own).sum(), rows)
    return _Inside(*(np.array([float(value)]) for value in sums))
