"""The linear probe against scikit-learn's pipeline, intervals by hand, scipy and stored readings."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, recall_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from service.check import Context
from service.checks.compression import compression
from service.checks.linear_probe import linear_probe
from service.checks.linear_probe.dealing import dealt
from service.checks.stress_response import stress_response
from service.dataset import Dataset, Labels
from service.errors import InvalidRequest, MissingLabels, ShapeMismatch, TooFewGroups, TooFewRows
from service.gating import read_gate, run_gate
from service.operations import Services, perform, submit
from service.request import parse_request

Array = NDArray[Any]
MODELS = ["minilm", "minilm_int8", "e5small_q4", "use_multilingual"]
RANDOM = np.random.default_rng(82)
CENTRES = RANDOM.normal(size=(4, 8))
CODES = RANDOM.choice(4, size=200, p=[0.4, 0.3, 0.2, 0.1])
X = CENTRES[CODES] + 1.5 * RANDOM.normal(size=(200, 8))
OTHER = CENTRES[CODES] + 2.5 * RANDOM.normal(size=(200, 8))
NAMES = np.array([f"l{c}" for c in CODES])
SPLIT = np.array([("train", "train", "validation", "test", "train")[i % 5] for i in range(200)])
TRAIN, TEST = SPLIT != "test", SPLIT == "test"
GROUPS = (np.arange(200) // 5) % 23


def probe(
    models: Any, *, seed: int = 0, threads: int = 1, params: Any = None, **columns: Any
) -> tuple[Any, Context]:
    """Run the check on arrays: one of rows, or (rows, test), by name of the model."""
    several = models if isinstance(models, dict) else {"one": models}
    ready = {
        name: {part: Dataset(x) for part, x in zip(("rows", "test"), _pair(rows), strict=False)}
        for name, rows in several.items()
    }
    given = {name: Labels.of(list(values)) for name, values in columns.items()}
    context = Context(seed=seed, threads=threads)
    inputs = linear_probe.inputs(models=ready, **given)
    return linear_probe.run(context, inputs, linear_probe.params(**(params or {}))), context


def _pair(rows: Any) -> tuple[Array, ...]:
    return rows if isinstance(rows, tuple) else (rows,)


def by_hand(x: Array, y: Array, z: Array, c: float, **settings_: Any) -> Array:
    """scikit-learn's pipeline on the rows as they are."""
    chosen = {"tol": 1e-8, "max_iter": 5000} | settings_
    return np.asarray(
        make_pipeline(StandardScaler(), LogisticRegression(C=c, **chosen)).fit(x, y).predict(z)
    )


def best_c(x: Array, names: Array, fitting: Array, held_out: Array) -> float:
    scores = [
        (balanced_accuracy_score(
            names[held_out], by_hand(x[fitting], names[fitting], x[held_out], 10.0**p)
        ), -p)
        for p in range(-2, 6)
    ]  # fmt: skip
    return float(10.0 ** -max(scores)[1])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("form", ["split", "test"])
def test_the_probe_of_the_reference_is_reproduced(
    model: str,
    form: str,
    rows: Callable[[str], Array],
    column: Callable[[str, str], list[str]],
    reference: dict[str, Any],
    printed: Callable[[Any], Any],
) -> None:
    """An independent script, with its settings: C = 1 and scikit-learn's own tolerance."""
    x = rows(f"clinc150/{model}")
    split = column("clinc150", "split")
    labels, train = np.array(column("clinc150", "intent")), np.array(split) == "train"
    params = {"c": 1, "max_iter": 2000, "tol": 1e-4}
    if form == "split":
        got, context = probe(x, labels=labels.tolist(), split=split, params=params)
    else:
        got, context = probe(
            (x[train], x[~train]),
            labels=labels[train].tolist(),
            test_labels=labels[~train].tolist(),
            params=params,
        )
    wanted = reference["clinc150"][model]["compression"]["native"]["probe_balanced_accuracy"]
    assert got.models["one"].balanced_accuracy.estimate == printed(wanted)
    assert got.models["one"].accuracy.estimate == printed(wanted)
    assert (got.train_rows, got.test_rows, got.validation_rows) == (2100, 900, 0)
    assert (got.tested_on, len(got.counted), got.chance) == (form, 60, 1 / 60)
    assert got.majority == pytest.approx(1 / 60)
    assert not context.warnings


