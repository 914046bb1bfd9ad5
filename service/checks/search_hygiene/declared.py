"""What `search_hygiene` takes and returns."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from service.check import (
    Dots,
    Estimate,
    Inputs,
    Params,
    Results,
    ResultsAtK,
    Shown,
    measure,
    vectors,
)
from service.dataset import Dataset

RANDOM = "random directions"


class SearchHygieneInputs(Inputs):
    vectors: Dataset = vectors(rows="rows", least=3, more_than="k")
    """Rows to search among themselves."""


class SearchHygieneParams(Params):
    k: int = Field(default=10, ge=2, le=100)
    """Neighbours of each row, itself left out."""
    rows: int = Field(default=20_000, ge=3, le=200_000)
    """Most rows to search; of more, a random sample is taken. More than `k`."""
    near_duplicate: float = Field(default=0.99, gt=0, le=1)
    """Cosine from which two rows count as near duplicates."""
    outlier_deviations: float = Field(default=3.5, gt=0)
    """How many robust standard deviations below the median make a row an outlier."""
    island_size: int = Field(default=10, ge=1)
    """Largest component of the mutual graph that counts as an island."""
    listed: int = Field(default=20, ge=0, le=1000)
    """How many hubs, outliers and islands to list, the most extreme first."""

    @model_validator(mode="after")
    def _room_for_neighbours(self) -> Self:
        if self.rows <= self.k:
            raise ValueError(f"`rows` must be more than `k`, which is {self.k}")
        return self

    def names(self) -> dict[str, list[str]]:
        return {"k": [str(self.k)]}


class Hub(Results):
    """A row that many lists hold."""

    id: str
    lists: int
    """Lists it stands in."""


class Hubness(Results):
    """Whether few rows stand in many lists."""

    skewness: float | None = measure(better="lower", invariance=("monotone",))
    """Skewness of the number of lists a row stands in."""
    skewness_random: float | None = measure()
    """The same of random directions."""
    top_share: float = measure(low=0, high=1, better="lower", invariance=("monotone",))
    """Share of all places in lists that the most listed 1 % of rows hold."""
    top_share_random: float = measure(low=0, high=1)
    """The same of random directions."""
    hubs: list[Hub]
    """Rows in the most lists."""


class Antihubs(Results):
    """Rows that no search finds."""

    share: float = measure(low=0, high=1, better="lower", invariance=("monotone",))
    """Share of rows that stand in no list."""
    share_random: float = measure(low=0, high=1)
    """The same of random directions."""


class NearDuplicates(Results):
    """Rows that are almost the same."""

    rows: int = measure(unit="rows", low=0, better="lower", invariance=("orthogonal",))
    """Rows with a near duplicate."""
    rows_random: float = measure(unit="rows", low=0)
    """Expected of random directions, in closed form."""
    pairs: int = measure(unit="pairs", low=0, better="lower", invariance=("orthogonal",))
    """Pairs of near duplicates of which one lists the other: at most k for each row."""


class Outlier(Results):
    """A row far from its neighbours."""

    id: str
    similarity: float
    """Mean cosine with its neighbours."""


class Outliers(Results):
    """Rows whose mean cosine with their neighbours is far below the median of all rows."""

    rows: int | None = measure(unit="rows", low=0, better="lower", invariance=("similarity",))
    """Rows further below the median than `outlier_deviations` times 1.4826 the median deviation."""
    rows_random: int | None = measure(unit="rows", low=0)
    """The same of random directions."""
    median: float = measure(low=-1, high=1, invariance=("orthogonal",))
    """Median over rows of the mean cosine with the k nearest."""
    below: float | None = measure(invariance=("orthogonal",))
    """What outliers lie below."""
    listed: list[Outlier]
    """Furthest from their neighbours first."""


class Island(Results):
    """A small component."""

    rows: int
    ids: list[str]
    """Its first ten rows."""


class Islands(Results):
    """Small components of the graph that joins rows which list each other."""

    rows: int = measure(unit="rows", low=0, better="lower", invariance=("monotone",))
    """Rows on islands: components of up to `island_size` rows, the largest of all excepted."""
    rows_random: int = measure(unit="rows", low=0)
    """The same of random directions."""
    islands: int = measure(unit="islands", low=0, better="lower", invariance=("monotone",))
    """Islands of two rows or more."""
    alone: int = measure(unit="rows", low=0, better="lower", invariance=("monotone",))
    """Rows that no row they list lists back."""
    largest_share: float = measure(low=0, high=1, better="higher", invariance=("monotone",))
    """Share of rows in the largest component."""
    largest_share_random: float = measure(low=0, high=1)
    """The same of random directions."""
    listed: list[Island]
    """Islands of two rows or more, largest first."""


class MetricMismatch(ResultsAtK):
    """How many of the k nearest by cosine are also nearest by another metric on the raw rows."""

    dot: dict[int, Estimate] = measure(
        low=0, high=1, better="higher", invariance=("orthogonal", "uniform_scale")
    )
    """Share that is among the k largest inner products, mean over rows; ties count as shared."""
    dot_random: float | None = measure(low=0, high=1)
    """The same of random directions with the lengths of the rows."""
    dot_unresolved: int | None = measure(unit="rows", low=0, better="lower")
    """Rows whose last place by inner product is within the rounding of float64."""
    l2: dict[int, Estimate] = measure(
        low=0, high=1, better="higher", invariance=("orthogonal", "uniform_scale")
    )
    """Share that is among the k smallest Euclidean distances, mean over rows; ties count as shared."""
    l2_random: float | None = measure(low=0, high=1)
    """The same of random directions with the lengths of the rows."""
    l2_unresolved: int | None = measure(unit="rows", low=0, better="lower")
    """Rows whose last place by distance is within the rounding of float64."""


class IntrinsicDimension(Results):
    """Dimensions that the distances to the two nearest rows tell of (TwoNN)."""

    two_nn: Estimate = measure(unit="dimensions", low=0, invariance=("similarity",))
    """(N - 1) / sum ln(r2 / r1) over N different directions."""
    two_nn_random: float | None = measure(unit="dimensions", low=0)
    """The same of random directions, of d - 1 dimensions; few rows show fewer."""
    duplicates: int = measure(unit="rows", low=0, better="lower", invariance=("similarity",))
    """Rows left out because an earlier one has their direction."""


class SearchHygiene(Results):
    n: int
    """Rows searched."""
    of: int
    """Rows there are."""
    d: int
    """Dimensions."""
    k: int
    """Neighbours of each row."""
    tied_at_cutoff: int = measure(unit="rows", low=0, better="lower", invariance=("monotone",))
    """Rows whose last neighbour scores exactly as the first left out; the lower row number stays."""
    unresolved: int = measure(unit="rows", low=0, better="lower")
    """Rows where the two differ by no more than the rounding of float64, ties among them."""
    hubness: Hubness
    antihubs: Antihubs
    near_duplicates: NearDuplicates
    outliers: Outliers
    islands: Islands
    metric_mismatch: MetricMismatch
    relative_contrast: float | None = measure(low=1, better="higher", invariance=("similarity",))
    """Mean distance of two unit rows over the mean distance to the nearest; near 1 all are alike."""
    relative_contrast_random: float | None = measure(low=1)
    """Of random directions, in closed form."""
    intrinsic_dimension: IntrinsicDimension
    uniformity: Estimate = measure(low=-8, high=0, better="lower", invariance=("orthogonal",))
    """log mean exp(-2 |z_i - z_j|^2) over i != j, z unit rows; 0 if all are equal."""
    uniformity_random: float = measure(low=-8, high=0)
    """Of random directions, in closed form."""

    charts = (
        Dots(
            "shares",
            "Does search behave as it would on random directions?",
            (
                Shown(
                    "hubness.top_share", "places of top 1 %", {RANDOM: "hubness.top_share_random"}
                ),
                Shown("antihubs.share", "rows in no list", {RANDOM: "antihubs.share_random"}),
                Shown(
                    "islands.largest_share",
                    "largest part",
                    {RANDOM: "islands.largest_share_random"},
                ),
                Shown(
                    "metric_mismatch.dot@{k}",
                    "nearest by dot too",
                    {RANDOM: "metric_mismatch.dot_random"},
                ),
                Shown(
                    "metric_mismatch.l2@{k}",
                    "nearest by l2 too",
                    {RANDOM: "metric_mismatch.l2_random"},
                ),
            ),
            axis="share",
        ),
        Dots(
            "rows",
            "How many rows are odd?",
            (
                Shown(
                    "near_duplicates.rows",
                    "with a near duplicate",
                    {RANDOM: "near_duplicates.rows_random"},
                ),
                Shown("outliers.rows", "outliers", {RANDOM: "outliers.rows_random"}),
                Shown("islands.rows", "on islands", {RANDOM: "islands.rows_random"}),
                Shown("islands.alone", "alone"),
                Shown("unresolved", "tied at place k"),
            ),
            axis="rows",
        ),
        Dots(
            "hubs",
            "Which rows stand in the most lists?",
            (Shown("hubness.hubs.{id}.lists"),),
            axis="lists",
            lines={"lists of a row on average": "k"},
        ),
        Dots(
            "dimension",
            "Of how many dimensions do the distances tell?",
            (
                Shown(
                    "intrinsic_dimension.two_nn",
                    "TwoNN",
                    {RANDOM: "intrinsic_dimension.two_nn_random"},
                ),
            ),
            lines={"dimensions there are": "d"},
        ),
    )

    def readings(self) -> list[str]:
        hubness, islands, mismatch = self.hubness, self.islands, self.metric_mismatch
        outliers = self.outliers
        same = f"random directions of the same {self.n} x {self.d}"
        lines = [
            f"The most listed 1 % of {self.n} rows hold a share of {hubness.top_share:.4f} of all "
            f"places in lists of {self.k} (skewness {_number(hubness.skewness)}); {same} give "
            f"{hubness.top_share_random:.4f} ({_number(hubness.skewness_random)}).",
            f"A share of {self.antihubs.share:.4f} of the rows stands in no list, so no search for "
            f"another row finds it; random {self.antihubs.share_random:.4f}.",
            f"{self.near_duplicates.rows} rows have a near duplicate (random "
            f"{self.near_duplicates.rows_random:.3g}).",
            f"{islands.rows} rows are on islands, {islands.alone} of them alone; the largest part "
            f"that joins rows which list each other holds a share of {islands.largest_share:.4f} "
            f"(random {islands.rows_random} rows and {islands.largest_share_random:.4f}).",
        ]
        if mismatch.dot_random is not None:
            lines.append(
                f"Of the {self.k} nearest by cosine, a share of {mismatch.dot[self.k]:.4f} is nearest "
                f"by inner product and {mismatch.l2[self.k]:.4f} by Euclidean distance; random "
                f"directions of these lengths give {mismatch.dot_random:.4f} and "
                f"{mismatch.l2_random:.4f}."
            )
        if outliers.rows is not None:
            lines.append(
                f"{outliers.rows} rows have a mean cosine with their neighbours below "
                f"{outliers.below:.4f}, far under the median of {outliers.median:.4f} (random "
                f"{_number(outliers.rows_random)} rows)."
            )
        if self.relative_contrast is not None:
            lines.append(
                f"Any row is on average {self.relative_contrast:.3f} times as far as the "
                f"nearest (random {_number(self.relative_contrast_random)}; 1 would make "
                "search meaningless)."
            )
        if self.intrinsic_dimension.two_nn.estimate is not None:
            lines.append(
                f"Distances to the two nearest rows tell of {self.intrinsic_dimension.two_nn:.1f} "
                f"dimensions (random {_number(self.intrinsic_dimension.two_nn_random)})."
            )
        if self.uniformity.estimate is not None:
            lines.append(
                f"Uniformity is {self.uniformity:.4f}, where random directions have "
                f"{self.uniformity_random:.4f} and equal rows 0."
            )
        return lines


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4g}"
