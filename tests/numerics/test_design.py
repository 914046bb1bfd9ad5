"""Restricted permutation designs against full enumeration by itertools and their definitions."""

from __future__ import annotations

import itertools
from collections import Counter
from math import factorial, prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.errors import InvalidRequest, TooFewGroups
from service.numerics.compiled import stream_key
from service.numerics.design import Design

Array = NDArray[Any]


@st.composite
def restricted(draw: st.DrawFn) -> tuple[Array, Array, Array]:
    """Dense group, stratum and unit codes of a few rows, units inside one group and stratum."""
    units = draw(st.integers(2, 6))
    group = draw(st.lists(st.integers(0, 2), min_size=units, max_size=units))
    stratum = draw(st.lists(st.integers(0, 1), min_size=units, max_size=units))
    sizes = draw(st.lists(st.integers(1, 3), min_size=units, max_size=units))
    unit = np.array(draw(st.permutations(np.repeat(np.arange(units), sizes).tolist())))
    dense = [
        np.unique(np.array(values)[unit], return_inverse=True)[1] for values in (group, stratum)
    ]
    return dense[0].astype(np.int64), dense[1].astype(np.int64), unit.astype(np.int64)


def brute_labellings(codes: Array, strata: Array, units: Array) -> set[tuple[int, ...]]:
    """Every distinct labelling of rows: labels of units permuted inside strata."""
    names = np.unique(units)
    of = {u: (int(codes[units == u][0]), int(strata[units == u][0])) for u in names}
    found = []
    for s in np.unique(strata):
        inside = [u for u in names if of[u][1] == s]
        found.append(
            [
                dict(zip(inside, labels, strict=True))
                for labels in set(itertools.permutations([of[u][0] for u in inside]))
            ]
        )
    return {
        tuple(next(part[u] for part in parts if u in part) for u in units)
        for parts in itertools.product(*found)
    }


def labels_of_rows(design: Design, arrangement: Array) -> tuple[int, ...]:
    """Read an arrangement back: the group of every row."""
    of_item = np.empty(design.items, int)
    of_item[arrangement] = np.repeat(np.arange(len(design.groups) - 1), np.diff(design.groups))
    out = np.empty(len(design.rows), int)
    out[design.rows] = np.repeat(of_item, design.sizes)
    return tuple(out.tolist())


def partition_of(labelling: tuple[int, ...]) -> frozenset[frozenset[int]]:
    """Which rows stand together, whatever the names."""
    return frozenset(
        frozenset(i for i, own in enumerate(labelling) if own == name) for name in set(labelling)
    )


@given(restricted())
def test_every_labelling_has_as_many_renamings(made: tuple[Array, Array, Array]) -> None:
    """Counted among all labellings: those that divide the rows in the same way."""
    codes, strata, units = made
    found = brute_labellings(codes, strata, units)
    assume(len(found) > 1)
    counts = Counter(partition_of(labelling) for labelling in found)
    assert set(counts.values()) == {Design.of(codes, strata, units).renamings}


@given(restricted(), st.integers(1, 50))
def test_every_distinct_labelling_is_counted_and_enumerated_once(
    made: tuple[Array, Array, Array], batch: int
) -> None:
    """Compared with itertools: distinct label permutations of units inside strata."""
    expected = brute_labellings(*made)
    if len(expected) == 1:
        with pytest.raises(TooFewGroups):
            Design.of(*made)
        return
    design = Design.of(*made)
    assert design.labellings == len(expected)
    seen = [labels_of_rows(design, a) for part in design.all_arrangements(batch) for a in part]
    assert len(seen) == len(expected)
    assert set(seen) == expected
    assert labels_of_rows(design, design.places) == tuple(made[0].tolist())


@given(restricted(), st.integers(0, 10**6))
def test_random_arrangements_are_labellings_of_the_design(
    made: tuple[Array, Array, Array], seed: int
) -> None:
    """Compared with the same enumerated set."""
    expected = brute_labellings(*made)
    assume(len(expected) > 1)
    design = Design.of(*made)
    for arrangement in design.arrangements(stream_key(seed, "permutation"), 0, 25):
        assert labels_of_rows(design, arrangement) in expected


