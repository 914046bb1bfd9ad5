"""`seed_contrasts` against the digits of a published study, scipy, statsmodels and hand counts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from service.check import Context
from service.checks.seed_contrasts import seed_contrasts
from service.dataset import Dataset, Labels
from service.errors import AssayError
from service.gate import Region, read_policy
from service.gate.judging import judge_estimate

NEIGHBOURS = [21.035, 5.169, 23.469, 25.815, 20.436]
PROBE = [0.175, -0.175, 0.387, 0.562, 0.538]
ONE: dict[str, Any] = {"contrasts": [{"name": "c", "a": "A", "b": "B"}], "metrics": ["m"]}


def table(ids: list[str] | None = None, **columns: list[Any]) -> Dataset:
    return Dataset(
        None,
        None if ids is None else tuple(ids),
        {name: Labels.of(values) for name, values in columns.items()},
    )


def asked(runs: Dataset, params: dict[str, Any]) -> tuple[Any, Context]:
    context = Context()
    inputs = seed_contrasts.inputs(runs=runs)
    return seed_contrasts.run(context, inputs, seed_contrasts.params(**params)), context


def pairs(
    a: list[Any], b: list[Any], seeds: list[Any] | None = None, names: str = "AB"
) -> dict[str, list[Any]]:
    """Columns of two conditions with these values."""
    seeds = seeds or list(range(len(a)))
    return {
        "condition": [names[0]] * len(a) + [names[1]] * len(b),
        "seed": [*seeds, *seeds[: len(b)]],
        "m": [*a, *b],
    }


def one(found: Any) -> Any:
    return found.contrasts["c"].metrics["m"]


def refused(runs: Dataset, params: dict[str, Any]) -> AssayError:
    with pytest.raises(AssayError) as caught:
        asked(runs, params)
    assert str(caught.value).endswith(".")
    assert caught.value.faults
    return caught.value


PUBLISHED = {
    "accuracy, stop-gradient without SIGReg": (PROBE, "0.30 -0.08 0.68"),
    "accuracy, stop-gradient without projector": (
        [0.525, 0.925, 0.075, 0.887, 0.838], "0.65 0.21 1.09",
    ),
    "accuracy, stop-gradient with projector": (
        [0.412, 0.075, 0.613, 0.613, 1.000], "0.54 0.12 0.96",
    ),
    "accuracy, projector with stop-gradient": (
        [-0.038, 0.025, 0.450, 0.100, 0.375], "0.18 -0.09 0.45",
    ),
    "accuracy, projector without stop-gradient": (
        [0.075, 0.875, -0.087, 0.375, 0.213], "0.29 -0.17 0.75",
    ),
    "P@10, stop-gradient without SIGReg": (NEIGHBOURS, "19.18 9.10 29.27"),
    "P@10, stop-gradient without projector": (
        [0.148, 0.071, 0.841, 1.474, -1.154], "0.28 -0.94 1.50",
    ),
    "P@10, stop-gradient with projector": (
        [2.323, 1.759, 1.709, 1.655, 1.058], "1.70 1.14 2.26",
    ),
    "P@10, projector with stop-gradient": (
        [0.376, 0.162, 0.078, 0.804, 0.936], "0.47 -0.00 0.95",
    ),
    "P@10, projector without stop-gradient": (
        [-1.799, -1.525, -0.790, 0.623, -1.275], "-0.95 -2.14 0.23",
    ),
}  # fmt: skip
"""Differences by seed in percentage points, and the mean and interval a study of collapse prints."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_differences_give_the_published_intervals(name: str) -> None:
    """All ten contrasts of the study, as printed."""
    differences, printed = PUBLISHED[name]
    found = one(asked(table(**pairs(differences, [0.0] * 5)), ONE)[0])
    interval = found.mean.interval
    assert f"{found.mean.estimate:.2f} {interval.low:.2f} {interval.high:.2f}" == printed
    assert (interval.method, interval.unit, interval.resamples) == ("student_t", "seed", 5)
    assert [row.difference for row in found.differences] == differences


def test_a_published_interval_is_right_to_four_digits() -> None:
    """19.1848 [9.1023, 29.2673], by hand from the differences."""
    found = one(asked(table(**pairs(NEIGHBOURS, [0.0] * 5)), ONE)[0]).mean
    ends = (found.estimate, found.interval.low, found.interval.high)
    assert ends == pytest.approx((19.1848, 9.1023, 29.2673), abs=5e-5)


