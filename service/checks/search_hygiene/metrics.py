"""Whether inner product and Euclidean distance find what cosine finds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.numerics.coded import as_given
from service.numerics.euclidean import euclidean
from service.numerics.graph import Counts, Graph, nearest_graph, shared
from service.numerics.neighbours import Step
from service.numerics.rows import Floats, Rows, Stored, blocks, norms, ordered_map

SHORTEST = 1e-140
"""Of the longest row: below, squares leave the range of float64."""


@dataclass(frozen=True)
class Overlap:
    """
    How many of each row's neighbours another metric shares.

    Attributes
    ----------
    counts : (n,)
    unresolved : int
        Rows whose last place by that metric is within rounding.
    """

    counts: Counts
    unresolved: int


def raw_rows(rows: Rows, threads: int) -> Floats | None:
    """Rows in float64, the longest of about 1 by a power of two; None where some are too short."""
    grid = blocks(*rows.shape)
    plain = Stored(rows)
    lengths = np.concatenate(
        list(ordered_map(lambda which: norms(plain.take(which)), grid, threads))
    )
    longest = float(lengths.max())
    if lengths.min() < SHORTEST * longest:
        return None
    out = plain.take(slice(None))
    np.ldexp(out, -int(np.floor(np.log2(longest))), out=out)
    return out


def overlaps(graph: Graph, rows: Floats, threads: int, step: Step) -> tuple[Overlap, Overlap]:
    """
    What of the neighbours by cosine is also nearest by inner product, and by Euclidean distance.

    Parameters
    ----------
    graph : Graph by cosine
    rows : (n, d) float64, raw
    """
    k = graph.ids.shape[1]
    n = len(rows)
    given = as_given(rows, cosine=False, threads=threads)
    by_dot = nearest_graph(given, k, threads, lambda done, _: step(done, 2 * n))
    dot = Overlap(shared(by_dot, graph.ids, given, given, threads), by_dot.unresolved)
    found, asking = euclidean(rows)
    by_l2 = nearest_graph(found, k, threads, lambda done, _: step(n + done, 2 * n), asking)
    return dot, Overlap(shared(by_l2, graph.ids, found, asking, threads), by_l2.unresolved)
