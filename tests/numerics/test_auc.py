"""AUC and its test, against scipy's Mann-Whitney statistic and full enumeration."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu, rankdata

from service.numerics.auc import auc, auc_test, ranks
from service.numerics.design import Design

Array = NDArray[Any]
QUIET = lambda done, total: None  # noqa: E731


def by_scipy(scores: Array, codes: Array) -> float:
    later, earlier = scores[codes == 1], scores[codes == 0]
    return float(mannwhitneyu(later, earlier).statistic / (len(later) * len(earlier)))


def sample(seed: int, n: int, m: int) -> tuple[Array, Array, Array]:
    """Scores with ties, samples, and units of some rows."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.normal(size=n + m), 1)
    owner = np.concatenate([np.arange(n) // 2, (n + 1) // 2 + np.arange(m) // 3])
    return scores, np.repeat([0, 1], [n, m]), owner


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30))
def test_ranks_are_scipys(values: list[int]) -> None:
    """Mid-ranks of ties."""
    assert ranks(np.array(values, dtype=float)) == pytest.approx(rankdata(values))


@given(st.integers(0, 10**6), st.integers(4, 15), st.integers(4, 15))
def test_auc_and_each_deletion_are_the_mann_whitney_statistic(seed: int, n: int, m: int) -> None:
    """scipy, refitted without each unit."""
    scores, codes, owner = sample(seed, n, m)
    found = auc(scores, codes, owner)
    assert found.value == pytest.approx(by_scipy(scores, codes))
    for unit in range(owner.max() + 1):
        kept = owner != unit
        assert found.without[unit] == pytest.approx(by_scipy(scores[kept], codes[kept]))


def test_a_sample_of_one_unit_cannot_do_without_it() -> None:
    """Closed form: no pair is left."""
    found = auc(np.array([1.0, 2.0, 3.0]), np.array([0, 1, 1]), np.array([0, 1, 2]))
    assert found.value == 1
    assert np.isnan(found.without[0])
    assert found.without[1:] == pytest.approx([1, 1])


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_an_exact_p_counts_every_labelling(seed: int, grouped: bool) -> None:
    """All choices of which units form sample 1, scored by scipy; ties count."""
    scores, codes, owner = sample(seed, 4, 6)
    if not grouped:
        owner = np.arange(10)
    units, later = owner.max() + 1, len(np.unique(owner[codes == 1]))
    seen = by_scipy(scores, codes)
    values = [
        by_scipy(scores, np.isin(owner, chosen).astype(int))
        for chosen in itertools.combinations(range(units), later)
    ]
    design = Design.of(codes, None, owner)
    found = auc_test(scores, design, 999, 0, 0.95, 2, QUIET)
    assert found.exact
    assert found.permutations == len(values)
    assert found.exceedances == sum(value >= seen - 1e-12 for value in values)


def test_a_random_p_is_near_the_exact_one() -> None:
    """Compared with the full enumeration, within the Monte Carlo interval at 1 - 1e-6."""
    scores, codes, _ = sample(11, 7, 7)
    scores[codes == 1] += 0.5
    design = Design.of(codes, None, None)
    exact = auc_test(scores, design, 3432, 0, 0.95, 1, QUIET)
    drawn = [auc_test(scores, design, 2000, 1, 1 - 1e-6, threads, QUIET) for threads in (1, 3)]
    assert exact.exact
    assert drawn[0] == drawn[1]
    assert not drawn[0].exact
    assert drawn[0].low is not None
    assert drawn[0].high is not None
    assert drawn[0].low < exact.p < drawn[0].high


def test_constant_scores_are_chance_and_every_labelling_reaches_them() -> None:
    """Closed form."""
    codes = np.repeat([0, 1], [20, 30])
    assert auc(np.ones(50), codes, np.arange(50)).value == 0.5
    assert auc_test(np.ones(50), Design.of(codes, None, None), 99, 0, 0.95, 1, QUIET).p == 1
