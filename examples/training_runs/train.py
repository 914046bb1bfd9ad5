"""
Train small networks and write `runs.csv`: how the table of this folder was made.

A hidden layer on the MiniLM rows of `clinc_intents` learns their intents by gradient steps, under
three conditions with the same eight seeds. A seed decides the split, the weights and the noise.

    python examples/training_runs/train.py > examples/training_runs/runs.csv
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
CLINC = Path(__file__).parent.parent / "clinc_intents"
CONDITIONS = {"plain": (32, 0.0), "input_noise": (32, 0.05), "narrow": (8, 0.0)}
"""Units of the hidden layer, and the deviation of noise on its inputs."""
SEEDS, STEPS, RATE, HELD_OUT = range(8), 300, 2.0, 0.4


def trained(x: Array, y: NDArray[np.int64], units: int, noise: float, seed: int) -> list[float]:
    """Accuracy and neighbour precision (P@10 of the hidden layer) on held-out rows."""
    rng = np.random.default_rng(seed)
    test = rng.random(len(x)) < HELD_OUT
    classes = np.eye(y.max() + 1)
    first = rng.normal(0, x.shape[1] ** -0.5, (x.shape[1], units))
    second = rng.normal(0, units**-0.5, (units, len(classes)))
    rows, wanted = x[~test], classes[y[~test]]
    for _ in range(STEPS):
        seen = rows + noise * rng.normal(size=rows.shape)
        hidden = np.tanh(seen @ first)
        scores = np.exp(hidden @ second)
        wrong = (scores / scores.sum(axis=1, keepdims=True) - wanted) / len(rows)
        back = (wrong @ second.T) * (1 - hidden**2)
        second -= RATE * 10 * hidden.T @ wrong
        first -= RATE * 10 * seen.T @ back
    hidden = np.tanh(x[test] @ first)
    accuracy = (np.argmax(hidden @ second, axis=1) == y[test]).mean()
    unit = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
    scores = unit @ unit.T
    np.fill_diagonal(scores, -np.inf)
    near = np.argsort(-scores, axis=1)[:, :10]
    return [float(accuracy), float((y[test][near] == y[test][:, None]).mean())]


def main() -> None:
    x = np.load(CLINC / "minilm.npy").astype(np.float64)
    with (CLINC / "rows.csv").open(newline="") as file:
        intents = [row["intent"] for row in csv.DictReader(file)]
    _, y = np.unique(intents, return_inverse=True)
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["condition", "seed", "accuracy", "neighbours"])
    for condition, (units, noise) in CONDITIONS.items():
        for seed in SEEDS:
            scores = trained(x, y, units, noise, seed)
            table.writerow([condition, seed, *(f"{score:.4f}" for score in scores)])


if __name__ == "__main__":
    main()
