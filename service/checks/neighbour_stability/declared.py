"""Inputs, parameters and results of neighbour stability."""

from __future__ import annotations

from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from service.check import (
    Bars,
    Dots,
    Estimate,
    Inputs,
    Params,
    Results,
    ResultsAtK,
    Shown,
    Trade,
    labels,
    measure,
    named,
    vectors,
)
from service.dataset import Dataset, Labels
from service.numerics.storage_schemes import SchemeName

Scheme = Literal["fp32_arithmetic", "offset"] | SchemeName
ConditionName = Literal[
    "fp32_arithmetic",
    "fp16_gallery",
    "fp16_both",
    "bf16_gallery",
    "bf16_both",
    "int8_gallery",
    "int8_both",
    "int8_per_vector_gallery",
    "int8_per_vector_both",
    "int8_qt8_gallery",
    "int8_qt8_both",
    "int8_minmax_round_gallery",
    "int8_minmax_round_both",
    "int8_quantile_gallery",
    "int8_quantile_both",
    "int4_gallery",
    "int4_both",
    "binary_gallery",
    "binary_both",
    "pq_gallery",
    "pq_both",
    "offset_reference",
    "offset_fp16_gallery",
    "offset_fp16_both",
]


Asked = Scheme | ConditionName
ENDS: dict[str, list[str]] = {
    "fp32_arithmetic": [""],
    "offset": ["_reference", "_fp16_gallery", "_fp16_both"],
}
CONDITIONS: dict[Scheme, list[ConditionName]] = {
    scheme: [scheme + end for end in ENDS.get(scheme, ["_gallery", "_both"])]
    for scheme in ("fp32_arithmetic", *get_args(SchemeName), "offset")
}
"""The conditions of each scheme."""


class NeighbourStabilityInputs(Inputs):
    gallery: Dataset = vectors(rows="gallery", least=2, more_than="k")
    """Rows that are searched."""
    queries: Dataset | None = vectors(rows="queries", default=None)
    """Rows that search; without them every row of the gallery searches the others."""
    calibration: Dataset | None = vectors(rows="calibration", default=None)
    """Rows that set the ranges of int8, int4 and pq; without them the gallery does."""
    groups: Labels | None = labels(of="queries", otherwise="gallery", least=2)
    """Which queries belong together (source document, user): the unit of every interval."""
    query_labels: Labels | None = labels(of="queries")
    """The same for the queries, where they are not the gallery; `labels` must be given too."""
    labels: Labels | None = labels(of="gallery")
    """A label of each row of the gallery: what neighbours are wanted to share."""


class NeighbourStabilityParams(Params):
    k: int = Field(default=10, ge=1, le=256)
    """Neighbours of each query."""
    scoring: Literal["cosine", "dot"] = "cosine"
    """What ranks rows, before and after."""
    storage: Literal["unit", "as_given"] | None = None
    """Whether rows are brought to length one before they are stored; by default where scoring is
    cosine."""
    conditions: list[Asked] | None = Field(default=None, min_length=1, max_length=36)
    """Schemes, each with all its conditions, or single conditions; by default fp32_arithmetic, fp16,
    int8, and for rows of length one offset."""
    offset: float = Field(default=10.0, ge=0, le=1e6)
    """Length of the common offset along (1, ..., 1) that `offset` adds to unit rows."""

    @model_validator(mode="after")
    def _filled_in(self) -> Self:
        unit = self.storage or ("unit" if self.scoring == "cosine" else "as_given")
        default: list[Asked] = ["fp32_arithmetic", "fp16", "int8"]
        moved = unit == "unit" and self.scoring == "cosine"
        if moved:
            default.append("offset")
        asked = list(dict.fromkeys(self.conditions or default))
        if not moved and any(name.startswith("offset") for name in asked):
            raise ValueError("`offset` needs rows of length one that are scored by cosine")
        object.__setattr__(self, "storage", unit)
        object.__setattr__(self, "conditions", asked)
        return self

    @property
    def wanted(self) -> dict[Scheme, list[ConditionName]]:
        """Conditions to try, by scheme, in the order of the catalogue."""
        asked = set(self.conditions or [])
        found = {
            scheme: [one for one in conditions if scheme in asked or one in asked]
            for scheme, conditions in CONDITIONS.items()
        }
        return {scheme: conditions for scheme, conditions in found.items() if conditions}

    def names(self) -> dict[str, list[str]]:
        wanted = [str(name) for conditions in self.wanted.values() for name in conditions]
        return {"k": [str(self.k)], "condition": wanted}


