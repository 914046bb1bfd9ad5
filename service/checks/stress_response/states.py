"""The rows as given and after each damage, with what is known of them before they are searched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from service.checks.stress_response.declared import StressResponseInputs
from service.numerics.coded import Coded, as_given
from service.numerics.damages import (
    SINGLE,
    Affine,
    Damage,
    Fitted,
    affine,
    fit,
    noisy,
    projected,
)
from service.numerics.extremes import refuse_extremes
from service.numerics.neighbours import silent
from service.numerics.rows import Floats, Rows
from service.numerics.spectrum import NO_SPREAD, Triangle, reduced, reduced_by_squares

TOO_FEW_DIRECTIONS, TIED_DIRECTIONS, NO_DEVIATION = 1, 2, 3
"""Why a damage cannot be done."""


@dataclass(frozen=True)
class State:
    """
    Rows in one state.

    Attributes
    ----------
    rows : Coded
        In fewer dimensions where they are coordinates in the directions kept.
    triangle : function
        Reduces the same rows, or says what is known of them.
    reach : (n,)
        Lengths of what was added up; a row within rounding of it is zero.
    scale : float or None
        Deviations from the mean are those of the rows as given, times this.
    same_cosines : bool
        Every cosine is the one of the rows as given.
    features : function or None
        The train rows and the rows after the damage; None where one scale and one shift, the same for
        both, lead back to those as given, as standardising does.
    """

    rows: Coded
    triangle: Callable[[], Triangle]
    reach: Floats
    scale: float | None = None
    same_cosines: bool = False
    features: Callable[[], tuple[Rows, Rows]] | None = None


class States:
    """Every state of some rows, each damage fitted on train rows alone."""

    def __init__(self, inputs: StressResponseInputs, seed: int, threads: int) -> None:
        for role in ("train", "vectors"):
            refuse_extremes(getattr(inputs, role), f"/inputs/{role}", "scale the rows")
        self.train, self.rows = inputs.train.vectors, inputs.vectors.vectors
        self.seed, self.threads = seed, threads

    @cached_property
    def given(self) -> State:
        """The rows as given."""
        rows = as_given(self.rows, cosine=True, threads=self.threads)
        return State(
            rows=rows,
            triangle=lambda: self.triangle,
            reach=np.zeros(rows.n),
            scale=1.0,
            same_cosines=True,
        )

    @cached_property
    def triangle(self) -> Triangle:
        """Of the rows as given."""
        return reduced(self.given.rows, self.threads, silent)

    @cached_property
    def dtype(self) -> type[np.floating]:
        """What projected and noisy rows are kept in: float32, unless that would lose digits."""
        norms = self.given.rows.divisors
        low, high = min(norms.min(), self.fitted.length), max(norms.max(), self.fitted.length)
        single = SINGLE[0] < low and high < SINGLE[1] and self.rows.dtype != np.float64
        return np.float32 if single else np.float64

    @cached_property
    def fitted(self) -> Fitted:
        return fit(self.train, self.threads, silent)

    def damaged(self, damage: Damage, severity: float) -> State | int:
        """The rows after a damage, or why it cannot be done."""
        moved = affine(damage, severity, self.fitted, self.seed)
        if moved is not None:
            return self._moved(moved)
        if damage == "rank_restriction":
            return self._restricted(self.fitted.kept(severity))
        if self.fitted.deviation == 0:
            return NO_DEVIATION
        deviation = self.fitted.deviation * severity / (1 - severity)
        made = noisy(self.rows, deviation, self.dtype, self.seed, "damage noise", self.threads)
        rows = as_given(made, cosine=True, threads=self.threads)
        return State(
            rows=rows,
            triangle=lambda: (
                reduced_by_squares(rows, self.threads) or reduced(rows, self.threads, silent)
            ),
            reach=np.zeros(rows.n),
            features=lambda: (
                noisy(
                    self.train,
                    deviation,
                    self.dtype,
                    self.seed,
                    "damage noise on train",
                    self.threads,
                ),
                made,
            ),
        )

    def _moved(self, moved: Affine) -> State:
        rows, scale = self.given.rows, moved.scale

        def triangle() -> Triangle:
            mean, r, squares = self.triangle
            return Triangle(scale * mean + moved.shift, scale * r, scale**2 * squares)

        return State(
            rows=moved.of(rows, self.threads),
            triangle=triangle,
            reach=scale * rows.divisors + float(np.linalg.norm(moved.shift)),
            scale=scale,
            same_cosines=not moved.shift.any(),
        )

    def _restricted(self, count: int) -> State | int:
        if not self.fitted.spans(count):
            return TOO_FEW_DIRECTIONS
        if not self.fitted.separates(count):
            return TIED_DIRECTIONS
        turn = self.fitted.directions[:count]

        def triangle() -> Triangle:
            mean, r, _ = self.triangle
            inside = r @ turn.T
            return Triangle(turn @ mean, inside, np.square(inside @ turn).sum(axis=0))

        made = projected(self.rows, turn, self.dtype, self.threads)
        # standardising would blow up a coordinate of nothing but rounding
        reached = np.linalg.norm(turn, axis=0) > NO_SPREAD
        back = np.where(reached, turn, 0).astype(self.dtype)
        return State(
            rows=as_given(made, cosine=True, threads=self.threads),
            triangle=triangle,
            reach=self.given.rows.divisors,
            features=lambda: (
                projected(self.train, turn, self.dtype, self.threads) @ back,
                made @ back,
            ),
        )