@given(
    scores=st.lists(
        st.lists(st.integers(-1000, 1000), min_size=6, max_size=6), min_size=8, max_size=8
    ),
    level=st.sampled_from([0.8, 0.95]),
)
def test_tests_and_their_adjustment_are_those_of_scipy_and_statsmodels(
    scores: list[list[int]], level: float
) -> None:
    """Four conditions, two metrics, three contrasts; a test without spread stays in the family."""
    names, seeds = ["w", "x", "y", "z"], list(range(6))
    columns: dict[str, list[Any]] = {
        "condition": [name for name in names for _ in seeds],
        "seed": seeds * 4,
        "m1": [value for some in scores[:4] for value in some],
        "m2": [value / 8 for some in scores[4:] for value in some],
    }
    wanted = [("w", "x"), ("y", "z"), ("w", "z")]
    found, _ = asked(
        table(**columns),
        {
            "contrasts": [{"a": a, "b": b} for a, b in wanted],
            "metrics": ["m1", "m2"],
            "level": level,
        },
    )
    known, expected = [], []
    for place, (a, b) in enumerate(wanted, start=1):
        for metric in ("m1", "m2"):
            rows = np.array(columns[metric]).reshape(4, 6)
            one_side, other = rows[names.index(a)], rows[names.index(b)]
            measured = found.contrasts[f"contrast_{place}"].metrics[metric]
            if np.ptp(one_side - other) == 0:
                assert measured.p is None
                expected.append(1.0)
            else:
                test = stats.ttest_rel(one_side, other)
                limits = test.confidence_interval(level)
                assert measured.p == pytest.approx(test.pvalue, rel=1e-9)
                assert measured.mean.interval.low == pytest.approx(limits.low, rel=1e-9, abs=1e-9)
                assert measured.mean.interval.high == pytest.approx(limits.high, rel=1e-9, abs=1e-9)
                expected.append(test.pvalue)
            known.append(measured.p_holm)
    adjusted = multipletests(expected, method="holm")[1]
    assert found.family == 6
    for got, want in zip(known, adjusted, strict=True):
        assert got is None or got == pytest.approx(want, rel=1e-9)


def test_holm_by_hand_over_contrasts_and_metrics() -> None:
    """Four tests p1 < p2 < p3 < p4 become 4 p1, 3 p2, 2 p3, p4, none below the one before."""
    rng = np.random.default_rng(3)
    columns = {
        "condition": [*"a" * 6, *"b" * 6, *"c" * 6],
        "seed": list(range(6)) * 3,
        "m1": rng.normal(size=18).tolist(),
        "m2": (np.repeat([0.0, 1.2, 2.5], 6) + rng.normal(size=18)).tolist(),
    }
    contrasts = [{"a": "b", "b": "a"}, {"a": "c", "b": "a"}]
    found, _ = asked(table(**columns), {"contrasts": contrasts, "metrics": ["m1", "m2"]})
    both = sorted(
        (metric.p, metric.p_holm)
        for contrast in found.contrasts.values()
        for metric in contrast.metrics.values()
    )
    raw = [p for p, _ in both]
    assert raw[0] < 0.05
    steps = np.maximum.accumulate(np.minimum(np.array(raw) * [4, 3, 2, 1], 1))
    assert [p for _, p in both] == pytest.approx(steps.tolist())


def test_equal_differences_have_no_interval_and_no_test() -> None:
    """Zero observed variance never means zero width, and a gate says so."""
    found, context = asked(table(**pairs([0.3, 0.4, 0.5], [0.1, 0.2, 0.3])), ONE)
    metric = one(found)
    assert metric.mean.estimate == pytest.approx(0.2)
    assert metric.sd == 0
    for key in ("p", "p_holm", "effect", "seeds_needed"):
        assert getattr(metric, key) is None
        assert metric.undefined[key].code == "zero_variance"
    reason = metric.mean.undefined["interval"]
    assert "zero observed variance never means zero width" in reason.message
    assert {warning.code for warning in context.warnings} == {"few_seeds", "zero_variance"}
    assert "No test" in found.readings()[0]
    (measure,) = [one for one in seed_contrasts.measures if one.path.endswith("}.mean")]
    seen = judge_estimate(
        Region(low=0), measure, metric.mean, metric.mean, seed_contrasts.params(**ONE)
    )
    assert seen.verdict == "inconclusive"
    assert "zero width" in seen.reason


