"""
`stress_response` beside the exact searches it cannot do without, and beside `geometry` of every state.

Everything runs in this one process, in turn; ratios are what counts, of processor time too, which other
processes move less. `--probe` adds labels, and with
them a linear probe under each damage that standardising does not undo; `--large` adds 50,000 x 384 and
the peak of memory.
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
from service.checks.geometry import geometry
from service.checks.stress_response import stress_response
from service.checks.stress_response.states import States
from service.dataset import Dataset, Labels
from service.numerics.graph import nearest_graph
from service.numerics.neighbours import silent
from service.settings import cores

N, D, K = 5_000, 384, 10
KINDS = 50


def rows(n: int, seed: int) -> tuple[np.ndarray, list[str]]:
    """Rows around 50 centres with a common direction, as embeddings have, and their centres."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(KINDS, D)) + 0.5
    kinds = random.integers(0, KINDS, n)
    made = (2 * random.normal(size=(n, D)) + centres[kinds]).astype(np.float32)
    return made, [f"k{kind}" for kind in kinds]


def seconds(function: Callable[[], object], runs: int = 2) -> tuple[float, float]:
    """Fastest of some runs: seconds, and seconds of all processors."""
    wall, processors = [], []
    for _ in range(runs):
        started, spent = time.perf_counter(), time.process_time()
        function()
        wall.append(time.perf_counter() - started)
        processors.append(time.process_time() - spent)
    return min(wall), min(processors)


def grid() -> None:
    x, _ = rows(N, 1)
    train, _ = rows(N, 2)
    inputs = stress_response.inputs(vectors=Dataset(x), train=Dataset(train))
    params = stress_response.params(k=K)
    states = States(inputs, 0, cores())
    conditions = list(params.conditions.values())
    damaged = [states.given, *(states.damaged(*what) for what in conditions)]
    searched = [damaged[0], *(state for state in damaged[1:] if not state.same_cosines)]

    def searches() -> None:
        with threadpool_limits(limits=1):
            for state in searched:
                nearest_graph(state.rows, K, cores(), silent)

    copies = [state.rows.take(slice(0, N)).astype(np.float32) for state in damaged]

    def geometries() -> None:
        for copy in copies:
            given = geometry.inputs(vectors=Dataset(copy))
            geometry.run(Context(threads=cores()), given, geometry.params())

    def check() -> None:
        stress_response.run(Context(threads=cores()), inputs, params)

    (mine, cpu), (theirs, its_cpu), (apart, geometry_cpu) = map(
        seconds, (check, searches, geometries)
    )
    print(
        f"stress_response {N} x {D}, k={K}, {len(conditions)} conditions: {mine:.2f} s; the "
        f"{len(searched)} searches alone {theirs:.2f} s, ratio {mine / theirs:.2f} (processors "
        f"{cpu / its_cpu:.2f}); searches and `geometry` of every state {theirs + apart:.2f} s, ratio "
        f"{mine / (theirs + apart):.2f} (processors {cpu / (its_cpu + geometry_cpu):.2f})"
    )


def probed() -> None:
    x, labels = rows(N, 1)
    train, train_labels = rows(N, 2)
    inputs = stress_response.inputs(
        vectors=Dataset(x),
        train=Dataset(train),
        labels=Labels.of(labels),
        train_labels=Labels.of(train_labels),
    )
    context = Context(threads=cores())
    mine, _ = seconds(lambda: stress_response.run(context, inputs, stress_response.params(k=K)), 1)
    print(
        f"stress_response {N} x {D} with probes of {KINDS} labels on {N} train rows: {mine:.1f} s"
    )


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def large() -> None:
    n = 50_000
    x, _ = rows(n, 3)
    train, _ = rows(n, 4)
    inputs = stress_response.inputs(vectors=Dataset(x), train=Dataset(train))
    params = stress_response.params(k=K, severities=[0.5, 0.99])
    before = peak_mib()
    mine, _ = seconds(lambda: stress_response.run(Context(threads=cores()), inputs, params), 1)
    print(
        f"stress_response {n} x {D}, {len(params.conditions)} conditions: {mine:.1f} s, peak "
        f"{peak_mib() - before:.0f} MiB above inputs of {2 * x.nbytes / 2**20:.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probe", action="store_true")
    parser.add_argument("--large", action="store_true")
    asked = parser.parse_args()
    if asked.large:
        large()
    elif asked.probe:
        probed()
    else:
        grid()


if __name__ == "__main__":
    main()
