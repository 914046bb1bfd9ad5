"""Measures of rankings against trec_eval, all orders of ties, and published values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from service.numerics.ranking import Ranked, chance_hit, cutoffs, measures, none_among

Array = NDArray[Any]
Grades = dict[int, float]


def ties(scores: Array, relevant: Sequence[Grades]) -> tuple[Array, ...]:
    """Where relevant items stand, counted one by one: the arguments of `measures` but the ks."""
    starts, above, tied, marked, tie, grade_starts, grades = [0], [], [], [], [], [0], []
    for row, some in zip(scores, relevant, strict=True):
        levels = sorted({float(row[j]) for j in some}, reverse=True)
        places = {level: len(above) + i for i, level in enumerate(levels)}
        above += [int((row > level).sum()) for level in levels]
        tied += [int((row == level).sum()) for level in levels]
        marked += [sum(row[j] == level for j in some) for level in levels]
        tie += [places[float(row[j])] for j in sorted(some)]
        grades += [some[j] for j in sorted(some)]
        starts.append(len(above))
        grade_starts.append(len(grades))
    whole = (np.array(one, np.int64) for one in (starts, above, tied, marked, tie, grade_starts))
    return (*whole, np.array(grades, np.float64))


def measured(scores: Array, relevant: Sequence[Grades], ks: list[int]) -> Ranked:
    return measures(*ties(scores, relevant), ks)


def one_order(order: Sequence[int], relevant: Grades, ks: list[int]) -> list[float]:
    """Textbook measures of one ranking."""
    ranks = [rank for rank, item in enumerate(order, start=1) if item in relevant]
    found = [1 / ranks[0], sum((i + 1) / r for i, r in enumerate(ranks)) / len(ranks), ranks[0]]
    best = sorted(relevant.values(), reverse=True)
    for k in ks:
        hits = sum(rank <= k for rank in ranks)
        gain = sum(relevant.get(one, 0) / math.log2(p + 2) for p, one in enumerate(order[:k]))
        ideal = sum(grade / math.log2(p + 2) for p, grade in enumerate(best[:k]))
        found += [float(hits > 0), hits / len(ranks), hits / k, gain / ideal]
    return found


def all_orders(row: Array, relevant: Grades, ks: list[int]) -> Array:
    """Mean of the same over every order that keeps higher scores first."""
    ranked = sorted(range(len(row)), key=lambda j: -row[j])
    runs = [list(run) for _, run in itertools.groupby(ranked, key=lambda j: row[j])]
    orders = itertools.product(*(itertools.permutations(run) for run in runs))
    listed = [one_order([j for run in order for j in run], relevant, ks) for order in orders]
    return np.asarray(np.mean(listed, axis=0))


def flat(found: Ranked, i: int, ks: list[int]) -> list[float]:
    """The measures of one query in the order of `one_order`."""
    listed = [found.reciprocal_rank[i], found.average_precision[i], found.first_rank[i]]
    for c in range(len(ks)):
        listed += [found.hit[i, c], found.recall[i, c], found.precision[i, c], found.ndcg[i, c]]
    return [float(value) for value in listed]


def test_a_constant_scorer_gives_the_mean_over_all_orders() -> None:
    """CASES P19: all 120 orders enumerated there; scikit-learn's ndcg_score agrees."""
    for place in range(5):
        found = measured(np.ones((1, 5)), [{place: 1.0}], [1, 3, 5])
        assert found.reciprocal_rank[0] == pytest.approx(0.45666667, abs=5e-9)
        assert found.hit[0] == pytest.approx([0.2, 0.6, 1.0])
        assert found.recall[0] == pytest.approx([0.2, 0.6, 1.0])
        assert found.ndcg[0] == pytest.approx([0.2, 0.42618595, 0.58969182], abs=5e-9)


def test_the_ideal_holds_relevant_items_that_were_not_returned() -> None:
    """CASES P20, q1: a, x, b, y, z returned of which a and b are relevant, and c comes last."""
    scores = np.array([[5.0, 4.0, 3.0, 2.0, 1.0, 0.0]])
    found = measured(scores, [{0: 1.0, 2: 1.0, 5: 1.0}], [5])
    assert found.recall[0, 0] == pytest.approx(2 / 3)
    assert found.hit[0, 0] == 1
    assert found.reciprocal_rank[0] == 1
    assert found.ndcg[0, 0] == pytest.approx(0.70391809, abs=5e-9)


@given(
    st.integers(1, 7).flatmap(
        lambda n: st.tuples(
            st.lists(st.integers(0, 2), min_size=n, max_size=n),
            st.dictionaries(st.integers(0, n - 1), st.sampled_from([0.5, 1.0, 3.0]), min_size=1),
        )
    )
)
def test_ties_give_the_mean_over_all_their_orders(case: tuple[list[int], Grades]) -> None:
    """Full enumeration, and the order of items changes nothing."""
    values, relevant = case
    row = np.array(values, np.float64)
    ks = list(range(1, len(row) + 1))
    found = measured(row[None], [relevant], ks)
    assert flat(found, 0, ks) == pytest.approx(all_orders(row, relevant, ks).tolist(), abs=1e-12)
    turn = np.random.default_rng(sum(values)).permutation(len(row))
    moved = {int(np.flatnonzero(turn == item)[0]): grade for item, grade in relevant.items()}
    assert flat(measured(row[turn][None], [moved], ks), 0, ks) == pytest.approx(flat(found, 0, ks))


