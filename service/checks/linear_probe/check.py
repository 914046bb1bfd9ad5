"""Linear probe: a classifier on frozen rows, judged by rows it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from service.check import (
    Context,
    Estimate,
    Undefined,
    change_of,
    check,
    estimate_of,
    mean_of_means,
)
from service.checks.linear_probe.dealing import Codes, Dealt, dealt
from service.checks.linear_probe.declared import (
    WARNINGS,
    LabelRecall,
    LabelSupport,
    LinearProbe,
    LinearProbeInputs,
    LinearProbeParams,
    ModelProbe,
    PairedTest,
    ProbeDifference,
    ProbeTests,
    TriedStrength,
)
from service.dataset import Dataset
from service.numerics.changes import change_of_classes
from service.numerics.probe import TIED, Fitted, Solver, Tried, choose, fit
from service.numerics.resampling import Unit, holm
from service.numerics.rows import Floats, Rows
from service.numerics.seen import seen

COLUMNS = ("labels", "test_labels", "split", "groups", "test_groups")
MEASURES = ("accuracy", "balanced_accuracy")
NO_CLASS = Undefined(
    code="too_few_rows", message="No label has `min_support` test rows and a train row."
)
NO_GROUPS = Undefined(
    code="no_groups", message="The groups of train rows and of test rows were not both given."
)
NO_IDS = Undefined(
    code="no_ids", message="There are no test rows of their own, or one of the sides has no ids."
)
LEARNT = {
    "test": "Leave them out of `test`, or leave `test` out, and rows are held out.",
    "split": "Mark equal rows alike in `split`.",
    "drawn": "Give equal rows one group in `groups`, and none is on both sides.",
}
NOT_ESTIMABLE = Undefined(code="not_estimable", message="Too few units, or a census.")


@check(
    version=2,
    title="What can a linear classifier recover?",
    question="What can a linear classifier recover, label by label, in which model more, and did "
    "its optimiser finish?",
    scope=(
        "What a probe does not recover may be there for another classifier, and what it recovers need "
        "not be what neighbours share.",
        "Intervals are about other test rows of the same kind; they take the fitted probe as given and "
        "do not cover other train rows.",
        "Balanced accuracy counts labels of enough test rows only; the others are listed.",
        "Columns are standardised: a probe that does not do so may recover less.",
    ),
    warnings=WARNINGS,
    sources=(
        "arXiv:1610.01644",
        "doi:10.1007/BF01589116",
        "doi:10.1109/ICPR.2010.764",
        "doi:10.1093/biomet/26.4.404",
    ),
    row_limit=50_000,
    memory_factor=10.0,
    refuse=dealt,
)
def linear_probe(
    context: Context, inputs: LinearProbeInputs, params: LinearProbeParams
) -> LinearProbe:
    """
    What a linear classifier recovers: logistic regression on standardised rows, tested on others.

    The penalty is chosen on validation rows, the smallest C among equals. Time O(n d k) an iteration
    for k labels, some hundreds of iterations for each strength; memory the rows in float64, and the
    scores of rows times labels of each thread.
    """
    probed = _Probed(context, inputs, params)
    with context.stage("fits") as step:
        models = {
            name: probed.model(model, _share(step, place, len(inputs.models)))
            for place, (name, model) in enumerate(inputs.models.items())
        }
    results = probed.results(models)
    _warn(context, results)
    _warn_of_groups(context, inputs)
    return results


def _share(step: Callable[[int, int], None], place: int, models: int) -> Callable[[int, int], None]:
    """Progress within one of several models."""
    return lambda done, total: step(place * total + done, models * total)


@dataclass(frozen=True)
class _Found:
    """A fitted probe, what was tried before it, which test rows it is right about, and has seen."""

    fitted: Fitted
    tried: list[Tried]
    right: Floats
    shared: int
    d: int


@dataclass(frozen=True)
class _Change:
    """A paired difference of two models, and its p where it has an interval."""

    found: Estimate
    p: float | None


@dataclass
class _Probed:
    """Rows dealt out once, and the same for every model."""

    context: Context
    inputs: LinearProbeInputs
    params: LinearProbeParams

    def __post_init__(self) -> None:
        given = {name: getattr(self.inputs, name) for name in COLUMNS}
        columns = {name: column for name, column in given.items() if column is not None}
        matrices = [data for model in self.inputs.models.values() for data in model.items()]
        shapes = {
            part: max(data.vectors.shape for other, data in matrices if other == part)
            for part, _ in matrices
        }
        self.apart = "test" in shapes
        self.dealt: Dealt = dealt(columns, shapes, self.params, self.context.seed)
        self.unit: Unit = "group" if self.dealt.by_group else "row"
        self.solver = Solver(self.params.tol, self.params.max_iter)

    @cached_property
    def counts(self) -> tuple[Codes, Codes]:
        """Train and test rows of each label."""
        size = len(self.dealt.levels)
        return (
            np.bincount(self.dealt.codes, minlength=size),
            np.bincount(self.dealt.test_codes, minlength=size),
        )

    def model(self, model: dict[str, Dataset], step: Callable[[int, int], None]) -> _Found:
        deal = self.dealt
        rows = model["rows"].vectors
        c = self.params.strength
        steps = 1 if c is not None else len(self.params.cs) + 1
        train: Rows = rows[deal.train]
        tried: list[Tried] = []
        if c is None:
            out = deal.validation
            tried, best = choose(
                train[~out], deal.codes[~out], train[out], deal.codes[out], self.params.cs,
                self.solver, self.context.threads, lambda done, total: step(done, steps),
            )  # fmt: skip
            c = tried[best].fitted.c
        test: Rows = model["test"].vectors if self.apart else rows[deal.test]
        fitted = fit(train, deal.codes, test, c, self.solver)
        shared = int(seen(test, train, self.context.threads).sum())
        step(steps, steps)
        right = (fitted.predicted == deal.test_codes).astype(np.float64)
        return _Found(fitted, tried, right, shared, rows.shape[1])

    def results(self, models: dict[str, _Found]) -> LinearProbe:
        deal, (trained, tested) = self.dealt, self.counts
        counts = np.zeros(len(deal.levels), dtype=bool)
        counts[deal.counted] = True
        seen = trained > 0
        majority = int(np.argmax(trained))
        return LinearProbe.build(  # type: ignore[no-any-return]
            train_rows=len(deal.train),
            validation_rows=int(deal.validation.sum()),
            test_rows=len(deal.test),
            tested_on="test" if self.apart else "split" if self.inputs.split else "drawn",
            straddling_groups=NO_GROUPS if deal.straddling is None else deal.straddling,
            shared_ids=self._shared_ids(),
            counted=self._listed(counts),
            excluded=self._listed(~counts & seen & (tested > 0)),
            absent=self._listed(~seen & (tested > 0)),
            majority=float(np.mean(deal.test_codes == majority)),
            chance=1 / len(deal.counted) if len(deal.counted) else NO_CLASS,
            models={name: self._of(found) for name, found in models.items()},
            differences=self._differences(models),
        )

    def _shared_ids(self) -> int | Undefined:
        """Ids of train rows that test rows of their own have too, in the first model that has ids."""
        for model in self.inputs.models.values():
            one, other = (model[part].ids if part in model else None for part in ("rows", "test"))
            if one is not None and other is not None:
                return len({one[row] for row in self.dealt.train} & set(other))
        return NO_IDS

    def _listed(self, which: np.ndarray) -> list[LabelSupport]:
        trained, tested = self.counts
        return [
            LabelSupport(
                label=self.dealt.levels[place],
                train_rows=int(trained[place]),
                test_rows=int(tested[place]),
            )
            for place in np.flatnonzero(which)
        ]

    def _of(self, found: _Found) -> ModelProbe:
        fitted, trained = found.fitted, self.counts[0]
        most = int(trained.max()) / len(self.dealt.train)
        return ModelProbe(
            d=found.d,
            **{name: self._estimate(name, found.right) for name in MEASURES},
            train_accuracy=fitted.train_accuracy,
            c=fitted.c,
            c_at_edge=len(found.tried) > 1 and fitted.c in (self.params.cs[0], self.params.cs[-1]),
            n_iter=fitted.n_iter,
            gradient=fitted.gradient,
            stop=fitted.stop,
            converged=fitted.converged,
            at_majority=fitted.train_accuracy <= most,
            constant_dimensions=fitted.constant,
            shared_rows=found.shared,
            tried=[
                TriedStrength(
                    c=one.fitted.c,
                    balanced_accuracy=one.score,
                    n_iter=one.fitted.n_iter,
                    converged=one.fitted.converged,
                )
                for one in found.tried
            ],
            recalls=self._recalls(found.right),
        )

    def _recalls(self, right: Floats) -> list[LabelRecall]:
        sums = np.bincount(self.dealt.test_codes, weights=right, minlength=len(self.dealt.levels))
        listed = [
            LabelRecall(
                label=self.dealt.levels[place],
                support=int(self.counts[1][place]),
                recall=float(sums[place] / self.counts[1][place]),
            )
            for place in self.dealt.counted
        ]
        return sorted(listed, key=lambda one: (one.recall, -one.support))

    def _chosen(self, name: str, values: Floats) -> tuple[Floats, Codes, Codes]:
        """Values, classes and units of the rows a measure is about; accuracy has one class."""
        deal = self.dealt
        if name == "accuracy":
            return values, np.zeros(len(values), np.int64), deal.test_units
        chosen = np.isin(deal.test_codes, deal.counted)
        return values[chosen], deal.test_codes[chosen], deal.test_units[chosen]

    def _estimate(self, name: str, values: Floats) -> Estimate:
        chosen = self._chosen(name, values)
        if not len(chosen[0]):
            return estimate_of(NO_CLASS, np.empty(0), self.params, self.unit)
        return mean_of_means(*chosen, self.params, self.unit)

    def _change(self, name: str, values: Floats) -> _Change:
        chosen = self._chosen(name, values)
        if not len(chosen[0]):
            return _Change(estimate_of(NO_CLASS, np.empty(0), self.params, self.unit), None)
        change = change_of_classes(*chosen)
        found = change_of(change, self.params, self.unit)
        return _Change(found, None if found.interval is None else change.p())

    def _differences(self, models: dict[str, _Found]) -> dict[str, dict[str, ProbeDifference]]:
        """Paired differences of all pairs of models, in request order."""
        pairs = [(later, earlier) for earlier, later in combinations(models, 2)]
        moved = [models[later].right - models[earlier].right for later, earlier in pairs]
        changes = {name: [self._change(name, values) for values in moved] for name in MEASURES}
        tests = {name: _tests([one.p for one in of]) for name, of in changes.items()}
        found: dict[str, dict[str, ProbeDifference]] = {}
        for i, (later, earlier) in enumerate(pairs):
            found.setdefault(later, {})[earlier] = ProbeDifference(
                **{name: changes[name][i].found for name in MEASURES},
                tests=ProbeTests(**{name: tests[name][i] for name in MEASURES}),
            )
        return found


def _tests(raw: list[float | None]) -> list[PairedTest]:
    return [
        PairedTest.build(
            p=NOT_ESTIMABLE if p is None else p,
            p_holm=NOT_ESTIMABLE if adjusted is None else adjusted,
        )
        for p, adjusted in zip(raw, holm(raw), strict=True)
    ]


def _warn(context: Context, results: LinearProbe) -> None:
    if results.absent:
        context.warn(
            "labels_not_in_train",
            f"{len(results.absent)} labels of test rows have no train row: no probe can give them.",
            "results/absent",
        )
    if results.straddling_groups:
        context.warn(
            "groups_on_both_sides",
            f"{results.straddling_groups} groups have train rows and test rows: what their rows share "
            "may be what is recovered. Split by whole groups.",
            "results/straddling_groups",
        )
    if results.shared_ids:
        context.warn(
            "ids_on_both_sides",
            f"{results.shared_ids} ids are of train rows and of `test` rows: where they name the same "
            "items, what is recovered may have been learnt by heart. Leave them out of one side.",
            "results/shared_ids",
        )
    for name, found in results.models.items():
        at = f"results/models/{name}"
        if found.shared_rows:
            context.warn(
                "tested_on_train_rows",
                f"`{name}`: {found.shared_rows} of {results.test_rows} test rows are equal to a train "
                "row: what is recovered of them may have been learnt by heart. "
                f"{LEARNT[results.tested_on]}",
                f"{at}/shared_rows",
            )
        if not found.converged:
            context.warn(
                "not_converged",
                f"`{name}`: {_unfinished(found)}",
                f"{at}/converged",
            )
        if found.c_at_edge and _could_be_better(found.tried):
            context.warn(
                "c_at_edge",
                f"`{name}`: the best C, {found.c:g}, is at the edge of those tried; a wider `cs` may "
                "hold a better one.",
                f"{at}/c_at_edge",
            )
        if found.at_majority:
            context.warn(
                "at_majority",
                f"`{name}`: the probe recovers train rows no better than their commonest label would; "
                "a smaller `tol` or a larger `c` may let it learn.",
                f"{at}/at_majority",
            )
        if unfinished := [one.c for one in found.tried if not one.converged]:
            context.warn(
                "tried_not_converged",
                f"`{name}`: {len(unfinished)} of {len(found.tried)} fits that chose C ran out of "
                "iterations or stopped on a slope; raise `max_iter`, or leave the smallest `cs` out.",
                f"{at}/tried",
            )


def _warn_of_groups(context: Context, inputs: LinearProbeInputs) -> None:
    given = {"groups": inputs.groups is not None, "test_groups": inputs.test_groups is not None}
    if inputs.test_labels is None or len(set(given.values())) == 1:
        return
    known, other = sorted(given, key=given.__getitem__, reverse=True)
    context.warn(
        "groups_of_one_side",
        f"`{known}` are given without `{other}`: whether a group has rows on both sides is not known"
        + ("." if known == "test_groups" else ", and intervals are by row."),
        f"inputs/{other}",
    )


def _could_be_better(tried: list[TriedStrength]) -> bool:
    """Whether strengths differ, and none recovers all there is."""
    scores = [one.balanced_accuracy for one in tried]
    return max(scores) - min(scores) > TIED and max(scores) < 1 - TIED


def _unfinished(found: ModelProbe) -> str:
    at = f"{found.n_iter} iterations at a slope of {found.gradient:.1e}"
    if found.stop == "iterations":
        return f"the optimiser ran out of its {at}; raise `max_iter`."
    return f"the optimiser got no further after {at}; a larger `c` is easier to fit."
