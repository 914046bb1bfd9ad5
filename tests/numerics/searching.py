"""Searches as the tests run them, and rows that searches get wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.numerics import neighbours
from service.numerics.coded import Coded, as_given, coded
from service.numerics.neighbours import Effort, Neighbours, Queries, Search, cut

from .per_pair import Plain

Array = NDArray[Any]


def find(
    gallery: Coded,
    k: int,
    queries: Coded | None = None,
    which: Array | None = None,
    threads: int = 1,
) -> tuple[Neighbours, Effort]:
    """Lists of queries, of the gallery's own rows if none are given, and how they were proved."""
    asked = Queries(gallery if queries is None else queries, own=queries is None)
    chosen = np.arange(asked.rows.n) if which is None else which
    search = Search(gallery, threads)
    listed = search.listed(asked, chosen, k + neighbours.EXTRA)
    ids, scores, effort = search.proved(asked, chosen, listed, k)
    return cut(ids, scores, k), effort


def plain(rows: Coded) -> Plain:
    """What the kernels divide and multiply; coded.py has tests of its own."""
    return Plain(rows.take(slice(None)), rows.divisors)


def drawn(kind: str, rng: np.random.Generator, n: int, d: int) -> Array:
    """Rows that searches get wrong."""
    x = rng.normal(size=(n, d))
    few = x[rng.integers(0, max(1, n // 4), n)]
    if kind == "ties":
        return rng.integers(-1, 2, (n, d)).astype(np.float64)
    if kind == "duplicates":
        return few
    if kind == "equal":
        return np.broadcast_to(x[0], (n, d)).copy()
    if kind == "scaled duplicates":
        return few * rng.choice([0.5, 1, 2, 3, 5, 0.1], n)[:, None]
    if kind == "last bits":
        return few * (1 + rng.integers(-2, 3, (n, d)) * 2.0**-52)
    if kind == "antipodal":
        return np.concatenate([few[: n // 2], -few[: n - n // 2]])
    if kind == "halfway":
        steps = rng.choice([0, 0.999, 1.001, 1.999], (n, d)) * 2.0**-24
        return np.asarray((1 + steps) * rng.choice([-1, 1], n)[:, None])
    if kind == "lengths":
        return np.asarray(x * np.exp2(rng.integers(-30, 31, n))[:, None])
    if kind == "outliers":
        return np.asarray(100 + x * np.exp2(rng.choice([0, 0, 0, 5], n))[:, None])
    if kind == "magnitudes":
        return np.asarray(x * np.exp2(rng.integers(-60, 61, (n, d))))
    if kind == "tiny":
        return x * 1e-44
    if kind.startswith("offset"):
        return x + rng.normal(size=d) * float(kind.split()[1])
    return x


KINDS = [
    "normal", "ties", "duplicates", "equal", "scaled duplicates", "last bits", "antipodal",
    "halfway", "outliers", "lengths", "magnitudes", "tiny", *(f"offset 1e{e}" for e in range(7)),
]  # fmt: skip


def stored(x: Array, dtype: str, cosine: bool) -> Coded:
    """Rows in a type they fit in."""
    largest = max(float(np.abs(x).max()), 1e-300)
    if dtype == "int8":
        return coded(
            np.rint(x / largest * 127).astype(np.int8),
            cosine=cosine,
            scale=np.full(x.shape[1], largest / 127),
        )
    return as_given((x / largest if dtype == "float16" else x).astype(dtype), cosine=cosine)
