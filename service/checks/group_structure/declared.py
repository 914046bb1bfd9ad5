"""What `group_structure` takes and returns."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.check import (
    Dots,
    Estimate,
    Inputs,
    Params,
    PValue,
    Results,
    Shown,
    Undefined,
    labels,
    measure,
    models,
    optional,
)
from service.dataset import Dataset, Labels
from service.numerics.resampling import (
    Interval,
)
from service.references import Label

PAIRED = ("r2", "icc1", "within_share", "v", "w_bar")
TESTED = ("r2", "icc1", "within_share")
ZERO_TOTAL = Undefined(code="zero_total", message="All rows are equal: there is no variation.")
CENSUS = Undefined(code="census", message="The rows are the whole population.")
ZERO_WITHIN = Undefined(
    code="zero_within", message="Rows of a group are equal: nothing varies inside groups."
)


class GroupStructureInputs(Inputs):
    models: dict[str, Dataset] = models(rows="rows", least=3, directed="normalise")
    """One to eight models over the same rows."""
    groups: Labels = labels(of="models", least=2, default=...)
    """What rows belong to: intent, topic, source question."""
    strata: Labels | None = labels(of="models")
    """Labels are exchanged within strata only (domain, language)."""
    units: Labels | None = labels(of="models")
    """Rows that are exchanged together (document, user), each in one group and one stratum."""
    levels: Labels | None = labels(of="models")
    """Dose of each row: numbers in order, or other labels in order of first appearance."""
    response: Labels | None = labels(of="models", numeric=True)
    """A number or 0/1 per row (score, correct or not): gets its own R2 and ICC."""


class GroupStructureParams(Params):
    permutations: int = Field(default=999, ge=19, le=99_999)
    """Random arrangements; all distinct ones are enumerated when there are no more."""
    bootstrap: int = Field(default=2000, ge=0, le=50_000)
    """Cluster-bootstrap resamples; 0 for none."""
    normalise: bool = True
    """Use unit rows; false uses rows as given."""
    dispersion_test: bool = True
    """Test whether groups differ in spread."""
    resample: Literal["groups", "units"] = "groups"
    """What intervals leave out: groups, or units where the groups are a fixed list."""
    listed_groups: int = Field(default=200, ge=0, le=10_000)
    """How many groups to list, largest dispersion first."""


class BcaIntervals(Results):
    """Bootstrap intervals beside the jackknife's."""

    r2: Interval | None
    """Of R2."""
    icc1: Interval | None
    """Of ICC(1)."""
    within_share: Interval | None
    """Of SS within over SS total."""


class DispersionTest(Results):
    """Whether groups differ in their distances to their own centre."""

    f: float | None = measure(low=0, invariance=("similarity",))
    """F of distances to group means, corrected by sqrt(n_g/(n_g-1)), groups of two rows or more."""
    p: PValue = measure(low=0, high=1, invariance=("similarity",), needs=("dispersion_test",))
    """Exchanging residual vectors and recomputing centres."""
    f_spatial_median: float | None = measure(low=0, invariance=("similarity",))
    """The same F on uncorrected distances to spatial medians; descriptive."""
    excluded_singletons: int
    """Groups of one row, left out."""


class GroupRow(Results):
    """One group."""

    label: Label
    n: int
    w: float
    """Mean squared distance of its rows to their mean."""
    w_tilde: float | None
    """n/(n-1) times that."""


class Correlation(Results):
    """Whether spread groups are those that do worse."""

    spearman: Estimate = measure(low=-1, high=1, invariance=("similarity",))
    """Rank correlation of W~_g with the group's mean response."""
    groups: int
    """Groups correlated."""
    groups_needed: int | None
    """Groups that would show a correlation of this size with 80 % power."""


class DoseLevel(Results):
    """Dispersion at one level."""

    level: Label
    cells: int
    """Groups with rows at this level."""
    w_tilde: float | None
    """SS within cells over sum (n - 1)."""
    w_tilde_mean: float | None
    """Plain mean of size-corrected cell dispersions."""
    from_first: float | None
    """Mean squared distance of cell means to their group's mean at the first level."""
    step: Estimate
    """Paired change from the level before, simultaneous interval."""


class OrderedTrend(Results):
    """Page's ordered-trend test."""

    statistic: float
    z: float
    p: float
    blocks: int
    """Groups with all levels."""


class DoseResponse(Results):
    levels: list[DoseLevel]
    ordered_trend: OrderedTrend | None
    """One-sided, for an increase along the levels."""
    monotone: bool | None
    """Whether the interval of every adjacent difference lies above 0."""


class ModelStructure(Results):
    ss_total: float
    """Sum of squared distances to the grand mean."""
    ss_within: float
    """Sum of squared distances to group means."""
    ss_between: float
    r2: Estimate = measure(low=0, high=1, invariance=("similarity",))
    """Share of the variation that lies between groups."""
    r2_expected: float | None = measure(low=0, high=1, invariance=("similarity",))
    """Its mean over the permutation scheme: what no group effect gives."""
    r2_adjusted: float | None = measure(high=1, better="higher", invariance=("similarity",))
    """(R2 - expected) / (1 - expected)."""
    pseudo_f: float | None = measure(low=0, invariance=("similarity",))
    """PERMANOVA's F."""
    pseudo_f_expected: float | None = measure(low=0, invariance=("similarity",))
    """F at the expected R2; 1 only without strata."""
    p: PValue = measure(low=0, high=1, invariance=("similarity",))
    """Permutation p of F."""
    pseudo_f2: float | None = measure(low=0, invariance=("similarity",))
    """F2, for groups of unequal dispersion and size."""
    p_f2: PValue = measure(low=0, high=1, invariance=("similarity",))
    """Permutation p of F2."""
    icc1: Estimate = measure(low=-1, high=1, better="higher", invariance=("similarity",))
    """ICC(1) on traces; may be negative."""
    within_share: Estimate = measure(low=0, high=1, better="lower", invariance=("similarity",))
    """SS within over SS total."""
    v: Estimate = measure(low=0, invariance=("isometry",))
    """SS total / n."""
    w_bar: Estimate = measure(low=0, invariance=("isometry",))
    """SS within / n."""
    w_tilde_mean: float | None = measure(low=0, invariance=("isometry",))
    """Plain mean of size-corrected group dispersions W~_g."""
    bca: BcaIntervals
    dispersion: DispersionTest
    groups: list[GroupRow]
    """Groups by falling W~."""
    performance: Correlation | None = optional(needs=("response",))
    dose: DoseResponse | None


