"""The p-value of a permutation test, and how exact it is."""

from __future__ import annotations

from dataclasses import dataclass

from service.numerics.resampling import clopper_pearson


@dataclass(frozen=True)
class PermutationTest:
    """
    A permutation p-value.

    Attributes
    ----------
    p : float
        (b + 1) / (B + 1) for B random arrangements, b / N for all N.
    low, high : float or None
        Clopper-Pearson interval of the Monte Carlo error; None when exact.
    exceedances, permutations : int
        b, and B or N.
    exact : bool
    p_min : float
        The smallest p there could have been: an exact test whose statistic does not know the names
        of groups reaches all `renamings` of an arrangement with it.
    above : int or None
        How many lie above the data by more than a tie, where they were counted.
    """

    p: float
    low: float | None
    high: float | None
    exceedances: int
    permutations: int
    exact: bool
    p_min: float
    above: int | None = None

    @classmethod
    def of(
        cls,
        exceedances: int,
        permutations: int,
        exact: bool,
        level: float,
        above: int | None = None,
        renamings: int = 1,
    ) -> PermutationTest:
        if exact:
            p, least = exceedances / permutations, renamings / permutations
            return cls(p, None, None, exceedances, permutations, True, least, above)
        low, high = clopper_pearson(exceedances, permutations, level)
        p = (exceedances + 1) / (permutations + 1)
        least = 1 / (permutations + 1)
        return cls(p, low, high, exceedances, permutations, False, least, above)
