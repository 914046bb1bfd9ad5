"""How much more data would probably decide a rule that is open."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from service.check import Drawn, Estimate, PValue
from service.gate.rule import Region
from service.numerics.changes import METHOD as CHANGE
from service.numerics.paired import MOST_PAIRS, pairs_for_effect
from service.numerics.power import (
    groups_for_band,
    groups_for_rule,
    trials_for_share,
    units_without_spread,
)
from service.numerics.resampling import (
    FEWEST_UNITS,
    Interval,
    clopper_pearson,
    t_quantile,
)
from service.references import Model
from service.results import Undefined

MOST_NEEDED = 100
"""Above this many times the units there are, no useful number can be named."""
SHARE = "jackknife_t+clopper_pearson"
PAIRED = "student_t"
TWO_SAMPLES = "two_sample_jackknife_t"
COUNTING_UNITS = ("jackknife_t", TWO_SAMPLES, "fisher_z", PAIRED, SHARE, CHANGE)
"""Methods whose `resamples` are the units there are, and whose error falls with their root."""


class Needed(Model):
    """How much data would probably decide: 80 % power, if the truth equals the estimate."""

    unit: Literal["groups", "rows", "units", "seeds", "permutations"]
    count: int
    drawn: Drawn | None = Field(default=None, exclude_if=lambda drawn: drawn is None)
    """Which of them, where the interval rests on some of all."""

    def of(self, drawn: Drawn | None) -> Needed:
        """The same of what is drawn; permutations are of nothing."""
        return self if self.unit == "permutations" else self.model_copy(update={"drawn": drawn})

    def __str__(self) -> str:
        return f"{self.count:,} {f'{self.drawn} ' if self.drawn else ''}{self.unit}"


def needed_for_interval(missing: Undefined) -> Needed | None:
    """What it takes to have an interval at all, where there are too few units for one."""
    for unit in ("groups", "rows", "units"):
        if missing.code == f"too_few_{unit}":
            return Needed(unit=unit, count=FEWEST_UNITS)
    return None


def needed_to_decide(
    value: Estimate, interval: Interval, region: Region, limits: tuple[float | None, float | None]
) -> Needed | None:
    """
    Units, or permutations, in all; None at the threshold, or where the method gives no error.

    Parameters
    ----------
    value, interval : at the level that the rule would be decided at
    region : values that satisfy the rule
    limits : smallest and largest value the measure can have
    """
    estimate = value.estimate
    if estimate is None or (value.interval is not None and estimate == region.nearest(estimate)):
        return None
    if isinstance(value, PValue):
        return _permutations(value, interval, region)
    if not says_how_many(value, interval):
        return None
    most = interval.attainable
    estimate, interval = estimate / most, interval.scaled(1 / most)
    region = Region(region.low / most, region.high / most)
    units, alpha = interval.resamples, (1 - interval.level) / 2
    ends = _ends_to_clear(estimate, region)
    if spreadless(estimate, interval, limits):
        counts = [
            units_without_spread(estimate, limit, end, alpha)
            for end in ends
            if (limit := limits[end > estimate]) is not None
        ]
        each = units / _trials_of_no_change(interval) if interval.method == CHANGE else 1
        return _needed(interval, math.ceil(max(counts) * each), math.inf) if counts else None
    if interval.method == SHARE and limits == (0, 1):
        count = max(_share(estimate, end, interval, alpha) for end in ends)
    else:
        half = max(_reach(estimate, end, interval) for end in ends)
        error = half / t_quantile(1 - alpha, units - 1)
        below, above = _distances(estimate, ends)
        count = math.ceil(groups_for_band(units, error, below, above, alpha))
        if interval.method == PAIRED:
            count = max(count, _pairs(min(below, above) / (error * math.sqrt(units)), alpha))
    return _needed(interval, count, MOST_NEEDED)


def says_how_many(value: Estimate, interval: Interval) -> bool:
    """Whether more data narrow this interval in a way that is known."""
    return isinstance(value, PValue) or interval.method in COUNTING_UNITS


def spreadless(
    estimate: float, interval: Interval, limits: tuple[float | None, float | None]
) -> bool:
    """Whether all units gave the same value: no width, a share of none or of all, or no change."""
    if interval.method == CHANGE:
        shares = interval.scaled(1 / interval.attainable)
        return estimate == 0 and _trials_of_no_change(shares) > 0
    if interval.method == SHARE:
        return estimate / interval.attainable in (0, 1) and limits == (0, 1)
    return _no_width(estimate, interval) and not cut_at_limit(estimate, interval, limits)


def _trials_of_no_change(interval: Interval) -> int:
    """
    The trials without a change whose exact interval this is; 0 where it is none.

    As many as units, or fewer where they are of classes: as many as the class of the fewest allows.
    """
    if not 0 < interval.high == -interval.low < 1:
        return 0
    trials = math.log((1 - interval.level) / 2) / math.log1p(-interval.high)
    whole = round(trials)
    exact = math.isclose(trials, whole, rel_tol=1e-9)
    return whole if exact and 0 < whole <= interval.resamples else 0


def cut_at_limit(
    estimate: float, interval: Interval, limits: tuple[float | None, float | None]
) -> bool:
    """Whether both ends lie where the measure ends: those of two samples are cut there."""
    return interval.method == TWO_SAMPLES and estimate in limits and _no_width(estimate, interval)


def _no_width(estimate: float, interval: Interval) -> bool:
    return interval.high - interval.low <= 1e-12 * max(1.0, abs(estimate))


def _pairs(effect: float, alpha: float) -> int:
    """Pairs by the noncentral t: few seeds take more than normal quantiles say."""
    return pairs_for_effect(effect, 2 * alpha) or MOST_PAIRS


def _permutations(value: PValue, interval: Interval, region: Region) -> Needed | None:
    share, threshold = value.exceedances / value.permutations, region.high
    alpha = (1 - interval.level) / 2
    if share == threshold or not 0 < threshold < 1:
        return None
    count = trials_for_share(share, threshold, alpha)
    return _needed(interval, count, math.inf if share == 0 else MOST_NEEDED)


def _share(estimate: float, end: float, interval: Interval, alpha: float) -> int:
    """
    Units until both intervals of the envelope are past the end.

    More where its jackknife was wider than that of as many units that are 0 or 1.
    """
    if not 0 <= end <= 1:
        return 0
    error, distance = math.sqrt(estimate * (1 - estimate)), abs(estimate - end)
    exact = clopper_pearson(estimate * interval.resamples, interval.resamples, interval.level)
    units = interval.resamples
    jackknife = t_quantile(1 - alpha, units - 1) * error / math.sqrt(units - 1)
    binomial = max(abs(exact[end > estimate] - estimate), jackknife)
    wider = max(1.0, _reach(estimate, end, interval) / binomial)
    trials = max(trials_for_share(estimate, end, alpha), groups_for_rule(1, error, distance, alpha))
    return math.ceil(wider**2 * trials)


def _ends_to_clear(estimate: float, region: Region) -> list[float]:
    """From inside, every end there is; from outside, the one in between."""
    if estimate not in region:
        return [region.nearest(estimate)]
    return [end for end in (region.low, region.high) if math.isfinite(end)]


def _distances(estimate: float, ends: list[float]) -> tuple[float, float]:
    below = [estimate - end for end in ends if end < estimate]
    above = [end - estimate for end in ends if end > estimate]
    return (below or [math.inf])[0], (above or [math.inf])[0]


def _reach(estimate: float, end: float, interval: Interval) -> float:
    """From the estimate to the bound of its interval that lies towards this end."""
    return interval.high - estimate if end > estimate else estimate - interval.low


def _needed(interval: Interval, count: int, most: float) -> Needed | None:
    if count > most * interval.resamples:
        return None
    return Needed.model_validate(
        {"unit": f"{interval.unit}s", "count": max(count, interval.resamples + 1)}
    )
