"""A stored part: its arrays bit for bit, no pickles, and what it says beside them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from service.blocks import plain
from service.check import Context
from service.part import Notes, Part, reading, shared_environment
from service.report import environment


def through_bytes(one: Part) -> Part:
    with reading(io.BytesIO(one.to_bytes())) as stored:
        return Part(stored.notes, dict(stored.arrays))


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(9, dtype=np.int8)[::3],
        np.array([[True], [False]]),
        np.array(["ä", "bc"]),
        np.zeros((0, 3), dtype=np.float16),
        np.array([np.nan, -0.0, np.inf]),
    ],
)
def test_a_part_comes_back_as_it_was_stored(array: Any) -> None:
    """Whatever its name; values bit for bit, with the notes."""
    context = Context(scope=["s"], stages={"t": 2.5})
    context.warn("code", "mæssage", "where")
    arrays = plain({"notes": array, "file": array, "a/b c": array})
    one = Part(Notes.of(context, 1.5), arrays)
    again = through_bytes(one)
    assert again.notes == one.notes
    assert list(again.arrays) == list(arrays)
    for name in arrays:
        assert again.arrays[name].dtype == array.dtype
        assert again.arrays[name].shape == array.shape
        assert again.arrays[name].tobytes() == array.tobytes()


def test_a_pickle_in_the_store_is_not_loaded() -> None:
    """Whoever may write there must not run code here."""
    file = io.BytesIO()
    np.savez(file, notes=np.array([{"a": 1}], dtype=object))
    file.seek(0)
    with pytest.raises(ValueError, match="pickle"), reading(file):
        pass


def test_machines_that_differ_are_both_in_the_report() -> None:
    """A digest holds within one environment, so an answer of two kinds of machine names both."""
    here = environment()
    other = here.model_copy(update={"cpu": "arm64 neoverse"})
    assert shared_environment([here, here]) == here
    both = shared_environment([here, other, here])
    assert sorted(both.cpu.split("; ")) == sorted([here.cpu, other.cpu])
    assert both.model_copy(update={"cpu": here.cpu}) == here
