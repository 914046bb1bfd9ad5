"""
PERMANOVA from vectors beside scikit-bio's from a distance matrix, the cluster bootstrap beside a loop
that copies rows, and the memory of a large run.

Everything runs in this one process, in turn; ratios are what counts. `--large` adds 200,000 x 768.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", str(os.cpu_count()))

import numpy as np
from scipy.spatial.distance import pdist, squareform
from skbio import DistanceMatrix
from skbio.stats.distance import permanova
from threadpoolctl import threadpool_limits

from service.check import Context
from service.checks.group_structure import group_structure
from service.dataset import Dataset, Labels
from service.numerics.design import Design
from service.numerics.moments import Units
from service.numerics.partition import bootstrap, partition
from service.numerics.permanova import between_test, slabs
from service.numerics.rows import Directions, unit
from service.settings import cores

N, D, G, B = 5_000, 384, 50, 999
QUIET: Callable[[int, int], None] = lambda done, total: None  # noqa: E731


def data(n: int, d: int, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows around a centre of their group."""
    random = np.random.default_rng(0)
    codes = np.repeat(np.arange(groups), n // groups)
    centres = random.normal(size=(groups, d)).astype(np.float32) / 4
    rows = np.empty((n, d), dtype=np.float32)
    for start in range(0, n, 10_000):
        part = slice(start, start + 10_000)
        rows[part] = random.normal(size=rows[part].shape) + centres[codes[part]]
    return rows, codes


def seconds(function: Callable[[], object], runs: int = 5) -> float:
    """Fastest of some runs."""
    best = np.inf
    for _ in range(runs):
        started = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - started)
    return best


def ours(rows: np.ndarray, codes: np.ndarray) -> tuple[float, float]:
    """F and p from the rows."""
    source, units, threads = Directions(rows), Units.groups(codes), cores()
    with threadpool_limits(1):
        parts = partition(source, units, threads)
        design = Design.of(codes, None, None)
        x = slabs(source, parts.mean, design, threads)
        squares = np.einsum("sij,sij->i", x, x)
        test = between_test(x, squares, design, parts.ss_total, B, 0, 0.95, threads, QUIET)
    between = parts.ss_total - parts.ss_within
    return between / (G - 1) / (parts.ss_within / (N - G)), test.f.p


def compare_permanova() -> None:
    rows, codes = data(N, D, G)
    mine = ours(rows, codes)  # also compiles
    fast = seconds(lambda: ours(rows, codes))

    started = time.perf_counter()
    matrix = DistanceMatrix(squareform(pdist(unit(rows))), [str(i) for i in range(N)])
    distances = time.perf_counter() - started
    started = time.perf_counter()
    theirs = permanova(matrix, [str(c) for c in codes], permutations=B, seed=0)
    slow = distances + time.perf_counter() - started
    assert np.isclose(mine[0], theirs["test statistic"], rtol=1e-10)
    print(
        f"permanova {N} x {D}, {G} groups, B={B}: {fast:.3f} s; scikit-bio {slow:.1f} s "
        f"({distances:.1f} s of it distances); ratio {slow / fast:.0f}"
    )


def compare_bootstrap() -> None:
    rows, codes = data(N, D, G)
    u, resamples = unit(rows), 5_000
    parts = partition(Directions(rows), Units.groups(codes), cores())
    run = lambda: bootstrap(parts, resamples, 0, cores(), QUIET)  # noqa: E731
    run()
    with threadpool_limits(1):
        fast = seconds(run)
    members = [np.flatnonzero(codes == g) for g in range(G)]
    random = np.random.default_rng(0)

    def copying(times: int) -> None:
        for _ in range(times):
            drawn = random.integers(0, G, G)
            x = np.concatenate([u[members[g]] for g in drawn])
            labels = np.repeat(np.arange(G), [len(members[g]) for g in drawn])
            total = np.square(x - x.mean(axis=0)).sum()
            sums = np.zeros((G, D))
            np.add.at(sums, labels, x)
            1 - (np.square(x).sum() - (np.square(sums).sum(1) / np.bincount(labels)).sum()) / total

    slow = seconds(lambda: copying(20), runs=3) / 20 * resamples
    print(
        f"cluster bootstrap B={resamples}: {fast:.3f} s; copying rows {slow:.0f} s (from 20 "
        f"resamples); ratio {slow / fast:.0f}"
    )


def large() -> None:
    n, d, groups = 200_000, 768, 1_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        rows, codes = data(n, d, groups)
        np.save(path, rows)
        del rows
        mapped = np.load(path, mmap_mode="r")
        labels = Labels.of([int(code) for code in codes])
        base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        inputs = group_structure.inputs(models={"model": Dataset(mapped)}, groups=labels)
        started = time.perf_counter()
        context = Context(threads=cores())
        group_structure.run(context, inputs, group_structure.params())
        took = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bound = (2 * n * d * 4 + (512 << 20)) >> 20
    print(
        f"group_structure {n} x {d}, {groups} groups, B=999: {took:.0f} s, peak {peak >> 10} MB "
        f"(base {base >> 10}), bound {bound} MB; stages "
        f"{ {k: round(v, 1) for k, v in context.stages.items()} }"
    )


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--large", action="store_true")
    if arguments.parse_args().large:
        large()
    else:
        compare_permanova()
        compare_bootstrap()
