"""Neighbours under storage the plain way: definitions written out, whole matrices, every pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
SCHEMES = (
    "fp16", "bf16", "int8", "int8_per_vector", "int8_qt8", "int8_minmax_round", "int8_quantile",
    "int4", "binary", "pq",
)  # fmt: skip


def unit(x: Array) -> Array:
    """Rows over their lengths; zero rows stay zero. Scaled first, so that no square leaves float64."""
    x = np.asarray(x, np.float64)
    largest = np.abs(x).max(axis=1, keepdims=True)
    x = x / np.where(largest > 0, largest, 1.0)
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x / np.where(length > 0, length, 1.0))


def bfloat16(x: Array) -> Array:
    """The nearest number with 8 significant bits, half to even, from float32; infinite beyond."""
    with np.errstate(over="ignore"):
        wide = np.asarray(x, np.float64).astype(np.float32).astype(np.float64)
    _, exponent = np.frexp(wide)
    step = np.ldexp(1.0, np.maximum(exponent - 8, -133))
    nearest = np.rint(wide / step) * step
    nearest[np.isinf(wide)] = wide[np.isinf(wide)]
    nearest[np.abs(nearest) >= 2.0**128] = np.inf * np.sign(nearest[np.abs(nearest) >= 2.0**128])
    return np.asarray(nearest)


def symmetric(x: Array, largest: Array) -> Array:
    """Whole multiples of largest / 127, half to even, no more than 127 of them."""
    scale = np.where(largest / 127 > 0, largest / 127, 1.0)
    return np.asarray(np.clip(np.rint(x / scale), -127, 127) * scale)


def cells(x: Array, calibration: Array, levels: int) -> Array:
    """Codes floor(levels t) as FAISS computes them in float32."""
    with np.errstate(invalid="ignore", divide="ignore"):
        lowest = calibration.astype(np.float32).min(axis=0)
        width = calibration.astype(np.float32).max(axis=0) - lowest
        t = (x.astype(np.float32) - lowest) / width
    t[:, width == 0] = 0
    return np.floor(np.float32(levels) * np.clip(t, 0, 1)).astype(np.int64)


def stored(scheme: str, x: Array, calibration: Array) -> Array:
    """Rows as they read when they come back, (m, d) float64."""
    x, calibration = np.asarray(x, np.float64), np.asarray(calibration, np.float64)
    d = x.shape[1]
    if scheme == "fp16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float64)
    if scheme == "bf16":
        return bfloat16(x)
    if scheme == "int8":
        return symmetric(x, np.abs(calibration).max(axis=0))
    if scheme == "int8_quantile":
        return symmetric(x, np.quantile(np.abs(calibration), 0.99, axis=0))
    if scheme == "int8_per_vector":
        return symmetric(x, np.abs(x).max(axis=1, keepdims=True))
    if scheme in ("int8_qt8", "int4"):
        levels = 255 if scheme == "int8_qt8" else 15
        lowest = calibration.astype(np.float32).min(axis=0)
        width = (calibration.astype(np.float32).max(axis=0) - lowest).astype(np.float64)
        return np.asarray(lowest + (cells(x, calibration, levels) + 0.5) / levels * width)
    if scheme == "int8_minmax_round":
        lowest, width = calibration.min(axis=0), np.ptp(calibration, axis=0)
        step = np.where(width / 255 > 0, width / 255, 1.0)
        code = np.clip(np.rint((x - lowest) / step), 0, 255)
        return np.asarray(lowest + np.where(width / 255 > 0, code, 0) * step)
    if scheme == "binary":
        return np.where(x > 0, 1.0, -1.0) / np.sqrt(d)
    quantiser = product_quantiser(calibration)
    codes = quantiser.compute_codes(np.ascontiguousarray(x, np.float32))
    return np.asarray(quantiser.decode(codes), np.float64)


def product_quantiser(calibration: Array) -> faiss.ProductQuantizer:
    """Sub-vectors of 8 coordinates, or of the largest divisor of d below 8, with 8 bits each."""
    d = calibration.shape[1]
    wide = max(w for w in range(1, min(d, 8) + 1) if d % w == 0)
    quantiser = faiss.ProductQuantizer(d, d // wide, 8)
    quantiser.cp.min_points_per_centroid = 1
    faiss.omp_set_num_threads(1)
    quantiser.train(np.ascontiguousarray(calibration, np.float32))
    return quantiser


def rounding(d: int) -> float:
    """4 gamma_{2d+4}(2^-53)."""
    nu = (2 * d + 4) * 2.0**-53
    return 4 * nu / (1 - nu)


def outside(scores: Array, own: bool) -> Array:
    """Scores with each query's own row last."""
    scores = scores.copy()
    if own:
        np.fill_diagonal(scores, -np.inf)
    return scores


