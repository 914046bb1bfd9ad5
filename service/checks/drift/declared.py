"""Inputs, parameters and results of drift."""

from __future__ import annotations

from pydantic import Field

from service.check import (
    Dots,
    Estimate,
    Inputs,
    Invariance,
    Params,
    PValue,
    Results,
    Shown,
    labels,
    measure,
    vectors,
)
from service.dataset import Dataset, Labels

UNCHANGED: tuple[Invariance, ...] = ("uniform_scale", "isometry", "similarity")
"""Maps that leave alone what is read off distances relative to other distances."""

NO_DRIFT = "sampling alone"


class DriftInputs(Inputs):
    baseline: Dataset = vectors(rows="baseline", least=2, directed="normalise")
    """Rows that are known to be good."""
    batch: Dataset = vectors(rows="batch", least=2, directed="normalise")
    """Rows to compare with them, of the same number of dimensions; other items, so none is paired."""
    baseline_units: Labels | None = labels(of="baseline", least=2)
    """Which rows of the baseline belong together (document, user, session): they stay together."""
    batch_units: Labels | None = labels(of="batch", least=2)
    """The same for the batch; no unit may be in both."""


class DriftParams(Params):
    permutations: int = Field(default=999, ge=19, le=99_999)
    """Random arrangements; all distinct ones are enumerated when there are no more."""
    kernel_rows: int = Field(default=10_000, ge=10, le=100_000)
    """Rows of each side for MMD with a Gaussian kernel; of more, so many are drawn."""
    normalise: bool = True
    """Use unit rows; false uses rows as given. `scale_ratio` is always about rows as given."""


class DriftSide(Results):
    """One side by itself."""

    n: int
    """Rows."""
    units: int
    """Units of rows that are exchanged and left out; rows where none were named."""
    spread: float | None = measure(low=0, invariance=("isometry",))
    """Half the mean squared distance of rows of different units: without units the trace of the
    covariance."""
    mean_length: float = measure(low=0, invariance=("orthogonal",))
    """Mean length of rows as given."""
    repeated_rows: int | None = measure(unit="rows", low=0, better="lower", default=None)
    """Rows that equal an earlier row of the side, number by number; null in reports that did not count
    them."""


class Mmd(Results):
    """Maximum mean discrepancy, unbiased: 0 on average without drift, and often below 0 then."""

    gaussian: Estimate = measure(high=2, better="lower", invariance=UNCHANGED)
    """Squared, kernel exp(-d^2 / (2 s^2)), s^2 the median squared distance of pairs of the rows it is
    summed over."""
    gaussian_p: PValue = measure(low=0, high=1, invariance=UNCHANGED)
    """Its permutation p; s^2 is the same for every arrangement."""
    linear: Estimate = measure(better="lower", invariance=("isometry",))
    """Squared, linear kernel: the squared distance of the means without the bias of sampling."""
    linear_p: PValue = measure(low=0, high=1, invariance=UNCHANGED)
    """Its permutation p."""
    bandwidth2: float | None = measure(low=0, invariance=("isometry",))
    """s^2; of drawn rows where there are more than `kernel_rows` on a side."""
    bandwidth_pairs: int
    """Pairs of rows it is the median of."""
    bandwidth_exact: bool
    """Whether those are all pairs of these rows; otherwise they were drawn."""
    baseline_rows: int
    """Rows of the baseline the Gaussian kernel was summed over."""
    batch_rows: int
    """Rows of the batch it was summed over."""


class DomainClassifier(Results):
    """Whether a linear classifier tells the sides apart on rows it has not seen."""

    auc: Estimate = measure(low=0, high=1, better="lower", invariance=UNCHANGED, drawn="held-out")
    """How often a held-out row of the batch scores above one of the baseline, ties half: .5 is
    chance."""
    p: PValue = measure(low=0, high=1, invariance=UNCHANGED)
    """One-sided; labels of held-out units are exchanged, the classifier stays."""
    shrinkage: float | None
    """Weight of the sphere in the covariance of the classifier (Ledoit and Wolf)."""
    train_rows: int
    """Rows it learned from."""
    test_rows: int
    """Rows it was judged by."""


class Permanova(Results):
    """Variation between the sides."""

    pseudo_f: float | None = measure(low=0, better="lower", invariance=UNCHANGED)
    """PERMANOVA's F of two groups."""
    p: PValue = measure(low=0, high=1, invariance=UNCHANGED)
    """Permutation p of F."""
    pseudo_f2: float | None = measure(low=0, better="lower", invariance=UNCHANGED)
    """F2, for sides of unequal spread and size."""
    p_f2: PValue = measure(low=0, high=1, invariance=UNCHANGED)
    """Permutation p of F2."""


