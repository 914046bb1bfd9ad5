"""What `cosine_floor` takes and returns."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.check import (
    Dots,
    Estimate,
    Inputs,
    Params,
    Results,
    Shown,
    labels,
    measure,
    optional,
    vectors,
)
from service.dataset import Dataset, Labels

SCORINGS = "{scoring:raw|centred|aligned}"


class CosineFloorInputs(Inputs):
    a: Dataset = vectors(rows="pairs", least=3)
    """One side of the pairs."""
    b: Dataset = vectors(rows="pairs", least=3)
    """The other side: row i belongs to row i of `a`."""
    fit_a: Dataset | None = vectors(rows="fit_a", default=None)
    """Rows to fit the mean of side `a` on; best from a train split of the same population."""
    fit_b: Dataset | None = vectors(rows="fit_b", default=None)
    """Rows to fit the mean of side `b` on."""
    groups: Labels | None = labels(of="a", least=2)
    """Which pairs are related to each other: their cross pairs are no floor, and they are the unit
    of every interval."""


class CosineFloorParams(Params):
    shared_mean: bool = False
    """Centre both sides by one mean: for one model and one population."""
    derangements: int = Field(default=20, ge=1, le=1000)
    """How many random pairings of unrelated rows make the sampled floor."""
    align: Literal["procrustes"] | None = None
    """Fit an orthogonal map on half of the pairs and report the mapped other half too."""


class PartnerRankedFirst(Results):
    """How often the partner is the nearest row of the other side; ties share the place."""

    a_to_b: Estimate = measure(low=0, high=1, better="higher", invariance=("monotone",))
    """Share of rows of `a` whose partner is their nearest row of `b`."""
    b_to_a: Estimate = measure(low=0, high=1, better="higher", invariance=("monotone",))
    """Share of rows of `b` whose partner is their nearest row of `a`."""
    a_to_b_count: int = measure(unit="rows", low=0, better="higher", invariance=("monotone",))
    """Rows of `a` whose partner is first outright."""
    b_to_a_count: int = measure(unit="rows", low=0, better="higher", invariance=("monotone",))
    """Rows of `b` whose partner is first outright."""
    tied: int = measure(unit="rows", low=0, better="lower", invariance=("monotone",))
    """Rows, of both sides, whose partner shares the first place."""
    chance: float
    """What a random order would give: 1/n."""


class Reading(Results):
    """Matched pairs against unrelated pairs, in one scoring."""

    n: int
    """Pairs read."""
    matched: Estimate = measure(low=-1, high=1, invariance=("orthogonal",))
    """Mean cosine of the pairs."""
    floor: Estimate = measure(low=-1, high=1, invariance=("orthogonal",))
    """Mean cosine of randomly re-paired, unrelated rows."""
    gap: Estimate = measure(low=-2, high=2, better="higher", invariance=("orthogonal",))
    """matched - floor."""
    floor_sd: float = measure(low=0, high=1, invariance=("orthogonal",))
    """Standard deviation (ddof 0) of the re-paired cosines."""
    gap_over_floor_sd: Estimate = measure(better="higher", invariance=("similarity",))
    """Gap in standard deviations of the floor."""
    cohens_d: Estimate = measure(better="higher", invariance=("similarity",))
    """Gap over the root mean of the two variances (ddof 0)."""
    floor_all: Estimate = measure(low=-1, high=1, invariance=("orthogonal",))
    """Exact mean cosine over all unrelated pairs."""
    floor_all_sd: float = measure(low=0, high=1, invariance=("orthogonal",))
    """Standard deviation over all unrelated pairs; 0 where below rounding."""
    gap_all: Estimate = measure(low=-2, high=2, better="higher", invariance=("orthogonal",))
    """matched - floor_all."""
    unrelated_pairs: int
    """Ordered pairs in the exact floor."""
    partner_ranked_first: PartnerRankedFirst


class MeanSource(Results):
    """Where a mean came from."""

    rows: str
    """Roles whose unit rows were averaged."""
    count: int
    """How many rows."""


class Means(Results):
    a: MeanSource
    b: MeanSource


class SpaceGuard(Results):
    """Whether an orthogonal map, fitted on other pairs, brings the two sides together."""

    train_pairs: int
    test_pairs: int
    matched: float
    """Held-out matched cosine as given."""
    matched_mapped: float
    """Held-out matched cosine after the map."""
    first: float
    """Held-out share of partners ranked first as given."""
    first_mapped: float
    """Held-out share of partners ranked first after the map."""


class CosineFloor(Results):
    n: int
    """Pairs compared."""
    raw: Reading
    """Cosine as it is."""
    centred: Reading
    """Cosine after the means are subtracted and rows renormalised, on the same re-pairings."""
    aligned: Reading | None = optional(needs=("align",))
    """Raw cosine of held-out pairs after an orthogonal map, where `align` asks for it."""
    anisotropy_a: float = measure(low=-1, high=1, invariance=("orthogonal",))
    """Mean cosine between different rows of `a`."""
    anisotropy_b: float = measure(low=-1, high=1, invariance=("orthogonal",))
    """Mean cosine between different rows of `b`."""
    residual_anisotropy_a: float = measure(low=-1, high=1, invariance=("similarity",))
    """The same after centring."""
    residual_anisotropy_b: float = measure(low=-1, high=1, invariance=("similarity",))
    """The same after centring."""
    means: Means
    induced_floor: float | None
    """Centred floor that fitting the mean on the compared rows makes by itself."""
    space_guard: SpaceGuard | None

    charts = (
        Dots(
            "floor",
            "Do matched pairs score above unrelated pairs?",
            (
                Shown(f"{SCORINGS}.matched", "matched pairs"),
                Shown(f"{SCORINGS}.floor_all", "unrelated pairs"),
            ),
            axis="mean cosine",
            colours="measure",
        ),
        Dots(
            "partner",
            "How often is the partner the nearest row of the other side?",
            tuple(
                Shown(
                    f"{SCORINGS}.partner_ranked_first.{way}",
                    beside={"random order": f"{SCORINGS}.partner_ranked_first.chance"},
                )
                for way in ("a_to_b", "b_to_a")
            ),
            colours="measure",
        ),
        Dots(
            "gap",
            "How far apart are matched and unrelated pairs, in deviations of the unrelated?",
            (Shown(f"{SCORINGS}.gap_over_floor_sd"),),
            axis="standard deviations of the sampled floor",
            lines={"no gap": 0},
        ),
    )

    def readings(self) -> list[str]:
        lines = []
        for name, reading in (("Raw", self.raw), ("Centred", self.centred)):
            first = reading.partner_ranked_first
            lines.append(
                f"{name}: matched pairs score {reading.matched:.4f}, unrelated pairs "
                f"{reading.floor_all.estimate:.4f}; the gap of {reading.gap_all:.4f} is "
                f"{_times(reading)}. The partner is first for "
                f"{first.a_to_b_count} of {reading.n} rows of a and {first.b_to_a_count} of b "
                f"(chance {first.chance:.4g})."
            )
        lines.append(
            f"Anisotropy is {self.anisotropy_a:.4f} and {self.anisotropy_b:.4f}, and "
            f"{self.residual_anisotropy_a:.4f} and {self.residual_anisotropy_b:.4f} after centring "
            f"by the mean of {self.means.a.rows} ({self.means.a.count} rows) and {self.means.b.rows} "
            f"({self.means.b.count} rows)."
        )
        if self.induced_floor is not None:
            lines.append(
                f"Fitting the mean on the compared rows alone makes a centred floor of about "
                f"{self.induced_floor:.4f}; fit it on other rows (`fit_a`, `fit_b`) to avoid that."
            )
        if self.aligned is not None:
            lines.append(
                f"After an orthogonal map fitted on the other half, {self.aligned.n} held-out pairs "
                f"score {self.aligned.matched:.4f} against {self.aligned.floor_all.estimate:.4f}."
            )
        return lines


def _times(reading: Reading) -> str:
    if reading.gap_all.estimate is None or reading.floor_all_sd == 0:
        return "not expressible in floor standard deviations, because the floor has none"
    times = reading.gap_all.estimate / reading.floor_all_sd
    return f"{times:.2f} standard deviations of the floor"
