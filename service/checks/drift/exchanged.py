"""Permutation tests of the sides as two groups: variation between them, and unequal spread."""

from __future__ import annotations

import numpy as np

from service.check import Undefined, p_value
from service.checks.drift.declared import Permanova, SpreadTest
from service.checks.drift.sides import ZERO_TOTAL, Sides
from service.numerics.dispersion import anova_f, dispersion_test, distances, residuals
from service.numerics.moments import Units
from service.numerics.permanova import Slabs, between_test, expected_between
from service.numerics.permutation_test import PermutationTest
from service.numerics.rows import Floats

FEWEST_DISPERSED = 5
NO_SPREAD = 1e-20
ZERO_WITHIN = Undefined(
    code="zero_within", message="The rows of each side are equal: nothing varies inside the sides."
)


def permanova_of(
    sides: Sides, x: Slabs | None, squares: Floats
) -> tuple[Permanova, float | Undefined]:
    """F and F2 with their tests, and the R2 that no drift gives."""
    context, params, parts = sides.context, sides.params, sides.parts
    if x is None:
        none = p_value(ZERO_TOTAL, params.level)
        nothing = Permanova.build(pseudo_f=ZERO_TOTAL, p=none, pseudo_f2=ZERO_TOTAL, p_f2=none)
        return nothing, ZERO_TOTAL
    with context.stage("permanova") as step:
        tests = between_test(
            x, squares, sides.design, parts.ss_total, params.permutations, context.seed,
            params.level, context.threads, step,
        )  # fmt: skip
        expected = expected_between(x, sides.design)
    f: float | Undefined = ZERO_WITHIN
    f2: float | Undefined = ZERO_WITHIN
    between, sizes = max(0.0, parts.ss_total - parts.ss_within), parts.counts.astype(np.float64)
    if not all(sides.tight):
        f = between / (parts.ss_within / (parts.n - 2))
        f2 = between / float(((1 - sizes / parts.n) * parts.within / (sizes - 1)).sum())
    no_f2 = Undefined(code="no_difference", message="The means are equal: F2 is 0 and untested.")
    found = Permanova.build(
        pseudo_f=f,
        p=p_value(tests.f, params.level),
        pseudo_f2=f2,
        p_f2=p_value(ZERO_WITHIN if f2 is ZERO_WITHIN else tests.f2 or no_f2, params.level),
    )
    unequal = Undefined(code="unequal_units", message="Units differ in size: no closed form.")
    return found, unequal if expected is None else expected / parts.ss_total


def dispersion_of(sides: Sides) -> SpreadTest:
    context, params = sides.context, sides.params

    def undefined(reason: Undefined) -> SpreadTest:
        return SpreadTest.build(f=reason, p=p_value(reason, params.level))  # type: ignore[no-any-return]

    if sides.flat or all(sides.tight):
        return undefined(ZERO_TOTAL if sides.flat else ZERO_WITHIN)
    errors = residuals(sides.source, sides.parts, sides.codes)
    groups = Units.groups(sides.codes)
    away = distances(errors, groups, context.threads)
    means = np.add.reduceat(away, groups.starts[:-1]) / groups.counts
    within = np.square(away - np.repeat(means, groups.counts)).sum()
    if within <= NO_SPREAD * np.square(away).sum():
        return undefined(
            Undefined(
                code="no_spread",
                message="Rows of each side lie equally far from their mean, as two always do.",
            )
        )
    test: PermutationTest | Undefined
    if sides.named:
        test = Undefined(
            code="units_given",
            message="Rows of a unit cannot be exchanged singly; the interval of `spread_ratio` is "
            "over units.",
        )
    elif sides.parts.counts.min() < FEWEST_DISPERSED:
        test = Undefined(
            code="groups_too_small", message=f"The p needs {FEWEST_DISPERSED} rows on each side."
        )
    else:
        with context.stage("dispersion") as step:
            test = dispersion_test(
                errors, sides.design, params.permutations, context.seed, params.level,
                context.threads, step,
            )  # fmt: skip
    return SpreadTest.build(  # type: ignore[no-any-return]
        f=float(anova_f(away[None], groups.starts)[0]), p=p_value(test, params.level)
    )
