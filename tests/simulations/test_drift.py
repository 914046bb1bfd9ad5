"""Drift on samples of known populations: false alarms, planted shifts, and the committed tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from simulations import drift as script

ROOT = Path(__file__).parents[2]
WRONG = 1e-3
"""How seldom a right test falls outside what is allowed here; seeds are fixed."""


def alarms(draw: Callable[..., Any], runs: int, at: tuple[float, ...]) -> Counter[Any]:
    """Runs in which each p is at or below each of `at`, under 19 permutations."""
    found: Counter[Any] = Counter()
    for seed in range(runs):
        results = script.run(draw(np.random.default_rng([11, seed])), seed, 19)
        for name, read in script.P_VALUES.items():
            p = read(results).estimate
            found.update((name, alpha) for alpha in at if p is not None and p <= alpha)
    return found


def halves(random: np.random.Generator) -> NDArray[Any]:
    """A skew population of 4 dimensions."""
    return np.asarray(random.gamma(4.0, size=(72, 4)))


def test_halves_of_one_population_are_told_apart_at_the_rate_alpha() -> None:
    """Of 19 permutations p <= .05 in one of 20, .25 in five of 20: binomial, each p by itself."""

    def draw(random: np.random.Generator) -> Any:
        x = random.permutation(halves(random))
        return script.Drawn(x[:36], x[36:], normalise=False)

    runs = 250
    found = alarms(draw, runs, (0.05, 0.25))
    for name in script.P_VALUES:
        for alpha in (0.05, 0.25):
            test = stats.binomtest(found[name, alpha], runs, alpha)
            assert test.pvalue > WRONG, (name, alpha, found[name, alpha])


def test_named_units_of_one_population_are_told_apart_at_the_rate_alpha() -> None:
    """Units of one to eight rows that share half of their variance; no p of the spread."""
    runs = 120
    found = alarms(script.clustered(True), runs, (0.05, 0.25))
    for name in set(script.P_VALUES) - {"spread"}:
        for alpha in (0.05, 0.25):
            test = stats.binomtest(found[name, alpha], runs, alpha)
            assert test.pvalue > WRONG, (name, alpha, found[name, alpha])


def two_humps(random: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """One hump against two of the same mean and variance."""
    a, b = random.normal(size=(2, 150, 1))
    return a, 0.98 * random.choice([-1, 1], size=(150, 1)) + np.sqrt(1 - 0.98**2) * b


@pytest.mark.parametrize(
    ("planted", "seen", "blind"),
    [
        ("mean", ("F", "F2", "MMD", "MMD linear", "AUC"), ()),
        ("spread", ("spread",), ("F", "F2", "MMD linear")),
        ("mixture", ("F", "F2", "MMD", "MMD linear", "AUC"), ()),
        ("two humps", ("MMD",), ("F", "F2", "MMD linear", "AUC")),
    ],
)
def test_planted_shifts_are_found_by_what_is_made_for_them(
    planted: str, seen: tuple[str, ...], blind: tuple[str, ...]
) -> None:
    """Of 25 runs so many that a power of .9 seldom gives fewer; what is blind alarms at rate alpha."""
    draws: dict[str, Callable[..., Any]] = {
        "mean": script.gaussian(100, 100, shift=0.3),
        "spread": script.gaussian(100, 100, spread=1.4),
        "mixture": script.gaussian(100, 100, share=0.95),
        "two humps": lambda random: script.Drawn(*two_humps(random), normalise=False),
    }
    runs = 25
    found = alarms(draws[planted], runs, (0.05,))
    for name in seen:
        assert found[name, 0.05] > stats.binom.ppf(WRONG, runs, 0.9), name
    for name in blind:
        assert stats.binomtest(found[name, 0.05], runs, 0.05).pvalue > WRONG, name


def test_the_mmd_that_intervals_are_held_to_is_that_of_its_population() -> None:
    """Against a mean over drawn pairs of rows, five standard errors."""
    for case in (script.Case("falling", 50, 0.3, 1.3), script.Case("equal", 50, 0.3, 1.0, True)):
        root = np.sqrt(script.VARIANCES[case.variances])
        random = np.random.default_rng(8)
        a, b, c, d = random.normal(size=(4, 200_000, len(root))) * root
        c, d = c * np.sqrt(case.spread), d * np.sqrt(case.spread)
        moved = np.eye(1, len(root))[0] * case.shift * np.sqrt(np.square(root).sum())
        wide = 0.8 * np.square(root).sum()

        def kernel(x: NDArray[Any], y: NDArray[Any], wide: float = wide) -> NDArray[Any]:
            return np.exp(-np.square(x - y).sum(axis=1) / (2 * wide))

        values = kernel(a, b) + kernel(c, d) - 2 * kernel(a, d + moved)
        error = values.std() / np.sqrt(len(values))
        assert abs(case.mmd(wide) - values.mean()) < 5 * error


def test_rows_of_units_have_the_population_that_is_said() -> None:
    """Closed form: half of the variance between units, the mean of the batch moved."""
    case = script.Case("falling", 20_000, 0.3, units=True)
    drawn = case.draw(np.random.default_rng(1))
    v = script.VARIANCES["falling"]
    a, owner = drawn.baseline, drawn.units[0]
    assert a.var(axis=0) == pytest.approx(v, rel=0.05)
    assert np.add.reduceat(a, np.arange(0, len(a), 4)).var(axis=0) / 16 == pytest.approx(
        v * (1 + 3 * 0.5) / 4, rel=0.05
    )
    assert (np.bincount(owner) == 4).all()
    gap = drawn.batch.mean(axis=0) - a.mean(axis=0)
    assert np.linalg.norm(gap) / np.sqrt(v.sum()) == pytest.approx(0.3, abs=0.03)


def test_a_cell_of_the_committed_table_is_what_the_script_prints() -> None:
    """The cheapest cell of the intervals, in full."""
    case = script.Case("one", 20, 0.4)
    assert case in script.CASES
    lines = script.coverage(case, script.NULL_RUNS // 2)
    committed = (ROOT / "simulations/drift.md").read_text().splitlines()
    assert [line for line in committed if line.startswith(f"| {case.told} |")] == lines
