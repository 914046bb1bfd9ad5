"""Group structure: dispersion between and within groups, in one model or several over the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy import stats

from service.check import (
    Context,
    Estimate,
    Inputs,
    Params,
    PValue,
    Results,
    Undefined,
    check,
    estimate_of,
    labels,
    measure,
    models,
)
from service.dataset import Dataset, Labels
from service.errors import Fault, InvalidRequest, TooFewRows
from service.numerics.design import Design
from service.numerics.dispersion import (
    anova_f,
    dispersion_test,
    distances,
    median_distances,
    residuals,
)
from service.numerics.dose import FEWEST_LEVELS, adjacent, dose, page
from service.numerics.moments import Units
from service.numerics.partition import (
    Decomposition,
    Partition,
    bootstrap,
    observed,
    partition,
    sums_by_unit,
    without_each_group,
    without_each_unit,
)
from service.numerics.permanova import PermutationTest, between_test, expected_between, slabs
from service.numerics.power import groups_for_correlation
from service.numerics.resampling import (
    FEWEST_UNITS,
    Interval,
    bca,
    fisher_z,
    holm,
    jackknife_se,
    simultaneous,
    t_test,
)
from service.numerics.rows import Directions, Floats, Source, Stored, norms, safe_scale
from service.references import Label

BCA_GROUPS = 20
BOOTSTRAP_WORK = 1e13
FEWEST_DISPERSED = 5
ZERO = 1e-24
PAIRED = ("r2", "icc1", "within_share", "v", "w_bar")
TESTED = ("r2", "icc1", "within_share")
ZERO_TOTAL = Undefined(code="zero_total", message="All rows are equal: there is no variation.")
ZERO_WITHIN = Undefined(
    code="zero_within", message="Rows of a group are equal: nothing varies inside groups."
)


class GroupStructureInputs(Inputs):
    models: dict[str, Dataset] = models(rows="rows", least=3)
    """One to eight models over the same rows."""
    groups: Labels = labels(of="models", default=...)
    """What rows belong to: intent, topic, source question."""
    strata: Labels | None = labels(of="models")
    """Labels are exchanged within strata only (domain, language)."""
    units: Labels | None = labels(of="models")
    """Rows that are exchanged together (document, user), each in one group and one stratum."""
    levels: Labels | None = labels(of="models")
    """Dose of each row: numbers in order, or strings in order of first appearance."""
    response: Labels | None = labels(of="models")
    """A number or 0/1 per row (score, correct or not): gets its own R2 and ICC."""


class GroupStructureParams(Params):
    permutations: int = Field(default=999, ge=19, le=99_999)
    """Random arrangements; all distinct ones are enumerated when there are no more."""
    bootstrap: int = Field(default=2000, ge=0, le=50_000)
    """Cluster-bootstrap resamples; 0 for none."""
    normalise: bool = True
    """Use unit rows; false uses rows as given."""
    dispersion_test: bool = True
    """Test whether groups differ in spread."""
    resample: Literal["groups", "units"] = "groups"
    """What intervals leave out: groups, or units where the groups are a fixed list."""
    listed_groups: int = Field(default=200, ge=0, le=10_000)
    """How many groups to list, largest dispersion first."""


class BcaIntervals(Results):
    """Bootstrap intervals beside the jackknife's."""

    r2: Interval | None
    icc1: Interval | None
    within_share: Interval | None


class DispersionTest(Results):
    """Whether groups differ in their distances to their own centre."""

    f: float | None = measure(low=0, invariance=("similarity",))
    """F of distances to group means, corrected by sqrt(n_g/(n_g-1)), groups of two rows or more."""
    p: PValue = measure(low=0, high=1, invariance=("similarity",))
    """Exchanging residual vectors and recomputing centres."""
    f_spatial_median: float | None = measure(low=0, invariance=("similarity",))
    """The same F on uncorrected distances to spatial medians; descriptive."""
    excluded_singletons: int
    """Groups of one row, left out."""


class GroupRow(Results):
    """One group."""

    label: Label
    n: int
    w: float
    """Mean squared distance of its rows to their mean."""
    w_tilde: float | None
    """n/(n-1) times that."""


