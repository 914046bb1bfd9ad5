"""Paired differences of models, query by query."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from service.check import Estimate, Undefined
from service.checks.retrieval.declared import AT_K, OVERALL, Difference, PairedTest, Tests
from service.checks.retrieval.summary import Summary
from service.numerics.resampled_means import resampled_t
from service.numerics.resampling import (
    Interval,
    holm,
    jackknife_se,
    simultaneous,
    t_test,
)
from service.numerics.rows import Floats

Place = tuple[str, int | None]
"""A measure, and the place of its cutoff among the ks where it has one."""
FEWEST_RESAMPLED = 20
COLUMN_BYTES = 64 << 20
NOT_ESTIMABLE = Undefined(code="not_estimable", message="No spread, or too few units, or a census.")
FEW_DIFFER = Undefined(
    code="few_differ", message="Too few units differ: some resamples of them do not vary."
)
NOT_RESAMPLED = Undefined(
    code="not_resampled",
    message=f"Made for {FEWEST_RESAMPLED} or more groups or queries, where `bootstrap` is on.",
)


@dataclass(frozen=True)
class _Change:
    """
    A difference of two models by one measure.

    Attributes
    ----------
    found : Estimate
    own : (G,) that of each unit, NaN where it has none
    error : float or None
        Jackknife standard error, where there is one.
    p : float or None
    """

    found: Estimate
    own: Floats
    error: float | None
    p: float | None


def differences(summary: Summary, names: list[str], seed: int) -> dict[str, dict[str, Difference]]:
    """Paired differences of all pairs of models, in request order."""
    pairs = [(later, earlier) for earlier, later in combinations(names, 2)]
    ks = summary.params.ks
    places: list[Place] = [(what, c) for what in AT_K for c in range(len(ks))]
    places += [(what, None) for what in OVERALL]
    made = {place: [_change(summary, *pair, *place) for pair in pairs] for place in places}
    together = _together(summary, made, seed)
    tests = {place: _tests(found, together[place]) for place, found in made.items()}
    result: dict[str, dict[str, Difference]] = {}
    for i, (later, earlier) in enumerate(pairs):
        result.setdefault(later, {})[earlier] = Difference(
            **_by_name(ks, {place: found[i].found for place, found in made.items()}),
            tests=Tests(**_by_name(ks, {place: found[i] for place, found in tests.items()})),
        )
    return result


def _by_name(ks: list[int], found: dict[Place, Any]) -> dict[str, Any]:
    """Values of measures as fields, those with a cutoff by k."""
    fields: dict[str, Any] = {}
    for (what, c), value in found.items():
        if c is None:
            fields[what] = value
        else:
            fields.setdefault(what, {})[ks[c]] = value
    return fields


def _change(summary: Summary, later: str, earlier: str, what: str, c: int | None) -> _Change:
    one, other = (
        summary.of(name, what) if c is None else summary.of(name, what)[:, c]
        for name in (later, earlier)
    )
    own = summary.units.means(one - other)
    if what != "margin_mean" and np.isfinite(own).any():
        attainable = 1.0 if c is None else summary.attainable(what, summary.params.ks[c])
        found = summary.change(one - other, attainable)
    else:
        found = summary.estimate(one - other, "plain", summary.missing(later))
    known = own[np.isfinite(own)]
    if found.estimate is None or found.interval is None:
        return _Change(found, own, None, None)
    error = jackknife_se((known.sum() - known) / (len(known) - 1))
    return _Change(found, own, error, t_test(found.estimate, error, len(known)))


def _together(
    summary: Summary, made: dict[Place, list[_Change]], seed: int
) -> dict[Place, list[Interval] | Undefined]:
    """Intervals that hold for all pairs at once, by measure: the same units drawn for each."""
    result: dict[Place, list[Interval] | Undefined] = {}
    usable: list[tuple[Place, list[_Change]]] = []
    for place, changes in made.items():
        fewest = min((int(np.isfinite(c.own).sum()) for c in changes), default=0)
        if not summary.params.bootstrap or fewest < FEWEST_RESAMPLED:
            result[place] = NOT_RESAMPLED
        elif not all(change.error for change in changes):
            result[place] = NOT_ESTIMABLE
        else:
            usable.append((place, changes))
    bytes_each = max((sum(c.own.nbytes for c in found) for _, found in usable), default=1)
    size = max(1, COLUMN_BYTES // bytes_each)
    for start in range(0, len(usable), size):
        some = usable[start : start + size]
        columns = np.stack([change.own for _, found in some for change in found], axis=1)
        drawn = resampled_t(columns, summary.params.bootstrap, seed, summary.threads)
        for i, (place, found) in enumerate(some):
            values = drawn[:, i * len(found) : (i + 1) * len(found)]
            result[place] = _simultaneous(summary, found, values)
    return result


def _simultaneous(
    summary: Summary, changes: list[_Change], t: Floats
) -> list[Interval] | Undefined:
    if not np.isfinite(t).all():
        return FEW_DIFFER
    values = np.array([change.found.estimate for change in changes])
    errors = np.array([change.error for change in changes])
    found = simultaneous(
        values,
        values + t * errors,
        errors,
        np.zeros(len(changes)),
        min(int(np.isfinite(change.own).sum()) for change in changes),
        summary.params.level,
        summary.name,
    )
    return found or NOT_ESTIMABLE


def _tests(changes: list[_Change], together: list[Interval] | Undefined) -> list[PairedTest]:
    raw = [change.p for change in changes]
    return [
        PairedTest.build(
            p=NOT_ESTIMABLE if p is None else p,
            p_holm=NOT_ESTIMABLE if adjusted is None else adjusted,
            simultaneous=together if isinstance(together, Undefined) else together[i],
        )
        for i, (p, adjusted) in enumerate(zip(raw, holm(raw), strict=True))
    ]
