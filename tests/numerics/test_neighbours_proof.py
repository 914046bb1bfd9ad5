"""What a float32 search may miss is found: honest bounds, forced paths, searches that err, forks."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial import distance

from service.numerics import neighbours
from service.numerics.coded import Coded, as_given
from service.numerics.neighbours import Effort, Neighbours, Queries, Search, gamma, resolution

from .per_pair import Plain, best, lanes
from .searching import KINDS, drawn, find, plain, stored

Array = NDArray[Any]
Found = tuple[Array, Array]
seeds = st.integers(0, 2**32 - 1)


def all_bytes(found: Neighbours) -> tuple[bytes, bytes, bytes]:
    return found.ids.tobytes(), found.scores.tobytes(), found.gap.tobytes()


def is_brute(found: Neighbours, gallery: Coded, k: int, queries: Coded | None = None) -> bool:
    """Whether lists are those of every pair scored in numpy, bit for bit."""
    own = np.arange(gallery.n) if queries is None else None
    asked = gallery if queries is None else queries
    ids, scores, gap = best(plain(asked).scores(plain(gallery)), k, own)
    return all_bytes(found) == (ids.astype(np.int32).tobytes(), scores.tobytes(), gap.tobytes())


@pytest.mark.parametrize("operations", [1, 8, 4100])
@pytest.mark.parametrize("bits", [24, 53])
def test_the_rounding_of_many_operations_is_highams(operations: int, bits: int) -> None:
    """Compared with fractions; gaps are judged by four times 2 d + 4 operations of float64."""
    share = Fraction(operations, 2**bits)
    assert gamma(operations, 2.0**-bits) == pytest.approx(float(share / (1 - share)), rel=1e-15)
    d = 2 * operations
    share = Fraction(2 * d + 4, 2**53)
    assert resolution(d) == pytest.approx(float(4 * share / (1 - share)), rel=1e-15)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cosine", [True, False], ids=["cosine", "product"])
@settings(max_examples=10)
@given(seeds, st.sampled_from([1, 2, 7, 40, 300]))
def test_scores_are_within_half_of_tau_of_the_true_ones(
    kind: str, cosine: bool, seed: int, d: int
) -> None:
    """Compared with scores in integers: so gaps above tau are real."""
    gallery = as_given(drawn(kind, np.random.default_rng(seed), 20, d), cosine=cosine)
    every = plain(gallery)
    norms = np.linalg.norm(gallery.points(slice(None)), axis=1)
    error = np.abs(every.scores(every) - every.exact(every)).max(axis=1)
    assert (error <= Search(gallery, 1).tau(norms) / 2).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cosine", [True, False], ids=["cosine", "product"])
@settings(max_examples=15)
@given(
    seeds,
    st.integers(3, 200),
    st.sampled_from([1, 2, 7, 40]),
    st.integers(1, 30),
    st.sampled_from(["float64", "float32"]),
    st.sampled_from([1, 64 << 20]),
    st.sampled_from([1, 1 << 20]),
    st.sampled_from([None, 1e-9, 1.0, 1e9]),
)
def test_nothing_unlisted_scores_above_the_tail(
    kind: str,
    cosine: bool,
    seed: int,
    n: int,
    d: int,
    depth: int,
    dtype: str,
    block_bytes: int,
    elements: int,
    length: float | None,
) -> None:
    """Compared with scores in integers, for rows and for other queries, in one block and in many."""
    rng = np.random.default_rng(seed)
    x = drawn(kind, rng, n, d)
    gallery = stored(x, dtype, cosine)
    queries = gallery
    if length is not None:
        scale = length * np.abs(x).max()
        queries = stored(
            np.concatenate([x[:9] * length, drawn(kind, rng, 9, d) * scale]), "float64", cosine
        )
    m = queries.n
    asked = Queries(queries, own=length is None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.numerics.rows.BLOCK_ELEMENTS", elements)
        patch.setattr(neighbours, "GALLERY_BLOCK_BYTES", block_bytes)
        search = Search(gallery, 1)
        listed = search.listed(asked, np.arange(m), depth)
    scores = plain(queries).exact(plain(gallery))
    unlisted = np.ones((m, n), bool)
    np.put_along_axis(unlisted, listed.ids.astype(np.int64), False, axis=1)
    if asked.own:
        np.fill_diagonal(unlisted, False)
    missed = np.where(unlisted, scores, -np.inf).max(axis=1)
    assert (unlisted.sum(axis=1) == max(0, n - asked.own - depth)).all()
    norms = np.linalg.norm(queries.points(slice(None)), axis=1)
    assert (missed <= listed.tail + search.tau(norms)).all()
    assert (
        listed.scores == np.take_along_axis(plain(queries).scores(plain(gallery)), listed.ids, 1)
    ).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cosine", [True, False], ids=["cosine", "product"])
@settings(max_examples=10)
@given(seeds, st.sampled_from([1, 2, 7, 40]), st.sampled_from([1, 1 << 20]))
def test_no_two_points_are_further_apart_than_the_widest(
    kind: str, cosine: bool, seed: int, d: int, elements: int
) -> None:
    """Compared with scipy's distances, which the longest distance from the mean bounds twice over."""
    gallery = as_given(drawn(kind, np.random.default_rng(seed), 30, d), cosine=cosine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.numerics.rows.BLOCK_ELEMENTS", elements)
        search = Search(gallery, 1)
    furthest = distance.pdist(gallery.points(slice(None))).max()
    assert furthest <= search.widest <= 2.00000001 * furthest + 1e-14 * search.longest


@pytest.mark.parametrize("name", ["clinc150/e5small_q4", "clinc150/use_multilingual"])
@pytest.mark.parametrize("cosine", [True, False], ids=["cosine", "product"])
def test_tails_of_real_rows_are_honest_and_close(
    name: str, cosine: bool, rows: Callable[[str], Array]
) -> None:
    """Compared with scores in integers: above the best missed, by less than float32 loses."""
    gallery = as_given(rows(name)[:400], cosine=cosine)
    search, which = Search(gallery, 2), np.arange(0, 400, 20)
    listed = search.listed(Queries(gallery, own=True), which, 25)
    every = plain(gallery)
    scores = Plain(every.rows[which], every.by[which]).exact(every)
    np.put_along_axis(scores, np.c_[listed.ids, which].astype(np.int64), -np.inf, axis=1)
    above = listed.tail - scores.max(axis=1)
    assert (above > 0).all()
    assert np.median(above) < 0.01


def erring(truth: Array, best_of: int, times: float) -> Callable[..., Found]:
    """
    A float32 search that errs as far as float32 may, to sink the best rows and lift all others.

    A product and the d additions of d + 1 terms err by gamma_d and the rounding of the result.
    """
    sunk = np.argsort(-truth, axis=1)[:, :best_of]

    def knn(x: Array, y: Array, k: int, metric: int) -> Found:
        q, g = x.astype(np.float64), y.astype(np.float64)
        error = times * gamma(x.shape[1] - 1, 2.0**-24) * (np.abs(q) @ np.abs(g).T)
        sign = np.ones(error.shape)
        np.put_along_axis(sign, sunk, -1, axis=1)
        scores = (q @ g.T + sign * error).astype(np.float32)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, order, axis=1), order

    return knn


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cosine", [True, False], ids=["cosine", "product"])
@settings(max_examples=15)
@given(
    seeds,
    st.integers(10, 150),
    st.sampled_from([1, 2, 8, 40, 400]),
    st.integers(1, 4),
    st.integers(0, 8),
    st.sampled_from([1, 1 << 20]),
)
def test_a_search_that_errs_as_far_as_float32_may_hides_no_neighbour(
    kind: str, cosine: bool, seed: int, n: int, d: int, k: int, extra: int, elements: int
) -> None:
    """Compared with every pair scored in numpy."""
    gallery = as_given(drawn(kind, np.random.default_rng(seed), n, d), cosine=cosine)
    truth = plain(gallery).scores(plain(gallery))
    np.fill_diagonal(truth, -np.inf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "EXTRA", extra)
        patch.setattr("service.numerics.rows.BLOCK_ELEMENTS", elements)
        patch.setattr("faiss.knn", erring(truth, k, 1.0))
        assert is_brute(find(gallery, k)[0], gallery, k)