class Correlation(Results):
    """Whether spread groups are those that do worse."""

    spearman: Estimate = measure(low=-1, high=1, invariance=("similarity",))
    """Rank correlation of W~_g with the group's mean response."""
    groups: int
    """Groups correlated."""
    groups_needed: int | None
    """Groups that would show a correlation of this size with 80 % power."""


class DoseLevel(Results):
    """Dispersion at one level."""

    level: Label
    cells: int
    """Groups with rows at this level."""
    w_tilde: float | None
    """SS within cells over sum (n - 1)."""
    w_tilde_mean: float | None
    """Plain mean of size-corrected cell dispersions."""
    from_first: float | None
    """Mean squared distance of cell means to their group's mean at the first level."""
    step: Estimate
    """Paired change from the level before, simultaneous interval."""


class OrderedTrend(Results):
    """Page's ordered-trend test."""

    statistic: float
    z: float
    p: float
    blocks: int
    """Groups with all levels."""


class DoseResponse(Results):
    levels: list[DoseLevel]
    ordered_trend: OrderedTrend | None
    """One-sided, for an increase along the levels."""
    monotone: bool | None
    """Whether the interval of every adjacent difference lies above 0."""


class ModelStructure(Results):
    ss_total: float
    """Sum of squared distances to the grand mean."""
    ss_within: float
    """Sum of squared distances to group means."""
    ss_between: float
    r2: Estimate = measure(low=0, high=1, invariance=("similarity",))
    """Share of the variation that lies between groups."""
    r2_expected: float | None = measure(low=0, high=1, invariance=("similarity",))
    """Its mean over the permutation scheme: what no group effect gives."""
    r2_adjusted: float | None = measure(high=1, better="higher", invariance=("similarity",))
    """(R2 - expected) / (1 - expected)."""
    pseudo_f: float | None = measure(low=0, invariance=("similarity",))
    """PERMANOVA's F."""
    pseudo_f_expected: float | None = measure(low=0, invariance=("similarity",))
    """F at the expected R2; 1 only without strata."""
    p: PValue = measure(low=0, high=1, invariance=("similarity",))
    """Permutation p of F."""
    pseudo_f2: float | None = measure(low=0, invariance=("similarity",))
    """F2, for groups of unequal dispersion and size."""
    p_f2: PValue = measure(low=0, high=1, invariance=("similarity",))
    """Permutation p of F2."""
    icc1: Estimate = measure(low=-1, high=1, better="higher", invariance=("similarity",))
    """ICC(1) on traces; may be negative."""
    within_share: Estimate = measure(low=0, high=1, better="lower", invariance=("similarity",))
    """SS within over SS total."""
    v: Estimate = measure(low=0, invariance=("isometry",))
    """SS total / n."""
    w_bar: Estimate = measure(low=0, invariance=("isometry",))
    """SS within / n."""
    w_tilde_mean: float | None = measure(low=0, invariance=("isometry",))
    """Plain mean of size-corrected group dispersions W~_g."""
    bca: BcaIntervals
    dispersion: DispersionTest
    groups: list[GroupRow]
    """Groups by falling W~."""
    performance: Correlation | None
    dose: DoseResponse | None


class PairedTest(Results):
    """Paired test of one difference, and its interval among all pairs."""

    p: float | None = measure(low=0, high=1, invariance=("similarity",))
    """Two-sided t test on the jackknife standard error."""
    p_holm: float | None = measure(low=0, high=1, invariance=("similarity",))
    """Adjusted over all pairs of models (Holm)."""
    simultaneous: Interval | None
    """Covers the differences of all pairs at once (max |t|)."""


class Difference(Results):
    """Later minus earlier model, the same groups left out of both."""

    r2: Estimate = measure(low=-1, high=1, better="higher", invariance=("similarity",))
    icc1: Estimate = measure(low=-2, high=2, better="higher", invariance=("similarity",))
    within_share: Estimate = measure(low=-1, high=1, better="lower", invariance=("similarity",))
    v: Estimate = measure(invariance=("isometry",))
    """Depends on the scale of each model."""
    w_bar: Estimate = measure(invariance=("isometry",))
    """Depends on the scale of each model."""
    r2_test: PairedTest
    icc1_test: PairedTest
    within_share_test: PairedTest
    scale_dependent: list[str]
    """Differences that a change of scale alone would make."""


