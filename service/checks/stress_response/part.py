"""What the instruments read in each state of the rows, as arrays of one block for each state."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.check import Arrays, Context, Undefined
from service.checks.stress_response.declared import StressResponseInputs, StressResponseParams
from service.checks.stress_response.probing import Tried, Wanted
from service.checks.stress_response.states import State, States
from service.numerics import agreement
from service.numerics.coded import Points, lengths
from service.numerics.graph import Graph, nearest_graph
from service.numerics.moments import Units, deviations, mean_cosine, pair_moments
from service.numerics.neighbours import Ids, Step, silent
from service.numerics.rows import Floats
from service.numerics.spectrum import (
    NO_SPREAD,
    dimensions_holding,
    participation_ratio,
    rankme,
    spectra_of_triangle,
    stable_rank,
)

DIRECTIONAL = ("dispersion_v", "mean_resultant_length", "anisotropy")
"""Estimates that need the direction of every row."""
ESTIMATES = (*DIRECTIONAL, "total_variance")
SPECTRAL = (
    "largest_over_mean",
    "participation_ratio",
    "rankme_centred",
    "dimensions_90",
    "stable_rank",
    "rankme",
)
NUMBERS = (*ESTIMATES, "anisotropy_sd", "norm_median", "norm_cv", *SPECTRAL)


def plan(inputs: StressResponseInputs, params: StressResponseParams) -> int:
    """The rows as given, and one block for each condition."""
    return 1 + len(params.conditions)


def part(
    context: Context,
    inputs: StressResponseInputs,
    params: StressResponseParams,
    blocks: range,
) -> Arrays:
    """
    What is read in some states, the rows as given being block 0.

    The rows as given are searched for every part: each state is compared with them.
    """
    conditions = list(params.conditions.values())
    found: list[dict[str, NDArray[Any]]] = []
    with context.stage("conditions") as step:

        def tell(done: int, total: int) -> None:
            step(100 * len(found) + 100 * done // total, 100 * len(blocks))

        states = States(inputs, context.seed, context.threads)
        bench = Bench(context, inputs, params, states)
        for block in blocks:
            state = states.damaged(*conditions[block - 1]) if block else states.given
            found.append(bench.read(state, tell))
            tell(0, 1)
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


class Bench:
    """The instruments, and the neighbours of the rows as given."""

    def __init__(
        self,
        context: Context,
        inputs: StressResponseInputs,
        params: StressResponseParams,
        states: States,
    ) -> None:
        self.inputs, self.k, self.threads = inputs, params.k, context.threads
        self.n = inputs.vectors.n
        groups = inputs.groups
        self.units = Units.rows(self.n) if groups is None else Units.groups(groups.dense)
        self.native = self._graph(states.given, silent)
        self.states, self.params = states, params
        self.wanted = Wanted.of(inputs)

    def _graph(self, state: State, step: Step) -> Graph:
        return nearest_graph(state.rows, self.k, self.threads, step)

    def read(self, state: State | int, step: Step) -> dict[str, NDArray[Any]]:
        """Every instrument; NaN and 0 where there is nothing to read."""
        numbers = dict.fromkeys(NUMBERS, np.nan)
        deleted = np.full((len(ESTIMATES), len(self.units.counts)), np.nan)
        found: dict[str, Any] = {"zero_rows": 0, "unresolved": 0, "why": 0}
        shared, hits = np.zeros((2, self.n), np.int16)
        right, probe = np.zeros(self.n, np.int8), [np.nan] * 3
        if isinstance(state, int):
            found["why"] = state
        else:
            rows = state.rows
            norms = lengths(rows, self.threads)
            zero = int(np.count_nonzero(norms <= NO_SPREAD * state.reach))
            found["zero_rows"] = zero
            numbers["norm_median"] = float(np.median(norms))
            if zero < self.n:
                numbers["norm_cv"] = float(norms.std() / norms.mean())
                self._spectral(state, numbers)
            self._variance(state, numbers, deleted)
            if isinstance(self.wanted, Wanted):
                tried = self._tried(self.wanted, state)
                right = tried.right.astype(np.int8)
                probe = [tried.train_accuracy, tried.n_iter, tried.converged]
            if not zero:
                self._directional(state, numbers, deleted)
                graph = self.native if state.same_cosines else self._graph(state, step)
                found["unresolved"] = graph.unresolved
                shared, hits = self._shared(graph.ids), self._hits(graph.ids)
        found |= {"numbers": np.array(list(numbers.values())), "deleted": deleted}
        found |= {"shared": shared, "hits": hits, "right": right, "probe": np.array(probe)}
        return {name: np.asarray(value) for name, value in found.items()}

    def _tried(self, wanted: Wanted, state: State) -> Tried:
        if state.features is None:
            return self._tried_as_given
        return wanted.tried(*state.features(), self.params)

    @cached_property
    def _tried_as_given(self) -> Tried:
        if isinstance(self.wanted, Undefined):
            raise TypeError("There is nothing to learn.")
        return self.wanted.tried(self.states.train, self.states.rows, self.params)

    def _spectral(self, state: State, numbers: dict[str, float]) -> None:
        found = spectra_of_triangle(self.n, state.triangle)
        size = min(self.n, len(state.triangle.squares))
        raw, centred = (np.pad(v, (0, size - len(v))) for v in (found.raw, found.centred))
        numbers["stable_rank"], numbers["rankme"] = stable_rank(raw), rankme(raw)
        if found.spread:
            variances, by_dimension = np.square(centred), state.triangle.squares
            numbers["largest_over_mean"] = float(by_dimension.max() / by_dimension.mean())
            numbers["participation_ratio"] = participation_ratio(variances)
            numbers["rankme_centred"] = rankme(centred)
            numbers["dimensions_90"] = dimensions_holding(variances, 0.9)

    def _variance(self, state: State, numbers: dict[str, float], deleted: Floats) -> None:
        sums = deviations(state.rows, self.units, self.threads)
        numbers["total_variance"] = float(sums.squares.sum()) / (self.n - 1)
        deleted[ESTIMATES.index("total_variance")] = sums.without_each().variance

    def _directional(self, state: State, numbers: dict[str, float], deleted: Floats) -> None:
        points = Points(state.rows)
        sums = deviations(points, self.units, self.threads)
        without = sums.without_each()
        pairs = pair_moments(points, points, Units.rows(self.n), self.threads, silent)
        numbers |= {
            "dispersion_v": float(sums.squares.sum()) / self.n,
            "mean_resultant_length": float(np.linalg.norm(sums.mean)),
            "anisotropy": mean_cosine(sums),
            "anisotropy_sd": pairs.sd,
        }
        deleted[: len(DIRECTIONAL)] = without.dispersion, without.length, without.mean_cosine

    def _shared(self, ids: Ids) -> NDArray[np.int16]:
        """Neighbours of each row that it had before."""
        shared = np.empty(self.n, np.int64)
        agreement.compare(
            self.native.ids, ids, agreement.PERSISTENCE, shared, *np.empty((2, self.n))
        )
        return shared.astype(np.int16)

    def _hits(self, ids: Ids) -> NDArray[np.int16]:
        """Neighbours of each row with its label; zeros without labels."""
        if self.inputs.labels is None:
            return np.zeros(self.n, np.int16)
        codes = self.inputs.labels.codes
        same = codes[ids] == codes[:, None]
        return np.asarray(same.sum(axis=1, dtype=np.int16))
