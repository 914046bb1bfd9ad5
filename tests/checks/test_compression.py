"""Compression against stored readings, whole matrices, numpy's SVD and intervals by hand."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.stats import ortho_group
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from service.check import Context
from service.checks.compression import compression
from service.checks.compression.probing import Probing
from service.dataset import Dataset, Labels
from service.errors import (
    DimensionMismatch,
    InvalidRequest,
    MissingLabels,
    TooFewRows,
    ZeroRows,
)
from service.gating import read_gate, run_gate
from service.numerics.coded import as_given
from service.operations import Services, perform, submit
from service.relevance import Relevance
from service.request import parse_request
from tests.stored_by_hand import stored, top, unit

Array = NDArray[Any]
RANDOM = np.random.default_rng(30)
X = RANDOM.normal(size=(80, 12)) * np.linspace(2, 0.3, 12) + 0.2
TRAIN = RANDOM.normal(size=(300, 12)) * np.linspace(2, 0.3, 12) + 0.1
LABELS = [f"l{i}" for i in (X[:, 0] > 0) + 2 * (X[:, 1] > 0)]
GROUPS = np.arange(80) % 11
FEW = {"dims": [6, 3], "k": 5}


def neighbours(x: Array, k: int) -> Array:
    scores = unit(x) @ unit(x).T
    np.fill_diagonal(scores, -np.inf)
    return top(scores, k)


def projected(x: Array, train: Array, m: int) -> Array:
    """Unit rows on the leading right singular vectors of centred unit train rows."""
    u, v = unit(train), unit(x)
    _, _, directions = np.linalg.svd(u - u.mean(axis=0), full_matrices=True)
    return np.asarray((v - u.mean(axis=0)) @ directions[:m].T)


def shares(before: Array, after: Array) -> Array:
    k = before.shape[1]
    return np.array([len(set(a) & set(b)) / k for a, b in zip(before, after, strict=True)])


def same_label(found: Array, labels: list[str]) -> Array:
    return np.array([np.mean([labels[j] == labels[i] for j in row]) for i, row in enumerate(found)])


@pytest.mark.parametrize("model", ["minilm", "minilm_int8", "e5small_q4", "use_multilingual"])
def test_label_precision_of_prefixes_and_components_is_the_references(
    model: str,
    rows: Callable[[str], Array],
    column: Callable[[str, str], list[str]],
    reference: dict[str, Any],
    printed: Callable[[Any], Any],
    run: Callable[..., Any],
) -> None:
    """An independent script: test rows search each other, PCA is fitted on the train rows."""
    x = rows(f"clinc150/{model}")
    train = np.array(column("clinc150", "split")) == "train"
    labels = np.array(column("clinc150", "intent"))[~train].tolist()
    got, _ = run(
        compression, vectors=x[~train], train=x[train], labels=labels,
        params={"dims": [256, 128, 64]},
    )  # fmt: skip
    wanted = reference["clinc150"][model]["compression"]
    native = got.native.label_precision[10].estimate
    assert native == printed(wanted["native"]["P@10_test"])
    for m in (256, 128, 64):
        for ours, theirs in (("prefix", "MRL"), ("pca", "PCA")):
            found = got.variants[f"{ours}_{m}"]
            precision = wanted[f"{theirs}_{m}"]["P@10_test"]
            assert found.label_precision[10].estimate == printed(precision), (ours, m)
            change = found.label_precision_change[10].estimate
            assert change == pytest.approx(precision - native, abs=1e-9)
            assert found.bytes_per_vector == m * (x.itemsize if ours == "prefix" else 4)
    assert (got.n, got.train_rows, got.fitted_on_compared_rows) == (900, 2100, False)


@pytest.mark.parametrize("model", ["minilm", "minilm_int8", "e5small_q4", "use_multilingual"])
def test_the_probe_of_prefixes_and_components_is_the_references(
    model: str,
    rows: Callable[[str], Array],
    column: Callable[[str, str], list[str]],
    reference: dict[str, Any],
    printed: Callable[[Any], Any],
    run: Callable[..., Any],
) -> None:
    """An independent script, with its settings: C = 1 and scikit-learn's own tolerance."""
    x = rows(f"clinc150/{model}")
    train = np.array(column("clinc150", "split")) == "train"
    labels = np.array(column("clinc150", "intent"))
    params = {"dims": [256, 128, 64], "probe_tol": 1e-4, "probe_max_iter": 2000}
    got, _ = run(
        compression, vectors=x[~train], train=x[train], labels=labels[~train].tolist(),
        train_labels=labels[train].tolist(), params=params,
    )  # fmt: skip
    wanted = {
        name: of["probe_balanced_accuracy"]
        for name, of in reference["clinc150"][model]["compression"].items()
    }
    native = got.native.probe
    assert native.balanced_accuracy.estimate == printed(wanted["native"])
    for ours, theirs in (("prefix", "MRL"), ("pca", "PCA")):
        for m in (256, 128, 64):
            found, value = got.variants[f"{ours}_{m}"], wanted[f"{theirs}_{m}"]
            assert found.probe.balanced_accuracy.estimate == printed(value), (ours, m)
            moved = found.probe_change.balanced_accuracy
            assert moved.estimate == pytest.approx(value - wanted["native"], abs=1e-9)
            assert moved.interval.low < moved.estimate < moved.interval.high
            assert found.probe.converged


