"""Matched pairs: a mean difference by Student's t, and how many pairs would show it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import special

from service.numerics.power import POWER
from service.numerics.resampling import t_quantile
from service.numerics.rows import Floats

FEWEST_PAIRS = 2
NO_SPREAD = 1e-12
"""Of the size of the values: differences that vary less do so by rounding."""
MOST_PAIRS = 2**20
NODES = 400


@dataclass(frozen=True)
class PairedT:
    """Differences of pairs; without spread there is no error, and nothing that rests on one."""

    mean: float
    sd: float
    """With n - 1; 0 where all differences are equal up to rounding."""
    pairs: int

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.sd / math.sqrt(self.pairs)

    @property
    def effect(self) -> float | None:
        """Mean in standard deviations of the differences (Cohen's d_z)."""
        return self.mean / self.sd if self.sd > 0 else None

    @property
    def p(self) -> float | None:
        """Two-sided p of the mean being 0."""
        if self.effect is None:
            return None
        t = abs(self.effect) * math.sqrt(self.pairs)
        return float(2 * special.stdtr(self.pairs - 1, -t))

    def interval(self, level: float) -> tuple[float, float] | None:
        """Of the mean."""
        if self.sd == 0:
            return None
        half = t_quantile((1 + level) / 2, self.pairs - 1) * self.error
        return self.mean - half, self.mean + half


def paired_t(a: Floats, b: Floats) -> PairedT:
    """
    Student's t of the differences a - b; sums are exact, so that no order of the pairs moves them.

    Parameters
    ----------
    a, b : (n,) float64, n >= 2, finite, their squares within range

    References
    ----------
    Student, "The probable error of a mean", Biometrika 6(1), 1908, doi:10.1093/biomet/6.1.1.
    """
    differences = a - b
    pairs = len(differences)
    mean = math.fsum(differences) / pairs
    apart = differences - mean
    largest = float(np.abs(apart).max())
    size = max(float(np.abs(a).max()), float(np.abs(b).max()))
    if largest <= NO_SPREAD * size:
        return PairedT(mean, 0.0, pairs)
    sd = largest * math.sqrt(math.fsum(np.square(apart / largest)) / (pairs - 1))
    return PairedT(mean, sd, pairs)


def power_of_pairs(pairs: int, effect: float, alpha: float) -> float:
    """
    Probability that so many pairs show an effect: both tails of the noncentral t.

    Written as the mean of normal tails over the distribution of the standard deviation, because
    scipy's noncentral t is NaN for effects that are large; within 1e-6.

    Parameters
    ----------
    pairs : int >= 2
    effect : float
        Mean over standard deviation of the differences.
    alpha : float
        Two-sided level.

    References
    ----------
    Cohen, "Statistical Power Analysis for the Behavioral Sciences", 2nd ed., 1988, section 2.3.
    """
    df, apart = pairs - 1, abs(effect) * math.sqrt(pairs)
    shares, weights = _quadrature()
    spread = np.sqrt(special.gammaincinv(df / 2, shares) * 2 / df)
    critical = t_quantile(1 - alpha / 2, df) * spread
    shown = special.ndtr(apart - critical) + special.ndtr(-apart - critical)
    return float(weights @ shown)


@cache
def _quadrature() -> tuple[Floats, Floats]:
    """Gauss-Legendre nodes and weights on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return (1 + nodes) / 2, weights / 2


def pairs_for_effect(effect: float, alpha: float, power: float = POWER) -> int | None:
    """The fewest pairs that show an effect with this power, .5 by 34; None above a million."""

    def enough(pairs: int) -> bool:
        return power_of_pairs(pairs, effect, alpha) >= power

    high = FEWEST_PAIRS
    while not enough(high):
        high *= 2
        if high > MOST_PAIRS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return max(high, FEWEST_PAIRS)


def effect_for_pairs(pairs: int, alpha: float, power: float = POWER) -> float:
    """The smallest effect that so many pairs show with this power."""
    low, high = 0.0, 1.0
    while power_of_pairs(pairs, high, alpha) < power:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (low, middle) if power_of_pairs(pairs, middle, alpha) >= power else (middle, high)
        )
    return high