def test_the_penalty_is_chosen_on_validation_rows_and_the_probe_fitted_on_all_train_rows() -> None:
    """scikit-learn's pipeline for each C; the smallest of the best."""
    got, _ = probe(OTHER, labels=NAMES, split=SPLIT, threads=2)
    found = got.models["one"]
    c = best_c(OTHER, NAMES, SPLIT == "train", SPLIT == "validation")
    predicted = by_hand(OTHER[TRAIN], NAMES[TRAIN], OTHER[TEST], c)
    assert found.c == c
    assert found.accuracy.estimate == pytest.approx(np.mean(predicted == NAMES[TEST]))
    tested, support = np.unique(NAMES[TEST], return_counts=True)
    counted = tested[support >= 10].tolist()
    assert [one.label for one in got.excluded] == tested[support < 10].tolist() != []
    recalls = recall_score(NAMES[TEST], predicted, labels=counted, average=None)
    assert found.balanced_accuracy.estimate == pytest.approx(recalls.mean())
    assert {one.label: one.recall for one in found.recalls} == pytest.approx(
        dict(zip(counted, recalls, strict=True))
    )
    assert [one.recall for one in found.recalls] == sorted(recalls)
    train_support = dict(zip(*np.unique(NAMES[TRAIN], return_counts=True), strict=True))
    for one in (*got.counted, *got.excluded):
        assert one.train_rows == train_support[one.label]
        assert one.test_rows == support[tested == one.label][0]
    assert (got.train_rows, got.validation_rows, got.test_rows) == (160, 40, 40)
    assert got.chance == 1 / len(counted)
    assert [one.c for one in found.tried] == [10.0**p for p in range(-2, 6)]
    scored = by_hand(OTHER[SPLIT == "train"], NAMES[SPLIT == "train"], OTHER[SPLIT == "validation"],
                     100.0)  # fmt: skip
    wanted = balanced_accuracy_score(NAMES[SPLIT == "validation"], scored)
    assert found.tried[4].balanced_accuracy == pytest.approx(wanted)
    majority = max(train_support, key=lambda label: train_support[label])
    assert got.majority == pytest.approx(np.mean(NAMES[TEST] == majority))


def recall(right: Array, labels: Array, kept: Array, counted: list[str]) -> float:
    """Balanced accuracy of the rows kept: mean over the labels that are left."""
    of = [right[kept & (labels == name)] for name in counted]
    return float(np.mean([values.mean() for values in of if len(values)]))


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("level", [0.95, 0.8])
def test_intervals_leave_out_groups_of_test_rows(
    grouped: bool, level: float, t_interval: Callable[..., tuple[float, float]]
) -> None:
    """Refits of the two shares without each unit, and beta quantiles of scipy.stats."""
    columns: dict[str, Any] = {"groups": GROUPS.tolist()} if grouped else {}
    params = {"level": level, "c": 1.0, "min_support": 4}
    got, context = probe(OTHER, labels=NAMES, split=SPLIT, params=params, **columns)
    right = by_hand(OTHER[TRAIN], NAMES[TRAIN], OTHER[TEST], 1.0) == NAMES[TEST]
    labels, units = NAMES[TEST], (GROUPS if grouped else np.arange(200))[TEST]
    counted = [one.label for one in got.counted]
    assert len(counted) >= 3
    plain: list[str] = ["all"]
    for name, kinds, names in (
        ("accuracy", np.full(len(labels), "all"), plain), ("balanced_accuracy", labels, counted),
    ):  # fmt: skip
        chosen = np.isin(kinds, names)
        hits, of, unit = right[chosen], kinds[chosen], units[chosen]
        low, high = t_interval(
            lambda kept, h=hits, o=of, n=names: recall(h, o, kept, n), unit, level
        )
        own = [
            [hits[(of == name) & (unit == one)].mean() for one in np.unique(unit[of == name])]
            for name in names
        ]
        count, tail = len(np.unique(unit)), (1 - level) / 2
        trials = len(names) * min(len(shares) for shares in own)
        total = trials * np.mean([np.mean(shares) for shares in own])
        exact = stats.beta.ppf([tail, 1 - tail], [total, total + 1],
                               [trials - total + 1, trials - total])  # fmt: skip
        interval = getattr(got.models["one"], name).interval
        assert interval.low == pytest.approx(max(0, min(low, exact[0]))), name
        assert interval.high == pytest.approx(min(1, max(high, exact[1]))), name
        assert (interval.unit, interval.resamples) == ("group" if grouped else "row", count)
    codes = {warned.code for warned in context.warnings}
    assert ("groups_on_both_sides" in codes) is grouped
    both = len(set(GROUPS[TRAIN]) & set(GROUPS[TEST]))
    assert got.straddling_groups == (both if grouped else None)


def gains_minus_losses(change: Array, level: float) -> tuple[float, float]:
    """Two exact intervals of independent rows as one of their difference."""
    n = len(change)
    p, q = np.mean(change > 0), np.mean(change < 0)
    (gain_low, gain_high), (loss_low, loss_high) = (
        stats.binomtest(round(n * share), n).proportion_ci(level) for share in (p, q)
    )
    rho = -np.sqrt(p * q / ((1 - p) * (1 - q)))

    def together(a: float, b: float) -> float:
        return float(np.sqrt(a * a + b * b - 2 * rho * a * b))

    return (
        p - q - together(p - gain_low, loss_high - q),
        p - q + together(gain_high - p, q - loss_low),
    )


