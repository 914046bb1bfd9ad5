"""Inputs, parameters and results of the linear probe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from service.check import (
    Curves,
    Dots,
    Estimate,
    Inputs,
    Invariance,
    Params,
    Results,
    Shown,
    by_rounding,
    measure,
    models,
)
from service.check import labels as column
from service.dataset import Dataset, Labels
from service.numerics.probe import GRID, LARGEST_C, SMALLEST_C, Stop
from service.references import Label

SCALE: tuple[Invariance, ...] = ("uniform_scale",)
Strength = Annotated[float, Field(ge=SMALLEST_C, le=LARGEST_C)]
WARNINGS = {
    "tested_on_train_rows": "Test rows are equal to a train row.",
    "ids_on_both_sides": "Ids are of train rows and of `test` rows.",
    "labels_not_in_train": "Test rows have a label that no train row has.",
    "groups_on_both_sides": "Groups have train rows and test rows.",
    "groups_of_one_side": "Whether a group has rows on both sides is not known.",
    "not_converged": "The optimiser of a probe did not finish.",
    "tried_not_converged": "Some of the fits that chose C did not finish.",
    "c_at_edge": "The best C is at the edge of those tried.",
    "at_majority": "The probe recovers train rows no better than their commonest label would.",
}


class LinearProbeInputs(Inputs):
    models: dict[str, dict[str, Dataset]] = models(
        parts={
            "rows": "Rows to fit on and, where `test` is not given, to be tested by.",
            "test": "Rows to be tested by, where they are not among `rows`.",
        },
        spare=("test",),
        least=2,
        directed=False,
    )
    """Encoders to probe, each with its vectors of the same rows, and of the same test rows."""
    labels: Labels = column(of="models.rows", least=2, default=...)
    """What a classifier should recover."""
    test_labels: Labels | None = column(of="models.test", always=True)
    """The same of each `test` row, which needs it."""
    split: Labels | None = column(of="models.rows")
    """`train`, `validation` or `test` of each row: `validation` rows choose the penalty, and rows
    marked `test` are left out where `test` is given. Without it, rows are drawn by group."""
    groups: Labels | None = column(of="models.rows")
    """Which rows belong together (document, user): drawn to one side, and the unit of intervals."""
    test_groups: Labels | None = column(of="models.test")
    """The same of each `test` row."""


class LinearProbeParams(Params):
    c: Strength | None = None
    """Inverse strength of the penalty; left out, the best of `cs` on validation rows."""
    cs: list[Strength] = Field(default=list(GRID), min_length=1, max_length=20)
    """Inverse strengths to choose from; where there is one, it is taken as `c` is."""
    validation_share: float = Field(default=0.2, gt=0, lt=1)
    """Share of the groups (rows, without groups) of each label that choose the penalty."""
    test_share: float = Field(default=0.25, gt=0, lt=1)
    """Share of the groups of each label to be tested by, where no split is given."""
    min_support: int = Field(default=10, ge=1)
    """Test rows a label needs to count in balanced accuracy."""
    tol: float = Field(default=1e-8, ge=1e-15, le=1)
    """Largest slope of the mean loss that ends the fit; 1e-4 is scikit-learn's own, and stops early."""
    max_iter: int = Field(default=5000, ge=1, le=100_000)
    """Iterations after which a fit ends unfinished."""

    @field_validator("cs")
    @classmethod
    def _in_order(cls, cs: list[float]) -> list[float]:
        return sorted(set(cs))

    @property
    def strength(self) -> float | None:
        """The only strength there is; None where there is a choice."""
        return self.cs[0] if self.c is None and len(self.cs) == 1 else self.c


class LabelSupport(Results):
    """A label and how many rows have it."""

    label: Label
    train_rows: int
    """Train rows, those that choose the penalty among them."""
    test_rows: int
    """Test rows."""


class LabelRecall(Results):
    """A label and how often it is recovered."""

    label: Label
    support: int
    """Test rows that have it."""
    recall: float
    """Share of them that the probe gives it to."""


class TriedStrength(Results):
    """One strength of the penalty, fitted without the validation rows."""

    c: float
    """Inverse strength."""
    balanced_accuracy: float
    """Mean over labels of validation rows of the share of their rows that is right."""
    n_iter: int = by_rounding()
    """Iterations."""
    converged: bool
    """Whether it ended where the loss is flat."""


class ModelProbe(Results):
    """What a probe of one model recovers."""

    d: int
    """Dimensions."""
    accuracy: Estimate = measure(low=0, high=1, better="higher", invariance=SCALE, drawn="test")
    """Share of the test rows whose label the probe gives."""
    balanced_accuracy: Estimate = measure(
        low=0, high=1, better="higher", invariance=SCALE, drawn="test"
    )
    """Mean over the labels that count of the share of their test rows that is right."""
    train_accuracy: float = measure(low=0, high=1)
    """Share of the train rows whose label the probe gives."""
    c: float
    """Inverse strength of the penalty, as given or as chosen."""
    c_at_edge: bool
    """Whether it is the smallest or the largest there was to choose from."""
    n_iter: int = by_rounding()
    """Iterations of the final fit."""
    gradient: float = by_rounding()
    """Largest slope of its mean loss where it ended."""
    stop: Stop
    """Why it ended: the slope fell to `tol` (`gradient`), one step lowered the loss by less than 64 eps
    (`loss`), or iterations ran out."""
    converged: bool
    """Whether it ended where the loss is flat: by `gradient`, or by `loss` on a slope of 1e-6."""
    at_majority: bool
    """Whether it recovers train rows no better than giving all of them their commonest label."""
    constant_dimensions: int
    """Dimensions that do not vary over train rows, and tell nothing."""
    shared_rows: int | None = measure(unit="rows", low=0, better="lower", default=None)
    """Test rows that are equal to a train row: their labels may have been learnt by heart."""
    tried: list[TriedStrength]
    """Strengths there were to choose from; empty where there is nothing to choose."""
    recalls: list[LabelRecall]
    """The labels that count, lowest recall first."""


