"""Neighbour lists against brute force over plain pair scores, and against scores in integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.numerics import neighbours
from service.numerics.coded import Coded, as_given
from service.numerics.neighbours import Effort, Neighbours, Search

from .per_pair import Plain, best
from .searching import KINDS, drawn, find, plain, stored

Array = NDArray[Any]
K = 10
seeds = st.integers(0, 2**32 - 1)


def assert_same(found: Neighbours, expected: tuple[Array, Array, Array]) -> None:
    """Bit for bit."""
    ids, scores, gap = expected
    assert found.ids.tolist() == ids.tolist()
    assert found.scores.tobytes() == scores.tobytes()
    assert found.gap.tobytes() == gap.tobytes()


def assert_brute(found: Neighbours, gallery: Coded, k: int, queries: Coded | None = None) -> int:
    """
    The order of pair scores bit for bit, and of true scores wherever they are resolved.

    Returns how many queries are not.
    """
    asked = gallery if queries is None else queries
    own = np.arange(gallery.n) if queries is None else None
    assert_same(found, best(plain(asked).scores(plain(gallery)), k, own))
    ids, _, gap = best(plain(asked).exact(plain(gallery)), k, own)
    norms = np.linalg.norm(asked.points(slice(None)), axis=1)
    resolved = gap > Search(gallery, 1).tau(norms)
    assert (np.sort(found.ids[resolved]) == np.sort(ids[resolved])).all()
    return int((~resolved).sum())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cosine", [True, False], ids=["cosine", "product"])
@settings(max_examples=25)
@given(
    seeds,
    st.integers(2, 130),
    st.sampled_from([1, 2, 3, 8, 40]),
    st.sampled_from(["float64", "float32", "float16", "int8"]),
    st.integers(1, 12),
    st.sampled_from([0, 1, 64]),
)
def test_lists_are_those_of_brute_force(
    kind: str, cosine: bool, seed: int, n: int, d: int, dtype: str, k: int, extra: int
) -> None:
    """Compared with every pair scored in numpy, and with scores in integers."""
    x = drawn(kind, np.random.default_rng(seed), n, d)
    gallery = stored(x, dtype, cosine)
    k = min(k, n - 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "EXTRA", extra)
        found, effort = find(gallery, k)
        assert effort.listed + effort.searched + effort.scored == n
        assert_brute(found, gallery, k)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cosine", [True, False], ids=["cosine", "product"])
@settings(max_examples=15)
@given(
    seeds,
    st.integers(1, 130),
    st.sampled_from([1, 2, 8, 40]),
    st.sampled_from(["float64", "float32", "float16", "int8"]),
    st.integers(1, 12),
    st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_lists_of_other_queries_are_those_of_brute_force(
    kind: str, cosine: bool, seed: int, n: int, d: int, dtype: str, k: int, length: float
) -> None:
    """Compared with every pair scored in numpy; a query equal to a row finds it."""
    rng = np.random.default_rng(seed)
    x = drawn(kind, rng, n, d)
    q = np.concatenate([drawn("normal", rng, 5, d), x[:5]]) * length
    gallery, queries = stored(x, dtype, cosine), stored(q, "float64", cosine)
    k = min(k, n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "EXTRA", 1)
        assert_brute(find(gallery, k, queries)[0], gallery, k, queries)


@pytest.mark.parametrize("cosine", [True, False], ids=["cosine", "product"])
@pytest.mark.parametrize(
    ("n", "own"),
    [(1, False), *((n, own) for n in (2, 3, 75, 76, 77) for own in (True, False))],
)
def test_all_rows_can_be_asked_for(cosine: bool, n: int, own: bool) -> None:
    """Compared with brute force; after the last row there is no gap but infinity."""
    gallery = as_given(np.random.default_rng(n).normal(size=(n, 3)), cosine=cosine)
    k = n - own
    found, effort = find(gallery, k, None if own else gallery)
    assert_brute(found, gallery, k, None if own else gallery)
    assert (found.gap == np.inf).all()
    assert (np.sort(np.c_[found.ids, np.arange(n)] if own else found.ids) == np.arange(n)).all()
    assert effort == Effort(listed=n)


@pytest.mark.parametrize(
    ("name", "reading"),
    [
        *((f"clinc150/{model}", ("clinc150", model, "stability"))
          for model in ("minilm", "minilm_int8", "e5small_q4", "use_multilingual")),
        *((f"debian_pairs/{model}_doc", ("debian_pairs", model, "stability_doc"))
          for model in ("minilm", "e5small_q4")),
        *((f"debian_pairs/{model}_query", ("debian_pairs", model, "stability_query_to_doc"))
          for model in ("minilm", "e5small_q4")),
    ],
)  # fmt: skip
def test_margins_of_real_rows_are_those_read_elsewhere(
    name: str,
    reading: tuple[str, str, str],
    rows: Callable[[str], Array],
    reference: dict[str, Any],
    printed: Callable[[Any], Any],
    unit_rows: Callable[[Array], Array],
) -> None:
    """Compared with the readings' own script, and every list with a float64 matrix product."""
    own = not name.endswith("_query")
    gallery = as_given(rows(name.replace("_query", "_doc")), cosine=True)
    queries = None if own else as_given(rows(name), cosine=True)
    found, effort = find(gallery, K, queries, threads=2)
    read = reference[reading[0]][reading[1]][reading[2]]
    assert found.gap.min() == printed(read["boundary_margin_min"])
    assert np.median(found.gap) == printed(read["boundary_margin_median"])
    assert int((found.gap < 1e-6).sum()) == read["boundary_margin_below_1e-6"]
    assert int((found.gap < 1e-12).sum()) == read["boundary_margin_below_1e-12"]

    scores = unit_rows(rows(name)) @ unit_rows(rows(name.replace("_query", "_doc"))).T
    ids, expected, gap = best(scores, K, np.arange(len(scores)) if own else None)
    assert (gap > Search(gallery, 1).tau(np.ones(len(scores)))).all()
    apart = np.diff(expected, axis=1).max(axis=1) < -1e-12
    assert (found.ids[apart] == ids[apart]).all()
    assert (np.sort(found.ids) == np.sort(ids)).all()
    asked, among = unit_rows(rows(name)), unit_rows(rows(name.replace("_query", "_doc")))
    exact = np.empty(found.scores.shape)  # a matrix product of float64 rounds by more than 2e-15
    for i, ids_of in enumerate(found.ids):
        exact[i] = among[ids_of].astype(np.longdouble) @ asked[i].astype(np.longdouble)
    np.testing.assert_allclose(found.scores, exact, rtol=0, atol=2e-15)
    assert apart.mean() > 0.9
    assert effort.listed > 0.999 * len(scores)