class ResponseStructure(Results):
    """The same decomposition of the response; not subtractable from that of vectors."""

    r2: float | None
    icc1: float | None
    """An ANOVA ICC; of a 0/1 response it is not a latent-scale ICC."""


class GroupStructure(Results):
    n: int
    """Rows."""
    groups: int
    singletons: int
    """Groups of one row."""
    labellings: float | None
    """Distinct labellings of the design; null above 10^15."""
    models: dict[str, ModelStructure]
    differences: dict[str, dict[str, Difference]]
    response: ResponseStructure | None

    def readings(self) -> list[str]:
        lines = []
        for name, model in self.models.items():
            expected = (
                "" if model.r2_expected is None else f" where {model.r2_expected:.4f} is no effect"
            )
            p = "undefined" if model.p.estimate is None else f"{model.p.estimate:.4g}"
            lines.append(
                f"{name}: groups hold {model.r2:.4f} of the variation{expected}; permutation p {p} "
                f"(smallest possible {model.p.p_min:.2g}), null: labels are exchangeable under the "
                "design."
            )
            if model.dispersion.p.estimate is not None:
                lines.append(
                    f"{name}: groups differ in spread with F {model.dispersion.f:.2f}, p "
                    f"{model.dispersion.p.estimate:.4g}; with unequal spread read F2 (p "
                    f"{model.p_f2.estimate if model.p_f2.estimate is not None else 'undefined'})."
                )
        for later, others in self.differences.items():
            for earlier, pair in others.items():
                lines.append(
                    f"{later} - {earlier}: R2 changes by {pair.r2:+.4f}"
                    + (f", p {pair.r2_test.p:.3g}." if pair.r2_test.p is not None else ".")
                )
        return lines


@dataclass(frozen=True)
class _Labelled:
    """The labels of a request as dense codes."""

    groups: NDArray[np.int64]
    levels: tuple[Label, ...]
    strata: NDArray[np.int64] | None
    units: NDArray[np.int64] | None
    design: Design

    @classmethod
    def of(cls, inputs: GroupStructureInputs) -> _Labelled:
        groups = inputs.groups.dense
        counts = np.bincount(groups)
        if (counts == 1).all():
            raise TooFewRows(
                "Every group has one row: nothing varies inside groups.",
                [Fault(pointer="/inputs/groups", message="use coarser groups", count=len(counts))],
            )
        strata = None if inputs.strata is None else inputs.strata.dense
        units = None if inputs.units is None else inputs.units.dense
        return cls(
            groups, inputs.groups.dense_levels, strata, units, Design.of(groups, strata, units)
        )

    def resampled(self, params: GroupStructureParams) -> Units | None:
        """Units that intervals leave out; None where they leave out groups."""
        if params.resample == "groups":
            return None
        return Units.rows(len(self.groups)) if self.units is None else Units.groups(self.units)


@dataclass(frozen=True)
class _Fitted:
    """A model with what comparisons with other models need."""

    parts: Partition
    seen: Decomposition
    deleted: Decomposition
    resampled: Decomposition | None
    unit: str
    results: ModelStructure


