"""Inputs, parameters and results of retrieval."""

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
    ResultsAtK,
    Shown,
    labels,
    measure,
    models,
    relevance,
)
from service.dataset import Dataset, Labels
from service.numerics.resampling import Interval
from service.relevance import Relevance

RANKS: tuple[Invariance, ...] = ("row_scale", "orthogonal", "similarity", "monotone")
ANGLES: tuple[Invariance, ...] = ("row_scale", "orthogonal", "similarity")
AT_K = ("hit", "recall", "precision", "ndcg")
OVERALL = ("mrr", "map", "margin_mean", "margin_positive")


class RetrievalInputs(Inputs):
    models: dict[str, dict[str, Dataset]] = models(
        parts={"queries": "Rows that search.", "documents": "Rows that are searched."},
        as_many_as={"documents": "ks"},
    )
    """Encoders to compare, each with its vectors of the same queries and of the same documents."""
    relevance: Relevance = relevance(of="models.queries", among="models.documents")
    """The documents that are right for each query, by id, or `[id, grade]`."""
    groups: Labels | None = labels(of="models.queries")
    """Which queries belong together (source question, user): the unit of every interval."""


class RetrievalParams(Params):
    ks: list[Annotated[int, Field(ge=1, le=1000)]] = Field(
        default=[1, 5, 10, 100], min_length=1, max_length=10
    )
    """Cutoffs: how far down the ranking somebody looks."""
    scoring: Literal["cosine", "dot"] = "cosine"
    """What ranks documents."""
    bootstrap: int = Field(default=2000, ge=0, le=50_000)
    """Resamples of groups, or of queries, behind intervals that hold for all pairs of models; 0 for
    none."""

    @field_validator("ks")
    @classmethod
    def _in_order(cls, ks: list[int]) -> list[int]:
        return sorted(set(ks))

    def names(self) -> dict[str, list[str]]:
        return {"k": [str(k) for k in self.ks]}


class Spread(Results):
    """Where a number lies over the queries."""

    min: float | None
    """Smallest."""
    q25: float | None
    """A quarter of the queries are at or below."""
    median: float | None
    """Half of the queries are at or below."""
    q75: float | None
    """Three quarters of the queries are at or below."""
    max: float | None
    """Largest."""


class Layers(Results):
    """What the groups look like beside what ranks: scale and separation, not difficulty."""

    query_groups: int
    """Groups of two or more queries."""
    document_groups: int
    """Sets of two or more documents that are right for the same queries."""
    query_w_tilde: Estimate = measure(
        low=0, invariance=("row_scale", "orthogonal"), needs=("groups",)
    )
    """Dispersion of unit rows inside query groups, size-corrected, mean over groups."""
    document_w_tilde: Estimate = measure(low=0, invariance=("row_scale", "orthogonal"))
    """The same inside sets of documents."""
    document_r2: Estimate = measure(low=0, high=1, invariance=ANGLES)
    """Share of the dispersion of relevant documents that lies between sets."""
    document_r2_expected: float | None = measure(low=0, high=1, invariance=RANKS)
    """The same share where documents are dealt to sets at random."""
    w_tilde_ratio: float | None = measure(low=0, invariance=ANGLES, needs=("groups",))
    """Dispersion inside query groups over that inside sets of documents: scale, not difficulty."""


class ModelRetrieval(ResultsAtK):
    """How one model ranks the documents."""

    hit: dict[int, Estimate] = measure(low=0, high=1, better="higher", invariance=RANKS)
    """Share of queries with a relevant document among the first k."""
    recall: dict[int, Estimate] = measure(low=0, high=1, better="higher", invariance=RANKS)
    """Share of a query's relevant documents that are among the first k."""
    precision: dict[int, Estimate] = measure(low=0, high=1, better="higher", invariance=RANKS)
    """Share of the first k that are relevant."""
    ndcg: dict[int, Estimate] = measure(low=0, high=1, better="higher", invariance=RANKS)
    """Graded gain of the first k, discounted by rank, over that of the best order."""
    mrr: Estimate = measure(low=0, high=1, better="higher", invariance=RANKS)
    """Reciprocal rank of the first relevant document."""
    map: Estimate = measure(low=0, high=1, better="higher", invariance=RANKS)
    """Average precision."""
    margin_mean: Estimate = measure(low=-1, high=1, better="higher", invariance=ANGLES)
    """Margin (d-^2 - d+^2) / (d-^2 + d+^2) of the nearest relevant and the nearest other document."""
    margin_positive: Estimate = measure(low=0, high=1, better="higher", invariance=RANKS)
    """Share of queries to which a relevant document is nearer than any other."""
    margin: Spread
    """The margin over queries."""
    first_rank: Spread
    """Rank of the first relevant document, over queries."""
    coincident: int = measure(unit="queries", low=0, invariance=ANGLES)
    """Queries that have a relevant and another document at their own place: no margin."""
    tied_at_cutoff: dict[int, int] = measure(unit="queries", low=0, invariance=RANKS)
    """Queries whose documents at ranks k and k + 1 have one score; both orders count half each."""
    shuffled_hit: dict[int, float | None] = measure(low=0, high=1, invariance=RANKS)
    """Hit@k if relevance were exchanged among sets of documents, exactly: not the same as chance."""
    layers: Layers


