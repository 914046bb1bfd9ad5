"""What a linear probe recovers of rows with fewer dimensions or bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.check import Estimate, Shapes, Undefined, estimate_of, mean_of_means
from service.checks.compression.declared import (
    CompressionInputs,
    CompressionParams,
    Probe,
    ProbeChange,
)
from service.dataset import Labels
from service.errors import Fault, InvalidRequest, MissingLabels
from service.numerics.coded import Coded
from service.numerics.probe import Fitted, Solver, fit, most_codes
from service.numerics.resampling import Unit
from service.numerics.rows import Floats

Codes = NDArray[np.int64]
MOST_ROWS = 50_000
NO_TRAIN_LABELS = Undefined(code="no_train_labels", message="No labels of train rows were given.")
ONE_LABEL = Undefined(code="one_label", message="All train rows have the same label.")
NO_CLASS = Undefined(
    code="too_few_rows", message="No label has `min_support` rows and a train row."
)


def refuse(
    columns: Mapping[str, Labels], shapes: Shapes, params: CompressionParams, seed: int
) -> None:
    """Raise where train labels cannot be probed."""
    if (trained := columns.get("train_labels")) is None:
        return
    if "labels" not in columns:
        raise MissingLabels(
            "`train_labels` are given without `labels`.",
            [Fault(pointer="/inputs/labels", message="give the label of each row to be probed")],
        )
    for role in ("train", "rows"):
        if shapes[role][0] > MOST_ROWS:
            raise InvalidRequest(
                f"A probe takes at most {MOST_ROWS} rows on each side.",
                [Fault(pointer="/inputs/train_labels", message="leave them out, or send a sample")],
            )
    most = most_codes(*shapes["train"])
    if len(trained.levels) > most:
        raise InvalidRequest(
            f"{len(trained.levels)} labels are too many to fit at once.",
            [Fault(pointer="/inputs/train_labels", message=f"use at most {most} labels")],
        )


@dataclass(frozen=True)
class Probed:
    """A fitted probe, and which rows it is right about."""

    fitted: Fitted
    right: Floats


@dataclass(frozen=True)
class Probing:
    """
    What is probed, the same for every variant.

    Attributes
    ----------
    train_codes, codes : (t,) and (n,) labels of train rows and of rows, by the same numbers
    counted : (n,) bool, rows whose label has enough rows and a train row
    of_row : (n,) unit of each row
    """

    params: CompressionParams
    train_codes: Codes
    codes: Codes
    counted: NDArray[np.bool_]
    of_row: Codes
    unit: Unit

    @classmethod
    def of(cls, inputs: CompressionInputs, params: CompressionParams) -> Probing | Undefined:
        """What there is to probe, or why there is nothing."""
        if inputs.labels is None or inputs.train_labels is None:
            return NO_TRAIN_LABELS
        if len(inputs.train_labels.levels) < 2:
            return ONE_LABEL
        places: dict[tuple[type, object], int] = {}
        train_codes, codes = (
            np.array([places.setdefault((type(v), v), len(places)) for v in column.levels])[
                column.codes
            ]
            for column in (inputs.train_labels, inputs.labels)
        )
        trained, support = (np.bincount(c, minlength=len(places)) for c in (train_codes, codes))
        enough = (trained > 0) & (support >= params.min_support)
        groups = inputs.groups
        return cls(
            params,
            train_codes,
            codes,
            enough[codes],
            np.arange(len(codes)) if groups is None else groups.dense,
            "row" if groups is None else "group",
        )

    @property
    def absent(self) -> int:
        """Rows whose label no train row has."""
        return int(np.count_nonzero(~np.isin(self.codes, self.train_codes)))

    @property
    def solver(self) -> Solver:
        return Solver(self.params.probe_tol, self.params.probe_max_iter)

    def fitted(self, train: Coded, rows: Coded) -> Probed:
        """A probe of unit train rows, and what it says of unit rows."""
        found = fit(
            train.points(slice(None)),
            self.train_codes,
            rows.points(slice(None)),
            self.params.probe_c,
            self.solver,
            reuse=True,
        )
        return Probed(found, (found.predicted == self.codes).astype(np.float64))

    def read(self, probed: Probed) -> Probe:
        return Probe(
            accuracy=self._accuracy(probed.right, "share"),
            balanced_accuracy=self._balanced(probed.right, "share"),
            train_accuracy=probed.fitted.train_accuracy,
            n_iter=probed.fitted.n_iter,
            converged=probed.fitted.converged,
        )

    def change(self, before: Probed, after: Probed) -> ProbeChange:
        moved = after.right - before.right
        return ProbeChange(
            accuracy=self._accuracy(moved, "change"),
            balanced_accuracy=self._balanced(moved, "change"),
        )

    def _accuracy(self, values: Floats, kind: Literal["share", "change"]) -> Estimate:
        one = np.zeros(len(values), np.int64)
        return mean_of_means(values, one, self.of_row, self.params, self.unit, kind)

    def _balanced(self, values: Floats, kind: Literal["share", "change"]) -> Estimate:
        if not self.counted.any():
            return estimate_of(NO_CLASS, np.empty(0), self.params, self.unit)
        of = self.counted
        return mean_of_means(
            values[of], self.codes[of], self.of_row[of], self.params, self.unit, kind
        )
