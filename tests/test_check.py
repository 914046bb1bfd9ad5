"""The mechanism around a check: estimates, nulls with reasons, declared measures and inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import Field, ValidationError
from scipy import stats
from threadpoolctl import threadpool_info, threadpool_limits

from service.check import (
    MIB,
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
    vectors,
)
from service.dataset import Dataset, Labels
from service.numerics.resampling import Interval


class Part(Results):
    """A part of the results."""

    share: Estimate | None = measure(low=0, high=1, better="higher", invariance=("orthogonal",))
    """A share."""


class Difference(Results):
    change: Estimate = measure(better="lower")
    """A change."""
    p: PValue | None = measure(low=0, high=1)
    """Its p."""


class Colours(Results):
    n: int
    """Not a measure."""
    hue: float | None = measure(unit="degrees", invariance=("row_scale", "orthogonal"))
    """A hue."""
    bright: Estimate = measure(low=0)
    """A brightness."""
    part: Part
    other: Part | None
    listed: list[float] | None
    """Not a measure."""
    models: dict[str, Part] | None
    differences: dict[str, dict[str, Difference]] | None


class ColoursInputs(Inputs):
    left: Dataset = vectors(rows="pairs", least=3)
    """One side."""
    right: Dataset | None = vectors(rows="pairs", default=None)
    """The other side."""
    apart: Dataset | None = vectors(rows="apart", default=None)
    """Rows of their own."""
    encoders: dict[str, Dataset] = models(rows="pairs", least=2, most=3)
    """Several models."""
    groups: Labels | None = labels(of="left")
    """Labels of the left side."""
    needed: Labels = labels(of="apart", default=...)
    """Labels that must be there."""


class ColoursParams(Params):
    depth: int = Field(default=3, ge=1)
    """How deep."""


@check(
    version=2,
    title="Colours",
    scope=("Says nothing.",),
    sources=("arXiv:0",),
    row_limit=7,
    memory_factor=2.5,
)
def colours(context: Context, inputs: ColoursInputs, params: ColoursParams) -> Colours:
    """Look at colours."""
    limits = {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}
    context.warn("seen", f"{sorted(limits)}", "inputs/left")
    nothing = Undefined(code="no_light", message="It is dark.")
    return Colours.build(  # type: ignore[no-any-return]
        n=inputs.left.n,
        hue=nothing,
        bright=Estimate.build(estimate=1.5, interval=nothing),
        part=Part.build(share=nothing),
        other=nothing,
        listed=nothing,
        models=nothing,
        differences=nothing,
    )


def colours_inputs() -> ColoursInputs:
    rows = Dataset(np.zeros((3, 2)))
    return ColoursInputs(left=rows, encoders={"a": rows}, needed=Labels.of([1, 2, 3]))


def test_a_check_is_read_off_its_function() -> None:
    """Closed form."""
    assert (colours.kind, colours.version, colours.title) == ("colours", 2, "Colours")
    assert colours.description == "Look at colours."
    assert (colours.inputs, colours.params, colours.results) == (
        ColoursInputs,
        ColoursParams,
        Colours,
    )
    assert (colours.scope, colours.sources, colours.row_limit) == (
        ("Says nothing.",),
        ("arXiv:0",),
        7,
    )
    assert colours.memory_bytes(5) == 12 + 512 * MIB


def test_a_function_of_another_shape_is_no_check() -> None:
    """Closed form: the names of the three arguments are fixed."""
    with pytest.raises(TypeError, match="`wrong` must take context, inputs, params"):

        @check(version=1, title="", scope=())
        def wrong(context: Context, params: Params, inputs: Inputs) -> Results:
            return Results()


def test_slots_stand_in_declared_order_and_know_their_row_set() -> None:
    """Closed form."""
    found = [
        (s.name, s.kind, s.required, s.rows, s.of, s.least, s.most, s.description)
        for s in colours.slots
    ]
    assert found == [
        ("left", "vectors", True, "pairs", None, 3, None, "One side."),
        ("right", "vectors", False, "pairs", None, 1, None, "The other side."),
        ("apart", "vectors", False, "apart", None, 1, None, "Rows of their own."),
        ("encoders", "vectors", True, "pairs", None, 2, 3, "Several models."),
        ("groups", "column", False, "pairs", "left", 1, None, "Labels of the left side."),
        ("needed", "column", True, "apart", "apart", 1, None, "Labels that must be there."),
    ]


def test_measures_are_found_at_every_depth_and_nothing_else_is() -> None:
    """Closed form."""
    found = {m.path: m for m in colours.measures}
    assert list(found) == [
        "hue",
        "bright",
        "part.share",
        "other.share",
        "models.{model}.share",
        "differences.{later}.{earlier}.change",
        "differences.{later}.{earlier}.p",
    ]
    hue, share = found["hue"], found["part.share"]
    assert (hue.unit, hue.low, hue.high, hue.better) == ("degrees", None, None, None)
    assert (hue.shape, hue.description) == ("scalar", "A hue.")
    assert hue.invariance == ["row_scale", "orthogonal"]
    assert (share.unit, share.low, share.high, share.better) == ("1", 0, 1, "higher")
    assert (share.shape, share.description) == ("estimated", "A share.")
    assert found["bright"].shape == "estimated"
    assert found["models.{model}.share"].shape == "estimated"
    assert found["differences.{later}.{earlier}.change"].better == "lower"
    assert found["differences.{later}.{earlier}.p"].shape == "p_value"


def test_a_check_runs_with_one_blas_thread_and_gives_the_threads_back() -> None:
    """Compared with what threadpoolctl sees inside and after."""
    np.ones((4, 4)) @ np.ones((4, 4))
    with threadpool_limits(limits=2, user_api="blas"):
        before = [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]
        context = Context()
        colours.run(context, colours_inputs(), ColoursParams())
        after = [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]
    assert before == after
    assert context.warnings[0].message == "[1]"
    assert (context.warnings[0].code, context.warnings[0].where) == ("seen", "inputs/left")


def test_every_null_stands_beside_its_reason() -> None:
    """Closed form, as JSON and back."""
    results = colours.run(Context(), colours_inputs(), ColoursParams())
    data = results.model_dump(mode="json")
    reason = {"code": "no_light", "message": "It is dark."}
    assert data == {
        "undefined": dict.fromkeys(("hue", "other", "listed", "models", "differences"), reason),
        "n": 3,
        "hue": None,
        "bright": {"undefined": {"interval": reason}, "estimate": 1.5, "interval": None},
        "part": {"undefined": {"share": reason}, "share": None},
        "other": None,
        "listed": None,
        "models": None,
        "differences": None,
    }
    assert Colours.model_validate_json(results.model_dump_json()) == results
    assert results.readings() == []


def test_reasons_are_absent_where_nothing_is_null() -> None:
    """Closed form."""
    whole = Estimate.build(
        estimate=1.0,
        interval=Interval(low=0, high=2, level=0.9, method="m", unit="row", resamples=5),
    )
    assert "undefined" not in whole.model_dump()
    assert "undefined" not in whole.model_dump_json()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_none_cannot_be_a_result(value: float) -> None:
    """Closed form: NaN and infinity are unrepresentable."""
    with pytest.raises(ValidationError, match="finite"):
        Estimate.build(estimate=value, interval=Undefined(code="x", message="x"))


def test_results_are_closed_and_frozen() -> None:
    """Closed form."""
    with pytest.raises(ValidationError, match="Extra inputs"):
        Part.build(share=Undefined(code="x", message="x"), other=1)
    part = Part.build(share=Undefined(code="x", message="x"))
    with pytest.raises(ValidationError, match="frozen"):
        part.share = None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"level": 0.4}, "0.5"),
        ({"level": 1}, "less than or equal to 0.999999"),
        ({"depth": 0}, "1"),
        ({"x": 1}, "x"),
    ],
)
def test_parameters_out_of_range_or_unknown_are_refused(
    given: dict[str, Any], message: str
) -> None:
    """Closed form."""
    with pytest.raises(ValidationError, match=message):
        ColoursParams(**given)


def test_an_estimate_carries_the_t_interval_of_its_deleted_values() -> None:
    """Compared with scipy's t interval of a mean."""
    x = np.random.default_rng(1).normal(size=12)
    got = estimate_of(float(x.mean()), (x.sum() - x) / 11, Params(level=0.9), "group")
    low, high = stats.t.interval(0.9, 11, loc=x.mean(), scale=stats.sem(x))
    assert got.interval is not None
    assert (got.interval.low, got.interval.high) == pytest.approx((low, high))
    assert (got.interval.unit, got.interval.resamples, got.interval.level) == ("group", 12, 0.9)
    assert got.estimate == x.mean()
    assert got.undefined == {}