class PairedTest(Results):
    """Paired test of one difference, and its interval among all pairs."""

    p: float | None = measure(unit="p", low=0, high=1, invariance=("similarity",))
    """Two-sided t test on the jackknife standard error."""
    p_holm: float | None = measure(unit="p", low=0, high=1, invariance=("similarity",))
    """Adjusted over all pairs of models (Holm)."""
    simultaneous: Interval | None
    """Covers the differences of all pairs at once (max |t|)."""


class Difference(Results):
    """Later minus earlier model, the same groups left out of both."""

    r2: Estimate = measure(low=-1, high=1, better="higher", invariance=("similarity",))
    """Change of R2."""
    icc1: Estimate = measure(low=-2, high=2, better="higher", invariance=("similarity",))
    """Change of ICC(1)."""
    within_share: Estimate = measure(low=-1, high=1, better="lower", invariance=("similarity",))
    """Change of SS within over SS total."""
    v: Estimate = measure(invariance=("isometry",))
    """Change of SS total / n; depends on the scale of each model."""
    w_bar: Estimate = measure(invariance=("isometry",))
    """Change of SS within / n; depends on the scale of each model."""
    r2_test: PairedTest
    icc1_test: PairedTest
    within_share_test: PairedTest
    scale_dependent: list[str]
    """Differences that a change of scale alone would make."""


class ResponseStructure(Results):
    """The same decomposition of the response; not subtractable from that of vectors."""

    r2: float | None
    icc1: float | None
    """An ANOVA ICC; of a 0/1 response it is not a latent-scale ICC."""


class GroupStructure(Results):
    n: int
    """Rows."""
    groups: int
    singletons: int
    """Groups of one row."""
    labellings: float | None
    """Distinct labellings of the design; null above 10^15."""
    models: dict[str, ModelStructure]
    differences: dict[str, dict[str, Difference]]
    response: ResponseStructure | None

    charts = (
        Dots(
            "variation",
            "How much of the variation lies between groups?",
            (
                Shown(
                    "models.{model}.r2",
                    "R2",
                    {"mean of permuted labels": "models.{model}.r2_expected"},
                ),
            ),
        ),
        Dots(
            "likeness",
            "How alike are rows of one group, and how much varies inside?",
            (Shown("models.{model}.icc1", "ICC(1)"), Shown("models.{model}.within_share")),
            axis="share of the variation",
            colours="model",
        ),
        Dots(
            "p_values",
            "Are groups apart by more than exchanged labels are?",
            (
                Shown("models.{model}.p", "p of F"),
                Shown("models.{model}.p_f2", "p of F2"),
                Shown("models.{model}.dispersion.p", "p of spread"),
            ),
            axis="permutation p (square-root scale)",
            colours="model",
            lines={".05": 0.05},
            scale="sqrt",
        ),
        Dots(
            "groups",
            "Which groups are spread most?",
            (Shown("models.{model}.groups.{label}.w_tilde"),),
            axis="W~, mean squared distance inside a group",
            colours="model",
        ),
        Dots(
            "differences",
            "Do models differ in structure?",
            tuple(Shown(f"differences.{{later}}.{{earlier}}.{name}") for name in TESTED),
            axis="later minus earlier model",
            panels="measure",
            lines={"no difference": 0},
        ),
        Dots(
            "dose",
            "Does the spread inside groups rise from level to level?",
            (Shown("models.{model}.dose.levels.{level}.step", "step"),),
            axis="change of W~ from the level before",
            colours="model",
            lines={"no change": 0},
        ),
    )

    def readings(self) -> list[str]:
        lines = []
        for name, model in self.models.items():
            expected = (
                "" if model.r2_expected is None else f" where {model.r2_expected:.4f} is no effect"
            )
            p = "undefined" if model.p.estimate is None else f"{model.p.estimate:.4g}"
            lines.append(
                f"{name}: groups hold {model.r2:.4f} of the variation{expected}; permutation p {p} "
                f"(smallest possible {model.p.p_min:.2g}), null: labels are exchangeable under the "
                "design."
            )
            if model.dispersion.p.estimate is not None:
                lines.append(
                    f"{name}: groups differ in spread with F {model.dispersion.f:.2f}, p "
                    f"{model.dispersion.p.estimate:.4g}; with unequal spread read F2 (p "
                    f"{model.p_f2.estimate if model.p_f2.estimate is not None else 'undefined'})."
                )
        for later, others in self.differences.items():
            for earlier, pair in others.items():
                lines.append(
                    f"{later} - {earlier}: R2 changes by {pair.r2:+.4f}"
                    + (f", p {pair.r2_test.p:.3g}." if pair.r2_test.p is not None else ".")
                )
        return lines
