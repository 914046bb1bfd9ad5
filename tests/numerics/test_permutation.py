"""Random streams and derangements against a second Philox, enumeration and chi-square."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from service.errors import TooFewGroups
from service.numerics.moments import Units
from service.numerics.permutation import below, derangement, shuffled, stream

Array = NDArray[Any]
MASK = (1 << 64) - 1


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> list[int]:
    """Philox4x64-10 in plain integers, after Salmon et al. 2011."""
    c, k = list(counter), list(key)
    for turn in range(10):
        if turn:
            k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
        p, q = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [(q >> 64) ^ c[1] ^ k[0], q & MASK, (p >> 64) ^ c[3] ^ k[1], p & MASK]
    return c


def words(seed: int, purpose: str, i: int, count: int) -> list[int]:
    """The words of a stream from the second Philox; the counter moves on before each block."""
    name = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
    found: list[int] = []
    for block in range(1, count // 4 + 2):
        found += philox((block, 0, 0, i), (seed, name))
    return found[:count]


KNOWN_ANSWERS = [  # Random123, kat_vectors, philox4x64 with 10 rounds
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B),
    ),
    (
        (MASK, MASK, MASK, MASK),
        (MASK, MASK),
        (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0),
    ),
    (
        (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
        (0x452821E638D01377, 0xBE5466CF34E90C6C),
        (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_both_philox_implementations_give_the_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """Compared with the vectors published with Random123."""
    assert tuple(philox(counter, key)) == expected
    before = (sum(word << (64 * place) for place, word in enumerate(counter)) - 1) % (1 << 256)
    bits = np.random.Philox(
        key=np.array(key, dtype=np.uint64),
        counter=np.array([(before >> (64 * place)) & MASK for place in range(4)], dtype=np.uint64),
    )
    assert tuple(int(word) for word in bits.random_raw(4)) == expected


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**64 - 1])
@pytest.mark.parametrize(("purpose", "i"), [("floor", 0), ("floor", 1), ("aligned floor", 999)])
def test_the_stream_is_addressed_by_seed_purpose_and_number(
    seed: int, purpose: str, i: int
) -> None:
    """Compared with words of a second Philox in plain integers."""
    got = [int(word) for word in stream(seed, purpose, i).random_raw(21)]
    assert got == words(seed, purpose, i, 21)


def test_streams_of_other_seeds_purposes_and_numbers_share_no_word() -> None:
    """Counted: 64-bit words do not repeat by chance in so few draws."""
    drawn = [
        int(word)
        for seed in (0, 1, 7)
        for purpose in ("floor", "aligned floor", "procrustes split")
        for i in (0, 1, 2)
        for word in stream(seed, purpose, i).random_raw(500)
    ]
    assert len(set(drawn)) == len(drawn)


class Fixed:
    """A source that gives chosen words."""

    def __init__(self, *chosen: int) -> None:
        self.chosen = list(chosen)

    def random_raw(self) -> int:
        return self.chosen.pop(0)


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 6, 7, 10, 1000, 3000, 2**32 + 1, 2**63 + 1])
def test_every_integer_below_a_bound_is_given_by_equally_many_words(bound: int) -> None:
    """Counted: the words that give k are a range, of which all but floor(2^64/bound) are refused."""
    for k in {0, 1 % bound, bound // 3, bound // 2, max(bound - 2, 0), bound - 1}:
        start, stop = -(-k * 2**64 // bound), -(-(k + 1) * 2**64 // bound)  # words that give k
        refused = stop - start - 2**64 // bound
        for word in {start, min(start + 1, stop - 1), stop - 1}:
            source = Fixed(word, MASK)  # the last word is never refused
            got = below(source, bound)  # type: ignore[arg-type]
            if word < start + refused:
                assert source.chosen == []
            else:
                assert (got, source.chosen) == (k, [MASK])


def test_a_refused_word_is_replaced_by_the_next() -> None:
    """Closed form: 2^64 mod 3 = 1, so of all words only 0 is refused."""
    assert below(Fixed(0, 0, MASK), 3) == 2  # type: ignore[arg-type]
    assert below(Fixed(1), 3) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("bound", [2, 3, 7, 12])
def test_integers_below_a_bound_are_uniform(bound: int) -> None:
    """Chi-square against the uniform distribution."""
    bits = stream(3, "uniform", bound)
    counts = np.bincount([below(bits, bound) for _ in range(6000)], minlength=bound)
    assert len(counts) == bound
    assert stats.chisquare(counts).pvalue > 1e-3


def test_all_orders_of_four_are_equally_likely() -> None:
    """Chi-square over the 24 permutations."""
    seen = Counter(tuple(shuffled(stream(0, "orders", i), 4).tolist()) for i in range(4800))
    assert len(seen) == 24
    assert stats.chisquare(list(seen.values())).pvalue > 1e-3


@st.composite
def codings(draw: st.DrawFn) -> Array:
    groups = draw(st.integers(2, 8))
    extra = draw(st.lists(st.integers(0, groups - 1), max_size=30))
    return np.array(draw(st.permutations([*range(groups), *extra])))


@given(codings(), st.integers(0, 2**64 - 1), st.integers(0, 999))
def test_a_derangement_is_a_permutation_that_leaves_every_group(
    codes: Array, seed: int, i: int
) -> None:
    """Compared with the definition."""
    assume(2 * np.bincount(codes).max() <= len(codes))
    partner = derangement(Units.groups(codes), seed, "floor", i)
    assert sorted(partner.tolist()) == list(range(len(codes)))
    assert (codes[partner] != codes).all()


@given(st.integers(2, 60), st.integers(0, 2**64 - 1), st.integers(0, 999))
def test_without_groups_no_row_keeps_its_place(n: int, seed: int, i: int) -> None:
    """Compared with the definition."""
    partner = derangement(Units.rows(n), seed, "floor", i)
    assert sorted(partner.tolist()) == list(range(n))
    assert (partner != np.arange(n)).all()


@given(codings())
def test_a_group_of_more_than_half_of_the_rows_is_refused(codes: Array) -> None:
    """Compared with Hall's condition: such a group cannot find enough partners outside itself."""
    largest = int(np.bincount(codes).max())
    assume(2 * largest > len(codes))
    with pytest.raises(TooFewGroups) as caught:
        derangement(Units.groups(codes), 0, "floor", 0)
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.count) == ("/inputs/groups", largest)


