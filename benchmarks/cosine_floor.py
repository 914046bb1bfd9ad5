"""
The exact floor and the ranks of `cosine_floor` beside what people write in numpy today.

Both run in this process, in turn; figures are medians of five and their ratio.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", str(os.cpu_count()))

import numpy as np
from threadpoolctl import threadpool_limits

from service.numerics.moments import Units, pair_moments
from service.numerics.partners import partners_first
from service.numerics.rows import Directions, unit
from service.settings import cores

N, D, RUNS = 8_000, 384, 5


def seconds(*functions: Callable[[], object]) -> list[float]:
    """Median seconds of each, run in turn."""
    taken: list[list[float]] = [[] for _ in functions]
    for _ in range(RUNS):
        for times, function in zip(taken, functions, strict=True):
            started = time.perf_counter()
            function()
            times.append(time.perf_counter() - started)
    return [statistics.median(times) for times in taken]


def main() -> None:
    random = np.random.default_rng(0)
    a = random.normal(size=(N, D)).astype(np.float32)
    b = (a + random.normal(size=(N, D))).astype(np.float32)
    left, right, quiet = Directions(a), Directions(b), lambda done, total: None

    def ours() -> tuple[float, float]:
        with threadpool_limits(1):
            floor = pair_moments(left, right, Units.rows(N), cores(), quiet)
            ranks = partners_first(left, right, cores(), quiet)
        return floor.mean, float(ranks.a_to_b.mean())

    def matrix() -> tuple[float, float]:
        scores = unit(a) @ unit(b).T
        off = ~np.eye(N, dtype=bool)
        first = (scores.argmax(axis=1) == np.arange(N)).mean()
        (scores.T.argmax(axis=1) == np.arange(N)).mean()
        return float(scores[off].mean()), float(first)

    assert np.allclose(ours(), matrix(), rtol=1e-9)
    mine, theirs = seconds(ours, matrix)
    print(
        f"cosine_floor kernels {N} x {D}: {mine:.2f} s, numpy n x n matrix {theirs:.2f} s and "
        f"{9 * N * N / 1e6:.0f} MB more; ratio {theirs / mine:.1f}"
    )


if __name__ == "__main__":
    main()
