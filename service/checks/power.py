"""Power: how many groups, or permutations, a question needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from pydantic import Field, model_validator

from service.check import (
    Context,
    Dots,
    Inputs,
    Params,
    Results,
    Shapes,
    Shown,
    Undefined,
    check,
    measure,
)
from service.dataset import Labels
from service.errors import Fault, InvalidRequest
from service.measures import measures
from service.numerics.power import (
    correlation_for_groups,
    groups_for_correlation,
    groups_for_half_width,
    groups_for_perfect_share,
    groups_for_rule,
    permutations_for_p,
)

LARGEST = 10**12


class PowerInputs(Inputs):
    """No data: everything is in the parameters."""


class PowerParams(Params):
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """Two-sided level of a test; a gate's rule is one-sided at half of it."""
    power: float = Field(default=0.8, gt=0.5, lt=1)
    """Probability to show what is there."""
    correlation: float | None = Field(default=None, gt=-1, lt=1)
    """A correlation to show."""
    groups: int | None = Field(default=None, ge=4)
    """Groups there are."""
    standard_error: float | None = Field(default=None, gt=0)
    """Jackknife standard error with those groups."""
    half_width: float | None = Field(default=None, gt=0)
    """Half-width an interval should have."""
    p_resolution: float | None = Field(default=None, gt=0, lt=1)
    """Smallest p a permutation test should be able to give."""
    distance: float | None = Field(default=None, gt=0)
    """Between an estimate and the threshold of a gate rule."""
    perfect_share: float | None = Field(default=None, gt=0, lt=1)
    """Threshold of an `at_least` rule on a share, if every group is perfect."""

    @model_validator(mode="after")
    def _not_zero(self) -> PowerParams:
        if self.correlation == 0:
            raise ValueError("`correlation` of 0 cannot be shown with any number of groups")
        return self


class Power(Results):
    groups_for_correlation: int | None = measure(unit="groups", low=3, needs=("correlation",))
    """Groups that show `correlation` with this power."""
    correlation_for_groups: float | None = measure(low=0, high=1, needs=("groups",))
    """The correlation that `groups` show with this power."""
    groups_for_half_width: int | None = measure(
        unit="groups", low=2, needs=("groups", "standard_error", "half_width")
    )
    """Groups for an interval of `half_width`, from `groups` and `standard_error`."""
    permutations_for_p: int | None = measure(unit="permutations", low=1, needs=("p_resolution",))
    """Random permutations whose smallest p is `p_resolution`."""
    groups_for_rule: int | None = measure(
        unit="groups", low=1, needs=("groups", "standard_error", "distance")
    )
    """Groups that would decide a rule at `distance`, from `groups` and `standard_error`."""
    groups_for_perfect_share: int | None = measure(unit="groups", low=1, needs=("perfect_share",))
    """Groups a share needs to pass `perfect_share` even if all are perfect."""

    charts = (
        Dots(
            "groups",
            "How many groups does an answer need?",
            (
                Shown("groups_for_correlation", "for the correlation"),
                Shown("groups_for_half_width", "for the half-width"),
                Shown("groups_for_rule", "for the rule"),
                Shown("groups_for_perfect_share", "for a perfect share"),
            ),
            axis="groups",
        ),
        Dots(
            "correlation",
            "What correlation do the groups show?",
            (Shown("correlation_for_groups", "correlation shown"),),
            axis="correlation",
        ),
        Dots(
            "permutations",
            "How many permutations give so small a p?",
            (Shown("permutations_for_p", "permutations"),),
            axis="permutations",
        ),
    )

    def readings(self) -> list[str]:
        said = {
            "groups_for_correlation": "groups show that correlation.",
            "correlation_for_groups": "is the correlation that so many groups show.",
            "groups_for_half_width": "groups give an interval of that half-width.",
            "permutations_for_p": "permutations can give a p that small.",
            "groups_for_rule": "groups would decide the rule, if the truth equals the estimate.",
            "groups_for_perfect_share": "perfect groups are needed before the share can pass.",
        }
        values = {name: getattr(self, name) for name in said}
        return [
            f"{values[name]:.4g} {text}" for name, text in said.items() if values[name] is not None
        ]


def refuse_no_question(
    columns: Mapping[str, Labels], shapes: Shapes, params: PowerParams, seed: int
) -> None:
    """Raise where no answer has all that it needs."""
    questions = [one.needs for one in measures(Power)]
    if any(all(getattr(params, name) is not None for name in needs) for needs in questions):
        return
    told = "; ".join(" with ".join(f"`{name}`" for name in needs) for needs in questions)
    raise InvalidRequest(
        "Nothing is asked: `power` answers what its params ask.",
        [Fault(pointer="/params", message=f"give one of these or more: {told}")],
    )


@check(
    refuse=refuse_no_question,
    version=1,
    title="How many groups are needed",
    question="How many groups, or permutations, does an answer need?",
    scope=(
        "Numbers hold for the stated size of effect; the effect there is may be another.",
        "Standard errors are taken to fall with the root of the number of groups.",
    ),
    sources=("doi:10.1214/aos/1176345462", "doi:10.1093/biomet/26.4.404"),
)
def power(context: Context, inputs: PowerInputs, params: PowerParams) -> Power:
    """
    Groups for a correlation, an interval or a gate rule, and permutations for a p-value.

    Answers what its parameters ask; the rest is null. Instant.
    """
    refuse_no_question({}, {}, params, context.seed)

    def unless_missing(*needed: str) -> Undefined | None:
        missing = [name for name in needed if getattr(params, name) is None]
        if not missing:
            return None
        return Undefined(code="not_asked", message=f"Needs {', '.join(f'`{m}`' for m in missing)}.")

    groups, error = params.groups or 0, params.standard_error or 0.0
    level, share = params.level, params.alpha / 2
    found: dict[str, tuple[tuple[str, ...], Callable[[], float]]] = {
        "groups_for_correlation": (
            ("correlation",),
            lambda: groups_for_correlation(params.correlation or 0.0, params.alpha, params.power),
        ),
        "correlation_for_groups": (
            ("groups",),
            lambda: correlation_for_groups(groups, params.alpha, params.power),
        ),
        "groups_for_half_width": (
            ("groups", "standard_error", "half_width"),
            lambda: groups_for_half_width(groups, error, params.half_width or 0.0, level),
        ),
        "permutations_for_p": (
            ("p_resolution",),
            lambda: permutations_for_p(params.p_resolution or 1.0),
        ),
        "groups_for_rule": (
            ("groups", "standard_error", "distance"),
            lambda: groups_for_rule(groups, error, params.distance or 1.0, share, params.power),
        ),
        "groups_for_perfect_share": (
            ("perfect_share",),
            lambda: groups_for_perfect_share(params.perfect_share or 0.5, share),
        ),
    }
    answers: dict[str, float | Undefined] = {}
    for name, (needed, answer) in found.items():
        answers[name] = unless_missing(*needed) or _countable(answer)
    return Power.build(**answers)  # type: ignore[no-any-return]


def _countable(answer: Callable[[], float]) -> float | Undefined:
    try:
        value = answer()
    except (OverflowError, ZeroDivisionError):
        value = math.inf
    if value > LARGEST:
        return Undefined(code="too_large", message=f"More than {LARGEST}.")
    return value
