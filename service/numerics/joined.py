"""Rows of two sources under one another, without a copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.numerics.rows import Floats, Selection, Source


@dataclass(frozen=True)
class Joined:
    """
    The rows of one source, then those of another.

    Parameters
    ----------
    first, second : Source of the same number of dimensions
    """

    first: Source
    second: Source

    @property
    def n(self) -> int:
        return self.first.n + self.second.n

    @property
    def unit(self) -> bool:
        return self.first.unit and self.second.unit

    @property
    def d(self) -> int:
        return self.first.d

    def take(self, which: Selection) -> Floats:
        """The chosen rows, (m, d) float64, a new array."""
        border = self.first.n
        if isinstance(which, slice):
            start, stop, _ = which.indices(self.n)
            if stop <= border:
                return self.first.take(slice(start, stop))
            if start >= border:
                return self.second.take(slice(start - border, stop - border))
            return np.concatenate(
                [self.first.take(slice(start, border)), self.second.take(slice(0, stop - border))]
            )
        later = which >= border
        out = np.empty((len(which), self.d))
        out[~later] = self.first.take(which[~later])
        out[later] = self.second.take(which[later] - border)
        return out
