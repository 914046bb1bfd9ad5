"""Inputs, parameters and results of compression."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.check import (
    Dots,
    Estimate,
    Inputs,
    Params,
    Results,
    ResultsAtK,
    Shown,
    Trade,
    by_rounding,
    labels,
    measure,
    named,
    optional,
    relevance,
    vectors,
)
from service.dataset import Dataset, Labels
from service.numerics.probe import LARGEST_C, SMALLEST_C
from service.numerics.storage_schemes import SchemeName
from service.relevance import Relevance

METHODS = ("prefix", "pca")
PROBED = ("labels", "train_labels")
RANKED = ("queries", "relevance")


class CompressionInputs(Inputs):
    train: Dataset | None = vectors(rows="train", least=2, default=None)
    """Rows that PCA and storage schemes are fitted on; without them the vectors themselves."""
    queries: Dataset | None = vectors(rows="queries", default=None)
    """Rows that search the vectors, with as little kept of each."""
    vectors: Dataset = vectors(rows="rows", least=2, more_than="k", wider_than="dims")
    """Rows to compress; each searches the others."""
    relevance: Relevance | None = relevance(
        of="queries", among="vectors", always=True, default=None
    )
    """The rows that are right for each query, by id, or `[id, grade]`."""
    query_groups: Labels | None = labels(of="queries")
    """Which queries belong together: the unit of intervals of retrieval."""
    groups: Labels | None = labels(of="vectors", least=2)
    """Which rows belong together (source document, user): the unit of every interval."""
    train_labels: Labels | None = labels(of="train")
    """A label of each train row: what a linear probe learns, on unit rows with as little kept."""
    labels: Labels | None = labels(of="vectors")
    """A label of each row: what neighbours are wanted to share, and a probe to give."""


class CompressionParams(Params):
    dims: list[Annotated[int, Field(ge=1, le=65_536)]] = Field(
        default=[512, 256, 128], min_length=1, max_length=12
    )
    """Dimensions to keep; those that are not fewer than there are read null."""
    k: int = Field(default=10, ge=1, le=256)
    """Neighbours of each row, by cosine."""
    schemes: list[SchemeName] | None = Field(default=None, max_length=10)
    """Storage schemes to try on top of each, and on all dimensions; none by default."""
    min_support: int = Field(default=10, ge=1)
    """Rows a label needs to count in the probe's balanced accuracy."""
    probe_c: float = Field(default=1.0, ge=SMALLEST_C, le=LARGEST_C)
    """Inverse strength of the probe's penalty: one for all variants, chosen by no search."""
    probe_tol: float = Field(default=1e-8, ge=1e-15, le=1)
    """Largest slope of its mean loss that ends a fit; 1e-4 is scikit-learn's own, and stops early."""
    probe_max_iter: int = Field(default=5000, ge=1, le=100_000)
    """Iterations after which a fit ends unfinished."""

    @property
    def kept(self) -> list[int]:
        """Dimensions to keep, each once."""
        return list(dict.fromkeys(self.dims))

    @property
    def stored(self) -> list[SchemeName]:
        """Storage schemes, each once."""
        return list(dict.fromkeys(self.schemes or []))

    @property
    def reduced(self) -> list[str]:
        """Names of the reductions: `prefix_256`, `pca_256` and so on."""
        return [f"{method}_{m}" for m in self.kept for method in METHODS]

    def names(self) -> dict[str, list[str]]:
        stored = [f"{name}_{s}" for name in ("native", *self.reduced) for s in self.stored]
        return {"k": [str(self.k)], "variant": [*self.reduced, *stored]}


class Probe(Results):
    """What a linear probe gives that was fitted on unit train rows with as little kept."""

    accuracy: Estimate = measure(low=0, high=1, better="higher")
    """Share of the rows whose label it gives."""
    balanced_accuracy: Estimate = measure(low=0, high=1, better="higher")
    """The same, mean over labels of `min_support` rows and a train row."""
    train_accuracy: float = measure(low=0, high=1)
    """Share of the train rows whose label it gives."""
    n_iter: int = by_rounding()
    """Iterations of its optimiser."""
    converged: bool
    """Whether it ended where the loss is flat: on a slope of `probe_tol` or, where a step lowers it by
    less than 64 eps, of 1e-6."""