class Quantiles(Results):
    """Where a number lies over the queries."""

    min: float | None = measure(invariance=("row_scale", "orthogonal"))
    """Smallest."""
    q25: float | None = measure(invariance=("row_scale", "orthogonal"))
    """A quarter of the queries are at or below."""
    median: float | None = measure(invariance=("row_scale", "orthogonal"))
    """Half of the queries are at or below."""
    q75: float | None = measure(invariance=("row_scale", "orthogonal"))
    """Three quarters of the queries are at or below."""
    max: float | None = measure(invariance=("row_scale", "orthogonal"))
    """Largest."""


class Reference(ResultsAtK):
    """The neighbours of the rows as given, in float64."""

    boundary_margin: Quantiles
    """Score of the last neighbour minus the score of the next row."""
    unresolved: int = measure(unit="queries", low=0, better="lower")
    """Queries whose boundary margin is within the rounding of float64 scores: ties."""
    label_precision: dict[int, Estimate] = measure(
        low=0, high=1, better="higher", needs=("labels",)
    )
    """Share of neighbours with the query's label, mean over queries."""


class ScoreError(Results):
    """How far the scores of the reference neighbours moved: the largest change of each query."""

    median: float | None = measure(low=0, better="lower")
    """Half of the queries are at or below."""
    q99: float | None = measure(low=0, better="lower")
    """99 % of the queries are at or below."""
    max: float | None = measure(low=0, better="lower")
    """Largest change of all."""


class StorageFacts(Results):
    """What the scheme kept."""

    bytes_per_vector: float = measure(unit="bytes", low=0, better="lower")
    """Bytes an index keeps of each vector, constants of the scheme not counted."""
    clipped_coordinates: int = measure(unit="coordinates", low=0, better="lower")
    """Coordinates of the gallery outside the range that calibration set."""
    clipped_rows: int = measure(unit="rows", low=0, better="lower")
    """Rows of the gallery with such a coordinate."""
    clipped_query_coordinates: int = measure(unit="coordinates", low=0, better="lower")
    """The same of the queries; 0 where queries are the gallery or are not stored."""
    overflow_coordinates: int = measure(unit="coordinates", low=0, better="lower")
    """Coordinates that became infinite."""
    overflow_rows: list[str]
    """Rows with such a coordinate, the first ten."""
    zero_rows: int = measure(unit="rows", low=0, better="lower")
    """Rows that read as zero: they have no direction, and their cosines read 0."""
    constant_dimensions: list[int]
    """Coordinates without spread in the calibration rows, the first ten."""


class MarginBin(Results):
    """Queries whose boundary margin lies in one quarter of all margins; equal margins together."""

    low: float
    """Smallest margin in the bin."""
    high: float
    """Largest margin in the bin."""
    queries: int
    changed: int
    """Queries of the bin whose set changed."""


