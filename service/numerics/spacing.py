"""How far rows lie from one another: from their neighbours, and from all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.numerics.coded import as_given, chunks
from service.numerics.graph import components, nearest_graph
from service.numerics.neighbours import QUERY_BLOCK, Ids, Step
from service.numerics.rows import Directions, Floats, Rows, mean_row, ordered_map

SAME = 1e-12
"""Unit rows this close are one direction; normalising moves a row by less."""
TILE = 1024


@dataclass(frozen=True)
class Spread:
    """
    Sums over the other rows, (n,) each.

    Attributes
    ----------
    distances : of the distance of unit rows
    potentials : of exp(-2 distance^2)
    """

    distances: Floats
    potentials: Floats


def neighbour_distances(rows: Directions, ids: Ids, threads: int) -> Floats:
    """
    Distance of each unit row to listed others, (n, k), from differences: equal rows are at 0.

    Parameters
    ----------
    rows : Directions (n, d)
    ids : (n, k)
    """
    out = np.empty(ids.shape)

    def fill(part: slice) -> None:
        own = rows.take(part)
        for place in range(ids.shape[1]):
            gap = own - rows.take(ids[part, place])
            out[part, place] = np.sqrt(np.einsum("ij,ij->i", gap, gap))

    for _ in ordered_map(fill, list(chunks(rows.n, QUERY_BLOCK)), threads):
        pass
    return out


def spread(rows: Directions, threads: int, step: Step) -> Spread:
    """
    Distances and potentials over all pairs of unit rows, by tiles.

    Parameters
    ----------
    rows : Directions (n, d)

    Notes
    -----
    Time O(n^2 d), half of it saved by symmetry; memory a few tiles of 1024 x 1024 for each thread.
    """
    n = rows.n
    tiles = list(chunks(n, TILE))
    mean = mean_row(rows, threads)  # centred, so that close rows keep their digits

    def sums(first: int) -> tuple[Floats, Floats]:
        """Of the pairs whose first row is in this tile and whose second is in it or a later one."""
        distances, potentials = np.zeros(n), np.zeros(n)
        a = tiles[first]
        x = rows.take(a) - mean
        x_squares = np.einsum("ij,ij->i", x, x)
        for b in tiles[first:]:
            y = x if a == b else rows.take(b) - mean
            squares = x_squares[:, None] + np.einsum("ij,ij->i", y, y) - 2 * (x @ y.T)
            np.maximum(squares, 0, out=squares)
            if a == b:
                np.fill_diagonal(squares, 0)
            potential = np.exp(-2 * squares)
            distance = np.sqrt(squares, out=squares)
            distances[a] += distance.sum(axis=1)
            potentials[a] += potential.sum(axis=1)
            if a != b:
                distances[b] += distance.sum(axis=0)
                potentials[b] += potential.sum(axis=0)
        potentials[a] -= 1
        return distances, potentials

    total = Spread(np.zeros(n), np.zeros(n))
    for done, (distances, potentials) in enumerate(
        ordered_map(sums, list(range(len(tiles))), threads)
    ):
        total.distances[:] += distances
        total.potentials[:] += potentials
        left = len(tiles) - done - 1
        step(len(tiles) ** 2 - left**2, len(tiles) ** 2)
    return total


@dataclass(frozen=True)
class Spacing:
    """
    Ratios of the distances to the two nearest rows, of rows with a direction of their own.

    Attributes
    ----------
    log_ratios : (N,) ln(r2 / r1)
    duplicates : int
        Rows left out because an earlier row has their direction.
    """

    log_ratios: Floats
    duplicates: int

    @property
    def dimension(self) -> float | None:
        """
        TwoNN: (N - 1) / sum ln(r2 / r1); None below three rows, or where no ratio exceeds 1.

        References
        ----------
        Facco, d'Errico, Rodriguez, Laio, "Estimating the intrinsic dimension of datasets by a minimal
        neighborhood information", Sci. Rep. 7, 2017, doi:10.1038/s41598-017-11873-y.
        """
        count, total = len(self.log_ratios), float(self.log_ratios.sum())
        return None if count < 3 or total <= SAME * count else (count - 1) / total

    @property
    def without_each(self) -> Floats:
        """The same without each ratio in turn, (N,); inf where no other exceeds 1."""
        others = self.log_ratios.sum() - self.log_ratios
        with np.errstate(divide="ignore"):
            return np.asarray((len(others) - 2) / others)


def spacing(rows: Rows, ids: Ids, distances: Floats, threads: int, step: Step) -> Spacing:
    """
    Ratios of the distances to the two nearest rows by cosine.

    Rows that share a direction are joined, the first of them stays, and those that stay are searched
    again. A row that still has its direction in another, beyond the lists, is left out too.

    Parameters
    ----------
    rows : (n, d)
    ids, distances : (n, k) neighbours and how far they are, k >= 2
    """
    row, place = np.nonzero(distances <= SAME)
    kept = np.arange(len(rows))
    if len(row):
        joined = components(row, ids[row, place], len(rows))
        kept = np.unique(joined, return_index=True)[1]
        if len(kept) < 3:
            return Spacing(np.empty(0), len(rows) - len(kept))
        fewer = rows[kept]
        ids = nearest_graph(as_given(fewer, cosine=True, threads=threads), 2, threads, step).ids
        distances = neighbour_distances(Directions(fewer), ids, threads)
    nearest = np.sort(distances[:, :2], axis=1)
    apart = nearest[:, 0] > SAME
    ratios = np.log(nearest[apart, 1] / nearest[apart, 0])
    return Spacing(ratios, len(rows) - len(ratios))
