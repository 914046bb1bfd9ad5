# mypy: disable-error-code="arg-type, no-any-return, return-value, no-untyped-call"
# Scalars are machine words once compiled.
"""
Neighbours of rows that have moved a little: found among old candidates, certified where they stay.

With points q, g and moved points q', g' a score moves by (q' - q).c for any c, common to all rows,
give or take |q'| |g' - g| + |q' - q| |g - c|. So what is listed for the rows as given bounds what any
row can score once moved: the candidates within reach of the last place are scored again, and the rest
is excluded by proof or searched again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from service.numerics.compiled import Floats, compiled
from service.numerics.pairs import Codes, Ids, dot, dot_single, keep, read

CERTIFIED, CANDIDATES_ONLY, NOT_CERTIFIED = 1, 2, 0


@compiled
def move(
    queries: Floats,
    divisors: Floats,
    single: bool,
    codes: Codes,
    low: Floats,
    scale: Floats,
    row_scale: Floats,
    by: Floats,
    ids: Ids,
    scores: Floats,
    tail: Floats,
    last: Floats,
    last_id: Ids,
    moved: Floats,
    weight: Floats,
    common: Floats,
    drift: Floats,
    slack: Floats,
    furthest: float,
    best: Ids,
    best_scores: Floats,
    error: Floats,
    proved: NDArray[np.bool_],
) -> None:
    """
    Neighbours among listed candidates after rows have moved, and whether they are all there are.

    Parameters
    ----------
    queries, divisors : (m, d) and (m,) moved queries
    single : whether products are summed in float32
    codes, low, scale, row_scale, by : moved rows and their divisors
    ids, scores, tail : (m, c), (m, c), (m,) candidates of the rows as given; see `Listed`
    last, last_id : (m,) score and row of the k-th neighbour as given
    moved : (n,) how far each row has moved
    weight, common, drift, slack : (m,)
        A score moves by `common`, give or take weight * moved + drift; slack is the rounding of scores.
    furthest : largest of `moved`
    best, best_scores : (m, k + 1) written
    error : (m,) written: the most that the score of one of the k neighbours as given moved
    proved : (m,) written: no row outside the candidates can be among the best k, nor tie with them
    """
    c = ids.shape[1]
    d = codes.shape[1]
    k = best.shape[1] - 1
    row = np.empty(d)
    row_single = np.empty(d, np.float32)
    least = np.empty(k)
    place = np.empty(k, np.int32)
    for i in range(ids.shape[0]):
        filled = 0
        for a in range(c):
            g = ids[i, a]
            if g >= 0:
                filled = keep(scores[i, a] - weight[i] * moved[g], a, least, place, filled)
        floor = least[k - 1] - drift[i] - 3 * slack[i] if filled == k else -np.inf
        best[i] = -1
        best_scores[i] = -np.inf
        error[i] = 0.0
        filled = 0
        query_single = queries[i].astype(np.float32)
        for a in range(c):
            g = ids[i, a]
            if g < 0:
                continue
            among = scores[i, a] > last[i] or (scores[i, a] == last[i] and g <= last_id[i])
            if among or scores[i, a] + weight[i] * moved[g] + drift[i] >= floor:
                read(codes[g], low, scale, row_scale[g], row)
                if single:
                    row_single[:] = row
                    product = dot_single(query_single, row_single)
                else:
                    product = dot(queries[i], row)
                score = product / (divisors[i] * by[g])
                filled = keep(score, g, best_scores[i], best[i], filled)
                if among:
                    error[i] = max(error[i], abs(score - scores[i, a]))
        reach = tail[i] + common[i] + weight[i] * furthest + drift[i] + slack[i]
        proved[i] = tail[i] == -np.inf or reach + slack[i] < best_scores[i, k - 1]


@compiled
def certify(
    ids: Ids,
    scores: Floats,
    tail: Floats,
    last: Floats,
    last_id: Ids,
    gap: Floats,
    moved: Floats,
    norms: Floats,
    query_norms: Floats,
    weight: Floats,
    turned: Floats,
    slack: Floats,
    furthest: float,
    widest: float,
    codes: Codes,
    low: Floats,
    scale: Floats,
    row_scale: Floats,
    by: Floats,
    out: NDArray[np.int8],
) -> None:
    """
    Whether no row can enter the neighbours, whatever way rows move that move no further.

    For every neighbour i and every other row j: q.(g_i - g_j) > |q'| (|dg_i| + |dg_j|) +
    |dq| |g_i - g_j| + slack. Distances between rows are bounded through the query first and computed
    where those bounds leave the question open.

    Parameters
    ----------
    ids, scores, tail, last, last_id : as for `move`; every neighbour is listed
    gap : (m,) score of the k-th neighbour minus that of the row after it
    moved : (n,) |dg|
    norms : (n,) lengths of the points as given
    query_norms, weight, turned : (m,) |q|, |q'|, |dq|
    slack : (m,) rounding of scores
    furthest : largest of `moved`
    widest : no two points are further apart
    codes, low, scale, row_scale, by : rows as given
    out : (m,) written: CERTIFIED, CANDIDATES_ONLY where only rows that are not listed leave it open,
        or NOT_CERTIFIED
    """
    c = ids.shape[1]
    d = codes.shape[1]
    first = np.empty(d)
    second = np.empty(d)
    inside = np.empty(c, np.bool_)
    near = np.empty(c)
    far = np.empty(c)
    for i in range(ids.shape[0]):
        out[i] = NOT_CERTIFIED
        if gap[i] <= slack[i]:
            continue
        q2 = query_norms[i] * query_norms[i]
        for a in range(c):
            g = ids[i, a]
            if g < 0:
                continue
            s = scores[i, a]
            inside[a] = s > last[i] or (s == last[i] and g <= last_id[i])
            apart2 = q2 + norms[g] * norms[g] - 2 * s
            near[a] = np.sqrt(max(0.0, apart2 - 4 * slack[i]))
            far[a] = np.sqrt(max(0.0, apart2 + 4 * slack[i]))
        holds = True
        tail_holds = True
        for a in range(c):
            if not holds:
                break
            if ids[i, a] < 0 or not inside[a]:
                continue
            g = ids[i, a]
            own = scores[i, a] - weight[i] * moved[g] - slack[i]
            if own - tail[i] <= weight[i] * furthest + turned[i] * widest:
                tail_holds = False
            for b in range(c):
                if ids[i, b] < 0 or inside[b]:
                    continue
                h = ids[i, b]
                spare = own - scores[i, b] - weight[i] * moved[h]
                if spare > turned[i] * min(far[a] + far[b], widest):
                    continue
                if spare <= turned[i] * max(near[a] - far[b], near[b] - far[a], 0.0):
                    holds = False
                    break
                read(codes[g], low, scale, row_scale[g], first)
                read(codes[h], low, scale, row_scale[h], second)
                apart = 0.0
                for j in range(d):
                    step = first[j] / by[g] - second[j] / by[h]
                    apart += step * step
                if spare <= turned[i] * (np.sqrt(apart) * (1 + 1e-12) + slack[i]):
                    holds = False
                    break
        if holds:
            out[i] = CERTIFIED if tail_holds else CANDIDATES_ONLY
