"""Moved neighbours and certificates against whole matrices and movements made to break them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.numerics.coded import as_given, coded
from service.numerics.conditions import Condition, Given, Outcome
from service.numerics.neighbours import EXTRA, FLOAT32, Effort, Queries, Search, cut, gamma
from service.numerics.single import in_single
from service.numerics.storage_schemes import SchemeName, fit, store
from tests.stored_by_hand import SCHEMES, Pair, gaps, outside, pair, stored, top, unit

Array = NDArray[Any]
HOW = [("cosine", "unit"), ("cosine", "as_given"), ("dot", "unit"), ("dot", "as_given")]


def given_of(x: Array, q: Array | None, k: int, *, directions: bool, depth: int = EXTRA) -> Given:
    """A search of rows as given and what it lists for all queries."""
    rows = as_given(x, cosine=directions)
    asked = Queries(rows if q is None else as_given(q, cosine=directions), own=q is None)
    search = Search(rows, 1)
    which = np.arange(asked.rows.n)
    listed = search.listed(asked, which, k + depth)
    ids, scores, _ = search.proved(asked, which, listed, k)
    return Given(search, asked, which, listed, cut(ids, scores, k))


def outcome_of(
    given: Given, scheme: SchemeName, where: str, scoring: str, storage: str
) -> tuple[Outcome, Effort]:
    gallery, asked = given.search.rows, given.queries
    points = gallery.points if storage == "unit" else gallery.take
    fitted = fit(scheme, points, gallery.n, gallery.d, 1)
    cosine = scoring == "cosine"
    kept = store(fitted, points, gallery.n, gallery.d, cosine=cosine, threads=1).rows
    queries = asked
    if where == "both":
        take = asked.rows.points if storage == "unit" else asked.rows.take
        other = store(fitted, take, asked.rows.n, gallery.d, cosine=cosine, threads=1).rows
        queries = Queries(kept if asked.own else other, asked.own)
    return Condition(given.search, kept, queries).outcome(given)


@st.composite
def searched(draw: st.DrawFn) -> tuple[Array, Array | None, int]:
    """Rows, queries or None, and k: ties, copies, offsets, constants, lengths, and plain rows."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.one_of(st.integers(3, 30), st.integers(90, 220)))
    d = draw(st.integers(1, 20))
    kind = draw(st.sampled_from(
        ["normal", "copies", "grid", "offset", "constant", "equal", "lengths", "clusters", "int8"]
    ))  # fmt: skip

    def rows(count: int) -> Array:
        x = rng.normal(size=(count, d))
        if kind == "copies":
            x = x[rng.integers(0, max(1, count // 3), count)]
        elif kind == "grid":
            x = rng.integers(-2, 3, size=(count, d)) + 0.0
            x[~x.any(axis=1), 0] = 1
        elif kind == "offset":
            x = 100 + 1e-2 * x
        elif kind == "constant":
            x[:, ::2] = 0.5
        elif kind == "equal":
            x[:] = np.linspace(1, 2, d)
        elif kind == "lengths":
            x *= 10 ** rng.uniform(-2, 2, size=(count, 1))
        elif kind == "clusters":
            x = np.sign(rng.normal(size=(3, d)))[rng.integers(0, 3, count)] + 1e-3 * x
        elif kind == "int8":
            x = np.clip(np.rint(40 * x), -128, 127).astype(np.int8)
            x[~x.any(axis=1), 0] = -128
        return np.asarray(x)

    x = rows(n)
    q = rows(draw(st.integers(1, 8))) if draw(st.booleans()) else None
    return x, q, draw(st.integers(1, min(n - 1, 40)))


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "pq"])
@settings(max_examples=20)
@given(drawn=searched(), how=st.sampled_from(HOW), where=st.sampled_from(["gallery", "both"]))
def test_moved_neighbours_and_certificates_are_those_of_whole_matrices(
    scheme: SchemeName, drawn: tuple[Array, Array | None, int], how: tuple[str, str], where: str
) -> None:
    x, q, k = drawn
    scoring, storage = how
    by_hand = pair(scheme, where, x, q, scoring=scoring, storage=storage)
    asked = x if q is None else q
    kept = unit if storage == "unit" else np.float64
    raw = [stored(scheme, kept(rows), kept(x)) for rows in (x, asked)]
    if scoring == "cosine":  # rows that are nothing but rounding have no direction to agree on
        lengths = [np.linalg.norm(rows, axis=1) for rows in raw]
        size = max(np.abs(kept(x)).max(), np.abs(kept(asked)).max())
        assume(all(((found == 0) | (found > 1e-4 * size)).all() for found in lengths))
    found = given_of(x, q, k, directions=scoring == "cosine" or storage == "unit")
    got, effort = outcome_of(found, scheme, where, scoring, storage)
    assert effort.listed + effort.scored + effort.searched == len(asked)
    margin = np.minimum(gaps(by_hand.before, k), gaps(by_hand.after, k))
    tau = by_hand.tau
    noise = 1e4 * 2.0**-53 * np.linalg.norm(by_hand.moved_queries, axis=1)
    noise *= np.linalg.norm(by_hand.moved_gallery, axis=1).max()
    clear = margin > 2 * tau + noise
    np.testing.assert_array_equal(np.sort(got.ids[clear]), np.sort(top(by_hand.after, k)[clear]))
    assert (got.unresolved | (margin >= tau / 4)).all()
    assert not (got.unresolved & (margin > 2 * tau + noise)).any()
    certified = got.certified
    assert not (certified & got.unresolved).any()
    assert not (certified & ~by_hand.certified(k, -tau - noise)).any()
    assert not (by_hand.certified(k, 4 * tau + noise) & ~certified).any()
    ours = np.sort(got.ids[certified])
    np.testing.assert_array_equal(ours, np.sort(found.found.ids[certified]))


def float32_scores(x: Array, y: Array) -> Array:
    """Sums of float32 products in eight lanes and their tree, the last places one by one."""
    d = x.shape[1]
    whole = d - d % 8
    lanes = np.zeros((8, len(x), len(y)), np.float32)
    for j in range(whole):
        lanes[j % 8] += x[:, None, j] * y[None, :, j]
    rest = np.zeros((len(x), len(y)), np.float32)
    for j in range(whole, d):
        rest += x[:, None, j] * y[None, :, j]
    a = lanes
    tree = ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    return np.asarray(tree + rest, np.float64)


@given(drawn=searched(), cosine=st.booleans())
def test_float32_arithmetic_ranks_by_float32_sums_to_the_last_bit(
    drawn: tuple[Array, Array | None, int], cosine: bool
) -> None:
    x, q, k = drawn
    found = given_of(x, q, k, directions=cosine)
    rows = in_single(found.search.rows, 1)
    asked = Queries(rows if q is None else in_single(found.queries.rows, 1), q is None)
    got, _ = Condition(found.search, rows, asked, single=True).outcome(found)
    scores = float32_scores(asked.rows.codes, rows.codes)
    scores /= asked.rows.divisors[:, None] * rows.divisors
    np.testing.assert_array_equal(got.ids, top(outside(scores, q is None), k))
    points = unit if cosine else np.float64
    asked_points = points(x if q is None else q)
    before = outside(asked_points @ points(x).T, q is None)
    reach = gamma(2 * x.shape[1] + 4, FLOAT32) * np.linalg.norm(points(x), axis=1).max()
    reach = reach * np.linalg.norm(asked_points, axis=1)
    sure, doubtful = gaps(before, k) > 2 * reach * 1.001, gaps(before, k) < 2 * reach * 0.999
    finite = np.isfinite(gaps(before, k))
    assert (got.certified | ~sure | ~finite).all()
    assert not (got.certified & doubtful).any()


def worst_of(points: Pair, k: int, i: int) -> Array:
    """
    Scores of query i after rows and query moved by exactly what they are allowed, against it.

    The query turns from one neighbour to one other row, keeping its length; all neighbours step away
    from it and all other rows towards it. Of all pairs, the one that ends worst is taken.
    """
    moved = np.linalg.norm(points.moved_gallery - points.gallery, axis=1)
    q, weight = points.queries[i], np.linalg.norm(points.moved_queries[i])
    turned = np.linalg.norm(points.moved_queries[i] - q)
    inside = np.zeros(len(moved), bool)
    inside[top(points.before, k)[i]] = True
    others = np.flatnonzero(~inside & (np.arange(len(moved)) != (i if points.own else -1)))
    worst, lowest = points.before[i], np.inf
    for a in np.flatnonzero(inside):
        for b in others:
            turn = turned_against(q, weight, turned, points.gallery[a] - points.gallery[b])
            step = np.where(inside, -1.0, 1.0)[:, None] * turn / max(np.linalg.norm(turn), 1e-300)
            gallery = points.gallery + moved[:, None] * step
            scores = gallery @ turn
            left = scores[a] - scores[b]
            if left < lowest:
                worst, lowest = scores, left
    if points.own:
        worst[i] = -np.inf
    return np.asarray(worst)


def turned_against(q: Array, weight: float, turned: float, apart: Array) -> Array:
    """The vector of length `weight` within `turned` of q that has the least product with `apart`."""
    length = np.linalg.norm(q)
    first = q / length
    across = apart - (apart @ first) * first
    if np.linalg.norm(across) < 1e-12 or weight == 0:
        return weight * first
    nearest = (weight**2 + length**2 - turned**2) / (2 * weight * length)
    angle = np.arccos(np.clip(nearest, -1, 1))
    return np.asarray(
        weight * (np.cos(angle) * first - np.sin(angle) * across / np.linalg.norm(across))
    )


@pytest.mark.parametrize("where", ["gallery", "both"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("scheme", ["fp16", "bf16", "int8", "int8_per_vector", "int8_qt8"])
def test_no_movement_of_the_allowed_size_changes_a_certified_query(
    scheme: SchemeName, how: tuple[str, str], where: str
) -> None:
    """Every pair of a neighbour and another row is attacked; most other queries do change."""
    rng = np.random.default_rng([len(scheme), HOW.index(how)])
    k = 3
    x = rng.normal(size=(24, 6)) * np.exp(0.3 * rng.normal(size=(24, 1)))
    found = given_of(x, None, k, directions="unit" in how or "cosine" in how)
    got, _ = outcome_of(found, scheme, where, *how)
    points = pair(scheme, where, x, scoring=how[0], storage=how[1])
    assert got.certified.any()
    for i in range(len(x)):
        kept = set(top(worst_of(points, k, i)[None], k)[0])
        if got.certified[i]:
            assert kept == set(found.found.ids[i])


def test_attacks_break_what_is_not_certified(rows: Callable[[str], Array]) -> None:
    """The certificate is no wider than it must be: int8 on real rows, gallery moved alone."""
    x = rows("clinc150/minilm")[:60]
    found = given_of(x, None, 3, directions=True)
    got, _ = outcome_of(found, "int8", "gallery", "cosine", "unit")
    points = pair("int8", "gallery", x)
    broken = [
        set(top(worst_of(points, 3, i)[None], 3)[0]) != set(found.found.ids[i])
        for i in range(len(x))
    ]
    assert 5 < got.certified.sum() < 55
    np.testing.assert_array_equal(np.array(broken), ~got.certified)


@pytest.mark.parametrize("depth", [0, 1, 5, 64, 300])
@pytest.mark.parametrize("scheme", ["fp16", "int8_per_vector", "int4", "binary"])
def test_neither_sets_nor_certificates_depend_on_how_deep_candidates_are_listed(
    scheme: SchemeName, depth: int
) -> None:
    x = np.random.default_rng(8).normal(size=(300, 10))
    whole = outcome_of(given_of(x, None, 10, directions=True, depth=300), scheme, "both", *HOW[0])
    part = outcome_of(given_of(x, None, 10, directions=True, depth=depth), scheme, "both", *HOW[0])
    for name in ("ids", "certified", "unresolved", "error"):
        np.testing.assert_array_equal(getattr(part[0], name), getattr(whole[0], name))


def test_the_error_is_the_largest_change_of_a_score_of_a_neighbour_as_given() -> None:
    x = np.random.default_rng(9).normal(size=(120, 12))
    found = given_of(x, None, 10, directions=True)
    for scheme in ("int8", "int4", "binary"):
        got, _ = outcome_of(found, scheme, "both", "cosine", "unit")
        points = pair(scheme, "both", x)
        after = points.moved_queries @ points.moved_gallery.T
        change = np.abs(after - points.queries @ points.gallery.T)
        wanted = np.take_along_axis(change, top(points.before, 10), axis=1).max(axis=1)
        np.testing.assert_allclose(got.error, wanted, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("scheme", ["fp16", "int8"])
def test_neighbours_that_float32_does_not_list_are_certified_by_all_rows_or_not_at_all(
    scheme: SchemeName, k: int
) -> None:
    """400 rows within 1e-9 of each other: float32 lists any of them, float64 knows the nearest."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=16) + 1e-9 * rng.normal(size=(400, 16))
    found = given_of(x, None, k, directions=True)
    listed = found.search.listed(found.queries, found.which, k + EXTRA).ids
    unlisted = (found.found.ids[:, :, None] != listed[:, None, :]).all(axis=2)
    assert unlisted.any(axis=1).sum() > 100
    for where in ("gallery", "both"):
        points = pair(scheme, where, x)
        got, _ = outcome_of(found, scheme, where, "cosine", "unit")
        assert not (got.certified & ~points.certified(k, -points.tau)).any()
        assert not (got.certified & got.unresolved).any()


def test_rows_that_do_not_move_are_certified_unless_they_tie() -> None:
    x = np.random.default_rng(10).integers(-1, 2, size=(60, 5)) + 0.0
    x[~x.any(axis=1), 0] = 1
    found = given_of(x, None, 4, directions=False)
    same = coded(x.copy(), cosine=False)
    for queries in (found.queries, Queries(same, own=True)):
        got, _ = Condition(found.search, same, queries).outcome(found)
        tied = found.found.gap == 0
        assert 0 < tied.sum() < 60
        np.testing.assert_array_equal(got.ids, found.found.ids)
        np.testing.assert_array_equal(got.certified, ~tied)
        np.testing.assert_array_equal(got.unresolved, tied)


def test_threads_change_nothing() -> None:
    x = np.random.default_rng(11).normal(size=(2300, 8))
    found = given_of(x, None, 10, directions=True)
    kept = store(
        fit("int8", found.search.rows.points, 2300, 8, 1), found.search.rows.points, 2300, 8,
        cosine=True, threads=1,
    ).rows  # fmt: skip
    one, three = (
        Condition(found.search, kept, Queries(kept, own=True), threads=threads).outcome(found)[0]
        for threads in (1, 3)
    )
    for name in ("ids", "error", "certified", "unresolved"):
        assert getattr(one, name).tobytes() == getattr(three, name).tobytes()
