"""`geometry` on blocks beside the same numbers by numpy on whole float64 arrays."""

from __future__ import annotations

import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", str(os.cpu_count()))

import numpy as np

from service.check import Context
from service.checks.geometry import geometry
from service.dataset import Dataset
from service.settings import cores

N, D = 100_000, 384


def whole(x: np.ndarray) -> tuple[float, float]:
    """Anisotropy and RankMe the plain way."""
    y = x.astype(np.float64)
    u = y / np.linalg.norm(y, axis=1, keepdims=True)
    total = u.sum(axis=0)
    s = np.linalg.svd(y, compute_uv=False)
    np.linalg.svd(y - y.mean(axis=0), compute_uv=False)
    p = s / s.sum() + 1e-7
    return float((total @ total - N) / (N * (N - 1))), float(np.exp(-(p * np.log(p)).sum()))


def main() -> None:
    x = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32) + np.float32(0.1)
    started = time.perf_counter()
    inputs = geometry.inputs(vectors=Dataset(x))
    found = geometry.run(Context(threads=cores()), inputs, geometry.params())
    ours = time.perf_counter() - started
    started = time.perf_counter()
    anisotropy, rankme = whole(x)
    theirs = time.perf_counter() - started
    results = found.model_dump()
    assert np.isclose(results["anisotropy"]["estimate"], anisotropy, rtol=1e-9)
    assert np.isclose(results["rankme"], rankme, rtol=1e-9)
    print(
        f"geometry {N} x {D}: all measures {ours:.2f} s; numpy for anisotropy and two spectra "
        f"{theirs:.2f} s and {3 * N * D * 8 / 1e6:.0f} MB more; ratio {theirs / ours:.1f}"
    )


if __name__ == "__main__":
    main()
