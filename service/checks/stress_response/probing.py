"""A linear probe fitted on damaged train rows and tried on damaged rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.check import Context, Shapes, Undefined
from service.checks.stress_response.declared import StressResponseInputs, StressResponseParams
from service.dataset import Labels
from service.errors import Fault, MissingLabels
from service.numerics.probe import fit, most_codes
from service.numerics.rows import Rows
from service.numerics.seen import seen

NO_LABELS = Undefined(code="no_labels", message="No labels were given.")
NO_TRAIN_LABELS = Undefined(
    code="no_train_labels", message="The train rows have no labels: give `train_labels`."
)
TOO_MANY = Undefined(
    code="too_many_labels", message="So many labels of train rows do not fit in memory at once."
)
ONE_LABEL = Undefined(code="one_label", message="All train rows have the same label.")
NO_CLASS = Undefined(code="too_few_rows", message="No label has `min_support` rows.")
NOT_LEARNT = Undefined(
    code="too_few_rows", message="No label of `min_support` rows has a train row."
)


def refuse(
    columns: Mapping[str, Labels], shapes: Shapes, params: StressResponseParams, seed: int
) -> None:
    """Raise where there is something to learn and nothing to give it to."""
    if "train_labels" in columns and "labels" not in columns:
        raise _unlabelled()


def _unlabelled() -> MissingLabels:
    return MissingLabels(
        "`train_labels` are given without `labels`.",
        [Fault(pointer="/inputs/labels", message="give the label of each row to be probed")],
    )


def shared_rows(context: Context, inputs: StressResponseInputs) -> int:
    """Rows that are equal to a train row; warns where there are any."""
    rows = inputs.vectors
    shared = int(seen(rows.vectors, inputs.train.vectors, context.threads).sum())
    if shared:
        context.warn(
            "tested_on_train_rows",
            f"{shared} of {rows.n} rows are equal to a train row: what the probe recovers of them may "
            "have been learnt by heart. Leave them out of `train`, or of `vectors`.",
            "results/shared_rows",
        )
    return shared


@dataclass(frozen=True)
class Tried:
    """
    What a probe said of the rows.

    Attributes
    ----------
    right : (n,) bool
    train_accuracy : float
    n_iter : int
    converged : bool
    """

    right: NDArray[np.bool_]
    train_accuracy: float
    n_iter: int
    converged: bool


@dataclass(frozen=True)
class Wanted:
    """
    The labels a probe learns, and those it should give.

    Attributes
    ----------
    train : (m,) codes
    rows : (n,) the same codes; -1 where no train row has the label
    """

    train: NDArray[np.int64]
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, inputs: StressResponseInputs) -> Wanted | Undefined:
        """The labels, or why there is nothing to learn."""
        if inputs.labels is None:
            if inputs.train_labels is not None:
                raise _unlabelled()
            return NO_LABELS
        if inputs.train_labels is None:
            return NO_TRAIN_LABELS
        if len(inputs.train_labels.levels) < 2:
            return ONE_LABEL
        if len(inputs.train_labels.levels) > most_codes(*inputs.train.vectors.shape):
            return TOO_MANY
        known = {(type(x), x): code for code, x in enumerate(inputs.train_labels.levels)}
        codes = np.array([known.get((type(x), x), -1) for x in inputs.labels.levels], np.int64)
        return cls(inputs.train_labels.dense, codes[inputs.labels.dense])

    def majority(self) -> float:
        """Share of the rows with the label most train rows have."""
        return float(np.mean(self.rows == np.argmax(np.bincount(self.train))))

    def tried(self, train: Rows, rows: Rows, params: StressResponseParams) -> Tried:
        """Fit on train rows, ask of the others."""
        fitted = fit(train, self.train, rows, params.probe_c)
        return Tried(
            fitted.predicted == self.rows, fitted.train_accuracy, fitted.n_iter, fitted.converged
        )
