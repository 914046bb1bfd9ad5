"""Retrieval: the numbers of all queries, put together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from service.check import Arrays, Context, Estimate, Parts, Undefined, check, estimate_of
from service.checks.retrieval.declared import (
    AT_K,
    OVERALL,
    Difference,
    ModelRetrieval,
    PairedTest,
    Retrieval,
    RetrievalInputs,
    RetrievalParams,
    Spread,
    Tests,
)
from service.checks.retrieval.layers import layers
from service.checks.retrieval.part import Judged, part, plan
from service.numerics.moments import Units
from service.numerics.ranking import chance_hit
from service.numerics.resampling import FEWEST_UNITS, holm, jackknife_se, t_test
from service.numerics.rows import Floats

Place = tuple[str, int | None]
"""A measure, and the place of its cutoff among the ks where it has one."""
Kind = Literal["share", "change", "plain"]
BY_DOT = Undefined(
    code="scored_by_dot", message="Margins are distances of unit rows: score by cosine."
)
ALL_RELEVANT = Undefined(
    code="no_other_documents", message="Every document is relevant to every query."
)
COINCIDENT = Undefined(
    code="coincident",
    message="Each query has a relevant and another document at its own place, or no other at all.",
)
OVERLAPPING = Undefined(
    code="overlapping_positives",
    message="Some document is relevant to queries with other relevant documents: sets cannot be "
    "exchanged.",
)
ONE_SET = Undefined(code="one_set", message="All queries have the same relevant documents.")
NOT_ESTIMABLE = Undefined(code="not_estimable", message="No spread, or too few units, or a census.")


@check(
    version=1,
    title="Does the right item come back?",
    scope=(
        "Hit@k is not recall of the whole set, and neither says that what else came back was wrong: "
        "recorded relevance is incomplete.",
        "The documents are fixed: intervals are about other queries of the same kind, not about other "
        "documents, another encoder or another index.",
        "Search is exact; what an approximate index or coarser storage loses comes on top.",
        "Two models that do not differ significantly are not shown to be equal.",
        "Dispersion inside groups is a scale of a space: across models it says nothing of difficulty.",
    ),
    sources=(
        "doi:10.1007/978-3-540-78646-7_38",
        "doi:10.1145/582415.582418",
        "doi:10.1145/1390334.1390453",
        "doi:10.1214/aos/1176345462",
    ),
    memory_factor=2.0,
    parts=Parts(plan=plan, part=part),
)
def retrieval(
    context: Context, inputs: RetrievalInputs, params: RetrievalParams, parts: Arrays
) -> Retrieval:
    """
    Does the right item come back? Exact ranks, ties averaged over their orders, models paired.

    A float32 product of all pairs decides most of them by its rounding bound, float64 the others. Time:
    one faiss search a model; memory: a 64 MiB float32 block of the documents, and 128 MiB of lists.
    """
    judged = Judged.of(inputs)
    summary = _Summary(inputs, params, parts, judged, context.threads)
    names = list(inputs.models)
    results = Retrieval(
        queries=len(inputs.relevance),
        documents=len(judged.classes),
        relevant=len(inputs.relevance.rows),
        ks=params.ks,
        scored=params.scoring,
        chance_hit=summary.chance(),
        models={name: summary.model(name) for name in names},
        differences=summary.differences(names),
    )
    _warn(context, results, judged)
    return results


def _warn(context: Context, results: Retrieval, judged: Judged) -> None:
    for name, found in results.models.items():
        for k, tied in found.tied_at_cutoff.items():
            if tied:
                context.warn(
                    "ties",
                    f"`{name}`: {tied} queries have a tie at rank {k}; measures are means over the "
                    "orders of tied documents.",
                    f"results/models/{name}/tied_at_cutoff@{k}",
                )
    few = [k for k in results.ks if results.chance_hit[k] > 0.5]
    if few:
        context.warn(
            "easy_by_chance",
            f"Chance alone hits for over half of the queries at k = {', '.join(map(str, few))}: "
            "use a smaller k or more documents.",
            "results/chance_hit",
        )


@dataclass
class _Units:
    """What is left out at a time, and means over it with equal weights."""

    units: Units

    def means(self, values: Floats) -> Floats:
        """Mean of each unit, (G,); NaN is left out, and stays where a unit has nothing else."""
        known = np.isfinite(values)
        counts = self.units.sums(known.astype(np.float64))
        sums = self.units.sums(np.where(known, values, 0.0))
        with np.errstate(invalid="ignore"):
            return np.asarray(sums / counts)


class _Summary:
    """Numbers of queries as estimates."""

    def __init__(
        self,
        inputs: RetrievalInputs,
        params: RetrievalParams,
        parts: Arrays,
        judged: Judged,
        threads: int,
    ) -> None:
        self.inputs, self.params, self.judged, self.threads = inputs, params, judged, threads
        self.parts = dict(parts)
        groups = inputs.groups
        m = len(inputs.relevance)
        units = Units.rows(m) if groups is None else Units.groups(groups.dense)
        self.units = _Units(units)
        self.name = units.name

    def chance(self) -> dict[int, float]:
        """Hit@k of documents in a random order, averaged as the models are."""
        n, counts = len(self.judged.classes), self.judged.relevant.counts
        return {k: float(self.units.means(chance_hit(n, counts, k)).mean()) for k in self.params.ks}

    def estimate(self, values: Floats, kind: Kind, why: Undefined) -> Estimate:
        """The mean over units of their means, each unit left out in turn."""
        own = self.units.means(values)
        own = own[np.isfinite(own)]
        if not len(own):
            return estimate_of(why, np.empty(0), self.params, self.name)
        value, total = float(own.mean()), float(own.sum())
        deleted = (total - own) / (len(own) - 1) if len(own) > 1 else np.empty(0)
        if kind == "share":
            value = min(max(value, 0.0), 1.0)
        return estimate_of(
            value,
            deleted,
            self.params,
            self.name,
            share=value if kind == "share" else None,
            changes=own if kind == "change" else None,
        )

    def of(self, name: str, what: str) -> NDArray[Any]:
        return np.asarray(self.parts[f"{name}.{what}"])

    def missing(self, name: str) -> Undefined:
        """Why no query has a margin."""
        if self.params.scoring == "dot":
            return BY_DOT
        return COINCIDENT if self.of(name, "coincident").any() else ALL_RELEVANT

    def model(self, name: str) -> ModelRetrieval:
        ks = self.params.ks
        why = self.missing(name)
        margin = self.of(name, "margin_mean")
        model = self.inputs.models[name]
        groups = self.inputs.groups
        others = self._shuffled(name)
        return ModelRetrieval.build(  # type: ignore[no-any-return]
            **{
                what: {
                    k: self.estimate(self.of(name, what)[:, c], "share", why)
                    for c, k in enumerate(ks)
                }
                for what in AT_K
            },
            mrr=self.estimate(self.of(name, "mrr"), "share", why),
            map=self.estimate(self.of(name, "map"), "share", why),
            margin_mean=self.estimate(margin, "plain", why),
            margin_positive=self.estimate(self.of(name, "margin_positive"), "share", ALL_RELEVANT),
            margin=_spread(margin, why),
            first_rank=_spread(self.of(name, "first_rank"), why),
            coincident=int(self.of(name, "coincident").sum()),
            tied_at_cutoff={k: int(self.of(name, "tied")[:, c].sum()) for c, k in enumerate(ks)},
            **{f"shuffled_hit@{k}": value for k, value in others.items()},
            layers=layers(
                model["queries"],
                model["documents"],
                None if groups is None else groups.dense,
                self.judged.classes if self.judged.disjoint else None,
                self.params,
                self.threads,
            ),
        )

    def _shuffled(self, name: str) -> dict[int, float | Undefined]:
        """Hit@k under a uniform derangement of sets: each other set is as likely as any."""
        ks = self.params.ks
        if not self.judged.exchangeable:
            return dict.fromkeys(ks, OVERLAPPING if self.judged.sets > 1 else ONE_SET)
        others = self.of(name, "others")
        return {
            k: float(self.units.means(others[:, c] / (self.judged.sets - 1)).mean())
            for c, k in enumerate(ks)
        }

    def differences(self, names: list[str]) -> dict[str, dict[str, Difference]]:
        """Paired differences of all pairs of models, in request order."""
        pairs = [(later, earlier) for earlier, later in combinations(names, 2)]
        measures: list[Place] = [(what, c) for what in AT_K for c in range(len(self.params.ks))]
        measures += [(what, None) for what in OVERALL]
        made = {one: [self._change(*pair, *one) for pair in pairs] for one in measures}
        result: dict[str, dict[str, Difference]] = {}
        for i, (later, earlier) in enumerate(pairs):
            changes = {one: found[i] for one, found in made.items()}
            tests = {one: self._tests([p for _, p in found])[i] for one, found in made.items()}
            result.setdefault(later, {})[earlier] = Difference(
                **self._by_name({one: change for one, (change, _) in changes.items()}),
                tests=Tests(**self._by_name(tests)),
            )
        return result

    def _by_name(self, found: dict[Place, Any]) -> dict[str, Any]:
        """Values of measures as fields, those with a cutoff by k."""
        fields: dict[str, Any] = {}
        for (what, c), value in found.items():
            if c is None:
                fields[what] = value
            else:
                fields.setdefault(what, {})[self.params.ks[c]] = value
        return fields

    def _change(
        self, later: str, earlier: str, what: str, c: int | None
    ) -> tuple[Estimate, float | None]:
        """A paired difference and its p-value."""
        one, other = (
            self.of(name, what) if c is None else self.of(name, what)[:, c]
            for name in (later, earlier)
        )
        kind: Kind = "plain" if what == "margin_mean" else "change"
        found = self.estimate(one - other, kind, self.missing(later))
        own = self.units.means(one - other)
        own = own[np.isfinite(own)]
        if len(own) < FEWEST_UNITS or self.params.census or found.estimate is None:
            return found, None
        error = jackknife_se((own.sum() - own) / (len(own) - 1))
        return found, t_test(found.estimate, error, len(own))

    def _tests(self, raw: list[float | None]) -> list[PairedTest]:
        return [
            PairedTest.build(
                p=NOT_ESTIMABLE if p is None else p,
                p_holm=NOT_ESTIMABLE if adjusted is None else adjusted,
            )
            for p, adjusted in zip(raw, holm(raw), strict=True)
        ]


def _spread(values: Floats, why: Undefined) -> Spread:
    known = values[np.isfinite(values)]
    if not len(known):
        return Spread.build(  # type: ignore[no-any-return]
            **dict.fromkeys(("min", "q25", "median", "q75", "max"), why)
        )
    low, q25, median, q75, high = (
        float(one) for one in np.quantile(known, [0, 0.25, 0.5, 0.75, 1])
    )
    return Spread(min=low, q25=q25, median=median, q75=q75, max=high)
