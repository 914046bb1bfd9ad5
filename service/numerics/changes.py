"""Paired changes of shares: intervals from what was gained and lost, and a test that agrees."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from service.numerics.class_means import Codes, class_means
from service.numerics.moments import Units
from service.numerics.resampling import Interval, Unit, jackknife_bias, jackknife_se, jackknife_t
from service.numerics.rows import Floats

METHOD = "jackknife_t+mover"
LEAST_P, MOST_P = 1e-300, 1 - 1e-6
HALVINGS = 60
Mean = Callable[[Floats], tuple[float, Floats]]
"""A mean of values by row, and what it is without each unit."""


@dataclass(frozen=True)
class Side:
    """
    What was gained, or lost.

    Attributes
    ----------
    value : mean of the part of each change that is above 0, in [0, 1]
    deleted : (G,) without each unit
    varied : units that tell how much it varies: the fewer of those with some and those without all
    """

    value: float
    deleted: Floats
    varied: int

    def trials(self, tail: float, least: float, most: float) -> float:
        """
        How many rows that are 0 or 1, each independent of the others, vary as much.

        Fewer where few units tell so, by the ratio of quantiles of Korn and Graubard.
        """
        if self.varied < 2:
            return least
        variance = jackknife_se(self.deleted) ** 2
        ratio = special.ndtri(tail) / special.stdtrit(self.varied - 1, tail)
        binomial = float(self.value * (1 - self.value) * ratio**2)
        return min(max(binomial / variance, least), most) if variance > 0 else most

    def ends(self, tail: float, trials: float) -> tuple[float, float]:
        """Exact interval of a share of so many trials (Clopper-Pearson)."""
        some, others = self.value * trials, max(trials - self.value * trials, 0.0)
        low = float(special.betaincinv(some, others + 1, tail)) if some > 0 else 0.0
        high = float(special.betainccinv(some + 1, others, tail)) if others > 0 else 1.0
        return low, high


@dataclass(frozen=True)
class PairedChange:
    """
    A mean difference of two shares, row by row of the same rows.

    Its interval is the outer envelope of two. Jackknife-t knows how units vary, and has no width where
    none changes. MOVER joins the exact intervals of gains and of losses as independent errors join,
    their correlation included; each counts as many trials as its variance over units is worth, and
    where it does not tell, no more than there are units.

    Attributes
    ----------
    value : float in [-1, 1]
    deleted : (G,) without each unit
    gains, losses : Side
        `value` is their difference.
    least, most : float
        Trials that the units count for, and that the rows do, at the weight of the heaviest.

    References
    ----------
    Zou & Donner, "Construction of confidence limits about effect measures: a general approach",
    Statist. Med. 27, 2008, doi:10.1002/sim.3095; Newcombe, "Improved confidence intervals for the
    difference between binomial proportions based on paired data", Statist. Med. 17, 1998; Korn &
    Graubard, "Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data", Survey Methodology 24, 1998.
    """

    value: float
    deleted: Floats
    gains: Side
    losses: Side
    least: float
    most: float

    def interval(self, level: float, unit: Unit) -> Interval:
        jackknife = jackknife_t(self.value, self.deleted, level, unit)
        low, high = self._joined((1 - level) / 2)
        return jackknife.model_copy(
            update={
                "low": max(-1.0, min(jackknife.low, low)),
                "high": min(1.0, max(jackknife.high, high)),
                "method": METHOD,
            }
        )

    def p(self) -> float:
        """Two-sided p of no change: 1 - level of the widest interval that leaves 0 out."""
        student = self._student()
        least = max(student, LEAST_P)
        if least < MOST_P and self._excludes(least):
            return student
        if not self._excludes(MOST_P):
            return 1.0
        low, high = math.log(least), math.log(MOST_P)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._excludes(math.exp(middle)) else (middle, high)
        return math.exp(high)

    def _student(self) -> float:
        """The p of the jackknife-t interval."""
        corrected = self.value - jackknife_bias(self.value, self.deleted)
        if self.value * corrected <= 0:
            return 1.0
        error = jackknife_se(self.deleted)
        if error == 0:
            return 0.0
        nearest = min(abs(self.value), abs(corrected))
        return float(2 * special.stdtr(len(self.deleted) - 1, -nearest / error))

    def _excludes(self, alpha: float) -> bool:
        low, high = self._joined(alpha / 2)
        return low > 0 or high < 0

    def _joined(self, tail: float) -> tuple[float, float]:
        gained, lost = (
            side.ends(tail, side.trials(tail, self.least, self.most))
            for side in (self.gains, self.losses)
        )
        low = _together(self.gains.value - gained[0], lost[1] - self.losses.value, self.correlation)
        high = _together(
            gained[1] - self.gains.value, self.losses.value - lost[0], self.correlation
        )
        return self.value - low, self.value + high

    @property
    def correlation(self) -> float:
        """Of gains with losses, over units left out; 0 where either does not vary."""
        sides = []
        for side in (self.gains, self.losses):
            apart = side.deleted - side.deleted.mean()
            largest = float(np.abs(apart).max())
            if largest == 0:
                return 0.0
            sides.append(apart / largest)
        one, other = sides
        joint = float(one @ other) / math.sqrt(float(one @ one) * float(other @ other))
        return min(max(joint, -1.0), 1.0)


def _together(one: float, other: float, correlation: float) -> float:
    return math.sqrt(max(one * one + other * other - 2 * correlation * one * other, 0.0))


def change_of_classes(values: Floats, codes: Codes, of_row: Codes) -> PairedChange:
    """
    Of a mean over classes of the mean change of their rows; see `class_means`.

    Parameters
    ----------
    values : (m,) in [-1, 1], m >= 1
    codes, of_row : (m,) class and unit of each row
    """
    _, owner = np.unique(of_row, return_inverse=True)
    found = class_means(values, codes, of_row)

    def mean(some: Floats) -> tuple[float, Floats]:
        part = class_means(some, codes, of_row)
        return part.value, part.deleted

    def count(marked: Floats) -> int:
        return int(np.count_nonzero(np.bincount(owner, weights=marked)))

    return _of(values, mean, count, found.trials, found.rows)


def change_of_rows(values: Floats, units: Units) -> PairedChange:
    """
    Of a mean over rows.

    Parameters
    ----------
    values : (n,) in [-1, 1], NaN where a row has none, not everywhere; a unit of such rows is none
    units : Units
    """
    known = np.isfinite(values)
    counts = units.sums(known.astype(np.float64))
    some = counts > 0
    rows = float(counts.sum())

    def mean(part: Floats) -> tuple[float, Floats]:
        sums = units.sums(np.where(known, part, 0.0))[some]
        with np.errstate(divide="ignore", invalid="ignore"):
            deleted = (sums.sum() - sums) / (rows - counts[some])
        return float(sums.sum() / rows), deleted

    return _of(values, mean, _counting(units), float(np.count_nonzero(some)), rows)


def change_of_units(values: Floats, units: Units) -> PairedChange:
    """
    Of a mean over units of the means of their rows.

    Parameters
    ----------
    values, units : as for `change_of_rows`
    """
    known = np.isfinite(values)
    counts = units.sums(known.astype(np.float64))
    some = counts > 0

    def mean(part: Floats) -> tuple[float, Floats]:
        own = units.sums(np.where(known, part, 0.0))[some] / counts[some]
        deleted = (own.sum() - own) / (len(own) - 1) if len(own) > 1 else np.full(1, np.nan)
        return float(own.mean()), deleted

    least = float(np.count_nonzero(some))
    return _of(values, mean, _counting(units), least, least * float(counts[some].min()))


def _counting(units: Units) -> Callable[[Floats], int]:
    return lambda marked: int(np.count_nonzero(units.sums(marked)))


def _of(
    values: Floats, mean: Mean, count: Callable[[Floats], int], least: float, most: float
) -> PairedChange:
    def side(part: Floats) -> Side:
        value, deleted = mean(part)
        varied = min(count((part > 0).astype(np.float64)), count((part < 1).astype(np.float64)))
        return Side(min(value, 1.0), deleted, varied)

    return PairedChange(
        *mean(values),
        gains=side(np.maximum(values, 0.0)),
        losses=side(np.maximum(-values, 0.0)),
        least=least,
        most=most,
    )
