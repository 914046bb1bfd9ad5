"""Numbers of queries as estimates over units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from service.check import Arrays, Estimate, Undefined, change_of, estimate_of, rescaled
from service.checks.retrieval.declared import RetrievalInputs, RetrievalParams
from service.checks.retrieval.part import Judged
from service.numerics.changes import change_of_units
from service.numerics.moments import Units
from service.numerics.ranking import chance_hit
from service.numerics.rows import Floats

Kind = Literal["share", "plain"]
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


class Summary:
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

    def attainable(self, what: str, k: int) -> float:
        """The most that any query can have: what it has with all its relevant documents in front."""
        counts = self.judged.relevant.counts
        found = np.minimum(counts, k)
        if what == "precision":
            return float((found / k).max())
        return float((found / counts).max()) if what == "recall" else 1.0

    def estimate(
        self, values: Floats, kind: Kind, why: Undefined, attainable: float = 1.0
    ) -> Estimate:
        """
        The mean over units of their means, each unit left out in turn.

        Parameters
        ----------
        values : (m,) of each query
        kind : "share" of values in [0, `attainable`], or "plain"
        why : there is none
        attainable : of it values are shares; the interval lies within
        """
        own = self.units.means(values / attainable)
        own = own[np.isfinite(own)]
        if not len(own):
            return estimate_of(why, np.empty(0), self.params, self.name)
        value, total = float(own.mean()), float(own.sum())
        deleted = (total - own) / (len(own) - 1) if len(own) > 1 else np.empty(0)
        if kind == "share":
            value = min(max(value, 0.0), 1.0)
        found = estimate_of(
            value,
            deleted,
            self.params,
            self.name,
            share=value if kind == "share" else None,
        )
        return rescaled(found, attainable)

    def change(self, values: Floats, attainable: float = 1.0) -> Estimate:
        """The mean over units of a difference of two such shares, which some query has."""
        found = change_of_units(values / attainable, self.units.units)
        return rescaled(change_of(found, self.params, self.name), attainable)

    def of(self, name: str, what: str) -> NDArray[Any]:
        return np.asarray(self.parts[f"{name}.{what}"])

    def missing(self, name: str) -> Undefined:
        """Why no query has a margin."""
        if self.params.scoring == "dot":
            return BY_DOT
        return COINCIDENT if self.of(name, "coincident").any() else ALL_RELEVANT
