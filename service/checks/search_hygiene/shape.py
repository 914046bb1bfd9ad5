"""The shape of a graph of nearest rows, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.numerics.graph import (
    Counts,
    Graph,
    components,
    largest_share,
    mutual_pairs,
    occurrences,
    skewness,
)
from service.numerics.rows import Floats

TOP_PERCENT = 1.0
NORMAL_MAD = 1.482602218505602
"""Standard deviations of a normal distribution in its median absolute deviation."""


@dataclass(frozen=True)
class Shape:
    """
    What is counted on a graph, of data or of random directions.

    Attributes
    ----------
    lists : (n,) lists each row stands in
    closeness : (n,) mean score with its neighbours
    median : float
        Of the closeness.
    deviation : float
        Its median absolute deviation, times 1.4826.
    component : (n,) component of the mutual graph
    sizes : (c,) rows of each component
    """

    lists: Counts
    closeness: Floats
    median: float
    deviation: float
    component: Counts
    sizes: Counts

    @classmethod
    def of(cls, graph: Graph) -> Shape:
        closeness = graph.scores.mean(axis=1)
        median = float(np.median(closeness))
        component = components(*mutual_pairs(graph.ids), len(graph.ids))
        return cls(
            lists=occurrences(graph.ids),
            closeness=closeness,
            median=median,
            deviation=NORMAL_MAD * float(np.median(np.abs(closeness - median))),
            component=component,
            sizes=np.bincount(component),
        )

    @property
    def skewness(self) -> float | None:
        return skewness(self.lists)

    @property
    def top_share(self) -> float:
        return largest_share(self.lists, TOP_PERCENT)

    @property
    def antihubs(self) -> float:
        return float(np.mean(self.lists == 0))

    def below(self, deviations: float) -> float | None:
        """What outliers lie below; None where half of the rows are equally close."""
        if self.deviation <= 1e-12:
            return None
        return self.median - deviations * self.deviation

    def outliers(self, deviations: float) -> Counts | None:
        """Rows below that, furthest first."""
        below = self.below(deviations)
        if below is None:
            return None
        found = np.flatnonzero(self.closeness < below)
        return found[np.argsort(self.closeness[found], kind="stable")]

    def islands(self, most: int) -> Counts:
        """Components of at most `most` rows, largest first; the largest of all is none."""
        order = np.argsort(-self.sizes, kind="stable")[1:]
        return order[self.sizes[order] <= most]

    def on_islands(self, most: int) -> int:
        return int(self.sizes[self.islands(most)].sum())

    @property
    def alone(self) -> int:
        """Rows that no row they list lists back."""
        return int(np.count_nonzero(self.sizes == 1))

    @property
    def largest(self) -> float:
        return float(self.sizes.max() / len(self.component))


def near_duplicates(graph: Graph, cosine: float) -> tuple[int, int]:
    """Rows with a neighbour at this cosine or above, up to rounding, and pairs in lists."""
    near: NDArray[np.bool_] = graph.scores >= cosine - graph.slack[:, None]
    i = np.nonzero(near)[0]
    j = graph.ids[near].astype(np.int64)
    pairs = np.unique(np.minimum(i, j) * len(graph.ids) + np.maximum(i, j))
    return int(near[:, 0].sum()), len(pairs)
