"""Inputs, parameters and results of stress response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from service.check import (
    Curves,
    Estimate,
    Inputs,
    Params,
    Results,
    ResultsAtK,
    Shown,
    labels,
    measure,
    named,
    vectors,
)
from service.dataset import Dataset, Labels
from service.numerics.damages import Damage
from service.numerics.probe import LARGEST_C, SMALLEST_C

Direction = Literal["unchanged", "rising", "falling", "mixed"]
DECIMALS = 4
PROBED = ("labels", "train_labels")
SCALED: tuple[Literal["uniform_scale"]] = ("uniform_scale",)


def _of_a_damage(severity: object) -> object:
    if severity == 0 and not isinstance(severity, bool):
        raise ValueError("severity 0 is the rows as given, and always under `native`: leave it out")
    return severity


Severity = Annotated[float, Field(gt=0, lt=1), BeforeValidator(_of_a_damage)]


class StressResponseInputs(Inputs):
    train: Dataset = vectors(rows="train", least=2)
    """Rows that every damage is fitted on: their mean, length, deviation and directions."""
    vectors: Dataset = vectors(rows="rows", least=2, more_than="k")
    """Rows that are damaged and measured; each searches the others."""
    groups: Labels | None = labels(of="vectors", least=2)
    """Which rows belong together (source document, user): the unit of every interval."""
    train_labels: Labels | None = labels(of="train")
    """A label of each train row: what a linear probe learns, on train rows with the same damage."""
    labels: Labels | None = labels(of="vectors")
    """A label of each row: what neighbours are wanted to share, and a probe to give."""


class StressResponseParams(Params):
    damages: list[Damage] | None = Field(default=None, min_length=1, max_length=5)
    """What is done to the rows; all there is by default."""
    severities: list[Severity] = Field(
        default=[0.25, 0.5, 0.75, 0.9, 0.99], min_length=1, max_length=8
    )
    """How much of it, with up to four decimals; the rows as given, severity 0, are always measured."""
    k: int = Field(default=10, ge=1, le=256)
    """Neighbours of each row, by cosine."""
    min_support: int = Field(default=10, ge=1)
    """Rows a label needs to count where every label counts the same."""
    probe_c: float = Field(default=1.0, ge=SMALLEST_C, le=LARGEST_C)
    """Inverse strength of the probe's penalty: one for all conditions, chosen by no search."""

    @model_validator(mode="after")
    def _few_decimals(self) -> Self:
        for severity in self.severities:
            if round(severity, DECIMALS) != severity:
                raise ValueError(f"severity {severity!r} has more than {DECIMALS} decimals")
        return self

    @property
    def conditions(self) -> dict[str, tuple[Damage, float]]:
        """Damage and severity by name, each damage by rising severity."""
        return {
            named_condition(damage, severity): (damage, severity)
            for damage in dict.fromkeys(self.damages or get_args(Damage))
            for severity in sorted(set(self.severities))
        }

    def names(self) -> dict[str, list[str]]:
        return {"k": [str(self.k)], "condition": list(self.conditions)}


def named_condition(damage: Damage, severity: float) -> str:
    """`noise_25` for a quarter, `noise_99_9` for .999."""
    return f"{damage}_{100 * severity:.10g}".replace(".", "_")