def test_half_of_the_rows_in_one_group_still_pair() -> None:
    """Closed form: with two halves every row crosses over."""
    codes = np.array([0, 1, 0, 1, 0, 1])
    for i in range(20):
        partner = derangement(Units.groups(codes), 1, "floor", i)
        assert (codes[partner] == 1 - codes).all()


@pytest.mark.parametrize(
    "codes", [None, [0, 0, 1, 1, 2, 2, 3, 3], [0, 1, 2, 0, 1, 2, 0, 1, 2], [0, 1, 0, 1, 0, 1]]
)
def test_all_unrelated_partners_are_equally_likely_in_groups_of_one_size(
    codes: list[int] | None,
) -> None:
    """Chi-square of every row's partner over the rows of other groups (Bonferroni over rows)."""
    n = 7 if codes is None else len(codes)
    units = Units.rows(n) if codes is None else Units.groups(np.array(codes))
    key = np.arange(n) if codes is None else np.array(codes)
    counts = np.zeros((n, n))
    for i in range(3000):
        counts[np.arange(n), derangement(units, 5, "uniform", i)] += 1

    for row in range(n):
        others = counts[row, key != key[row]]
        assert counts[row].sum() == others.sum() == 3000
        assert stats.chisquare(others).pvalue > 1e-3 / n


@pytest.mark.parametrize("codes", [None, [2, 0, 1, 1, 0, 2, 3, 3, 2, 4]])
def test_a_derangement_depends_on_raw_words_alone(
    monkeypatch: pytest.MonkeyPatch, codes: list[int] | None
) -> None:
    """Compared with the documented algorithm in plain Python on words of a second Philox."""

    class Forbidden:
        def __init__(self, *args: object) -> None:
            raise AssertionError("no sampling method of a library may be used")

    monkeypatch.setattr(np.random, "Generator", Forbidden)
    monkeypatch.setattr(np.random, "default_rng", Forbidden)
    n = 11 if codes is None else len(codes)
    units = Units.rows(n) if codes is None else Units.groups(np.array(codes))
    for i in range(10):
        if codes is None:
            drawn = words(9, "floor", i, n + 1)
            circle, largest = sorted(range(n), key=lambda row: drawn[row]), 1
        else:
            groups = max(codes) + 1
            drawn = words(9, "floor", i, groups + n + 1)
            listed = sorted(range(n), key=lambda row: codes[row])  # rows group by group
            keys = {row: drawn[groups + place] for place, row in enumerate(listed)}
            circle = sorted(listed, key=lambda row: (drawn[codes[row]], keys[row]))
            largest = max(Counter(codes).values())
        shift = largest + (drawn[-1] * (n - 2 * largest + 1) >> 64)
        expected = {circle[place]: circle[(place + shift) % n] for place in range(n)}
        got = derangement(units, 9, "floor", i)
        assert got.tolist() == [expected[row] for row in range(n)]
