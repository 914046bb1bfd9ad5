"""Model comparison against stored readings, whole matrices, other libraries and intervals by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.linalg import orthogonal_procrustes
from scipy.stats import ortho_group

from service.check import Context
from service.checks.model_comparison import model_comparison
from service.dataset import Dataset, Labels
from service.errors import InvalidRequest, TooFewRows
from service.gating import read_gate, run_gate
from service.numerics import pair_ranks
from service.numerics.alignment import PairSplit
from service.numerics.moments import Units
from service.operations import Services, perform, submit
from service.request import parse_request
from tests.stored_by_hand import top, unit

Array = NDArray[Any]
RANDOM = np.random.default_rng(20)
ONE = RANDOM.normal(0.3, 1, size=(70, 12))
OTHER = np.hstack([ONE[:, :5], np.zeros((70, 2))]) + 0.6 * RANDOM.normal(size=(70, 7))
GROUPS = np.arange(70) % 9


def compare(
    models: dict[str, Any],
    *,
    groups: Any = None,
    seed: int = 0,
    threads: int = 1,
    params: Any = None,
) -> tuple[Any, Context]:
    context = Context(seed=seed, threads=threads)
    given = {
        name: rows if isinstance(rows, Dataset) else Dataset(rows) for name, rows in models.items()
    }
    labels = None if groups is None else Labels.of(np.asarray(groups).tolist())
    inputs = model_comparison.inputs(models=given, groups=labels)
    return model_comparison.run(context, inputs, model_comparison.params(**(params or {}))), context


def lists(x: Array, k: int) -> list[set[int]]:
    scores = unit(x) @ unit(x).T
    np.fill_diagonal(scores, -np.inf)
    return [set(found) for found in top(scores, k)]


def sets(x: Array, y: Array, k: int) -> dict[str, Array]:
    """Numbers of each row from the definition, with Python sets."""
    one, other = lists(x, k), lists(y, k)
    mutual = [
        [{j for j in found[i] if i in found[j]} for found in (one, other)] for i in range(len(x))
    ]
    return {
        "overlap": np.array([len(a & b) / k for a, b in zip(one, other, strict=True)]),
        "jaccard": np.array([len(a & b) / len(a | b) for a, b in zip(one, other, strict=True)]),
        "mutual": np.array([len(a & b) / len(a | b) if a | b else np.nan for a, b in mutual]),
        "changed": np.array([float(a != b) for a, b in zip(one, other, strict=True)]),
    }


def debiased_cka(x: Array, y: Array) -> float:
    """Inner products of U-centred Gram matrices (Szekely and Rizzo 2014), the long way."""

    def centred(rows: Array) -> Array:
        n, gram = len(rows), rows @ rows.T
        np.fill_diagonal(gram, 0)
        sums = gram.sum(axis=1)
        out = gram - (sums[:, None] + sums[None]) / (n - 2) + sums.sum() / ((n - 1) * (n - 2))
        np.fill_diagonal(out, 0)
        return np.asarray(out)

    a, b = centred(x), centred(y)
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def rank_correlation(x: Array, y: Array) -> float:
    first, second = np.triu_indices(len(x), 1)
    cosines = [(unit(rows) @ unit(rows).T)[first, second] for rows in (x, y)]
    return float(stats.spearmanr(*cosines).statistic)


@pytest.mark.parametrize(
    ("other", "changed", "reading"),
    [
        ("minilm_int8", 458, "neighbours_minilm_vs_minilm_int8"),
        ("e5small_q4", 2943, "neighbours_minilm_vs_e5small_q4"),
    ],
)
def test_changed_sets_and_overlap_are_the_references(
    other: str,
    changed: int,
    reading: str,
    rows: Callable[[str], Array],
    reference: dict[str, Any],
    printed: Callable[[Any], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An independent script sorted whole matrices."""
    monkeypatch.setattr(pair_ranks, "EXACT_ROWS", 100)
    monkeypatch.setattr(pair_ranks, "SAMPLED_PAIRS", 1 << 14)
    got, _ = compare({"minilm": rows("clinc150/minilm"), other: rows(f"clinc150/{other}")})
    pair, wanted = got.pairs[other]["minilm"], reference["clinc150"][reading]
    assert pair.changed_sets == wanted["changed"] == changed
    assert pair.overlap[10].estimate == printed(wanted["overlap_at_10"])
    x, y = (unit(rows(f"clinc150/{name}").astype(float)) for name in ("minilm", other))
    assert pair.cka.estimate == pytest.approx(debiased_cka(x, y), rel=1e-9)
    drawn = pair.spearman.estimate - rank_correlation(x, y)
    assert 0 < pair.spearman_error < 0.02
    assert abs(drawn) < 4 * pair.spearman_error


