"""Label neighbours against stored readings, scipy's trees, whole matrices, refits and closed forms."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.spatial import KDTree

from service.check import Context, estimate_of
from service.checks.label_neighbours import label_neighbours
from service.dataset import Dataset, Labels
from service.dataset_record import DatasetRecord
from service.errors import TooFewRows
from service.operations import Services, submit
from service.request import parse_request

Array = NDArray[Any]
MODELS = ["minilm", "minilm_int8", "e5small_q4", "use_multilingual"]


def shares(x: Array, labels: Array, k: int) -> Array:
    """Per row, from the whole matrix of cosines in float64, ties by ascending row."""
    z = np.asarray(x, dtype=np.float64)
    z = z / np.linalg.norm(z, axis=1, keepdims=True)
    cosines = np.array([[np.sum(a * b) for b in z] for a in z])
    np.fill_diagonal(cosines, -np.inf)
    lists = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return np.asarray((labels[lists] == labels[:, None]).mean(axis=1))


@pytest.mark.parametrize("model", MODELS)
def test_shares_of_real_intents_and_domains_are_the_stored_ones(
    model: str,
    rows: Callable[[str], Array],
    column: Callable[[str, str], list[str]],
    reference: dict[str, Any],
    printed: Callable[[Any], Any],
    run: Callable[..., Any],
) -> None:
    """Compared with stored readings of an independent script, and its floor."""
    expected = reference["clinc150"][model]
    x, domains = rows(f"clinc150/{model}"), column("clinc150", "domain")
    got, context = run(
        label_neighbours, vectors=x, labels=column("clinc150", "intent"), groups=domains, threads=2
    )
    stored = expected["stability"]["P@10"]
    assert got.micro.precision[got.k].estimate == printed(stored["native"])
    assert got.micro.floor == printed(stored["random_floor"])
    assert got.macro.precision[got.k].estimate == printed(
        stored["native"]
    )  # 50 rows of each intent
    assert got.macro.floor == printed(49 / 2999)
    assert (got.labels, got.macro.classes, got.macro.excluded) == (60, 60, 0)
    assert (got.tied_at_cutoff, got.duplicates) == (0, 0)
    assert got.micro.precision[got.k].interval.unit == "group"
    assert got.micro.precision[got.k].interval.resamples == 10
    assert context.warnings == []
    got, _ = run(label_neighbours, vectors=x, labels=domains, threads=2)
    assert got.micro.precision[got.k].estimate == printed(expected["P@10_domain"])


@pytest.mark.parametrize("model", ["minilm", "e5small_q4"])
def test_shares_of_real_sections_are_the_stored_ones(
    model: str,
    rows: Callable[[str], Array],
    column: Callable[[str, str], list[str]],
    reference: dict[str, Any],
    printed: Callable[[Any], Any],
    run: Callable[..., Any],
) -> None:
    """Compared with stored readings, for short lines and long texts; a label without effect."""
    expected = reference["debian_pairs"][model]
    sections = column("debian_pairs", "section")
    query, doc = (rows(f"debian_pairs/{model}_{side}") for side in ("query", "doc"))
    got, _ = run(label_neighbours, vectors=query, labels=sections, threads=2)
    assert got.micro.precision[got.k].estimate == printed(expected["P@10_section_query"])
    got, _ = run(label_neighbours, vectors=doc, labels=sections, threads=2)
    assert got.micro.precision[got.k].estimate == printed(
        expected["stability_doc"]["P@10"]["native"]
    )
    assert got.micro.floor == printed(expected["stability_doc"]["P@10"]["random_floor"])
    hashed = column("debian_pairs", "hash_bin")
    got, context = run(label_neighbours, vectors=doc, labels=hashed, threads=2)
    assert got.micro.precision[got.k].estimate == pytest.approx(got.micro.floor, abs=0.015)
    assert [warned.code for warned in context.warnings] == ["at_floor"]


def test_duplicated_rows_leave_themselves_out_by_number(run: Callable[..., Any]) -> None:
    """Published: P@3 = 13/36 where dropping the first column gives .388889; two duplicates."""
    x = np.random.default_rng(91).normal(size=(12, 4)).astype(np.float32)
    x[7] = x[9] = x[2]
    got, context = run(label_neighbours, vectors=x, labels="abababababab", params={"k": 3})
    assert got.micro.precision[got.k].estimate == pytest.approx(13 / 36, rel=1e-14)
    assert got.duplicates == 2
    assert got.tied_at_cutoff == ties(x, 3)
    assert got.tied_at_cutoff > 0
    assert "precision@3" in json.loads(got.model_dump_json())["micro"]
    assert "ties" in [warned.code for warned in context.warnings]


def ties(x: Array, k: int) -> int:
    """Rows whose k-th and next cosine, taken pair by pair in float64, are equal."""
    z = x.astype(np.float64)
    lengths = [np.sqrt(np.sum(row * row)) for row in z]
    count = 0
    for i in range(len(z)):
        cosines = sorted(
            (np.sum(z[i] * z[j]) / (lengths[i] * lengths[j]) for j in range(len(z)) if j != i),
            reverse=True,
        )
        count += cosines[k - 1] == cosines[k]
    return count


def test_more_neighbours_than_there_are_rows_are_refused(
    run: Callable[..., Any],
    services: Services,
    store: Callable[..., DatasetRecord],
) -> None:
    """Published: ten of five rows read the last row for a missing one; P@4 = .4."""
    x = np.random.default_rng(95).normal(size=(5, 3)).astype(np.float32)
    labels = ["x", "x", "y", "y", "y"]
    with pytest.raises(TooFewRows, match="5 rows; 10 neighbours") as refused:
        run(label_neighbours, vectors=x, labels=labels, params={"k": 10})
    assert refused.value.faults[0].pointer == "/params/k"
    assert "4" in refused.value.faults[0].message
    with pytest.raises(TooFewRows, match="at least 6"):
        run(label_neighbours, vectors=x, labels=labels, params={"k": 5})
    request = {
        "kind": "label_neighbours",
        "inputs": {"vectors": {"dataset": store(x).id}, "labels": {"values": labels}},
        "params": {"k": 5},
    }
    with pytest.raises(TooFewRows, match="needs 6"):
        submit(services, "default", parse_request(request))
    got, _ = run(label_neighbours, vectors=x, labels=labels, params={"k": 4})
    assert got.micro.precision[got.k].estimate == pytest.approx(0.4, rel=1e-14)
    assert got.micro.floor == pytest.approx(0.4, rel=1e-14)
    assert got.micro.ceiling == pytest.approx((2 * 1 / 4 + 3 * 2 / 4) / 5)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("k", [1, 7])
def test_shares_are_those_of_a_tree_of_unit_rows(
    dtype: str, k: int, run: Callable[..., Any]
) -> None:
    """Compared with scipy's k-d tree, by Euclidean distance of unit rows without ties."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 9, size=400)
    x = (rng.normal(size=(9, 12))[labels] + rng.normal(size=(400, 12))).astype(dtype)
    z = x / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    lists = KDTree(z).query(z, k + 1)[1][:, 1:]
    expected = (labels[lists] == labels[:, None]).mean(axis=1)
    got, _ = run(label_neighbours, vectors=x, labels=labels.tolist(), params={"k": k}, threads=2)
    assert got.micro.precision[got.k].estimate == pytest.approx(expected.mean(), rel=1e-14)
    by_class = [expected[labels == c].mean() for c in range(9)]
    assert got.macro.precision[got.k].estimate == pytest.approx(np.mean(by_class), rel=1e-12)
    assert {row.label: row.precision for row in got.classes} == pytest.approx(
        dict(enumerate(by_class)), rel=1e-12
    )