@pytest.mark.parametrize("d", [1, 2, 8, 64])
def test_the_tail_covers_every_rounding_of_a_float32_score(
    monkeypatch: pytest.MonkeyPatch, d: int
) -> None:
    """
    Closed form: two conversions that lose 2^-24 each and d sums that lose as much.

    The others score d (1 - j 2^-24) exactly, so the last one listed is where the best one sank to.
    """
    unit = 2.0**-24
    high = 1 + 0.999 * unit
    others = 1 - unit * np.arange(2 * d + 20)[:, None] * np.ones(d)
    rows = np.concatenate([others, np.full((1, d), high)])
    gallery = as_given(np.concatenate([rows, -rows]), cosine=False)
    queries = as_given(np.full((1, d), high), cosine=False)
    place = len(others)

    def sinking(x: Array, y: Array, k: int, metric: int) -> Found:
        scores = x.astype(np.float64) @ y.astype(np.float64).T
        scores[:, place] *= 1 - d * unit
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, order, axis=1).astype(np.float32), order

    monkeypatch.setattr("faiss.knn", sinking)
    search, asked = Search(gallery, 1), Queries(queries, own=False)
    assert not search.mean.any()
    true = Fraction(high) ** 2 * d
    for depth in range(1, 3 * d):
        listed = search.listed(asked, np.array([0]), depth)
        if place not in listed.ids:
            assert listed.tail[0] >= true
    assert place in search.listed(asked, np.array([0]), d + 2).ids
    assert place not in search.listed(asked, np.array([0]), d).ids


