"""Retrieval: the numbers of all queries, put together."""

from __future__ import annotations

import numpy as np

from service.check import Arrays, Context, Parts, Undefined, check
from service.checks.retrieval.compare import differences
from service.checks.retrieval.declared import (
    AT_K,
    ModelRetrieval,
    Retrieval,
    RetrievalInputs,
    RetrievalParams,
    Spread,
)
from service.checks.retrieval.layers import layers
from service.checks.retrieval.part import Judged, part, plan
from service.checks.retrieval.summary import ALL_RELEVANT, Summary
from service.numerics.rows import Floats

OVERLAPPING = Undefined(
    code="overlapping_positives",
    message="Some document is relevant to queries with other relevant documents: sets cannot be "
    "exchanged.",
)
ONE_SET = Undefined(code="one_set", message="All queries have the same relevant documents.")


@check(
    version=3,
    title="Does the right item come back?",
    question="Does the right item come back, in which model more often, and what would chance "
    "and shuffled relevance give?",
    scope=(
        "Hit@k is not recall of the whole set, and neither says that what else came back was wrong: "
        "recorded relevance is incomplete.",
        "The documents are fixed: intervals are about other queries of the same kind, not about other "
        "documents, another encoder or another index.",
        "Search is exact; what an approximate index or coarser storage loses comes on top.",
        "Two models that do not differ significantly are not shown to be equal.",
        "Dispersion inside groups is a scale of a space: across models it says nothing of difficulty.",
    ),
    warnings={
        "easy_by_chance": "Chance alone hits for over half of the queries.",
        "ties": "Queries have a tie at the last rank looked at.",
    },
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
    summary = Summary(inputs, params, parts, judged, context.threads)
    names = list(inputs.models)
    results = Retrieval(
        queries=len(inputs.relevance),
        documents=len(judged.classes),
        relevant=len(inputs.relevance.rows),
        ks=params.ks,
        scored=params.scoring,
        chance_hit=summary.chance(),
        models={name: _model(summary, name) for name in names},
        differences=differences(summary, names, context.seed),
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


def _model(summary: Summary, name: str) -> ModelRetrieval:
    ks = summary.params.ks
    why = summary.missing(name)
    margin = summary.of(name, "margin_mean")
    model = summary.inputs.models[name]
    groups = summary.inputs.groups
    others = _shuffled(summary, name)
    return ModelRetrieval.build(  # type: ignore[no-any-return]
        **{
            what: {
                k: summary.estimate(
                    summary.of(name, what)[:, c], "share", why, summary.attainable(what, k)
                )
                for c, k in enumerate(ks)
            }
            for what in AT_K
        },
        mrr=summary.estimate(summary.of(name, "mrr"), "share", why),
        map=summary.estimate(summary.of(name, "map"), "share", why),
        margin_mean=summary.estimate(margin, "plain", why),
        margin_positive=summary.estimate(
            summary.of(name, "margin_positive"), "share", ALL_RELEVANT
        ),
        margin=_spread(margin, why),
        first_rank=_spread(summary.of(name, "first_rank"), why),
        coincident=int(summary.of(name, "coincident").sum()),
        tied_at_cutoff={k: int(summary.of(name, "tied")[:, c].sum()) for c, k in enumerate(ks)},
        **{f"shuffled_hit@{k}": value for k, value in others.items()},
        layers=layers(
            model["queries"],
            model["documents"],
            None if groups is None else groups.dense,
            summary.judged.classes if summary.judged.disjoint else None,
            summary.params,
            summary.threads,
        ),
    )


def _shuffled(summary: Summary, name: str) -> dict[int, float | Undefined]:
    """Hit@k under a uniform derangement of sets: each other set is as likely as any."""
    ks = summary.params.ks
    if not summary.judged.exchangeable:
        return dict.fromkeys(ks, OVERLAPPING if summary.judged.sets > 1 else ONE_SET)
    others = summary.of(name, "others")
    return {
        k: float(summary.units.means(others[:, c] / (summary.judged.sets - 1)).mean())
        for c, k in enumerate(ks)
    }


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
