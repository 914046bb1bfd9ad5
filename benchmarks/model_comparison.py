"""
Debiased CKA with its jackknife beside n x n kernels, and `model_comparison` as a whole.

Everything runs in this one process, in turn; ratios are what counts. `--large` adds CKA of 100,000 rows
and the peak of memory.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", str(os.cpu_count()))

import numpy as np
from threadpoolctl import threadpool_limits

from service.check import Context
from service.checks.model_comparison import model_comparison
from service.dataset import Dataset
from service.numerics.cka import cka, hsic
from service.numerics.moments import Units
from service.numerics.rows import Directions, unit
from service.settings import cores

N, D = 8_000, 384


def models(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows with a common direction, and noisy copies."""
    random = np.random.default_rng(1)
    x = random.standard_normal((n, d), np.float32) + np.float32(0.3)
    return x, x + random.standard_normal((n, d), np.float32)


def seconds(function: Callable[[], object], runs: int = 2) -> float:
    """Fastest of some runs."""
    best = np.inf
    for _ in range(runs):
        started = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - started)
    return best


def blocked(x: np.ndarray, y: np.ndarray) -> float:
    """CKA with the value without each row."""
    a, b, units = Directions(x), Directions(y), Units.rows(len(x))
    with threadpool_limits(limits=1):
        parts = [hsic(one, other, units, cores()) for one, other in ((a, b), (a, a), (b, b))]
    value, deleted = cka(*parts)
    assert value is not None
    assert len(deleted) == len(x)
    return value


def whole(x: np.ndarray, y: np.ndarray) -> float:
    """The value alone, with n x n kernels."""
    kernels = [unit(rows) @ unit(rows).T for rows in (x, y)]
    n = len(x)
    for kernel in kernels:
        np.fill_diagonal(kernel, 0)

    def product(k: np.ndarray, other: np.ndarray) -> float:
        sums, others = k.sum(axis=0), other.sum(axis=0)
        ones = sums.sum() * others.sum() / ((n - 1) * (n - 2))
        return float(np.vdot(k, other) + ones - 2 / (n - 2) * (sums @ others))

    one, other = kernels
    return product(one, other) / np.sqrt(product(one, one) * product(other, other))


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def small() -> None:
    x, y = models(N, D)
    assert abs(blocked(x, y) - whole(x, y)) < 1e-9
    mine, theirs = seconds(lambda: blocked(x, y)), seconds(lambda: whole(x, y))
    print(
        f"debiased CKA of {N} x {D}: {mine:.2f} s with {N} jackknife values; n x n kernels "
        f"{theirs:.2f} s for the value alone, ratio {theirs / mine:.1f}; kernels hold "
        f"{2 * 8 * N * N / 2**20:.0f} MiB"
    )
    x, y = models(3000, D)
    inputs = model_comparison.inputs(models={"x": Dataset(x), "y": Dataset(y)})
    context = Context(threads=cores())
    run = seconds(lambda: model_comparison.run(context, inputs, model_comparison.params()), 1)
    stages = ", ".join(f"{name} {spent:.1f}" for name, spent in context.stages.items())
    print(f"model_comparison of two models of 3000 x {D}: {run:.1f} s ({stages})")


def large() -> None:
    n = 100_000
    x, y = models(n, D)
    before = peak_mib()
    spent = seconds(lambda: blocked(x, y), 1)
    print(
        f"debiased CKA of {n} x {D} with {n} jackknife values: {spent:.1f} s, peak "
        f"{peak_mib() - before:.0f} MiB above the inputs; n x n kernels would hold "
        f"{2 * 8 * n * n / 2**30:.0f} GiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true")
    if parser.parse_args().large:
        large()
    else:
        small()


if __name__ == "__main__":
    main()