@pytest.mark.parametrize("own", [True, False])
def test_a_search_that_lists_other_rows_with_the_best_scores_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """Closed form: the last score bounds what is missing, and the rows listed fall below it."""
    gallery = as_given(np.random.default_rng(1).normal(size=(300, 8)), cosine=True)
    true_knn = neighbours.faiss.knn

    def worst(x: Array, y: Array, k: int, metric: int) -> Found:
        scores, _ = true_knn(x, y, k, metric=metric)
        _, ids = true_knn(-x, y, k, metric=metric)
        return scores, ids

    monkeypatch.setattr("faiss.knn", worst)
    found, effort = find(gallery, 10, None if own else gallery)
    assert effort == Effort(scored=300)
    assert is_brute(found, gallery, 10, None if own else gallery)


def test_a_search_that_leaves_places_empty_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """faiss pads with row -1 and the least float32 where scores are not numbers."""
    gallery = as_given(np.random.default_rng(2).normal(size=(300, 8)), cosine=True)
    true_knn = neighbours.faiss.knn

    def padded(x: Array, y: Array, k: int, metric: int) -> Found:
        scores, ids = true_knn(x, y, k, metric=metric)
        scores[:, :-20], ids[:, :-20] = scores[:, 20:], ids[:, 20:]
        scores[:, -20:], ids[:, -20:] = np.finfo(np.float32).min, -1
        return scores, ids

    for block_bytes in (64 << 20, 1):
        monkeypatch.setattr(neighbours, "GALLERY_BLOCK_BYTES", block_bytes)
        with monkeypatch.context() as patch:
            patch.setattr("faiss.knn", padded)
            assert is_brute(find(gallery, 10)[0], gallery, 10)


@pytest.mark.parametrize("cosine", [True, False], ids=["cosine", "product"])
@pytest.mark.parametrize("kind", ["real", "ties", "offset 1e3", "lengths"])
def test_every_path_gives_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, rows: Callable[[str], Array], kind: str, cosine: bool
) -> None:
    """Compared with numpy: short lists, many blocks of rows and queries, one to three threads."""
    rng = np.random.default_rng(3)
    x = rows("clinc150/minilm")[::20] if kind == "real" else drawn(kind, rng, 150, 8)
    gallery = as_given(x, cosine=cosine)
    default, effort = find(gallery, 5)
    assert is_brute(default, gallery, 5)
    assert effort.listed + effort.searched + effort.scored == 150
    scored = set()
    for extra in (0, 1, 8, 64):
        monkeypatch.setattr(neighbours, "EXTRA", extra)
        for block_bytes, query_block, scored_block, elements, threads in [
            (64 << 20, 1024, 64, 1 << 20, 3),
            (1, 7, 3, 100, 1),
            (1, 1, 1, 1, 2),
            (8000, 100, 500, 5000, 3),
        ]:
            monkeypatch.setattr(neighbours, "GALLERY_BLOCK_BYTES", block_bytes)
            monkeypatch.setattr(neighbours, "QUERY_BLOCK", query_block)
            monkeypatch.setattr(neighbours, "SCORED_BLOCK", scored_block)
            monkeypatch.setattr("service.numerics.rows.BLOCK_ELEMENTS", elements)
            found, effort = find(gallery, 5, threads=threads)
            assert all_bytes(found) == all_bytes(default)
            assert effort.listed + effort.searched + effort.scored == 150
            if extra == 0:
                assert effort == Effort(scored=150)
            scored.add(effort.scored)
    if kind == "real":
        assert min(scored) == 0