@given(
    n=st.integers(3, 40),
    k=st.integers(1, 12),
    kinds=st.integers(2, 8),
    distinct=st.integers(2, 60),
    seed=st.integers(0, 10**6),
)
def test_every_number_is_that_of_the_whole_matrix(
    run: Callable[..., Any], n: int, k: int, kinds: int, distinct: int, seed: int
) -> None:
    """Compared with the definition on whole matrices; few distinct rows make many ties."""
    rng = np.random.default_rng(seed)
    k = min(k, n - 1)
    x = rng.integers(-3, 4, size=(distinct, 6))[rng.integers(0, distinct, n)].astype(np.float64)
    x[~x.any(axis=1)] = 1
    labels = np.concatenate([[0, 1], rng.integers(0, kinds, n)])[:n]
    got, _ = run(
        label_neighbours, vectors=x, labels=labels.tolist(), params={"k": k, "min_support": 3}
    )
    own = shares(x, labels, k)
    sizes = {c: int((labels == c).sum()) for c in np.unique(labels)}
    large = [c for c in sizes if sizes[c] >= 3]
    assert got.micro.precision[got.k].estimate == pytest.approx(own.mean(), rel=1e-12)
    pairs = [(i, j) for i in range(n) for j in range(n)]
    same = np.array([labels[i] == labels[j] for i, j in pairs])
    apart = np.array([i != j for i, j in pairs])
    assert got.micro.floor == pytest.approx(same[apart].mean(), rel=1e-12)
    assert got.micro.floor_with_replacement == pytest.approx(same.mean(), rel=1e-12)
    assert got.micro.ceiling == pytest.approx(
        np.mean([min(sizes[c] - 1, k) / k for c in labels]), rel=1e-12
    )
    assert got.micro.precision[got.k].estimate <= got.micro.ceiling + 1e-12
    assert (got.macro.classes, got.macro.excluded) == (len(large), len(sizes) - len(large))
    assert {row.label for row in got.classes} == set(large)
    assert {row.label for row in got.excluded} == set(sizes) - set(large)
    for row in (*got.classes, *got.excluded):
        assert row.support == sizes[row.label]
        assert row.precision == pytest.approx(own[labels == row.label].mean(), rel=1e-12)
        assert row.floor == pytest.approx((row.support - 1) / (n - 1))
    if large:
        assert got.macro.precision[got.k].estimate == pytest.approx(
            np.mean([own[labels == c].mean() for c in large]), rel=1e-12
        )
        assert got.macro.floor == pytest.approx(np.mean([(sizes[c] - 1) / (n - 1) for c in large]))
        assert got.macro.ceiling == pytest.approx(
            np.mean([min(sizes[c] - 1, k) / k for c in large])
        )
    else:
        assert got.macro.undefined["floor"].code == "too_few_rows"
        assert got.macro.precision[got.k].estimate is None