@pytest.mark.parametrize("k", [1, 4, 30])
@pytest.mark.parametrize("grouped", [True, False])
def test_sets_of_neighbours_and_their_intervals_are_those_of_the_definition(
    grouped: bool, k: int, t_interval: Callable[..., tuple[float, float]]
) -> None:
    """Python sets over sorted matrices; hulls of jackknife-t and Clopper-Pearson by scipy."""
    got, _ = compare(
        {"one": ONE, "other": OTHER}, groups=GROUPS if grouped else None, params={"k": k}
    )
    pair, by_hand = got.pairs["other"]["one"], sets(ONE, OTHER, k)
    units = GROUPS if grouped else np.arange(70)
    for name in ("overlap", "jaccard", "mutual", "changed"):
        values = by_hand[name]
        found = pair.changed if name == "changed" else getattr(pair, name)[k]
        known = np.isfinite(values)
        assert found.estimate == pytest.approx(values[known].mean())
        low = high = values[known].mean()
        if np.ptp(values[known]) > 0:
            low, high = t_interval(
                lambda kept, values=values[known]: float(values[kept].mean()), units[known]
            )
        own = [values[known & (units == unit)].mean() for unit in np.unique(units[known])]
        count, total = len(own), sum(own)
        exact_low = stats.beta.ppf(0.025, total, count - total + 1) if total > 0 else 0.0
        exact_high = stats.beta.ppf(0.975, total + 1, count - total) if total < count else 1.0
        assert found.interval.low == pytest.approx(max(0, min(low, exact_low)))
        assert found.interval.high == pytest.approx(min(1, max(high, exact_high)))
        assert found.interval.unit == ("group" if grouped else "row")
    assert pair.mutual_excluded == np.isnan(by_hand["mutual"]).sum()
    assert (pair.mutual_excluded > 0) == (k == 1)
    assert pair.changed_sets == by_hand["changed"].sum()
    assert got.overlap_chance == pytest.approx(k / 69)


def test_similarities_are_those_of_whole_matrices_and_their_intervals_of_refitting(
    t_interval: Callable[..., tuple[float, float]],
) -> None:
    """Every statistic again without each group in turn."""
    got, _ = compare({"one": ONE, "other": OTHER}, groups=GROUPS)
    pair = got.pairs["other"]["one"]
    x, y = unit(ONE), unit(OTHER)
    for found, statistic in (
        (pair.cka, lambda kept: debiased_cka(x[kept], y[kept])),
        (pair.spearman, lambda kept: rank_correlation(x[kept], y[kept])),
    ):
        assert found.estimate == pytest.approx(statistic(np.ones(70, bool)))
        low, high = t_interval(statistic, GROUPS)
        assert (found.interval.low, found.interval.high) == pytest.approx((low, high))
        assert found.interval.resamples == 9
    assert pair.spearman_error == 0
    assert got.pairs_of_rows == 70 * 69 // 2