@pytest.mark.parametrize(("seeds", "quantile"), [(2, 12.706), (3, 4.303), (4, 3.182)])
def test_few_seeds_are_warned_of_with_the_width_they_cost(seeds: int, quantile: float) -> None:
    """Student's table: 12.706 standard errors of 1 degree of freedom; five seeds pass in silence."""
    a = [1.0, 3.0, 2.0, 5.0][:seeds]
    found, context = asked(table(**pairs(a, [0.0] * seeds)), ONE)
    interval = one(found).mean.interval
    error = np.std(a, ddof=1) / np.sqrt(seeds)
    assert interval.high - np.mean(a) == pytest.approx(quantile * error, rel=2e-4)
    (warning,) = context.warnings
    assert warning.code == "few_seeds"
    assert f"{quantile:.3g} standard errors" in warning.message
    _, context = asked(table(**pairs(NEIGHBOURS, [0.0] * 5)), ONE)
    assert context.warnings == []
    _, context = asked(table(**pairs(a, [0.0] * seeds)), {**ONE, "census": True})
    assert context.warnings == []  # no interval, whose width could be said


def test_pairs_are_matched_by_seed_in_any_order_of_rows() -> None:
    """Shuffled rows, seeds as words: the same differences by seed, bit for bit the same numbers."""
    columns = pairs([5.0, 1.0, 4.0], [2.0, 3.0, 0.5], ["s1", "s2", "s3"])
    straight = one(asked(table(**columns), ONE)[0])
    order = np.random.default_rng(0).permutation(6)
    moved = {name: [values[i] for i in order] for name, values in columns.items()}
    shuffled = one(asked(table(**moved), ONE)[0])
    by_seed = {row.seed: row.difference for row in straight.differences}
    assert by_seed == {"s1": 3.0, "s2": -2.0, "s3": 3.5}
    assert {row.seed: row.difference for row in shuffled.differences} == by_seed
    for key in ("mean", "sd", "p", "p_holm", "effect"):
        assert getattr(shuffled, key) == getattr(straight, key)


