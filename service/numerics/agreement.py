# mypy: disable-error-code="arg-type, no-any-return, return-value"
# Scalars are machine words once compiled.
"""How far two ranked lists of the same query agree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from service.numerics.compiled import Floats, compiled
from service.numerics.pairs import Ids

PERSISTENCE = 0.9


@compiled
def compare(
    one: Ids, other: Ids, p: float, shared: NDArray[np.int64], rbo: Floats, tau: Floats
) -> None:
    """
    Shared items, extrapolated rank-biased overlap and Kendall's tau of lists of the same length.

    Parameters
    ----------
    one, other : (m, k) items of each list are different and in order of rank
    p : persistence of the rank-biased overlap, in (0, 1)
    shared : (m,) written: items in both lists
    rbo : (m,) written, in [0, 1]: (X_k/k) p^k + ((1-p)/p) sum_d (X_d/d) p^d with X_d the items that
        are in both lists by depth d
    tau : (m,) written, in [-1, 1]: over items in both lists; NaN below two

    Notes
    -----
    Time O(m k^2).

    References
    ----------
    Webber, Moffat, Zobel, "A similarity measure for indefinite rankings", ACM TOIS 28(4), 2010,
    doi:10.1145/1852102.1852106, equation 30.
    """
    k = one.shape[1]
    place = np.empty(k, np.int64)
    for i in range(one.shape[0]):
        for a in range(k):
            place[a] = -1
            for b in range(k):
                if one[i, a] == other[i, b]:
                    place[a] = b
        total = 0.0
        weight = 1.0
        both = 0
        for depth in range(1, k + 1):
            weight *= p
            both = 0
            for a in range(depth):
                if 0 <= place[a] < depth:
                    both += 1
            total += both / depth * weight
        shared[i] = both
        rbo[i] = both / k * weight + (1 - p) / p * total
        order = 0
        for a in range(k):
            if place[a] < 0:
                continue
            for b in range(a + 1, k):
                if place[b] >= 0:
                    order += 1 if place[b] > place[a] else -1
        if both < 2:
            tau[i] = np.nan
        else:
            tau[i] = order / (both * (both - 1) / 2)