def test_a_share_carries_the_envelope_with_the_exact_interval() -> None:
    """Compared with scipy's exact binomial interval: ten of ten are not certain."""
    got = estimate_of(1.0, np.ones(10), Params(), "row", share=1.0)
    exact = stats.binomtest(10, 10).proportion_ci(0.95, method="exact")
    assert got.interval is not None
    assert (got.interval.low, got.interval.high) == pytest.approx((exact.low, 1))
    assert got.interval.method == "jackknife_t+clopper_pearson"


@pytest.mark.parametrize(
    ("deleted", "params", "unit", "code"),
    [
        ([1.0] * 4, {}, "group", "too_few_groups"),
        ([1.0] * 4, {}, "row", "too_few_rows"),
        ([], {}, "row", "too_few_rows"),
        ([1.0] * 9 + [np.nan], {}, "group", "undefined_without_a_unit"),
        ([1.0] * 9 + [np.inf], {}, "row", "undefined_without_a_unit"),
        ([1.0] * 9, {"census": True}, "row", "census"),
    ],
)
@pytest.mark.parametrize("share", [None, 0.5])
def test_an_interval_that_cannot_be_made_is_null_with_a_reason(
    deleted: list[float], params: dict[str, Any], unit: str, code: str, share: float | None
) -> None:
    """Closed form: the estimate stays."""
    got = estimate_of(0.5, np.array(deleted), Params(**params), unit, share)
    assert (got.estimate, got.interval) == (0.5, None)
    assert list(got.undefined) == ["interval"]
    assert got.undefined["interval"].code == code


