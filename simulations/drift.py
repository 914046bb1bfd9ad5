"""
False alarms, power and intervals of `drift`, on Gaussian rows and on real embeddings.

Prints the tables of drift.md: how often each p is at or below .05 where both sides come from one
population, with and without units, and where a shift was planted; and how often intervals hold the
truth. About twenty minutes on one core.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from threadpoolctl import threadpool_limits

from service.check import Context
from service.checks.drift import drift
from service.dataset import Dataset, Labels
from service.numerics.design import Design
from service.numerics.discriminant import Halves, discriminant
from service.numerics.joined import Joined
from service.numerics.mmd import linear_test
from service.numerics.moments import Units
from service.numerics.permanova import item_squares, slabs
from service.numerics.rows import Stored

Array = NDArray[Any]
CLINC = Path(__file__).parent.parent / "tests/data/clinc150"
NULL_RUNS, RUNS, PERMUTATIONS, ALPHA = 2000, 500, 199, 0.05
FEWEST = 19
"""Permutations where no p is looked at."""
D = 16
EQUAL = np.ones(D)
FALLING = 1 / np.arange(1.0, 33) ** 2
"""Variances of 32 directions, most in the first few, as those of embeddings fall."""
P_VALUES: dict[str, Callable[[Any], Any]] = {
    "F": lambda r: r.permanova.p,
    "F2": lambda r: r.permanova.p_f2,
    "spread": lambda r: r.dispersion.p,
    "MMD": lambda r: r.mmd.gaussian_p,
    "MMD linear": lambda r: r.mmd.linear_p,
    "AUC": lambda r: r.classifier.p,
}


@dataclass(frozen=True)
class Drawn:
    """Two sides, and the unit of each row of either where rows belong together."""

    baseline: Array
    batch: Array
    units: tuple[Array, Array] | None = None
    normalise: bool = True


Draw = Callable[[np.random.Generator], Drawn]


def run(drawn: Drawn, seed: int, permutations: int = PERMUTATIONS) -> Any:
    """The results of the check."""
    units = {}
    if drawn.units is not None:
        units = {
            f"{side}_units": Labels.of([f"{side} {u}" for u in own])
            for side, own in zip(("baseline", "batch"), drawn.units, strict=True)
        }
    inputs = drift.inputs(baseline=Dataset(drawn.baseline), batch=Dataset(drawn.batch), **units)
    params = drift.params(permutations=permutations, normalise=drawn.normalise)
    return drift.run(Context(seed=seed), inputs, params)


def gaussian(
    n: int,
    m: int,
    shift: float = 0.0,
    spread: float = 1.0,
    share: float | None = None,
    variances: Array = EQUAL,
) -> Draw:
    """
    Rows of 16 dimensions, or as many as `variances`; the batch is moved along the first by `shift`
    roots of the trace, or `spread` times as wide.

    With `share`, both sides mix two clusters three deviations apart, the batch `share` of the second
    and the baseline half.
    """

    def draw(random: np.random.Generator) -> Drawn:
        d = len(variances)
        a, b = random.normal(size=(n, d)), np.sqrt(spread) * random.normal(size=(m, d))
        a, b = a * np.sqrt(variances), b * np.sqrt(variances)
        b[:, 0] += shift * np.sqrt(variances.sum())
        if share is not None:
            a[:, 0] += 3 * (random.random(n) < 0.5)
            b[:, 0] += 3 * (random.random(m) < share)
        return Drawn(a, b, normalise=False)

    return draw


def clustered(named: bool) -> Draw:
    """20 and 25 units of one to eight rows that share half of their variance."""

    def draw(random: np.random.Generator) -> Drawn:
        sides = []
        for units in (20, 25):
            owner = np.repeat(np.arange(units), random.integers(1, 9, size=units))
            own = random.normal(size=(units, D))[owner]
            sides.append((own + random.normal(size=own.shape), owner))
        (a, ours), (b, theirs) = sides
        return Drawn(a, b, (ours, theirs) if named else None, normalise=False)

    return draw


@cache
def clinc() -> tuple[Array, Array, Array]:
    """Rows, intents and domains."""
    lines = (CLINC / "rows.csv").read_text().splitlines()[1:]
    columns = [line.split(",") for line in lines]
    return (
        np.load(CLINC / "minilm.npy").astype(np.float64),
        np.unique([one[1] for one in columns], return_inverse=True)[1],
        np.unique([one[2] for one in columns], return_inverse=True)[1],
    )


def utterances(n: int, shift: float = 0.0, spread: float = 1.0, share: float | None = None) -> Draw:
    """
    Utterances drawn without replacement; changes as in `gaussian`, on unit rows about their mean.

    With `share`, so much of the batch is about banking, a tenth of all utterances.
    """

    def draw(random: np.random.Generator) -> Drawn:
        x, _, domains = clinc()
        order = random.permutation(len(x))
        a, rest = order[:n], order[n:]
        b = rest[:n]
        if share is not None:
            about = rest[domains[rest] == 1]
            others = rest[domains[rest] != 1]
            few = round(share * n)
            b = np.concatenate([about[:few], others[: n - few]])
        mean = x.mean(axis=0)
        away = x - mean
        root = np.sqrt(np.square(away).sum(axis=1).mean())
        towards = random.normal(size=x.shape[1])
        towards *= shift * root / np.linalg.norm(towards)
        return Drawn(x[a], mean + np.sqrt(spread) * away[b] + towards)

    return draw


def intents(named: bool) -> Draw:
    """Four utterances each of 30 intents against those of 30 others: the intents are the units."""

    def draw(random: np.random.Generator) -> Drawn:
        x, groups, _ = clinc()
        order = random.permutation(len(x))
        chosen = random.permutation(150)[:60]
        rows = [order[groups[order] == g][:4] for g in chosen]
        a, b = np.concatenate(rows[:30]), np.concatenate(rows[30:])
        return Drawn(x[a], x[b], (groups[a], groups[b]) if named else None)

    return draw


NULL: dict[str, Draw] = {
    "Gaussian, 40 and 60 rows": gaussian(40, 60),
    "Gaussian, 8 and 200 rows": gaussian(8, 200),
    "utterances, 100 and 100": utterances(100),
    "Gaussian units, named": clustered(True),
    "Gaussian units, not named": clustered(False),
    "intents as units, named": intents(True),
    "intents as units, not named": intents(False),
}
PLANTED: dict[str, Draw] = {
    "Gaussian, mean moved by .15": gaussian(100, 100, shift=0.15),
    "Gaussian, mean moved by .25": gaussian(100, 100, shift=0.25),
    "Gaussian, spread 1.15 times": gaussian(100, 100, spread=1.15),
    "Gaussian, spread 1.3 times": gaussian(100, 100, spread=1.3),
    "Gaussian, second cluster .5 to .7": gaussian(100, 100, share=0.7),
    "utterances, mean moved by .1": utterances(100, shift=0.1),
    "utterances, mean moved by .2": utterances(100, shift=0.2),
    "utterances, spread .85 times": utterances(100, spread=0.85),
    "utterances, spread .7 times": utterances(100, spread=0.7),
    "utterances, one domain .1 to .3": utterances(100, share=0.3),
    "utterances, one domain .1 to .5": utterances(100, share=0.5),
}


def alarms(cases: dict[str, Draw], runs: int) -> None:
    """Share of runs in which each p, and the smallest of all, is at or below alpha."""
    print(f"| case | {' | '.join(P_VALUES)} | smallest |")
    print("|---|" + "--:|" * (len(P_VALUES) + 1))
    for name, draw in cases.items():
        counted: dict[str, int] = dict.fromkeys(P_VALUES, 0)
        defined: dict[str, int] = dict.fromkeys(P_VALUES, 0)
        any_of = 0
        for number in range(runs):
            results = run(draw(np.random.default_rng([7, number])), number)
            found = {key: read(results).estimate for key, read in P_VALUES.items()}
            hits = {key: p is not None and p <= ALPHA for key, p in found.items()}
            for key in P_VALUES:
                counted[key] += hits[key]
                defined[key] += found[key] is not None
            any_of += any(hits.values())
        cells = [
            f"{counted[key] / runs:.3f}" if defined[key] == runs else "null" for key in P_VALUES
        ]
        print(f"| {name} | {' | '.join(cells)} | {any_of / runs:.3f} |", flush=True)


@dataclass(frozen=True)
class Case:
    """Two Gaussians of known distance, `n` rows a side or `n` units of four rows."""

    variances: str
    n: int
    shift: float
    spread: float = 1.0
    units: bool = False

    def draw(self, random: np.random.Generator) -> Drawn:
        v = VARIANCES[self.variances]
        if not self.units:
            return gaussian(self.n, self.n, self.shift, self.spread, variances=v)(random)
        owner = np.repeat(np.arange(self.n), 4)
        shape = (4 * self.n, len(v))
        a, b = (
            np.sqrt(v / 2)
            * (random.normal(size=(self.n, len(v)))[owner] + random.normal(size=shape))
            for _ in "ab"
        )
        b[:, 0] += self.shift * np.sqrt(v.sum())
        return Drawn(a, b, (owner, owner), normalise=False)

    @property
    def told(self) -> str:
        rows = f"{self.n} units of 4" if self.units else f"{self.n}"
        return f"{self.variances} | {rows} | {self.shift} | {self.spread}"

    def truths(self, results: Any, auc: float | None) -> dict[str, float]:
        """What each interval is about; MMD that of the kernel as the rows made it wide."""
        v = VARIANCES[self.variances]
        moved, inside = self.shift**2 * v.sum(), v.sum() * (1 + self.spread) / 2
        truths = {
            "mean_shift": self.shift,
            "r2": moved / 4 / (moved / 4 + inside),
            "spread_ratio": self.spread,
            "MMD": self.mmd(results.mmd.bandwidth2),
            "linear MMD": moved,
        }
        return truths if auc is None else {**truths, "AUC": auc}

    def mmd(self, bandwidth2: float) -> float:
        """Squared MMD of the two Gaussians."""
        v = VARIANCES[self.variances]

        def mean(variances: Array, moved: float) -> float:
            wide = 1 + variances / bandwidth2
            return float(np.exp(-(moved**2) / (2 * bandwidth2 * wide[0])) / np.sqrt(wide.prod()))

        across = mean((1 + self.spread) * v, self.shift * float(np.sqrt(v.sum())))
        return mean(2 * v, 0.0) + mean(2 * self.spread * v, 0.0) - 2 * across


VARIANCES = {"equal": EQUAL, "falling": FALLING, "one": np.ones(1)}
CASES = (
    Case("equal", 10, 0.0), Case("equal", 10, 0.3), Case("equal", 50, 0.0),
    Case("equal", 50, 0.3, 1.3), Case("equal", 200, 0.0), Case("equal", 200, 0.15),
    Case("equal", 200, 0.3, 1.3),
    Case("falling", 20, 0.3), Case("falling", 50, 0.0), Case("falling", 50, 0.3),
    Case("falling", 200, 0.0), Case("falling", 200, 0.1), Case("falling", 200, 0.3),
    Case("one", 20, 0.4), Case("one", 50, 0.3),
    *(
        Case(variances, n, shift, units=True)
        for variances in ("equal", "falling") for n in (20, 50) for shift in (0.0, 0.3)
    ),
)  # fmt: skip


def true_auc(drawn: Drawn, seed: int, gap: float, spread: float) -> float:
    """The AUC that the classifier fitted on these rows has on all rows of the two Gaussians."""
    n, m = len(drawn.baseline), len(drawn.batch)
    codes = np.repeat([0, 1], [n, m])
    train = Halves.of(Units.rows(n + m), codes, seed).train
    rows = Joined(Stored(drawn.baseline), Stored(drawn.batch))
    fitted = discriminant(rows, train, codes[train], 1)
    return float(ndtr(fitted.direction[0] * gap / np.sqrt(1 + spread)))


def intervals(runs: int) -> None:
    """Share of runs in which the interval of an effect holds the truth, or lies below or above it."""
    print(
        "| variances | rows | mean moved by | spread | effect | truth | covered | missed below | "
        "above |"
    )
    print("|---|--:|--:|--:|---|--:|--:|--:|--:|")
    for case in CASES:
        for line in coverage(case, runs):
            print(line, flush=True)


def coverage(case: Case, runs: int) -> list[str]:
    """The lines of one case."""
    held: dict[str, list[tuple[bool, bool]]] = {}
    told: dict[str, str] = {}
    for number in range(runs):
        drawn = case.draw(np.random.default_rng([case.n, number]))
        results = run(drawn, number, FEWEST)
        found = {
            "mean_shift": results.mean_shift,
            "r2": results.r2,
            "spread_ratio": results.spread_ratio,
            "MMD": results.mmd.gaussian,
            "linear MMD": results.mmd.linear,
            "AUC": results.classifier.auc,
        }
        auc = None
        if case.variances == "equal" and not case.units:
            auc = true_auc(drawn, number, case.shift * np.sqrt(D), case.spread)
        for key, truth in case.truths(results, auc).items():
            low, high = found[key].interval.low, found[key].interval.high
            held.setdefault(key, []).append((high < truth, low > truth))
            told[key] = OF_THE_RUN.get(key, f"{truth:.3f}")
    lines = []
    for key, missed in held.items():
        below, above = np.array(missed).mean(axis=0)
        lines.append(
            f"| {case.told} | {key} | {told[key]} | {1 - below - above:.3f} | {below:.3f} | "
            f"{above:.3f} |"
        )
    return lines


OF_THE_RUN = {"MMD": "of the kernel", "AUC": "of the classifier"}


def closeness(runs: int) -> None:
    """How often independent sides lie closer than in every one of 999 divisions of their rows."""
    print("| sides | rows a side | paired_sides |\n|---|--:|--:|")
    for name, variances in (("equal", EQUAL), ("falling", FALLING), ("one", np.ones(1))):
        for n, m in ((10, 10), (40, 80)):
            found = 0
            for number in range(runs):
                random = np.random.default_rng([n, number])
                x = random.normal(size=(n + m, len(variances))) * np.sqrt(variances)
                found += below_all(x, n, number)
            print(f"| {name} | {n} and {m} | {found / runs:.5f} |", flush=True)


def below_all(x: Array, n: int, seed: int) -> bool:
    """Whether `paired_sides` is warned of, the first n rows being the baseline."""
    codes = np.repeat([0, 1], [n, len(x) - n])
    design, mean = Design.of(codes, None, None), x.mean(axis=0)
    slab = slabs(Stored(x), mean, design, 1)
    squares = item_squares(Stored(x), mean, design, slab)
    test = linear_test(slab, squares, design, 999, seed, 0.95, 1, lambda done, total: None)
    return test.above == test.permutations


def main() -> None:
    scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    with threadpool_limits(1):
        print("## One population\n")
        alarms(NULL, round(NULL_RUNS * scale))
        print("\n## Planted shifts\n")
        alarms(PLANTED, round(RUNS * scale))
        print("\n## Intervals\n")
        intervals(round(NULL_RUNS * scale / 2))
        print("\n## Sides closer than chance\n")
        closeness(round(10 * NULL_RUNS * scale))


if __name__ == "__main__":
    main()
