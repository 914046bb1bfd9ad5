"""Retrieval against stored readings, whole matrices, and rankings counted one by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from service.check import Context
from service.checks.retrieval import retrieval
from service.dataset import Dataset, Labels
from service.numerics.compiled import draw_counts, stream_key
from service.relevance import Relevance

Array = NDArray[Any]
Models = dict[str, tuple[Array, Array]]
ENCODERS = ("minilm", "e5small_q4")
OWN: list[list[int]] = [[i] for i in range(1996)]
SENTENCES = [[5 * i + j for j in range(5)] for i in range(300)]
TITLES = [[i // 5] for i in range(1500)]


def run(
    models: Models,
    relevant: list[Any],
    groups: list[Any] | None = None,
    context: Context | None = None,
    **params: Any,
) -> Any:
    """Results of (queries, documents) by model name."""
    inputs = retrieval.inputs(
        models={
            name: {"queries": Dataset(queries), "documents": Dataset(documents)}
            for name, (queries, documents) in models.items()
        },
        relevance=Relevance.of(relevant),
        groups=None if groups is None else Labels.of(groups),
    )
    return retrieval.run(context or Context(threads=2), inputs, retrieval.params(**params))


@pytest.fixture(scope="session")
def debian(rows: Callable[[str], Array]) -> Any:
    """Both encoders from short lines to long texts, or the other way round."""

    def ask(turned: bool, ks: tuple[int, ...] = (1, 10)) -> Any:
        ends = ("doc", "query") if turned else ("query", "doc")
        return run(
            {
                name: (
                    rows(f"debian_pairs/{name}_{ends[0]}"),
                    rows(f"debian_pairs/{name}_{ends[1]}"),
                )
                for name in ENCODERS
            },
            OWN,
            ks=list(ks),
        )

    return ask


@pytest.mark.parametrize("turned", [False, True], ids=["query_to_doc", "doc_to_query"])
def test_package_descriptions_read_as_the_reference_does(
    turned: bool, debian: Any, reference: dict[str, Any], printed: Any
) -> None:
    """reference.json, both encoders: Hit@1, Hit@10, MRR, median rank, mean margin, share positive."""
    found = debian(turned)
    for name in ENCODERS:
        model = found.models[name]
        expected = reference["debian_pairs"][name]["retrieval"][
            "doc_to_query" if turned else "query_to_doc"
        ]
        assert model.hit[1].estimate == printed(expected["Hit@1"])
        assert model.hit[10].estimate == printed(expected["Hit@10"])
        assert model.mrr.estimate == printed(expected["MRR"])
        assert model.first_rank.median == expected["median_rank"]
        assert model.margin_mean.estimate == printed(expected["margin_M_mean"])
        assert model.margin_positive.estimate == printed(expected["margin_positive"])
        assert model.map.estimate == printed(expected["MRR"])  # one relevant document each
        assert found.chance_hit[10] == pytest.approx(10 / 1996)


@pytest.mark.parametrize("shift", [0, 1], ids=["native", "control_shift1"])
@pytest.mark.parametrize("name", ENCODERS)
def test_titles_and_sentences_read_as_the_reference_does(
    name: str, shift: int, rows: Callable[[str], Array], reference: dict[str, Any], printed: Any
) -> None:
    """reference.json: as they are, and with the relevance of the next abstract."""
    titles, sentences = (rows(f"scifact_titles/{name}/{one}") for one in ("titles", "sentences"))
    expected = reference["scifact_titles"][name]["control_shift1" if shift else "native"]
    there = run({name: (titles, sentences)}, SENTENCES[shift:] + SENTENCES[:shift], ks=[1, 10])
    moved = [[(row - shift) % 300] for (row,) in TITLES] if shift else TITLES
    back = run({name: (sentences, titles)}, moved, ks=[1, 10])
    for found, key in ((there, "title_to_sentence"), (back, "sentence_to_title")):
        model = found.models[name]
        assert model.hit[1].estimate == printed(expected[key]["Hit@1"])
        assert model.hit[10].estimate == printed(expected[key]["Hit@10"])
        assert model.mrr.estimate == printed(expected[key]["MRR"])
    assert there.models[name].recall[10].estimate == printed(
        expected["title_to_sentence"]["recall@10"]
    )
    assert there.chance_hit[10] == pytest.approx(1 - stats.hypergeom(1500, 5, 10).pmf(0))


@pytest.mark.parametrize("name", ENCODERS)
def test_the_layers_stand_beside_the_ranks(
    name: str, rows: Callable[[str], Array], reference: dict[str, Any], printed: Any
) -> None:
    """reference.json: R2 and mean W~ of the five sentences of each abstract, and its null."""
    titles, sentences = (rows(f"scifact_titles/{name}/{one}") for one in ("titles", "sentences"))
    expected = reference["scifact_titles"][name]["sentence_groups"]
    found = run({name: (titles, sentences)}, SENTENCES, ks=[10]).models[name].layers
    assert found.document_groups == 300
    assert found.document_r2.estimate == printed(expected["R2"])
    assert found.document_r2_expected == printed(expected["R2_expected_null"])
    assert found.document_w_tilde.estimate == printed(expected["Wtilde_mean"])
    assert found.query_w_tilde.undefined["estimate"].code == "no_groups"
    groups = [i // 5 for i in range(1500)]
    turned = run({name: (sentences, titles)}, TITLES, groups, ks=[10]).models[name].layers
    assert turned.query_w_tilde.estimate == printed(expected["Wtilde_mean"])
    assert turned.document_w_tilde.undefined["estimate"].code == "singletons"
    assert turned.w_tilde_ratio is None


def derangements(count: int) -> list[tuple[int, ...]]:
    return [
        order
        for order in itertools.permutations(range(count))
        if all(place != i for i, place in enumerate(order))
    ]


def test_the_shuffled_control_is_the_mean_over_all_derangements() -> None:
    """Every one of the 44 derangements of five sets, each a run of its own; with and without ties."""
    random = np.random.default_rng(2)
    queries, documents = random.normal(size=(8, 3)), random.normal(size=(13, 3))
    documents[5] = documents[0]
    documents[9] = documents[1]
    sets = [[0, 1], [2, 3, 4], [5], [6, 7], [8, 9]]
    own = [0, 1, 2, 3, 4, 0, 2, 4]
    found = run({"m": (queries, documents)}, [sets[s] for s in own], ks=[1, 2, 5])
    for k in (1, 2, 5):
        hits = [
            run({"m": (queries, documents)}, [sets[order[s]] for s in own], ks=[k])
            .models["m"]
            .hit[k]
            .estimate
            for order in derangements(5)
        ]
        assert found.models["m"].shuffled_hit[k] == pytest.approx(np.mean(hits), abs=1e-12)


def test_the_shuffled_control_of_a_constant_scorer_is_chance() -> None:
    """All documents tied far beyond any list: a set of two is among the first k as by chance."""
    same = np.ones((90, 2))
    found = run({"m": (same[:30], same)}, [[2 * i, 2 * i + 1] for i in range(30)], ks=[1, 4])
    model = found.models["m"]
    for k in (1, 4):
        chance = 1 - stats.hypergeom(90, 2, k).pmf(0)
        assert found.chance_hit[k] == pytest.approx(chance)
        assert model.hit[k].estimate == pytest.approx(chance)
        assert model.shuffled_hit[k] == pytest.approx(chance)
        assert model.tied_at_cutoff[k] == 30
    assert model.coincident == 30
    assert model.margin_mean.undefined["estimate"].code == "coincident"
    assert model.margin_positive.estimate == 0


def test_the_published_controls(rows: Callable[[str], Array]) -> None:
    """Stated with the definition: scifact at k = 10, chance .033, shuffled control .015."""
    titles, sentences = (rows(f"scifact_titles/minilm/{one}") for one in ("titles", "sentences"))
    found = run({"m": (titles, sentences)}, SENTENCES, ks=[10])
    assert found.chance_hit[10] == pytest.approx(0.033, abs=5e-4)
    assert found.models["m"].shuffled_hit[10] == pytest.approx(0.015, abs=5e-4)


def test_margins_are_those_of_the_whole_matrix_of_distances() -> None:
    """Plain numpy: nearest relevant and nearest other document of each query."""
    random = np.random.default_rng(4)
    queries, documents = random.normal(size=(40, 6)), random.normal(size=(60, 6))
    relevant = [sorted(random.choice(60, 3, replace=False).tolist()) for _ in range(40)]
    found = run({"m": (3 * queries, documents)}, relevant, ks=[1]).models["m"]
    q, g = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, documents))
    squares = ((q[:, None] - g[None]) ** 2).sum(axis=2)
    margins = []
    for i, some in enumerate(relevant):
        others = np.setdiff1d(np.arange(60), some)
        own, off = squares[i, some].min(), squares[i, others].min()
        margins.append((off - own) / (off + own))
    assert found.margin_mean.estimate == pytest.approx(np.mean(margins), rel=1e-12)
    assert found.margin.median == pytest.approx(np.median(margins), rel=1e-12)
    assert found.margin_positive.estimate == pytest.approx(np.mean(np.array(margins) > 0))
    assert found.margin_positive.estimate == found.hit[1].estimate


def by_group(values: Array, groups: list[Any]) -> Array:
    return np.array([values[np.array(groups) == one].mean() for one in dict.fromkeys(groups)])


def test_groups_weigh_the_same_and_models_are_paired() -> None:
    """By hand: mean per group, then over groups; a paired t test of the group means; Holm."""
    random = np.random.default_rng(5)
    documents = random.normal(size=(50, 8))
    groups = [int(g) for g in np.repeat(range(12), random.integers(1, 6, size=12))]
    m = len(groups)
    relevant = [[int(random.integers(50))] for _ in range(m)]
    right = documents[[row for (row,) in relevant]]
    models = {
        name: (right + noise * random.normal(size=(m, 8)), documents)
        for name, noise in (("a", 0.8), ("b", 1.0), ("c", 1.6))
    }
    found = run(models, relevant, groups, ks=[1, 5])
    values: dict[str, Array] = {}
    for name, (queries, gallery) in models.items():
        q, g = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, gallery))
        scores = q @ g.T
        own = scores[np.arange(m), [row for (row,) in relevant]]
        values[name] = 1 / (1 + (scores > own[:, None]).sum(axis=1))
        assert found.models[name].mrr.estimate == pytest.approx(
            by_group(values[name], groups).mean(), rel=1e-12
        )
        assert found.models[name].mrr.interval.unit == "group"
        assert found.models[name].mrr.interval.resamples == 12
    raw = {}
    for later, earlier in (("b", "a"), ("c", "a"), ("c", "b")):
        difference = found.differences[later][earlier]
        change = by_group(values[later] - values[earlier], groups)
        assert difference.mrr.estimate == pytest.approx(change.mean(), abs=1e-12)
        raw[later, earlier] = stats.ttest_1samp(change, 0).pvalue
        assert difference.tests.mrr.p == pytest.approx(raw[later, earlier], rel=1e-9)
        half = stats.t.interval(0.95, df=11, loc=change.mean(), scale=stats.sem(change))
        assert difference.mrr.interval.low <= half[0] + 1e-12
        assert difference.mrr.interval.high >= half[1] - 1e-12
    ordered = sorted(raw, key=lambda pair: raw[pair])
    highest = 0.0
    for place, pair in enumerate(ordered):
        highest = max(highest, min(1.0, (3 - place) * raw[pair]))
        assert found.differences[pair[0]][pair[1]].tests.mrr.p_holm == pytest.approx(highest)
    assert "a" not in found.differences


def test_perfect_ranks_still_have_an_interval() -> None:
    """Zero variance is not zero width: Clopper-Pearson of 40 of 40, and of no change in 40."""
    x = np.random.default_rng(6).normal(size=(40, 9))
    found = run({"a": (x, x), "b": (2 * x, x)}, [[i] for i in range(40)], ks=[1])
    hit = found.models["a"].hit[1]
    assert (hit.estimate, hit.interval.high) == (1, 1)
    assert hit.interval.low == pytest.approx(0.025 ** (1 / 40))
    change = found.differences["b"]["a"]
    assert change.hit[1].estimate == 0
    assert change.hit[1].interval.low < 0 < change.hit[1].interval.high
    assert change.hit[1].interval.high == pytest.approx(1 - 0.025 ** (1 / 40))
    assert change.tests.hit[1].undefined["p"].code == "not_estimable"


def noisy(documents: Array, right: list[int], *noises: float) -> Models:
    """Models whose queries are their right document and noise."""
    rng = np.random.default_rng(8)
    shape = (len(right), documents.shape[1])
    return {
        name: (documents[right] + noise * rng.normal(size=shape), documents)
        for name, noise in zip("ab", noises, strict=False)
    }


def assert_times(found: Any, other: Any, factor: float) -> None:
    assert found.estimate == pytest.approx(factor * other.estimate, rel=1e-12, abs=1e-15)
    for end in ("low", "high"):
        expected = factor * getattr(other.interval, end)
        assert getattr(found.interval, end) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_precision_of_one_relevant_document_is_hits_share_of_k_and_so_is_its_interval() -> None:
    """Closed form: precision@10 is hit@10 over 10, which cannot pass .1; so do changes."""
    documents = np.random.default_rng(7).normal(size=(90, 6))
    right = list(range(60))
    found = run(noisy(documents, right, 0.6, 0.9), [[i] for i in right], ks=[1, 10])
    for model in found.models.values():
        assert 0.5 < model.hit[10].estimate < 1
        assert_times(model.precision[10], model.hit[10], 0.1)
        assert_times(model.precision[1], model.hit[1], 1)
        assert model.precision[10].interval.high <= 0.1
    change = found.differences["b"]["a"]
    assert_times(change.precision[10], change.hit[10], 0.1)
    ours, theirs = (getattr(change.tests, name)[10] for name in ("precision", "hit"))
    assert ours.p == pytest.approx(theirs.p, rel=1e-9)
    assert ours.simultaneous.high == pytest.approx(theirs.simultaneous.high / 10, rel=1e-9)


def test_recall_below_the_number_of_relevant_documents_is_a_part_of_precision() -> None:
    """Closed form: of 20 relevant documents the first 5 hold a quarter at most, 5/20 of precision@5."""
    documents = np.random.default_rng(9).normal(size=(200, 6))
    right = list(range(0, 200, 4))
    relevant = [list(range(i - i % 20, i - i % 20 + 20)) for i in right]
    found = run(noisy(documents, right, 0.3, 0.9), relevant, ks=[5, 20])
    for model in found.models.values():
        assert_times(model.recall[5], model.precision[5], 0.25)
        assert_times(model.recall[20], model.precision[20], 1)
    change = found.differences["b"]["a"]
    assert_times(change.recall[5], change.precision[5], 0.25)


def test_where_numbers_of_relevant_documents_differ_the_largest_bounds_precision() -> None:
    """By hand: 36 queries find their 1 and 12 their 3 among ten; Clopper-Pearson of shares of .3."""
    documents = np.repeat(np.eye(48), 3, axis=0) + 1e-3 * np.arange(144)[:, None]
    relevant = [[3 * i + j for j in range(1 + 2 * (i % 4 == 0))] for i in range(48)]
    found = run({"a": (np.eye(48), documents)}, relevant, ks=[10]).models["a"].precision[10]
    values = np.array([len(some) / 10 for some in relevant])
    trials = len(values)
    successes = values.sum() / 0.3
    exact = stats.beta.ppf([0.025, 0.975], [successes, successes + 1], [
        trials - successes + 1, trials - successes,
    ])  # fmt: skip
    half = stats.t.interval(0.95, df=trials - 1, loc=values.mean(), scale=stats.sem(values))
    assert found.estimate == pytest.approx(values.mean())
    assert found.interval.low == pytest.approx(min(0.3 * exact[0], half[0]), rel=1e-9)
    assert found.interval.high == pytest.approx(max(0.3 * exact[1], half[1]), rel=1e-9)
    assert found.interval.high < 0.3


def test_grades_count_in_ndcg_alone() -> None:
    """Gains of trec_eval: grade over log2(1 + rank); the better document second."""
    documents = np.array([[1.0, 0.0], [0.9, 0.4], [0.0, 1.0]])
    query = np.array([[1.0, 0.0]])
    found = run({"m": (query, documents)}, [[(0, 1.0), (1, 3.0)]], ks=[1, 2]).models["m"]
    assert found.ndcg[1].estimate == pytest.approx(1 / 3)
    ideal = 3 + 1 / np.log2(3)
    assert found.ndcg[2].estimate == pytest.approx((1 + 3 / np.log2(3)) / ideal)
    assert found.hit[1].estimate == 1
    assert found.map.estimate == 1


def test_a_dot_product_ranks_by_length_too_and_has_no_margin() -> None:
    """The longer document comes first; null with a reason where distances mean nothing."""
    documents = np.array([[1.0, 0.1], [9.0, 9.0], [0.0, 1.0]])
    query = np.array([[1.0, 0.0]])
    by_dot = run({"m": (query, documents)}, [[0]], ks=[1], scoring="dot").models["m"]
    by_cosine = run({"m": (query, documents)}, [[0]], ks=[1]).models["m"]
    assert (by_dot.hit[1].estimate, by_cosine.hit[1].estimate) == (0, 1)
    assert by_dot.margin_mean.undefined["estimate"].code == "scored_by_dot"
    assert by_dot.margin_positive.estimate == 0


def test_what_cannot_be_said_is_null_with_a_reason() -> None:
    """Everything relevant; sets that overlap; one set; few groups; a census."""
    x = np.random.default_rng(7).normal(size=(6, 4))
    every = run({"m": (x[:2], x[:3])}, [[0, 1, 2]] * 2, ks=[1]).models["m"]
    assert every.margin_positive.undefined["estimate"].code == "no_other_documents"
    assert every.undefined["shuffled_hit@1"].code == "one_set"
    mixed = run({"m": (x[:2], x)}, [[0, 1], [1, 2]], ks=[1]).models["m"]
    assert mixed.undefined["shuffled_hit@1"].code == "overlapping_positives"
    assert mixed.layers.document_r2.undefined["estimate"].code == "overlapping_positives"
    few = run({"m": (x, x)}, [[i] for i in range(6)], list("aabbcc"), ks=[1]).models["m"]
    assert few.hit[1].undefined["interval"].code == "too_few_groups"
    census = run({"m": (x, x)}, [[i] for i in range(6)], ks=[1], census=True).models["m"]
    assert census.hit[1].undefined["interval"].code == "census"


def test_the_report_warns_of_ties_and_of_easy_cutoffs() -> None:
    """Where the reader has to look."""
    context = Context()
    run({"m": (np.ones((5, 2)), np.ones((6, 2)))}, [[0]] * 5, context=context, ks=[1, 4])
    assert [(one.code, one.where) for one in context.warnings] == [
        ("ties", "results/models/m/tied_at_cutoff@1"),
        ("ties", "results/models/m/tied_at_cutoff@4"),
        ("easy_by_chance", "results/chance_hit"),
    ]


def test_the_readings_name_chance_and_the_shuffled_control(debian: Any) -> None:
    """Numbers with what gives them meaning."""
    first, *_, last = debian(False).readings()
    assert "among the first 10 of 1996" in first
    assert "chance is 0.0050" in first
    assert "exchanged relevance gives 0.0045" in first
    assert last.startswith("`e5small_q4` minus `minilm`: nDCG@10 ")


def test_cutoffs_are_put_in_order_once() -> None:
    """[5, 1, 5] is [1, 5]."""
    assert retrieval.params(ks=[5, 1, 5]).ks == [1, 5]


def test_intervals_of_all_pairs_share_one_critical_value() -> None:
    """Compared with the largest |t| over copies of queries, drawn as `draw_counts` counts them."""
    rng = np.random.default_rng(9)
    documents = rng.normal(size=(60, 8))
    models = {
        name: (documents + noise * rng.normal(size=documents.shape), documents)
        for name, noise in (("a", 0.6), ("b", 0.8), ("c", 1.0))
    }
    found = run(models, [[i] for i in range(60)], ks=[1], bootstrap=400, context=Context(seed=4))
    counts = np.empty((400, 60))
    draw_counts(stream_key(4, "bootstrap"), 0, counts)
    reciprocal = {}
    for name, (queries, gallery) in models.items():
        q, g = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, gallery))
        scores = q @ g.T
        reciprocal[name] = 1 / (1 + (scores > np.diag(scores)[:, None]).sum(axis=1))
    pairs = [("b", "a"), ("c", "a"), ("c", "b")]
    changes = {pair: reciprocal[pair[0]] - reciprocal[pair[1]] for pair in pairs}
    errors = {pair: stats.sem(change) for pair, change in changes.items()}
    largest = []
    for row in counts:
        copies = {pair: np.repeat(changes[pair], row.astype(int)) for pair in pairs}
        off = [(copies[pair].mean() - changes[pair].mean()) for pair in pairs]
        largest.append(
            max(abs(o) / stats.sem(copies[pair]) for o, pair in zip(off, pairs, strict=True))
        )
    critical = max(float(np.quantile(largest, 0.95)), stats.t.ppf(0.975, 59))
    for later, earlier in pairs:
        change, error = changes[later, earlier], errors[later, earlier]
        interval = found.differences[later][earlier].tests.mrr.simultaneous
        assert (interval.method, interval.unit, interval.resamples) == ("max_t", "row", 400)
        assert interval.low == pytest.approx(change.mean() - critical * error, rel=1e-9)
        assert interval.high == pytest.approx(change.mean() + critical * error, rel=1e-9)
    assert critical > stats.t.ppf(0.975, 59) * 1.05


@pytest.mark.parametrize("few", [{"bootstrap": 0}, {"queries": 19}, {"census": True}])
def test_intervals_of_all_pairs_say_why_there_are_none(few: dict[str, Any]) -> None:
    """By hand: nothing drawn, too few to draw from, and nothing to draw for."""
    rng = np.random.default_rng(3)
    documents = rng.normal(size=(40, 6))
    m = few.pop("queries", 40)
    queries = documents[:m] + rng.normal(size=(m, 6))
    other = documents[:m] + rng.normal(size=(m, 6))
    models = {"a": (queries, documents), "b": (other, documents)}
    found = run(models, [[i] for i in range(m)], ks=[1], **few)
    test = found.differences["b"]["a"].tests.mrr
    expected = "not_estimable" if "census" in few else "not_resampled"
    assert test.undefined["simultaneous"].code == expected


def test_a_change_of_few_queries_has_no_interval_of_all_pairs() -> None:
    """By hand: three of 60 ranks differ, so that some resamples of 60 hold none of them."""
    documents = np.eye(60)
    queries, other = documents.copy(), documents.copy()
    for i in (3, 20, 41):
        other[i] = documents[i] + 2 * documents[(i + 1) % 60]
    found = run(
        {"a": (queries, documents), "b": (other, documents)}, [[i] for i in range(60)], ks=[1]
    )
    test = found.differences["b"]["a"].tests.mrr
    assert test.p is not None
    assert test.undefined["simultaneous"].code == "few_differ"