class ConditionResults(ResultsAtK):
    """What one condition does to the neighbours."""

    against: Literal["reference", "offset_reference"]
    """What it is compared with."""
    overlap: dict[int, Estimate] = measure(low=0, high=1, better="higher")
    """Share of the reference neighbours that are still among the neighbours, mean over queries."""
    jaccard: dict[int, Estimate] = measure(low=0, high=1, better="higher")
    """Shared over all neighbours of both sets, mean over queries."""
    rbo: Estimate = measure(low=0, high=1, better="higher")
    """Rank-biased overlap of the lists, persistence .9, extrapolated; mean over queries."""
    kendall_tau: Estimate = measure(low=-1, high=1, better="higher")
    """Agreement in order of the neighbours that stay, mean over queries that keep two or more."""
    kendall_excluded: int | None = measure(unit="queries", low=0, better="lower")
    """Queries that keep fewer than two neighbours, left out of Kendall's tau."""
    changed: Estimate = measure(low=0, high=1, better="lower")
    """Share of queries whose set of neighbours changed."""
    changed_queries: int | None = measure(unit="queries", low=0, better="lower")
    """Queries whose set of neighbours changed."""
    turnover: float | None = measure(low=0, high=1, better="lower")
    """Share of neighbours that were replaced, mean over queries."""
    certified: int | None = measure(unit="queries", low=0, better="higher")
    """Queries whose set cannot change under any rounding of this size: proved, not observed."""
    uncertified_unchanged: int | None = measure(unit="queries", low=0)
    """Queries whose set did not change though that is not proved."""
    unresolved: int | None = measure(unit="queries", low=0, better="lower")
    """Queries with a tie at the last place, before or after: never certified."""
    score_error: ScoreError
    label_precision: dict[int, Estimate] = measure(
        low=0, high=1, better="higher", needs=("labels",)
    )
    """Share of neighbours with the query's label, mean over queries."""
    label_precision_change: dict[int, Estimate] = measure(
        low=-1, high=1, better="higher", needs=("labels",)
    )
    """The same minus that of the reference; never larger than the turnover, either way."""
    changed_same_precision: int | None = measure(unit="queries", low=0, needs=("labels",))
    """Queries whose set changed and whose label precision did not."""
    changed_by_margin: list[MarginBin] | None
    """Changed queries by boundary margin of the reference."""
    storage: StorageFacts | None


class NeighbourStability(Results):
    n: int
    """Rows of the gallery."""
    queries: int
    """Queries."""
    d: int
    """Dimensions."""
    k: int
    """Neighbours of each query."""
    scored: Literal["cosine", "dot"]
    """What ranks rows."""
    stored: Literal["unit", "as_given"]
    """Whether rows were brought to length one before they were stored."""
    reference: Reference
    conditions: dict[ConditionName, ConditionResults] = named("condition")
    """One entry for each condition."""

    charts = (
        Dots(
            "overlap",
            "How many neighbours stay?",
            (Shown("conditions.{condition}.overlap@{k}"),),
            axis="share of neighbours that stay",
            lines={"unchanged": 1},
            zero=False,
        ),
        Bars(
            "proved",
            "Which sets of neighbours cannot change, and which did?",
            (
                Shown("conditions.{condition}.certified", "cannot change, proved"),
                Shown("conditions.{condition}.uncertified_unchanged", "did not change"),
                Shown("conditions.{condition}.changed_queries", "changed"),
            ),
            axis="queries",
        ),
        Trade(
            "bytes",
            "What does a byte buy?",
            (Shown("conditions.{condition}.overlap@{k}"),),
            price="conditions.{condition}.storage.bytes_per_vector",
            told="bytes of each vector (log scale)",
            axis="share of neighbours that stay",
        ),
        Dots(
            "labels",
            "Do neighbours that change cost label precision?",
            (Shown("conditions.{condition}.label_precision_change@{k}"),),
            axis="change of label precision",
            lines={"no change": 0},
        ),
    )

    def readings(self) -> list[str]:
        lines = []
        for name, found in self.conditions.items():
            if found.changed_queries is None:
                why = found.undefined["changed_queries"].message
                lines.append(f"`{name}` cannot be judged: {why}")
                continue
            overlap = found.overlap[self.k]
            lines.append(
                f"`{name}`: {found.changed_queries} of {self.queries} queries have another set of "
                f"{self.k} neighbours, overlap {overlap:.4f} (1 is unchanged); {found.certified} "
                f"cannot change under rounding of this size, {found.uncertified_unchanged} did not "
                f"though nothing forbids it, {found.unresolved} are ties."
            )
        return lines
