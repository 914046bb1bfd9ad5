"""
Coverage of the interval of a mean over classes, such as balanced accuracy, where one class is rare.

Rows are units; each is right with the probability of its class, or changed for the better or worse.
Some twenty seconds; prints the tables of class_means.md.
"""

from __future__ import annotations

import numpy as np

from service.estimates import mean_of_means
from service.numerics.class_means import class_means
from service.numerics.resampling import share_interval
from service.results import Params

RUNS, LEVEL = 2000, 0.95
SHARES = (
    (990, 10, 1.0, 0.9), (990, 10, 1.0, 0.75), (500, 10, 0.99, 0.9), (200, 20, 1.0, 0.95),
    (100, 100, 0.95, 0.95), (20, 20, 0.8, 0.6),
)  # fmt: skip
CHANGES = (
    (990, 10, 0.0, 0.1), (500, 10, 0.02, 0.2), (200, 20, 0.05, 0.1), (100, 100, 0.05, 0.1),
    (20, 20, 0.1, 0.3),
)  # fmt: skip


def rates(rows: tuple[int, int], draw: tuple[float, float], sign: float) -> tuple[float, ...]:
    """
    Share of runs that hold the truth, lie below it, lie above it, and the mean width; of shares, how
    often the interval holds it whose exact part counts all rows.
    """
    codes = np.repeat([0, 1], rows)
    signs = np.array([1.0, sign])
    truth = float((np.array(draw) * signs).mean())
    missed, width, plain = np.zeros(2), 0.0, 0
    for run in range(RUNS):
        random = np.random.default_rng([*rows, run])
        values = (random.random(len(codes)) < np.array(draw)[codes]) * signs[codes]
        kind = "share" if sign > 0 else "change"
        found = mean_of_means(values, codes, np.arange(len(codes)), Params(), "row", kind).interval
        if found is None:
            raise ValueError("no interval")
        missed += [found.high < truth, found.low > truth]
        width += found.high - found.low
        if sign > 0:  # as if every row weighed the same
            means = class_means(values, codes, np.arange(len(codes)))
            share = float(values.mean())
            every = share_interval(means.value, means.deleted, share, LEVEL, "row")
            plain += every.low <= truth <= every.high
    below, above = missed / RUNS
    known = 1 - below - above, below, above, width / RUNS
    return (*known, plain / RUNS) if sign > 0 else known


def main() -> None:
    for title, cases, sign in (("right", SHARES, 1.0), ("gained, lost", CHANGES, -1.0)):
        more = (" | all rows counted", "--:|") if sign > 0 else ("", "")
        print(f"| rows | {title} | covered | missed below | above | mean width{more[0]} |")
        print(f"|---|---|--:|--:|--:|--:|{more[1]}")
        for first, second, one, other in cases:
            found = rates((first, second), (one, other), sign)
            numbers = " | ".join(f"{number:.3f}" for number in found)
            print(f"| {first} and {second} | {one}, {other} | {numbers} |", flush=True)
        print()


if __name__ == "__main__":
    main()