def test_untied_rankings_are_those_of_trec_eval() -> None:
    """pytrec_eval, the C code itself, on 200 queries of 60 items with grades 1 to 3."""
    random = np.random.default_rng(11)
    scores = random.permuted(np.tile(np.arange(60.0), (200, 1)), axis=1)
    relevant = [
        {int(j): float(random.integers(1, 4)) for j in random.choice(60, size, replace=False)}
        for size in random.integers(1, 30, size=200)
    ]
    ks = [1, 5, 10, 30]
    found = measured(scores, relevant, ks)
    wanted = {"recip_rank", "map", "success", "recall", "P", "ndcg_cut"}
    judged = {f"q{i}": {f"d{j}": int(g) for j, g in one.items()} for i, one in enumerate(relevant)}
    runs = {
        f"q{i}": {f"d{j}": float(score) for j, score in enumerate(row)}
        for i, row in enumerate(scores)
    }
    cut = ",".join(map(str, ks))
    names = {f"{one}.{cut}" if one not in ("recip_rank", "map") else one for one in wanted}
    truth = pytrec_eval.RelevanceEvaluator(judged, names).evaluate(runs)
    for i in range(200):
        theirs = truth[f"q{i}"]
        assert found.reciprocal_rank[i] == pytest.approx(theirs["recip_rank"], abs=1e-12)
        assert found.average_precision[i] == pytest.approx(theirs["map"], abs=1e-12)
        for c, k in enumerate(ks):
            assert found.hit[i, c] == theirs[f"success_{k}"]
            assert found.recall[i, c] == pytest.approx(theirs[f"recall_{k}"], abs=1e-12)
            assert found.precision[i, c] == pytest.approx(theirs[f"P_{k}"], abs=1e-12)
            assert found.ndcg[i, c] == pytest.approx(theirs[f"ndcg_cut_{k}"], abs=1e-12)


def test_chance_is_hypergeometric() -> None:
    """scipy's distribution: one minus the probability of drawing none."""
    relevant = np.array([1, 5, 30, 100])
    for k in (1, 10, 90, 100):
        expected = [1 - stats.hypergeom(100, r, k).pmf(0) for r in relevant]
        assert chance_hit(100, relevant, k) == pytest.approx(expected, abs=1e-12)
    assert none_among(10, 6, 5) == 0


def outcome(
    scores: Array, relevant: list[list[int]], own: list[int], classes: list[int], ks: list[int]
) -> tuple[Array, Array, Array]:
    """`cutoffs` with every other item listed."""
    m, n = scores.shape
    starts = np.cumsum([0, *map(len, relevant)])
    ids, best = np.full((m, n), -1, np.int32), np.full((m, n), -np.inf)
    mine: list[float] = []
    for i, some in enumerate(relevant):
        others = [j for j in range(n) if j not in some]
        others.sort(key=lambda j: -scores[i, j])
        ids[i, : len(others)], best[i, : len(others)] = others, scores[i, others]
        mine += sorted((float(scores[i, j]) for j in some), reverse=True)
    more = np.zeros(m, bool)
    return cutoffs(starts, np.array(mine), ids, best, more, np.array(own), np.array(classes), ks)


@pytest.mark.parametrize("seed", range(5))
def test_other_sets_above_a_cutoff_are_a_mean_over_orders(seed: int) -> None:
    """Every order of ties: distinct sets among the first k; a tie where score k equals k + 1."""
    random = np.random.default_rng(seed)
    scores = random.integers(0, 3, size=(6, 7)).astype(float)
    classes = [0, 0, 1, 1, 2, -1, -1]
    relevant, own = [[0, 1], [2, 3], [4]] * 2, [0, 1, 2] * 2
    ks = [1, 2, 4, 6, 7]
    tied, others, open_ = outcome(scores, relevant, own, classes, ks)
    assert not open_.any()
    for i, row in enumerate(scores):
        ranked = sorted(range(7), key=lambda j: -row[j])
        runs = [list(run) for _, run in itertools.groupby(ranked, key=lambda j: row[j])]
        orders = [
            [j for run in order for j in run]
            for order in itertools.product(*(itertools.permutations(run) for run in runs))
        ]
        for c, k in enumerate(ks):
            counts = [len({classes[j] for j in order[:k]} - {-1, own[i]}) for order in orders]
            assert others[i, c] == pytest.approx(np.mean(counts))
            down = np.sort(row)[::-1]
            assert tied[i, c] == (k < 7 and down[k - 1] == down[min(k, 6)])


def test_a_tie_that_may_reach_beyond_the_list_is_open() -> None:
    """By hand: three listed of many with the last score, a cutoff at 2; and with another at 1."""
    ids, best = np.array([[3, 4, 5]], np.int32), np.array([[2.0, 1.0, 1.0]])
    for first, more, expected in ((3.0, True, False), (0.0, True, True), (0.0, False, False)):
        ks = [1] if first == 3.0 else [1, 2]
        *_, open_ = cutoffs(
            np.array([0, 1]), np.array([first]), ids, best, np.array([more]), np.array([0]),
            np.array([0, -1, -1, 1, 2, 3]), ks,
        )  # fmt: skip
        assert open_.tolist() == [expected]
