"""Distances against scipy's, two nearest rows against whole matrices and known dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from service.numerics import spacing as module
from service.numerics.coded import as_given
from service.numerics.graph import nearest_graph
from service.numerics.neighbours import silent
from service.numerics.rows import Directions
from service.numerics.spacing import Spacing, neighbour_distances, spacing, spread

Array = NDArray[Any]


def unit(x: Array) -> Array:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def spaced(x: Array, k: int = 3) -> Spacing:
    ids = nearest_graph(as_given(x, cosine=True), k, 1, silent).ids
    return spacing(x, ids, neighbour_distances(Directions(x), ids, 1), 1, silent)


@pytest.mark.parametrize("tile", [1, 7, 64, 1024])
@pytest.mark.parametrize("threads", [1, 3])
def test_sums_over_all_pairs_are_those_of_the_whole_matrix(
    tile: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with scipy's distances of unit rows; progress rises to the end."""
    monkeypatch.setattr(module, "TILE", tile)
    x = np.random.default_rng(1).normal(0.3, 1, size=(61, 5))
    x[7] = x[3]
    told: list[tuple[int, int]] = []
    found = spread(Directions(x), threads, lambda done, total: told.append((done, total)))
    apart = cdist(unit(x), unit(x))
    np.testing.assert_allclose(found.distances, apart.sum(axis=1), rtol=1e-7)
    potentials = np.exp(-2 * apart**2)
    np.fill_diagonal(potentials, 0)
    np.testing.assert_allclose(found.potentials, potentials.sum(axis=1), rtol=1e-12)
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]


def test_rows_that_are_close_keep_their_digits() -> None:
    """Compared with differences taken one by one: rows 1e-9 apart, far from the origin."""
    x = 1 + 1e-9 * np.random.default_rng(2).normal(size=(20, 4))
    found = spread(Directions(x), 1, silent)
    apart = cdist(unit(x), unit(x))
    assert found.distances == pytest.approx(apart.sum(axis=1), rel=1e-6)


def test_distances_to_listed_rows_are_those_of_unit_rows() -> None:
    """Compared with scipy; equal rows are at exactly 0."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(50, 6)).astype(np.float32)
    x[9] = x[4]
    ids = rng.integers(0, 50, size=(50, 4)).astype(np.int32)
    ids[4, 0], ids[9, 1] = 9, 4
    found = neighbour_distances(Directions(x), ids, 2)
    apart = cdist(unit(x.astype(np.float64)), unit(x.astype(np.float64)))
    np.testing.assert_allclose(found, np.take_along_axis(apart, ids, axis=1), atol=1e-14)
    assert found[4, 0] == found[9, 1] == 0


@given(n=st.integers(6, 40), d=st.integers(2, 6), seed=st.integers(0, 10**6))
def test_two_nearest_rows_are_those_of_the_whole_matrix(n: int, d: int, seed: int) -> None:
    """Compared with sorted distances of different directions; some rows repeat one, at other length."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    copies = rng.integers(0, 4)
    every = np.vstack([x, x[rng.integers(0, n, copies)] * rng.uniform(0.5, 3, size=(copies, 1))])
    order = rng.permutation(len(every))
    found = spaced(every[order])
    near = np.sort(cdist(unit(x), unit(x)), axis=1)[:, 1:3]
    assert found.duplicates == copies
    assert np.sort(found.log_ratios) == pytest.approx(
        np.sort(np.log(near[:, 1] / near[:, 0])), rel=1e-6, abs=1e-9
    )
    expected = (n - 1) / np.log(near[:, 1] / near[:, 0]).sum()
    assert found.dimension == pytest.approx(expected, rel=1e-6)
    logs = found.log_ratios
    refits = [(n - 2) / np.delete(logs, i).sum() for i in range(n)]
    np.testing.assert_allclose(found.without_each, refits, rtol=1e-9)


@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_the_dimension_of_a_known_surface_is_found(dimensions: int) -> None:
    """Closed form: points on a sphere of that many dimensions, turned into twenty."""
    rng = np.random.default_rng(4)
    x = (
        rng.normal(size=(4000, dimensions + 1))
        @ np.linalg.qr(rng.normal(size=(20, 20)))[0][: dimensions + 1]
    )
    found = spaced(x)
    error = dimensions / np.sqrt(4000)
    assert found.dimension == pytest.approx(dimensions, abs=4 * error + 0.04 * dimensions)
    assert found.duplicates == 0


def test_more_copies_than_a_list_holds_are_all_left_out() -> None:
    """Closed form: twelve copies of one row, at lengths that round differently, leave one."""
    rng = np.random.default_rng(5)
    x = np.vstack([rng.normal(size=(30, 4)), np.outer(rng.uniform(0.1, 9, 12), rng.normal(size=4))])
    found = spaced(x)
    apart = np.sort(cdist(unit(x[:31]), unit(x[:31])), axis=1)[:, 1:3]
    assert found.duplicates + len(found.log_ratios) == 42
    assert found.duplicates >= 11
    if found.duplicates == 11:
        assert found.dimension == pytest.approx(
            30 / np.log(apart[:, 1] / apart[:, 0]).sum(), rel=1e-6
        )


def test_copies_that_no_list_joins_are_left_out_too() -> None:
    """Closed form: four copies whose lists pair them two and two leave none of the four."""
    x = np.random.default_rng(6).normal(size=(24, 4))
    x[1:4] = x[0]
    z = unit(x)
    ids = np.argsort(cdist(z, z) + 9 * np.eye(24), axis=1, kind="stable")[:, :2].astype(np.int32)
    ids[:4, 0], ids[:4, 1] = [1, 0, 3, 2], 9
    found = spacing(x, ids, neighbour_distances(Directions(x), ids, 1), 1, silent)
    near = np.sort(cdist(z[4:], z[[0, 2, *range(4, 24)]]), axis=1)[:, 1:3]
    assert found.duplicates == 4
    assert found.log_ratios == pytest.approx(np.log(near[:, 1] / near[:, 0]), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("x", "duplicates", "ratios"),
    [
        (np.eye(6), 0, 6),  # all equally far
        (np.ones((6, 3)), 5, 0),
        (np.repeat(np.eye(2), 4, axis=0), 6, 0),
        (np.repeat(np.eye(3), 4, axis=0), 9, 3),
    ],
)
def test_a_dimension_needs_three_directions_that_are_not_equally_far(
    x: Array, duplicates: int, ratios: int
) -> None:
    """Closed form: nothing to divide by."""
    found = spaced(x)
    assert (found.duplicates, len(found.log_ratios)) == (duplicates, ratios)
    assert found.dimension is None
