"""Paired differences of models."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import cast

import numpy as np

from service.check import (
    Estimate,
    Undefined,
    estimate_of,
)
from service.checks.group_structure.declared import (
    PAIRED,
    TESTED,
    ZERO_TOTAL,
    Difference,
    GroupStructureParams,
    PairedTest,
)
from service.checks.group_structure.fit import Fitted
from service.numerics.resampling import (
    FEWEST_UNITS,
    holm,
    jackknife_bias,
    jackknife_se,
    simultaneous,
    t_test,
)
from service.numerics.rows import Floats


def differences(
    fitted: dict[str, Fitted], params: GroupStructureParams
) -> dict[str, dict[str, Difference]]:
    """Paired differences of all pairs of models, in request order."""
    pairs = [(later, earlier) for earlier, later in combinations(fitted, 2)]
    tests = {field: _paired_tests(fitted, pairs, field, params) for field in TESTED}
    result: dict[str, dict[str, Difference]] = {}
    for i, (later, earlier) in enumerate(pairs):
        one, other = fitted[later], fitted[earlier]
        result.setdefault(later, {})[earlier] = Difference.build(
            **{field: _difference(one, other, field, params) for field in PAIRED},
            **{f"{field}_test": tests[field][i] for field in TESTED},
            scale_dependent=["v", "w_bar"],
        )
    return result


def _difference(
    later: Fitted, earlier: Fitted, field: str, params: GroupStructureParams
) -> Estimate:
    values = [getattr(model.results, field).estimate for model in (later, earlier)]
    if None in values:
        return estimate_of(ZERO_TOTAL, np.zeros(0), params, later.unit)
    deleted = np.asarray(getattr(later.deleted, field) - getattr(earlier.deleted, field))
    return estimate_of(values[0] - values[1], deleted, params, later.unit)


def _paired_tests(
    fitted: dict[str, Fitted],
    pairs: list[tuple[str, str]],
    field: str,
    params: GroupStructureParams,
) -> list[PairedTest]:
    rows = list(_paired(fitted, pairs, field))
    raw = [
        None if len(deleted) < FEWEST_UNITS or params.census or not np.isfinite(deleted).all()
        else t_test(value, jackknife_se(deleted), len(deleted))
        for pair, (value, deleted, _) in zip(pairs, rows, strict=True)
    ]  # fmt: skip
    together = None
    if rows and all(boot is not None for _, _, boot in rows) and None not in raw:
        errors = np.array([jackknife_se(deleted) for _, deleted, _ in rows])
        resampled = np.stack([cast(Floats, boot) for _, _, boot in rows], axis=1)
        usable = resampled[np.isfinite(resampled).all(axis=1)]
        if len(usable) >= 0.99 * len(resampled):
            biases = np.array([jackknife_bias(value, deleted) for value, deleted, _ in rows])
            together = simultaneous(
                np.array([v for v, _, _ in rows]),
                usable,
                errors,
                biases,
                len(rows[0][1]),
                params.level,
                "group",
            )
    none = Undefined(code="not_estimable", message="No spread, or too few units, or a census.")
    return [
        PairedTest.build(
            p=none if p is None else p,
            p_holm=none if adjusted is None else adjusted,
            simultaneous=none if together is None else together[i],
        )
        for i, (p, adjusted) in enumerate(zip(raw, holm(raw), strict=True))
    ]


def _undefined(fitted: dict[str, Fitted], pair: tuple[str, str], field: str) -> bool:
    return any(getattr(fitted[name].results, field).estimate is None for name in pair)


def _paired(
    fitted: dict[str, Fitted], pairs: list[tuple[str, str]], field: str
) -> Iterator[tuple[float, Floats, Floats | None]]:
    """Difference, its leave-one-out values and its bootstrap values, by pair."""
    for later, earlier in pairs:
        one, other = fitted[later], fitted[earlier]
        boot = None
        if one.resampled is not None and other.resampled is not None:
            boot = np.asarray(getattr(one.resampled, field) - getattr(other.resampled, field))
        yield (
            float(getattr(one.seen, field) - getattr(other.seen, field)),
            np.asarray(getattr(one.deleted, field) - getattr(other.deleted, field)),
            boot,
        )