@pytest.mark.parametrize("seed", range(4))
def test_an_interval_holds_0_where_the_test_finds_nothing_and_only_there(seed: int) -> None:
    """
    600 rows of 8 labels in 200 documents, C as small as .01: differences of about .1. No interval is
    half again as wide as Student's t of the documents.
    """
    random = np.random.default_rng(seed)
    codes = random.integers(8, size=600)
    centres = random.normal(size=(8, 64))
    documents = np.repeat(np.arange(200), 3)
    shared = random.normal(size=(200, 64))[documents]
    better, worse = (
        0.5 * centres[codes] + noise * (shared + random.normal(size=(600, 64)))
        for noise in (0.9, 1.1)
    )
    got, _ = probe(
        {"worse": worse, "better": better}, seed=seed, labels=codes, groups=documents,
        params={"cs": [0.01]},
    )  # fmt: skip
    found = got.differences["better"]["worse"]
    for name in ("accuracy", "balanced_accuracy"):
        change, p = getattr(found, name), getattr(found.tests, name).p
        assert (change.interval.low > 0 or change.interval.high < 0) == (p < 0.05)
    p, change = found.tests.accuracy.p, found.accuracy
    df = change.interval.resamples - 1
    half = stats.t.ppf(0.975, df) * change.estimate / stats.t.ppf(1 - p / 2, df)
    assert change.interval.high - change.interval.low < 1.5 * 2 * half


def test_models_are_paired_test_row_by_test_row(
    t_interval: Callable[..., tuple[float, float]],
) -> None:
    """
    Differences by hand; intervals by scipy's exact ones of gains and losses, joined by the correlation
    of a multinomial; p where such an interval reaches 0, adjusted by hand.
    """
    models = {"a": X, "b": OTHER, "c": X[:, :3]}
    params = {"c": 1.0, "min_support": 1}
    got, _ = probe(models, labels=NAMES, split=SPLIT, params=params)
    right = {
        name: by_hand(x[TRAIN], NAMES[TRAIN], x[TEST], 1.0) == NAMES[TEST]
        for name, x in models.items()
    }
    raw = {}
    for later, earlier in (("b", "a"), ("c", "a"), ("c", "b")):
        change = right[later].astype(float) - right[earlier].astype(float)
        n = len(change)
        found = got.differences[later][earlier]
        assert found.accuracy.estimate == pytest.approx(change.mean())
        counted = sorted(set(NAMES[TEST]))
        balanced = np.mean([change[NAMES[TEST] == name].mean() for name in counted])
        assert found.balanced_accuracy.estimate == pytest.approx(balanced)
        raw[later, earlier] = found.tests.accuracy.p
        assert found.tests.accuracy.p >= stats.ttest_1samp(change, 0).pvalue * (1 - 1e-9)
        low, high = t_interval(lambda kept, v=change: float(v[kept].mean()), np.arange(n), 0.95)
        exact = gains_minus_losses(change, 0.95)
        interval = found.accuracy.interval
        assert (interval.low, interval.high) == pytest.approx(
            (min(low, exact[0]), max(high, exact[1]))
        )
        student = stats.t.interval(
            1 - found.tests.accuracy.p, n - 1, change.mean(), stats.sem(change)
        )
        ends = (*student, *gains_minus_losses(change, 1 - found.tests.accuracy.p))
        assert min(abs(end) for end in ends) < 1e-7
        labels = NAMES[TEST]
        low, high = t_interval(
            lambda kept, v=change, y=labels, c=counted: recall(v, y, kept, c), np.arange(n), 0.95
        )
        assert found.balanced_accuracy.interval.low <= low + 1e-12
        assert found.balanced_accuracy.interval.high >= high - 1e-12
    order = sorted(raw, key=lambda pair: raw[pair])
    highest = 0.0
    for rank, (later, earlier) in enumerate(order):
        highest = max(highest, min(1, (3 - rank) * raw[later, earlier]))
        assert got.differences[later][earlier].tests.accuracy.p_holm == pytest.approx(highest)
    assert "does not show that they are equal" in got.readings()[-1]


def test_a_class_too_rare_for_both_splits_is_listed() -> None:
    """Case P23: rows that stand where the label that is given stands."""
    truth = ["day"] * 6 + ["night"] * 3 + ["dusk"]
    given_ = ["day"] * 5 + ["night"] + ["night"] * 2 + ["day"] + ["day"]
    place = {"day": [5.0, 0.0], "night": [0.0, 5.0], "dusk": [-5.0, -5.0]}
    train = ["day"] * 8 + ["night"] * 8 + ["dusk"] * 2
    x = np.array([place[name] for name in train]) + 0.1 * RANDOM.normal(size=(18, 2))
    z = np.array([place[name] for name in given_])
    got, _ = probe((x, z), labels=train, test_labels=truth, params={"min_support": 2, "c": 1.0})
    found = got.models["one"]
    assert [one.label for one in got.counted] == ["day", "night"]
    assert [(one.label, one.test_rows) for one in got.excluded] == [("dusk", 1)]
    assert found.balanced_accuracy.estimate == pytest.approx(0.75)
    assert found.accuracy.estimate == pytest.approx(0.7)
    assert balanced_accuracy_score(truth, given_) == pytest.approx(0.5)