class ProbeChange(Results):
    """The probe's numbers minus those of the rows as given, row by row."""

    accuracy: Estimate = measure(low=-1, high=1, better="higher")
    """Difference of accuracy."""
    balanced_accuracy: Estimate = measure(low=-1, high=1, better="higher")
    """Difference of balanced accuracy."""


class Retrieved(ResultsAtK):
    """How queries rank the rows, exactly, and averaged over the orders of tied rows."""

    hit: dict[int, Estimate] = measure(low=0, high=1, better="higher", invariance=("row_scale",))
    """Share of queries with a relevant row among the first k."""
    ndcg: dict[int, Estimate] = measure(low=0, high=1, better="higher", invariance=("row_scale",))
    """Graded gain of the first k, discounted by rank, over that of the best order."""
    mrr: Estimate = measure(low=0, high=1, better="higher", invariance=("row_scale",))
    """Reciprocal rank of the first relevant row."""


class RetrievedChange(ResultsAtK):
    """The same minus that of the rows as given, query by query."""

    hit: dict[int, Estimate] = measure(low=-1, high=1, better="higher", invariance=("row_scale",))
    """Difference of hit@k."""
    ndcg: dict[int, Estimate] = measure(low=-1, high=1, better="higher", invariance=("row_scale",))
    """Difference of nDCG@k."""
    mrr: Estimate = measure(low=-1, high=1, better="higher", invariance=("row_scale",))
    """Difference of reciprocal rank."""


class Native(ResultsAtK):
    """The rows as given."""

    dimensions: int
    bytes_per_vector: float = measure(unit="bytes", low=0, better="lower")
    """Bytes of each vector."""
    unresolved: int = measure(unit="rows", low=0, better="lower", invariance=("row_scale",))
    """Rows whose last neighbour and the next row score the same within rounding: ties."""
    label_precision: dict[int, Estimate] = measure(
        low=0, high=1, better="higher", invariance=("row_scale", "orthogonal"), needs=("labels",)
    )
    """Share of neighbours with the row's label, mean over rows."""
    probe: Probe | None = optional(needs=PROBED, default=None)
    retrieval: Retrieved | None = optional(needs=RANKED, default=None)


class Variant(ResultsAtK):
    """The rows with fewer dimensions, fewer bits, or both."""

    dimensions: int
    """Dimensions kept."""
    bytes_per_vector: float | None = measure(unit="bytes", low=0, better="lower")
    """Bytes kept of each vector; what all vectors share is not counted."""
    explained_variance: float | None = measure(low=0, high=1, invariance=("row_scale",))
    """Share of the train rows' variance on the components kept; null where there are none."""
    overlap: dict[int, Estimate] = measure(
        low=0, high=1, better="higher", invariance=("row_scale",)
    )
    """Share of a row's neighbours as given that are still its neighbours, mean over rows."""
    changed: Estimate = measure(low=0, high=1, better="lower", invariance=("row_scale",))
    """Share of rows whose set of neighbours changed."""
    changed_queries: int | None = measure(
        unit="queries", low=0, better="lower", invariance=("row_scale",)
    )
    """Rows whose set of neighbours changed."""
    label_precision: dict[int, Estimate] = measure(
        low=0, high=1, better="higher", invariance=("row_scale",), needs=("labels",)
    )
    """Share of neighbours with the row's label, mean over rows."""
    label_precision_change: dict[int, Estimate] = measure(
        low=-1, high=1, better="higher", invariance=("row_scale",), needs=("labels",)
    )
    """The same minus that of the rows as given."""
    probe: Probe | None = optional(needs=PROBED, default=None)
    probe_change: ProbeChange | None = optional(needs=PROBED, default=None)
    retrieval: Retrieved | None = optional(needs=RANKED, default=None)
    retrieval_change: RetrievedChange | None = optional(needs=RANKED, default=None)
    zero_rows: int | None = measure(unit="rows", low=0, better="lower")
    """Rows of which nothing is left: they have no direction, and their cosines read 0."""
    unresolved: int | None = measure(
        unit="rows", low=0, better="lower", invariance=("row_scale",), default=None
    )
    """Rows whose last neighbour and the next row score the same within rounding: ties."""


