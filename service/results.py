"""What a check answers with: numbers that carry their uncertainty, or the reason why there is none."""

from __future__ import annotations

from typing import (
    Any,
    Literal,
    cast,
)

import numpy as np
from pydantic import Field

from service.numerics.resampling import FEWEST_UNITS, Interval, Unit, jackknife_t, share_interval
from service.numerics.rows import Floats
from service.references import Model


class Undefined(Model):
    """Why a value is null."""

    code: str
    """Stable, for programs."""
    message: str
    """One sentence, for people."""


class Results(Model):
    """Typed results. A value that is undefined is null and says why under `undefined`."""

    undefined: dict[str, Undefined] = Field(
        default_factory=dict, exclude_if=lambda reasons: not reasons
    )
    """Reasons for the nulls of this object; absent when nothing is null."""

    @classmethod
    def build(cls, **values: object) -> Any:
        """Make results; an `Undefined` in place of a value becomes null with that reason."""
        reasons = {key: value for key, value in values.items() if isinstance(value, Undefined)}
        return cls.model_validate(
            {**values, **dict.fromkeys(reasons), "undefined": reasons} if reasons else values
        )

    def readings(self) -> list[str]:
        """One sentence for each thing worth reading, with what gives the number its meaning."""
        return []


class Estimate(Results):
    """An estimate with its uncertainty."""

    def __neg__(self) -> Estimate:
        """The estimate of the difference taken the other way round."""
        if self.estimate is None:
            return self
        turned = None
        if self.interval is not None:
            ends = {"low": -self.interval.high, "high": -self.interval.low}
            turned = self.interval.model_copy(update=ends)
        return self.model_copy(update={"estimate": -self.estimate, "interval": turned})

    estimate: float | None
    """The value on the rows given."""
    interval: Interval | None
    """Where the value of the population may lie, or null with a reason."""

    def __format__(self, spec: str) -> str:
        if self.estimate is None:
            return "undefined"
        text = format(self.estimate, spec)
        if self.interval is None:
            return text
        return f"{text} [{self.interval.low:{spec}}, {self.interval.high:{spec}}]"


class PValue(Estimate):
    """A permutation p-value; its interval is the Monte Carlo error, and null when it is exact."""

    exceedances: int
    """Arrangements at least as extreme as the data."""
    permutations: int
    """Arrangements looked at."""
    exact: bool
    """Whether those were all there are."""
    p_min: float
    """The smallest value there could have been."""


class Params(Model):
    """Parameters every check understands."""

    level: float = Field(default=0.95, ge=0.5, lt=1)
    """Coverage of every interval, two-sided."""
    on_bad_rows: Literal["error", "drop"] = "error"
    """Refuse non-finite rows, zero rows and missing labels, or drop and count them."""
    align_by_ids: bool = False
    """Match paired inputs by equal ids in any order, not by position."""
    census: bool = False
    """The rows are the whole population: no intervals."""


def estimate_of(
    value: float | Undefined,
    deleted: Floats,
    params: Params,
    unit: Unit,
    share: float | None = None,
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
        interval = share_interval(value, deleted, share, params.level, unit)
    else:
        interval = jackknife_t(value, deleted, params.level, unit)
    return cast(Estimate, Estimate.build(estimate=value, interval=interval))