def test_five_units_are_enough_for_an_interval() -> None:
    """Closed form: four are not."""
    assert estimate_of(0.5, np.arange(5.0), Params(), "row").interval is not None


def test_an_undefined_value_has_no_interval_either() -> None:
    """Closed form: one reason for both."""
    reason = Undefined(code="no_spread", message="Nothing varies.")
    got = estimate_of(reason, np.ones(9), Params(), "row")
    assert (got.estimate, got.interval) == (None, None)
    assert got.undefined == {"estimate": reason, "interval": reason}


def test_an_estimate_writes_itself_with_its_interval() -> None:
    """Closed form."""
    some = estimate_of(0.5, np.full(9, 0.5), Params(), "row")
    assert f"{some:.2f}" == "0.50 [0.50, 0.50]"
    assert f"{estimate_of(0.5, np.ones(3), Params(), 'row'):.3f}" == "0.500"
    nothing = estimate_of(Undefined(code="x", message="x"), np.ones(3), Params(), "row")
    assert f"{nothing:.3f}" == "undefined"


def test_an_estimate_taken_the_other_way_round_turns_its_interval() -> None:
    """Closed form: low and high exchange with their signs; an undefined one stays."""
    some = estimate_of(0.5, np.arange(9.0), Params(), "row")
    turned = -some
    assert (turned.estimate, turned.undefined) == (-0.5, {})
    assert turned.interval is not None
    assert some.interval is not None
    assert (turned.interval.low, turned.interval.high) == (-some.interval.high, -some.interval.low)
    assert -turned == some
    bare = estimate_of(0.5, np.ones(3), Params(), "row")
    assert (-bare).estimate == -0.5
    assert (-bare).interval is None
    assert (-bare).undefined == bare.undefined
    nothing = estimate_of(Undefined(code="x", message="x"), np.ones(3), Params(), "row")
    assert -nothing == nothing


def test_stages_add_up_their_time_and_tell_their_progress() -> None:
    """Counted."""
    told: list[tuple[str, int, int]] = []
    context = Context(progress=lambda stage, done, total: told.append((stage, done, total)))
    for _ in range(2):
        with context.stage("work") as step:
            step(1, 2)
    assert told == [("work", 0, 1), ("work", 1, 2)] * 2
    assert list(context.stages) == ["work"]
    assert context.stages["work"] >= 0


def test_contexts_share_no_lists() -> None:
    """Closed form."""
    Context().warn("a", "b", "c")
    assert Context().warnings == []
    assert Context().scope == []