@check(
    version=1,
    title="Dispersion between and within groups",
    scope=(
        "A small p says labels are not exchangeable, not that groups are apart by a useful amount: "
        "read R2 beside its expectation.",
        "R2 compares only the same rows and groups; the number and size of groups move it.",
        "Structure of labels is not what a classifier recovers nor what search returns.",
        "The trace ICC of vectors and the ICC of a response are on different scales and cannot be "
        "subtracted.",
    ),
    sources=(
        "doi:10.1111/j.1442-9993.2001.01070.pp.x",
        "doi:10.1111/anzs.12176",
        "doi:10.1111/j.1541-0420.2005.00440.x",
        "doi:10.2202/1544-6115.1585",
        "doi:10.1214/aos/1176345462",
        "doi:10.1080/01621459.1987.10478410",
        "doi:10.1080/01621459.1963.10500843",
    ),
    memory_factor=4.0,
)
def group_structure(
    context: Context, inputs: GroupStructureInputs, params: GroupStructureParams
) -> GroupStructure:
    """
    How much of the variation lies between groups, how surely, and in which model more.

    PERMANOVA from vectors, without a distance matrix: F, R2 and p under restricted permutation, a
    test of equal dispersion, intervals by group, and paired differences of models. Squared distances
    are Euclidean between unit rows, 2 (1 - cos). Time O(B n d) for B permutations; memory the rows
    once more.
    """
    labelled = _Labelled.of(inputs)
    counts = np.bincount(labelled.groups)
    fitted = {
        name: _fit(context, name, data, inputs, params, labelled)
        for name, data in inputs.models.items()
    }
    labellings = labelled.design.labellings
    many = Undefined(code="too_many", message="More than 10^15.")
    no_response = Undefined(code="not_given", message="No `response` was given.")
    return GroupStructure.build(  # type: ignore[no-any-return]
        n=len(labelled.groups),
        groups=len(counts),
        singletons=int(np.count_nonzero(counts == 1)),
        labellings=labellings if np.isfinite(labellings) else many,
        models={name: model.results for name, model in fitted.items()},
        differences=_differences(fitted, params),
        response=no_response
        if inputs.response is None
        else _response(inputs.response, labelled.groups, context.threads),
    )


def _fit(
    context: Context,
    name: str,
    data: Dataset,
    inputs: GroupStructureInputs,
    params: GroupStructureParams,
    labelled: _Labelled,
) -> _Fitted:
    source = _source(data, params.normalise)
    threads, design, units = context.threads, labelled.design, Units.groups(labelled.groups)
    with context.stage(f"{name}_sums"):
        parts = partition(source, units, threads)
        seen = observed(parts)
        resampled_units = labelled.resampled(params)
        if resampled_units is None:
            deleted, unit = without_each_group(parts), "group"
        else:
            sums = sums_by_unit(source, parts, labelled.groups, resampled_units, threads)
            deleted, unit = (
                without_each_unit(parts, sums),
                "unit" if labelled.units is not None else "row",
            )
    scale = float(parts.mean @ parts.mean) + parts.ss_total / parts.n
    flat = parts.ss_total <= ZERO * parts.n * scale
    tight = not flat and parts.ss_within <= ZERO * parts.n * scale
    groups = len(parts.counts)
    boot = None
    work = params.bootstrap * groups * source.d
    if params.bootstrap and unit == "group" and groups >= BCA_GROUPS and work <= BOOTSTRAP_WORK:
        with context.stage(f"{name}_bootstrap") as step:
            boot = bootstrap(parts, params.bootstrap, context.seed, threads, step)
    tests = _between(context, name, source, parts, design, params, flat)

    def estimated(field: str) -> Estimate:
        value = float(getattr(seen, field))
        if flat and field not in ("v", "w_bar"):
            return estimate_of(ZERO_TOTAL, np.zeros(0), params, unit)
        return estimate_of(value, np.asarray(getattr(deleted, field)), params, unit)

    f: float | Undefined = ZERO_TOTAL if flat else ZERO_WITHIN if tight else float(seen.f)
    w_tilde = np.divide(
        parts.within, parts.counts - 1, out=np.full(groups, np.nan), where=parts.counts > 1
    )
    corrected = w_tilde[parts.counts > 1]
    results = cast(
        ModelStructure,
        ModelStructure.build(
            ss_total=parts.ss_total,
            ss_within=parts.ss_within,
            ss_between=parts.ss_total - parts.ss_within,
            **{field: estimated(field) for field in PAIRED},
            pseudo_f=f,
            **tests,
            w_tilde_mean=float(corrected.mean()),
            bca=_bca(seen, boot, deleted, params, unit, flat),
            dispersion=_dispersion(context, name, source, parts, labelled, params, flat),
            groups=_listed(parts, w_tilde, labelled.levels, params.listed_groups),
            performance=_performance(inputs, labelled.groups, w_tilde, params),
            dose=_dose(inputs, source, labelled.groups, params, threads),
        ),
    )
    return _Fitted(parts, seen, deleted, boot, unit, results)