def test_queries_among_short_lines_are_found_as_a_matrix_product_finds_them(
    rows: Callable[[str], Array], unit_rows: Callable[[Array], Array]
) -> None:
    """Compared bit for bit with plain pair scores of every twentieth query, ties included."""
    for name in ("debian_pairs/minilm_query", "debian_pairs/e5small_q4_query"):
        x = rows(name)
        gallery, some = as_given(x, cosine=True), np.arange(0, len(x), 20)
        found, _ = find(gallery, K, which=some)
        every = plain(gallery)
        asked = Plain(every.rows[some], every.by[some])
        assert_same(found, best(asked.scores(every), K, some))


def test_rows_stored_in_fewer_bits_are_searched_as_they_are_read(
    rows: Callable[[str], Array],
) -> None:
    """Compared bit for bit with plain pair scores; float64 queries over their own int8 rows."""
    x = rows("clinc150/minilm")[:1500]
    for dtype in ("float16", "int8"):
        for cosine in (True, False):
            gallery, some = stored(x, dtype, cosine), np.arange(7, 1500, 15)
            asked = as_given(x[some].astype(np.float64), cosine=cosine)
            found, _ = find(gallery, K, asked)
            assert_same(found, best(plain(asked).scores(plain(gallery)), K))
            found, _ = find(gallery, K, which=some)
            every = plain(gallery)
            expected = best(Plain(every.rows[some], every.by[some]).scores(every), K, some)
            assert_same(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_row_is_its_own_neighbour_though_its_duplicates_are(dtype: str) -> None:
    """P14: duplicates tie and are listed by ascending row; the row itself is left out by number."""
    x = np.random.default_rng(91).normal(size=(12, 4)).astype(np.float32).astype(dtype)
    x[7] = x[9] = x[2]
    ids = find(as_given(x, cosine=True), 3)[0].ids
    assert ids[[2, 7, 9, 0]].tolist() == [[7, 9, 6], [2, 9, 6], [2, 7, 6], [3, 10, 1]]
    labels = np.array(list("abababababab"))
    assert (labels[ids] == labels[:, None]).mean() == pytest.approx(13 / 36)


def test_ten_thousand_equal_rows_are_listed_in_their_order() -> None:
    """Closed form: every score ties, so the first rows but oneself are the neighbours."""
    x = np.ones((10_000, 6), np.float32)
    which = np.array([0, 4, 5000, 9999])
    found, effort = find(as_given(x, cosine=True), 5, which=which)
    assert found.ids.tolist() == [[1, 2, 3, 4, 5], [0, 1, 2, 3, 5], *[[0, 1, 2, 3, 4]] * 2]
    assert (found.gap == 0).all()
    assert effort == Effort(scored=4)


@settings(max_examples=20)
@given(seeds, st.sampled_from([1, 3, 16]), st.sampled_from([0, 1, 64]), st.booleans())
def test_another_order_of_rows_finds_the_same_neighbours(
    seed: int, d: int, extra: int, cosine: bool
) -> None:
    """An invariance: scores and gaps bit for bit; ids wherever scores differ."""
    rng = np.random.default_rng(seed)
    x, order = rng.normal(size=(90, d)), rng.permutation(90)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "EXTRA", extra)
        one = find(as_given(x, cosine=cosine), 7)[0]
        other = find(as_given(x[order], cosine=cosine), 7)[0]
    assert other.scores.tobytes() == one.scores[order].tobytes()
    assert other.gap.tobytes() == one.gap[order].tobytes()
    alone = (np.diff(one.scores[order], axis=1) < 0).all(axis=1) & (one.gap[order] > 0)
    assert (order[other.ids][alone] == one.ids[order][alone]).all()


