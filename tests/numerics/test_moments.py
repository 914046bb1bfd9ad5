"""Sums by unit and closed-form pair moments against explicit n x n matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.numerics.moments import Units, deviations, mean_cosine, pair_moments
from service.numerics.rows import Directions, Stored

Array = NDArray[Any]
BLOCKS = [3, 11, 40, 1 << 20]  # elements: one row a block, units larger than a block, all in one


def quiet(done: int, total: int) -> None:
    """Nobody listens to the progress."""


def shrink(patch: pytest.MonkeyPatch, elements: int) -> None:
    for module in ("rows", "moments"):
        patch.setattr(f"service.numerics.{module}.BLOCK_ELEMENTS", elements)


@st.composite
def codings(draw: st.DrawFn, least_groups: int = 1) -> Array:
    """Group codes 0..G-1 without gaps, in any order."""
    groups = draw(st.integers(least_groups, 7))
    extra = draw(st.lists(st.integers(0, groups - 1), max_size=25))
    return np.array(draw(st.permutations([*range(groups), *extra])))


def units_of(codes: Array | None, n: int) -> Units:
    return Units.rows(n) if codes is None else Units.groups(codes)


@given(codings(), st.sampled_from(BLOCKS), st.integers(1, 5))
def test_pieces_of_chunks_hold_every_row_once_unit_by_unit(
    codes: Array, elements: int, d: int
) -> None:
    """Compared with the rows of each code by flatnonzero, in order."""
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, elements)
        units = Units.groups(codes)
        chunks = units.chunks(d)
        pieces = [units.pieces(*chunk, d) for chunk in chunks]

    size = max(elements // d, 1)
    rows = [int(row) for chunk in pieces for piece in chunk for row in np.arange(len(codes))[piece]]
    assert rows == [
        int(i) for code in range(codes.max() + 1) for i in np.flatnonzero(codes == code)
    ]
    assert [first for first, _ in chunks] == [0, *(last for _, last in chunks[:-1])]
    assert chunks[-1][1] == codes.max() + 1
    assert all(len(np.arange(len(codes))[piece]) <= size for chunk in pieces for piece in chunk)
    assert all(
        len(chunk) == 1 or last - first == 1
        for chunk, (first, last) in zip(pieces, chunks, strict=True)
    )
    np.testing.assert_array_equal(units.counts, np.bincount(codes))
    assert units.n == len(codes)


@given(codings(), st.integers(0, 1000))
def test_unit_sums_are_sums_over_the_rows_of_a_unit(codes: Array, seed: int) -> None:
    """Compared with bincount by weights; a row as a unit sums to itself."""
    values = np.random.default_rng(seed).normal(size=len(codes))
    np.testing.assert_allclose(
        Units.groups(codes).sums(values), np.bincount(codes, weights=values), atol=1e-13
    )
    assert Units.rows(len(codes)).sums(values).tolist() == values.tolist()


@pytest.mark.parametrize("elements", BLOCKS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("grouped", [False, True])
def test_deviations_are_those_of_the_plain_centred_matrix(
    monkeypatch: pytest.MonkeyPatch, elements: int, threads: int, grouped: bool
) -> None:
    """Compared with one centred matrix and a one-hot matrix of units."""
    shrink(monkeypatch, elements)
    rng = np.random.default_rng(1)
    x = rng.normal(2, 1, size=(37, 5))
    codes = rng.permutation(np.repeat(np.arange(6), [1, 2, 3, 20, 7, 4])) if grouped else None
    got = deviations(Stored(x), units_of(codes, 37), threads)

    mean = x.mean(axis=0)
    centred = x - mean
    one_hot = np.eye(37) if codes is None else (codes == np.arange(6)[:, None]).astype(float)
    sums = one_hot @ centred
    np.testing.assert_allclose(got.mean, mean, rtol=1e-15)
    np.testing.assert_allclose(got.squares, one_hot @ (centred**2).sum(axis=1), rtol=1e-13)
    np.testing.assert_allclose(got.length2, (sums**2).sum(axis=1), rtol=1e-12, atol=1e-28)
    np.testing.assert_allclose(got.along, sums @ mean, rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(got.counts, one_hot.sum(axis=1))


def test_a_large_common_offset_does_not_touch_the_dispersion(
    unit_rows: Callable[[Array], Array],
) -> None:
    """Compared with the mean of all pairwise squared distances, which no offset can reach."""
    x = np.random.default_rng(2).normal(size=(60, 8)).astype(np.float32) + np.float32(1000)
    got = deviations(Directions(x), Units.rows(60), 1)

    z = unit_rows(x)
    pairwise = ((z[:, None] - z[None]) ** 2).sum(axis=2).mean() / 2
    assert got.squares.sum() / 60 == pytest.approx(pairwise, rel=1e-12)
    one_pass_in_float32 = 1 - float((z.astype(np.float32).mean(axis=0) ** 2).sum())
    assert one_pass_in_float32 != pytest.approx(pairwise, rel=0.01)


@given(st.integers(2, 30), st.integers(1, 6), st.integers(0, 10**6))
def test_the_mean_cosine_is_the_mean_off_the_diagonal(n: int, d: int, seed: int) -> None:
    """Compared with the explicit matrix of cosines."""
    x = np.random.default_rng(seed).normal(1, 1, size=(n, d))
    z = Directions(x).take(slice(0, n))
    expected = (z @ z.T)[~np.eye(n, dtype=bool)].mean()
    got = mean_cosine(deviations(Directions(x), Units.rows(n), 1))
    assert got == pytest.approx(expected, abs=1e-14)


def brute(a: Array, b: Array, codes: Array) -> tuple[float, float, int, Array]:
    """Mean, sd and count of a_i.b_j over unrelated pairs, and the mean without each unit."""
    cosines, unrelated = a @ b.T, codes[:, None] != codes[None, :]
    deleted = []
    for code in np.unique(codes):
        kept = codes != code
        left = cosines[np.ix_(kept, kept)][unrelated[np.ix_(kept, kept)]]
        deleted.append(left.mean() if left.size else np.nan)
    chosen = cosines[unrelated]
    return chosen.mean(), chosen.std(), int(unrelated.sum()), np.array(deleted)


@pytest.mark.parametrize("elements", BLOCKS)
@given(
    codes=st.one_of(codings(least_groups=2), st.none()),
    d=st.integers(1, 6),
    threads=st.integers(1, 3),
    shift=st.sampled_from([0.0, 1.0, 30.0]),
    same=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_pair_moments_are_those_of_the_masked_matrix(
    elements: int, codes: Array | None, d: int, threads: int, shift: float, same: bool, seed: int
) -> None:
    """Compared with the n x n cosine matrix under the mask of unrelated pairs."""
    rng = np.random.default_rng(seed)
    n = 17 if codes is None else len(codes)
    x = rng.normal(shift, 1, size=(n, d))
    a = Directions(x)
    b = a if same else Directions(x + rng.normal(size=(n, d)))
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, elements)
        got = pair_moments(a, b, units_of(codes, n), threads, quiet)

    mean, sd, pairs, deleted = brute(
        a.take(slice(0, n)), b.take(slice(0, n)), np.arange(n) if codes is None else codes
    )
    assert got.mean == pytest.approx(mean, abs=1e-13)
    assert got.sd == pytest.approx(sd, rel=1e-9, abs=2e-7)
    assert got.pairs == pairs
    np.testing.assert_allclose(got.deleted, deleted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("elements", BLOCKS)
def test_large_and_small_units_in_one_set_agree_with_the_masked_matrix(
    monkeypatch: pytest.MonkeyPatch, elements: int
) -> None:
    """Compared with the n x n matrix; sizes on both sides of d and of a block."""
    shrink(monkeypatch, elements)
    rng = np.random.default_rng(3)
    codes = rng.permutation(np.repeat(np.arange(7), [1, 2, 2, 5, 9, 30, 31]))
    x, y = rng.normal(0.5, 1, size=(2, 80, 4))
    a, b = Directions(x), Directions(y, mean=np.full(4, 0.1))
    got = pair_moments(a, b, Units.groups(codes), 2, quiet)
    mean, sd, pairs, deleted = brute(a.take(slice(0, 80)), b.take(slice(0, 80)), codes)

    assert got.mean == pytest.approx(mean, rel=1e-12)
    assert got.sd == pytest.approx(sd, rel=1e-12)
    assert got.pairs == pairs
    np.testing.assert_allclose(got.deleted, deleted, rtol=1e-11)


def test_the_blocks_change_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with the result in one block."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(2, 50, 6))
    codes = np.sort(rng.integers(0, 5, 50))
    a, b, units = Directions(x), Directions(y), Units.groups(codes)
    whole = pair_moments(a, b, units, 1, quiet)
    for elements in (1, 6, 29, 100):
        shrink(monkeypatch, elements)
        got = pair_moments(a, b, units, 3, quiet)
        assert (got.mean, got.sd) == pytest.approx((whole.mean, whole.sd), rel=1e-13)
        np.testing.assert_allclose(got.deleted, whole.deleted, rtol=1e-12)


@pytest.mark.parametrize("elements", [20, 1 << 20])
def test_threads_change_not_a_single_bit(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    """Compared bit for bit with one thread on the same blocks."""
    shrink(monkeypatch, elements)
    rng = np.random.default_rng(5)
    a, b = (Directions(x) for x in rng.normal(size=(2, 90, 7)))
    units = Units.groups(np.sort(rng.integers(0, 9, 90)))
    one = pair_moments(a, b, units, 1, quiet)
    sums = deviations(a, units, 1)
    for threads in (2, 3, 8):
        more = pair_moments(a, b, units, threads, quiet)
        assert (more.mean, more.sd) == (one.mean, one.sd)
        assert more.deleted.tobytes() == one.deleted.tobytes()
        again = deviations(a, units, threads)
        assert again.squares.tobytes() == sums.squares.tobytes()
        assert again.along.tobytes() == sums.along.tobytes()


def test_nothing_cancels_far_from_the_origin(unit_rows: Callable[[Array], Array]) -> None:
    """Compared with the matrix of cosines in extended precision; cosines differ by 1e-6 only."""
    x = np.random.default_rng(6).normal(size=(40, 8)).astype(np.float32) + np.float32(1000)
    z = unit_rows(x).astype(np.longdouble)
    cosines = (z @ z.T)[~np.eye(40, dtype=bool)]
    got = pair_moments(Directions(x), Directions(x), Units.rows(40), 1, quiet)
    assert got.mean == pytest.approx(float(cosines.mean()), abs=1e-15)
    assert got.sd == pytest.approx(float(cosines.std()), rel=0.01)


def test_equal_cosines_have_no_spread_at_all() -> None:
    """Closed form: equal rows, and the standard basis against itself."""
    same = Directions(np.tile([[3.0, 4.0, 12.0]], (9, 1)))
    got = pair_moments(same, same, Units.rows(9), 1, quiet)
    assert (got.mean, got.sd) == (pytest.approx(1, abs=1e-15), 0)
    basis = Directions(np.eye(6))
    got = pair_moments(basis, basis, Units.rows(6), 1, quiet)
    assert (got.mean, got.sd) == (pytest.approx(0, abs=1e-15), 0)


def test_two_units_leave_no_pair_when_one_is_left_out() -> None:
    """Closed form: the mean without either unit is undefined, the rest is not."""
    x = np.random.default_rng(7).normal(size=(6, 3))
    got = pair_moments(
        Directions(x), Directions(x), Units.groups(np.array([0, 0, 0, 1, 1, 1])), 1, quiet
    )
    assert np.isnan(got.deleted).all()
    assert got.pairs == 18


def test_progress_ends_at_the_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted."""
    shrink(monkeypatch, 8)
    steps: list[tuple[int, int]] = []
    x = Directions(np.random.default_rng(8).normal(size=(10, 4)))
    pair_moments(x, x, Units.rows(10), 2, lambda *step: steps.append(step))
    assert steps == [(i, 5) for i in range(1, 6)]


def test_six_intents_score_higher_when_paraphrases_count_as_unrelated(
    rows: Callable[[str], Array], column: Callable[[str, str], list[str]]
) -> None:
    """Compared with the masked matrix: .204 over all i != j, .130 across groups."""
    intents = np.array(column("clinc150", "intent"))
    chosen = np.isin(intents, np.unique(intents)[:6])
    x = rows("clinc150/minilm")[chosen]
    codes = np.unique(intents[chosen], return_inverse=True)[1]
    a = Directions(x)
    z = a.take(slice(0, len(x)))
    for units, key in ((Units.rows(len(x)), np.arange(len(x))), (Units.groups(codes), codes)):
        mean, sd, pairs, deleted = brute(z, z, key)
        got = pair_moments(a, a, units, 2, quiet)
        assert (got.mean, got.sd) == pytest.approx((mean, sd), rel=1e-10)
        assert got.pairs == pairs
        np.testing.assert_allclose(got.deleted, deleted, rtol=1e-10)
