"""A check whose process dies every time."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from service.check import Context, Inputs, Params, Results, check, vectors
from service.dataset import Dataset


class DyingInputs(Inputs):
    vectors: Dataset = vectors(rows="rows")
    """Rows that are not looked at."""


class DyingParams(Params):
    """Nothing more."""


class Dying(Results):
    n: int
    """Never told."""


@check(version=1, title="Die", scope=("It shows nothing.",))
def dying(context: Context, inputs: DyingInputs, params: DyingParams) -> Dying:
    """Signs a book named after the seed and kills its own process, as a crash in C code would."""
    with (Path(os.environ["CHAOS_FOLDER"]) / f"{context.seed}.book").open("a") as book:
        book.write(f"{os.getpid()}\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return Dying(n=0)