@given(restricted(), st.integers(0, 10**6))
def test_groups_hold_the_rows_of_their_units(made: tuple[Array, Array, Array], seed: int) -> None:
    """Compared with a count of the rows carrying each label."""
    assume(len(brute_labellings(*made)) > 1)
    design = Design.of(*made)
    drawn = design.arrangements(stream_key(seed, "permutation"), 3, 9)
    for arrangement, sizes in zip(drawn, design.rows_of_groups(drawn), strict=True):
        counted = np.bincount(labels_of_rows(design, arrangement))
        assert sizes.tolist() == counted.tolist()


def test_single_rows_in_one_stratum_have_the_multinomial_number_of_labellings() -> None:
    """Closed form: 9!/(3! 3! 3!) = 1,680, and 10^15 is the last number that is counted."""
    codes = np.repeat(np.arange(3), 3)
    assert Design.of(codes, None, None).labellings == 1680 == factorial(9) // 6**3
    for sizes in ([2, 2, 3], [1, 1, 1, 4], [8, 40], [10, 10, 10]):
        expected = factorial(sum(sizes)) // prod(map(factorial, sizes))
        found = Design.of(np.repeat(np.arange(len(sizes)), sizes), None, None).labellings
        assert found == expected
    assert (
        Design.of(np.repeat([0, 1], 26), None, None).labellings
        == factorial(52) // factorial(26) ** 2
    )
    assert Design.of(np.repeat([0, 1], 27), None, None).labellings == np.inf  # 1.9e15
    assert Design.of(np.arange(100_000) % 500, None, None).labellings == np.inf


def test_strata_multiply_and_units_count_once() -> None:
    """Closed form: C(4,2)^2 = 36 within strata; four units of three rows give C(4,2) = 6."""
    codes = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    assert Design.of(codes, np.repeat([0, 1], 4), None).labellings == 36
    assert Design.of(codes, None, None).labellings == 70
    units = np.repeat(np.arange(4), 3)
    assert Design.of(np.repeat([0, 1], 6), None, units).labellings == 6


@pytest.mark.parametrize(
    ("groups", "strata", "units", "part"),
    [
        ([0, 0, 1, 1], None, [0, 1, 1, 2], "group"),
        ([0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 1, 2], "stratum"),
    ],
)
def test_a_unit_in_two_groups_or_strata_is_refused_by_name(
    groups: list[int], strata: list[int] | None, units: list[int], part: str
) -> None:
    """Compared with the definition: the fault counts the units and shows their first row."""
    by = None if strata is None else np.array(strata)
    with pytest.raises(InvalidRequest, match=f"more than one {part}") as caught:
        Design.of(np.array(groups), by, np.array(units))
    (fault,) = caught.value.faults
    split = {"group": "1", "stratum": "0"}[part]
    assert (fault.pointer, fault.count, fault.rows) == ("/inputs/units", 1, [split])


@pytest.mark.parametrize(
    ("groups", "strata", "units"),
    [
        ([0, 0, 0, 0], None, None),
        ([0, 0, 1, 1], [0, 0, 1, 1], None),
        ([0, 0, 1, 1], [0, 1, 2, 3], None),
        ([0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]),
        ([0, 0, 0], None, [0, 1, 2]),
    ],
)
def test_a_design_with_one_labelling_is_refused(
    groups: list[int], strata: list[int] | None, units: list[int] | None
) -> None:
    """Compared with the enumeration: strata that hold one group, or one unit."""
    codes = np.array(groups)
    by = None if strata is None else np.array(strata)
    of = None if units is None else np.array(units)
    count = len(
        brute_labellings(
            codes,
            np.zeros(len(codes), int) if by is None else by,
            np.arange(len(codes)) if of is None else of,
        )
    )
    assert count == 1
    with pytest.raises(TooFewGroups):
        Design.of(codes, by, of)
