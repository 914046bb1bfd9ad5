"""A check in blocks of rows; files say where its processes stay or die."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from service.check import Arrays, Context, Inputs, Params, Parts, Results, check, measure, vectors
from service.dataset import Dataset
from service.errors import InvalidRequest


class NearestInputs(Inputs):
    vectors: Dataset = vectors(rows="rows", least=2)
    """Rows that are searched, and the queries."""


class NearestParams(Params):
    block_rows: int = Field(default=8, ge=1)
    """Queries of a block."""
    refused_block: int | None = None
    """A block that is refused."""


class Nearest(Results):
    n: int
    """Rows searched."""
    similarity: float = measure()
    """Mean inner product of a row with the other row it has the largest with."""
    mutual: float = measure(low=0, high=1)
    """Share of rows that are the nearest of their nearest."""
    spread: float = measure(low=0)
    """Standard deviation of the largest products."""


def plan(inputs: NearestInputs, params: NearestParams) -> int:
    """As many blocks as the rows need."""
    _perhaps_die_when_queueing()
    return -(-inputs.vectors.n // params.block_rows)


def part(context: Context, inputs: NearestInputs, params: NearestParams, blocks: range) -> Arrays:
    """The nearest other row of each row, and their product."""
    _stay(f"{context.seed}-{blocks.start}")
    if params.refused_block in blocks:
        raise InvalidRequest(f"Block {params.refused_block} is refused.")
    x = np.asarray(inputs.vectors.vectors, dtype=np.float64)
    nearest, product = [], []
    with context.stage("search") as progress:
        for done, block in enumerate(blocks, start=1):
            rows = np.arange(
                block * params.block_rows, min((block + 1) * params.block_rows, len(x))
            )
            products = x[rows] @ x.T
            products[np.arange(len(rows)), rows] = -np.inf
            nearest.append(products.argmax(axis=1))
            product.append(products.max(axis=1))
            progress(done, len(blocks))
    context.warn("searched", "Rows were searched.", "inputs/vectors")
    return {"nearest": np.concatenate(nearest), "product": np.concatenate(product)}


@check(
    version=1,
    title="Find the nearest",
    scope=("It shows nothing.",),
    parts=Parts(plan=plan, part=part),
)
def nearest(
    context: Context, inputs: NearestInputs, params: NearestParams, parts: Arrays
) -> Nearest:
    """Finds the nearest other row of each row, in blocks."""
    _stay(f"{context.seed}-combine")
    found, product = parts["nearest"], parts["product"]
    context.warn("combined", "Parts were combined.", "results")
    return Nearest(
        n=len(found),
        similarity=float(product.mean()),
        mutual=float(np.mean(found[found] == np.arange(len(found)))),
        spread=float(product.std()),
    )


def _stay(place: str) -> None:
    """Sign the book of a place, and stay inside a C call as long as its file says."""
    if "CHAOS_FOLDER" not in os.environ:
        return
    folder = Path(os.environ["CHAOS_FOLDER"])
    with (folder / f"{place}.book").open("a") as book:
        book.write(f"{os.getpid()}\n")
    told = folder / f"{place}.seconds"
    ctypes.PyDLL(None).usleep(int(1e6 * float(told.read_text())) if told.exists() else 0)


def _perhaps_die_when_queueing() -> None:
    """Where a file says so, once: `kill -9` between the plan and the shard of that number."""
    told = Path(os.environ.get("CHAOS_FOLDER", "/nonexistent")) / "die_queueing"
    if not told.exists():
        return
    from service.storage.queue import RqQueue

    left = int(told.read_text())
    told.rename(told.with_suffix(".done"))
    enqueue = RqQueue.enqueue

    def dying(*given: Any) -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        enqueue(*given)

    RqQueue.enqueue = dying  # type: ignore[method-assign,assignment]