@pytest.mark.parametrize(
    ("columns", "params", "code", "pointer", "message", "rows"),
    [
        (
            pairs([1, 2, 3], [1, 2]), {}, "ids-mismatch",
            "/params/contrasts/0/b", "`B` was not run", ["2"],
        ),
        (
            pairs([1, 2], [1, 2], [7, 8]) | {"seed": [7, 8, 8, 9]}, {}, "ids-mismatch",
            "/params/contrasts/0/a", "`A` was not run with these seeds", ["9"],
        ),
        (pairs([1], [1]), {}, "too-few-groups", "/params/contrasts/0", "more seeds", None),
        (
            pairs([1, 2, 3], [1, 2, 3]) | {"seed": [0, 1, 1, 0, 1, 2]}, {}, "duplicate-ids",
            "/inputs/runs", "first repeated: `A`, seed 1", ["2"],
        ),
        (
            pairs([1, 2], [None, 2]), {}, "missing-labels", "/inputs/runs",
            "column `m` is empty in these rows", ["2"],
        ),
        (
            pairs([1, 2], [2, 2]) | {"seed": [0, None, 0, 1]}, {}, "missing-labels",
            "/inputs/runs", "column `seed` is empty in these rows", ["1"],
        ),
        (
            pairs(["1", "x"], ["2", "3"]), {}, "invalid-request", "/params/metrics/0",
            "The column needs numbers; it holds `x`.", None,
        ),
        (
            pairs(["1", "1e999"], ["2", "3"]), {}, "non-finite-rows", "/params/metrics/0",
            "a number between -1e+150 and 1e+150 is needed", ["1"],
        ),
        (
            pairs(["1", "nan"], ["2", "3"]), {}, "invalid-request", "/params/metrics/0",
            "The column needs numbers; it holds `nan`.", None,
        ),
        (
            pairs([1, 2], [2, 2]), {"contrasts": [{"a": "A", "b": "C"}]}, "invalid-request",
            "/params/contrasts/0/b", "no condition `C`; known: A, B", None,
        ),
        (
            {**pairs([1, 2], [2, 3]), "condition": ["stop_grad"] * 2 + ["control"] * 2},
            {"contrasts": [{"a": "stopgrad", "b": "control"}]}, "invalid-request",
            "/params/contrasts/0/a", "no condition `stopgrad`; did you mean `stop_grad`?", None,
        ),
        (
            {**pairs([1, 2], [2, 3]), "condition": [1, 1, 2, 2]},
            {"contrasts": [{"a": "1", "b": 2}]}, "invalid-request", "/params/contrasts/0/a",
            "`1` is a int in the table and a str here", None,
        ),
        (
            pairs([1, 2], [2, 2]), {"metrics": ["mm"]}, "invalid-request", "/params/metrics/0",
            "no column `mm`; did you mean `m`?", None,
        ),
        (
            pairs([1, 2], [2, 2]), {"seed": "sed"}, "invalid-request", "/params/seed",
            "no column `sed`; did you mean `seed`?", None,
        ),
        (
            pairs([1, 2], [2, 2]), {"metrics": []}, "invalid-request", "/params/metrics",
            "name some of: m", None,
        ),
        (
            pairs([1, 2], [2, 2]), {"contrasts": []}, "invalid-request", "/params/contrasts",
            'declare some, [{"a": "A", "b": "B"}] say', None,
        ),
    ],
)  # fmt: skip
def test_what_is_no_table_of_matched_runs_is_refused_by_place(
    columns: dict[str, list[Any]],
    params: dict[str, Any],
    code: str,
    pointer: str,
    message: str,
    rows: list[str] | None,
) -> None:
    error = refused(table(**columns), {**ONE, **params})
    fault = error.faults[0]
    assert (error.code, fault.pointer, fault.rows) == (code, pointer, rows)
    assert message in fault.message


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"contrasts": [{"a": "A", "b": "A"}]}, "compared with itself"),
        ({"contrasts": [{"a": "A", "b": "B"}, {"a": "B", "b": "A"}]}, "the same conditions"),
        (
            {"contrasts": [{"name": "x", "a": "A", "b": "B"}, {"name": "x", "a": "A", "b": "C"}]},
            "contrast `x` is given twice",
        ),
        ({"metrics": ["P@10 (%)"]}, "give it a name"),
        ({"metrics": ["m", {"column": "n", "name": "m"}]}, "metric `m` is given twice"),
        ({"metrics": [{"column": "seed"}]}, "column `seed` is given twice"),
    ],
)
def test_params_that_contradict_themselves_are_refused(params: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        seed_contrasts.params(**params)


def test_runs_of_other_conditions_are_left_alone() -> None:
    """A reference with other seeds, without a metric, and run twice; it is counted and not judged."""
    columns = pairs([1.0, 4.0], [2.0, 2.0])
    for name, values in (("condition", ["ema"] * 2), ("seed", [9, 9]), ("m", [None, "none"])):
        columns[name] = columns[name] + values
    found, _ = asked(table(**columns), ONE)
    assert (found.runs, found.unused) == (4, 2)
    assert one(found).mean.estimate == 0.5


def test_rows_without_a_cell_are_dropped_where_asked_for() -> None:
    """Both runs of the seed have to go: half a pair is refused."""
    columns = pairs([1.0, 4.0, None], [2.0, 2.0, None])
    found, context = asked(table(**columns), {**ONE, "on_bad_rows": "drop"})
    assert (found.runs, found.unused, one(found).mean.estimate) == (4, 0, 0.5)
    assert context.warnings[0].message.startswith("2 runs dropped")
    half = pairs([1.0, 4.0, None], [2.0, 2.0, 3.0])
    assert refused(table(**half), {**ONE, "on_bad_rows": "drop"}).code == "ids-mismatch"


def test_a_census_has_no_interval_and_no_test() -> None:
    found = one(asked(table(**pairs(NEIGHBOURS, [0.0] * 5)), {**ONE, "census": True})[0])
    assert (found.p, found.p_holm, found.mean.interval) == (None, None, None)
    assert found.undefined["p"].code == "census"
    assert found.effect == pytest.approx(2.3626, abs=1e-4)


def test_rows_are_named_by_their_ids() -> None:
    """Where the table has some."""
    ids = ["run-a", "run-b", "run-c", "run-d"]
    error = refused(table(ids, **pairs([1, None], [1, 2])), ONE)
    assert error.faults[0].rows == ["run-b"]


def request(columns: dict[str, Any], **params: Any) -> dict[str, Any]:
    return {
        "kind": "seed_contrasts",
        "inputs": {"runs": {"columns": columns}},
        "params": {**ONE, **params},
    }


@pytest.mark.parametrize("values", [PROBE, [1e150, -1e150, 1e19, -3e20, 7.5]])
def test_inline_and_uploaded_tables_give_one_answer(
    values: list[float], store: Any, ended: Any, services: Any
) -> None:
    """CSV cells are strings and numbers are read from them; only the labels keep their type."""
    text = "condition,seed,m\n" + "".join(
        f"{name},{seed},{value}\n"
        for name, some in (("A", values), ("B", [0] * 5))
        for seed, value in enumerate(some)
    )
    uploaded = ended({**request({}), "inputs": {"runs": {"dataset": store(text).id}}})
    inline = ended(request(pairs(values, [0] * 5)))
    reports = []
    for job in (uploaded, inline):
        assert job.problem is None
        reports.append(json.loads(services.reports.get("default", job.request_digest)))
    one, other = (report["results"]["contrasts"]["c"]["metrics"]["m"] for report in reports)
    assert one["mean"] == other["mean"]
    assert [row["seed"] for row in one["differences"]] == [*"01234"]
    assert [row["seed"] for row in other["differences"]] == [0, 1, 2, 3, 4]
    assert reports[0]["inputs"]["runs"]["columns"] == ["condition", "seed", "m"]


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        (pairs([1, 2, 3], [1, 2]), "ids-mismatch"),
        (pairs([1], [1]), "too-few-rows"),
        (pairs([1, 2], [None, 2]), "missing-labels"),
        (pairs([1, 2], ["x", 2]), "invalid-request"),
        ({"condition": ["A"] * 4}, "invalid-request"),
    ],
)
def test_the_table_is_judged_on_submission(columns: Any, code: str, ended: Any) -> None:
    """No job is made of it."""
    with pytest.raises(AssayError) as caught:
        ended(request(columns))
    assert caught.value.code == code


