"""
`neighbour_stability` beside one faiss search of the same size and beside float64 brute force.

Everything runs in this one process, in turn; ratios are what counts. `--large` adds 10,000 queries in
100,000 x 768 and the peak of memory.
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

import faiss
import numpy as np

from service.check import Context
from service.checks.neighbour_stability import neighbour_stability
from service.dataset import Dataset
from service.numerics.rows import unit
from service.settings import cores

N, D, K = 20_000, 384, 10
LISTED = ["fp32_arithmetic", "fp16", "int8", "offset", "int8_per_vector", "int8_qt8"]


def rows(n: int, d: int, seed: int) -> np.ndarray:
    """Rows around 200 centres with a common direction, as embeddings have."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(200, d)).astype(np.float32) + np.float32(0.5)
    made = np.empty((n, d), np.float32)
    for start in range(0, n, 10_000):
        part = slice(start, start + 10_000)
        made[part] = random.normal(size=made[part].shape)
        made[part] += centres[random.integers(0, 200, len(made[part]))]
    return made


def seconds(function: Callable[[], object], runs: int = 3) -> float:
    """Fastest of some runs."""
    best = np.inf
    for _ in range(runs):
        started = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - started)
    return best


def brute(queries: np.ndarray, gallery: np.ndarray, k: int) -> np.ndarray:
    """The k nearest other rows in float64, by blocks of the matrix product."""
    found = []
    for start in range(0, len(queries), 1000):
        scores = queries[start : start + 1000] @ gallery.T
        scores[np.arange(len(scores)), start + np.arange(len(scores))] = -np.inf
        best = np.argpartition(-scores, k, axis=1)[:, :k]
        found.append(np.sort(best, axis=1))
    return np.concatenate(found)


def grid() -> None:
    x = rows(N, D, 1)
    inputs = neighbour_stability.inputs(gallery=Dataset(x))
    params = neighbour_stability.params(k=K, conditions=LISTED)
    z = unit(x)
    single = z.astype(np.float32)
    mine = seconds(lambda: neighbour_stability.run(Context(threads=cores()), inputs, params))
    search = seconds(lambda: faiss.knn(single, single, K, metric=faiss.METRIC_INNER_PRODUCT))
    exact = seconds(lambda: brute(z, z, K), runs=1)
    found = neighbour_stability.run(Context(threads=cores()), inputs, params)
    half = unit(z.astype(np.float16).astype(np.float64))
    changed = (brute(z, half, K) != brute(z, z, K)).any(axis=1).sum()
    assert found.model_dump()["conditions"]["fp16_gallery"]["changed_queries"] == changed
    conditions = len(found.model_dump()["conditions"])
    print(
        f"neighbour_stability {N} x {D}, k={K}, {conditions} conditions: {mine:.2f} s; one "
        f"faiss.knn {search:.2f} s, ratio {mine / search:.1f}; float64 brute force {exact:.2f} s a "
        f"condition against {mine / conditions:.2f} s, ratio {exact * conditions / mine:.0f}"
    )


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def large() -> None:
    n, m, d = 100_000, 10_000, 768
    with tempfile.TemporaryDirectory() as folder:
        for name, count, seed in (("gallery", n, 2), ("queries", m, 3)):
            np.save(Path(folder, f"{name}.npy"), rows(count, d, seed))
        x = np.load(Path(folder, "gallery.npy"), mmap_mode="r")
        q = np.load(Path(folder, "queries.npy"), mmap_mode="r")
        inputs = neighbour_stability.inputs(gallery=Dataset(x), queries=Dataset(q))
        params = neighbour_stability.params(k=K, conditions=["fp16_gallery", "int8_gallery"])
        mine = seconds(lambda: neighbour_stability.run(Context(threads=cores()), inputs, params), 2)
        peak = peak_mib()
        single, asked = unit(x).astype(np.float32), unit(q).astype(np.float32)
        search = seconds(lambda: faiss.knn(asked, single, K, metric=faiss.METRIC_INNER_PRODUCT), 2)
    bound = 2 * 4 * (n + m) * d / 2**20 + 512
    print(
        f"neighbour_stability {m} queries in {n} x {d}, fp16 and int8 of the gallery: {mine:.1f} s; "
        f"one faiss.knn {search:.1f} s, ratio {mine / search:.2f}; peak {peak:.0f} MiB, bound "
        f"{bound:.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true")
    if parser.parse_args().large:
        large()
    else:
        grid()


if __name__ == "__main__":
    main()
