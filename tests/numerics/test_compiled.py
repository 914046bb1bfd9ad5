"""Compiled loops against known answers, plain Python twins, itertools and chi-square."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator
from math import factorial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from service.numerics.compiled import (
    _below,
    add_by_group,
    add_centre_dots,
    add_square_sums,
    arrange,
    draw_counts,
    enumerate_arrangements,
    next_labelling,
    philox,
    stream_key,
)

Array = NDArray[Any]
WORD = 2**32
seeds = st.integers(0, 2**63 - 1)


def python_philox(counter: tuple[int, ...], key: tuple[int, ...]) -> list[int]:
    """Philox4x32-10 from the paper, in unbounded integers."""
    (x0, x1, x2, x3), (k0, k1) = counter, key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * x0, WORD)
        high1, low1 = divmod(0xCD9E8D57 * x2, WORD)
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % WORD, (k1 + 0xBB67AE85) % WORD
    return [x0, x1, x2, x3]


def python_words(key: Array, resample: int) -> Iterator[int]:
    """The stream of one resample: blocks of four words, the resample in the upper counter words."""
    for block in itertools.count():
        counter = (block % WORD, block // WORD, resample % WORD, resample // WORD)
        yield from python_philox(counter, (int(key[0]), int(key[1])))


def python_below(bound: int, words: Iterator[int]) -> int:
    """Lemire's method without its shortcut: reject where 2^32 mod bound values are too many."""
    while True:
        product = next(words) * bound
        if product % WORD >= WORD % bound:
            return product // WORD


def python_arrangement(places: list[int], strata: list[int], words: Iterator[int]) -> list[int]:
    """Fisher-Yates from the top inside each stratum, read in group order."""
    row = list(range(len(places)))
    for low, high in itertools.pairwise(strata):
        for i in range(high - 1, low, -1):
            j = low + python_below(i - low + 1, words)
            row[i], row[j] = row[j], row[i]
    return [row[place] for place in places]


def known_answer(counter: tuple[int, ...], key: tuple[int, ...]) -> list[int]:
    out = np.empty(4, np.uint64)
    philox(*counter, *key, out)
    return [int(word) for word in out]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0,) * 4, (0,) * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((WORD - 1,) * 4, (WORD - 1,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], expected: str
) -> None:
    """Published: philox4x32-10 vectors of Random123's kat_vectors."""
    words = [int(word, 16) for word in expected.split()]
    assert known_answer(counter, key) == words == python_philox(counter, key)


@given(
    st.tuples(*[st.integers(0, WORD - 1)] * 4),
    st.tuples(*[st.integers(0, WORD - 1)] * 2),
)
def test_philox_is_the_papers_rounds(counter: tuple[int, ...], key: tuple[int, ...]) -> None:
    """Compared with the ten rounds in unbounded Python integers."""
    assert known_answer(counter, key) == python_philox(counter, key)


@given(st.integers(0, 2**70), st.sampled_from(["permutation", "bootstrap", "dispersion"]))
def test_a_key_is_the_hash_of_seed_and_purpose(seed: int, purpose: str) -> None:
    """Compared with sha256 by hand; purposes of one seed never share a stream."""
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).hexdigest()
    swapped = [int.from_bytes(bytes.fromhex(digest[i : i + 8]), "little") for i in (0, 8)]
    assert stream_key(seed, purpose).tolist() == swapped
    assert stream_key(seed, purpose).tolist() != stream_key(seed, purpose + "x").tolist()
    assert stream_key(seed, purpose).tolist() != stream_key(seed + 1, purpose).tolist()


@given(
    st.one_of(
        st.integers(1, 50),
        st.integers(1, WORD - 1),
        st.sampled_from([2**31 + 1, 3 * 2**30 + 1, WORD - 1, 2**31, 2**31 - 1]),
    ),
    seeds,
    st.integers(0, 2**40),
)
def test_a_bounded_integer_is_lemires_with_its_rejections(
    bound: int, seed: int, resample: int
) -> None:
    """Compared with the method in plain Python on a second stream, bounds that reject half."""
    key = stream_key(seed, "bounded")
    words, at = np.empty(4, np.uint64), 0
    stream = python_words(key, resample)
    for _ in range(9):
        value, at = _below(bound, at, resample, words, key)
        assert value == python_below(bound, stream)


