"""One model: its sums, intervals and permutation tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from service.check import (
    Context,
    Estimate,
    Undefined,
    estimate_of,
    p_value,
)
from service.checks.group_structure.declared import (
    CENSUS,
    PAIRED,
    TESTED,
    ZERO_TOTAL,
    ZERO_WITHIN,
    BcaIntervals,
    GroupRow,
    GroupStructureInputs,
    GroupStructureParams,
    ModelStructure,
)
from service.checks.group_structure.extras import dose_response, performance
from service.checks.group_structure.labelled import Labelled
from service.checks.group_structure.spread import dispersion_of
from service.dataset import Dataset
from service.errors import InvalidRequest
from service.numerics.design import Design
from service.numerics.moments import Units
from service.numerics.partition import (
    Decomposition,
    Partition,
    bootstrap,
    observed,
    partition,
    sums_by_unit,
    without_each_group,
    without_each_unit,
)
from service.numerics.permanova import (
    between_test,
    expected_between,
    item_squares,
    slabs,
)
from service.numerics.resampling import (
    Unit,
    bca,
)
from service.numerics.rows import Directions, Floats, Source, Stored, norms, safe_scale
from service.references import Label

BCA_GROUPS = 20
BOOTSTRAP_WORK = 1e13
ZERO = 1e-24


@dataclass(frozen=True)
class Fitted:
    """A model with what comparisons with other models need."""

    parts: Partition
    seen: Decomposition
    deleted: Decomposition
    resampled: Decomposition | None
    unit: Unit
    results: ModelStructure


def fit(
    context: Context,
    name: str,
    data: Dataset,
    inputs: GroupStructureInputs,
    params: GroupStructureParams,
    labelled: Labelled,
) -> Fitted:
    source = _source(data, params.normalise)
    threads, design, units = context.threads, labelled.design, Units.groups(labelled.groups)
    with context.stage(f"{name}_sums"):
        parts = partition(source, units, threads)
        seen = observed(parts)
        unit: Unit
        resampled_units = labelled.resampled(params)
        if resampled_units is None:
            deleted, unit = without_each_group(parts), "group"
        else:
            sums = sums_by_unit(source, parts, labelled.groups, resampled_units, threads)
            deleted, unit = (
                without_each_unit(parts, sums),
                "unit" if labelled.units is not None else "row",
            )
    scale = float(parts.mean @ parts.mean) + parts.ss_total / parts.n
    flat = parts.ss_total <= ZERO * parts.n * scale
    tight = not flat and parts.ss_within <= ZERO * parts.n * scale
    groups = len(parts.counts)
    boot = None
    work = params.bootstrap * groups * source.d
    if params.bootstrap and unit == "group" and groups >= BCA_GROUPS and work <= BOOTSTRAP_WORK:
        with context.stage(f"{name}_bootstrap") as step:
            boot = bootstrap(parts, params.bootstrap, context.seed, threads, step)
    tests = _between(context, name, source, parts, design, params, flat, tight)

    def estimated(field: str) -> Estimate:
        value = float(getattr(seen, field))
        if flat and field not in ("v", "w_bar"):
            return estimate_of(ZERO_TOTAL, np.zeros(0), params, unit)
        return estimate_of(value, np.asarray(getattr(deleted, field)), params, unit)

    f: float | Undefined = ZERO_TOTAL if flat else ZERO_WITHIN if tight else float(seen.f)
    w_tilde = np.divide(
        parts.within, parts.counts - 1, out=np.full(groups, np.nan), where=parts.counts > 1
    )
    corrected = w_tilde[parts.counts > 1]
    results = cast(
        ModelStructure,
        ModelStructure.build(
            ss_total=parts.ss_total,
            ss_within=parts.ss_within,
            ss_between=parts.ss_total - parts.ss_within,
            **{field: estimated(field) for field in PAIRED},
            pseudo_f=f,
            **tests,
            w_tilde_mean=float(corrected.mean()),
            bca=_bca(seen, boot, deleted, params, unit, flat),
            dispersion=dispersion_of(
                context,
                name,
                source,
                parts,
                labelled,
                params,
                ZERO_TOTAL if flat else ZERO_WITHIN if tight else None,
            ),
            groups=_listed(parts, w_tilde, labelled.levels, params.listed_groups),
            performance=performance(inputs, labelled.groups, w_tilde, params),
            dose=dose_response(inputs, source, labelled.groups, params, threads),
        ),
    )
    return Fitted(parts, seen, deleted, boot, unit, results)


def _source(data: Dataset, normalise: bool) -> Source:
    if normalise:
        return Directions(data.vectors)
    rows = Stored(data.vectors)
    longest = max(
        float(norms(rows.take(slice(start, start + 4096))).max())
        for start in range(0, rows.n, 4096)
    )
    if safe_scale(longest) != 1:
        raise InvalidRequest(
            f"Rows of length {longest:.3g} cannot be squared in float64; scale them, or use "
            "`normalise`."
        )
    return rows


def _between(
    context: Context,
    name: str,
    source: Source,
    parts: Partition,
    design: Design,
    params: GroupStructureParams,
    flat: bool,
    tight: bool,
) -> dict[str, Any]:
    """R2's expectation, F2 and the permutation tests."""
    if flat:
        none = p_value(ZERO_TOTAL, params.level)
        keys = ("r2_expected", "r2_adjusted", "pseudo_f_expected", "pseudo_f2")
        return {**dict.fromkeys(keys, ZERO_TOTAL), "p": none, "p_f2": none}
    with context.stage(f"{name}_permutations") as step:
        x = slabs(source, parts.mean, design, context.threads)
        squares = item_squares(source, parts.mean, design, x)
        tests = between_test(
            x, squares, design, parts.ss_total, params.permutations, context.seed, params.level,
            context.threads, step,
        )  # fmt: skip
        expected = expected_between(x, design)
    unequal = Undefined(
        code="unequal_units", message="Units of one stratum differ in size: no closed form."
    )
    n, groups = parts.n, len(parts.counts)
    share: float | Undefined = unequal if expected is None else expected / parts.ss_total
    sizes = parts.counts.astype(np.float64)
    lone = Undefined(code="singletons", message="F2 needs two rows in every group.")
    f2: float | Undefined = lone
    if tight:
        f2 = lone = ZERO_WITHIN
    elif tests.f2 is not None:
        pooled = float(((1 - sizes / n) * parts.within / (sizes - 1)).sum())
        f2 = (parts.ss_total - parts.ss_within) / pooled
    r2 = (parts.ss_total - parts.ss_within) / parts.ss_total
    return {
        "r2_expected": share,
        "r2_adjusted": share if isinstance(share, Undefined) else (r2 - share) / (1 - share),
        "pseudo_f_expected": share
        if isinstance(share, Undefined)
        else share / (groups - 1) * (n - groups) / (1 - share),
        "p": p_value(tests.f, params.level),
        "pseudo_f2": f2,
        "p_f2": p_value(lone if isinstance(f2, Undefined) else tests.f2 or lone, params.level),
    }


