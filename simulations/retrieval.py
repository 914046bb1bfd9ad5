"""
Coverage of the intervals of `retrieval` and of its paired differences, and false alarms of its tests.

Groups of one to six queries share a topic, so their results agree; both models see the same queries.
The truth is the mean over 40,000 groups. A few minutes; prints the table of retrieval.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from service.check import Context
from service.checks.retrieval import retrieval
from service.dataset import Dataset, Labels
from service.numerics.resampled_means import resampled_t
from service.numerics.resampling import simultaneous, t_quantile
from service.relevance import Relevance

Array = NDArray[np.float64]
DOCUMENTS, D, MOST = 200, 12, 6
GROUPS, RUNS, TRUTH = (5, 10, 20, 50, 200), 1000, 40_000
MEASURES = ("hit@1", "ndcg@10", "mrr", "margin_mean")
SECOND = {"equal": 0.9, "worse": 1.2}
"""Noise of the second model; the first has .9."""
GALLERY = np.random.default_rng(1).normal(size=(DOCUMENTS, D))
TOPICS = np.random.default_rng(2).normal(size=(40, D))


def draw(random: np.random.Generator, groups: int, second: float) -> object:
    """Results for some groups: a document each, a topic that pulls all its queries away from it."""
    sizes = random.integers(1, MOST + 1, size=groups)
    code = np.repeat(np.arange(groups), sizes)
    own = random.integers(0, DOCUMENTS, size=groups)[code]
    pull = 0.6 * TOPICS[random.integers(0, 40, size=groups)][code]
    shared = random.normal(size=(len(code), D))
    models = {}
    for name, noise in (("first", 0.9), ("second", second)):
        blurred = np.sqrt(0.5) * (shared + random.normal(size=shared.shape))
        queries = GALLERY[own] + pull + noise * blurred
        models[name] = {"queries": Dataset(queries), "documents": Dataset(GALLERY)}
    inputs = retrieval.inputs(
        models=models,
        relevance=Relevance.of([[int(row)] for row in own]),
        groups=Labels.of(code.tolist()),
    )
    return retrieval.run(Context(threads=2), inputs, retrieval.params(ks=[1, 10]))


def read(results: object) -> Iterator[tuple[str, float, float, float, float | None]]:
    """Name, estimate, interval and p of what is judged."""
    data = results.model_dump()  # type: ignore[attr-defined]
    for name in MEASURES:
        one = data["models"]["first"][name]
        change = data["differences"]["second"]["first"][name]
        p = data["differences"]["second"]["first"]["tests"][name]["p"]
        for what, found, test in ((f"first {name}", one, None), (f"change {name}", change, p)):
            interval = found["interval"] or {"low": -np.inf, "high": np.inf}
            yield what, found["estimate"], interval["low"], interval["high"], test


@dataclass
class Tally:
    """What happened to one measure over the runs."""

    held: int = 0
    below: int = 0
    above: int = 0
    alarms: int = 0
    tested: int = 0
    widths: list[float] = field(default_factory=list)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    print(
        "| second model | groups | measure | covered | missed below | above | mean width | p <= .05 |"
    )
    print("|---|--:|---|--:|--:|--:|--:|--:|")
    for name, noise in SECOND.items():
        truth = {
            what: value for what, value, *_ in read(draw(np.random.default_rng(9), TRUTH, noise))
        }
        for groups in GROUPS:
            tallies: dict[str, Tally] = {}
            for run in range(runs):
                random = np.random.default_rng([groups, run])
                for what, _, low, high, p in read(draw(random, groups, noise)):
                    tally = tallies.setdefault(what, Tally())
                    tally.held += low <= truth[what] <= high
                    tally.below += high < truth[what]
                    tally.above += low > truth[what]
                    tally.widths.append(high - low)
                    tally.tested += p is not None
                    tally.alarms += p is not None and p <= 0.05
            for what, tally in tallies.items():
                if name == "worse" and what.startswith("first"):
                    continue
                alarms = f"{tally.alarms / runs:.3f}" if tally.tested else ""
                print(
                    f"| {name} | {groups} | {what} | {tally.held / runs:.3f} | "
                    f"{tally.below / runs:.3f} | {tally.above / runs:.3f} | "
                    f"{np.mean(tally.widths):.3f} | {alarms} |",
                    flush=True,
                )
    together()


def together(runs: int = 2000) -> None:
    """How often the intervals of three pairs of equal models hold all three truths, which are 0."""
    print("\n| groups | each alone: all three held | `max_t`: all three held |\n|--:|--:|--:|")
    pairs = [(1, 0), (2, 0), (2, 1)]
    for groups in (20, 50, 200):
        alone = joint = 0
        for run in range(runs):
            random = np.random.default_rng([groups, run])
            difficulty = random.gamma(1, size=(groups, 1))
            reciprocal = 1 / (1 + random.poisson(difficulty, size=(groups, 3)))
            changes = np.stack([reciprocal[:, i] - reciprocal[:, j] for i, j in pairs], axis=1)
            means = changes.mean(axis=0)
            errors = changes.std(axis=0, ddof=1) / np.sqrt(groups)
            t = resampled_t(changes, 2000, run, 2)
            drawn = means + t[np.isfinite(t).all(axis=1)] * errors
            found = simultaneous(means, drawn, errors, np.zeros(3), groups, 0.95, "group") or []
            joint += bool(found) and all(one.low <= 0 <= one.high for one in found)
            alone += bool((np.abs(means) <= t_quantile(0.975, groups - 1) * errors).all())
        print(f"| {groups} | {alone / runs:.3f} | {joint / runs:.3f} |", flush=True)


if __name__ == "__main__":
    main()