class PairedTest(Results):
    """Paired test of one difference."""

    p: float | None = measure(unit="p", low=0, high=1)
    """Two-sided: 1 - level of the widest interval, made as the one beside it, that leaves 0 out."""
    p_holm: float | None = measure(unit="p", low=0, high=1)
    """Adjusted over all pairs of models (Holm)."""


class ProbeTests(Results):
    """Paired tests of the differences."""

    accuracy: PairedTest
    balanced_accuracy: PairedTest


class ProbeDifference(Results):
    """Later minus earlier model, test row by test row."""

    accuracy: Estimate = measure(low=-1, high=1, better="higher", invariance=SCALE, drawn="test")
    """Difference of accuracy."""
    balanced_accuracy: Estimate = measure(
        low=-1, high=1, better="higher", invariance=SCALE, drawn="test"
    )
    """Difference of balanced accuracy."""
    tests: ProbeTests


class LinearProbe(Results):
    train_rows: int = measure(unit="rows", low=2)
    """Rows that the final classifiers are fitted on."""
    validation_rows: int
    """Those of them that choose the penalty; 0 where there is nothing to choose."""
    test_rows: int = measure(unit="rows", low=1)
    """Rows that are tested."""
    tested_on: Literal["test", "split", "drawn"]
    """Where they come from: rows of their own, rows marked in `split`, or drawn by group."""
    straddling_groups: int | None = measure(unit="groups", low=0, better="lower", needs=("groups",))
    """Groups with train rows and test rows: what they share may be what is recovered."""
    shared_ids: int | None = None
    """Ids that train rows and `test` rows both have."""
    counted: list[LabelSupport]
    """Labels in balanced accuracy: enough test rows and a train row, known before a fit."""
    excluded: list[LabelSupport]
    """Labels of too few test rows for it."""
    absent: list[LabelSupport]
    """Labels of test rows that no train row has: none of their rows can be right."""
    majority: float = measure(low=0, high=1)
    """Accuracy of giving each test row the commonest label of the train rows."""
    chance: float | None = measure(low=0, high=1)
    """The most that a guess that does not look at the rows can reach in balanced accuracy: one over the
    labels that count."""
    models: dict[str, ModelProbe]
    """One entry for each model."""
    differences: dict[str, dict[str, ProbeDifference]]
    """Paired differences, later minus earlier model."""

    charts = (
        Dots(
            "accuracy",
            "What share of rows does a linear classifier label correctly?",
            (
                Shown("models.{model}.accuracy", beside={"blind guess": "majority"}),
                Shown("models.{model}.balanced_accuracy", beside={"blind guess": "chance"}),
                Shown("models.{model}.train_accuracy"),
            ),
            colours="model",
        ),
        Dots(
            "labels",
            "Which labels are recovered least?",
            (Shown("models.{model}.recalls.{label}.recall"),),
            axis="share of test rows recovered, higher is better",
            colours="model",
        ),
        Curves(
            "penalty",
            "Which strength of the penalty suits validation rows?",
            (Shown("models.{model}.tried.{c}.balanced_accuracy", "balanced accuracy"),),
            along="c",
            axis="balanced accuracy",
            colours="model",
            scale="log",
            told="inverse strength C (log scale)",
            zero=False,
        ),
        Dots(
            "differences",
            "Does one model let more be recovered?",
            tuple(
                Shown(f"differences.{{later}}.{{earlier}}.{name}")
                for name in ("accuracy", "balanced_accuracy")
            ),
            axis="later minus earlier model",
            panels="measure",
            lines={"no difference": 0},
        ),
    )

    def readings(self) -> list[str]:
        lines = []
        for name, found in self.models.items():
            balanced = found.balanced_accuracy
            line = (
                f"`{name}`: a linear probe gives {found.accuracy:.4f} of {self.test_rows} test rows "
                f"their label; the commonest label alone gives {self.majority:.4f}"
            )
            if balanced.estimate is not None and self.chance is not None:
                line += (
                    f"; with each of {len(self.counted)} labels counted once {balanced:.4f}, where "
                    f"a blind guess reaches {self.chance:.4f} at most"
                )
            lines.append(f"{line}.")
            if found.recalls and found.recalls[0].recall < found.recalls[-1].recall:
                low = found.recalls[0]
                lines.append(
                    f"`{name}`: the label recovered least, {str(low.label)[:40]!r}, is given to "
                    f"{low.recall:.4f} of its {low.support} test rows."
                )
        for later, others in self.differences.items():
            for earlier, change in others.items():
                p = change.tests.balanced_accuracy.p
                shown = "" if p is None else f", p {p:.3g}"
                lines.append(
                    f"`{later}` minus `{earlier}`: balanced accuracy "
                    f"{change.balanced_accuracy:.4f}{shown}, paired by test row; an interval that "
                    "holds 0 does not show that they are equal."
                )
        return lines