def _source(data: Dataset, normalise: bool) -> Source:
    if normalise:
        return Directions(data.vectors)
    rows = Stored(data.vectors)
    longest = max(
        float(norms(rows.take(slice(start, start + 4096))).max())
        for start in range(0, rows.n, 4096)
    )
    if safe_scale(longest) != 1:
        raise InvalidRequest(
            f"Rows of length {longest:.3g} cannot be squared in float64; scale them, or use "
            "`normalise`."
        )
    return rows


def _p_value(test: PermutationTest | Undefined, level: float) -> PValue:
    if isinstance(test, Undefined):
        return PValue.build(  # type: ignore[no-any-return]
            estimate=test, interval=test, exceedances=0, permutations=0, exact=False, p_min=1.0
        )
    exact = Undefined(code="exact", message="All distinct labellings were looked at.")
    interval: Interval | Undefined = exact
    if test.low is not None and test.high is not None:
        interval = Interval(
            low=test.low,
            high=test.high,
            level=level,
            method="clopper_pearson",
            unit="permutation",
            resamples=test.permutations,
        )
    return PValue.build(  # type: ignore[no-any-return]
        estimate=test.p,
        interval=interval,
        exceedances=test.exceedances,
        permutations=test.permutations,
        exact=test.exact,
        p_min=test.p_min,
    )


def _between(
    context: Context,
    name: str,
    source: Source,
    parts: Partition,
    design: Design,
    params: GroupStructureParams,
    flat: bool,
) -> dict[str, Any]:
    """R2's expectation, F2 and the permutation tests."""
    if flat:
        none = _p_value(ZERO_TOTAL, params.level)
        keys = ("r2_expected", "r2_adjusted", "pseudo_f_expected", "pseudo_f2")
        return {**dict.fromkeys(keys, ZERO_TOTAL), "p": none, "p_f2": none}
    with context.stage(f"{name}_permutations") as step:
        x = slabs(source, parts.mean, design, context.threads)
        squares = _squares(source, parts.mean, design, context.threads)
        tests = between_test(
            x, squares, design, parts.ss_total, params.permutations, context.seed, params.level,
            context.threads, step,
        )  # fmt: skip
        expected = expected_between(x, design)
    unequal = Undefined(
        code="unequal_units", message="Units of one stratum differ in size: no closed form."
    )
    n, groups = parts.n, len(parts.counts)
    share: float | Undefined = unequal if expected is None else expected / parts.ss_total
    sizes = parts.counts.astype(np.float64)
    lone = Undefined(code="singletons", message="F2 needs two rows in every group.")
    f2: float | Undefined = lone
    if tests.f2 is not None:
        pooled = float(((1 - sizes / n) * parts.within / (sizes - 1)).sum())
        f2 = (parts.ss_total - parts.ss_within) / pooled
    elif (sizes > 1).all():
        f2 = lone = ZERO_WITHIN
    r2 = (parts.ss_total - parts.ss_within) / parts.ss_total
    return {
        "r2_expected": share,
        "r2_adjusted": share if isinstance(share, Undefined) else (r2 - share) / (1 - share),
        "pseudo_f_expected": share
        if isinstance(share, Undefined)
        else share / (groups - 1) * (n - groups) / (1 - share),
        "p": _p_value(tests.f, params.level),
        "pseudo_f2": f2,
        "p_f2": _p_value(tests.f2 or lone, params.level),
    }


def _squares(source: Source, mean: Floats, design: Design, threads: int) -> Floats:
    """Sum of squared deviations of each item's rows, (u,)."""
    items = Units(design.rows, design.starts, "group")
    found = []
    for span in items.chunks(source.d):
        total = []
        for piece in items.pieces(*span, source.d):
            x = source.take(piece) - mean
            total.append(np.einsum("ij,ij->i", x, x))
        starts = items.starts[span[0] : span[1]] - items.starts[span[0]]
        found.append(np.add.reduceat(np.concatenate(total), starts))
    return np.concatenate(found)


