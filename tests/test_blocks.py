"""Blocks dealt to shards: every block once, and the bytes of one process."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.blocks import Plan, join
from service.check import Context
from service.dataset import Dataset
from service.part import Notes, Part, reading
from tests.chaos.checks.nearest import nearest

X = np.random.default_rng(30).normal(size=(61, 5)).astype(np.float32)


def by_brute_force(x: Any) -> dict[str, float]:
    """One loop over pairs."""
    x = x.astype(np.float64)
    best = []
    for i, row in enumerate(x):
        products = [-np.inf if i == j else float(np.dot(row, other)) for j, other in enumerate(x)]
        best.append((int(np.argmax(products)), max(products)))
    mutual = [best[j][0] == i for i, (j, _) in enumerate(best)]
    product = np.array([value for _, value in best])
    return {"similarity": product.mean(), "mutual": np.mean(mutual), "spread": product.std()}


def through_bytes(one: Part) -> Part:
    with reading(io.BytesIO(one.to_bytes())) as stored:
        return Part(stored.notes, dict(stored.arrays))


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_shards_give_the_same_bytes_as_one_process(shards: int) -> None:
    """And those are right: brute force."""
    inputs, params = nearest.inputs(vectors=Dataset(X)), nearest.params()
    whole = nearest.run(Context(), inputs, params)
    plan = Plan(blocks=nearest.blocks(inputs, params), shards=shards)
    parts = []
    for shard in range(shards):
        context = Context()
        arrays = nearest.part(context, inputs, params, plan.share(shard))
        parts.append(through_bytes(Part(Notes.of(context, 1.0), arrays)))
    joined = join([one.arrays for one in parts])
    results = nearest.combine(Context(), inputs, params, joined)
    assert results.model_dump_json() == whole.model_dump_json()
    measured = results.model_dump(include={"similarity", "mutual", "spread"})
    assert measured == pytest.approx(by_brute_force(X), rel=1e-12)


@given(n=st.integers(2, 40), rows=st.integers(1, 9), shards=st.integers(1, 12), data=st.data())
def test_no_way_to_deal_the_blocks_changes_an_array(
    n: int, rows: int, shards: int, data: st.DataObject
) -> None:
    """Every array, bit for bit, its type and its layout."""
    x = np.random.default_rng(data.draw(st.integers(0, 9))).normal(size=(n, 3))
    inputs, params = nearest.inputs(vectors=Dataset(x)), nearest.params(block_rows=rows)
    blocks = nearest.blocks(inputs, params)
    plan = Plan(blocks=blocks, shards=min(shards, blocks))
    whole = nearest.part(Context(), inputs, params, range(blocks))
    joined = join(
        [nearest.part(Context(), inputs, params, plan.share(i)) for i in range(plan.shards)]
    )
    assert list(joined) == list(whole)
    for name, array in whole.items():
        assert (joined[name].dtype, joined[name].tobytes()) == (array.dtype, array.tobytes())


@given(blocks=st.integers(1, 500), shards=st.integers(1, 500))
def test_every_block_belongs_to_one_shard(blocks: int, shards: int) -> None:
    """In order, and no shard has two more than another."""
    shards = min(blocks, shards)
    plan = Plan(blocks=blocks, shards=shards)
    shares = [plan.share(shard) for shard in range(shards)]
    assert list(itertools.chain(*shares)) == list(range(blocks))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert min(map(len, shares)) >= 1


def nearest_like(arrays: dict[str, Any]) -> Any:
    """What `Check.part` makes of arrays."""
    parts = replace(nearest.parts, part=lambda *_: arrays)  # type: ignore[type-var]
    return replace(nearest, parts=parts).part(Context(), None, None, range(1))  # type: ignore[arg-type]


@pytest.mark.parametrize("array", [np.array([object()]), np.array(1.0)])
def test_objects_and_numbers_are_no_part(array: Any) -> None:
    """A pickle is never written, and what has no rows cannot be joined."""
    with pytest.raises(TypeError, match="`x`"):
        nearest_like({"x": array})


def test_parts_that_differ_in_kind_are_not_joined() -> None:
    """A type or a name that depends on the block would make the answer depend on the shards."""
    with pytest.raises(TypeError, match="`x`"):
        join([{"x": np.zeros(1, np.int32)}, {"x": np.zeros(1, np.int64)}])
    with pytest.raises(TypeError, match="different arrays"):
        join([{"x": np.zeros(1)}, {"x": np.zeros(1), "y": np.zeros(1)}])


def test_a_part_has_one_layout() -> None:
    """Sums run along memory, and a stored array keeps its layout: a transposed one is turned."""
    square = np.arange(12.0).reshape(3, 4)
    for array in (square.T, np.asfortranarray(square), square[:, ::2], square[::-1]):
        made = nearest_like({"x": array})["x"]
        assert made.flags.c_contiguous
        assert np.array_equal(made, array)