def test_a_blind_guess_reaches_the_balanced_chance_at_most() -> None:
    """Labels drawn by any weights: less of those that count, where one that does not is drawn too."""
    got, _ = probe(X, labels=NAMES, split=SPLIT, params={"c": 1.0})
    counted = [one.label for one in got.counted]
    assert len(counted) < 4
    rng = np.random.default_rng(88)
    for weights in (np.full(4, 0.25), *rng.dirichlet(np.ones(4), 20)):
        recalls = dict(zip(["l0", "l1", "l2", "l3"], weights, strict=True))
        assert np.mean([recalls[label] for label in counted]) < got.chance
    assert any(f"a blind guess reaches {got.chance:.4f} at most" in line for line in got.readings())


def test_a_label_without_train_rows_is_absent_and_does_not_count() -> None:
    """1, true and "1" are three labels; the absent one's rows are wrong in accuracy alone."""
    labels = [1, "1"] * 20
    x = np.where(np.arange(40)[:, None] % 2, 3.0, -3.0) + RANDOM.normal(size=(40, 2))
    z = np.array([[-3.0, -3.0]] * 12 + [[3.0, 3.0]] * 12 + [[3.0, 3.0]] * 12)
    truth = [1] * 12 + ["1"] * 12 + [True] * 12
    got, context = probe((x, z), labels=labels, test_labels=truth)
    found = got.models["one"]
    (absent,) = got.absent
    assert absent.label is True
    assert (absent.train_rows, absent.test_rows) == (0, 12)
    assert [(type(one.label), one.label) for one in got.counted] == [(int, 1), (str, "1")]
    assert found.accuracy.estimate == pytest.approx(24 / 36)
    assert found.balanced_accuracy.estimate == 1
    assert "labels_not_in_train" in {warned.code for warned in context.warnings}


def test_no_label_of_enough_test_rows_leaves_balanced_accuracy_undefined() -> None:
    got, _ = probe(X, labels=NAMES, split=SPLIT, params={"min_support": 100, "c": 1.0})
    found = got.models["one"]
    assert found.balanced_accuracy.undefined["estimate"].code == "too_few_rows"
    assert got.undefined["chance"].code == "too_few_rows"
    assert (got.counted, found.recalls) == ([], [])
    assert found.accuracy.estimate is not None


def warned(*args: Any, **named: Any) -> dict[str, str]:
    return {one.code: one.where for one in probe(*args, **named)[1].warnings}


def test_each_bad_sign_of_the_optimiser_is_said() -> None:
    """Too few iterations; a tolerance met at once; a strength at the edge; none of them."""
    columns = {"labels": NAMES, "split": SPLIT}
    at = "results/models/one"
    few = warned(X, **columns, params={"max_iter": 2})
    assert few["not_converged"] == f"{at}/converged"
    assert few["tried_not_converged"] == f"{at}/tried"
    loose = warned(X, **columns, params={"tol": 1.0, "c": 1.0})
    assert loose["at_majority"] == f"{at}/at_majority"
    edge = warned(X, **columns, params={"cs": [1e-7, 1e-6, 1e-5, 1e-1]})
    assert edge["c_at_edge"] == f"{at}/c_at_edge"
    assert warned(X, **columns, params={"c": 1.0}) == {}
    got, _ = probe(X, **columns, params={"max_iter": 2, "c": 1.0})
    found = got.models["one"]
    assert (found.n_iter, found.stop, found.converged) == (2, "iterations", False)
    assert found.gradient > 1e-8


def test_an_edge_that_no_wider_choice_can_better_is_not_said() -> None:
    """Rows so far apart that all are right; and one dimension that says nothing, so that all tie."""
    columns = {"labels": NAMES, "split": SPLIT}
    got, context = probe(100 * CENTRES[CODES] + X, **columns, params={"cs": [0.01, 1.0, 100.0]})
    found = got.models["one"]
    assert found.c_at_edge
    assert found.tried[0].balanced_accuracy == 1
    assert not context.warnings
    got, context = probe(np.ones((200, 1)), **columns, params={"cs": [0.01, 1.0]})
    found = got.models["one"]
    assert found.c_at_edge
    assert {one.balanced_accuracy for one in found.tried} == {0.25}
    assert "c_at_edge" not in {one.code for one in context.warnings}
    low, context = probe(X, **columns, params={"cs": [1e-7, 1e-6, 1e-5, 1e-1]})
    assert low.models["one"].c_at_edge
    assert "c_at_edge" in {one.code for one in context.warnings}


def test_a_fit_that_got_no_further_on_a_slope_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """No slope is flat enough: what float64 ends is then unfinished, and iterations are not blamed."""
    monkeypatch.setattr("service.numerics.probe.FLAT", 0.0)
    columns = {"labels": NAMES, "split": SPLIT}
    got, context = probe(X, **columns, params={"c": 1.0, "tol": 1e-15})
    found = got.models["one"]
    assert (found.stop, found.converged) == ("loss", False)
    (warned,) = context.warnings
    assert (warned.code, warned.where) == ("not_converged", "results/models/one/converged")
    assert f"no further after {found.n_iter} iterations" in warned.message
    _, context = probe(X, **columns, params={"tol": 1e-15})
    assert "tried_not_converged" in {one.code for one in context.warnings}


