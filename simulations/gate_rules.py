"""
How often a gate is wrong: false passes and false blocks of every rule, against truth and groups.

    python simulations/gate_rules.py            # prints the table
    python simulations/gate_rules.py --write    # writes gate_rules.md beside this file

Data are drawn from models whose truth is known; intervals come from the kernels the checks use and
verdicts from the function the gate uses. A false pass at the edge of a rule (truth = threshold) may
happen with probability alpha = .025 at most. Takes a few minutes on two cores.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.check import Measure
from service.gate.judging import Verdict, judge_estimate
from service.gate.needed import needed_to_decide
from service.gate.rule import Rule
from service.numerics.moments import Units
from service.numerics.partition import observed, partition, without_each_group
from service.numerics.power import groups_for_band, trials_for_share
from service.numerics.resampling import (
    Interval,
    clopper_pearson,
    jackknife_t,
    share_interval,
)
from service.numerics.rows import Stored
from service.results import Estimate, Params, PValue

Array = NDArray[Any]
SEED = 20_261_129
ALPHA, LEVEL = 0.025, 0.95
SAMPLES = 4000
GROUPS = (5, 10, 20, 50, 200)
FAMILIES = (1, 5, 20)
WORKERS = 2
PARAMS = Params()
DECIDED = (Verdict.passed, Verdict.failed)


def measure(path: str, low: float | None, high: float | None) -> Measure:
    return Measure(
        path=path, description="", unit="1", low=low, high=high, better="higher", invariance=[],
        needs=[], shape="estimated",
    )  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """Estimates of one measure, each with its interval, and the truth behind them."""

    measure: Measure
    truth: float
    estimates: list[Estimate]


def verdicts(drawn: Drawn, rule: Rule) -> Array:
    """Shares of pass, fail and inconclusive."""
    region = rule.region(drawn.measure.better)
    found = [judge_estimate(region, drawn.measure, e, e, PARAMS).verdict for e in drawn.estimates]
    return np.array([np.mean([v == one for v in found]) for one in (*DECIDED, "inconclusive")])


# --- data ---------------------------------------------------------------------------------------


def estimate(value: float, deleted: Array, level: float = LEVEL) -> Estimate:
    return Estimate(estimate=value, interval=jackknife_t(value, deleted, level, "group"))


def mean_of(values: Array, level: float = LEVEL) -> Estimate:
    """The mean of group values."""
    deleted = (values.sum() - values) / (len(values) - 1)
    return estimate(float(values.mean()), deleted, level)


def share_of(values: Array) -> Estimate:
    mean = float(values.mean())
    deleted = (values.sum() - values) / (len(values) - 1)
    return Estimate(estimate=mean, interval=share_interval(mean, deleted, mean, LEVEL, "group"))


def shares(rng: np.random.Generator, groups: int, truth: float, rows: int) -> Drawn:
    """Groups of `rows` hits and misses, alike inside a group (beta-binomial, ICC 1/3)."""
    chance = rng.beta(2 * truth, 2 * (1 - truth), (SAMPLES, groups)) if rows > 1 else truth
    values = rng.binomial(rows, chance, (SAMPLES, groups)) / rows
    return Drawn(measure("share", 0, 1), truth, [share_of(v) for v in values])


def means(rng: np.random.Generator, groups: int, level: float = LEVEL) -> Drawn:
    values = rng.normal(size=(SAMPLES, groups))
    return Drawn(measure("mean", None, None), 0.0, [mean_of(v, level) for v in values])


def skewed(rng: np.random.Generator, groups: int) -> Drawn:
    values = rng.exponential(size=(SAMPLES, groups))
    return Drawn(measure("mean", None, None), 1.0, [mean_of(v) for v in values])


ROWS, D, TAU2 = 6, 64, 0.2


def structures(rng: np.random.Generator, groups: int) -> tuple[Drawn, Drawn, Drawn]:
    """
    ICC and R2 of one model, and the difference of R2 of two, over the same groups of 6 rows.

    Half of the second model's group effects and errors are the first one's.
    """
    codes = np.repeat(np.arange(groups), ROWS)
    units = Units.groups(codes)
    icc, r2, change = [], [], []
    for _ in range(SAMPLES):
        effect, error = rng.normal(size=(2, groups, D)), rng.normal(size=(2, len(codes), D))
        models = [
            np.sqrt(TAU2) * e[codes] + np.sqrt(1 - TAU2) * r
            for e, r in (
                (effect[0], error[0]),
                ((effect[0] + effect[1]) / np.sqrt(2), (error[0] + error[1]) / np.sqrt(2)),
            )
        ]
        parts = [partition(Stored(x), units, 1) for x in models]
        seen, deleted = [observed(p) for p in parts], [without_each_group(p) for p in parts]
        icc.append(estimate(float(seen[0].icc1), np.asarray(deleted[0].icc1)))
        r2.append(estimate(float(seen[0].r2), np.asarray(deleted[0].r2)))
        change.append(
            estimate(
                float(seen[1].r2 - seen[0].r2),
                np.asarray(deleted[1].r2) - np.asarray(deleted[0].r2),
            )
        )
    return (
        Drawn(measure("icc1", -1, 1), TAU2, icc),
        Drawn(measure("r2", 0, 1), TAU2 + (1 - TAU2) / ROWS, r2),
        Drawn(measure("differences.r2", -1, 1), 0.0, change),
    )


def p_values(rng: np.random.Generator, permutations: int, truth: float | None) -> Drawn:
    """Monte Carlo p-values where the exact p is `truth`, or uniform (no effect)."""
    exact = rng.random(SAMPLES) if truth is None else np.full(SAMPLES, truth)
    found = []
    for b in rng.binomial(permutations, exact):
        low, high = clopper_pearson(int(b), permutations, LEVEL)
        interval = Interval(
            low=low, high=high, level=LEVEL, method="clopper_pearson", unit="permutation",
            resamples=permutations,
        )  # fmt: skip
        found.append(
            PValue(
                estimate=(b + 1) / (permutations + 1), interval=interval, exceedances=int(b),
                permutations=permutations, exact=False, p_min=1 / (permutations + 1),
            )
        )  # fmt: skip
    return Drawn(measure("p", 0, 1), np.nan if truth is None else truth, list(found))


# --- one rule at a time -------------------------------------------------------------------------


def shifted(drawn: Drawn, by: float) -> Drawn:
    """The same estimates of a truth that lies elsewhere."""

    def moved(one: Estimate) -> Estimate:
        assert one.estimate is not None and one.interval is not None  # noqa: PT018, S101
        ends = {"low": one.interval.low + by, "high": one.interval.high + by}
        return Estimate(estimate=one.estimate + by, interval=one.interval.model_copy(update=ends))

    return Drawn(drawn.measure, drawn.truth + by, [moved(one) for one in drawn.estimates])


@dataclass(frozen=True)
class Line:
    """A rule on a measure, and the verdicts by where the truth lies."""

    rule: str
    data: str
    groups: int
    outside: Array
    edge: Array
    inside: Array
    well_inside: Array


def edges(drawn: Drawn, step: float) -> Iterator[tuple[str, Callable[[float], Array]]]:
    """Each rule that fits the measure, as verdicts where the truth lies `x` inside its edge."""
    truth, path = drawn.truth, f"x.{drawn.measure.path}"
    if path.startswith("x.differences"):
        margin = 4 * step
        worse = Rule(measure=path, not_worse_by=margin)
        same = Rule(measure=path, unchanged_within=margin)
        yield "`not_worse_by`", lambda x: verdicts(shifted(drawn, -margin + x), worse)
        yield "`unchanged_within`, upper", lambda x: verdicts(shifted(drawn, margin - x), same)
        yield "`unchanged_within`, lower", lambda x: verdicts(shifted(drawn, -margin + x), same)
        return
    yield "`at_least`", lambda x: verdicts(drawn, Rule(measure=path, at_least=truth - x))
    yield "`at_most`", lambda x: verdicts(drawn, Rule(measure=path, at_most=truth + x))
    band = 8 * step
    yield (
        "`within`, upper",
        lambda x: verdicts(drawn, Rule(measure=path, within=(truth + x - band, truth + x))),
    )
    yield (
        "`within`, lower",
        lambda x: verdicts(drawn, Rule(measure=path, within=(truth - x, truth - x + band))),
    )


def lines_of(groups: int) -> list[Line]:
    """Every rule with so many groups."""
    rng = np.random.default_rng([SEED, groups])
    icc, r2, change = structures(rng, groups)
    found: list[Line] = []
    for drawn, step, about in (
        (means(rng, groups), 0.25, "mean of Gaussian group values, sd 1"),
        (icc, 0.02, "ICC"),
        (r2, 0.02, "R2"),
        (change, 0.02, "difference of R2"),
    ):
        for rule, at in edges(drawn, step):
            places = (at(x) for x in (-step, 0.0, step, 2 * step))
            found.append(Line(rule, f"{about}, step {step}", groups, *places))
    threshold = 0.9
    rule = Rule(measure="x.share", at_least=threshold)
    for rows, about in ((1, "share, one row a group"), (4, "share, four alike rows a group")):
        places = (
            verdicts(shares(rng, groups, p, rows), rule) for p in (0.85, threshold, 0.95, 0.99)
        )
        found.append(Line("`at_least` .9", f"{about}; truth .85, .9, .95, .99", groups, *places))
    return found


# --- p-values, families, looks, advice ----------------------------------------------------------


def of_p_values() -> Iterator[tuple[int, str, Array]]:
    rng = np.random.default_rng([SEED, 1])
    rule = Rule(measure="x.p", at_most=0.05)
    for permutations in (199, 999, 9999):
        for truth in (None, 0.06, 0.05, 0.04, 0.01, 0.001):
            about = "no effect: uniform" if truth is None else f"{truth:g}"
            yield permutations, about, verdicts(p_values(rng, permutations, truth), rule)


def families(groups: int) -> Iterator[tuple[int, bool, float, float]]:
    """
    By m: how often a release at the edge of all m rules is blocked, and how often one at the edge of
    one of them and safe on the others passes.
    """
    rng = np.random.default_rng([SEED, 2, groups])
    region = Rule(measure="x.mean", at_least=0.0).region("higher")
    for m in FAMILIES:
        for familywise in (False, True):
            wide = 1 - (1 - LEVEL) / m if familywise else LEVEL
            blocked = passed = 0
            for values in rng.normal(size=(SAMPLES, m, groups)):
                found = [
                    judge_estimate(
                        region, measure("mean", None, None), mean_of(v), mean_of(v, wide), PARAMS
                    ).verdict
                    for v in values
                ]
                blocked += Verdict.failed in found
                passed += found[0] == Verdict.passed
            yield m, familywise, blocked / SAMPLES, passed / SAMPLES


def looks(groups: int) -> Iterator[tuple[str, str, float]]:
    """How often pooled data whose truth is the threshold pass at one of several looks."""
    rng = np.random.default_rng([SEED, 3, groups])
    plans = {
        "once": [1], "G, then 2 G groups": [1, 2], "G, then 10 G groups": [1, 10],
        "G, 2 G, ... 5 G groups": [1, 2, 3, 4, 5],
    }  # fmt: skip
    for name, sizes in plans.items():
        for about, alphas in (
            ("alpha each time", [ALPHA] * len(sizes)),
            ("alpha, then alpha/k", [ALPHA] + [ALPHA / len(sizes)] * (len(sizes) - 1)),
            (f"`look: {len(sizes)}`", [ALPHA / len(sizes)] * len(sizes)),
        ):
            passes = np.zeros(SAMPLES, dtype=bool)
            values = rng.normal(size=(SAMPLES, groups * sizes[-1]))
            for size, alpha in zip(sizes, alphas, strict=True):
                seen = values[:, : groups * size]
                passes |= np.array([lower(v, 1 - 2 * alpha) >= 0 for v in seen])
            yield name, about, float(passes.mean())


def lower(values: Array, level: float) -> float:
    found = mean_of(values, level).interval
    assert found is not None  # noqa: S101
    return found.low


def advice() -> Iterator[tuple[str, int, float]]:
    """How often the number of groups that `needed` names decides, where the estimate is the truth."""
    rng = np.random.default_rng([SEED, 4])
    for effect in (0.2, 0.5):
        count = groups_for_band(20, 1 / np.sqrt(20), effect, np.inf, ALPHA)
        rule = Rule(measure="x.mean", at_least=-effect)
        yield (
            f"mean, {effect} from the threshold",
            int(count),
            decided(means(rng, int(count)), rule),
        )
        count = groups_for_band(20, 1 / np.sqrt(20), effect, effect, ALPHA)
        rule = Rule(measure="x.mean", within=(-effect, effect))
        yield f"mean, {effect} from both ends", int(count), decided(means(rng, int(count)), rule)
    for truth, threshold in ((0.97, 0.9), (0.8, 0.9), (0.99, 0.95)):
        rule = Rule(measure="x.share", at_least=threshold)
        seen = share_of(np.r_[np.ones(round(100 * truth)), np.zeros(round(100 - 100 * truth))])
        assert seen.interval is not None  # noqa: S101
        found = needed_to_decide(seen, seen.interval, rule.region("higher"), (0, 1))
        assert found is not None  # noqa: S101
        count = found.count
        yield (
            f"share {truth} against {threshold}",
            count,
            decided(shares(rng, count, truth, 1), rule),
        )
    for truth in (0.04, 0.01):
        count = trials_for_share(truth, 0.05, ALPHA)
        rule = Rule(measure="x.p", at_most=0.05)
        yield f"p {truth} against .05", count, decided(p_values(rng, count, truth), rule)


def decided(drawn: Drawn, rule: Rule) -> float:
    return float(verdicts(drawn, rule)[:2].sum())


# --- the table ----------------------------------------------------------------------------------


def error_of(share: float) -> float:
    return float(np.sqrt(max(share * (1 - share), 1 / SAMPLES) / SAMPLES))


def over(share: float, nominal: float) -> bool:
    """More than three Monte Carlo errors above, as if the nominal value were true."""
    return share > nominal + 3 * error_of(nominal)


def both(found: Array) -> str:
    return f"{found[0]:.3f} / {found[1]:.3f}"


def table(found: list[Line]) -> str:
    off: list[str] = []

    def note(share: float, nominal: float, what: str) -> None:
        if over(share, nominal):
            off.append(f"- {what}: {share:.3f} where {nominal:g} is nominal.")

    lines = [
        "# How often a gate is wrong",
        "",
        "Written by `python simulations/gate_rules.py --write`. One-sided alpha is .025; "
        f"{SAMPLES:,} samples a number, so that one of .025 has a Monte Carlo error of "
        f"{error_of(ALPHA):.4f}. Seed {SEED}.",
        "",
        "## One rule",
        "",
        "Cells are the shares of `pass / fail`; the rest is inconclusive. The truth lies one step "
        "outside the rule, on its edge, one step inside and two steps inside. `pass` in the first two "
        "is a false pass, `fail` in the last three a false block. R2, ICC and the difference come from "
        f"groups of {ROWS} rows in {D} dimensions that hold {TAU2} of the variance; the truth is that "
        "of infinitely many groups.",
        "",
        "| rule | data | G | outside | edge | inside | well inside |",
        "|---|---|--:|---|---|---|---|",
    ]
    for one in found:
        cells = " | ".join(both(x) for x in (one.outside, one.edge, one.inside, one.well_inside))
        lines.append(f"| {one.rule} | {one.data} | {one.groups} | {cells} |")
        what = f"{one.rule}, {one.data}, {one.groups} groups"
        note(one.outside[0], ALPHA, f"false pass outside, {what}")
        note(one.edge[0], ALPHA, f"false pass on the edge, {what}")
        for place in (one.edge, one.inside, one.well_inside):
            note(place[1], ALPHA, f"false block, {what}")
    lines += [
        "",
        "## Permutation p-values, `at_most: 0.05`",
        "",
        "Without an effect at most .05 pass: that is what a p-value promises. Where the exact p is the "
        "threshold, its Monte Carlo interval passes .025 at most.",
        "",
        "| permutations | exact p | pass / fail |",
        "|--:|---|---|",
    ]
    for permutations, about, shown in of_p_values():
        lines.append(f"| {permutations} | {about} | {both(shown)} |")
        what = f"p-value {about}, {permutations} permutations"
        if about.startswith("no"):
            note(shown[0], 0.05, f"false pass, {what}")
        elif float(about) >= 0.05:
            note(shown[0], ALPHA, f"false pass, {what}")
        if not about.startswith("no") and float(about) <= 0.05:
            note(shown[1], ALPHA, f"false block, {what}")
    lines += [
        "",
        "## Several blocking rules",
        "",
        "Blocked: the truth lies on the edge of all m rules, which it satisfies. Passed: it lies on "
        "the edge of one and far inside the others. 20 groups, independent Gaussian means.",
        "",
        "| m | policy | falsely blocked | falsely passed |",
        "|--:|---|--:|--:|",
    ]
    for m, familywise, blocked, passed in families(20):
        name = "`familywise`" if familywise else "plain"
        lines.append(f"| {m} | {name} | {blocked:.3f} | {passed:.3f} |")
        note(passed, ALPHA, f"false pass of {m} rules, {name}")
        if familywise:
            note(blocked, ALPHA, f"false block of {m} rules, {name}")
    lines += [
        "",
        "## Several looks at data that are pooled",
        "",
        "The truth is the threshold; passed at one of the looks. G = 20, Gaussian means.",
        "",
        "| looks | each judged at | falsely passed |",
        "|---|---|--:|",
    ]
    for name, about, share in looks(20):
        lines.append(f"| {name} | {about} | {share:.3f} |")
        if about.startswith("`look"):
            note(share, ALPHA, f"false pass, {name}, {about}")
    lines += [
        "",
        "## What `needed` is worth",
        "",
        "With as many groups, or permutations, as `needed` names where the estimate is the truth: how "
        "often the rule is decided. .8 is meant.",
        "",
        "| rule | needed | decided |",
        "|---|--:|--:|",
        *(f"| {about} | {count:,} | {share:.3f} |" for about, count, share in advice()),
        "",
        "## Where alpha does not hold",
        "",
        "Above nominal by more than three Monte Carlo errors:",
        "",
        *(off or ["- nothing in the tables above."]),
        "",
        "Not in the tables, since no interval of few units can know it: group values of a very skew "
        "law. `at_most` on the mean of exponential group values, the truth on the edge, passes "
        "falsely in",
        "",
        "| G | false pass |",
        "|--:|--:|",
    ]
    rng = np.random.default_rng([SEED, 5])
    for groups in GROUPS:
        drawn = skewed(rng, groups)
        share = verdicts(drawn, Rule(measure="x.mean", at_most=drawn.truth))[0]
        lines.append(f"| {groups} | {share:.3f} |")
    return "\n".join([*lines, ""])


def main() -> None:
    with ProcessPoolExecutor(WORKERS) as pool:
        found = [line for some in pool.map(lines_of, sorted(GROUPS, reverse=True)) for line in some]
    order = list(dict.fromkeys((one.rule, one.data) for one in found))
    text = table(sorted(found, key=lambda one: (order.index((one.rule, one.data)), one.groups)))
    if "--write" in sys.argv[1:]:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
