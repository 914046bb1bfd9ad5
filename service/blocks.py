"""Blocks of rows that several processes share: who computes which, and how their arrays are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.references import Model

Arrays = Mapping[str, NDArray[Any]]
"""Arrays by name; their first axis runs over rows, or over blocks."""


class Plan(Model):
    """How the blocks of a job are dealt to shards. It decides who computes, never what comes out."""

    blocks: int
    shards: int

    def share(self, shard: int) -> range:
        """Blocks of one shard: neighbours, and as many as any other shard has, up to one."""
        ends = (number * self.blocks // self.shards for number in (shard, shard + 1))
        return range(*ends)


def plain(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """The arrays in C order: sums run along memory, so the layout must not depend on who made them."""
    found = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    for name, array in found.items():
        if array.ndim == 0 or array.dtype.hasobject:
            raise TypeError(f"`{name}` must be an array of plain values with a row for each row.")
    return found


def join(parts: Sequence[Arrays]) -> dict[str, NDArray[Any]]:
    """The arrays of neighbouring parts as one part."""
    first = parts[0]
    joined: dict[str, NDArray[Any]] = {}
    for name in first:
        arrays = [part[name] for part in parts]
        if len({array.dtype for array in arrays}) > 1:
            raise TypeError(f"`{name}` has another type in another part.")
        joined[name] = np.concatenate(arrays)
    if any(set(part) != set(first) for part in parts):
        raise TypeError("Parts have different arrays.")
    return joined