class Compression(Results):
    n: int
    """Rows."""
    d: int
    """Dimensions as given."""
    k: int
    """Neighbours of each row."""
    train_rows: int
    """Rows that PCA and storage schemes were fitted on."""
    fitted_on_compared_rows: bool
    """Whether those are the rows that are compared."""
    shared_rows: int | None = measure(
        unit="rows", low=0, better="lower", needs=PROBED, default=None
    )
    """Rows that are equal to a train row: the probe may have learnt their labels by heart."""
    overlap_chance: float
    """Overlap of sets that are drawn at random: k / (n - 1)."""
    native: Native
    variants: dict[str, Variant] = named("variant")
    """By name: `prefix_256`, `pca_256`, `native_int8`, `pca_256_int8`."""
    frontier: list[str]
    """Variants, and `native`, that no other beats or equals in bytes, overlap and, with labels, label
    precision while beating them in one; by rising bytes."""

    charts = (
        Trade(
            "bytes",
            "What does a byte buy?",
            (Shown("variants.{variant}.overlap@{k}"),),
            price="variants.{variant}.bytes_per_vector",
            told="bytes of each vector (log scale)",
            axis="share of neighbours that stay",
            whole=("native", "native.bytes_per_vector", 1.0),
            joined="frontier",
        ),
        Dots(
            "labels",
            "How many neighbours share a label when less is kept?",
            (Shown("variants.{variant}.label_precision@{k}"),),
            axis="share of neighbours with the row's label",
            lines={"rows as given": "native.label_precision@{k}"},
            zero=False,
        ),
        Dots(
            "changes",
            "What is lost against the rows as given?",
            (
                Shown("variants.{variant}.label_precision_change@{k}", "label precision"),
                Shown("variants.{variant}.probe_change.accuracy", "probe accuracy"),
                Shown("variants.{variant}.retrieval_change.hit@{k}", "hit"),
                Shown("variants.{variant}.retrieval_change.ndcg@{k}", "nDCG"),
            ),
            axis="change",
            panels="measure",
            lines={"no change": 0},
        ),
    )

    def readings(self) -> list[str]:
        lines = []
        for name, found in self.variants.items():
            if found.changed_queries is None:
                why = found.undefined["changed_queries"].message
                lines.append(f"`{name}` cannot be judged: {why}")
                continue
            line = (
                f"`{name}` keeps {found.bytes_per_vector:g} of {self.native.bytes_per_vector:g} bytes "
                f"a vector and {found.overlap[self.k]:.4f} of the {self.k} neighbours (1 is all, "
                f"{self.overlap_chance:.4f} is chance); {found.changed_queries} of {self.n} rows have "
                "another set"
            )
            if found.unresolved:
                line += f", {found.unresolved} have a tie at place {self.k}"
            change = found.label_precision_change[self.k]
            if change.estimate is not None:
                line += f", label precision changes by {change:+.4f}"
            lines.append(f"{line}.")
            lines += _recovered(name, found, self.k)
        lines.append(
            f"Not beaten at once in bytes, overlap and label precision: {', '.join(self.frontier)}; "
            "which of them to take depends on what a byte is worth."
            if len(self.frontier) < 12
            else f"{len(self.frontier)} variants are not beaten at once in bytes and quality."
        )
        return lines


def _recovered(name: str, found: Variant, k: int) -> list[str]:
    """What a probe and queries make of a variant."""
    lines = []
    if found.probe is not None and found.probe_change is not None:
        lines.append(
            f"`{name}`: a linear probe recovers {found.probe.accuracy:.4f} of the labels, "
            f"{found.probe_change.accuracy:+.4f} from the rows as given."
        )
    if found.retrieval is not None and found.retrieval_change is not None:
        lines.append(
            f"`{name}`: hit@{k} of the queries is {found.retrieval.hit[k]:.4f}, "
            f"{found.retrieval_change.hit[k]:+.4f} from the rows as given."
        )
    return lines