def nested() -> tuple[Array, Array, Array]:
    """Rows, labels and units: label 3 lies inside unit 7, and unit 8 holds a small label alone."""
    rng = np.random.default_rng(2)
    labels = np.repeat([0, 1, 2, 3, 4], [30, 17, 9, 5, 2])
    x = rng.normal(size=(5, 8))[labels] * 0.8 + rng.normal(size=(63, 8))
    units = rng.integers(0, 7, 63)
    units[labels == 3], units[labels == 4] = 7, 8
    return x, labels, units


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("level", [0.95, 0.8])
def test_every_interval_is_a_refit_without_each_unit(
    grouped: bool,
    level: float,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[..., Any],
    t_interval: Callable[..., tuple[float, float]],
) -> None:
    """Compared with refits on the remaining queries, scipy's t and scipy's beta quantiles."""
    x, labels, units = nested()
    if not grouped:
        units = np.arange(63)
    left_out = []

    def watched(value: Any, deleted: Array, *others: Any, **named: Any) -> Any:
        left_out.append(deleted)
        return estimate_of(value, deleted, *others, **named)

    monkeypatch.setattr("service.estimates.estimate_of", watched)
    params = {"k": 4, "min_support": 5, "level": level}
    got, _ = run(
        label_neighbours, vectors=x, labels=labels.tolist(), params=params,
        groups=units.tolist() if grouped else None,
    )  # fmt: skip
    own = shares(x, labels, 4)

    def micro(kept: Array) -> float:
        return float(own[kept].mean())

    def macro(kept: Array) -> float:
        chosen = [kept & (labels == c) for c in range(4)]
        return float(np.mean([own[rows].mean() for rows in chosen if rows.any()]))

    every = [
        (got.micro, micro, np.ones(63, bool), [labels >= 0]),
        (got.macro, macro, labels < 4, [labels == c for c in range(4)]),
    ]
    for measured, statistic, rows, classes in every:
        names = np.unique(units[rows])
        refits = sorted(statistic(units != name) for name in names)
        assert any(
            len(deleted) == len(refits) and np.allclose(np.sort(deleted), refits, rtol=1e-12)
            for deleted in left_out
        )
        low, high = t_interval(
            lambda kept, s=statistic, r=rows: s(spread(kept, r)), units[rows], level
        )
        parts = [[own[c & (units == name)].mean() for name in np.unique(units[c])] for c in classes]
        trials = len(classes) * min(map(len, parts))
        total = trials * np.mean([np.mean(part) for part in parts])
        tail = (1 - level) / 2
        exact_low = stats.beta.ppf(tail, total, trials - total + 1)
        exact_high = stats.beta.ppf(1 - tail, total + 1, trials - total)
        interval = measured.precision[got.k].interval
        assert interval.low == pytest.approx(max(0, min(low, exact_low)), rel=1e-9)
        assert interval.high == pytest.approx(min(1, max(high, exact_high)), rel=1e-9)
        assert interval.resamples == len(names)
        assert interval.method == "jackknife_t+clopper_pearson"


def spread(kept: Array, rows: Array) -> Array:
    """A mask over chosen rows as a mask over all."""
    full = np.zeros(len(rows), bool)
    full[np.flatnonzero(rows)[kept]] = True
    return full


def test_perfect_neighbours_have_an_interval_of_some_width(run: Callable[..., Any]) -> None:
    """Closed form: all of 100 rows right gives a lower bound of .025^(1/100)."""
    x = np.repeat(np.eye(5), 20, axis=0) + 1e-3 * np.random.default_rng(3).normal(size=(100, 5))
    got, _ = run(label_neighbours, vectors=x, labels=np.repeat(range(5), 20).tolist())
    for measured in (got.micro, got.macro):
        assert measured.precision[got.k].estimate == 1
        assert measured.precision[got.k].interval.low == pytest.approx(0.025**0.01)
        assert measured.ceiling == 1