def _bca(
    seen: Decomposition,
    boot: Decomposition | None,
    deleted: Decomposition,
    params: GroupStructureParams,
    unit: str,
    flat: bool,
) -> BcaIntervals:
    if flat:
        return BcaIntervals.build(**dict.fromkeys(TESTED, ZERO_TOTAL))  # type: ignore[no-any-return]
    if boot is None:
        none = Undefined(
            code="not_resampled",
            message=f"Made for groups, {BCA_GROUPS} or more, where `bootstrap` is on and affordable.",
        )
        return BcaIntervals.build(**dict.fromkeys(TESTED, none))  # type: ignore[no-any-return]
    still = Undefined(code="no_spread", message="The resamples do not vary around the estimate.")
    return BcaIntervals.build(  # type: ignore[no-any-return]
        **{
            field: bca(
                float(getattr(seen, field)),
                np.asarray(getattr(boot, field)),
                np.asarray(getattr(deleted, field)),
                params.level,
            )
            or still
            for field in TESTED
        }
    )


def _dispersion(
    context: Context,
    name: str,
    source: Source,
    parts: Partition,
    labelled: _Labelled,
    params: GroupStructureParams,
    flat: bool,
) -> DispersionTest:
    sizes = parts.counts
    lone = int(np.count_nonzero(sizes == 1))

    def undefined(reason: Undefined) -> DispersionTest:
        return DispersionTest.build(  # type: ignore[no-any-return]
            f=reason,
            p=_p_value(reason, params.level),
            f_spatial_median=reason,
            excluded_singletons=lone,
        )

    if flat:
        return undefined(ZERO_TOTAL)
    if np.count_nonzero(sizes > 1) < 2:
        return undefined(Undefined(code="too_few_groups", message="Two groups of two rows needed."))
    errors = residuals(source, parts, labelled.groups)
    groups = Units.groups(labelled.groups)
    away = distances(errors, groups, context.threads)
    f = float(_f_of_several(away, groups)[0])
    if not np.isfinite(f):
        return undefined(ZERO_WITHIN)
    medians = median_distances(source, groups)
    large = Undefined(code="too_large", message="Spatial medians are found up to 2e7 numbers.")
    return DispersionTest.build(  # type: ignore[no-any-return]
        f=f,
        p=_p_value(_dispersion_p(context, name, source, parts, labelled, params), params.level),
        f_spatial_median=large if medians is None else float(_f_of_several(medians, groups)[0]),
        excluded_singletons=lone,
    )


def _f_of_several(values: Floats, groups: Units) -> Floats:
    """F over the groups of two rows or more; values in group order."""
    kept = groups.counts > 1
    starts = np.concatenate([[0], np.cumsum(groups.counts[kept])])
    return anova_f(values[np.repeat(kept, groups.counts)][None], starts)


def _dispersion_p(
    context: Context,
    name: str,
    source: Source,
    parts: Partition,
    labelled: _Labelled,
    params: GroupStructureParams,
) -> PermutationTest | Undefined:
    if not params.dispersion_test:
        return Undefined(code="not_requested", message="`dispersion_test` is off.")
    if labelled.units is not None:
        return Undefined(code="units_given", message="Rows of a unit cannot be exchanged singly.")
    large = parts.counts >= FEWEST_DISPERSED
    if np.count_nonzero(large) < 2:
        return Undefined(
            code="groups_too_small",
            message=f"The p needs two groups of {FEWEST_DISPERSED} rows or more.",
        )
    kept = np.flatnonzero(large[labelled.groups])
    codes = np.unique(labelled.groups[kept], return_inverse=True)[1].astype(np.int64)
    strata = None
    if labelled.strata is not None:
        strata = np.unique(labelled.strata[kept], return_inverse=True)[1].astype(np.int64)
    design = Design.of(codes, strata, None)
    errors = residuals(source, parts, labelled.groups).of(kept)
    with context.stage(f"{name}_dispersion") as step:
        return dispersion_test(
            errors, design, params.permutations, context.seed, params.level, context.threads, step
        )