def recovered(train: Array, labels: Array, rows: Array, wanted: Array) -> Array:
    """scikit-learn's pipeline on unit rows; which rows it is right about."""
    settings = {"C": 0.5, "tol": 1e-8, "max_iter": 5000}
    model = make_pipeline(StandardScaler(), LogisticRegression(**settings))
    right = model.fit(unit(train), labels).predict(unit(rows)) == wanted
    return np.asarray(right, dtype=np.float64)


def test_a_probe_learns_from_train_rows_with_as_little_kept(
    run: Callable[..., Any], t_interval: Callable[..., tuple[float, float]]
) -> None:
    """Prefixes, components and schemes by hand; changes paired by row, intervals by group."""
    train_labels = np.array([f"l{i}" for i in (TRAIN[:, 0] > 0) + 2 * (TRAIN[:, 1] > 0)])
    labels = np.array(LABELS)
    params = FEW | {"schemes": ["int4"], "probe_c": 0.5, "min_support": 20}
    got, _ = run(
        compression, vectors=X, train=TRAIN, labels=LABELS, train_labels=train_labels.tolist(),
        groups=GROUPS.tolist(), params=params,
    )  # fmt: skip
    names, support = np.unique(labels, return_counts=True)
    counted = np.isin(labels, names[support >= 20])
    assert 0 < counted.sum() < len(labels)
    kept = {
        "native": (TRAIN, X),
        "prefix_6": (TRAIN[:, :6], X[:, :6]),
        "pca_3": (projected(TRAIN, TRAIN, 3), projected(X, TRAIN, 3)),
    }
    for name, (train, x) in list(kept.items()):
        kept[f"{name}_int4"] = tuple(stored("int4", unit(y), unit(train)) for y in (train, x))
    before = recovered(TRAIN, train_labels, X, labels)
    for name, (train, x) in kept.items():
        right = recovered(train, train_labels, x, labels)
        found = got.native if name == "native" else got.variants[name]
        assert found.probe.accuracy.estimate == pytest.approx(right.mean()), name
        balanced = [right[labels == one].mean() for one in names[support >= 20]]
        assert found.probe.balanced_accuracy.estimate == pytest.approx(np.mean(balanced)), name
        if name == "native":
            continue
        moved = right - before
        change = found.probe_change.accuracy
        assert change.estimate == pytest.approx(moved.mean()), name
        low, high = t_interval(lambda mask, v=moved: float(v[mask].mean()), GROUPS)
        assert change.interval.low <= low + 1e-12
        assert change.interval.high >= high - 1e-12
        assert change.interval.unit == "group"
        each = [moved[labels == one].mean() for one in names[support >= 20]]
        assert found.probe_change.balanced_accuracy.estimate == pytest.approx(np.mean(each))
    assert any("a linear probe recovers" in line for line in got.readings())


def test_the_length_of_a_row_tells_a_probe_nothing_and_this_is_said(
    run: Callable[..., Any],
) -> None:
    """Labels that are lengths, 1 or 2: the probe is the one of rows of length one."""
    long = np.arange(120) % 2
    labels, lengths = [f"l{i}" for i in long], 1 + long[:, None]
    x = unit(np.random.default_rng(87).normal(size=(120, 4)))
    columns = {"labels": labels, "train_labels": labels, "params": {"dims": [2], "k": 5}}
    one, _ = run(compression, vectors=x, train=x, **columns)
    other, _ = run(compression, vectors=lengths * x, train=lengths * x, **columns)
    assert one.native.probe.accuracy == other.native.probe.accuracy
    assert any("rows brought to length one" in line for line in compression.scope)
    assert "probe of unit rows" in " ".join(compression.description.split())


