"""A check that stays inside one C call, with the interpreter locked, for as long as a file says."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np

from service.check import Context, Inputs, Params, Results, check, measure, vectors
from service.dataset import Dataset


class StuckInputs(Inputs):
    vectors: Dataset = vectors(rows="rows")
    """Rows to project."""


class StuckParams(Params):
    """Nothing more."""


class Stuck(Results):
    n: int
    """Rows used."""
    projection: float = measure()
    """Sum of the rows along a random direction."""


@check(version=1, title="Stay inside a C call", scope=("It shows nothing.",))
def stuck(context: Context, inputs: StuckInputs, params: StuckParams) -> Stuck:
    """Signs a book named after the seed, sleeps as long as the file of the seed says, and answers."""
    folder = Path(os.environ["CHAOS_FOLDER"])
    told = folder / f"{context.seed}.seconds"
    seconds = float(told.read_text()) if told.exists() else 0.0
    with (folder / f"{context.seed}.book").open("a") as book:
        book.write(f"{os.getpid()}\n")
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    rows = np.asarray(inputs.vectors.vectors, dtype=np.float64)
    direction = np.random.default_rng(context.seed).standard_normal(rows.shape[1])
    return Stuck(n=len(rows), projection=float(rows.sum(axis=0) @ direction))
