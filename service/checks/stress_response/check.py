"""Stress response: readings of every state as estimates, and how they follow each damage."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from service.check import (
    Arrays,
    Context,
    Estimate,
    Parts,
    Undefined,
    check,
    estimate_of,
    mean_of,
    mean_of_means,
)
from service.checks.stress_response.declared import (
    Condition,
    Instruments,
    StressResponse,
    StressResponseInputs,
    StressResponseParams,
)
from service.checks.stress_response.part import (
    DIRECTIONAL,
    ESTIMATES,
    NUMBERS,
    part,
    plan,
)
from service.checks.stress_response.probing import (
    NO_CLASS,
    NO_LABELS,
    NOT_LEARNT,
    Wanted,
    refuse,
    shared_rows,
)
from service.checks.stress_response.response import responses
from service.checks.stress_response.states import (
    NO_DEVIATION,
    TIED_DIRECTIONS,
    TOO_FEW_DIRECTIONS,
)
from service.numerics.damages import Damage
from service.numerics.moments import Units
from service.numerics.rows import Floats

NO_SPREAD = Undefined(code="zero_spectrum", message="All rows are equal: nothing varies.")
ALL_ZERO = Undefined(code="zero_spectrum", message="All rows are zero.")
WHY = {
    TOO_FEW_DIRECTIONS: Undefined(
        code="too_few_directions",
        message="The train rows extend in fewer directions than are to be kept.",
    ),
    TIED_DIRECTIONS: Undefined(
        code="tied_directions",
        message="The last direction to keep and the next are equally long in the train rows.",
    ),
    NO_DEVIATION: Undefined(
        code="no_deviation", message="All numbers of the train rows are equal: noise has no size."
    ),
}
WHOLE = ("dimensions_90",)


@check(
    version=2,
    title="Which instrument reacts to which damage?",
    question="Which instrument reacts to which damage: contraction, offset, fewer directions, "
    "noise, pull to the mean?",
    scope=(
        "Damages done to finished vectors are not what goes wrong in training or in storage; they show "
        "what an instrument can see.",
        "No reading here is a threshold: how far an instrument moves depends on the rows.",
        "A spectrum that widens under noise holds no more information, and an instrument that does not "
        "move under a damage cannot report it.",
        "Neighbours with the same label are not the same neighbours, and labels that neighbours do not "
        "share may still be recovered by a classifier.",
        "The probe standardises its columns, which takes contraction, offset and mean interpolation "
        "out before it is fitted: it cannot see them, and a probe that does not standardise can.",
        "Intervals take the fitted damages, the noise drawn and the rows that are searched as given.",
    ),
    warnings={
        "tested_on_train_rows": "Rows that a probe is asked of are equal to a train row.",
        "labels_not_in_train": "Rows have a label that no train row has.",
        "ties": "Rows have a tie at the last place of their list.",
        "not_converged": "The optimiser of a probe did not finish.",
        "rows_read_as_zero": "Rows are zero under a damage and have no direction.",
        "too_few_directions": "The train rows extend in fewer directions than are to be kept.",
        "tied_directions": "The last direction to keep and the next are equally long.",
        "no_deviation": "All numbers of the train rows are equal: noise has no size.",
    },
    sources=("arXiv:2210.02885", "doi:10.1101/214262", "doi:10.1093/biomet/26.4.404"),
    row_limit=50_000,
    memory_factor=8.0,
    parts=Parts(plan=plan, part=part),
    refuse=refuse,
)
def stress_response(
    context: Context,
    inputs: StressResponseInputs,
    params: StressResponseParams,
    parts: Arrays,
) -> StressResponse:
    """
    Which instrument reacts to which damage: known damages of known severity, read by every instrument.

    With severity s: `contraction` x(1-s); `offset` along one seeded direction, of the mean train norm
    times s/(1-s); `rank_restriction` to round(min(n, d)(1-s)) right singular vectors of the train rows,
    at least one; `noise`, normal, of the deviation of all train numbers times s/(1-s);
    `mean_interpolation` (1-s)x + s(train mean). Neighbours are exact. With labels of both, a linear
    probe is fitted on train rows under the same damage. Time one search of n rows among n for each
    condition but contractions, O(n d^2) for each noise, and a fit for each noise and rank restriction;
    memory the rows once more, and with a probe train rows and rows in float64 twice.
    """
    summary = _Summary(inputs, params, parts)
    native = summary.native()
    conditions = {
        name: summary.condition(place, *what)
        for place, (name, what) in enumerate(params.conditions.items(), start=1)
    }
    results = StressResponse.build(
        n=inputs.vectors.n,
        d=inputs.vectors.vectors.shape[1],
        k=params.k,
        train_rows=inputs.train.n,
        shared_rows=summary.unprobed or shared_rows(context, inputs),
        overlap_chance=params.k / (inputs.vectors.n - 1),
        **summary.floors(),
        native=native,
        conditions=conditions,
        responses=responses(native, conditions, params.k),
    )
    _warn(context, results)
    if isinstance(summary.wanted, Wanted) and (absent := int((summary.wanted.rows < 0).sum())):
        context.warn(
            "labels_not_in_train",
            f"{absent} rows have a label that no train row has: no probe can give it.",
            "inputs/labels",
        )
    return results  # type: ignore[no-any-return]


def _warn(context: Context, results: StressResponse) -> None:
    _warn_of(context, "native", results.native, results.k)
    for name, found in results.conditions.items():
        _warn_of(context, f"conditions/{name}", found, results.k)
        if found.zero_rows:
            context.warn(
                "rows_read_as_zero",
                f"`{name}`: {found.zero_rows} rows are zero and have no direction; no cosine is read.",
                f"results/conditions/{name}/zero_rows",
            )
        if found.zero_rows is None:
            why = found.undefined["zero_rows"]
            context.warn(
                why.code, f"`{name}` is not measured: {why.message}", f"results/conditions/{name}"
            )


def _warn_of(context: Context, place: str, found: Instruments, k: int) -> None:
    name = place.removeprefix("conditions/")
    if found.unresolved:
        context.warn(
            "ties",
            f"`{name}`: {found.unresolved} rows have a tie at place {k}; ties go to the lower row.",
            f"results/{place}/unresolved",
        )
    if found.probe_converged is False:
        context.warn(
            "not_converged",
            f"`{name}`: the probe's optimiser ran out of iterations or stopped on a slope; a `probe_c` "
            "nearer 1 is easier to fit.",
            f"results/{place}/probe_converged",
        )


class _Summary:
    """Arrays of states as results."""

    def __init__(
        self, inputs: StressResponseInputs, params: StressResponseParams, parts: Arrays
    ) -> None:
        self.inputs, self.params, self.k = inputs, params, params.k
        self.parts = {name: parts[name] for name in parts}
        self.n = inputs.vectors.n
        groups = inputs.groups
        self.units = Units.rows(self.n) if groups is None else Units.groups(groups.dense)
        self.of_row = np.arange(self.n) if groups is None else groups.dense
        self.wanted = Wanted.of(inputs)
        labels = inputs.labels
        self.codes = None if labels is None else labels.dense
        counts = np.zeros(1, np.int64) if self.codes is None else np.bincount(self.codes)
        self.counts, self.enough = counts, counts >= params.min_support
        self.learnt = self.enough
        if isinstance(self.wanted, Wanted):
            learnt = np.zeros(len(counts), bool)
            learnt[self.codes] = self.wanted.rows >= 0
            self.learnt = self.enough & learnt

    def floors(self) -> dict[str, Any]:
        """What labels and neighbours drawn at random would read."""
        few = self._no_class
        n = self.n
        expected = (self.counts - 1) / (n - 1)
        return {
            "label_floor": self._unlabelled or float((self.counts / n * expected).sum()),
            "label_floor_macro": few or float(expected[self.enough].mean()),
            "probe_floor": self.wanted.majority()
            if isinstance(self.wanted, Wanted)
            else self.wanted,
            "probe_floor_balanced": self._unlearnt or 1 / int(self.learnt.sum()),
            "classes": self._unlabelled or int(self.enough.sum()),
            "probe_classes": self.unprobed or int(self.learnt.sum()),
        }

    def native(self) -> Instruments:
        return Instruments.build(**self._instruments(0))  # type: ignore[no-any-return]

    def condition(self, place: int, damage: Damage, severity: float) -> Condition:
        why = self._why(place)
        zero_rows = int(self.parts["zero_rows"][place])
        nothing = why or self._no_direction(zero_rows)
        shared, hits = (self.parts[name][place].astype(np.float64) for name in ("shared", "hits"))
        change = (hits - self.parts["hits"][0]) / self.k
        return Condition.build(  # type: ignore[no-any-return]
            damage=damage,
            severity=severity,
            zero_rows=why or zero_rows,
            **self._instruments(place),
            overlap={self.k: self._mean(shared / self.k, nothing)},
            changed=self._mean((shared < self.k).astype(np.float64), nothing),
            label_precision_change={
                self.k: self._mean(change, nothing or self._unlabelled, "change")
            },
            probe_accuracy_change=self._mean(
                self._right(place) - self._right(0), why or self.unprobed, "change"
            ),
        )

    @property
    def _unlabelled(self) -> Undefined | None:
        return NO_LABELS if self.inputs.labels is None else None

    @property
    def _no_class(self) -> Undefined | None:
        """Why no mean over labels can be taken."""
        return self._unlabelled or (None if self.enough.any() else NO_CLASS)

    def _why(self, place: int) -> Undefined | None:
        """Why a state is not measured at all."""
        return WHY.get(int(self.parts["why"][place]))

    def _no_direction(self, zero_rows: int) -> Undefined | None:
        if not zero_rows:
            return None
        rows = f"{zero_rows} of {self.n} rows"
        return Undefined(code="zero_rows", message=f"{rows} are zero and have no direction.")

    def _mean(
        self,
        values: Floats,
        nothing: Undefined | None,
        kind: Literal["share", "change"] = "share",
    ) -> Estimate:
        if nothing is not None:
            return self._estimate(nothing, np.empty(0))
        return mean_of(values, self.units, self.params, kind)

    def _estimate(self, value: float | Undefined, deleted: Floats) -> Estimate:
        return estimate_of(value, deleted, self.params, self.units.name)

    def _instruments(self, place: int) -> dict[str, Any]:
        numbers = dict(zip(NUMBERS, self.parts["numbers"][place], strict=True))
        zero_rows = int(self.parts["zero_rows"][place])
        why, no_direction = self._why(place), self._no_direction(zero_rows)
        nothing = why or no_direction

        def reason(name: str) -> Undefined:
            if why is not None:
                return why
            if name in (*DIRECTIONAL, "anisotropy_sd") and no_direction is not None:
                return no_direction
            return ALL_ZERO if zero_rows == self.n else NO_SPREAD

        found: dict[str, Any] = {
            name: reason(name) if np.isnan(value) else int(value) if name in WHOLE else float(value)
            for name, value in numbers.items()
        }
        for row, name in enumerate(ESTIMATES):
            found[name] = self._estimate(found[name], self._deleted(place, row))
        hits = self.parts["hits"][place] / self.k
        found["label_precision"] = {self.k: self._mean(hits, nothing or self._unlabelled)}
        found["label_precision_macro"] = {
            self.k: self._mean_of_means(hits, self.enough, nothing or self._no_class)
        }
        found |= self._probe(place, why)
        found["unresolved"] = nothing or int(self.parts["unresolved"][place])
        return found

    def _probe(self, place: int, why: Undefined | None) -> dict[str, Any]:
        nothing, right = why or self.unprobed, self._right(place)
        accuracy, n_iter, converged = self.parts["probe"][place]
        return {
            "probe_accuracy": self._mean(right, nothing),
            "probe_balanced_accuracy": self._mean_of_means(
                right, self.learnt, nothing or self._unlearnt
            ),
            "probe_train_accuracy": nothing or float(accuracy),
            "probe_iterations": nothing or int(n_iter),
            "probe_converged": nothing or bool(converged),
        }

    @property
    def unprobed(self) -> Undefined | None:
        return self.wanted if isinstance(self.wanted, Undefined) else None

    @property
    def _unlearnt(self) -> Undefined | None:
        """Why a probe has no mean over labels."""
        return self.unprobed or (None if self.learnt.any() else NOT_LEARNT)

    def _right(self, place: int) -> Floats:
        return np.asarray(self.parts["right"][place].astype(np.float64))

    def _mean_of_means(
        self, values: Floats, counted: NDArray[np.bool_], nothing: Undefined | None
    ) -> Estimate:
        if nothing is not None or self.codes is None:
            return self._estimate(nothing or NO_LABELS, np.empty(0))
        chosen = counted[self.codes]
        unit = self.units.name
        return mean_of_means(
            values[chosen], self.codes[chosen], self.of_row[chosen], self.params, unit
        )

    def _deleted(self, place: int, row: int) -> NDArray[np.float64]:
        return np.asarray(self.parts["deleted"][place, row])