def test_a_table_of_too_many_rows_and_vectors_without_columns_are_refused(
    store: Any, ended: Any
) -> None:
    many = pairs(list(range(1500)), list(range(1500)))
    with pytest.raises(AssayError, match="at most 2000"):
        ended(request(many))
    bare = store(np.eye(4))
    with pytest.raises(AssayError, match="has no columns"):
        ended({**request({}), "inputs": {"runs": {"dataset": bare.id}}})


POLICY: dict[str, Any] = {
    "version": 1, "name": "training", "inputs": {"runs": "table"},
    "checks": {
        "seeds": {
            "kind": "seed_contrasts", "inputs": {"runs": "runs"},
            "params": {
                "contrasts": [{"name": "new", "a": "A", "b": "B"}],
                "metrics": [{"column": "m", "name": "p10"}],
            },
        }
    },
    "rules": [{"measure": "seeds.contrasts.new.metrics.p10.mean", "at_least": 0}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "verdict", "needed"),
    [(NEIGHBOURS, "pass", None), ([-v for v in NEIGHBOURS], "fail", None), (PROBE, "inconclusive", 11)],
)  # fmt: skip
def test_a_gate_judges_the_mean_of_a_contrast(
    values: list[float], verdict: str, needed: int | None, door_gate: Callable[..., Any]
) -> None:
    """By its interval; where it is open, the seeds statsmodels' noncentral t asks for."""
    (rule,) = door_gate(POLICY, {"runs": {"columns": pairs(values, [0.0] * 5)}}).rules
    assert rule.verdict == verdict
    assert (rule.needed and rule.needed.count) == needed
    if needed is not None:
        from statsmodels.stats.power import TTestPower

        effect = float(np.mean(values) / np.std(values, ddof=1))
        assert TTestPower().power(effect, needed, 0.05) >= 0.8
        assert TTestPower().power(effect, needed - 1, 0.05) < 0.8


@pytest.fixture
def door_gate(services: Any) -> Callable[..., Any]:
    """Run a gate to its verdict."""
    from service.gating import read_gate, run_gate
    from service.operations import perform

    def run(policy: Any, inputs: Any) -> Any:
        started = run_gate(services, "default", policy, inputs, {})
        for job in started.jobs.values():
            perform(services, job)
        return read_gate(services, "default", started.id)

    return run


def test_a_policy_names_contrasts_and_metrics_and_gets_suggestions() -> None:
    wrong = {"measure": "seeds.contrasts.new.metrics.p1.mean", "at_least": 0}
    with pytest.raises(AssayError) as caught:
        read_policy({**POLICY, "rules": [wrong]})
    assert "did you mean `contrasts.new.metrics.p10.mean`?" in caught.value.faults[0].message
    other = {**POLICY, "inputs": {"runs": "vectors"}}
    with pytest.raises(AssayError) as caught:
        read_policy(other)
    assert "this role takes table" in caught.value.faults[0].message