def test_a_label_without_train_rows_does_not_count_in_balanced_accuracy(
    run: Callable[..., Any],
) -> None:
    """Rows of a third label stand where the first is: wrong in accuracy alone."""
    rng = np.random.default_rng(85)
    train = np.repeat(np.eye(4)[:2], 20, axis=0) + 0.05 * rng.normal(size=(40, 4))
    x = np.repeat(np.eye(4)[[0, 1, 0]], 12, axis=0) + 0.05 * rng.normal(size=(36, 4))
    labels, train_labels = np.repeat(["a", "b", "c"], 12), np.repeat(["a", "b"], 20)
    got, context = run(compression, vectors=x, train=train, labels=labels.tolist(),
                       train_labels=train_labels.tolist(), params={"dims": [2], "k": 3})  # fmt: skip
    assert got.native.probe.accuracy.estimate == pytest.approx(2 / 3)
    assert got.native.probe.balanced_accuracy.estimate == 1
    (warned,) = [one for one in context.warnings if one.code == "labels_not_in_train"]
    assert (warned.message[:7], warned.where) == ("12 rows", "inputs/labels")
    _, context = run(compression, vectors=x, train=train, labels=["a", "b"] * 18,
                     train_labels=train_labels.tolist(), params={"dims": [2], "k": 3})  # fmt: skip
    assert "labels_not_in_train" not in {one.code for one in context.warnings}


def test_a_probe_that_runs_out_of_iterations_is_said(run: Callable[..., Any]) -> None:
    train_labels = ["l0", "l1", "l2", "l3"] * 75
    params = FEW | {"probe_max_iter": 1}
    got, context = run(compression, vectors=X, train=TRAIN, labels=LABELS,
                       train_labels=train_labels, params=params)  # fmt: skip
    assert not got.native.probe.converged
    places = {one.where for one in context.warnings if one.code == "not_converged"}
    assert {"results/native/probe/converged", "results/variants/pca_3/probe/converged"} <= places


