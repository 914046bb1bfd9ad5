"""Estimates with the intervals their units allow, or the reason why there are none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import (
    Literal,
    cast,
)

import numpy as np
from numpy.typing import NDArray

from service.numerics.changes import PairedChange, change_of_classes, change_of_rows
from service.numerics.class_means import class_means
from service.numerics.moments import Units
from service.numerics.permutation_test import PermutationTest
from service.numerics.resampling import (
    FEWEST_UNITS,
    Interval,
    Unit,
    clopper_pearson,
    jackknife_t,
    share_interval,
    two_sample_jackknife_t,
)
from service.numerics.rows import Floats
from service.results import Estimate, Params, PValue, Undefined


def p_value(test: PermutationTest | Undefined, level: float) -> PValue:
    if isinstance(test, Undefined):
        return PValue.build(  # type: ignore[no-any-return]
            estimate=test, interval=test, exceedances=0, permutations=0, exact=False, p_min=1.0
        )
    exact = Undefined(code="exact", message="All distinct labellings were looked at.")
    interval: Interval | Undefined = exact
    if test.low is not None and test.high is not None:
        interval = Interval(
            low=test.low,
            high=test.high,
            level=level,
            method="clopper_pearson",
            unit="permutation",
            resamples=test.permutations,
        )
    return PValue.build(  # type: ignore[no-any-return]
        estimate=test.p,
        interval=interval,
        exceedances=test.exceedances,
        permutations=test.permutations,
        exact=test.exact,
        p_min=test.p_min,
    )


def estimate_of(
    value: float | Undefined,
    deleted: Floats,
    params: Params,
    unit: Unit,
    share: float | None = None,
    trials: float | None = None,
    change: PairedChange | None = None,
) -> Estimate:
    """
    An estimate with the interval its leave-one-out values allow.

    Parameters
    ----------
    value : float or the reason why there is none
    deleted : (G,) the statistic without each unit; NaN where it is undefined
    params : for `level` and `census`
    unit : what `deleted` leaves out
    share : mean over units of each unit's share, where the value is a share in [0, 1]
    trials : of that, where units do not weigh the same; see `share_interval`
    change : where the value is a difference of two paired shares; see `change_of`
    """
    if isinstance(value, Undefined):
        return cast(Estimate, Estimate.build(estimate=value, interval=value))
    interval: Interval | Undefined
    if params.census:
        interval = Undefined(code="census", message="The rows are the whole population.")
    elif len(deleted) < FEWEST_UNITS:
        interval = Undefined(
            code=f"too_few_{unit}s",
            message=f"{len(deleted)} {unit}s; an interval needs at least {FEWEST_UNITS}.",
        )
    elif not np.isfinite(deleted).all():
        interval = Undefined(
            code="undefined_without_a_unit",
            message=f"The value is undefined when some {unit} is left out.",
        )
    elif share is not None:
        interval = share_interval(value, deleted, share, params.level, unit, trials)
    elif change is not None:
        interval = change.interval(params.level, unit)
    else:
        interval = jackknife_t(value, deleted, params.level, unit)
    return cast(Estimate, Estimate.build(estimate=value, interval=interval))


def change_of(change: PairedChange, params: Params, unit: Unit) -> Estimate:
    """A difference of two paired shares with its interval."""
    return estimate_of(change.value, change.deleted, params, unit, change=change)


def rescaled(estimate: Estimate, by: float) -> Estimate:
    """The estimate of a value that is so many times as large, by in (0, 1]."""
    if estimate.estimate is None:
        return estimate
    update: dict[str, object] = {"estimate": estimate.estimate * by}
    if estimate.interval is not None:
        update["interval"] = estimate.interval.scaled(by)
    return estimate.model_copy(update=update)


@dataclass(frozen=True)
class Scale:
    """
    A scale on which an interval is made.

    Parameters
    ----------
    at : the estimate on this scale; so are the values without each unit
    back : an increasing map to the scale of the report
    bias : how far the estimate lies above what it estimates; the low end is lowered by so much
    least : what the low end cannot be below
    """

    at: float
    back: Callable[[float], float]
    bias: float = 0.0
    least: float = -math.inf


def unpaired_estimate(
    value: float | Undefined,
    without: tuple[Floats, Floats],
    params: Params,
    unit: Unit,
    scale: Scale | None = None,
    trials: float | None = None,
) -> Estimate:
    """
    An estimate from two independent samples with the interval its leave-one-out values allow.

    Parameters
    ----------
    value : float or the reason why there is none
    without : the statistic without each unit of the one sample, and of the other
    params : for `level` and `census`
    unit : what is left out
    scale : where the interval is made, if that is not the scale of the report
    trials : of a probability that a member of one sample exceeds one of the other, the units of the
        smaller sample, as many of equal size as weigh the same: the interval is never narrower than
        the exact one of a share of so many, which bounds its variance (Birnbaum & Klose, Ann. Math.
        Statist. 28, 1957)
    """
    if isinstance(value, Undefined):
        return cast(Estimate, Estimate.build(estimate=value, interval=value))
    few = min(len(side) for side in without)
    interval: Interval | Undefined
    if params.census:
        interval = Undefined(code="census", message="The rows are the whole population.")
    elif few < FEWEST_UNITS:
        interval = Undefined(
            code=f"too_few_{unit}s",
            message=f"{few} {unit}s on one side; an interval needs at least {FEWEST_UNITS} on each.",
        )
    elif not all(np.isfinite(side).all() for side in without):
        interval = Undefined(
            code="undefined_without_a_unit",
            message=f"The value is undefined when some {unit} is left out.",
        )
    else:
        at = value if scale is None else scale.at
        interval = two_sample_jackknife_t(at, *without, params.level, unit)
        if scale is not None:
            low = max(scale.back(interval.low) - scale.bias, scale.least)
            high = scale.back(interval.high)
            ends = {"low": min(low, value), "high": max(high, value)}  # back and forth is rounding
            interval = interval.model_copy(update=ends)
        if trials is not None:
            interval = _no_narrower_than_exact(value, interval, trials)
        if not math.isfinite(interval.high - interval.low):
            interval = Undefined(code="unbounded", message="The interval has no finite end.")
    return cast(Estimate, Estimate.build(estimate=value, interval=interval))


def _no_narrower_than_exact(value: float, interval: Interval, trials: float) -> Interval:
    low, high = clopper_pearson(value * trials, trials, interval.level)
    return interval.model_copy(
        update={
            "low": max(0.0, min(interval.low, low)),
            "high": min(1.0, max(interval.high, high)),
            "method": "jackknife_t+clopper_pearson",
        }
    )


def mean_of(
    values: Floats, units: Units, params: Params, kind: Literal["share", "change"] = "share"
) -> Estimate:
    """
    The mean over rows with an interval over units, rows being fixed in what they are compared with.

    Parameters
    ----------
    values : (n,) of each row, NaN where it has none, not everywhere; a unit of such rows is none
    units : Units
    params : for `level` and `census`
    kind : "share" of values in [0, 1], or "change" of a difference of two such
    """
    if kind == "change":
        return change_of(change_of_rows(values, units), params, units.name)
    known = np.isfinite(values)
    counts = units.sums(known.astype(np.float64))
    sums = units.sums(np.where(known, values, 0.0))[counts > 0]
    counts = counts[counts > 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        deleted = (sums.sum() - sums) / (counts.sum() - counts)
    own = sums / counts
    value = float(sums.sum() / counts.sum())
    value, share = (min(max(number, 0.0), 1.0) for number in (value, float(own.mean())))
    return estimate_of(value, deleted, params, units.name, share=share)


def mean_of_means(
    values: Floats,
    codes: NDArray[np.int64],
    of_row: NDArray[np.int64],
    params: Params,
    unit: Unit,
    kind: Literal["share", "change"] = "share",
) -> Estimate:
    """
    Mean over classes of the mean value of their rows, with an interval over units; see `class_means`.

    Parameters
    ----------
    values : (m,) by row, m >= 1
    codes, of_row : (m,) class and unit of each row
    params : for `level` and `census`
    unit : what `of_row` numbers
    kind : "share" of values in [0, 1], or "change" of a difference of two such
    """
    if kind == "change":
        return change_of(change_of_classes(values, codes, of_row), params, unit)
    found = class_means(values, codes, of_row)
    share = min(float(found.weights @ found.cells), 1.0)
    return estimate_of(found.value, found.deleted, params, unit, share=share, trials=found.trials)