class SpreadTest(Results):
    """Whether rows of one side lie further from their own mean than those of the other."""

    f: float | None = measure(low=0, better="lower", invariance=UNCHANGED)
    """F of distances to the own mean, corrected by sqrt(n/(n-1))."""
    p: PValue = measure(low=0, high=1, invariance=UNCHANGED)
    """Exchanging residual vectors and recomputing means."""


class Drift(Results):
    baseline: DriftSide
    batch: DriftSide
    mean_shift: Estimate = measure(low=0, better="lower", invariance=UNCHANGED)
    """Distance of the means over the root of the baseline's spread, without the bias of sampling."""
    mean_shift_plain: float | None = measure(low=0, better="lower", invariance=UNCHANGED)
    """The same of the sample means as they are: above 0 also without drift."""
    mean_shift_expected: float | None = measure(low=0, invariance=UNCHANGED)
    """What sampling alone gives: the root of the part of its square that is bias."""
    r2: Estimate = measure(low=0, high=1, better="lower", invariance=UNCHANGED)
    """Share of the variation of all rows that lies between the sides."""
    r2_expected: float | None = measure(low=0, high=1, invariance=UNCHANGED)
    """Its mean over all arrangements: what no drift gives."""
    spread_ratio: Estimate = measure(low=0, invariance=UNCHANGED)
    """Spread of the batch over that of the baseline; 1 is the same."""
    scale_ratio: Estimate = measure(low=0, invariance=("uniform_scale", "orthogonal"))
    """Mean length of rows as given, batch over baseline; 1 is the same."""
    mmd: Mmd
    classifier: DomainClassifier
    permanova: Permanova
    dispersion: SpreadTest
    shared_rows: int = measure(unit="rows", low=0, better="lower")
    """Rows of the batch that equal a row of the baseline, number by number."""

    charts = (
        Dots(
            "shift",
            "How far has the mean moved, and would sampling alone move it so far?",
            (
                Shown("mean_shift", "without bias"),
                Shown("mean_shift_plain", "as it is", {NO_DRIFT: "mean_shift_expected"}),
            ),
            axis="roots of the baseline's spread",
        ),
        Dots(
            "variation",
            "How much of the variation lies between batch and baseline?",
            (Shown("r2", "R2", {NO_DRIFT: "r2_expected"}),),
        ),
        Dots(
            "ratios",
            "Does the batch spread as far, and is it as long, as the baseline?",
            (Shown("spread_ratio"), Shown("scale_ratio")),
            axis="batch over baseline",
            lines={"the same": 1},
            zero=False,
        ),
        Dots(
            "classifier",
            "Can a classifier tell the batch from the baseline?",
            (Shown("classifier.auc", "AUC"),),
            axis="AUC on held-out rows",
            lines={"chance": 0.5},
        ),
        Dots(
            "mmd",
            "How far apart are the two distributions?",
            (Shown("mmd.gaussian", "Gaussian kernel"), Shown("mmd.linear", "linear kernel")),
            axis="squared MMD",
            panels="measure",
            lines={"no drift on average": 0},
        ),
        Dots(
            "p_values",
            "Which tests see a difference?",
            (
                Shown("mmd.gaussian_p", "MMD, Gaussian"),
                Shown("mmd.linear_p", "MMD, linear"),
                Shown("classifier.p", "classifier"),
                Shown("permanova.p", "PERMANOVA F"),
                Shown("permanova.p_f2", "PERMANOVA F2"),
                Shown("dispersion.p", "spread"),
            ),
            axis="permutation p (square-root scale)",
            lines={".05": 0.05},
            scale="sqrt",
        ),
    )

    def readings(self) -> list[str]:
        def p(test: PValue) -> str:
            return "undefined" if test.estimate is None else f"{test.estimate:.4g}"

        def ratio(value: float | None) -> str:
            return "undefined" if value is None else f"{value:.4f}"

        classifier, mmd = self.classifier, self.mmd
        return [
            f"The means lie {self.mean_shift:.4f} roots of the baseline's spread apart (0 is no drift; "
            f"as they are {ratio(self.mean_shift_plain)}, where sampling alone gives about "
            f"{ratio(self.mean_shift_expected)}).",
            f"The sides hold {self.r2:.4f} of all variation between them (no drift "
            f"{ratio(self.r2_expected)}), p {p(self.permanova.p)}; the batch spreads "
            f"{self.spread_ratio:.4f} times as much as the baseline, p {p(self.dispersion.p)}, and its "
            f"rows are {self.scale_ratio:.4f} times as long.",
            f"A classifier tells held-out rows apart with an AUC of {classifier.auc:.4f} (.5 is "
            f"chance), p {p(classifier.p)}.",
            f"MMD^2 is {mmd.gaussian:.3g} with a Gaussian kernel, p {p(mmd.gaussian_p)}, and "
            f"{mmd.linear:.3g} with a linear one, p {p(mmd.linear_p)}; 0 is no drift.",
        ]
