"""What `seed_contrasts` takes and returns."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator, model_validator

from service.check import (
    Dots,
    Estimate,
    Inputs,
    Params,
    Results,
    Shown,
    measure,
    named,
    table,
)
from service.dataset import Dataset
from service.redaction import KEPT
from service.references import Label, Model, ModelName

MOST_CONTRASTS = 50
MOST_METRICS = 20
KEY = r"^[A-Za-z0-9_@]{1,64}$"
MetricName = Annotated[str, Field(pattern=KEY), KEPT]
ColumnName = Annotated[str, Field(min_length=1, max_length=200), KEPT]


class Metric(Model):
    """A column of numbers."""

    column: ColumnName
    name: MetricName | None = None
    """The name its results go by; needed where the column's own has other signs than letters, digits,
    `_` and `@`."""

    @property
    def key(self) -> str:
        return self.name or self.column


def _named(value: Any) -> Any:
    """A column's name alone stands for the column."""
    return {"column": value} if isinstance(value, str) else value


class Contrast(Model):
    """A declared comparison: runs of condition `a` minus those of `b` with the same seed."""

    a: Label
    b: Label
    name: ModelName | None = None
    """The name its results go by; default `contrast_1`, `contrast_2`, ... in order."""

    @model_validator(mode="after")
    def _of_two(self) -> Contrast:
        if self.conditions[0] == self.conditions[1]:
            raise ValueError("a condition cannot be compared with itself")
        return self

    @property
    def conditions(self) -> tuple[tuple[type, Label], tuple[type, Label]]:
        """Both, each with its type: 1 and true are two conditions."""
        return (type(self.a), self.a), (type(self.b), self.b)


class SeedContrastsInputs(Inputs):
    runs: Dataset = table(least=4)
    """One row per training run: condition, seed, and a number per metric."""


class SeedContrastsParams(Params):
    contrasts: list[Contrast] = Field(default=[], max_length=MOST_CONTRASTS)
    """Comparisons, declared before the runs are looked at; at least one."""
    metrics: list[
        Annotated[Metric, BeforeValidator(_named, json_schema_input_type=Metric | ColumnName)]
    ] = Field(default=[], max_length=MOST_METRICS)
    """Columns to compare, by name or as `{"column", "name"}`; at least one."""
    condition: ColumnName = "condition"
    """The column that says what was changed."""
    seed: ColumnName = "seed"
    """The column that says which runs belong together."""

    @field_validator("metrics")
    @classmethod
    def _apart(cls, metrics: list[Metric]) -> list[Metric]:
        for metric in metrics:
            if metric.name is None and not re.match(KEY, metric.column):
                raise ValueError(
                    f"`{metric.column}` cannot be a key of results: give it a name, "
                    '{"column": ..., "name": "accuracy"}'
                )
        _refuse_repeated("metric", [metric.key for metric in metrics])
        return metrics

    @model_validator(mode="after")
    def _once(self) -> SeedContrastsParams:
        _refuse_repeated("contrast", self.names()["contrast"])
        pairs = [frozenset(contrast.conditions) for contrast in self.contrasts]
        if len(set(pairs)) < len(pairs):
            raise ValueError("two `contrasts` compare the same conditions")
        columns = [self.condition, self.seed, *(metric.column for metric in self.metrics)]
        _refuse_repeated("column", columns)
        return self

    def names(self) -> dict[str, list[str]]:
        return {
            "contrast": [
                contrast.name or f"contrast_{place}"
                for place, contrast in enumerate(self.contrasts, start=1)
            ],
            "metric": [metric.key for metric in self.metrics],
        }


def _refuse_repeated(what: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the {what} `{name}` is given twice")


class SeedDifference(Results):
    """One seed."""

    seed: Label
    a: float
    b: float
    difference: float


class PairedDifference(Results):
    """One metric under one contrast."""

    mean: Estimate = measure()
    """Mean difference a - b over seeds, with its Student-t interval."""
    sd: float = measure(low=0)
    """Standard deviation of the differences, with n - 1."""
    effect: float | None = measure(unit="sd")
    """Mean difference in standard deviations of the differences (Cohen's d_z)."""
    p: float | None = measure(unit="p", low=0, high=1)
    """Two-sided paired t test."""
    p_holm: float | None = measure(unit="p", low=0, high=1)
    """Adjusted over all contrasts and metrics of the request (Holm)."""
    seeds_needed: int | None = measure(unit="seeds", low=2)
    """Seeds that would show a difference of this size and spread with 80 % power."""
    differences: list[SeedDifference]
    """Seed by seed, in the order of their first rows."""


class ContrastResults(Results):
    """One contrast."""

    a: Label
    b: Label
    seeds: int = measure(unit="seeds", low=2)
    """Seeds both conditions were run with."""
    effect_shown: float = measure(unit="sd", low=0)
    """The smallest effect (d_z) that so many seeds show with 80 % power."""
    metrics: dict[str, PairedDifference] = named("metric")


class SeedContrasts(Results):
    runs: int
    """Rows compared."""
    unused: int
    """Rows of conditions that no contrast names."""
    family: int
    """Tests that `p_holm` accounts for: contrasts times metrics."""
    contrasts: dict[str, ContrastResults] = named("contrast")

    charts = (
        Dots(
            "differences",
            "Does a change of training move a metric by more than its seeds do?",
            (Shown("contrasts.{contrast}.metrics.{metric}.mean"),),
            axis="difference a - b",
            panels="metric",
            lines={"no difference": 0},
            each="contrasts.{contrast}.metrics.{metric}.differences.{seed}.difference",
        ),
        Dots(
            "seeds",
            "How many seeds would show differences of this size?",
            (
                Shown(
                    "contrasts.{contrast}.metrics.{metric}.seeds_needed",
                    beside={"seeds there are": "contrasts.{contrast}.seeds"},
                ),
            ),
            axis="seeds for 80 % power",
        ),
    )

    def readings(self) -> list[str]:
        lines = []
        for contrast in self.contrasts.values():
            for name, found in contrast.metrics.items():
                lines.append(self._reading(name, contrast, found))
        return lines

    def _reading(self, name: str, contrast: ContrastResults, found: PairedDifference) -> str:
        sides = f"{str(contrast.a)[:60]} - {str(contrast.b)[:60]}, {name}"
        told = f"{sides}: {found.mean:+.4g} over {contrast.seeds} seeds"
        if found.p is None or found.p_holm is None or found.effect is None:
            why = found.undefined["p"].message
            return f"{told}. No test: {why}"
        told += (
            f", sd {found.sd:.3g} (d_z {found.effect:+.2f}); p {found.p:.3g}, {found.p_holm:.3g} "
            f"by Holm over {self.family} tests"
        )
        if found.seeds_needed is None:
            return f"{told}. {found.undefined['seeds_needed'].message}"
        return (
            f"{told}. A difference of this size and spread, tested alone, takes {found.seeds_needed} "
            "seeds for 80 % power."
        )
