"""A rule: which values of a measure are accepted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from service.check import Measure
from service.references import Model

COMPARISONS = ("at_least", "at_most", "within", "not_worse_by", "unchanged_within")
PAIRED = ("not_worse_by", "unchanged_within")
"""Comparisons of a difference between two models."""


@dataclass(frozen=True)
class Region:
    """The values that satisfy a rule: everything from `low` to `high`, both included."""

    low: float = -math.inf
    high: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def holds(self, low: float, high: float) -> bool:
        """Whether all of an interval satisfies the rule."""
        return low in self and high in self

    def misses(self, low: float, high: float) -> bool:
        """Whether none of it does."""
        return high < self.low or low > self.high

    def nearest(self, value: float) -> float:
        """The end of the region that is nearest to a value."""
        return min((self.low, self.high), key=lambda end: abs(end - value))

    @property
    def threshold(self) -> float | tuple[float, float]:
        """Its one end, or both."""
        if math.isinf(self.high):
            return self.low
        return self.high if math.isinf(self.low) else (self.low, self.high)


def _bound(**limits: Any) -> Any:
    return Field(default=None, exclude_if=lambda value: value is None, **limits)


class Rule(Model):
    """What a measure must satisfy. Exactly one of the comparisons."""

    measure: str
    """`<check>.<key>.<key>...`: where the measure stands in that check's results."""
    at_least: float | None = _bound()
    at_most: float | None = _bound()
    within: tuple[float, float] | None = _bound()
    """`[low, high]`."""
    not_worse_by: Annotated[float, Field(ge=0)] | None = _bound()
    """Of a difference: by how much the first model may be worse than the second at most."""
    unchanged_within: Annotated[float, Field(gt=0)] | None = _bound()
    """Of a difference: how far from 0 it may be at most, either way."""
    level: Literal["block", "warn"] = "block"
    """Rules at `warn` are shown and never decide."""

    @model_validator(mode="after")
    def _one_comparison(self) -> Self:
        given = [name for name in COMPARISONS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of {', '.join(f'`{name}`' for name in COMPARISONS)}"
            )
        if self.within is not None and self.within[0] > self.within[1]:
            raise ValueError("`within` is [low, high], the lower value first")
        return self

    @property
    def comparison(self) -> str:
        """Which one it has."""
        return next(name for name in COMPARISONS if getattr(self, name) is not None)

    @property
    def blocks(self) -> bool:
        return self.level == "block"

    def region(self, better: Literal["higher", "lower"] | None) -> Region:
        """The values it accepts, of a measure with this direction."""
        if self.within is not None:
            return Region(*self.within)
        if self.unchanged_within is not None:
            return Region(-self.unchanged_within, self.unchanged_within)
        if self.not_worse_by is not None:
            worst = self.not_worse_by
            return Region(low=-worst) if better == "higher" else Region(high=worst)
        if self.at_least is not None:
            return Region(low=self.at_least)
        return Region(high=self.at_most if self.at_most is not None else math.inf)

    def fault(self, measure: Measure) -> str | None:
        """Why a measure cannot have this rule."""
        if measure.is_p_value and self.comparison != "at_most":
            return "a p-value can only have an `at_most` rule: a large one shows nothing"
        if self.comparison in PAIRED and not measure.path.startswith("differences."):
            return (
                f"`{self.comparison}` compares two models: name a measure under `differences.`, or "
                "use `at_least`, `at_most` or `within`"
            )
        if self.comparison == "not_worse_by" and measure.better is None:
            return (
                f"neither direction of `{measure.path.rpartition('.')[2]}` is better: use "
                "`unchanged_within`"
            )
        return None

    def idle(self, measure: Measure) -> str | None:
        """Why this rule decides nothing: every value the measure can have satisfies it, or none."""
        low = -math.inf if measure.low is None else measure.low
        high = math.inf if measure.high is None else measure.high
        region = self.region(measure.better)
        if region.holds(low, high):
            end = "fail"
        elif region.misses(low, high) or (measure.is_p_value and region.high <= 0):
            end = "pass"
        else:
            return None
        name = measure.path.rpartition(".")[2]
        return f"values of `{name}` are {_range(low, high)}: this rule cannot {end}"

    def caution(self, measure: Measure) -> str | None:
        """What its author may not have meant: a bound on the side where values are better."""
        against = {"at_most": "higher", "at_least": "lower"}.get(self.comparison)
        if against is None or measure.better != against or measure.path.startswith("differences."):
            return None
        return (
            f"`{self.comparison}` refuses good values: {against} values of `{self.measure}` are "
            "better"
        )


def _range(low: float, high: float) -> str:
    """`0..1`, or the one end there is."""
    if math.isinf(high):
        return f"{low:g} or more"
    return f"{high:g} or less" if math.isinf(low) else f"{low:g}..{high:g}"
