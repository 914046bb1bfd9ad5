"""Whether groups differ in spread."""

from __future__ import annotations

import numpy as np

from service.check import (
    Context,
    Undefined,
    p_value,
)
from service.checks.group_structure.declared import (
    DispersionTest,
    GroupStructureParams,
)
from service.checks.group_structure.labelled import Labelled
from service.errors import TooFewGroups
from service.numerics.design import Design
from service.numerics.dispersion import (
    anova_f,
    dispersion_test,
    distances,
    median_distances,
    residuals,
)
from service.numerics.moments import Units
from service.numerics.partition import (
    Partition,
)
from service.numerics.permutation_test import PermutationTest
from service.numerics.rows import Floats, Source

FEWEST_DISPERSED = 5
NO_SPREAD = 1e-20


def dispersion_of(
    context: Context,
    name: str,
    source: Source,
    parts: Partition,
    labelled: Labelled,
    params: GroupStructureParams,
    nothing: Undefined | None,
) -> DispersionTest:
    """`nothing` says that nothing varies, and where."""
    sizes = parts.counts
    lone = int(np.count_nonzero(sizes == 1))

    def undefined(reason: Undefined) -> DispersionTest:
        return DispersionTest.build(  # type: ignore[no-any-return]
            f=reason,
            p=p_value(reason, params.level),
            f_spatial_median=reason,
            excluded_singletons=lone,
        )

    if nothing is not None:
        return undefined(nothing)
    if np.count_nonzero(sizes > 1) < 2:
        return undefined(Undefined(code="too_few_groups", message="Two groups of two rows needed."))
    errors = residuals(source, parts, labelled.groups)
    groups = Units.groups(labelled.groups)
    away = distances(errors, groups, context.threads)
    f = _f_of_several(away, groups)
    if isinstance(f, Undefined):
        return undefined(f)
    return DispersionTest.build(  # type: ignore[no-any-return]
        f=f,
        p=p_value(_dispersion_p(context, name, source, parts, labelled, params), params.level),
        f_spatial_median=_median_f(source, groups),
        excluded_singletons=lone,
    )


def _median_f(source: Source, groups: Units) -> float | Undefined:
    medians = median_distances(source, groups)
    if medians is None:
        return Undefined(code="too_large", message="Spatial medians are found up to 2e7 numbers.")
    return _f_of_several(medians, groups)


def _f_of_several(values: Floats, groups: Units) -> float | Undefined:
    """F over the groups of two rows or more; values in group order."""
    kept = groups.counts > 1
    sizes = groups.counts[kept]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    chosen = values[np.repeat(kept, groups.counts)]
    means = np.add.reduceat(chosen, starts[:-1]) / sizes
    within = np.square(chosen - np.repeat(means, sizes)).sum()
    if within <= NO_SPREAD * np.square(chosen).sum():
        return Undefined(
            code="no_spread",
            message="In every group rows lie equally far from their centre, as two rows always do.",
        )
    return float(anova_f(chosen[None], starts)[0])


def _dispersion_p(
    context: Context,
    name: str,
    source: Source,
    parts: Partition,
    labelled: Labelled,
    params: GroupStructureParams,
) -> PermutationTest | Undefined:
    if not params.dispersion_test:
        return Undefined(code="not_requested", message="`dispersion_test` is off.")
    if labelled.units is not None:
        return Undefined(code="units_given", message="Rows of a unit cannot be exchanged singly.")
    large = parts.counts >= FEWEST_DISPERSED
    if np.count_nonzero(large) < 2:
        return Undefined(
            code="groups_too_small",
            message=f"The p needs two groups of {FEWEST_DISPERSED} rows or more.",
        )
    kept = np.flatnonzero(large[labelled.groups])
    codes = np.unique(labelled.groups[kept], return_inverse=True)[1].astype(np.int64)
    strata = None
    if labelled.strata is not None:
        strata = np.unique(labelled.strata[kept], return_inverse=True)[1].astype(np.int64)
    try:
        design = Design.of(codes, strata, None)
    except TooFewGroups as error:
        return Undefined(code="one_labelling", message=error.detail)
    errors = residuals(source, parts, labelled.groups).of(kept)
    with context.stage(f"{name}_dispersion") as step:
        return dispersion_test(
            errors, design, params.permutations, context.seed, params.level, context.threads, step
        )