def _listed(
    parts: Partition, w_tilde: Floats, levels: tuple[Label, ...], most: int
) -> list[GroupRow]:
    order = np.argsort(-np.nan_to_num(w_tilde, nan=-1.0), kind="stable")[:most]
    single = Undefined(code="singleton", message="One row has no dispersion.")
    return [
        GroupRow.build(
            label=levels[g],
            n=int(parts.counts[g]),
            w=float(parts.within[g] / parts.counts[g]),
            w_tilde=single if np.isnan(w_tilde[g]) else float(w_tilde[g]),
        )
        for g in order
    ]


def _performance(
    inputs: GroupStructureInputs,
    groups: NDArray[np.int64],
    w_tilde: Floats,
    params: GroupStructureParams,
) -> Correlation | Undefined:
    if inputs.response is None:
        return Undefined(code="not_given", message="No `response` was given.")
    values = inputs.response.numbers
    mean = np.bincount(groups, values) / np.bincount(groups)
    used = np.isfinite(w_tilde)
    count = int(used.sum())
    if count < 4 or np.ptp(mean[used]) == 0 or np.ptp(w_tilde[used]) == 0:
        return Undefined(code="no_spread", message="Four groups that vary in both are needed.")
    rho = float(stats.spearmanr(w_tilde[used], mean[used]).statistic)
    interval: Any = fisher_z(rho, count, params.level, "group")
    if params.census or interval is None:
        interval = Undefined(code="census" if params.census else "at_bound", message="No interval.")
    needed = groups_for_correlation(rho) if 0 < abs(rho) < 1 else None
    return Correlation.build(  # type: ignore[no-any-return]
        spearman=Estimate.build(estimate=rho, interval=interval),
        groups=count,
        groups_needed=needed
        if needed is not None
        else Undefined(code="no_such_number", message="At a correlation of 0 or 1."),
    )


def _dose(
    inputs: GroupStructureInputs,
    source: Source,
    groups: NDArray[np.int64],
    params: GroupStructureParams,
    threads: int,
) -> DoseResponse | Undefined:
    if inputs.levels is None:
        return Undefined(code="not_given", message="No `levels` were given.")
    names, codes = _ordered(inputs.levels)
    found = dose(source, groups, codes, threads)
    steps = adjacent(found.table, params.level)
    blocks, count = found.table.shape
    first = Undefined(code="first_level", message="Nothing comes before the first level.")
    few = Undefined(code="too_few_groups", message=f"{blocks} groups have rows at every level.")

    def step(i: int) -> Estimate:
        if i == 0:
            return cast(Estimate, Estimate.build(estimate=first, interval=first))
        value, interval = steps[i - 1]
        return cast(
            Estimate,
            Estimate.build(estimate=value if np.isfinite(value) else few, interval=interval or few),
        )

    def known(value: float, reason: str) -> float | Undefined:
        missing = Undefined(code="one_row_cells", message=reason)
        return float(value) if np.isfinite(value) else missing

    levels = [
        DoseLevel.build(
            level=names[i],
            cells=int(found.cells[i]),
            w_tilde=known(found.pooled[i], "Every cell has one row."),
            w_tilde_mean=known(found.mean[i], "Every cell has one row."),
            from_first=known(found.from_first[i], "No group has rows here and at the first level."),
            step=step(i),
        )
        for i in range(count)
    ]
    intervals = [interval for _, interval in steps]
    trend: OrderedTrend | Undefined = Undefined(
        code="unequal_cells",
        message="Needs three levels, and groups with all of them in cells of one size of two or more.",
    )
    if count >= FEWEST_LEVELS and found.equal_cells:
        tested = page(found.table)
        trend = OrderedTrend(
            statistic=tested.statistic, z=tested.z, p=tested.p, blocks=tested.blocks
        )
    return DoseResponse.build(  # type: ignore[no-any-return]
        levels=levels,
        ordered_trend=trend,
        monotone=few
        if any(interval is None for interval in intervals)
        else all(interval.low > 0 for interval in intervals if interval is not None),
    )


