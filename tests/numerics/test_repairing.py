"""Cosines of re-paired rows against explicit pairs and the stored readings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.numerics.moments import Units, pair_moments
from service.numerics.permutation import derangement
from service.numerics.repairing import SampledFloor, sampled_floor
from service.numerics.rows import Directions

Array = NDArray[Any]


def quiet(done: int, total: int) -> None:
    """Nobody listens to the progress."""


@pytest.mark.parametrize("elements", [1, 20, 1 << 20])
@given(
    n=st.integers(2, 25),
    d=st.integers(1, 6),
    times=st.integers(1, 4),
    centre=st.sampled_from([0.0, 0.3, -1.0]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 10**6),
)
def test_sums_by_row_hold_every_pair_the_row_takes_part_in(
    elements: int, n: int, d: int, times: int, centre: float, threads: int, seed: int
) -> None:
    """Compared with a list of all pairs and their cosines."""
    rng = np.random.default_rng(seed)
    a, b = (Directions(x) for x in rng.normal(size=(2, n, d)))
    partners = [rng.permutation(n) for _ in range(times)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.numerics.rows.BLOCK_ELEMENTS", elements)
        got = sampled_floor(a, b, partners, centre, threads, quiet)

    x, y = a.take(slice(0, n)), b.take(slice(0, n))
    pairs = [(i, int(p[i]), float(x[i] @ y[p[i]]) - centre) for p in partners for i in range(n)]
    c = np.array([value for _, _, value in pairs])
    assert got.count == len(pairs)
    assert got.total == pytest.approx(c.sum(), abs=1e-12)
    assert got.squares == pytest.approx((c**2).sum(), abs=1e-12)
    assert got.mean == pytest.approx(c.mean() + centre, abs=1e-13)
    assert got.variance == pytest.approx(c.var(), abs=1e-13)
    by_row, squares = np.zeros(n), np.zeros(n)
    for i, j, value in pairs:
        for row in (i, j):
            by_row[row] += value
            squares[row] += value**2
    np.testing.assert_allclose(got.by_row, by_row, atol=1e-12)
    np.testing.assert_allclose(got.squares_by_row, squares, atol=1e-12)


def test_a_variance_is_never_negative() -> None:
    """Closed form: equal cosines around a centre that is not exact."""
    nothing = np.zeros(1)
    assert SampledFloor(0.0, 3, 0.3, 0.03 - 1e-17, nothing, nothing).variance == 0


def test_a_centre_far_from_the_mean_changes_nothing_but_rounding() -> None:
    """Compared with the sums about the mean itself."""
    rng = np.random.default_rng(1)
    a, b = (Directions(x) for x in rng.normal(3, 1, size=(2, 50, 8)))
    partners = [rng.permutation(50) for _ in range(5)]
    near = sampled_floor(a, b, partners, 0.9, 1, quiet)
    far = sampled_floor(a, b, partners, -0.7, 1, quiet)
    assert far.mean == pytest.approx(near.mean, rel=1e-14)
    assert far.variance == pytest.approx(near.variance, rel=1e-11)


READINGS = [
    *(("scifact_halves", m, r) for m in ("minilm", "e5small_q4", "minilm_int8")
      for r in ("raw", "centred_shared", "centred_own", "centred_fit_shared")
      if (m, r) != ("minilm_int8", "centred_fit_shared")),
    *(("debian_pairs", m, r) for m in ("minilm", "e5small_q4")
      for r in ("raw", "centred_shared", "centred_own")),
]  # fmt: skip


@pytest.fixture
def sides(
    rows: Callable[[str], Array], unit_rows: Callable[[Array], Array]
) -> Callable[[str, str, str], tuple[Directions, Directions]]:
    """Both sides of a stored reading, centred by means made here."""

    def of(folder: str, model: str, reading: str) -> tuple[Directions, Directions]:
        if folder == "debian_pairs":
            a, b = rows(f"{folder}/{model}_query"), rows(f"{folder}/{model}_doc")
        else:
            a, b = rows(f"{folder}/{model}/A"), rows(f"{folder}/{model}/B")
        u, v = unit_rows(a), unit_rows(b)
        if reading == "raw":
            return Directions(a), Directions(b)
        if reading == "centred_own":
            return Directions(a, u.mean(axis=0)), Directions(b, v.mean(axis=0))
        stack = (
            (u, v)
            if reading == "centred_shared"
            else [unit_rows(rows(f"{folder}/{model}/fit_{side}")) for side in "AB"]
        )
        mean = np.vstack(stack).mean(axis=0)
        return Directions(a, mean), Directions(b, mean)

    return of


@pytest.mark.parametrize(("folder", "model", "reading"), READINGS)
def test_the_references_pairings_give_the_references_floor(
    folder: str,
    model: str,
    reading: str,
    sides: Callable[[str, str, str], tuple[Directions, Directions]],
    reference: dict[str, Any],
    reference_pairings: Callable[[int], list[Array]],
    printed: Callable[[Any], Any],
) -> None:
    """Compared with the stored floor and its sd over the very same twenty pairings."""
    a, b = sides(folder, model, reading)
    found = reference[folder][model]
    expected = (found["pairs"] if folder == "debian_pairs" else found)[reading]
    got = sampled_floor(a, b, reference_pairings(a.n), expected["floor_all"], 2, quiet)
    assert got.count == 20 * expected["n"]
    assert got.mean == printed(expected["floor_perm"])
    assert np.sqrt(got.variance) == printed(expected["floor_sd"])


@pytest.mark.parametrize(("folder", "model", "reading"), READINGS)
def test_the_references_rows_give_the_references_exact_floor(
    folder: str,
    model: str,
    reading: str,
    sides: Callable[[str, str, str], tuple[Directions, Directions]],
    reference: dict[str, Any],
    printed: Callable[[Any], Any],
) -> None:
    """Compared with the stored mean and sd over the explicit matrix of all unmatched pairs."""
    a, b = sides(folder, model, reading)
    found = reference[folder][model]
    expected = (found["pairs"] if folder == "debian_pairs" else found)[reading]
    got = pair_moments(a, b, Units.rows(a.n), 2, quiet)
    assert got.mean == printed(expected["floor_all"])
    assert got.sd == printed(expected["floor_all_sd"])
    assert got.pairs == a.n * (a.n - 1)


@pytest.mark.parametrize(("folder", "model", "reading"), READINGS)
def test_our_own_pairings_stay_within_four_monte_carlo_errors(
    folder: str,
    model: str,
    reading: str,
    sides: Callable[[str, str, str], tuple[Directions, Directions]],
) -> None:
    """Compared with the exact floor; errors from two hundred pairings drawn by numpy."""
    a, b = sides(folder, model, reading)
    n = a.n
    partners = [derangement(Units.rows(n), 0, "floor", i) for i in range(20)]
    exact = pair_moments(a, b, Units.rows(n), 1, quiet)
    ours = sampled_floor(a, b, partners, exact.mean, 1, quiet)

    rng = np.random.default_rng(20240229)
    s = a.take(slice(0, n)) @ b.take(slice(0, n)).T
    turns = [np.roll(p, 1)[np.argsort(p)] for p in (rng.permutation(n) for _ in range(200))]
    drawn = np.array([s[np.arange(n), turn] for turn in turns])  # one cycle: nothing is fixed
    means, variances = drawn.mean(axis=1), drawn.var(axis=1)
    assert abs(ours.mean - exact.mean) < 4 * means.std() / np.sqrt(20)
    assert abs(ours.variance - exact.sd**2) < 4 * variances.std() / np.sqrt(20)
    assert ours.mean != exact.mean
