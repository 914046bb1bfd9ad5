"""Dispersion and separation of the groups that are ranked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from service.check import Estimate, Undefined, estimate_of
from service.checks.retrieval.declared import Layers, RetrievalParams
from service.dataset import Dataset
from service.numerics.dispersion import Chosen
from service.numerics.moments import Units
from service.numerics.partition import Partition, observed, partition, without_each_group
from service.numerics.rows import Directions, Floats

SINGLETONS = Undefined(code="singletons", message="No group has two rows.")
NO_GROUPS = Undefined(code="no_groups", message="No groups of queries were given.")
OVERLAPPING = Undefined(
    code="overlapping_positives",
    message="Some document is relevant to queries with other relevant documents.",
)
NO_SPREAD = Undefined(code="zero_total", message="All rows are equal.")
ONE_SET = Undefined(code="one_set", message="All queries have the same relevant documents.")
ZERO = 1e-24


def layers(
    queries: Dataset,
    documents: Dataset,
    groups: NDArray[np.int64] | None,
    sets: NDArray[np.int64] | None,
    params: RetrievalParams,
    threads: int,
) -> Layers:
    """
    Dispersion inside query groups and inside sets of documents, and separation of these sets.

    Parameters
    ----------
    queries, documents : Dataset
    groups : (m,) codes of query groups, or None
    sets : (n,) codes of sets of documents, -1 for none; None where sets overlap
    """
    asked = NO_GROUPS if groups is None else _parts(queries, groups, threads)
    found = OVERLAPPING if sets is None else _parts(documents, sets, threads)
    query_w, document_w = _w_tilde(asked, params), _w_tilde(found, params)
    r2, expected = _r2(found, params)
    one, other = query_w.estimate, document_w.estimate
    ratio: float | Undefined
    if one is None:
        ratio = query_w.undefined["estimate"]
    elif other is None:
        ratio = document_w.undefined["estimate"]
    else:
        ratio = NO_SPREAD if other == 0 else one / other
    made: Layers = Layers.build(
        query_groups=_groups(asked),
        document_groups=_groups(found),
        query_w_tilde=query_w,
        document_w_tilde=document_w,
        document_r2=r2,
        document_r2_expected=expected,
        w_tilde_ratio=ratio,
    )
    return made


def _parts(data: Dataset, codes: NDArray[np.int64], threads: int) -> Partition | Undefined:
    """Sums by group of the unit rows that have a group."""
    rows = np.flatnonzero(codes >= 0)
    _, dense = np.unique(codes[rows], return_inverse=True)
    if np.bincount(dense).max() < 2:
        return SINGLETONS
    return partition(Chosen(Directions(data.vectors), rows), Units.groups(dense), threads)


def _groups(parts: Partition | Undefined) -> int:
    return 0 if isinstance(parts, Undefined) else int(np.count_nonzero(parts.counts > 1))


def _unknown(why: Undefined, params: RetrievalParams) -> Estimate:
    return estimate_of(why, np.empty(0), params, "group")


def _w_tilde(parts: Partition | Undefined, params: RetrievalParams) -> Estimate:
    if isinstance(parts, Undefined):
        return _unknown(parts, params)
    some = parts.counts > 1
    values: Floats = parts.within[some] / (parts.counts[some] - 1)
    deleted = (values.sum() - values) / (len(values) - 1) if len(values) > 1 else np.empty(0)
    return estimate_of(float(values.mean()), deleted, params, "group")


def _r2(
    parts: Partition | Undefined, params: RetrievalParams
) -> tuple[Estimate, float | Undefined]:
    if isinstance(parts, Undefined):
        return _unknown(parts, params), parts
    groups = len(parts.counts)
    if groups < 2:
        return _unknown(ONE_SET, params), ONE_SET
    expected = (groups - 1) / (parts.n - 1)
    scale = float(parts.mean @ parts.mean) + parts.ss_total / parts.n
    if parts.ss_total <= ZERO * parts.n * scale:
        return _unknown(NO_SPREAD, params), expected
    deleted = np.asarray(without_each_group(parts).r2)
    return estimate_of(float(observed(parts).r2), deleted, params, "group"), expected
