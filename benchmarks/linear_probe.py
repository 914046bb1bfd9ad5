"""
`linear_probe` beside a loop of scikit-learn's pipelines with the same settings on the same rows.

Both run in this one process, in turn, and fit the same: each strength without the validation rows, then
the best on all train rows. The loop takes the check's own split, counts nothing and makes no intervals.
It runs with BLAS on all cores and on one, and the faster counts. Accuracies are compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", str(os.cpu_count()))

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from service.check import Context
from service.checks.linear_probe import linear_probe
from service.checks.linear_probe.dealing import dealt
from service.dataset import Dataset, Labels
from service.settings import cores

N, D, KINDS = 3_000, 384, 20
MODELS = ("one", "other")


def rows(seed: int, kinds: np.ndarray) -> np.ndarray:
    random = np.random.default_rng(seed)
    centres = random.normal(size=(KINDS, D))
    return (0.2 * centres[kinds] + random.normal(size=(N, D))).astype(np.float32)


def seconds(function: Callable[[], object]) -> tuple[float, object]:
    started = time.perf_counter()
    found = function()
    return time.perf_counter() - started, found


def main() -> None:
    kinds = np.random.default_rng(0).integers(KINDS, size=N)
    data = {name: rows(seed, kinds) for seed, name in enumerate(MODELS, start=1)}
    labels = Labels.of([f"k{kind}" for kind in kinds])
    params = linear_probe.params()
    inputs = linear_probe.inputs(
        models={name: {"rows": Dataset(x)} for name, x in data.items()}, labels=labels
    )
    deal = dealt({"labels": labels}, {"rows": (N, D)}, params, 0)
    settings = {"tol": params.tol, "max_iter": params.max_iter}

    def fitted(x: np.ndarray, y: np.ndarray, c: float) -> object:
        return make_pipeline(StandardScaler(), LogisticRegression(C=c, **settings)).fit(x, y)

    def loop() -> dict[str, float]:
        found = {}
        for name, x in data.items():
            train, codes, out = x[deal.train].astype(np.float64), deal.codes, deal.validation
            scores = [
                balanced_accuracy_score(
                    codes[out], fitted(train[~out], codes[~out], c).predict(train[out])
                )
                for c in params.cs
            ]
            best = fitted(train, codes, params.cs[int(np.argmax(scores))])
            found[name] = float(
                np.mean(best.predict(x[deal.test].astype(np.float64)) == deal.test_codes)
            )
        return found

    def check() -> dict[str, float]:
        got = linear_probe.run(Context(threads=cores()), inputs, params)
        return {name: found.accuracy.estimate for name, found in got.models.items()}

    theirs, wanted = seconds(loop)
    with threadpool_limits(limits=1):
        theirs = min(theirs, seconds(loop)[0])
    mine, got = seconds(check)
    if got != wanted:
        raise SystemExit(f"accuracies differ: {got} and {wanted}")
    print(
        f"linear_probe {len(MODELS)} x {N} x {D}, {KINDS} labels, {len(params.cs)} strengths: "
        f"{mine:.1f} s; scikit-learn's loop {theirs:.1f} s, ratio {mine / theirs:.2f}"
    )


if __name__ == "__main__":
    main()
