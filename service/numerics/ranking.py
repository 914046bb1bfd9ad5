# mypy: disable-error-code="arg-type, no-any-return, return-value"
# Scalars are machine words once compiled.
"""
Measures of a ranking from where its relevant items stand, averaged over all orders of tied items.

A tie is a run of t items with one score, r of them relevant, below a items with higher scores. All
orders of its items are equally likely, so every measure has a closed form in a, t and r, and none
depends on the order in which items were given.

References
----------
McSherry & Najork, "Computing information retrieval performance measures efficiently in the presence of
tied scores", ECIR 2008, doi:10.1007/978-3-540-78646-7_38.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.numerics.compiled import Floats, compiled
from service.numerics.neighbours import Ids

Rows64 = NDArray[np.int64]


@dataclass(frozen=True)
class Ranked:
    """
    Measures of each query.

    Attributes
    ----------
    hit, recall, precision, ndcg : (m, number of ks) float64 in [0, 1]
    reciprocal_rank, average_precision : (m,) float64 in (0, 1]
    first_rank : (m,) float64
        Rank of the first relevant item.
    """

    hit: Floats
    recall: Floats
    precision: Floats
    ndcg: Floats
    reciprocal_rank: Floats
    average_precision: Floats
    first_rank: Floats


@compiled
def none_among(items: int, marked: int, drawn: int) -> float:
    """Probability C(items - marked, drawn) / C(items, drawn) that a draw holds no marked item."""
    if marked + drawn > items:
        return 0.0
    few, many = min(marked, drawn), max(marked, drawn)
    chance = 1.0
    for j in range(few):
        chance *= (items - many - j) / (items - j)
    return chance


@compiled
def _measure(
    starts: Rows64,
    above: Rows64,
    tied: Rows64,
    relevant: Rows64,
    gains: Floats,
    grade_starts: Rows64,
    grades: Floats,
    ks: Rows64,
    discounts: Floats,
    hit: Floats,
    recall: Floats,
    precision: Floats,
    ndcg: Floats,
    reciprocal_rank: Floats,
    average_precision: Floats,
    first_rank: Floats,
) -> None:
    for i in range(len(starts) - 1):
        ideal = grades[grade_starts[i] : grade_starts[i + 1]]
        total = len(ideal)
        first = starts[i]
        a, t, r = above[first], tied[first], relevant[first]
        first_rank[i] = a + (t + 1) / (r + 1)
        chance, mean = r / t, 0.0
        for j in range(1, t - r + 2):
            mean += chance / (a + j)
            chance *= (t - j - r + 1) / max(t - j, 1)
        reciprocal_rank[i] = mean
        before, mean = 0, 0.0
        for b in range(starts[i], starts[i + 1]):
            a, t, r = above[b], tied[b], relevant[b]
            for j in range(1, t + 1):
                others = (j - 1) * (r - 1) / (t - 1) if t > 1 else 0.0
                mean += r / t * (before + 1 + others) / (a + j)
            before += r
        average_precision[i] = mean / total
        for c in range(len(ks)):
            k = ks[c]
            found, gain = 0.0, 0.0
            for b in range(starts[i], starts[i + 1]):
                a, t, r = above[b], tied[b], relevant[b]
                room = min(max(k - a, 0), t)
                if room == 0:
                    break
                found += r * (room / t)
                gain += gains[b] / t * (discounts[a + room] - discounts[a])
            best = 0.0
            for p in range(min(k, total)):
                best += ideal[p] * (discounts[p + 1] - discounts[p])
            a, t, r = above[first], tied[first], relevant[first]
            room = min(max(k - a, 0), t)
            hit[i, c] = 1 - none_among(t, r, room)
            recall[i, c] = found / total
            precision[i, c] = found / k
            ndcg[i, c] = min(gain / best, 1.0)


def measures(
    starts: Rows64,
    above: Rows64,
    tied: Rows64,
    relevant: Rows64,
    tie: Rows64,
    grade_starts: Rows64,
    grades: Floats,
    ks: list[int],
) -> Ranked:
    """
    Hit, recall, precision, nDCG, reciprocal rank and average precision of each query.

    Parameters
    ----------
    starts : (m + 1,) int64
        Where the ties of each query that hold relevant items begin, highest score first.
    above, tied, relevant : (t,) int64
        Items above the tie, in it, and relevant in it.
    tie : (p,) int64
        The tie of each relevant item.
    grade_starts, grades : (m + 1,), (p,)
        Gains of the relevant items, positive; discounted by log2(1 + rank), as trec_eval does.
    ks : cutoffs, at most the number of items

    Notes
    -----
    Time O(items in ties + p number of ks).
    """
    m, width = len(starts) - 1, len(ks)
    gains = np.bincount(tie, weights=grades, minlength=len(above))
    query = np.repeat(np.arange(m), np.diff(grade_starts))
    ideal = grades[np.lexsort((-grades, query))]
    discounts = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, max(ks) + 2)))])
    found = Ranked(*(np.empty((m, width)) for _ in range(4)), *(np.empty(m) for _ in range(3)))
    _measure(
        starts, above, tied, relevant, gains, grade_starts, ideal, np.array(ks), discounts,
        found.hit, found.recall, found.precision, found.ndcg,
        found.reciprocal_rank, found.average_precision, found.first_rank,
    )  # fmt: skip
    return found


def chance_hit(items: int, relevant: Rows64, k: int) -> Floats:
    """
    Hit@k of a ranking at random, 1 - C(items - relevant, k) / C(items, k), for each query.

    Parameters
    ----------
    items : int
    relevant : (m,) int64
    k : int, at most `items`
    """
    counts, place = np.unique(relevant, return_inverse=True)
    values = np.array([1 - none_among(items, int(r), k) for r in counts])
    return np.asarray(values[place])


@compiled
def _cutoffs(
    starts: Rows64,
    scores: Floats,
    ids: Ids,
    best: Floats,
    more: NDArray[np.bool_],
    own: Rows64,
    classes: Rows64,
    ks: Rows64,
    tied: NDArray[np.bool_],
    others: Floats,
    open_: NDArray[np.bool_],
) -> None:
    room = best.shape[1]
    seen = np.full(max(classes.max() + 1, 1), -1, np.int64)
    met = np.empty(room, np.int64)
    for i in range(len(starts) - 1):
        o, p, place, count = 0, starts[i], 0, 0
        filled = 0
        while filled < room and ids[i, filled] >= 0:
            filled += 1
        while place < ks[-1]:
            score = -np.inf
            if o < filled:
                score = best[i, o]
            if p < starts[i + 1] and scores[p] > score:
                score = scores[p]
            begin = place
            fresh = 0
            while o < filled and best[i, o] == score:
                kind = classes[ids[i, o]]
                if kind >= 0 and kind != own[i] and seen[kind] != i:
                    met[fresh] = kind
                    fresh += 1
                o += 1
                place += 1
            while p < starts[i + 1] and scores[p] == score:
                p += 1
                place += 1
            met[:fresh].sort()
            if o == filled and more[i] and filled > 0 and best[i, filled - 1] == score:
                open_[i] = True
            for c in range(len(ks)):
                k = ks[c]
                if begin < k < place:
                    tied[i, c] = True
                    expected = np.float64(count)
                    j = 0
                    while j < fresh:
                        size = 1
                        while j + size < fresh and met[j + size] == met[j]:
                            size += 1
                        expected += 1 - none_among(place - begin, size, k - begin)
                        j += size
                    others[i, c] = expected
            for j in range(fresh):
                if seen[met[j]] != i:
                    seen[met[j]] = i
                    count += 1
            for c in range(len(ks)):
                if ks[c] == place:
                    others[i, c] = count


def cutoffs(
    starts: Rows64,
    scores: Floats,
    ids: Ids,
    best: Floats,
    more: NDArray[np.bool_],
    own: Rows64,
    classes: Rows64,
    ks: list[int],
) -> tuple[NDArray[np.bool_], Floats, NDArray[np.bool_]]:
    """
    What lies at each cutoff: a tie or not, and how many classes other than the query's lie above it.

    Parameters
    ----------
    starts, scores : (m + 1,), (p,)
        Scores of each query's relevant items, highest first.
    ids, best : (m, depth)
        The best other items, at least one more than the largest k where there are as many; -1 beyond.
    more : (m,) bool
        Whether there are other items beyond `depth`.
    own : (m,) int64
        The class of each query, which is that of its relevant items.
    classes : (n,) int64
        The class of each item; -1 for none.
    ks : cutoffs in ascending order, at most the number of items

    Returns
    -------
    tied, others, open : (m, number of ks) bool and float64, (m,) bool
        `others` is a mean over orders of tied items. Where `open`, the tie at the largest k may hold
        items that are not listed, and `others` is right only with a longer list.
    """
    m, width = len(starts) - 1, len(ks)
    tied, open_ = np.zeros((m, width), bool), np.zeros(m, bool)
    others = np.zeros((m, width))
    _cutoffs(
        starts, scores, ids, best, more, own, classes, np.array(ks), tied, others, open_
    )  # fmt: skip
    return tied, others, open_
