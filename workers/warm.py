"""Compile every kernel once, so that no job waits for it: the image runs this when it is built."""

from __future__ import annotations

import numpy as np

from service.check import Context
from service.checks.group_structure import group_structure
from service.dataset import Dataset, Labels


def main() -> None:
    """Run the compiled kernels on a few rows."""
    rows = np.random.default_rng(0).normal(size=(120, 8)).astype(np.float32)
    inputs = group_structure.inputs.model_validate(
        {
            "models": {"warm": Dataset(rows)},
            "groups": Labels.of([i % 20 for i in range(120)]),
        }
    )
    group_structure.run(Context(), inputs, group_structure.params())


if __name__ == "__main__":
    main()