class Instruments(ResultsAtK):
    """What the instruments read on one state of the rows."""

    dispersion_v: Estimate = measure(low=0, high=1, invariance=SCALED)
    """Mean squared distance of the unit rows to their mean; 0 if all point one way."""
    mean_resultant_length: Estimate = measure(low=0, high=1, invariance=SCALED)
    """Length of the mean of the unit rows; 1 if all point one way."""
    anisotropy: Estimate = measure(low=-1, high=1, invariance=SCALED)
    """Mean cosine between different rows: the floor of every raw cosine."""
    anisotropy_sd: float | None = measure(low=0, high=1, invariance=SCALED)
    """Standard deviation of that cosine over all pairs; 0 where below rounding."""
    total_variance: Estimate = measure(low=0)
    """Trace of the covariance of the raw rows, ddof 1."""
    norm_median: float | None = measure(low=0)
    """Median length of the raw rows."""
    norm_cv: float | None = measure(low=0, invariance=SCALED)
    """Standard deviation (ddof 0) over mean of the lengths."""
    largest_over_mean: float | None = measure(low=1, invariance=SCALED)
    """Largest variance of one coordinate over the mean variance."""
    participation_ratio: float | None = measure(unit="dimensions", low=1, invariance=SCALED)
    """Directions in use by the centred covariance spectrum."""
    stable_rank: float | None = measure(unit="dimensions", low=1, invariance=SCALED)
    """Squared Frobenius over squared spectral norm of the raw rows."""
    rankme: float | None = measure(unit="dimensions", low=1, invariance=SCALED)
    """RankMe of the uncentred raw rows, as published."""
    rankme_centred: float | None = measure(unit="dimensions", low=1, invariance=SCALED)
    """RankMe of the rows minus their mean."""
    dimensions_90: int | None = measure(unit="dimensions", low=1, invariance=SCALED)
    """Principal directions that carry 90 % of the variance."""
    label_precision: dict[int, Estimate] = measure(
        low=0, high=1, better="higher", invariance=SCALED, needs=("labels",)
    )
    """Share of neighbours with the row's label, mean over rows."""
    label_precision_macro: dict[int, Estimate] = measure(
        low=0, high=1, better="higher", invariance=SCALED, needs=("labels",)
    )
    """The same, mean over labels of enough rows."""
    probe_accuracy: Estimate = measure(low=0, high=1, better="higher", needs=PROBED)
    """Share of the rows whose label a linear probe gives that was fitted on train rows."""
    probe_balanced_accuracy: Estimate = measure(low=0, high=1, better="higher", needs=PROBED)
    """The same, mean over labels of enough rows that have a train row."""
    probe_train_accuracy: float | None = measure(low=0, high=1, needs=PROBED)
    """Share of the train rows whose label the probe gives."""
    probe_iterations: int | None
    """Iterations of its optimiser."""
    probe_converged: bool | None
    """Whether the optimiser ended where the loss is flat: on a slope of 1e-8 or, where a step lowers it
    by less than 64 eps, of 1e-6."""
    unresolved: int | None = measure(unit="rows", low=0, better="lower")
    """Rows whose last neighbour and the next row score the same within rounding: ties."""


class Condition(Instruments):
    """The rows after one damage of one severity."""

    damage: Damage
    """What was done."""
    severity: float
    """How much of it."""
    zero_rows: int | None = measure(unit="rows", low=0, better="lower")
    """Rows of which nothing is left: they have no direction, and no cosine can be read."""
    overlap: dict[int, Estimate] = measure(low=0, high=1, better="higher", invariance=SCALED)
    """Share of a row's neighbours as given that are still its neighbours, mean over rows."""
    changed: Estimate = measure(low=0, high=1, better="lower", invariance=SCALED)
    """Share of rows whose set of neighbours changed."""
    label_precision_change: dict[int, Estimate] = measure(
        low=-1, high=1, better="higher", invariance=SCALED, needs=("labels",)
    )
    """Label precision minus that of the rows as given."""
    probe_accuracy_change: Estimate = measure(low=-1, high=1, better="higher", needs=PROBED)
    """Accuracy of the probe minus that of the rows as given."""


class Response(Results):
    """How one instrument follows one damage, from the rows as given to the largest severity."""

    damage: Damage
    instrument: str
    direction: Direction
    """Whether it moves one way; steps within 1e-9 of the largest value are none."""
    native: float
    """Its value on the rows as given."""
    furthest: float
    """Its value that lies furthest from that."""
    at: float
    """The severity of that value; 0 where none differs."""
    relative: float | None
    """Furthest over native, minus 1; null where native is 0 beside it."""


def severity_curves(
    name: str,
    question: str,
    key: str,
    *,
    native: bool = True,
    axis: str = "",
    lines: Mapping[str, str] | None = None,
) -> Curves:
    """An instrument along the severity, a curve for each damage."""
    return Curves(
        name,
        question,
        (Shown(f"conditions.{{damage,severity}}.{key}"),),
        along="severity",
        axis=axis,
        colours="damage",
        lines=lines or {},
        start=f"native.{key}" if native else 1.0,
    )