@given(seeds, st.integers(1, 40), st.integers(-40, 40))
def test_queries_of_any_length_rank_alike(seed: int, d: int, exponent: int) -> None:
    """An invariance: a power of two scales every product of a query and nothing else."""
    rng = np.random.default_rng(seed)
    gallery, q = as_given(rng.normal(size=(100, d)), cosine=False), rng.normal(size=(4, d))
    one = find(gallery, 5, as_given(q, cosine=False))[0]
    other = find(gallery, 5, as_given(q * 2.0**exponent, cosine=False))[0]
    assert one.ids.tolist() == other.ids.tolist()
    assert (one.scores * 2.0**exponent).tobytes() == other.scores.tobytes()


@pytest.mark.parametrize("exponent", [-440, -300, -140, 100, 125, 130, 150, 300, 440])
def test_queries_far_longer_or_shorter_than_the_gallery_find_the_same(exponent: int) -> None:
    """Compared with brute force where a float32 copy of the query would over- or underflow."""
    rng = np.random.default_rng(0)
    gallery = as_given(rng.normal(size=(400, 8)), cosine=False)
    queries = as_given(rng.normal(size=(40, 8)) * 2.0**exponent, cosine=False)
    assert_brute(find(gallery, 5, queries)[0], gallery, 5, queries)
