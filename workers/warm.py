"""
Compile every kernel once, so that no job waits for it: `assay serve` and the image's build run this.
"""

from __future__ import annotations

import itertools
import os

import numpy as np

from service.check import Context
from service.checks.compression import compression
from service.checks.drift import drift
from service.checks.group_structure import group_structure
from service.checks.label_neighbours import label_neighbours
from service.checks.model_comparison import model_comparison
from service.checks.neighbour_stability import neighbour_stability
from service.checks.retrieval import retrieval
from service.dataset import DTYPES, Dataset, Labels
from service.relevance import Relevance

SCHEMES = ["fp32_arithmetic", "fp16", "int8", "int8_qt8"]
"""One of each type of code."""


def main() -> None:
    """Run the compiled kernels on a few rows, behind whatever else the machine does."""
    os.nice(10)
    rows = np.random.default_rng(0).normal(size=(120, 8)).astype(np.float32)
    groups = Labels.of([i % 20 for i in range(120)])
    inputs = group_structure.inputs.model_validate(
        {"models": {"warm": Dataset(rows)}, "groups": groups}
    )
    group_structure.run(Context(), inputs, group_structure.params())
    drift.run(
        Context(),
        drift.inputs.model_validate({"baseline": Dataset(rows[:60]), "batch": Dataset(rows[60:])}),
        drift.params(),
    )
    for given in (rows, rows.astype(np.float64), rows.astype(np.float16)):
        given.flags.writeable = False  # as mapped rows are
        neighbour_stability.run(
            Context(),
            neighbour_stability.inputs.model_validate({"gallery": Dataset(given)}),
            neighbour_stability.params.model_validate({"conditions": SCHEMES}),
        )
        one = Dataset(given)
        model_comparison.run(
            Context(),
            model_comparison.inputs.model_validate({"models": {"one": one, "other": one}}),
            model_comparison.params(),
        )
        compression.run(
            Context(),
            compression.inputs.model_validate({"vectors": one}),
            compression.params.model_validate({"dims": [4]}),
        )
    for dtype, writeable in itertools.product(DTYPES, (True, False)):  # mapped rows are read-only
        equal = np.ones((120, 8), dtype)
        equal.flags.writeable = writeable
        inputs = label_neighbours.inputs.model_validate(
            {"vectors": Dataset(equal), "labels": groups}
        )
        label_neighbours.run(Context(), inputs, label_neighbours.params())
        model = {"queries": Dataset(equal), "documents": Dataset(equal)}
        own = Relevance.of([[i] for i in range(120)])
        inputs = retrieval.inputs.model_validate({"models": {"warm": model}, "relevance": own})
        retrieval.run(Context(), inputs, retrieval.params())


if __name__ == "__main__":
    main()
