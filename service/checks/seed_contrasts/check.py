"""Paired differences of every metric under every declared contrast."""

from __future__ import annotations

from typing import cast

from service.check import Context, Estimate, Undefined, check
from service.checks.seed_contrasts.declared import (
    ContrastResults,
    PairedDifference,
    SeedContrasts,
    SeedContrastsInputs,
    SeedContrastsParams,
    SeedDifference,
)
from service.checks.seed_contrasts.table import Pairs, Runs, runs_of
from service.numerics.paired import (
    PairedT,
    effect_for_pairs,
    paired_t,
    pairs_for_effect,
)
from service.numerics.resampling import Interval, holm, t_quantile
from service.numerics.rows import Floats

FEW_SEEDS = 5
MOST_NEEDED = 100
"""Above this many times the seeds there are, no useful number can be named."""
CENSUS = Undefined(code="census", message="The runs are the whole population.")
ZERO_VARIANCE = Undefined(
    code="zero_variance",
    message="All differences are equal; zero observed variance never means zero width.",
)
AT_THRESHOLD = Undefined(
    code="at_threshold",
    message=f"More than {MOST_NEEDED} times the seeds would be needed to show such a difference.",
)


@check(
    version=1,
    title="Differences between matched training runs",
    question="Does a change of training move a metric by more than its seeds do?",
    scope=(
        "Intervals describe training seeds on the data that were scored: they do not cover another "
        "data set, split, architecture or setting.",
        "Holm's adjustment covers the contrasts and metrics of this request, not ones that were "
        "looked at elsewhere, nor contrasts chosen after the runs were seen.",
        "A difference that is not significant is not shown to be absent: read its interval.",
        "Student's t takes the differences as normal; of few seeds nobody can tell.",
    ),
    warnings={
        "few_seeds": "A contrast has so few seeds that its interval is wide.",
        "zero_variance": "All differences of a metric are the same.",
    },
    sources=(
        "doi:10.1093/biomet/6.1.1",
        "doi:10.4324/9780203771587",
        "arXiv:1806.08295",
    ),
    row_limit=2000,
    examine=runs_of,
)
def seed_contrasts(
    context: Context, inputs: SeedContrastsInputs, params: SeedContrastsParams
) -> SeedContrasts:
    """
    Whether a change of training changes a metric by more than its seeds do.

    Runs of two conditions are paired by seed; each declared contrast gets its mean difference with a
    Student-t interval, a paired t test adjusted over all contrasts and metrics, and the seeds it would
    take. The table is refused where seeds do not match. Instant.
    """
    runs = runs_of(inputs, params)
    if len(runs.dropped):
        shown = ", ".join(inputs.runs.name_rows(runs.dropped))
        context.warn(
            "rows_dropped",
            f"{len(runs.dropped)} runs dropped (without a condition, a seed or a metric), first: "
            f"{shown}.",
            "inputs/runs",
        )
    tests = [
        [paired_t(values[pairs.a], values[pairs.b]) for values in runs.metrics]
        for pairs in runs.pairs
    ]
    known = [None if params.census else test.p for some in tests for test in some]
    together = iter(holm(known))
    names = params.names()
    results = SeedContrasts(
        runs=runs.used,
        unused=inputs.runs.n - runs.used - len(runs.dropped),
        family=len(known),
        contrasts={
            name: ContrastResults(
                a=pairs.contrast.a,
                b=pairs.contrast.b,
                seeds=len(pairs.seeds),
                effect_shown=effect_for_pairs(len(pairs.seeds), 1 - params.level),
                metrics={
                    metric: _difference(pairs, values, test, next(together), params)
                    for metric, values, test in zip(
                        names["metric"], runs.metrics, some, strict=True
                    )
                },
            )
            for name, pairs, some in zip(names["contrast"], runs.pairs, tests, strict=True)
        },
    )
    _warn(context, results, runs, params)
    return results


def _difference(
    pairs: Pairs, values: Floats, test: PairedT, adjusted: float | None, params: SeedContrastsParams
) -> PairedDifference:
    """One metric of one contrast; without spread, or of a census, no interval and no test."""
    bounds, none = test.interval(params.level), CENSUS if params.census else ZERO_VARIANCE
    open_ended = bounds is None or params.census
    effect = test.effect
    needed = None if not effect else pairs_for_effect(effect, 1 - params.level)
    too_many = needed is None or needed > MOST_NEEDED * test.pairs
    return PairedDifference.build(  # type: ignore[no-any-return]
        mean=_estimate(test, None if open_ended else bounds, none, params.level),
        sd=test.sd,
        effect=ZERO_VARIANCE if effect is None else effect,
        p=none if open_ended else test.p,
        p_holm=none if open_ended else adjusted,
        seeds_needed=ZERO_VARIANCE if effect is None else AT_THRESHOLD if too_many else needed,
        differences=[
            SeedDifference(seed=seed, a=a, b=b, difference=a - b)
            for seed, a, b in zip(
                pairs.seeds, values[pairs.a].tolist(), values[pairs.b].tolist(), strict=True
            )
        ],
    )


def _estimate(
    test: PairedT, bounds: tuple[float, float] | None, none: Undefined, level: float
) -> Estimate:
    interval = none if bounds is None else Interval(
        low=bounds[0], high=bounds[1], level=level, method="student_t", unit="seed",
        resamples=test.pairs,
    )  # fmt: skip
    return cast(Estimate, Estimate.build(estimate=test.mean, interval=interval))


def _warn(
    context: Context, results: SeedContrasts, runs: Runs, params: SeedContrastsParams
) -> None:
    for name, contrast in results.contrasts.items():
        where = f"results/contrasts/{name}"
        if contrast.seeds < FEW_SEEDS and not params.census:
            reach = t_quantile((1 + params.level) / 2, contrast.seeds - 1)
            context.warn(
                "few_seeds",
                f"With {contrast.seeds} seeds the interval reaches {reach:.3g} standard errors either "
                f"way, and a difference has to be {contrast.effect_shown:.3g} standard deviations for "
                "80 % power.",
                where,
            )
        for metric, found in contrast.metrics.items():
            if found.sd == 0:
                context.warn(
                    "zero_variance",
                    f"All {contrast.seeds} differences of `{metric}` are {found.mean.estimate:.4g}: "
                    "are the runs copies, or the metric at its limit?",
                    f"{where}/metrics/{metric}",
                )
