"""How often a score of one sample exceeds one of another, by rank sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.numerics.compiled import Items, add_by_group, stream_key
from service.numerics.design import Design
from service.numerics.permanova import Step, permuted
from service.numerics.permutation_test import PermutationTest
from service.numerics.rows import Floats

TIE = 1e-12


@dataclass(frozen=True)
class Auc:
    """
    The chance that a score of sample 1 exceeds one of sample 0, ties half, over pairs of rows.

    Attributes
    ----------
    value : float in [0, 1]
    without : (u,) the value without each unit in turn; NaN where a sample has no row left
    """

    value: float
    without: Floats


def ranks(scores: Floats) -> Floats:
    """Rank of each score from 1, ties at their mean, (n,)."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place])


def auc(scores: Floats, codes: NDArray[np.int64], owner: NDArray[np.int64]) -> Auc:
    """
    AUC of scores and, in closed form, without each unit; time O(n log n).

    Parameters
    ----------
    scores : (n,) float64
    codes : (n,) sample of each row, 0 or 1, both there
    owner : (n,) unit of each row, 0..u-1, each in one sample

    References
    ----------
    Hanley & McNeil, "The meaning and use of the area under a receiver operating characteristic (ROC)
    curve", Radiology 143(1), 1982, doi:10.1148/radiology.143.1.7063747; leaving out one row at a time
    are the components of DeLong, DeLong & Clarke-Pearson, Biometrics 44(3), 1988, doi:10.2307/2531595.
    """
    later = codes == 1
    beaten = ranks(scores)
    beaten[later] -= ranks(scores[later])  # scores of sample 0 that each of sample 1 exceeds
    beaten[~later] = later.sum() - (beaten[~later] - ranks(scores[~later]))
    wins = float(beaten[later].sum())
    rows = np.array([np.count_nonzero(~later), np.count_nonzero(later)], dtype=np.float64)
    sizes, own = np.bincount(owner), np.bincount(owner, weights=beaten)
    sample = np.zeros(len(sizes), dtype=np.int64)
    sample[owner] = codes
    pairs = (rows[sample] - sizes) * rows[1 - sample]
    without = np.divide(wins - own, pairs, out=np.full(len(sizes), np.nan), where=pairs > 0)
    return Auc(wins / float(rows.prod()), without)


def auc_test(
    scores: Floats,
    design: Design,
    permutations: int,
    seed: int,
    level: float,
    threads: int,
    step: Step,
) -> PermutationTest:
    """
    One-sided permutation test that scores of sample 1 are no higher: labels of items are exchanged.

    Exact for scores of a classifier that never saw these rows. Rank sums are exact, so ties count.

    Parameters
    ----------
    scores : (n,) float64
    design : Design of two groups

    Notes
    -----
    Time O(B u) after O(n log n), memory 8 to 128 arrangements per thread.
    """
    found = np.add.reduceat(ranks(scores)[design.rows], design.starts[:-1])
    sizes = design.sizes.astype(np.float64)
    n = sizes.sum()

    def areas(arrangements: Items) -> Floats:
        total, rows = np.zeros((len(arrangements), 2)), np.zeros((len(arrangements), 2))
        add_by_group(found, arrangements, design.groups, total)
        add_by_group(sizes, arrangements, design.groups, rows)
        m = rows[:, 1]
        return np.asarray((total[:, 1] - m * (m + 1) / 2) / (m * (n - m)))

    key = stream_key(seed, "domain labels")
    return permuted(areas, TIE, design, permutations, key, level, threads, step)
