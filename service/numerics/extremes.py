"""Rows too long or too short for products of them to be numbers of float64."""

from __future__ import annotations

import numpy as np

from service.dataset import Dataset
from service.errors import Fault, InvalidRequest
from service.numerics.rows import SAFE_SQUARE, blocks, norms


def refuse_extremes(data: Dataset, pointer: str, way_out: str) -> None:
    """Raise unless the squares of all rows, taken as they are, stay in the range of float64."""
    grid = blocks(*data.vectors.shape)
    lengths = np.concatenate([norms(data.vectors[which].astype(np.float64)) for which in grid])
    wrong = np.flatnonzero((lengths < SAFE_SQUARE[0]) | (lengths > SAFE_SQUARE[1]))
    if len(wrong):
        role = pointer.rpartition("/")[2]
        rows = data.name_rows(wrong)
        raise InvalidRequest(
            f"`{role}` holds rows whose products leave the range of float64.",
            [Fault(pointer=pointer, message=way_out, count=len(wrong), rows=rows)],
        )
