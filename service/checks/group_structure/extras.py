"""What optional columns add: a response, the performance of groups, a dose."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from service.check import (
    Estimate,
    Undefined,
)
from service.checks.group_structure.declared import (
    CENSUS,
    ZERO_TOTAL,
    Correlation,
    DoseLevel,
    DoseResponse,
    GroupStructureInputs,
    GroupStructureParams,
    OrderedTrend,
    ResponseStructure,
)
from service.dataset import Labels
from service.errors import InvalidRequest
from service.numerics.dose import FEWEST_LEVELS, adjacent, dose, page
from service.numerics.moments import Units
from service.numerics.partition import (
    observed,
    partition,
)
from service.numerics.power import groups_for_correlation
from service.numerics.resampling import (
    fisher_z,
)
from service.numerics.rows import Floats, Source, Stored
from service.references import Label


def performance(
    inputs: GroupStructureInputs,
    groups: NDArray[np.int64],
    w_tilde: Floats,
    params: GroupStructureParams,
) -> Correlation | Undefined:
    if inputs.response is None:
        return Undefined(code="not_given", message="No `response` was given.")
    values = inputs.response.numbers
    mean = np.bincount(groups, values) / np.bincount(groups)
    used = np.isfinite(w_tilde)
    count = int(used.sum())
    spread, score = _snapped(w_tilde[used]), _snapped(mean[used])
    if count < 4 or np.ptp(score) == 0 or np.ptp(spread) == 0:
        return Undefined(code="no_spread", message="Four groups that vary in both are needed.")
    from scipy import stats  # a third of a second to import, for those who need it

    rho = float(stats.spearmanr(spread, score).statistic)
    interval: Any = fisher_z(rho, count, params.level, "group")
    if params.census or interval is None:
        bound = Undefined(code="at_bound", message="The correlation is +-1.")
        interval = CENSUS if params.census else bound
    needed = groups_for_correlation(rho) if 0 < abs(rho) < 1 else None
    return Correlation.build(  # type: ignore[no-any-return]
        spearman=Estimate.build(estimate=rho, interval=interval),
        groups=count,
        groups_needed=needed
        if needed is not None
        else Undefined(code="no_such_number", message="At a correlation of 0 or 1."),
    )


def _snapped(values: Floats) -> Floats:
    """Values on a grid of 1e-12 of their size: rounding neither breaks ties nor makes spread."""
    grid = 1e-12 * max(float(np.abs(values).max(initial=0.0)), np.finfo(np.float64).tiny)
    return np.asarray(np.round(values / grid))


def dose_response(
    inputs: GroupStructureInputs,
    source: Source,
    groups: NDArray[np.int64],
    params: GroupStructureParams,
    threads: int,
) -> DoseResponse | Undefined:
    if inputs.levels is None:
        return Undefined(code="not_given", message="No `levels` were given.")
    names, codes = _ordered(inputs.levels)
    found = dose(source, groups, codes, threads)
    steps = adjacent(found.table, params.level)
    if params.census:
        steps = [(value, None) for value, _ in steps]
    blocks, count = found.table.shape
    first = Undefined(code="first_level", message="Nothing comes before the first level.")
    few = Undefined(code="too_few_groups", message=f"{blocks} groups have rows at every level.")

    def step(i: int) -> Estimate:
        if i == 0:
            return cast(Estimate, Estimate.build(estimate=first, interval=first))
        value, interval = steps[i - 1]
        return cast(
            Estimate,
            Estimate.build(estimate=value if np.isfinite(value) else few, interval=interval or few),
        )

    def known(value: float, reason: str) -> float | Undefined:
        missing = Undefined(code="one_row_cells", message=reason)
        return float(value) if np.isfinite(value) else missing

    levels = [
        DoseLevel.build(
            level=names[i],
            cells=int(found.cells[i]),
            w_tilde=known(found.pooled[i], "Every cell has one row."),
            w_tilde_mean=known(found.mean[i], "Every cell has one row."),
            from_first=known(found.from_first[i], "No group has rows here and at the first level."),
            step=step(i),
        )
        for i in range(count)
    ]
    intervals = [interval for _, interval in steps]
    trend: OrderedTrend | Undefined = Undefined(
        code="unequal_cells",
        message="Needs three levels, and groups with all of them in cells of one size of two or more.",
    )
    if count >= FEWEST_LEVELS and found.equal_cells:
        tested = page(found.table)
        trend = OrderedTrend(
            statistic=tested.statistic, z=tested.z, p=tested.p, blocks=tested.blocks
        )
    return DoseResponse.build(  # type: ignore[no-any-return]
        levels=levels,
        ordered_trend=trend,
        monotone=(CENSUS if params.census else few)
        if any(interval is None for interval in intervals)
        else all(interval.low > 0 for interval in intervals if interval is not None),
    )


def _ordered(column: Labels) -> tuple[list[Label], NDArray[np.int64]]:
    """Levels in order, numbers by size and others by first appearance, and the code of each row."""
    levels, codes = list(column.levels), column.dense
    try:
        sizes = Labels.of(levels).numbers
    except InvalidRequest:
        return levels, codes
    order = np.argsort(sizes, kind="stable")
    rank = np.empty(len(levels), dtype=np.int64)
    rank[order] = np.arange(len(levels))
    return [levels[i] for i in order], rank[codes]


def response_structure(
    column: Labels, groups: NDArray[np.int64], threads: int
) -> ResponseStructure:
    values = column.numbers
    if not np.isfinite(values).all():
        raise InvalidRequest("`response` needs a number in every row.")
    parts = partition(Stored(values[:, None]), Units.groups(groups), threads)
    if parts.ss_total == 0:
        return ResponseStructure.build(r2=ZERO_TOTAL, icc1=ZERO_TOTAL)  # type: ignore[no-any-return]
    found = observed(parts)
    return ResponseStructure(r2=float(found.r2), icc1=float(found.icc1))
