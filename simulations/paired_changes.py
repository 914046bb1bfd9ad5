"""
Coverage of the interval of a paired change of shares, and false alarms of its test.

Rows of a group are better or worse for a model, each copying one row of its group with the square root
of `alike`. Beside the interval stand Student's t of the groups alone, and the envelope there was
before: exact intervals of gains and of losses, of as many trials as groups, subtracted from each other
at half of a side's level. Some minutes; prints the table of paired_changes.md.
"""

from __future__ import annotations

import numpy as np

from service.numerics.changes import change_of_rows
from service.numerics.moments import Units
from service.numerics.resampling import clopper_pearson, jackknife_t
from service.numerics.rows import Floats

RUNS, LEVEL = 2000, 0.95
ROWS = (
    (10, 0.1, 0.1), (50, 0.0, 0.0), (50, 0.02, 0.02), (50, 0.03, 0.0), (50, 0.1, 0.0), (50, 0.4, 0.2),
    (200, 0.015, 0.0), (200, 0.15, 0.1), (1000, 0.01, 0.01), (1000, 0.15, 0.1),
)  # fmt: skip
GROUPS = (
    (5, 12, 0.1, 0.1, 0.0), (5, 12, 0.2, 0.1, 0.3), (10, 10, 0.1, 0.05, 0.2), (10, 10, 0.02, 0.02, 0.2),
    (20, 10, 0.05, 0.0, 0.5), (20, 50, 0.2, 0.2, 0.1), (50, 3, 0.2, 0.1, 0.2), (50, 3, 0.02, 0.0, 0.3),
    (50, 10, 0.01, 0.01, 0.0), (50, 10, 0.02, 0.0, 0.9), (50, 10, 0.2, 0.1, 0.2),
    (200, 5, 0.02, 0.0, 0.9), (200, 5, 0.15, 0.1, 0.3),
)  # fmt: skip


def drawn(
    random: np.random.Generator, groups: int, size: int, odds: list[float], alike: float
) -> Floats:
    values = random.choice([1.0, -1.0, 0.0], p=odds, size=(groups, size))
    own = random.choice([1.0, -1.0, 0.0], p=odds, size=(groups, 1))
    return np.where(random.random((groups, size)) < np.sqrt(alike), own, values).ravel()


def envelope(values: Floats, units: Units) -> tuple[float, float]:
    """The interval there was before."""
    means = units.sums(values) / units.counts
    count, value = len(means), float(means.mean())
    student = jackknife_t(value, (means.sum() - means) / (count - 1), LEVEL, "group")
    gains, losses = (
        clopper_pearson(float(np.maximum(side, 0).sum()), count, (1 + LEVEL) / 2)
        for side in (means, -means)
    )
    return min(student.low, gains[0] - losses[1]), max(student.high, gains[1] - losses[0])


def rates(groups: int, size: int, gained: float, lost: float, alike: float) -> list[float]:
    """As the header of the table says."""
    random = np.random.default_rng([groups, size, round(1e4 * gained), round(1e4 * lost)])
    units = Units.groups(np.repeat(np.arange(groups), size))
    odds, truth = [gained, lost, 1 - gained - lost], gained - lost
    missed, widths, alarms = np.zeros((3, 2)), np.zeros(3), 0
    for _ in range(RUNS):
        values = drawn(random, groups, size, odds, alike)
        change = change_of_rows(values, units)
        found = change.interval(LEVEL, "group")
        student = jackknife_t(change.value, change.deleted, LEVEL, "group")
        ends = [(found.low, found.high), (student.low, student.high), envelope(values, units)]
        for place, (low, high) in enumerate(ends):
            missed[place] += [high < truth, low > truth]
            widths[place] += high - low
        alarms += change.p() <= 1 - LEVEL
    held, width = 1 - missed.sum(axis=1) / RUNS, widths / RUNS
    return [
        held[0], *missed[0] / RUNS, width[0], alarms / RUNS, held[1], width[1], held[2], width[2],
    ]  # fmt: skip


def main() -> None:
    print(
        "| groups of rows | gained, lost | alike | covered | missed below | above | mean width "
        "| p <= .05 | t covered | width | envelope covered | width |"
    )
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    rows = [(n, 1, gained, lost, 0.0) for n, gained, lost in ROWS]
    for groups, size, gained, lost, alike in [*rows, *GROUPS]:
        numbers = " | ".join(f"{x:.3f}" for x in rates(groups, size, gained, lost, alike))
        print(f"| {groups} of {size} | {gained}, {lost} | {alike} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
