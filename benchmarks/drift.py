"""
The permutation test of MMD beside two loops over the precomputed kernel matrix: the usual one, which
reorders the matrix for each permutation, and a thrifty one, a matrix-vector product for each.

Everything runs in this one process, in turn; ratios are what counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", str(os.cpu_count()))

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

from service.check import Context
from service.checks.drift import drift
from service.dataset import Dataset
from service.numerics.bandwidth import median_distance
from service.numerics.design import Design
from service.numerics.mmd import Gaussian, MmdTest, gaussian_test
from service.numerics.rows import Stored
from service.settings import cores

N, D, B = 5_000, 384, 999
LOOPS = 10
Array = NDArray[np.float64]


def seconds(function: Callable[[], object], runs: int = 3) -> float:
    """Fastest of some runs."""
    best = np.inf
    for _ in range(runs):
        started = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - started)
    return best


def unbiased(k: Array, n: int) -> float:
    """MMD^2 from a kernel matrix, the first n rows against the rest."""
    one, other, across = k[:n, :n], k[n:, n:], k[:n, n:]
    m = len(k) - n
    return float(
        (one.sum() - one.trace()) / (n * (n - 1))
        + (other.sum() - other.trace()) / (m * (m - 1))
        - 2 * across.mean()
    )


def reordered(k: Array, times: int) -> list[float]:
    """What drift detectors do: the whole matrix in the order of each permutation."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(times):
        order = random.permutation(len(k))
        found.append(unbiased(k[np.ix_(order, order)], N))
    return found


def multiplied(k: Array, times: int) -> list[float]:
    """The thrifty loop: one product of the matrix with a vector for each permutation."""
    random = np.random.default_rng(0)
    r, total, m = k.sum(axis=1), k.sum(), len(k) - N
    found = []
    for _ in range(times):
        z = np.zeros(len(k))
        z[random.permutation(len(k))[:N]] = 1.0
        inside, out = z @ (k @ z), z @ r
        rest = total - 2 * out + inside
        found.append(
            (inside - N) / (N * (N - 1)) + (rest - m) / (m * (m - 1)) - 2 * (out - inside) / (N * m)
        )
    return found


def compare() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(2 * N, D)).astype(np.float32)
    source = Stored(rows)
    width = median_distance(source, 0, 1).squared
    codes = np.repeat([0, 1], N)
    design = Design.of(codes, None, None)
    kernel = Gaussian(source, rows.mean(axis=0, dtype=np.float64), width, np.arange(2 * N))

    def ours() -> MmdTest:
        with threadpool_limits(1):
            return gaussian_test(kernel, design, B, 0, 0.95, cores(), lambda done, total: None)

    mine = ours()  # also compiles
    fast = seconds(ours)
    started = time.perf_counter()
    wide = rows.astype(np.float64)
    k = np.exp(cdist(wide, wide, "sqeuclidean") / (-2 * width))
    precomputed = time.perf_counter() - started
    assert np.isclose(mine.sums.value(), unbiased(k, N), rtol=1e-9, atol=1e-13)
    assert np.allclose(reordered(k, 2), multiplied(k, 2), rtol=1e-9, atol=1e-13)
    slow = seconds(lambda: reordered(k, LOOPS), runs=1) / LOOPS * B
    thrifty = seconds(lambda: multiplied(k, LOOPS)) / LOOPS * B
    print(
        f"mmd {N} against {N} x {D}, B={B}: {fast:.2f} s, kernel and its permutations, {cores()} "
        f"threads; kernel matrix alone {precomputed:.1f} s, {k.nbytes >> 20} MB; loop that reorders it "
        f"{slow:.0f} s, ratio {slow / fast:.0f} (with the kernel {(slow + precomputed) / fast:.0f}); "
        f"loop of matrix-vector products {thrifty:.0f} s, ratio {thrifty / fast:.0f} (with the kernel "
        f"{(thrifty + precomputed) / fast:.0f}); loops from {LOOPS} permutations"
    )


def whole() -> None:
    random = np.random.default_rng(1)
    rows = random.normal(size=(2 * N, D)).astype(np.float32)
    inputs = drift.inputs(baseline=Dataset(rows[:N]), batch=Dataset(rows[N:]))
    for _ in range(2):
        context = Context(threads=cores())
        started = time.perf_counter()
        drift.run(context, inputs, drift.params())
        took = time.perf_counter() - started
    stages = {name: round(value, 2) for name, value in context.stages.items()}
    print(f"drift {N} against {N} x {D}, B={B}: {took:.1f} s; stages {stages}")


if __name__ == "__main__":
    compare()
    whole()
