"""Singular values of tall matrices by blocks, and what is read off them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from service.numerics.rows import Floats, Source, Stored, blocks, mean_row, ordered_map

RANKME_EPSILON = 1e-7
NO_SPREAD = 1e-12
SQUARABLE = 1e4
QR_ELEMENTS = 1 << 22  # a taller block spends less of its time in merging triangles
BLOCK_BYTES_IN_FLIGHT = 128 << 20


@dataclass(frozen=True)
class Spectra:
    """
    Singular values of the raw rows and of the centred rows.

    Attributes
    ----------
    raw, centred : (min(n, d),) float64, descending
    mean : (d,) float64
        Mean of the raw rows.
    variances : (d,) float64
        Sum of squared deviations per dimension.
    spread : bool
        False where the centred rows vanish within rounding.
    """

    raw: Floats
    centred: Floats
    mean: Floats
    variances: Floats
    spread: bool

    def times(self, factor: float) -> Spectra:
        """Of the same rows, each times this."""
        return Spectra(
            factor * self.raw,
            factor * self.centred,
            factor * self.mean,
            factor**2 * self.variances,
            self.spread,
        )


def spectra(rows: Stored, threads: int, step: Callable[[int, int], None]) -> Spectra:
    """
    Singular values of `rows` and of `rows` minus their mean from one blocked QR.

    The centred rows are reduced to a triangle R block by block (TSQR); the raw spectrum is that of
    R with the row sqrt(n) mean put under it, because centred columns sum to zero. Nothing is
    squared, so small singular values keep their digits.

    Parameters
    ----------
    rows : Stored (n, d) finite
    threads : int
    step : callable
        Told (blocks done, blocks in all) of the QR.

    Notes
    -----
    Time O(n d^2); memory a few (max(d, 2^20/d), d) float64 blocks, at most 512 MiB for d <= 4096.

    References
    ----------
    Demmel, Grigori, Hoemmen, Langou, "Communication-optimal parallel and sequential QR and LU
    factorizations", SIAM J. Sci. Comput. 34(1), 2012, doi:10.1137/080731992.
    """
    return spectra_of_triangle(rows.n, reduced(rows, threads, step))


def spectra_of_triangle(n: int, triangle: Triangle, centred: Floats | None = None) -> Spectra:
    """
    The spectra of n rows from what is left of them; see `spectra`.

    Parameters
    ----------
    n, triangle : of the rows
    centred : singular values of the centred rows, where they are known
    """
    mean, r, variances = triangle
    size = min(n, len(mean))
    raw = _singular_values(np.vstack([r, np.sqrt(n) * mean]))[:size]
    if centred is None:
        centred = _singular_values(r)[:size]
    spread = bool(np.linalg.norm(centred) > NO_SPREAD * np.linalg.norm(raw))
    return Spectra(raw, centred, mean, variances, spread)


class Triangle(NamedTuple):
    """What is left of rows once they are reduced; a rotation of n rows has the same."""

    mean: Floats
    """(d,)"""
    r: Floats
    """(m, d): the rows minus their mean, up to a rotation."""
    squares: Floats
    """(d,) sum of squared deviations per dimension."""


def reduced(rows: Source, threads: int, step: Callable[[int, int], None]) -> Triangle:
    """The triangle of rows minus their mean; see `spectra`."""
    n, d = rows.n, rows.d
    grid = blocks(n, d, at_least=max(d, min(4 * d, QR_ELEMENTS // d)))
    block_bytes = 8 * d * (grid[0].stop - grid[0].start)
    threads = max(1, min(threads, BLOCK_BYTES_IN_FLIGHT // block_bytes))
    mean = mean_row(rows, threads)

    def triangle(which: slice) -> tuple[Floats, Floats]:
        x = rows.take(which)
        x -= mean
        return _triangle(x), np.einsum("ij,ij->j", x, x)

    r: Floats = np.zeros((0, d))
    variances = np.zeros(d)
    for done, (part, squares) in enumerate(ordered_map(triangle, grid, threads), start=1):
        r = _triangle(np.vstack([r, part])) if len(r) else part
        variances += squares
        step(done, len(grid))
    return Triangle(mean, r, variances)


def reduced_by_squares(rows: Source, threads: int) -> Triangle | None:
    """
    The triangle of rows minus their mean from their Gram matrix, at a quarter of the cost of `reduced`.

    None where rounding could reach a singular value: a value s loses about 1e-16 (s_1 / s)^2 of itself,
    and a condition number (1-norm, estimated) over `SQUARABLE` is refused.

    Time O(n d^2), memory a few blocks and (d, d) matrices.
    """
    n, d = rows.n, rows.d
    mean = mean_row(rows, threads)

    def products(which: slice) -> Floats:
        x = rows.take(which)
        x -= mean
        return np.asarray(x.T @ x)

    gram: Floats = np.zeros((d, d))
    for part in ordered_map(products, blocks(n, d), threads):
        gram += part
    r, failed = lapack.dpotrf(gram)
    if failed or lapack.dtrcon(r)[0] * SQUARABLE < 1:
        return None
    return Triangle(mean, r, np.diag(gram).copy())


@dataclass(frozen=True)
class Components:
    """
    Principal directions of rows.

    Attributes
    ----------
    mean : (d,) float64
    directions : (r, d) float64, orthonormal, by falling singular value
    singular_values : (r,) float64
        Those that are more than rounding.
    """

    mean: Floats
    directions: Floats
    singular_values: Floats

    def shares(self) -> Floats:
        """Share of the variance on the leading directions, (r,)."""
        squares = np.cumsum(np.square(self.singular_values))
        return np.asarray(squares / squares[-1])


def components(rows: Source, threads: int, step: Callable[[int, int], None]) -> Components:
    """
    The principal directions of rows of length about 1, by a full decomposition.

    Time O(n d^2 + d^3); memory as for `spectra`.
    """
    mean, r, _ = reduced(rows, threads, step)
    _, values, directions = np.linalg.svd(r, full_matrices=False)
    rounding = NO_SPREAD * max(float(values[0]), float(np.sqrt(rows.n)))
    kept = values > rounding
    return Components(mean, directions[kept], values[kept])


def _triangle(x: Floats) -> Floats:
    r: Floats = np.asarray(np.linalg.qr(x, mode="r"))
    return r


def _singular_values(x: Floats) -> Floats:
    values: Floats = np.linalg.svd(x, compute_uv=False).astype(np.float64)
    return values


def raw_directions(n: int, triangle: Triangle) -> tuple[Floats, Floats]:
    """Right singular vectors, (m, d), and values, (m,), of n rows as they are, by falling value."""
    mean, r, _ = triangle
    _, values, directions = np.linalg.svd(np.vstack([r, np.sqrt(n) * mean]), full_matrices=False)
    size = min(n, len(mean))
    return directions[:size], values[:size]


def dimensions_holding(variances: Floats, share: float) -> int:
    """How many of the largest variances, which fall, hold this share of their sum."""
    reached = np.cumsum(variances / variances.sum())
    return int(np.searchsorted(reached, share - 1e-12)) + 1


def rankme(singular_values: NDArray[np.floating]) -> float:
    r"""
    RankMe :math:`\exp(-\sum_k p_k \ln p_k)`, a smooth count of the directions in use.

    Here :math:`p_k = \sigma_k / \sum_j \sigma_j + 10^{-7}` as published, not renormalised, so a
    flat spectrum of r values reads a little over r (768.333 for r = 768) and rank one of 768 reads
    1.00124.

    Parameters
    ----------
    singular_values : (r,) non-negative, not all zero
        Of the uncentred matrix, as published.

    Returns
    -------
    float
        About 1 for rank one, about r for a flat spectrum.

    References
    ----------
    Garrido, Balestriero, Najman, LeCun, "RankMe: Assessing the downstream performance of pretrained
    self-supervised representations by their rank", ICML 2023, arXiv:2210.02885.
    """
    p = singular_values / singular_values.sum() + RANKME_EPSILON
    return float(np.exp(-(p * np.log(p)).sum()))


def participation_ratio(variances: NDArray[np.floating]) -> float:
    r"""
    Participation ratio :math:`(\sum_i \lambda_i)^2 / \sum_i \lambda_i^2` of a covariance spectrum.

    Parameters
    ----------
    variances : (r,) non-negative, not all zero
        Eigenvalues in any order, with any common factor.

    Returns
    -------
    float in [1, r]
        1 if one direction carries all variance, r if all carry the same.

    References
    ----------
    Gao et al., "A theory of multineuronal dimensionality, dynamics and measurement", 2017,
    doi:10.1101/214262.
    """
    shares = variances / variances.max()
    return float(shares.sum() ** 2 / np.square(shares).sum())


def stable_rank(singular_values: NDArray[np.floating]) -> float:
    r"""
    Stable rank :math:`\|X\|_F^2 / \|X\|_2^2`.

    Parameters
    ----------
    singular_values : (r,) non-negative, descending, not all zero

    Returns
    -------
    float in [1, r]
    """
    return float(np.square(singular_values / singular_values[0]).sum())
