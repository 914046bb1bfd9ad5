"""What the instruments read in each state of the rows, as arrays of one block for each state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from threading import Lock
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
from service.numerics.rows import Floats, ordered_map
from service.numerics.spectrum import (
    NO_SPREAD,
    Spectra,
    Triangle,
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
SIDE_BY_SIDE = 2


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

    The rows as given are searched for every part: each state is compared with them. Two states are
    measured side by side, since much of LAPACK runs on one thread.
    """
    conditions = list(params.conditions.values())
    with context.stage("conditions") as step:
        told = Together(1 + len(blocks), step)
        beside = min(SIDE_BY_SIDE, context.threads)
        states = States(inputs, context.seed, context.threads // beside)
        native = nearest_graph(states.given.rows, params.k, context.threads, told.of(0))
        bench = Bench(inputs, params, states, native)

        def measured(place: int, block: int) -> dict[str, NDArray[Any]]:
            state = states.damaged(*conditions[block - 1]) if block else states.given
            found = bench.read(state, told.of(place))
            told.of(place)(1, 1)
            return found

        found = list(ordered_map(lambda at: measured(*at), enumerate(blocks, start=1), beside))
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


class Together:
    """How far several are that run side by side, as one."""

    def __init__(self, count: int, step: Step) -> None:
        self._percent, self._step, self._lock = [0] * count, step, Lock()

    def of(self, place: int) -> Step:
        """What one of them tells."""

        def tell(done: int, total: int) -> None:
            with self._lock:
                self._percent[place] = 100 * done // total
                self._step(sum(self._percent), 100 * len(self._percent))

        return tell


@dataclass(frozen=True)
class Moments:
    """`ESTIMATES` some of which need directions, each without each unit, (G,)."""

    values: dict[str, float]
    deleted: dict[str, Floats]

    def times(self, factor: float) -> Moments:
        return Moments(
            {name: value * factor for name, value in self.values.items()},
            {name: values * factor for name, values in self.deleted.items()},
        )


class Bench:
    """The instruments, and what they read on the rows as given."""

    def __init__(
        self,
        inputs: StressResponseInputs,
        params: StressResponseParams,
        states: States,
        native: Graph,
    ) -> None:
        self.inputs, self.params, self.states, self.native = inputs, params, states, native
        self.k, self.threads, self.n = params.k, states.threads, inputs.vectors.n
        groups = inputs.groups
        self.units = Units.rows(self.n) if groups is None else Units.groups(groups.dense)
        self.wanted = Wanted.of(inputs)
        self._probe = Lock()
        """A probe holds its features in float64, and silences warnings of the whole process."""

    def read(self, state: State | int, step: Step) -> dict[str, NDArray[Any]]:
        """Every instrument; NaN and 0 where nothing is read."""
        none = np.zeros(self.n, np.int16)
        found: dict[str, Any] = {
            "why": 0, "zero_rows": 0, "unresolved": 0, "shared": none, "hits": none,
            "numbers": np.full(len(NUMBERS), np.nan),
            "deleted": np.full((len(ESTIMATES), len(self.units.counts)), np.nan),
            "right": np.zeros(self.n, np.int8), "probe": np.full(3, np.nan),
        }  # fmt: skip
        if isinstance(state, int):
            found["why"] = state
        else:
            norms = lengths(state.rows, self.threads)
            zero = int(np.count_nonzero(norms <= NO_SPREAD * state.reach))
            found["zero_rows"] = zero
            found |= self._geometry(state, norms, zero)
            found |= self._probed(state)
            if not zero:
                found |= self._neighbours(state, step)
        return {name: np.asarray(value) for name, value in found.items()}

    def _geometry(self, state: State, norms: Floats, zero: int) -> dict[str, Any]:
        numbers = dict.fromkeys(NUMBERS, np.nan) | {"norm_median": float(np.median(norms))}
        deleted = dict.fromkeys(ESTIMATES, np.full(len(self.units.counts), np.nan))
        moments = [self._variance(state)]
        if zero < self.n:
            numbers["norm_cv"] = float(norms.std() / norms.mean())
            numbers |= self._shape(state)
        if not zero:
            moments.append(self._directions(state))
        for one in moments:
            numbers |= one.values
            deleted |= one.deleted
        return {
            "numbers": [numbers[name] for name in NUMBERS],
            "deleted": [deleted[name] for name in ESTIMATES],
        }

    def _neighbours(self, state: State, step: Step) -> dict[str, Any]:
        graph = (
            self.native
            if state.same_cosines
            else nearest_graph(state.rows, self.k, self.threads, step)
        )
        return {
            "unresolved": graph.unresolved,
            "shared": self._shared(graph.ids),
            "hits": self._hits(graph.ids),
        }

    def _probed(self, state: State) -> dict[str, Any]:
        if isinstance(self.wanted, Undefined):
            return {}
        with self._probe:
            tried = self._tried(self.wanted, state)
        return {
            "right": tried.right.astype(np.int8),
            "probe": [tried.train_accuracy, tried.n_iter, tried.converged],
        }

    def _tried(self, wanted: Wanted, state: State) -> Tried:
        if state.features is None:
            return self._tried_as_given
        return wanted.tried(*state.features(), self.params)

    @cached_property
    def _tried_as_given(self) -> Tried:
        if isinstance(self.wanted, Undefined):
            raise TypeError("There is nothing to learn.")
        return self.wanted.tried(self.states.train, self.states.rows, self.params)

    def _spectra(self, state: State, triangle: Triangle) -> Spectra:
        """What is known of the rows as given is not decomposed again."""
        if state.scale is not None and state.same_cosines:
            return self._given_spectra.times(state.scale)
        known = None if state.scale is None else state.scale * self._given_spectra.centred
        return spectra_of_triangle(self.n, triangle, known)

    @cached_property
    def _given_spectra(self) -> Spectra:
        return spectra_of_triangle(self.n, self.states.triangle)

    def _shape(self, state: State) -> dict[str, float]:
        triangle = state.triangle()
        found = self._spectra(state, triangle)
        size = min(self.n, len(triangle.squares))
        raw, centred = (np.pad(v, (0, size - len(v))) for v in (found.raw, found.centred))
        numbers = {"stable_rank": stable_rank(raw), "rankme": rankme(raw)}
        if found.spread:
            variances, by_dimension = np.square(centred), triangle.squares
            numbers |= {
                "largest_over_mean": float(by_dimension.max() / by_dimension.mean()),
                "participation_ratio": participation_ratio(variances),
                "rankme_centred": rankme(centred),
                "dimensions_90": dimensions_holding(variances, 0.9),
            }
        return numbers

    def _variance(self, state: State) -> Moments:
        if state.scale is not None:
            return self._given_variance.times(state.scale**2)
        return self._variance_of(state)

    @cached_property
    def _given_variance(self) -> Moments:
        return self._variance_of(self.states.given)

    def _variance_of(self, state: State) -> Moments:
        sums = deviations(state.rows, self.units, self.threads)
        value = float(sums.squares.sum()) / (self.n - 1)
        return Moments({"total_variance": value}, {"total_variance": sums.without_each().variance})

    def _directions(self, state: State) -> Moments:
        return self._given_directions if state.same_cosines else self._directions_of(state)

    @cached_property
    def _given_directions(self) -> Moments:
        return self._directions_of(self.states.given)

    def _directions_of(self, state: State) -> Moments:
        points = Points(state.rows)
        sums = deviations(points, self.units, self.threads)
        without, means = sums.without_each(), (sums.mean, sums.mean)
        pairs = pair_moments(points, points, Units.rows(self.n), self.threads, silent, means)
        return Moments(
            {
                "dispersion_v": float(sums.squares.sum()) / self.n,
                "mean_resultant_length": float(np.linalg.norm(sums.mean)),
                "anisotropy": mean_cosine(sums),
                "anisotropy_sd": pairs.sd,
            },
            {
                "dispersion_v": without.dispersion,
                "mean_resultant_length": without.length,
                "anisotropy": without.mean_cosine,
            },
        )

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