def _bca(
    seen: Decomposition,
    boot: Decomposition | None,
    deleted: Decomposition,
    params: GroupStructureParams,
    unit: str,
    flat: bool,
) -> BcaIntervals:
    if flat:
        return BcaIntervals.build(**dict.fromkeys(TESTED, ZERO_TOTAL))  # type: ignore[no-any-return]
    if params.census:
        return BcaIntervals.build(**dict.fromkeys(TESTED, CENSUS))  # type: ignore[no-any-return]
    if boot is None:
        none = Undefined(
            code="not_resampled",
            message=f"Made for groups, {BCA_GROUPS} or more, where `bootstrap` is on and affordable.",
        )
        return BcaIntervals.build(**dict.fromkeys(TESTED, none))  # type: ignore[no-any-return]
    still = Undefined(
        code="not_estimable", message="Resamples do not vary, or the value is undefined in them."
    )
    return BcaIntervals.build(  # type: ignore[no-any-return]
        **{
            field: bca(
                float(getattr(seen, field)),
                np.asarray(getattr(boot, field)),
                np.asarray(getattr(deleted, field)),
                params.level,
            )
            or still
            for field in TESTED
        }
    )


def _listed(
    parts: Partition, w_tilde: Floats, levels: tuple[Label, ...], most: int
) -> list[GroupRow]:
    order = np.argsort(-np.nan_to_num(w_tilde, nan=-1.0), kind="stable")[:most]
    single = Undefined(code="singleton", message="One row has no dispersion.")
    return [
        GroupRow.build(
            label=levels[g],
            n=int(parts.counts[g]),
            w=float(parts.within[g] / parts.counts[g]),
            w_tilde=single if np.isnan(w_tilde[g]) else float(w_tilde[g]),
        )
        for g in order
    ]