def test_the_held_out_residual_is_scipys_and_its_interval_is_of_held_out_groups(
    t_interval: Callable[..., tuple[float, float]],
) -> None:
    """The map of unit rows, padded with zeros, fitted on the train half; groups stay whole."""
    got, context = compare({"one": ONE, "other": OTHER}, groups=GROUPS, seed=3)
    found = got.pairs["other"]["one"].procrustes
    split = PairSplit.of(Units.groups(GROUPS), 3, 70)
    assert not set(GROUPS[split.train]) & set(GROUPS[split.test])
    assert (found.train_rows, found.test_rows) == (len(split.train), len(split.test))
    x, y = unit(ONE), np.pad(unit(OTHER), ((0, 0), (0, 5)))
    x, y = (rows - rows[split.train].mean(axis=0) for rows in (x, y))
    turn, total = orthogonal_procrustes(y[split.train], x[split.train])
    scale = total / np.square(y[split.train]).sum()
    a, b = x[split.test], scale * y[split.test] @ turn

    def residual(kept: Array) -> float:
        return float(np.square(a - b)[kept].sum() / np.square(a)[kept].sum())

    assert found.residual.estimate == pytest.approx(residual(np.ones(len(a), bool)))
    low, high = t_interval(residual, GROUPS[split.test])
    if found.residual.interval is not None:
        ends = (found.residual.interval.low, found.residual.interval.high)
        assert ends == pytest.approx((low, high))
    assert len(np.unique(GROUPS[split.test])) < 5 or found.residual.interval is not None
    assert "underdetermined_map" not in {warned.code for warned in context.warnings}


@given(seed=st.integers(0, 10**6))
def test_a_model_agrees_with_its_rotation_wholly_and_with_noise_by_chance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(60, 4))
    turned = 3 * x @ ortho_group.rvs(4, random_state=seed)
    got, _ = compare({"a": x, "b": turned, "c": rng.normal(size=(60, 9))}, params={"k": 5})
    same, apart = got.pairs["b"]["a"], got.pairs["c"]["a"]
    assert same.overlap[5].estimate == same.mutual[5].estimate == 1
    assert same.changed_sets == 0
    assert same.most_changed == []
    assert same.spearman.estimate == pytest.approx(1, abs=1e-9)
    assert same.cka.estimate == pytest.approx(1)
    assert same.procrustes.residual.estimate < 1e-20
    assert apart.overlap[5].estimate < 0.25
    assert abs(apart.cka.estimate) < 0.3
    assert apart.procrustes.residual.estimate > 0.6


def test_rows_as_given_are_compared_where_that_is_asked_for() -> None:
    """Lengths change CKA and the residual; neighbours and ranks are of cosines."""
    lengths = np.geomspace(0.01, 100, 70)[:, None]
    models = {"one": ONE * lengths, "other": OTHER * lengths}
    raw, _ = compare(models, params={"normalise": False})
    whole, _ = compare(models)
    one, other = raw.pairs["other"]["one"], whole.pairs["other"]["one"]
    assert one.overlap == other.overlap
    assert one.spearman == other.spearman
    assert one.cka.estimate == pytest.approx(debiased_cka(ONE * lengths, OTHER * lengths))
    assert one.cka.estimate != pytest.approx(other.cka.estimate, rel=1e-3)


def test_the_rows_that_changed_most_are_named_by_their_ids() -> None:
    ids = tuple(f"doc{i}" for i in range(70))
    got, _ = compare({"one": ONE, "other": Dataset(OTHER, ids)}, params={"k": 6, "most_changed": 8})
    overlap = sets(ONE, OTHER, 6)["overlap"]
    order = sorted(range(70), key=lambda i: (overlap[i], i))[:8]
    listed = got.pairs["other"]["one"].most_changed
    assert [row.id for row in listed] == [ids[i] for i in order]
    assert [row.overlap for row in listed] == pytest.approx(overlap[order])


def test_each_pair_stands_once_and_is_found_by_either_order() -> None:
    got, _ = compare({"a": ONE, "b": OTHER, "c": ONE[:, :6]}, params={"k": 4})
    written = got.model_dump()["pairs"]
    assert {later: list(others) for later, others in written.items()} == {
        "b": ["a"], "c": ["a", "b"],
    }  # fmt: skip
    either = got.value("pairs")
    assert either["a"]["c"] is either["c"]["a"] is got.pairs["c"]["a"]
    assert got.value("n") == 70


def test_what_does_not_vary_is_undefined_and_says_why() -> None:
    got, context = compare({"flat": np.full((30, 3), 0.1), "one": ONE[:30]}, params={"k": 3})
    pair = got.pairs["one"]["flat"]
    for estimate in (pair.cka, pair.spearman, pair.procrustes.residual):
        assert estimate.estimate is None
        assert estimate.undefined["estimate"].code == "no_spread"
    assert pair.undefined["spearman_error"].code == "no_spread"
    assert got.models["flat"].unresolved == 30
    assert "ties" in {warned.code for warned in context.warnings}
    assert pair.overlap[3].estimate is not None