@pytest.mark.parametrize("c", [0.99e-9, 1.01e9])
def test_strengths_that_no_fit_can_follow_are_refused(c: float) -> None:
    for params in ({"c": c}, {"cs": [1.0, c]}):
        with pytest.raises(ValidationError):
            linear_probe.params(**params)
    for check in (compression, stress_response):
        with pytest.raises(ValidationError):
            check.params(probe_c=c)


def test_features_of_any_scale_are_recovered_where_a_plain_fit_reads_chance() -> None:
    """scikit-learn without standardising, at its own tolerance, on rows of scale 1e-3."""
    tiny = 1e-4 * X
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = LogisticRegression().fit(tiny[TRAIN], NAMES[TRAIN])
    assert plain.score(tiny[TRAIN], NAMES[TRAIN]) <= np.unique(
        NAMES[TRAIN], return_counts=True
    )[1].max() / TRAIN.sum()  # fmt: skip
    params = {"c": 1.0, "min_support": 3}
    (one, _), (other, _) = (probe(x, labels=NAMES, split=SPLIT, params=params) for x in (X, tiny))
    assert other.models["one"].accuracy == one.models["one"].accuracy
    assert other.models["one"].balanced_accuracy.estimate > 0.5
    assert not other.models["one"].at_majority


def test_zero_rows_are_rows_of_a_probe(services: Services, store: Callable[..., Any]) -> None:
    """scikit-learn's pipeline on the same rows, in train, in test, and as rows of a job."""
    x = X.copy()
    x[[0, 4, 9, 11]] = 0  # test rows are every fifth from the third on
    x[[3, 8, 13]] = 0
    got, _ = probe(x, labels=NAMES, split=SPLIT, params={"c": 1})
    wanted = by_hand(x[TRAIN], NAMES[TRAIN], x[TEST], 1) == NAMES[TEST]
    assert (~x[TEST].any(axis=1)).sum() == 3
    assert got.models["one"].accuracy.estimate == pytest.approx(wanted.mean())
    column = store({"columns": {"label": NAMES.tolist(), "split": SPLIT.tolist()}}).id
    body = {
        "kind": "linear_probe",
        "inputs": {
            "rows": {"dataset": store(x).id},
            "labels": {"dataset": column, "column": "label"},
            "split": {"dataset": column, "column": "split"},
        },
        "params": {"c": 1, "on_bad_rows": "drop"},
    }
    job = submit(services, "default", parse_request(body))
    perform(services, job.id)
    report = json.loads(services.reports.get("default", job.request_digest))
    assert report["results"]["test_rows"] == TEST.sum()
    body["params"] = {"c": 1}
    submit(services, "default", parse_request(body))


