"""Held-out units against counting in plain Python."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.numerics.holdout import held_out

SHARES = st.floats(0.01, 0.99)
LABELLED = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=60)


def by_class(rows: list[tuple[int, int]]) -> dict[int, list[int]]:
    """Units of each class: the class most rows of a unit have, the lowest of equals."""
    classes: dict[int, list[int]] = {}
    for unit in sorted({unit for _, unit in rows}):
        counts = Counter(code for code, other in rows if other == unit)
        most = max(counts.values())
        classes.setdefault(min(c for c in counts if counts[c] == most), []).append(unit)
    return classes


@given(rows=LABELLED, share=SHARES, seed=st.integers(0, 99))
def test_a_share_of_the_units_of_each_class_is_held_out_whole(
    rows: list[tuple[int, int]], share: float, seed: int
) -> None:
    """Counted."""
    codes, units = (np.array(column) for column in zip(*rows, strict=True))
    found = held_out(codes, units, share, seed, "test")
    for unit in set(units.tolist()):
        assert len(set(found[units == unit].tolist())) == 1
    for members in by_class(rows).values():
        out = sum(bool(found[units == unit][0]) for unit in members)
        if len(members) == 1:
            assert out == 0
        else:
            assert 1 <= out <= len(members) - 1
            assert abs(out - share * len(members)) <= 0.5 or out in (1, len(members) - 1)


def test_rows_of_their_own_are_held_out_by_class() -> None:
    """Closed form: a fifth of 35 rows of each of 60 classes."""
    codes = np.repeat(np.arange(60), 35)
    found = held_out(codes, np.arange(2100), 0.2, 0, "test")
    assert np.bincount(codes[found]).tolist() == [7] * 60


def test_every_unit_of_a_class_is_as_likely_to_be_held_out() -> None:
    """Binomial: 4,000 draws of one of four units."""
    codes, units = np.zeros(8, int), np.arange(8) // 2
    counts = sum(held_out(codes, units, 0.25, seed, "test").astype(int) for seed in range(4000))
    assert counts[::2].tolist() == counts[1::2].tolist()
    assert counts.sum() == 8000
    assert counts == pytest.approx(1000, abs=5 * np.sqrt(4000 * 0.25 * 0.75))


def test_a_draw_depends_on_its_seed_and_purpose_alone() -> None:
    """Two calls, another seed, another purpose."""
    codes, units = np.arange(300) % 3, np.arange(300)
    one = held_out(codes, units, 0.5, 1, "a")
    assert np.array_equal(one, held_out(codes, units, 0.5, 1, "a"))
    assert not np.array_equal(one, held_out(codes, units, 0.5, 2, "a"))
    assert not np.array_equal(one, held_out(codes, units, 0.5, 1, "b"))