def top(scores: Array, k: int) -> Array:
    """The best k of each query, ties to the lower row."""
    last = -np.partition(-scores, k - 1, axis=1)[:, k - 1]
    found = np.empty((len(scores), k), np.int64)
    for i, line in enumerate(scores):
        rows = np.flatnonzero(line >= last[i])
        found[i] = rows[np.argsort(-line[rows], kind="stable")][:k]
    return found


def gaps(scores: Array, k: int) -> Array:
    """Score at place k minus the score after it; infinite where no row comes after it."""
    if scores.shape[1] == k:
        return np.full(len(scores), np.inf)
    ordered = -np.partition(-scores, (k - 1, k), axis=1)
    return np.asarray(ordered[:, k - 1] - ordered[:, k])


@dataclass
class Pair:
    """Queries and rows before and after, as points whose products are the scores."""

    queries: Array
    gallery: Array
    moved_queries: Array
    moved_gallery: Array
    own: bool

    @property
    def before(self) -> Array:
        return outside(self.queries @ self.gallery.T, self.own)

    @property
    def after(self) -> Array:
        return outside(self.moved_queries @ self.moved_gallery.T, self.own)

    @property
    def tau(self) -> Array:
        """Rounding of scores, before or after, (m,)."""
        longest = np.linalg.norm(self.gallery, axis=1).max()
        longest += np.linalg.norm(self.moved_gallery - self.gallery, axis=1).max()
        norms = [np.linalg.norm(q, axis=1) for q in (self.queries, self.moved_queries)]
        return np.asarray(rounding(self.gallery.shape[1]) * np.maximum(*norms) * longest)

    def certified(self, k: int, slack: Array | float = 0.0) -> Array:
        """
        Whether q.(g_i - g_j) > |q'| (|dg_i| + |dg_j|) + |dq| |g_i - g_j| + slack for every neighbour
        i and every other row j.
        """
        scores, best = self.before, top(self.before, k)
        slack = np.broadcast_to(slack, len(scores))
        moved = np.linalg.norm(self.moved_gallery - self.gallery, axis=1)
        weight = np.linalg.norm(self.moved_queries, axis=1)
        turned = np.linalg.norm(self.moved_queries - self.queries, axis=1)
        squares = np.einsum("ij,ij->i", self.gallery, self.gallery)
        apart = squares[:, None] + squares - 2 * self.gallery @ self.gallery.T
        near = np.nonzero(apart < 1e-6 * squares.max())
        gap = self.gallery[near[0]] - self.gallery[near[1]]
        apart[near] = np.einsum("ij,ij->i", gap, gap)
        apart = np.sqrt(np.maximum(apart, 0))
        found = np.empty(len(scores), bool)
        for i, inside in enumerate(best):
            spare = scores[i, inside][:, None] - scores[i]
            needed = weight[i] * (moved[inside][:, None] + moved) + slack[i]
            holds = spare > needed + turned[i] * apart[inside]
            holds[:, inside] = True
            found[i] = holds.all()
        return found


def pair(
    scheme: str,
    where: str,
    gallery: Array,
    queries: Array | None = None,
    *,
    scoring: str = "cosine",
    storage: str = "unit",
    calibration: Array | None = None,
) -> Pair:
    """A scheme applied to the gallery, or to `both`."""
    points = unit if scoring == "cosine" or storage == "unit" else np.float64
    kept = unit if storage == "unit" else np.float64
    back = unit if scoring == "cosine" else np.float64
    asked = gallery if queries is None else queries
    fitted = kept(gallery if calibration is None else calibration)
    moved = back(stored(scheme, kept(gallery), fitted))
    moved_queries = back(stored(scheme, kept(asked), fitted)) if where == "both" else points(asked)
    return Pair(points(asked), points(gallery), moved_queries, moved, queries is None)