def test_a_search_asks_for_a_proof_of_its_own_list() -> None:
    """`nearest` is what `listed` and `proved` are together, for chosen queries in their order."""
    gallery = as_given(np.random.default_rng(4).normal(size=(200, 6)), cosine=True)
    which = np.array([17, 3, 199, 3])
    search = Search(gallery, 2)
    found = search.nearest(Queries(gallery, own=True), which, 4)
    every = find(gallery, 4)[0]
    assert found.ids.tolist() == every.ids[which].tolist()
    assert found.scores.tobytes() == every.scores[which].tobytes()
    assert found.gap.tobytes() == every.gap[which].tobytes()


@pytest.mark.parametrize("threads", [1, 2])
def test_progress_counts_pairs_of_blocks_to_the_last(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """Closed form: 100 rows in blocks of 15, the rows listed, and queries in blocks of 30."""
    monkeypatch.setattr(neighbours, "GALLERY_BLOCK_BYTES", 1)
    monkeypatch.setattr(neighbours, "QUERY_BLOCK", 30)
    monkeypatch.setattr(neighbours, "EXTRA", 10)
    gallery = as_given(np.random.default_rng(5).normal(size=(100, 3)), cosine=True)
    steps: list[tuple[int, int]] = []
    Search(gallery, threads).nearest(
        Queries(gallery, own=False), np.arange(100), 5, lambda *step: steps.append(step)
    )
    assert steps == [(done, 28) for done in range(1, 29)]


def test_efforts_add_up() -> None:
    """Closed form."""
    total = Effort(1, 2, 3)
    total.add(Effort(10, 20, 30))
    assert total == Effort(listed=11, searched=22, scored=33)


@pytest.mark.parametrize("own", [True, False])
def test_scoring_in_float32_ranks_by_float32_sums(own: bool) -> None:
    """Compared bit for bit with numpy's lanes in float32 over float64 divisors."""
    gallery = as_given(np.random.default_rng(6).normal(size=(120, 37)), cosine=True)
    single = gallery.codes.astype(np.float32)
    which = np.arange(5, 95)
    ids, scores = Search(gallery, 2).scored(Queries(gallery, own=own), which, 9, single=True)
    dots = np.stack([lanes(row, single) for row in single[which]]).astype(np.float64)
    divisors = plain(gallery).by
    expected = best(dots / (divisors[which, None] * divisors), 9, which if own else None)
    assert ids.tolist() == expected[0].tolist()
    assert scores.tobytes() == expected[1].tobytes()


FORKING = """
    import os, signal, sys
    import numpy as np
    from service.numerics.coded import as_given
    from service.numerics.neighbours import Queries, Search

    rows = as_given(np.random.default_rng(0).normal(size=(4000, 64)).astype("f4"), cosine=True)

    def search(threads):
        return Search(rows, threads).nearest(Queries(rows, own=True), np.arange(4000), 10)

    before = search({threads})
    child = os.fork()
    if child == 0:
        signal.alarm(40)
        os._exit(0 if (search({threads}).ids == before.ids).all() else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_fork_of_a_process_that_has_searched_can_search(threads: int) -> None:
    """P27: the child ends, with the parent's lists; an alarm ends it where it hangs."""
    script = textwrap.dedent(FORKING).format(threads=threads)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "0\n"