class PairedTest(Results):
    """Paired test of one difference, and its interval among all pairs."""

    p: float | None = measure(unit="p", low=0, high=1)
    """Two-sided t test on the jackknife standard error."""
    p_holm: float | None = measure(unit="p", low=0, high=1)
    """Adjusted over all pairs of models (Holm)."""
    simultaneous: Interval | None = None
    """Covers the differences of all pairs at once (max |t|)."""


class Tests(ResultsAtK):
    """Paired tests of the differences."""

    hit: dict[int, PairedTest]
    recall: dict[int, PairedTest]
    precision: dict[int, PairedTest]
    ndcg: dict[int, PairedTest]
    mrr: PairedTest
    map: PairedTest
    margin_mean: PairedTest
    margin_positive: PairedTest


class Difference(ResultsAtK):
    """Later minus earlier model, query by query."""

    hit: dict[int, Estimate] = measure(low=-1, high=1, better="higher", invariance=RANKS)
    """Difference of hit@k."""
    recall: dict[int, Estimate] = measure(low=-1, high=1, better="higher", invariance=RANKS)
    """Difference of recall@k."""
    precision: dict[int, Estimate] = measure(low=-1, high=1, better="higher", invariance=RANKS)
    """Difference of precision@k."""
    ndcg: dict[int, Estimate] = measure(low=-1, high=1, better="higher", invariance=RANKS)
    """Difference of nDCG@k."""
    mrr: Estimate = measure(low=-1, high=1, better="higher", invariance=RANKS)
    """Difference of reciprocal rank."""
    map: Estimate = measure(low=-1, high=1, better="higher", invariance=RANKS)
    """Difference of average precision."""
    margin_mean: Estimate = measure(low=-2, high=2, better="higher", invariance=ANGLES)
    """Difference of margin."""
    margin_positive: Estimate = measure(low=-1, high=1, better="higher", invariance=RANKS)
    """Difference of the share of queries with a positive margin."""
    tests: Tests


class Retrieval(ResultsAtK):
    queries: int
    """Queries."""
    documents: int
    """Documents."""
    relevant: int
    """Pairs of a query and a relevant document."""
    ks: list[int]
    """Cutoffs."""
    scored: Literal["cosine", "dot"]
    """What ranks documents."""
    chance_hit: dict[int, float] = measure(low=0, high=1, invariance=RANKS)
    """Hit@k of an order of documents at random."""
    models: dict[str, ModelRetrieval]
    """One entry for each model."""
    differences: dict[str, dict[str, Difference]]
    """Paired differences, later minus earlier model."""

    charts = (
        Curves(
            "hit",
            "How often is a relevant document among the first k?",
            (
                Shown(
                    "models.{model}.hit@{k}",
                    beside={
                        "order at random": "chance_hit@{k}",
                        "exchanged relevance": "models.{model}.shuffled_hit@{k}",
                    },
                ),
            ),
            along="k",
            axis="share of queries",
            colours="model",
            scale="log",
            told="first k documents (log scale)",
        ),
        Dots(
            "ranking",
            "How well are documents ranked over all?",
            (
                Shown("models.{model}.mrr", "MRR"),
                Shown("models.{model}.map", "MAP"),
                Shown("models.{model}.ndcg@{k}", "nDCG"),
                Shown("models.{model}.margin_positive"),
            ),
            axis="mean over queries",
            colours="model",
        ),
        Dots(
            "differences",
            "Does one model find more?",
            tuple(
                Shown(f"differences.{{later}}.{{earlier}}.{key}", told)
                for key, told in (("hit@{k}", "hit"), ("ndcg@{k}", "nDCG"), ("mrr", "MRR"))
            ),
            axis="later minus earlier model",
            panels="measure",
            lines={"no difference": 0},
        ),
    )

    def readings(self) -> list[str]:
        lines = []
        for name, found in self.models.items():
            k = 10 if 10 in self.ks else self.ks[-1]
            lines.append(
                f"`{name}`: a relevant document is among the first {k} of {self.documents} for "
                f"{found.hit[k]:.4f} of {self.queries} queries, where chance is "
                f"{self.chance_hit[k]:.4f}{_shuffled(found.shuffled_hit[k])}; mean reciprocal rank "
                f"{found.mrr:.4f}."
            )
            if found.margin_mean.estimate is not None:
                lines.append(
                    f"`{name}`: the nearest relevant document is nearer than any other for "
                    f"{found.margin_positive:.4f} of the queries, mean margin "
                    f"{found.margin_mean:.4f} (0 is equally near)."
                )
        for later, earlier, found_difference in self._pairs():
            k = 10 if 10 in self.ks else self.ks[-1]
            test = found_difference.tests.ndcg[k]
            p = "" if test.p is None else f", p {test.p:.3g}"
            lines.append(
                f"`{later}` minus `{earlier}`: nDCG@{k} {found_difference.ndcg[k]:.4f}{p}, paired by "
                "query; an interval that holds 0 does not show that they are equal."
            )
        return lines

    def _pairs(self) -> list[tuple[str, str, Difference]]:
        return [
            (later, earlier, found)
            for later, others in self.differences.items()
            for earlier, found in others.items()
        ]


def _shuffled(value: float | None) -> str:
    return "" if value is None else f" and exchanged relevance gives {value:.4f}"
