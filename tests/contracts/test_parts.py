"""What a check in blocks owes beside the rest: the bytes of one process, however they are dealt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.blocks import Plan, join
from service.check import Check, Context
from service.checks import CATALOGUE
from tests.chaos.checks.nearest import nearest

from .test_catalogue import few, filled, make

ROWS = 60
SMALL = 8
"""Elements, or rows, of a block, so that a few rows fill many."""
CHECKS = (*CATALOGUE, nearest)


@pytest.mark.parametrize("check", CHECKS, ids=[check.kind for check in CHECKS])
def test_shards_change_no_byte(check: Check, small_blocks: Any) -> None:
    """A check that is not cut is one block; the others give equal arrays and results for 2 and 7."""
    small_blocks(SMALL)
    inputs, params = filled(check, make(check, np.random.default_rng(7), ROWS)), few(check)
    given = check.params(**params)
    blocks = check.blocks(inputs, given)
    if check.parts is None:
        assert blocks == 1
        return
    assert blocks >= 7, "too few blocks to be dealt: `small_blocks` must shrink this check's grid"
    whole = check.run(Context(threads=2), inputs, given)
    arrays = check.part(Context(), inputs, given, range(blocks))
    for shards in (2, 7):
        plan = Plan(blocks=blocks, shards=shards)
        shares = [plan.share(shard) for shard in range(shards)]
        joined = join([check.part(Context(), inputs, given, share) for share in shares])
        assert {name: a.tobytes() for name, a in joined.items()} == {
            name: a.tobytes() for name, a in arrays.items()
        }
        found = check.combine(Context(), inputs, given, joined)
        assert found.model_dump_json() == whole.model_dump_json()