def test_bounded_integers_are_uniform() -> None:
    """Chi-square over the six values of a die, and over thirds of a bound that rejects often."""
    key, words = stream_key(3, "uniform"), np.empty(4, np.uint64)
    for bound, cells in ((6, 6), (3 * 2**30, 3)):
        at, seen = 0, np.zeros(cells)
        for _ in range(12_000):
            value, at = _below(bound, at, 0, words, key)
            seen[value * cells // bound] += 1
        assert stats.chisquare(seen).pvalue > 1e-3


def arrangements(places: list[int], strata: list[int], key: Array, first: int, count: int) -> Array:
    out = np.empty((count, len(places)), np.uint32)
    arrange(np.array(places), np.array(strata), key, first, out)
    return out


@st.composite
def designs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Places and strata of a few items."""
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    strata = [0, *itertools.accumulate(sizes)]
    return draw(st.permutations(range(strata[-1]))), strata


@given(designs(), seeds, st.integers(0, 10**6))
def test_an_arrangement_is_the_documented_shuffle_of_its_own_stream(
    design: tuple[list[int], list[int]], seed: int, first: int
) -> None:
    """Compared with Fisher-Yates in plain Python, resample by resample."""
    places, strata = design
    key = stream_key(seed, "permutation")
    for number, got in enumerate(arrangements(places, strata, key, first, 3), start=first):
        assert got.tolist() == python_arrangement(places, strata, python_words(key, number))


@given(designs(), seeds)
def test_an_arrangement_permutes_inside_strata_only(
    design: tuple[list[int], list[int]], seed: int
) -> None:
    """Compared with the definition: every item once, and at a place of its own stratum."""
    places, strata = design
    stratum = np.searchsorted(strata, np.arange(len(places)), side="right")
    for row in arrangements(places, strata, stream_key(seed, "x"), 0, 20):
        assert sorted(row.tolist()) == list(range(len(places)))
        assert (stratum[row] == stratum[places]).all()


@given(designs(), seeds, st.integers(0, 30), st.integers(1, 30))
def test_a_resample_does_not_depend_on_its_batch(
    design: tuple[list[int], list[int]], seed: int, first: int, count: int
) -> None:
    """Compared with one long batch from number 0."""
    key = stream_key(seed, "x")
    whole = arrangements(*design, key, 0, 60)
    assert (arrangements(*design, key, first, count) == whole[first : first + count]).all()


@pytest.mark.parametrize(
    ("labels", "strata"),
    [
        ([0, 0, 1, 1, 2], [0, 5]),
        ([0, 1, 1, 0, 0, 1], [0, 3, 6]),
        ([0, 1, 2, 3], [0, 4]),
        ([0, 1, 0, 1, 2], [0, 2, 5]),
    ],
)
def test_all_distinct_labellings_are_equally_likely(labels: list[int], strata: list[int]) -> None:
    """Chi-square over every labelling that itertools finds, labels read off as the design does."""
    places = np.argsort(labels, kind="stable").tolist()
    pieces = [
        sorted(set(itertools.permutations(labels[low:high])))
        for low, high in itertools.pairwise(strata)
    ]
    every = {tuple(itertools.chain(*parts)) for parts in itertools.product(*pieces)}
    seen: Counter[tuple[int, ...]] = Counter()
    for row in arrangements(places, strata, stream_key(11, "x"), 0, 300 * len(every)):
        found = np.empty(len(labels), int)
        found[row] = np.sort(labels)
        seen[tuple(found.tolist())] += 1
    assert set(seen) == every
    assert stats.chisquare(list(seen.values())).pvalue > 1e-3


def test_every_item_reaches_every_place_equally_often() -> None:
    """Chi-square of item by place over 6,000 arrangements of ten items (Bonferroni over places)."""
    rows = arrangements(list(range(10)), [0, 10], stream_key(2, "x"), 0, 6000)
    for place in range(10):
        assert stats.chisquare(np.bincount(rows[:, place], minlength=10)).pvalue > 1e-4


def test_successive_labellings_are_those_of_itertools_in_order() -> None:
    """Compared with sorted distinct permutations; strata turn like the digits of a number."""
    labels = np.array([0, 0, 1, 2, 0, 1, 1])
    strata = np.array([0, 4, 7])
    first = sorted(set(itertools.permutations([0, 0, 1, 2])))
    second = sorted(set(itertools.permutations([0, 1, 1])))
    expected = [a + b for b in second for a in first]
    seen = [tuple(labels.tolist())]
    while next_labelling(labels, strata):
        seen.append(tuple(labels.tolist()))
    assert seen == expected
    assert tuple(labels.tolist()) == expected[0]  # back where it began


@pytest.mark.parametrize("batch", [1, 7, 60, 100])
def test_enumeration_gives_each_labelling_once_in_any_batch(batch: int) -> None:
    """Compared with the multinomial count and itertools' set: 5!/(2! 2! 1!) = 30 times 2."""
    labels, strata = np.array([0, 0, 1, 1, 2, 0, 2]), np.array([0, 5, 7])
    groups = np.array([0, 3, 5, 7])
    seen = []
    while True:
        out = np.empty((batch, 7), np.uint32)
        count = enumerate_arrangements(labels, strata, groups, out)
        for row in out[:count]:
            found = np.empty(7, int)
            found[row] = [0, 0, 0, 1, 1, 2, 2]
            seen.append(tuple(found.tolist()))
        if len(seen) >= 60:
            break
    assert len(seen) == len(set(seen)) == 60
    assert {s[:5] for s in seen} == set(itertools.permutations([0, 0, 1, 1, 2]))
    assert {s[5:] for s in seen} == {(0, 2), (2, 0)}
    assert factorial(5) // 4 * 2 == 60


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_group_sums_over_a_slab_are_numpys(dtype: type) -> None:
    """Compared with sums of the chosen rows, added to what is there already."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(11, 8)).astype(dtype)
    items = np.stack([rng.permutation(11) for _ in range(5)]).astype(np.uint32)
    groups = np.array([0, 1, 4, 11])
    lengths, dots, centres = np.ones((5, 3)), np.ones((5, 11)), np.ones((5, 3))
    add_square_sums(x, items, groups, lengths)
    add_centre_dots(x, items, groups, dots, centres)
    values, totals = rng.normal(size=11), np.ones((5, 3))
    add_by_group(values, items, groups, totals)
    wide = x.astype(np.float64)
    for p, row in enumerate(items):
        for g, (low, high) in enumerate(itertools.pairwise(groups)):
            chosen = wide[row[low:high]]
            total = chosen.sum(axis=0)
            assert lengths[p, g] - 1 == pytest.approx(total @ total, rel=1e-13)
            centre = chosen.mean(axis=0)
            assert centres[p, g] - 1 == pytest.approx(centre @ centre, rel=1e-13, abs=1e-14)
            assert dots[p, low:high] - 1 == pytest.approx(chosen @ centre, abs=1e-14)
            assert totals[p, g] - 1 == pytest.approx(values[row[low:high]].sum(), abs=1e-14)


@given(seeds, st.integers(0, 10**9), st.integers(1, 40))
def test_a_bootstrap_resample_counts_its_own_draws(seed: int, first: int, units: int) -> None:
    """Compared with draws in plain Python, resample by resample."""
    key = stream_key(seed, "bootstrap")
    out = np.full((2, units), 7.0)
    draw_counts(key, first, out)
    for row, number in zip(out, (first, first + 1), strict=True):
        words = python_words(key, number)
        drawn = Counter(python_below(units, words) for _ in range(units))
        assert row.tolist() == [drawn[unit] for unit in range(units)]


def test_bootstrap_counts_are_multinomial() -> None:
    """Closed form: mean 1, variance 1 - 1/G, covariance -1/G; chi-square by unit (Bonferroni)."""
    units, resamples = 12, 20_000
    out = np.empty((resamples, units))
    draw_counts(stream_key(5, "bootstrap"), 0, out)
    assert (out.sum(axis=1) == units).all()
    covariance = np.cov(out.T, ddof=0)
    expected = np.eye(units) - 1 / units
    assert np.abs(out.mean(axis=0) - 1).max() < 4 / np.sqrt(resamples)
    assert np.abs(covariance - expected).max() < 0.06
    binomial = stats.binom(units, 1 / units).pmf(np.arange(5)) * resamples
    for unit in range(units):
        seen = np.bincount(out[:, unit].astype(int), minlength=units + 1)
        cells = [*seen[:5], seen[5:].sum()]
        fit = stats.chisquare(cells, [*binomial, resamples - binomial.sum()])
        assert fit.pvalue > 1e-3 / units
