"""Whether the partner is nearest, against the full matrix of per-pair scores."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.numerics.partners import Partners, partners_first
from service.numerics.rows import Directions, row_dots

Array = NDArray[Any]


def quiet(done: int, total: int) -> None:
    """Nobody listens to the progress."""


def brute(a: Directions, b: Directions) -> tuple[Array, Array, Array]:
    """Every pair by the per-pair kernel, one comparison at a time."""
    n = a.n
    x, y = a.take(slice(0, n)), b.take(slice(0, n))
    s = np.stack([row_dots(np.repeat(x[i : i + 1], n, axis=0), y) for i in range(n)])

    def first(scores: Array, i: int) -> float:
        if (scores > scores[i]).any():
            return 0.0
        return 1 / int((scores == scores[i]).sum())

    return (
        np.array([first(s[i], i) for i in range(n)]),
        np.array([first(s[:, i], i) for i in range(n)]),
        np.diag(s),
    )


def assert_same(got: Partners, expected: tuple[Array, Array, Array]) -> None:
    assert got.a_to_b.tolist() == expected[0].tolist()
    assert got.b_to_a.tolist() == expected[1].tolist()
    assert got.matched.tolist() == expected[2].tolist()


def shrink(patch: pytest.MonkeyPatch, tile: int, elements: int = 1 << 20) -> None:
    patch.setattr("service.numerics.partners.TILE", tile)
    patch.setattr("service.numerics.partners.CHUNK_ELEMENTS", elements)
    patch.setattr("service.numerics.rows.BLOCK_ELEMENTS", elements)


@pytest.mark.parametrize("tile", [1, 3, 16, 1024])
@given(
    n=st.integers(1, 40),
    d=st.integers(1, 9),
    kinds=st.integers(1, 40),
    noise=st.sampled_from([0.0, 1e-7, 0.3, 3.0]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 10**6),
)
def test_shares_are_those_of_the_full_matrix(
    tile: int, n: int, d: int, kinds: int, noise: float, threads: int, seed: int
) -> None:
    """Compared with every pair scored by the per-pair kernel; few kinds of rows make many ties."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, kinds, n)
    x = rng.normal(size=(kinds, d))
    x[:, 0] += 2
    y = x + noise * rng.normal(size=x.shape)
    a, b = Directions(x[kind].astype(np.float32)), Directions(y[kind].astype(np.float32))
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, tile, 17)
        got = partners_first(a, b, threads, quiet)
    assert_same(got, brute(a, b))


@pytest.mark.parametrize("tile", [2, 5, 1024])
@pytest.mark.parametrize("threads", [1, 3])
def test_copies_of_a_row_share_the_first_place(
    monkeypatch: pytest.MonkeyPatch, tile: int, threads: int
) -> None:
    """Closed form: a row that stands t times has its partner first with probability 1/t."""
    shrink(monkeypatch, tile, 64)
    copies = np.array([1, 2, 3, 4, 5])
    kind = np.random.default_rng(1).permutation(np.repeat(np.arange(5), copies))
    x = np.random.default_rng(2).normal(size=(5, 384)).astype(np.float32)
    side = Directions(x[kind])
    got = partners_first(side, side, threads, quiet)
    assert got.a_to_b.tolist() == got.b_to_a.tolist() == (1 / copies[kind]).tolist()


def test_ties_are_kept_after_a_mean_is_subtracted(unit_rows: Callable[[Array], Array]) -> None:
    """Closed form: equal rows stay equal whatever is subtracted from them."""
    x = np.random.default_rng(3).normal(1, 1, size=(20, 33)).astype(np.float32)
    x = x[np.repeat(np.arange(10), 2)]
    side = Directions(x, unit_rows(x).mean(axis=0))
    got = partners_first(side, side, 2, quiet)
    assert got.a_to_b.tolist() == [0.5] * 20


@pytest.mark.parametrize("tile", [4, 1024])
@pytest.mark.parametrize("base", ["alone", "crowd"])
def test_neighbours_one_float32_step_apart_are_ranked_by_float64(
    monkeypatch: pytest.MonkeyPatch, tile: int, base: str
) -> None:
    """Compared with every pair by the per-pair kernel; float32 cannot tell these rows apart."""
    shrink(monkeypatch, tile, 256)
    rng = np.random.default_rng(4)
    x = np.tile(rng.normal(size=24).astype(np.float32), (24, 1))
    for i in range(1, 24):
        x[i, i] = np.nextafter(x[i, i], np.float32(np.inf if i % 2 else -np.inf))
    y = x.copy()
    if base == "crowd":
        y = np.roll(x, 3, axis=0)
    a, b = Directions(x), Directions(y)
    scores = a.take(slice(0, 24)).astype(np.float32) @ b.take(slice(0, 24)).astype(np.float32).T
    assert np.ptp(scores) < 1e-6
    got = partners_first(a, b, 2, quiet)
    expected = brute(a, b)
    assert_same(got, expected)
    if base == "crowd":
        assert 0 < np.count_nonzero(expected[0]) < 24