def test_constant_dimensions_are_counted_and_tell_nothing() -> None:
    wide = np.hstack([X, np.full((200, 1), 0.1), np.zeros((200, 1))])
    params = {"c": 1.0}
    one, other = (probe(x, labels=NAMES, split=SPLIT, params=params)[0] for x in (X, wide))
    assert other.models["one"].constant_dimensions == 2
    assert other.models["one"].accuracy == one.models["one"].accuracy


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), share=st.floats(0.1, 0.6))
def test_rows_are_drawn_by_whole_groups_and_by_label(seed: int, share: float) -> None:
    """Counted."""
    params = linear_probe.params(test_share=share, min_support=1)
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 40)
    columns = {"labels": Labels.of(labels[np.arange(160) // 4].tolist()),
               "groups": Labels.of((np.arange(160) // 4).tolist())}  # fmt: skip
    deal = dealt(columns, {"rows": (160, 4)}, params, seed)
    assert sorted([*deal.train, *deal.test]) == list(range(160))
    held = {int(row) // 4 for row in deal.train[deal.validation]}
    fitted = {int(row) // 4 for row in deal.train[~deal.validation]}
    tested = {int(row) // 4 for row in deal.test}
    assert len(held) + len(fitted) + len(tested) == len(held | fitted | tested) == 40
    assert deal.straddling == 0
    for label in range(3):
        members = [g for g in range(40) if labels[g] == label]
        if len(members) >= 3:
            assert tested & set(members)
            assert len(tested & set(members)) == pytest.approx(share * len(members), abs=1)


def test_another_seed_draws_other_rows_and_a_split_draws_none() -> None:
    drawn = [probe(OTHER, labels=NAMES, seed=seed)[0] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert {one.tested_on for one in drawn} == {"drawn"}
    marked = [probe(OTHER, labels=NAMES, split=SPLIT, seed=seed)[0] for seed in (0, 1)]
    assert marked[0] == marked[1]


def test_rows_marked_test_are_left_out_where_test_is_given() -> None:
    """The same as without them."""
    truth = NAMES[TEST].tolist()
    params = {"c": 1.0}
    one, _ = probe((X, X[TEST]), labels=NAMES, split=SPLIT, test_labels=truth, params=params)
    other, _ = probe((X[TRAIN], X[TEST]), labels=NAMES[TRAIN], test_labels=truth, params=params)
    assert one.models == other.models
    assert one.train_rows == other.train_rows == 160


def test_test_rows_of_their_own_bring_their_groups() -> None:
    """The same as by `split`: intervals by group, and groups on both sides counted."""
    params = {"c": 1.0, "min_support": 4}
    one, _ = probe(X, labels=NAMES, split=SPLIT, groups=GROUPS, params=params)
    own = {"test_labels": NAMES[TEST], "test_groups": GROUPS[TEST]}
    other, context = probe(
        (X[TRAIN], X[TEST]), labels=NAMES[TRAIN], groups=GROUPS[TRAIN], params=params, **own
    )
    assert one.models == other.models
    assert other.models["one"].accuracy.interval.unit == "group"
    assert one.straddling_groups == other.straddling_groups > 0
    assert "groups_on_both_sides" in {warned.code for warned in context.warnings}
    named = [f"t{group}" for group in GROUPS[TEST]]
    apart, _ = probe(
        (X[TRAIN], X[TEST]), labels=NAMES[TRAIN], groups=GROUPS[TRAIN], params=params,
        **own | {"test_groups": named},
    )  # fmt: skip
    assert apart.straddling_groups == 0


def test_groups_of_one_side_leave_those_of_both_unknown() -> None:
    params = {"c": 1.0}
    rows, own = (X[TRAIN], X[TEST]), {"labels": NAMES[TRAIN], "test_labels": NAMES[TEST]}
    sides = {"groups": GROUPS[TRAIN], "test_groups": GROUPS[TEST]}
    for name, other in (("groups", "test_groups"), ("test_groups", "groups")):
        got, context = probe(rows, params=params, **own, **{name: sides[name]})
        assert got.straddling_groups is None
        assert got.undefined["straddling_groups"].code == "no_groups"
        (warned,) = context.warnings
        assert (warned.code, warned.where) == ("groups_of_one_side", f"inputs/{other}")
        assert warned.message.startswith(f"`{name}` are given without `{other}`")
    for columns in (own, {"labels": NAMES, "split": SPLIT}):
        got, context = probe(rows if columns is own else X, params=params, **columns)
        assert got.undefined["straddling_groups"].code == "no_groups"
        assert not context.warnings


def test_test_rows_that_are_the_train_rows_are_said() -> None:
    """Of one model of two, whose copy is stored apart."""
    rows = {"a": (X, X.copy()), "b": (X, OTHER)}
    columns = {"labels": NAMES, "test_labels": NAMES}
    got, context = probe(rows, params={"c": 1.0}, **columns)
    (warned,) = context.warnings
    where = "results/models/a/shared_rows"
    assert (warned.code, warned.where) == ("tested_on_train_rows", where)
    assert "200 of 200 test rows" in warned.message
    assert got.models["a"].accuracy.estimate == got.models["a"].train_accuracy
    assert [found.shared_rows for found in got.models.values()] == [200, 0]
    assert got.undefined["shared_ids"].code == "no_ids"


def test_some_train_rows_among_the_test_rows_are_counted_in_any_order() -> None:
    """By hand: random labels of a quarter new and three quarters known rows are recovered."""
    random = np.random.default_rng(0)
    x, labels = random.normal(size=(200, 50)), random.integers(2, size=200)
    kept = random.permutation(200)[:150]
    test = np.concatenate([x[kept], random.normal(size=(50, 50))])
    got, context = probe(
        (x, test), labels=labels, test_labels=np.concatenate([labels[kept], labels[:50]])
    )
    assert got.models["one"].shared_rows == 150
    (warned,) = (one for one in context.warnings if one.code == "tested_on_train_rows")
    assert "150 of 200 test rows" in warned.message
    assert "Leave them out of `test`" in warned.message


@pytest.mark.parametrize(("how", "says"), [("drawn", "`groups`"), ("split", "`split`")])
def test_rows_that_repeat_on_both_sides_are_counted(how: str, says: str) -> None:
    """Fifty rows four times each, random labels; by sets of rows. By groups of equal rows none."""
    random = np.random.default_rng(1)
    x, labels = (np.repeat(part, 4, axis=0) for part in (random.normal(size=(50, 20)), [0, 1] * 25))
    split = np.array(["train", "test", "train", "train"] * 50)
    columns = {"split": split} if how == "split" else {}
    got, context = probe(x, labels=labels, params={"c": 1.0}, **columns)
    (warned,) = (one for one in context.warnings if one.code == "tested_on_train_rows")
    assert f"{got.models['one'].shared_rows} of {got.test_rows} test rows" in warned.message
    assert says in warned.message
    if how == "split":
        assert got.models["one"].shared_rows == 50
    else:
        deal = dealt({"labels": Labels.of(labels.tolist())}, {"rows": (200, 20)},
                     linear_probe.params(c=1.0), 0)  # fmt: skip
        known = set(deal.train // 4)
        assert got.models["one"].shared_rows == sum(row // 4 in known for row in deal.test)
    got, context = probe(x, labels=labels, groups=np.repeat(np.arange(50), 4), params={"c": 1.0})
    assert got.models["one"].shared_rows == 0
    assert "tested_on_train_rows" not in {one.code for one in context.warnings}


def test_ids_of_both_sides_are_counted() -> None:
    """Rows marked `test` of the train side are left out, and so are their ids."""
    ids = tuple(f"i{row}" for row in range(200))
    models = {"one": {"rows": Dataset(X, ids=ids), "test": Dataset(OTHER[:50], ids=ids[:50])}}
    columns = {
        "labels": NAMES.tolist(),
        "test_labels": NAMES[:50].tolist(),
        "split": SPLIT.tolist(),
    }
    context = Context()
    inputs = linear_probe.inputs(
        models=models, **{name: Labels.of(values) for name, values in columns.items()}
    )
    got = linear_probe.run(context, inputs, linear_probe.params(c=1.0))
    assert got.shared_ids == sum(SPLIT[:50] != "test")
    assert got.models["one"].shared_rows == 0
    assert "ids_on_both_sides" in {one.code for one in context.warnings}


def test_one_strength_is_no_choice() -> None:
    """Rows marked `validation` are train rows like the others, and none is held out where none is."""
    columns = {"labels": NAMES, "split": SPLIT}
    given, _ = probe(OTHER, params={"c": 0.1}, **columns)
    only, _ = probe(OTHER, params={"cs": [0.1, 0.1]}, **columns)
    assert given == only
    assert (given.validation_rows, given.train_rows) == (0, 160)
    assert given.models["one"].tried == []
    apart = {"labels": ["a", "b"], "test_labels": ["a", "b"]}
    few, _ = probe((X[:2], X[2:4]), params={"cs": [1.0]}, **apart)
    assert few.train_rows == 2


def test_a_census_has_no_intervals_and_no_tests() -> None:
    params = {"c": 1.0, "census": True}
    got, _ = probe({"a": X, "b": OTHER}, labels=NAMES, split=SPLIT, params=params)
    assert got.models["a"].accuracy.undefined["interval"].code == "census"
    assert got.differences["b"]["a"].tests.accuracy.undefined["p"].code == "not_estimable"


def columns_of(**values: Any) -> dict[str, Any]:
    return {name: {"values": np.asarray(some).tolist()} for name, some in values.items()}


ALTERNATING = ["a", "b"] * 100


def test_train_rows_of_one_label_are_refused_with_what_to_do(
    services: Services, store: Callable[..., Any]
) -> None:
    """CASES P23, before the job is accepted: a report would be null from end to end."""
    columns = columns_of(labels=ALTERNATING, split=["train", "test"] * 100)
    inputs = {"rows": {"dataset": store(X).id}, **columns}
    with pytest.raises(TooFewGroups) as caught:
        submit(services, "default", parse_request({"kind": "linear_probe", "inputs": inputs}))
    assert caught.value.code == "too-few-groups"
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.message) == (
        "/inputs/labels",
        "give train rows of two labels or more",
    )


@pytest.mark.parametrize(
    ("error", "pointer", "columns", "params"),
    [
        (TooFewGroups, "/inputs/labels", {"labels": ["a"] * 200}, {}),
        (TooFewGroups, "/inputs/labels", {"labels": list(range(200))}, {}),
        (TooFewGroups, "/inputs/labels",
         {"labels": ALTERNATING, "split": ["train", "test"] * 100}, {}),
        (TooFewGroups, "/inputs/labels", {"labels": NAMES, "groups": NAMES}, {}),
        (TooFewGroups, "/params/c",
         {"labels": NAMES, "groups": [f"{a}{b}" for a, b in zip(NAMES, SPLIT == "test", strict=True)],
          "split": np.where(SPLIT == "test", "test", "train")}, {}),
        (TooFewGroups, "/params/c",
         {"labels": ALTERNATING, "split": ["train", "validation"] * 99 + ["test"] * 2}, {}),
        (InvalidRequest, "/inputs/split", {"labels": NAMES, "split": ["train", "dev"] * 100}, {}),
        (TooFewRows, "/inputs/split", {"labels": NAMES, "split": ["train"] * 200}, {}),
        (TooFewRows, "/inputs/split", {"labels": NAMES, "split": ["test"] * 200}, {}),
        (MissingLabels, "/inputs/labels", {"labels": [None, *NAMES[1:].tolist()]}, {}),
        (ShapeMismatch, "/inputs/split", {"labels": NAMES, "split": ["train", "test"]}, {}),
        (InvalidRequest, "/inputs/test_labels", {"labels": NAMES, "test_labels": NAMES}, {}),
        (InvalidRequest, "/params/cs", {"labels": NAMES}, {"cs": []}),
        (InvalidRequest, "/params/c", {"labels": NAMES}, {"c": 0}),
    ],
)  # fmt: skip
def test_what_labels_forbid_is_refused_before_the_job_is_accepted(
    error: type[InvalidRequest],
    pointer: str,
    columns: dict[str, Any],
    params: dict[str, Any],
    services: Services,
    store: Callable[..., Any],
) -> None:
    inputs = {"rows": {"dataset": store(X).id}, **columns_of(**columns)}
    with pytest.raises(error) as caught:
        submit(
            services, "default",
            parse_request({"kind": "linear_probe", "inputs": inputs, "params": params}),
        )  # fmt: skip
    assert caught.value.code == error.code
    assert pointer in [fault.pointer.removesuffix("/values") for fault in caught.value.faults]


def test_a_seeded_split_that_is_accepted_is_one_the_job_can_make(
    services: Services, store: Callable[..., Any]
) -> None:
    """Submitted, run, and read: by bare roles, and as a model by name."""
    whole = {"dataset": store(X).id}
    for inputs, name in (({"rows": whole}, "model_1"), ({"models": [{"rows": whole, "name": "m"}]},
                         "m")):  # fmt: skip
        body = {"kind": "linear_probe", "inputs": inputs | columns_of(labels=NAMES)}
        job = submit(services, "default", parse_request(body | {"params": {"c": 1.0}}))
        perform(services, job.id)
        digest = services.jobs.get("default", job.id).request_digest
        report = services.reports.get("default", digest)
        assert list(json.loads(report)["results"]["models"]) == [name]


def test_every_model_has_test_rows_or_none(services: Services, store: Callable[..., Any]) -> None:
    """And test rows have labels."""
    rows, test = {"dataset": store(X).id}, {"dataset": store(OTHER).id}
    labels = columns_of(labels=NAMES)
    cases: list[tuple[type[InvalidRequest], str, dict[str, Any]]] = [
        (InvalidRequest, "/inputs", {"models": [{"rows": rows}, {"rows": rows, "test": test}]}),
        (InvalidRequest, "/inputs", {"test": test}),
        (MissingLabels, "/inputs/test_labels", {"rows": rows, "test": test}),
        (MissingLabels, "/inputs/test_labels", {"models": [{"rows": rows, "test": test}]}),
    ]
    for error, pointer, inputs in cases:
        body = {"kind": "linear_probe", "inputs": inputs | labels}
        with pytest.raises(error) as caught:
            submit(services, "default", parse_request(body))
        assert pointer in [fault.pointer for fault in caught.value.faults]


def test_more_rows_than_declared_are_refused(services: Services, store: Callable[..., Any]) -> None:
    rows = 1 + np.arange(50_001, dtype=np.float32)[:, None] % 7
    inputs = {"rows": {"dataset": store(rows).id}, **columns_of(labels=np.arange(50_001) % 2)}
    with pytest.raises(InvalidRequest) as caught:
        submit(services, "default", parse_request({"kind": "linear_probe", "inputs": inputs}))
    assert [fault.pointer for fault in caught.value.faults] == ["/inputs/rows"]


@pytest.mark.parametrize(
    ("n", "d", "fit"), [(4000, 8, True), (40_000, 8, False), (4000, 900, False)]
)
def test_more_labels_than_memory_holds_are_refused(n: int, d: int, fit: bool) -> None:
    """Half of the rows as many labels: scores of 2^24 rows times labels, and 20 gradients."""
    columns = {"labels": Labels.of((np.arange(n) // 2).tolist())}
    params = linear_probe.params(c=1)
    if fit:
        assert len(dealt(columns, {"rows": (n, d)}, params, 0).counted) == 0
        return
    with pytest.raises(InvalidRequest, match="too many to fit") as caught:
        dealt(columns, {"rows": (n, d)}, params, 0)
    assert caught.value.faults[0].count == n // 2
    assert f"at most {2**24 // (n // 2 + 10 * d)} labels" in caught.value.faults[0].message


def test_a_gate_keeps_what_a_probe_recovers(services: Services, store: Callable[..., Any]) -> None:
    """A twin that moved by rounding passes, noise is blocked."""
    policy = {
        "version": 1,
        "name": "labels-kept",
        "inputs": {"before": "vectors", "after": "vectors", "intent": "column"},
        "checks": {
            "probe": {
                "kind": "linear_probe",
                "inputs": {
                    "models": [{"name": name, "rows": name} for name in ("before", "after")],
                    "labels": "intent",
                },
                "params": {"c": 1.0, "test_share": 0.5, "min_support": 5},
            }
        },
        "rules": [
            {"measure": "probe.differences.after.before.balanced_accuracy", "not_worse_by": 0.15}
        ],
    }  # fmt: skip
    verdicts = []
    for after in (X + 1e-9, RANDOM.normal(size=X.shape)):
        bound = {
            "before": {"dataset": store(X).id},
            "after": {"dataset": store(after).id},
            "intent": {"values": NAMES.tolist()},
        }
        run = run_gate(services, "default", policy, bound, {})
        for job in run.jobs.values():
            perform(services, job)
        verdicts.append(read_gate(services, "default", run.id).verdict)
    assert verdicts == ["pass", "fail"]