def test_few_rows_to_fit_on_are_warned_of() -> None:
    rng = np.random.default_rng(1)
    _, context = compare({"a": rng.normal(size=(30, 40)), "b": rng.normal(size=(30, 4))})
    assert "underdetermined_map" in {warned.code for warned in context.warnings}


def test_a_census_has_no_intervals_and_four_groups_are_too_few() -> None:
    for groups, params, code in (
        (None, {"census": True}, "census"),
        (np.arange(70) % 4, {}, "too_few_groups"),
    ):
        got, _ = compare({"one": ONE, "other": OTHER}, groups=groups, params=params)
        pair = got.pairs["other"]["one"]
        for estimate in (pair.overlap[10], pair.spearman, pair.cka, pair.procrustes.residual):
            assert estimate.estimate is not None
            assert estimate.undefined["interval"].code == code


def test_many_rows_have_drawn_pairs_and_any_number_of_threads_draws_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pair_ranks, "EXACT_ROWS", 50)
    monkeypatch.setattr(pair_ranks, "SAMPLED_PAIRS", 1 << 13)
    texts = {
        compare({"one": ONE, "other": OTHER}, threads=threads)[0].model_dump_json()
        for threads in (1, 2, 3)
    }
    assert len(texts) == 1
    got, _ = compare({"one": ONE, "other": OTHER})
    pair = got.pairs["other"]["one"]
    assert got.pairs_of_rows == 1 << 13
    assert pair.spearman_error > 0
    assert pair.spearman.interval.resamples == 32
    assert abs(pair.spearman.estimate - rank_correlation(ONE, OTHER)) < 5 * pair.spearman_error


def test_no_measure_is_a_cosine_between_two_models() -> None:
    """Closed form: their spaces have no axes in common."""
    assert not [m.path for m in model_comparison.measures if "cosine" in m.path]
    assert any("No cosine" in line for line in model_comparison.scope)


def body(*models: Any, **params: Any) -> dict[str, Any]:
    return {"kind": "model_comparison", "inputs": {"models": list(models)}, "params": params}


def test_a_refusal_says_where_and_what_to_do(services: Services, store: Callable[..., Any]) -> None:
    one, other, few = store(ONE), store(OTHER), store(ONE[:10])
    with pytest.raises(InvalidRequest) as caught:
        parse_request(body({"dataset": one.id}))
    assert caught.value.faults[0].pointer == "/inputs/models"
    assert "at least 2" in caught.value.faults[0].message
    with pytest.raises(TooFewRows) as few_rows:
        submit(
            services, "default", parse_request(body({"dataset": few.id}, {"dataset": few.id}, k=10))
        )
    assert few_rows.value.faults[0].pointer == "/inputs/models/0"
    assert "a smaller `k`" in few_rows.value.faults[0].message
    submit(services, "default", parse_request(body({"dataset": one.id}, {"dataset": other.id})))


def test_a_gate_finds_a_pair_by_either_order(services: Services, store: Callable[..., Any]) -> None:
    """Agreement has no sign: both orders are judged on the same numbers."""
    paths = [f"agree.pairs.{pair}.{m}" for pair in ("a.b", "b.a") for m in ("overlap@5", "cka")]
    policy = {
        "version": 1,
        "name": "same-space",
        "inputs": {"old": "vectors", "new": "vectors"},
        "checks": {
            "agree": {
                "kind": "model_comparison",
                "inputs": {
                    "models": [{"name": "a", "vectors": "old"}, {"name": "b", "vectors": "new"}]
                },
                "params": {"k": 5},
            }
        },
        "rules": [{"measure": path, "at_least": 0.05} for path in paths],
    }
    given = {"old": {"dataset": store(ONE).id}, "new": {"dataset": store(OTHER).id}}
    run = run_gate(services, "default", policy, given, {})
    for job in run.jobs.values():
        perform(services, job)
    judged = read_gate(services, "default", run.id)
    assert judged.verdict == "pass"
    observed = [rule.observed for rule in judged.rules]
    assert observed[:2] == observed[2:]
    assert observed[0] == pytest.approx(sets(ONE, OTHER, 5)["overlap"].mean())