def test_the_exact_order_is_that_of_rational_arithmetic() -> None:
    """Compared with rational cosines: 3-4-5 directions are exact in binary up to one rounding."""
    triples = [(3, 4, 5), (5, 12, 13), (8, 15, 17), (7, 24, 25), (20, 21, 29), (12, 35, 37)]
    whole = [(p, q, r) for u, v, r in triples for p, q in ((u, v), (v, u), (-u, v), (u, -v))]
    n = len(whole)
    shifted = [whole[(i * 5 + 1) % n] for i in range(n)]
    exact = [[Fraction(p * u + q * v, r * w) for u, v, w in shifted] for p, q, r in whole]
    a = Directions(np.array([row[:2] for row in whole], dtype=np.float64))
    b = Directions(np.array([row[:2] for row in shifted], dtype=np.float64))
    got = partners_first(a, b, 1, quiet)
    assert got.a_to_b.tolist() == [float(exact[i][i] == max(exact[i])) for i in range(n)]
    columns = list(zip(*exact, strict=True))
    assert got.b_to_a.tolist() == [float(columns[i][i] == max(columns[i])) for i in range(n)]


def test_a_permutation_of_the_pairs_permutes_the_answer() -> None:
    """Compared with the answer before the permutation."""
    rng = np.random.default_rng(5)
    kind = rng.integers(0, 30, 60)
    x, y = rng.normal(size=(2, 30, 8))
    a, b, order = x[kind], (x + 0.5 * y)[kind], rng.permutation(60)
    got = partners_first(Directions(a), Directions(b), 1, quiet)
    moved = partners_first(Directions(a[order]), Directions(b[order]), 1, quiet)
    assert moved.a_to_b.tolist() == got.a_to_b[order].tolist()
    assert moved.b_to_a.tolist() == got.b_to_a[order].tolist()


def test_ties_do_not_depend_on_how_the_arrays_lie_in_memory() -> None:
    """Closed form: forty rows, each four times, in column-major order."""
    x = np.random.default_rng(6).normal(size=(40, 384)).astype(np.float32)
    side = Directions(np.asfortranarray(x[np.repeat(np.arange(40), 4)]))
    got = partners_first(side, side, 1, quiet)
    assert got.a_to_b.tolist() == [0.25] * 160


def test_progress_counts_the_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted."""
    shrink(monkeypatch, 4)
    steps: list[tuple[int, int]] = []
    x = Directions(np.random.default_rng(7).normal(size=(10, 3)))
    partners_first(x, x, 2, lambda *step: steps.append(step))
    assert steps == [(i, 9) for i in range(1, 10)]


@pytest.mark.parametrize("model", ["minilm", "e5small_q4"])
@pytest.mark.parametrize("reading", ["raw", "centred_shared", "centred_own"])
def test_counts_on_real_pairs(
    model: str,
    reading: str,
    rows: Callable[[str], Array],
    reference: dict[str, Any],
    unit_rows: Callable[[Array], Array],
) -> None:
    """Compared with the stored argmax counts of one float64 matrix product, both directions."""
    x, y = rows(f"debian_pairs/{model}_query"), rows(f"debian_pairs/{model}_doc")
    u, v = unit_rows(x), unit_rows(y)
    means = {
        "raw": (None, None),
        "centred_shared": (np.vstack([u, v]).mean(axis=0),) * 2,
        "centred_own": (u.mean(axis=0), v.mean(axis=0)),
    }[reading]
    got = partners_first(Directions(x, means[0]), Directions(y, means[1]), 2, quiet)
    expected = reference["debian_pairs"][model]["pairs"][reading]
    assert np.count_nonzero(got.a_to_b) == expected["partner_first"]
    assert np.count_nonzero(got.b_to_a) == expected["partner_first_B_to_A"]
    assert got.matched.mean() == pytest.approx(expected["matched"], rel=1e-8)