def _ordered(column: Labels) -> tuple[list[Label], NDArray[np.int64]]:
    """Levels in order, numbers by size and others by first appearance, and the code of each row."""
    levels, codes = list(column.dense_levels), column.dense
    if all(isinstance(level, int | float) for level in levels):
        order = np.argsort([float(level) for level in levels], kind="stable")
        rank = np.empty(len(levels), dtype=np.int64)
        rank[order] = np.arange(len(levels))
        return [levels[i] for i in order], rank[codes]
    return levels, codes


def _response(column: Labels, groups: NDArray[np.int64], threads: int) -> ResponseStructure:
    values = column.numbers
    if not np.isfinite(values).all():
        raise InvalidRequest("`response` needs a number in every row.")
    parts = partition(Stored(values[:, None]), Units.groups(groups), threads)
    if parts.ss_total == 0:
        return ResponseStructure.build(r2=ZERO_TOTAL, icc1=ZERO_TOTAL)  # type: ignore[no-any-return]
    found = observed(parts)
    return ResponseStructure(r2=float(found.r2), icc1=float(found.icc1))


def _differences(
    fitted: dict[str, _Fitted], params: GroupStructureParams
) -> dict[str, dict[str, Difference]]:
    """Paired differences of all pairs of models, in request order."""
    pairs = [(later, earlier) for earlier, later in combinations(fitted, 2)]
    tests = {field: _paired_tests(fitted, pairs, field, params) for field in TESTED}
    result: dict[str, dict[str, Difference]] = {}
    for i, (later, earlier) in enumerate(pairs):
        one, other = fitted[later], fitted[earlier]
        result.setdefault(later, {})[earlier] = Difference.build(
            **{field: _difference(one, other, field, params) for field in PAIRED},
            **{f"{field}_test": tests[field][i] for field in TESTED},
            scale_dependent=["v", "w_bar"],
        )
    return result


def _difference(
    later: _Fitted, earlier: _Fitted, field: str, params: GroupStructureParams
) -> Estimate:
    values = [getattr(model.results, field).estimate for model in (later, earlier)]
    if None in values:
        return estimate_of(ZERO_TOTAL, np.zeros(0), params, later.unit)
    deleted = np.asarray(getattr(later.deleted, field) - getattr(earlier.deleted, field))
    return estimate_of(values[0] - values[1], deleted, params, later.unit)


def _paired_tests(
    fitted: dict[str, _Fitted],
    pairs: list[tuple[str, str]],
    field: str,
    params: GroupStructureParams,
) -> list[PairedTest]:
    rows = list(_paired(fitted, pairs, field))
    raw = [
        None if len(deleted) < FEWEST_UNITS or params.census or not np.isfinite(deleted).all()
        else t_test(value, jackknife_se(deleted), len(deleted))
        for value, deleted, _ in rows
    ]  # fmt: skip
    together = None
    if rows and all(boot is not None for _, _, boot in rows) and None not in raw:
        errors = np.array([jackknife_se(deleted) for _, deleted, _ in rows])
        resampled = np.stack([cast(Floats, boot) for _, _, boot in rows], axis=1)
        usable = resampled[np.isfinite(resampled).all(axis=1)]
        together = simultaneous(np.array([v for v, _, _ in rows]), usable, errors, params.level)
    none = Undefined(code="not_estimable", message="No spread, or too few units, or a census.")
    return [
        PairedTest.build(
            p=none if p is None else p,
            p_holm=none if adjusted is None else adjusted,
            simultaneous=none if together is None else together[i],
        )
        for i, (p, adjusted) in enumerate(zip(raw, holm(raw), strict=True))
    ]


def _paired(
    fitted: dict[str, _Fitted], pairs: list[tuple[str, str]], field: str
) -> Iterator[tuple[float, Floats, Floats | None]]:
    """Difference, its leave-one-out values and its bootstrap values, by pair."""
    for later, earlier in pairs:
        one, other = fitted[later], fitted[earlier]
        boot = None
        if one.resampled is not None and other.resampled is not None:
            boot = np.asarray(getattr(one.resampled, field) - getattr(other.resampled, field))
        yield (
            float(getattr(one.seen, field) - getattr(other.seen, field)),
            np.asarray(getattr(one.deleted, field) - getattr(other.deleted, field)),
            boot,
        )
