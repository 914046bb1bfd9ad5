"""What is told of a job, and what is kept of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.events import Event, EventId, Kind, shortened

places = st.integers(0, 10**15 - 1)


@given(places, places, places, places)
def test_ids_are_read_as_they_are_written_and_ordered_as_numbers(
    a: int, b: int, c: int, d: int
) -> None:
    """10-2 comes after 9-5."""
    one, other = EventId(a, b), EventId(c, d)
    assert EventId.parse(str(one)) == one
    assert (one < other) == ((a, b) < (c, d))


@pytest.mark.parametrize(
    "text", ["", "1", "1-", "-1", "1-2-3", " 1-2", "1-2\n", "a-b", "٣-1", "1-1e3", "9" * 16 + "-1"]
)
def test_what_is_no_id_is_not_read(text: str) -> None:
    """Numbers beyond those of any store are none either."""
    assert EventId.parse(text) is None


@given(st.lists(st.sampled_from(list(Kind)), max_size=40), st.integers(1, 20))
def test_only_as_much_is_forgotten_as_there_is_too_much(kinds: list[Kind], most: int) -> None:
    """The last stays; progress goes before everything else; order is kept."""
    events = [Event(EventId(1, i), kind, "{}") for i, kind in enumerate(kinds)]
    kept = shortened(events, most)
    assert len(kept) == min(most, len(events))
    assert kept == sorted(kept, key=lambda one: one.id)
    assert set(kept) <= set(events)
    assert kept[-1:] == events[-1:]
    lost = [one for one in events if one not in kept]
    if any(one.kind is not Kind.progress for one in lost):
        assert not any(one.kind is Kind.progress for one in kept[:-1])