def test_equal_rows_tie_everywhere(run: Callable[..., Any]) -> None:
    """Closed form: every list is the lowest other row numbers."""
    labels = [0, 0, 1, 1, 0, 1]
    got, context = run(
        label_neighbours, vectors=np.full((6, 3), 0.1), labels=labels, params={"k": 2}
    )
    lists = [[j for j in range(6) if j != i][:2] for i in range(6)]
    expected = np.mean([[labels[j] == labels[i] for j in lists[i]] for i in range(6)])
    assert got.micro.precision[got.k].estimate == pytest.approx(expected)
    assert (got.tied_at_cutoff, got.unresolved, got.duplicates) == (6, 6, 5)
    assert any("6 of 6 rows have a tie" in line for line in got.readings())
    assert "ties" in [warned.code for warned in context.warnings]


def test_a_gap_below_rounding_is_unresolved_and_no_tie(run: Callable[..., Any]) -> None:
    """Closed form: two rows at cosines .6 and .6 + 1e-16 of a third, closer than tau."""
    x = np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [np.nextafter(0.6, 1), 0.0, 0.8]])
    got, _ = run(label_neighbours, vectors=x, labels=[0, 1, 0], params={"k": 1})
    assert (got.tied_at_cutoff, got.unresolved) == (0, 1)


def test_all_rows_as_neighbours_give_the_floor(run: Callable[..., Any]) -> None:
    """Closed form: with k = n - 1 neighbours the share is the floor, and nothing is cut off."""
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 4, 30).tolist()
    got, _ = run(label_neighbours, vectors=rng.normal(size=(30, 5)), labels=labels,
                 params={"k": 29})  # fmt: skip
    assert got.micro.precision[got.k].estimate == pytest.approx(got.micro.floor, rel=1e-12)
    assert (got.tied_at_cutoff, got.unresolved) == (0, 0)


def test_the_mean_over_all_labellings_is_the_floor(run: Callable[..., Any]) -> None:
    """Closed form: what random neighbours give is what random labels give."""
    x = np.random.default_rng(7).normal(size=(6, 3))
    values = []
    for labels in sorted(set(itertools.permutations([0, 0, 0, 1, 1, 2]))):
        got, _ = run(label_neighbours, vectors=x, labels=labels, params={"k": 2})
        values.append(got.micro.precision[got.k].estimate)
    assert len(values) == 60
    assert np.mean(values) == pytest.approx(got.micro.floor, rel=1e-12)


def test_lists_are_as_long_as_asked_and_worst_first(run: Callable[..., Any]) -> None:
    """Closed form: labels keep their JSON type; 1, true and "1" are three."""
    rng = np.random.default_rng(5)
    labels: list[Any] = [1, True, "1", 2.5] * 12
    x = rng.normal(size=(48, 4))
    got, _ = run(label_neighbours, vectors=x, labels=labels, params={"listed_classes": 3})
    assert got.labels == 4
    assert len(got.classes) == 3
    assert [row.precision for row in got.classes] == sorted(row.precision for row in got.classes)
    everything, _ = run(label_neighbours, vectors=x, labels=labels)
    assert {(type(row.label), row.label) for row in everything.classes} == {
        (type(label), label) for label in labels
    }
    assert everything.classes[:3] == got.classes


def test_readings_say_the_numbers_they_are_about(
    rows: Callable[[str], Array], column: Callable[[str, str], list[str]], run: Callable[..., Any]
) -> None:
    """Compared with the stored share, its floor and the counts in print."""
    got, _ = run(
        label_neighbours,
        vectors=rows("debian_pairs/minilm_doc"),
        labels=column("debian_pairs", "section"),
        threads=2,
    )
    text = " ".join(got.readings())
    assert "0.5154 [" in text
    assert "0.0495" in text
    assert f"{got.macro.classes} labels" in text
    assert repr(got.classes[0].label) in text


def test_many_rows_are_searched_a_part_at_a_time(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    """Compared with one search of all; progress rises to the end."""
    rng = np.random.default_rng(6)
    x, labels = rng.normal(size=(150, 6)), rng.integers(0, 5, 150).tolist()
    whole, _ = run(label_neighbours, vectors=x, labels=labels)
    monkeypatch.setattr("service.numerics.graph.LISTED_ROWS", 40)
    told: list[int] = []
    context = Context(threads=2, progress=lambda stage, done, total: told.append(done)
                      if stage == "neighbours" else None)  # fmt: skip
    got = label_neighbours.run(
        context,
        label_neighbours.inputs(vectors=Dataset(x), labels=Labels.of(labels)),
        label_neighbours.params(),
    )
    assert got == whole
    assert told == sorted(told)
    assert told[-1] == 150