def test_the_probe_of_int8_rows_stays_within_the_memory_declared() -> None:
    """Float64 rows on both sides; those projected to float32 and stored as fp16 are kept meanwhile."""
    rng = np.random.default_rng(86)
    every, names = rng.integers(-100, 100, (20_000, 128), dtype=np.int8), ["a", "b", "c", "d"]
    train, peaks = every[:1000], []
    for n in (5_000, 5_000, 20_000):
        x = every[:n]
        inputs = compression.inputs(
            vectors=Dataset(x), train=Dataset(train), labels=Labels.of(names * (n // 4)),
            train_labels=Labels.of(names * 250),
        )  # fmt: skip
        probing = Probing.of(inputs, compression.params(dims=[8], probe_max_iter=1))
        assert probing is not None
        learnt, asked = as_given(train, cosine=True), as_given(x, cosine=True)
        tracemalloc.start()
        probing.fitted(learnt, asked)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    factor = (peaks[2] - peaks[1]) / (15_000 * 128)
    assert factor == pytest.approx(8, abs=0.5)
    assert factor + 4 + 2 < compression.memory_factor


def test_without_train_labels_there_is_no_probe_and_they_need_labels(
    run: Callable[..., Any], services: Services, store: Callable[..., Any]
) -> None:
    got, _ = run(compression, vectors=X, train=TRAIN, labels=LABELS, params=FEW)
    assert got.native.undefined["probe"].code == "no_train_labels"
    assert got.variants["pca_3"].undefined["probe_change"].code == "no_train_labels"
    whole, train = {"dataset": store(X).id}, {"dataset": store(TRAIN).id}
    many = {"dataset": store(np.ones((50_001, 12), np.float32)).id}
    labels, train_labels = {"values": LABELS}, {"values": ["a", "b"] * 150}
    cases = [
        (MissingLabels, "/inputs/labels",
         {"vectors": whole, "train": train, "train_labels": train_labels}),
        (InvalidRequest, "/inputs/train_labels",
         {"vectors": whole, "labels": labels, "train_labels": train_labels}),
        (InvalidRequest, "/inputs/train_labels",
         {"vectors": whole, "labels": labels, "train": many,
          "train_labels": {"values": ["a", "b"] * 25_000 + ["a"]}}),
    ]  # fmt: skip
    for error, pointer, inputs in cases:
        with pytest.raises(error) as caught:
            submit(services, "default", parse_request(body(**inputs)))
        assert pointer in [fault.pointer for fault in caught.value.faults]


def test_train_rows_of_one_label_leave_the_probe_null_with_a_reason(
    run: Callable[..., Any],
) -> None:
    """CASES P23: everything else is measured."""
    got, _ = run(
        compression, vectors=X, train=TRAIN, labels=LABELS, train_labels=["a"] * 300, params=FEW
    )
    assert got.native.undefined["probe"].code == "one_label"
    assert got.variants["pca_3"].undefined["probe_change"].code == "one_label"
    assert got.undefined["shared_rows"].code == "one_label"
    assert got.variants["pca_3"].label_precision_change


def test_rows_the_probe_was_fitted_on_are_counted_where_there_is_a_probe(
    run: Callable[..., Any],
) -> None:
    train = np.concatenate([TRAIN[:200], X[:30]])
    columns = {"labels": LABELS, "params": FEW}
    got, context = run(
        compression, vectors=X, train=train, train_labels=["a", "b"] * 115, **columns
    )
    assert got.shared_rows == 30
    (warned,) = (one for one in context.warnings if one.code == "tested_on_train_rows")
    assert warned.message.startswith(f"30 of {len(X)} rows")
    got, context = run(compression, vectors=X, train=train, **columns)
    assert got.undefined["shared_rows"].code == "no_train_labels"
    assert "tested_on_train_rows" not in {one.code for one in context.warnings}


def judged(scores: Array, relevance: list[list[tuple[int, float]]], k: int) -> dict[str, Array]:
    """Hit, nDCG and reciprocal rank of rankings without ties, in plain Python."""
    found: dict[str, list[float]] = {"hit": [], "ndcg": [], "mrr": []}
    for row, right in zip(scores, relevance, strict=True):
        grades, order = dict(right), np.argsort(-row)
        ranks = [place for place, one in enumerate(order) if int(one) in grades]
        gain = sum(grades.get(int(one), 0) / np.log2(2 + i) for i, one in enumerate(order[:k]))
        best = sorted(grades.values(), reverse=True)[:k]
        found["hit"].append(float(ranks[0] < k))
        found["ndcg"].append(gain / sum(g / np.log2(2 + i) for i, g in enumerate(best)))
        found["mrr"].append(1 / (ranks[0] + 1))
    return {name: np.array(values) for name, values in found.items()}


@pytest.mark.parametrize("grouped", [False, True])
def test_queries_with_as_little_kept_rank_the_rows(
    grouped: bool, t_interval: Callable[..., tuple[float, float]]
) -> None:
    """Sorted matrices, loops over ranks, means by group as `retrieval` has them, refits."""
    rng = np.random.default_rng(84)
    queries = X[:30] + 1.5 * rng.normal(size=(30, 12))
    relevance = [[(i, 2.0), ((i + 7) % 80, 1.0)] for i in range(30)]
    groups = np.arange(30) % 7 if grouped else np.arange(30)
    inputs = compression.inputs(
        vectors=Dataset(X), train=Dataset(TRAIN), queries=Dataset(queries),
        relevance=Relevance.of(relevance),
        query_groups=Labels.of(groups.tolist()) if grouped else None,
    )  # fmt: skip
    got = compression.run(Context(threads=2), inputs, compression.params(**FEW, schemes=["int8"]))
    kept = {
        "native": (X, queries),
        "prefix_3": (X[:, :3], queries[:, :3]),
        "pca_6": (projected(X, TRAIN, 6), projected(queries, TRAIN, 6)),
    }
    fitted = {"native": TRAIN, "prefix_3": TRAIN[:, :3], "pca_6": projected(TRAIN, TRAIN, 6)}
    for name, pair in list(kept.items()):
        kept[f"{name}_int8"] = tuple(stored("int8", unit(y), unit(fitted[name])) for y in pair)
    names = np.unique(groups)

    def mean(values: Array, mask: Array) -> float:
        each = [values[mask & (groups == one)] for one in names]
        return float(np.mean([some.mean() for some in each if len(some)]))

    before = judged(unit(queries) @ unit(X).T, relevance, 5)
    every = np.ones(30, dtype=bool)
    for name, (rows, asked) in kept.items():
        values = judged(unit(asked) @ unit(rows).T, relevance, 5)
        found = got.native if name == "native" else got.variants[name]
        for what in ("hit", "ndcg", "mrr"):
            value = getattr(found.retrieval, what)
            value = value if what == "mrr" else value[5]
            assert value.estimate == pytest.approx(mean(values[what], every)), (name, what)
            if name == "native":
                continue
            moved = values[what] - before[what]
            change = getattr(found.retrieval_change, what)
            change = change if what == "mrr" else change[5]
            assert change.estimate == pytest.approx(mean(moved, every)), (name, what)
            assert change.interval.unit == ("group" if grouped else "row")
            assert change.interval.resamples == len(names)
            assert change.interval.low < change.estimate < change.interval.high
            if np.ptp(moved) > 0:
                low, high = t_interval(lambda mask, v=moved: mean(v, mask), groups)
                assert change.interval.low <= low + 1e-12
                assert change.interval.high >= high - 1e-12
    assert any("hit@5 of the queries is" in line for line in got.readings())


def test_queries_and_relevance_come_together_and_prefixes_of_queries_have_a_direction(
    services: Services, store: Callable[..., Any]
) -> None:
    whole, asked = {"dataset": store(X).id}, {"dataset": store(X[:3] + 1e-3).id}
    narrow = {"dataset": store(X[:3, :5]).id}
    right = {"values": [["0"], ["1"], ["2"]]}
    cases = [
        (MissingLabels, "/inputs/relevance", {"vectors": whole, "queries": asked}),
        (InvalidRequest, "/inputs/relevance", {"vectors": whole, "relevance": right}),
        (DimensionMismatch, "/inputs/queries",
         {"vectors": whole, "queries": narrow, "relevance": right}),
    ]  # fmt: skip
    for error, pointer, inputs in cases:
        with pytest.raises(error) as caught:
            submit(services, "default", parse_request(body(**inputs)))
        assert pointer in [fault.pointer for fault in caught.value.faults]
    request = body(vectors=whole, queries=asked, relevance=right)
    job = submit(services, "default", parse_request(request))
    perform(services, job.id)
    report = services.reports.get("default", services.jobs.get("default", job.id).request_digest)
    native = json.loads(report)["results"]["native"]["retrieval"]
    assert native["hit@10"]["estimate"] == native["mrr"]["estimate"] == 1
    zero = X[:3].copy()
    zero[1, :3] = 0
    request = body(vectors=whole, queries={"dataset": store(zero).id}, relevance=right)
    job = submit(services, "default", parse_request(request))
    perform(services, job.id)
    problem = services.jobs.get("default", job.id).problem
    assert (problem.code, problem.errors[0].pointer) == ("zero-rows", "/inputs/queries")
    assert problem.errors[0].rows == ["1"]


def test_a_prefix_is_scored_by_its_own_length(run: Callable[..., Any]) -> None:
    """Case P24: a dot product of bare prefixes is no cosine."""
    pair = np.array([[0.6, 0, 0.64, 0.48], [0.36, 0.48, 0, 0.8]])
    points = as_given(np.ascontiguousarray(pair[:, :2]), cosine=True).points(slice(0, 2))
    assert points[0] @ points[1] == pytest.approx(0.6)
    random = np.random.default_rng(131)
    x = random.normal(size=(30, 12)) * np.linspace(2, 0.2, 12)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    points = as_given(np.ascontiguousarray(x[:, :4]), cosine=True).points(slice(0, 30))
    mean = (points.sum(axis=0) @ points.sum(axis=0) - 30) / (30 * 29)
    assert mean == pytest.approx(0.00033356953, rel=1e-7)
    got, _ = run(compression, vectors=x, params={"dims": [4], "k": 5})
    assert got.variants["prefix_4"].changed_queries == 28


@pytest.mark.parametrize("with_train", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_neighbours_labels_and_variance_are_those_of_whole_matrices(
    dtype: type, with_train: bool, run: Callable[..., Any]
) -> None:
    """numpy's full SVD, sorted matrices and Python sets."""
    x, train = X.astype(dtype), (TRAIN if with_train else X).astype(dtype)
    inputs = {"vectors": x, "labels": LABELS} | ({"train": train} if with_train else {})
    got, _ = run(compression, **inputs, params=FEW)
    before = neighbours(x, 5)
    hits = same_label(before, LABELS)
    assert got.native.label_precision[5].estimate == pytest.approx(hits.mean())
    values = np.linalg.svd(unit(train) - unit(train).mean(axis=0), compute_uv=False) ** 2
    for m in (6, 3):
        for name, kept in (
            (f"prefix_{m}", x[:, :m]),
            (f"pca_{m}", projected(x, train, m).astype(dtype)),
        ):
            found, after = got.variants[name], neighbours(kept, 5)
            share = shares(before, after)
            assert found.overlap[5].estimate == pytest.approx(share.mean()), name
            assert found.changed_queries == (share < 1).sum()
            assert found.changed.estimate == pytest.approx((share < 1).mean())
            precision = same_label(after, LABELS)
            assert found.label_precision[5].estimate == pytest.approx(precision.mean())
            assert found.bytes_per_vector == m * np.dtype(dtype).itemsize
            assert found.dimensions == m
        assert got.variants[f"prefix_{m}"].undefined["explained_variance"].code == "no_components"
        explained = got.variants[f"pca_{m}"].explained_variance
        assert explained == pytest.approx(values[:m].sum() / values.sum())
    assert got.fitted_on_compared_rows is not with_train


@pytest.mark.parametrize("scheme", ["fp16", "int8", "int8_per_vector", "int4", "binary", "pq"])
def test_storage_on_top_is_fitted_on_train_rows_of_as_few_dimensions(
    scheme: str, run: Callable[..., Any]
) -> None:
    """The schemes by hand, on unit rows of native, prefix and components."""
    params = FEW | {"schemes": [scheme]}
    got, _ = run(compression, vectors=X, train=TRAIN, params=params)
    before = neighbours(X, 5)
    for name, rows, train in (
        ("native", X, TRAIN),
        ("prefix_6", X[:, :6], TRAIN[:, :6]),
        ("pca_6", projected(X, TRAIN, 6), projected(TRAIN, TRAIN, 6)),
    ):
        found = got.variants[f"{name}_{scheme}"]
        back = stored(scheme, unit(rows), unit(train))
        after = neighbours(back, 5)
        if scheme == "binary":  # signs tie too often for a set to be one
            assert found.overlap[5].estimate < 1
        else:
            share = shares(before, after).mean()
            assert found.overlap[5].estimate == pytest.approx(share, abs=0.003), name
    d = {"fp16": 12, "int8": 6, "int8_per_vector": 10, "int4": 3, "binary": 1, "pq": 1}[scheme]
    assert got.variants[f"prefix_6_{scheme}"].bytes_per_vector == d


def tied(x: Array, k: int) -> int:
    """Rows whose k-th and next best cosine are one number, from the whole matrix."""
    scores = unit(x) @ unit(x).T
    np.fill_diagonal(scores, -np.inf)
    ranked = -np.sort(-scores, axis=1)
    return int((ranked[:, k - 1] - ranked[:, k] < 1e-12).sum())


def test_ties_are_counted_and_said_for_the_rows_as_given_and_each_variant(
    run: Callable[..., Any],
) -> None:
    """One coordinate leaves two cosines, and signs few; the order of the rows decides what is read."""
    params = {"dims": [1, 6], "schemes": ["binary"], "k": 5}
    got, context = run(compression, vectors=X, labels=LABELS, params=params)
    assert got.native.unresolved == 0
    assert got.variants["prefix_1"].unresolved == tied(X[:, :1], 5) > 70
    assert got.variants["prefix_6"].unresolved == 0
    signs = {one: got.variants[f"{one}_binary"].unresolved for one in ("native", "prefix_6")}
    assert all(count > 40 for count in signs.values())
    warned = {one.where: one.message for one in context.warnings if one.code == "ties"}
    assert warned["results/variants/prefix_1/unresolved"].startswith(
        "`prefix_1`: 80 rows have a tie"
    )
    assert "results/variants/prefix_6/unresolved" not in warned
    assert any("`prefix_1`" in line and "a tie at place 5" in line for line in got.readings())
    twice, context = run(compression, vectors=np.repeat(X[:20], 4, axis=0), params=FEW | {"k": 2})
    assert twice.native.unresolved == 80
    assert "results/native/unresolved" in {one.where for one in context.warnings}
    none, _ = run(compression, vectors=X, params={"dims": [6, 12], "k": 5})
    assert none.variants["prefix_12"].undefined["unresolved"].code == "not_fewer"


def test_intervals_are_over_groups_and_a_change_never_has_one_without_width(
    run: Callable[..., Any], t_interval: Callable[..., tuple[float, float]]
) -> None:
    """Hulls of jackknife-t and Clopper-Pearson, by scipy; a change is between two hulls."""
    got, _ = run(
        compression, vectors=X, labels=LABELS, groups=GROUPS.tolist(), params=FEW | {"dims": [3]}
    )
    before, after = neighbours(X, 5), neighbours(X[:, :3], 5)
    share = shares(before, after)
    change = same_label(after, LABELS) - same_label(before, LABELS)
    found = got.variants["prefix_3"]

    def own(values: Array) -> Array:
        return np.array([values[g == GROUPS].mean() for g in range(11)])

    def exact(total: float, tail: float) -> tuple[float, float]:
        low = stats.beta.ppf(tail, total, 12 - total) if total > 0 else 0.0
        return float(low), float(stats.beta.ppf(1 - tail, total + 1, 11 - total))

    low, high = t_interval(lambda kept: float(share[kept].mean()), GROUPS)
    ends = exact(own(share).sum(), 0.025)
    interval = found.overlap[5].interval
    assert interval.low == pytest.approx(max(0, min(low, ends[0])))
    assert interval.high == pytest.approx(min(1, max(high, ends[1])))
    assert (interval.unit, interval.resamples) == ("group", 11)
    low, high = t_interval(lambda kept: float(change[kept].mean()), GROUPS)
    gains, losses = (exact(np.maximum(s * own(change), 0).sum(), 0.0125) for s in (1, -1))
    interval = found.label_precision_change[5].interval
    assert gains[0] - losses[1] < interval.low <= low
    assert high <= interval.high < gains[1] - losses[0]
    assert (interval.method, interval.unit, interval.resamples) == (
        "jackknife_t+mover",
        "group",
        11,
    )
    same, _ = run(
        compression, vectors=X[:, [0, 1, 2, 2]], labels=["a"] * len(X), groups=GROUPS.tolist(),
        params={"dims": [3], "k": 5},
    )  # fmt: skip
    interval = same.variants["prefix_3"].label_precision_change[5].interval
    assert interval.high == pytest.approx(1 - 0.025 ** (1 / 11))
    assert interval.low == pytest.approx(-interval.high)


@given(seed=st.integers(0, 10**6))
def test_components_do_not_depend_on_the_axes_and_prefixes_do(seed: int) -> None:
    """A rotation of all rows leaves what PCA keeps, whatever it does to coordinates."""
    turn = ortho_group.rvs(12, random_state=seed)
    found = [
        compression.run(
            Context(),
            compression.inputs(vectors=Dataset(rows)),
            compression.params(**FEW),
        )
        for rows in (X, X @ turn)
    ]
    one, other = (made.variants for made in found)
    assert one["pca_6"].overlap == other["pca_6"].overlap
    assert one["pca_3"].explained_variance == pytest.approx(other["pca_3"].explained_variance)
    assert one["prefix_3"].overlap != other["prefix_3"].overlap


def test_the_frontier_holds_what_no_other_beats(run: Callable[..., Any]) -> None:
    """Compared pair by pair; a variant that another equals in all stays."""
    got, _ = run(
        compression, vectors=X, labels=LABELS,
        params={"dims": [9, 6, 3], "k": 5, "schemes": ["fp16", "int8"]},
    )  # fmt: skip
    points = {"native": (96, 1.0, got.native.label_precision[5].estimate)} | {
        name: (v.bytes_per_vector, v.overlap[5].estimate, v.label_precision[5].estimate)
        for name, v in got.variants.items()
    }
    wanted = set()
    for name, (size, overlap, precision) in points.items():
        better = [
            other
            for other, (s, o, p) in points.items()
            if s <= size and o >= overlap and p >= precision
            and (s < size or o > overlap or p > precision)
        ]  # fmt: skip
        if not better:
            wanted.add(name)
    assert set(got.frontier) == wanted
    sizes = [points[name][0] for name in got.frontier]
    assert sizes == sorted(sizes)
    assert 1 < len(wanted) < len(points)
    assert "native" in got.readings()[-1]


def test_dimensions_that_are_not_fewer_are_null_and_none_left_is_refused(
    run: Callable[..., Any], services: Services, store: Callable[..., Any]
) -> None:
    got, _ = run(compression, vectors=X, params={"dims": [12, 6], "k": 5, "schemes": ["fp16"]})
    for name in ("prefix_12", "pca_12", "prefix_12_fp16"):
        assert got.variants[name].undefined["changed_queries"].code == "not_fewer"
    assert got.variants["pca_6_fp16"].changed_queries is not None
    inputs = {"vectors": {"dataset": store(X).id}}
    request = {"kind": "compression", "inputs": inputs, "params": {"dims": [512, 12]}}
    for refused in (
        lambda: submit(services, "default", parse_request(request)),
        lambda: run(compression, vectors=X),
    ):
        with pytest.raises(InvalidRequest) as caught:
            refused()
        assert caught.value.faults[0].pointer == "/params/dims"
        assert "below 12" in caught.value.faults[0].message


def test_a_row_without_a_prefix_is_named(run: Callable[..., Any]) -> None:
    x = X.copy()
    x[[4, 17], :3] = 0
    data = Dataset(x, tuple(f"doc{i}" for i in range(80)))
    with pytest.raises(ZeroRows) as caught:
        run(compression, vectors=data, params=FEW)
    (fault,) = caught.value.faults
    assert (fault.count, fault.rows) == (2, ["doc4", "doc17"])
    assert "leave 3 out of `dims`" in fault.message
    got, _ = run(compression, vectors=data, params={"dims": [6], "k": 5})
    assert got.variants["prefix_6"].changed_queries is not None


def test_a_row_at_the_train_mean_keeps_no_direction(run: Callable[..., Any]) -> None:
    """Its projection is zero: counted and warned of, and its cosines read 0."""
    train = np.array([[0, 2.0, 0], [0, 0, 2], [0, -1, 0], [0, 0, -1]])
    x = np.vstack([np.random.default_rng(3).normal(size=(6, 3)), [[1.0, 0, 0]]])
    got, context = run(compression, vectors=x, train=train, params={"dims": [2], "k": 2})
    assert got.variants["pca_2"].zero_rows == 1
    assert "rows_read_as_zero" in {warned.code for warned in context.warnings}


def test_train_rows_that_vary_in_too_few_directions_leave_components_undefined(
    run: Callable[..., Any],
) -> None:
    got, _ = run(compression, vectors=X, train=X[:4], params={"dims": [6, 3], "k": 5})
    assert got.variants["pca_6"].overlap[5].undefined["estimate"].code == "too_few_components"
    assert got.variants["pca_3"].changed_queries is not None
    got, _ = run(compression, vectors=X, params=FEW | {"schemes": ["pq"]})
    assert got.variants["pca_6_pq"].undefined["changed_queries"].code == "too_few_rows"


def test_without_labels_there_is_no_label_precision(run: Callable[..., Any]) -> None:
    got, _ = run(compression, vectors=X, params=FEW)
    assert got.native.label_precision[5].undefined["estimate"].code == "no_labels"
    found = got.variants["pca_3"]
    assert found.label_precision_change[5].undefined["estimate"].code == "no_labels"


def body(**inputs: Any) -> dict[str, Any]:
    return {"kind": "compression", "inputs": inputs, "params": {"dims": [3]}}


def test_a_refusal_says_where_and_what_to_do(services: Services, store: Callable[..., Any]) -> None:
    whole = {"dataset": store(X).id}
    cases = [
        (TooFewRows, "/inputs/vectors", {"vectors": {"dataset": store(X[:9]).id}}),
        (DimensionMismatch, "/inputs/train",
         {"vectors": whole, "train": {"dataset": store(TRAIN[:, :7]).id}}),
        (TooFewRows, "/inputs/train", {"vectors": whole, "train": {"dataset": store(X[:1]).id}}),
    ]  # fmt: skip
    for error, pointer, inputs in cases:
        with pytest.raises(error) as caught:
            submit(services, "default", parse_request(body(**inputs)))
        assert pointer in [fault.pointer for fault in caught.value.faults]


def test_a_gate_judges_variants_by_name(services: Services, store: Callable[..., Any]) -> None:
    """Those that read null decide nothing."""
    policy = {
        "version": 1,
        "name": "half-the-bytes",
        "inputs": {"rows": "vectors"},
        "checks": {
            "small": {
                "kind": "compression",
                "inputs": {"vectors": "rows"},
                "params": {"dims": [40, 6], "k": 5, "schemes": ["int8"]},
            }
        },
        "rules": [
            {"measure": f"small.variants.{name}.overlap@5", "at_least": 0.1}
            for name in ("prefix_6", "pca_6_int8", "native_int8", "pca_40")
        ],
    }
    run = run_gate(services, "default", policy, {"rows": {"dataset": store(X).id}}, {})
    for job in run.jobs.values():
        perform(services, job)
    judged = read_gate(services, "default", run.id)
    assert [rule.verdict for rule in judged.rules] == ["pass", "pass", "pass", "inconclusive"]