class StressResponse(Results):
    n: int
    """Rows."""
    d: int
    """Dimensions."""
    k: int
    """Neighbours of each row."""
    train_rows: int
    """Rows that the damages were fitted on."""
    shared_rows: int | None = measure(
        unit="rows", low=0, better="lower", needs=PROBED, default=None
    )
    """Rows that are equal to a train row: the probe may have learnt their labels by heart."""
    overlap_chance: float
    """Overlap of sets that are drawn at random: k / (n - 1)."""
    label_floor: float | None = measure(low=0, high=1, needs=("labels",))
    """Label precision of random neighbours: sum n_c (n_c - 1) / (n (n - 1)) over labels c."""
    label_floor_macro: float | None = measure(low=0, high=1, needs=("labels",))
    """The same, mean over labels of enough rows."""
    probe_floor: float | None = measure(low=0, high=1, needs=PROBED)
    """Accuracy of giving every row the commonest label of the train rows."""
    probe_floor_balanced: float | None = measure(low=0, high=1, needs=PROBED)
    """The most that a guess that does not look at the rows can reach in balanced accuracy: 1 / labels
    that count."""
    classes: int | None
    """Labels with enough rows to count where every label counts the same."""
    probe_classes: int | None
    """Those of them that have a train row."""
    native: Instruments
    """The rows as given: severity 0 of every damage."""
    conditions: dict[str, Condition] = named("condition")
    """By name: `contraction_25`, `noise_99`, `noise_99_9`."""
    responses: list[Response]
    """Every instrument under every damage."""

    charts = (
        severity_curves(
            "overlap",
            "How many neighbours survive a damage?",
            "overlap@{k}",
            native=False,
            lines={"random neighbours": "overlap_chance"},
        ),
        severity_curves(
            "labels",
            "How long do neighbours share a label?",
            "label_precision@{k}",
            lines={"random neighbours": "label_floor"},
        ),
        severity_curves(
            "probe",
            "How long does a linear probe recover labels?",
            "probe_accuracy",
            lines={"commonest label": "probe_floor"},
        ),
        severity_curves(
            "anisotropy",
            "How does the mean cosine answer a damage?",
            "anisotropy",
            axis="mean cosine",
        ),
        severity_curves(
            "directions",
            "How many directions stay in use under a damage?",
            "participation_ratio",
        ),
    )

    def readings(self) -> list[str]:
        lines = []
        for damage in dict.fromkeys(found.damage for found in self.conditions.values()):
            found = {r.instrument: r for r in self.responses if r.damage == damage}
            series = [c for c in self.conditions.values() if c.damage == damage]
            lines += self._readings(damage, found, series)
        return lines

    def _readings(
        self, damage: Damage, found: dict[str, Response], series: list[Condition]
    ) -> list[str]:
        last = series[-1]
        if last.norm_median is None:
            why = last.undefined["norm_median"].message
            return [f"`{damage}` at {last.severity:g} cannot be measured: {why}"]
        told = [
            f"{name} {found[key].native:.4g} to {value:.4g}"
            for name, key in SPOKEN
            if key in found and (value := instrument_value(last, key, self.k)) is not None
        ]
        lines = [
            f"`{damage}` from 0 to {last.severity:g}: {', '.join(told)}; variance and RankMe are of "
            "the raw rows, the participation ratio of the centred rows."
        ]
        overlap, precision = last.overlap[self.k], last.label_precision[self.k]
        if overlap.estimate is not None:
            line = (
                f"`{damage}` at {last.severity:g} leaves {overlap:.4f} of the {self.k} neighbours "
                f"(1 is all, {self.overlap_chance:.4f} is chance)"
            )
            if precision.estimate is not None:
                native = self.native.label_precision[self.k]
                line += (
                    f" and a label precision of {precision:.4f} against {native:.4f} as given "
                    f"(random neighbours {self.label_floor:.4f})"
                )
            if last.unresolved:
                line += f"; {last.unresolved} rows have a tie at place {self.k}"
            lines.append(f"{line}.")
        probed = last.probe_accuracy
        if probed.estimate is not None:
            line = (
                f"`{damage}` at {last.severity:g} lets a probe fitted on train rows with the same "
                f"damage give {probed:.4f} of the labels against {self.native.probe_accuracy:.4f} as "
                f"given (the commonest label {self.probe_floor:.4f})"
            )
            if self.probe_floor_balanced is not None:
                line += (
                    f"; balanced over {self.probe_classes} labels "
                    f"{last.probe_balanced_accuracy:.4f} "
                    f"(a blind guess at most {self.probe_floor_balanced:.4f})"
                )
            lines.append(f"{line}.")
        still = [name for name, one in found.items() if one.direction == "unchanged"]
        if still:
            lines.append(f"`{damage}` leaves unchanged: {', '.join(still)}.")
        return lines


SPOKEN = (
    ("total variance", "total_variance"),
    ("mean cosine", "anisotropy"),
    ("participation ratio", "participation_ratio"),
    ("RankMe", "rankme"),
)


def instrument_value(found: Instruments, key: str, k: int) -> float | None:
    """The number of an instrument, whatever its shape."""
    value = getattr(found, key)
    if isinstance(value, dict):
        value = value[k]
    if isinstance(value, Estimate):
        return value.estimate
    return None if value is None else float(value)
