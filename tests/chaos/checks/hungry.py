"""A check that takes memory until it is refused."""

from __future__ import annotations

import numpy as np

from service.check import Context, Inputs, Params, Results, check, vectors
from service.dataset import Dataset

PIECE_BYTES = 64 << 20
ENOUGH_BYTES = 4 << 30


class HungryInputs(Inputs):
    vectors: Dataset = vectors(rows="rows")
    """Rows that are not looked at."""


class HungryParams(Params):
    """Nothing more."""


class Hungry(Results):
    taken_bytes: int
    """Bytes taken."""


@check(version=1, title="Take too much memory", scope=("It shows nothing.",))
def hungry(context: Context, inputs: HungryInputs, params: HungryParams) -> Hungry:
    """Takes 4 GiB, far over what a job on a few rows may use."""
    taken = [np.empty(PIECE_BYTES, np.uint8) for _ in range(ENOUGH_BYTES // PIECE_BYTES)]
    return Hungry(taken_bytes=sum(piece.nbytes for piece in taken))
