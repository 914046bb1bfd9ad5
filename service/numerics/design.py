"""Which labels may be exchanged with which: strata, units, and how many labellings that leaves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.errors import Fault, InvalidRequest, TooFewGroups
from service.numerics.compiled import Items, arrange, enumerate_arrangements

Codes = NDArray[np.int64]
COUNTABLE = 1e15


@dataclass(frozen=True)
class Design:
    """
    A restricted permutation design over items (units of rows, or single rows), sorted by stratum.

    Attributes
    ----------
    rows : (n,) int64
        Rows in item order.
    starts : (u + 1,) int64
        Where each item begins in `rows`.
    labels : (u,) int64
        Group of each item.
    strata : (s + 1,) int64
        Where each stratum begins among items.
    places : (u,) int64
        For each place in group order, the item that holds it in the observed arrangement.
    groups : (g + 1,) int64
        Where each group begins among places.
    """

    rows: Codes
    starts: Codes
    labels: Codes
    strata: Codes
    places: Codes
    groups: Codes

    @classmethod
    def of(cls, codes: Codes, strata: Codes | None, units: Codes | None) -> Design:
        """
        The design of dense group, stratum and unit codes per row.

        Raises
        ------
        InvalidRequest
            If a unit lies in more than one group or stratum.
        TooFewGroups
            If no other labelling exists.
        """
        n = len(codes)
        by_row = np.zeros(n, dtype=np.int64) if strata is None else strata
        unit = np.arange(n) if units is None else units
        _refuse_split("group", unit, codes)
        _refuse_split("stratum", unit, by_row)
        first = np.unique(unit, return_index=True)[1]
        item = np.lexsort((first, by_row[first]))  # units by stratum, then first row
        rank = np.empty(len(item), dtype=np.int64)
        rank[item] = np.arange(len(item))
        rows = np.argsort(rank[unit], kind="stable")
        sizes = np.bincount(rank[unit])
        labels = codes[first][item]
        design = cls(
            rows=rows,
            starts=np.concatenate([[0], np.cumsum(sizes)]),
            labels=labels,
            strata=np.concatenate([[0], np.cumsum(np.bincount(by_row[first]))]),
            places=np.argsort(labels, kind="stable"),
            groups=np.concatenate([[0], np.cumsum(np.bincount(labels))]),
        )
        if design.labellings == 1:
            raise TooFewGroups(
                "No other labelling exists under this design: every stratum holds one group, or one "
                "unit.",
                [Fault(pointer="/inputs/strata", message="use coarser strata or smaller units")],
            )
        return design

    @property
    def items(self) -> int:
        return len(self.labels)

    @property
    def sizes(self) -> Codes:
        """Rows of each item, (u,)."""
        return np.diff(self.starts)

    @property
    def labellings(self) -> float:
        """Number of distinct labellings, the observed one included; inf above 10^15."""
        logarithm, factors = 0.0, []
        for low, high in zip(self.strata[:-1], self.strata[1:], strict=True):
            counts = np.bincount(self.labels[low:high])
            logarithm += math.lgamma(high - low + 1) - sum(math.lgamma(c + 1) for c in counts)
            factors.append([int(c) for c in counts if c])
            if logarithm > math.log(COUNTABLE):
                return math.inf
        total = 1
        for counts_of_stratum in factors:
            total *= _multinomial(counts_of_stratum)
        return float(total)

    @property
    def renamings(self) -> int:
        """
        Labellings that differ from one only in the names of groups; the same number for each.

        Groups may change names where they hold as many items in every stratum.
        """
        parts = len(self.strata) - 1
        stratum = np.repeat(np.arange(parts), np.diff(self.strata))
        cells, held = np.unique(self.labels * parts + stratum, return_counts=True)
        group, where = np.divmod(cells, parts)
        ends = np.flatnonzero(np.diff(group)) + 1
        alike = Counter(cell.tobytes() for cell in np.split(np.stack([where, held], axis=1), ends))
        return math.prod(map(math.factorial, alike.values()))

    def arrangements(self, key: NDArray[np.uint64], first: int, count: int) -> Items:
        """Random arrangements number first .. first + count - 1, (count, u)."""
        out = np.empty((count, self.items), dtype=np.uint32)
        arrange(self.places, self.strata, key, first, out)
        return out

    def all_arrangements(self, batch: int) -> Iterator[Items]:
        """Every distinct labelling once, `batch` at a time."""
        labels = np.concatenate(
            [
                np.sort(self.labels[low:high])
                for low, high in zip(self.strata[:-1], self.strata[1:], strict=True)
            ]
        )
        left = int(self.labellings)
        while left > 0:
            out = np.empty((min(batch, left), self.items), dtype=np.uint32)
            enumerate_arrangements(labels, self.strata, self.groups, out)
            left -= len(out)
            yield out

    def rows_of_groups(self, arrangements: Items) -> NDArray[np.float64]:
        """Rows each group holds under each arrangement, (p, g)."""
        sizes = self.sizes.astype(np.float64)
        if (sizes == sizes[0]).all():
            fixed = sizes[0] * np.diff(self.groups)
            return np.broadcast_to(fixed, (len(arrangements), len(fixed)))
        return np.asarray(np.add.reduceat(sizes[arrangements], self.groups[:-1], axis=1))


def _refuse_split(what: str, unit: Codes, codes: Codes) -> None:
    pairs = np.unique(np.stack([unit, codes]), axis=1)[0]
    values, times = np.unique(pairs, return_counts=True)
    if (split := values[times > 1]).size:
        rows = [str(int(np.flatnonzero(unit == u)[0])) for u in split[:10]]
        raise InvalidRequest(
            f"{split.size} units lie in more than one {what}.",
            [
                Fault(
                    pointer="/inputs/units",
                    message=f"a unit belongs to one {what}; rows shown are the first of each",
                    count=int(split.size),
                    rows=rows,
                )
            ],
        )


def _multinomial(counts: list[int]) -> int:
    total = math.factorial(sum(counts))
    for count in counts:
        total //= math.factorial(count)
    return total
