"""Neighbour stability against stored readings, whole matrices and intervals by hand."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from service.blocks import Plan, join
from service.check import Context
from service.checks.neighbour_stability import neighbour_stability
from service.dataset import Dataset, Labels
from service.errors import DimensionMismatch, InvalidRequest, NonFiniteRows, TooFewRows, ZeroRows
from service.job import Job
from service.numerics.changes import change_of_classes
from service.operations import Services, submit
from service.request import parse_request
from tests.stored_by_hand import SCHEMES, gaps, pair, stored, top, unit

Array = NDArray[Any]
PART = importlib.import_module("service.checks.neighbour_stability.part")

NAMES = {
    "fp16_gallery": "fp16_gallery",
    "fp16_both": "fp16_both",
    "int8_per_vector_gallery": "int8_vec_gallery",
    "int8_per_vector_both": "int8_vec_both",
    "int8_qt8_gallery": "int8_dim_gallery",
    "int8_qt8_both": "int8_dim_both",
    "fp32_arithmetic": "fp32_arith",
    "offset_reference": "offset_vs_native",
    "offset_fp16_gallery": "offset_fp16_gallery",
    "offset_fp16_both": "offset_fp16_both",
}
FLOAT32_CELLS = ("minilm_int8", "int8_qt8_gallery")
"""FAISS cuts cells in float32, the reference in float64: here 8 codes of 1,152,000 differ, and with
them one neighbour of one query."""
CLINC = [("clinc150", model, "stability")
         for model in ("minilm", "minilm_int8", "e5small_q4", "use_multilingual")]  # fmt: skip
DEBIAN = [("debian_pairs", model, reading) for model in ("minilm", "e5small_q4")
          for reading in ("stability_query_to_doc", "stability_doc")]  # fmt: skip


@pytest.fixture
def roles(
    rows: Callable[[str], Array], column: Callable[[str, str], list[str]]
) -> Callable[[str, str, str], dict[str, Any]]:
    """The inputs behind a reading of the reference."""

    def of(folder: str, model: str, reading: str) -> dict[str, Any]:
        if folder == "clinc150":
            return {"gallery": rows(f"clinc150/{model}"), "labels": column(folder, "intent")}
        found: dict[str, Any] = {"gallery": rows(f"debian_pairs/{model}_doc")}
        if reading == "stability_query_to_doc":
            return found | {"queries": rows(f"debian_pairs/{model}_query")}
        return found | {"labels": column(folder, "section")}

    return of


def shared(one: Array, other: Array) -> Array:
    """How many items each row of one list holds of the same row of another."""
    return np.array([len(set(a) & set(b)) for a, b in zip(one, other, strict=True)])


@pytest.mark.parametrize(("folder", "model", "reading"), [*CLINC, *DEBIAN])
def test_counts_overlaps_margins_and_precision_are_the_references(
    folder: str,
    model: str,
    reading: str,
    roles: Callable[[str, str, str], dict[str, Any]],
    reference: dict[str, Any],
    printed: Callable[[Any], Any],
    run: Callable[..., Any],
) -> None:
    """An independent script scored whole matrices; its codes are float64 where FAISS's are float32."""
    wanted = reference[folder][model][reading]
    conditions = ["fp32_arithmetic", "fp16", "int8_per_vector", "int8_qt8", "offset"]
    inputs = roles(folder, model, reading)
    got, _ = run(neighbour_stability, **inputs, params={"conditions": conditions})
    margin = got.reference.boundary_margin
    assert margin.min == pytest.approx(wanted["boundary_margin_min"], rel=1e-8, abs=1e-15)
    assert margin.median == printed(wanted["boundary_margin_median"])
    for name, theirs in NAMES.items():
        found = got.conditions[name]
        changed, overlap = wanted[theirs]["changed"], wanted[theirs]["overlap_at_10"]
        if (model, name) == FLOAT32_CELLS:
            changed, overlap = changed + 1, overlap - 1 / (10 * wanted["n"])
        assert found.changed_queries == changed, name
        assert found.overlap[10].estimate == printed(overlap), name
        assert found.changed.estimate == printed(changed / wanted["n"])
        assert found.turnover == pytest.approx(1 - overlap, abs=1e-9)
        largest = wanted[theirs]["max_abs_err"] * (1.5 if name == "fp32_arithmetic" else 1)
        assert found.score_error.max <= largest * (1 + 1e-6), name
    if "P@10" in wanted:
        assert got.reference.label_precision[10].estimate == printed(wanted["P@10"]["native"])
        for name in ("fp16_both", "int8_per_vector_both", "int8_qt8_both", "offset_fp16_both"):
            precision = got.conditions[name].label_precision[10].estimate
            assert precision == printed(wanted["P@10"][NAMES[name]]), name


@pytest.mark.parametrize(("folder", "model", "reading"), [*CLINC, *DEBIAN])
def test_products_of_stored_unit_rows_are_the_references(
    folder: str,
    model: str,
    reading: str,
    roles: Callable[[str, str, str], dict[str, Any]],
    reference: dict[str, Any],
    printed: Callable[[Any], Any],
    run: Callable[..., Any],
) -> None:
    wanted = reference[folder][model][reading]
    params = {
        "conditions": ["fp16", "int8_per_vector", "int8_qt8"], "scoring": "dot", "storage": "unit",
    }  # fmt: skip
    got, _ = run(neighbour_stability, **roles(folder, model, reading), params=params)
    for name, found in got.conditions.items():
        theirs = wanted[NAMES[name] + "_dot"]
        assert found.changed_queries == theirs["changed"], name
        assert found.overlap[10].estimate == printed(theirs["overlap_at_10"]), name


def test_the_one_count_unlike_the_references_is_that_of_cells_cut_in_float32(
    rows: Callable[[str], Array], reference: dict[str, Any]
) -> None:
    """Both counts by hand: float64 cells give the reference's, float32 cells give ours."""
    model, condition = FLOAT32_CELLS
    u = unit(rows(f"clinc150/{model}"))
    lowest, width = u.min(axis=0), np.ptp(u, axis=0)
    in_double = lowest + (np.floor(255 * (u - lowest) / width) + 0.5) / 255 * width
    before = pair("int8_qt8", "gallery", u)
    scores = u @ unit(in_double).T
    np.fill_diagonal(scores, -np.inf)
    wanted = reference["clinc150"][model]["stability"][NAMES[condition]]["changed"]
    reached = top(before.before, 10)
    assert (shared(reached, top(scores, 10)) < 10).sum() == wanted
    assert (shared(reached, top(before.after, 10)) < 10).sum() == wanted + 1


@pytest.mark.parametrize(("model", "counts"), [("minilm", (84, 114)), ("e5small_q4", (118, 155))])
def test_int8_by_coordinate_changes_what_it_was_seen_to_change(
    model: str, counts: tuple[int, int], rows: Callable[[str], Array], run: Callable[..., Any]
) -> None:
    """Counts written down before this check existed; by hand as well."""
    x = rows(f"clinc150/{model}")
    got, _ = run(neighbour_stability, gallery=x, params={"conditions": ["int8"]})
    for where, count in zip(("gallery", "both"), counts, strict=True):
        by_hand = pair("int8", where, x)
        changed = shared(top(by_hand.before, 10), top(by_hand.after, 10)) < 10
        assert got.conditions[f"int8_{where}"].changed_queries == changed.sum() == count


@pytest.mark.parametrize(
    ("model", "scheme", "count"), [("minilm", "int8_per_vector", 263), ("e5small_q4", "fp16", 2172)]
)
def test_certified_queries_are_those_of_the_inequality_over_all_pairs_of_rows(
    model: str,
    scheme: str,
    count: int,
    rows: Callable[[str], Array],
    part: Callable[..., dict[str, Array]],
) -> None:
    x = rows(f"clinc150/{model}")
    by_hand = pair(scheme, "both", x)
    certified = by_hand.certified(10, by_hand.tau)
    assert certified.sum() == count
    found = part(gallery=x, params={"conditions": [scheme]})
    np.testing.assert_array_equal(found[f"{scheme}_both.certified"], certified)


@pytest.fixture
def part() -> Callable[..., dict[str, Array]]:
    """Arrays of all blocks of the check, query by query."""

    def arrays(*, threads: int = 1, params: Any = None, **given: Any) -> dict[str, Array]:
        inputs = neighbour_stability.inputs(
            **{
                role: Dataset(data) if isinstance(data, np.ndarray) else Labels.of(data)
                for role, data in given.items()
                if data is not None
            }
        )
        ready = neighbour_stability.params(**(params or {}))
        blocks = range(neighbour_stability.blocks(inputs, ready))
        return dict(neighbour_stability.part(Context(threads=threads), inputs, ready, blocks))

    return arrays


def compare_with_hand(
    found: dict[str, Array], scheme: str, k: int, scored: tuple[Array, ...], **how: Any
) -> int:
    """
    Overlap, margin and certificate of both conditions of a scheme against whole matrices.

    Returns the queries that were compared: those whose margins, before and after, are no ties.
    """
    compared = 0
    for where in ("gallery", "both"):
        by_hand = pair(scheme, where, *scored, **how)
        before, after, tau = by_hand.before, by_hand.after, by_hand.tau
        clear = np.minimum(gaps(before, k), gaps(after, k)) > 2 * tau
        get = lambda what, where=where: found[f"{scheme}_{where}.{what}"]  # noqa: E731
        assert not (get("unresolved") & clear).any()
        assert get("unresolved")[np.minimum(gaps(before, k), gaps(after, k)) < tau / 4].all()
        kept = shared(top(before, k), top(after, k))
        np.testing.assert_array_equal(get("shared")[clear], kept[clear])
        finite = np.isfinite(gaps(before, k))
        np.testing.assert_allclose(
            found["margin"][finite], gaps(before, k)[finite], rtol=1e-9, atol=2 * tau.max()
        )
        assert not (get("certified") & ~by_hand.certified(k, -tau)).any()
        assert not (by_hand.certified(k, 4 * tau) & ~get("certified")).any()
        assert (get("shared")[get("certified")] == k).all()
        compared += int(clear.sum())
    return compared


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("gallery", "queries"),
    [
        ("clinc150/e5small_q4", None),
        ("clinc150/use_multilingual", None),
        ("debian_pairs/minilm_doc", "debian_pairs/minilm_query"),
    ],
)
def test_sets_margins_and_certificates_are_those_of_whole_matrices_on_real_rows(
    gallery: str,
    queries: str | None,
    scheme: str,
    rows: Callable[[str], Array],
    part: Callable[..., dict[str, Array]],
) -> None:
    """A gallery of 400 rows, so that most are neither neighbours nor candidates."""
    wide = 64 if scheme == "pq" else None
    g = rows(gallery)[:400, :wide]
    q = None if queries is None else rows(queries)[:150, :wide]
    for how in (
        {"scoring": "cosine", "storage": "unit"},
        {"scoring": "dot", "storage": "as_given"},
    ):
        found = part(gallery=g, queries=q, params={"k": 10, "conditions": [scheme], **how})
        compared = compare_with_hand(found, scheme, 10, (g, q), **how)
        few = scheme in ("binary", "int4") or how["scoring"] == "dot"
        assert compared >= (0.5 if few else 0.99) * 2 * (400 if q is None else 150)


GALLERY = np.random.default_rng(7).normal(size=(90, 12))
QUERIES = np.random.default_rng(8).normal(size=(60, 12))
COARSE = {"conditions": ["int4"], "k": 5}


def envelope(values: Array, units: Array, level: float) -> tuple[float, float]:
    """The outer hull of jackknife-t over units and Clopper-Pearson on their own means."""
    names = np.unique(units)
    count = len(names)
    without = np.array([values[units != name].mean() for name in names])
    error = np.sqrt((count - 1) / count * np.sum((without - without.mean()) ** 2))
    low, high = stats.t.interval(level, count - 1, loc=values.mean(), scale=max(error, 1e-300))
    total = sum(values[units == name].mean() for name in names)
    tail = (1 - level) / 2
    exact_low = stats.beta.ppf(tail, total, count - total + 1) if total > 0 else 0.0
    exact_high = stats.beta.ppf(1 - tail, total + 1, count - total) if total < count else 1.0
    return max(0, min(low, exact_low)), min(1, max(high, exact_high))


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize("grouped", [True, False])
def test_intervals_of_shares_are_the_hull_of_two_made_by_hand(
    grouped: bool, level: float, run: Callable[..., Any]
) -> None:
    """Groups are of queries where there are some."""
    groups = np.random.default_rng(9).integers(0, 11, 60)
    inputs = {"gallery": GALLERY, "queries": QUERIES}
    if grouped:
        inputs["groups"] = groups.tolist()
    got, _ = run(neighbour_stability, **inputs, params=COARSE | {"level": level})
    for where in ("gallery", "both"):
        points = pair("int4", where, GALLERY, QUERIES)
        kept = shared(top(points.before, 5), top(points.after, 5))
        found = got.conditions[f"int4_{where}"]
        units = groups if grouped else np.arange(60)
        for estimate, values in (
            (found.overlap[5], kept / 5),
            (found.jaccard[5], kept / (10 - kept)),
            (found.changed, (kept < 5) + 0.0),
        ):
            assert estimate.estimate == pytest.approx(values.mean(), abs=1e-12)
            wanted = envelope(values, units, level)
            assert (estimate.interval.low, estimate.interval.high) == pytest.approx(
                wanted, abs=1e-9
            )
            assert estimate.interval.unit == ("group" if grouped else "row")
            assert estimate.interval.level == level


def test_groups_belong_to_the_gallery_where_there_are_no_queries(run: Callable[..., Any]) -> None:
    groups = np.arange(90) % 7
    got, _ = run(neighbour_stability, gallery=GALLERY, groups=groups.tolist(), params=COARSE)
    points = pair("int4", "both", GALLERY)
    values = shared(top(points.before, 5), top(points.after, 5)) / 5
    interval = got.conditions["int4_both"].overlap[5].interval
    wanted = envelope(values, groups, 0.95)
    assert (interval.low, interval.high) == pytest.approx(wanted, abs=1e-9)
    assert interval.resamples == 7


NINE_UNCHANGED = (-(1 - 0.025 ** (1 / 9)), 1 - 0.025 ** (1 / 9))
"""Nothing gained or lost in nine groups."""


def test_the_change_of_label_precision_never_has_an_interval_without_width(
    run: Callable[..., Any],
) -> None:
    """Gains and losses by `numerics.changes`, which has tests of its own, around jackknife-t."""
    labels = (np.random.default_rng(12).random(90) < 0.5).tolist()
    groups = np.arange(90) % 9
    for values in (labels, [True] * 90):
        got, _ = run(
            neighbour_stability,
            gallery=GALLERY,
            labels=values,
            groups=groups.tolist(),
            params=COARSE,
        )
        points = pair("int4", "both", GALLERY)
        of_rows = np.array(values)
        before, after = top(points.before, 5), top(points.after, 5)
        hits = [(of_rows[found] == of_rows[:, None]).mean(axis=1) for found in (before, after)]
        change = hits[1] - hits[0]
        without = np.array([change[groups != g].mean() for g in range(9)])
        half = np.sqrt(8 / 9 * np.sum((without - without.mean()) ** 2)) * stats.t.ppf(0.975, 8)
        interval = got.conditions["int4_both"].label_precision_change[5].interval
        one_class = np.zeros(90, dtype=np.int64)
        wanted = change_of_classes(change, one_class, groups).interval(0.95, "group")
        assert (interval.low, interval.high) == pytest.approx((wanted.low, wanted.high))
        assert interval.low <= change.mean() - half
        assert interval.high >= change.mean() + half
        if not change.any():
            assert (interval.low, interval.high) == pytest.approx(NINE_UNCHANGED)


def test_a_census_has_no_intervals_and_four_groups_are_too_few(run: Callable[..., Any]) -> None:
    for more, code in (
        ({"params": COARSE | {"census": True}}, "census"),
        ({"params": COARSE, "groups": (np.arange(90) % 4).tolist()}, "too_few_groups"),
    ):
        got, _ = run(neighbour_stability, gallery=GALLERY, **more)
        overlap = got.conditions["int4_both"].overlap[5]
        assert overlap.estimate is not None
        assert overlap.interval is None
        assert overlap.undefined["interval"].code == code


def test_margins_are_binned_by_the_quartiles_that_numpy_inverts(run: Callable[..., Any]) -> None:
    got, _ = run(neighbour_stability, gallery=GALLERY, params=COARSE)
    points = pair("int4", "both", GALLERY)
    margin = gaps(points.before, 5)
    changed = shared(top(points.before, 5), top(points.after, 5)) < 5
    ordered = np.sort(margin)
    cuts = [ordered[int(np.ceil(90 * q)) - 1] for q in (0.25, 0.5, 0.75)]
    bins = got.conditions["int4_both"].changed_by_margin
    place = np.array([sum(m > cut for cut in cuts) for m in margin])
    assert [b.queries for b in bins] == [int((place == i).sum()) for i in range(4)]
    assert [b.changed for b in bins] == [int(changed[place == i].sum()) for i in range(4)]
    assert [b.low for b in bins] == pytest.approx([margin[place == i].min() for i in range(4)])
    assert [b.high for b in bins] == pytest.approx([margin[place == i].max() for i in range(4)])
    quantiles = got.reference.boundary_margin
    found = [quantiles.min, quantiles.q25, quantiles.median, quantiles.q75, quantiles.max]
    assert found == pytest.approx(np.quantile(margin, [0, 0.25, 0.5, 0.75, 1]))


def test_equal_margins_share_a_bin(run: Callable[..., Any]) -> None:
    got, context = run(neighbour_stability, gallery=np.ones((20, 3)), params=COARSE)
    (one,) = got.conditions["int4_both"].changed_by_margin
    assert (one.low, one.high, one.queries, one.changed) == (0, 0, 20, 0)
    assert got.reference.unresolved == 20
    assert got.conditions["int4_both"].certified == 0
    assert "ties" in {warned.code for warned in context.warnings}


def precision(lists: Array, of_rows: list[Any], wanted: list[Any]) -> Array:
    """Share of listed rows with the query's label: of the same type, and equal."""
    return np.array([
        np.mean([type(of_rows[j]) is type(label) and of_rows[j] == label for j in found])
        for found, label in zip(lists, wanted, strict=True)
    ])  # fmt: skip


@pytest.mark.parametrize(
    "kinds", [["a", "b"], [1, "1"], [1, True], [0, 1, False], ["x", 1.5, 2]], ids=str
)
@pytest.mark.parametrize("own", [True, False])
def test_label_precision_keeps_the_type_of_labels(
    own: bool, kinds: list[Any], run: Callable[..., Any]
) -> None:
    """Also where a query carries a label that no row has."""
    rng = np.random.default_rng(10)
    of_rows = [kinds[i] for i in rng.integers(0, len(kinds), 90)]
    of_queries = [[*kinds, "nowhere"][i] for i in rng.integers(0, len(kinds) + 1, 60)]
    inputs: dict[str, Any] = {"gallery": GALLERY, "labels": of_rows}
    if not own:
        inputs |= {"queries": QUERIES, "query_labels": of_queries}
    got, _ = run(neighbour_stability, **inputs, params=COARSE)
    wanted = of_rows if own else of_queries
    points = pair("int4", "both", GALLERY, None if own else QUERIES)
    before = precision(top(points.before, 5), of_rows, wanted)
    after = precision(top(points.after, 5), of_rows, wanted)
    kept = shared(top(points.before, 5), top(points.after, 5))
    found = got.conditions["int4_both"]
    assert got.reference.label_precision[5].estimate == pytest.approx(before.mean())
    assert found.label_precision[5].estimate == pytest.approx(after.mean())
    change = found.label_precision_change[5].estimate
    assert change == pytest.approx((after - before).mean(), abs=1e-12)
    assert abs(change) <= found.turnover + 1e-12
    same = (kept < 5) & (np.abs(after - before) < 1e-9)
    assert found.changed_same_precision == same.sum()


def test_without_labels_of_the_queries_there_is_no_label_precision(run: Callable[..., Any]) -> None:
    got, _ = run(neighbour_stability, gallery=GALLERY, params=COARSE)
    assert got.reference.label_precision[5].undefined["estimate"].code == "no_labels"
    labels = ["a", "b"] * 45
    got, _ = run(
        neighbour_stability, gallery=GALLERY, queries=QUERIES, labels=labels, params=COARSE
    )
    found = got.conditions["int4_both"]
    assert found.label_precision[5].undefined["estimate"].code == "no_query_labels"
    assert found.undefined["changed_same_precision"].code == "no_query_labels"


def test_overflow_is_not_representable_unless_rows_are_brought_to_length_one(
    run: Callable[..., Any],
) -> None:
    """40 rows of which five exceed 65504: nothing is said of neighbours, nor 0."""
    x = (np.random.default_rng(71).normal(size=(40, 8)) * 3e4).astype(np.float32)
    params = {"conditions": ["fp16"], "storage": "as_given"}
    got, context = run(neighbour_stability, gallery=x, params=params)
    assert got.stored == "as_given"
    for found in got.conditions.values():
        assert found.changed_queries is None
        assert found.certified is None
        assert found.overlap[10].undefined["estimate"].code == "not_representable"
        assert found.undefined["changed_queries"].code == "not_representable"
        assert found.storage.overflow_coordinates == 5
        assert found.storage.overflow_rows == ["15", "16", "22", "30", "36"]
    assert "overflow" in {warned.code for warned in context.warnings}
    got, _ = run(neighbour_stability, gallery=x, params={"conditions": ["fp16"]})
    assert got.stored == "unit"
    assert got.conditions["fp16_both"].changed_queries == 0
    assert got.conditions["fp16_gallery"].changed_queries == 0
    assert got.reference.boundary_margin.min == pytest.approx(0.00034189344, rel=1e-7)


def test_queries_that_overflow_are_not_representable_either(run: Callable[..., Any]) -> None:
    queries = QUERIES.copy()
    queries[3, 2] = 1e6
    params = {"conditions": ["fp16"], "storage": "as_given"}
    got, _ = run(neighbour_stability, gallery=GALLERY, queries=queries, params=params)
    assert got.conditions["fp16_gallery"].changed_queries is not None
    assert got.conditions["fp16_both"].undefined["changed_queries"].code == "not_representable"


def test_a_constant_dimension_kept_as_given_changes_four_of_fifty(run: Callable[..., Any]) -> None:
    x = np.random.default_rng(81).normal(size=(50, 6)).astype(np.float32)
    x[:, 2] = 0.25
    params = {"conditions": ["int8_minmax_round"], "storage": "as_given"}
    got, _ = run(neighbour_stability, gallery=x, params=params)
    found = got.conditions["int8_minmax_round_both"]
    assert found.changed_queries == 4
    assert found.storage.constant_dimensions == [2]
    assert found.storage.clipped_coordinates == 0


def test_rows_outside_the_calibration_are_clipped_and_counted(run: Callable[..., Any]) -> None:
    calibration = 0.5 * np.random.default_rng(11).normal(size=(40, 12))
    params = {"conditions": ["int8"], "scoring": "dot", "k": 5}
    got, _ = run(
        neighbour_stability,
        gallery=GALLERY,
        queries=QUERIES,
        calibration=calibration,
        params=params,
    )
    largest = np.abs(calibration).max(axis=0)
    beyond, asked = np.abs(GALLERY) > largest, np.abs(QUERIES) > largest
    for where in ("gallery", "both"):
        points = pair(
            "int8", where, GALLERY, QUERIES, scoring="dot", storage="as_given",
            calibration=calibration,
        )  # fmt: skip
        changed = shared(top(points.before, 5), top(points.after, 5)) < 5
        found = got.conditions[f"int8_{where}"]
        assert found.changed_queries == changed.sum() > 0
        assert found.storage.clipped_coordinates == beyond.sum()
        assert found.storage.clipped_rows == beyond.any(axis=1).sum()
        assert found.storage.clipped_query_coordinates == (asked.sum() if where == "both" else 0)


@pytest.mark.parametrize("length", [0.0, 3.0, 100.0])
def test_an_offset_has_a_reference_of_its_own(length: float, run: Callable[..., Any]) -> None:
    params = {"conditions": ["offset"], "offset": length, "k": 5}
    got, _ = run(neighbour_stability, gallery=GALLERY, queries=QUERIES, params=params)
    g, q = (unit(unit(rows) + length / np.sqrt(12)) for rows in (GALLERY, QUERIES))
    native, away = top(unit(QUERIES) @ unit(GALLERY).T, 5), top(q @ g.T, 5)
    assert got.conditions["offset_reference"].changed_queries == (shared(native, away) < 5).sum()
    for where in ("gallery", "both"):
        points = pair("fp16", where, g, q)
        changed = shared(away, top(points.after, 5)) < 5
        found = got.conditions[f"offset_fp16_{where}"]
        assert found.changed_queries == changed.sum()
        assert found.against == "offset_reference"


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8"])
def test_rows_of_every_type_are_searched_as_they_are(dtype: str, run: Callable[..., Any]) -> None:
    x = (20 * GALLERY).clip(-128, 127).astype(dtype)
    for scoring in ("cosine", "dot"):
        params = {"conditions": ["fp32_arithmetic", "int8_per_vector"], "scoring": scoring, "k": 5}
        got, _ = run(neighbour_stability, gallery=x, params=params)
        storage = "unit" if scoring == "cosine" else "as_given"
        points = pair("int8_per_vector", "both", x, scoring=scoring, storage=storage)
        clear = np.minimum(gaps(points.before, 5), gaps(points.after, 5)) > points.tau
        changed = shared(top(points.before, 5), top(points.after, 5)) < 5
        found = got.conditions["int8_per_vector_both"]
        assert clear.sum() + found.unresolved == 90
        assert abs(found.changed_queries - changed[clear].sum()) <= found.unresolved


def test_every_other_row_may_be_a_neighbour(run: Callable[..., Any]) -> None:
    """k = n - 1: nothing comes after the last, so nothing can change and no margin is said."""
    params = {"conditions": ["int4", "fp32_arithmetic", "offset"], "k": 29}
    got, _ = run(neighbour_stability, gallery=GALLERY[:30], params=params)
    assert got.reference.boundary_margin.undefined["min"].code == "no_next_row"
    for found in got.conditions.values():
        assert found.changed_queries == 0
        assert found.overlap[29].estimate == 1
        assert found.undefined["changed_by_margin"].code == "no_next_row"


def test_copies_find_each_other_and_not_themselves(run: Callable[..., Any]) -> None:
    """Twelve rows of which three are equal: P@3 is 13/36."""
    x = np.random.default_rng(91).normal(size=(12, 4)).astype(np.float32)
    x[7] = x[2]
    x[9] = x[2]
    params = {"k": 3, "conditions": ["fp16"]}
    got, _ = run(neighbour_stability, gallery=x, labels=list("abababababab"), params=params)
    assert got.reference.label_precision[3].estimate == pytest.approx(13 / 36)


@pytest.mark.parametrize("shards", [2, 7])
def test_shards_and_threads_give_the_same_bytes(
    shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of seven queries, parts computed one by one and joined, as stored parts are."""
    monkeypatch.setattr(PART, "BLOCK", 7)
    monkeypatch.setattr(PART, "BATCH_BLOCKS", 2)
    x = np.concatenate([GALLERY, GALLERY[:9], np.round(GALLERY[:20])])
    x[~x.any(axis=1)] = 1
    inputs = neighbour_stability.inputs(
        gallery=Dataset(x),
        labels=Labels.of((np.arange(len(x)) % 3).tolist()),
        groups=Labels.of((np.arange(len(x)) % 13).tolist()),
    )
    params = neighbour_stability.params(
        k=5, conditions=["fp32_arithmetic", "fp16", "int8", "int4", "binary", "offset"]
    )
    count = neighbour_stability.blocks(inputs, params)
    assert count == 17
    whole = neighbour_stability.run(Context(), inputs, params).model_dump_json()
    plan = Plan(blocks=count, shards=shards)
    parts = [
        neighbour_stability.part(Context(threads=1 + n % 3), inputs, params, plan.share(n))
        for n in range(shards)
    ]
    joined = neighbour_stability.combine(Context(), inputs, params, join(parts))
    assert joined.model_dump_json() == whole
    for threads in (2, 3):
        again = neighbour_stability.run(Context(threads=threads), inputs, params)
        assert again.model_dump_json() == whole


def body(**more: Any) -> dict[str, Any]:
    return {"kind": "neighbour_stability", **more}


def test_a_refusal_says_where_and_what_to_do(services: Services, store: Callable[..., Any]) -> None:
    few, bad, zero = store(GALLERY[:10]), GALLERY.copy(), GALLERY.copy()
    bad[4, 1], zero[6] = np.nan, 0
    whole, narrow = store(GALLERY), store(QUERIES[:, :7])
    cases = [
        (TooFewRows, "/inputs/gallery", "a smaller `k`", {"gallery": {"dataset": few.id}}),
        (NonFiniteRows, "/inputs/gallery", "drop", {"gallery": {"dataset": store(bad).id}}),
        (ZeroRows, "/inputs/gallery", "drop", {"gallery": {"dataset": store(zero).id}}),
        (DimensionMismatch, "/inputs/gallery", "12 dimensions",
         {"gallery": {"dataset": whole.id}, "queries": {"dataset": narrow.id}}),
    ]  # fmt: skip
    for error, pointer, way_out, inputs in cases:
        with pytest.raises(error) as caught:
            submit(services, "default", parse_request(body(inputs=inputs)))
        assert pointer in [fault.pointer for fault in caught.value.faults]
        assert way_out in " ".join(fault.message for fault in caught.value.faults)


def test_labels_of_queries_need_queries(services: Services, store: Callable[..., Any]) -> None:
    gallery = store(GALLERY)
    inputs = {"gallery": {"dataset": gallery.id}, "query_labels": {"values": ["a", "b"] * 45}}
    with pytest.raises(InvalidRequest) as caught:
        submit(services, "default", parse_request(body(inputs=inputs)))
    assert "queries" in str(caught.value.detail) + str(caught.value.faults)


@pytest.mark.parametrize(
    "more", [{"scoring": "dot"}, {"storage": "as_given"}, {"scoring": "dot", "storage": "unit"}]
)
def test_an_offset_needs_directions(more: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(
            body(
                inputs={"gallery": {"dataset": "d"}},
                params={"conditions": ["offset"], **more},
            )
        )
    assert "offset" in str(caught.value.detail) + str(caught.value.faults)


def test_rows_dropped_from_both_sides_leave_a_report(
    store: Callable[..., Any], ended: Callable[..., Job], quiet: None
) -> None:
    zero = GALLERY.copy()
    zero[6] = 0
    job = ended(
        body(
            inputs={"gallery": {"dataset": store(zero).id}},
            params=COARSE | {"on_bad_rows": "drop"},
        )
    )
    assert job.state == "succeeded"


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_products_that_leave_float64_are_refused_and_directions_are_not(
    size: float, run: Callable[..., Any]
) -> None:
    for params in ({"scoring": "dot"}, {"storage": "as_given"}):
        with pytest.raises(InvalidRequest, match="range of float64"):
            run(neighbour_stability, gallery=GALLERY * size, params=params)
    plain, _ = run(neighbour_stability, gallery=GALLERY, params=COARSE)
    found, _ = run(neighbour_stability, gallery=GALLERY * size, params=COARSE)
    for name, one in plain.conditions.items():
        assert found.conditions[name].changed_queries == one.changed_queries


def test_a_product_quantiser_needs_256_rows_to_be_trained_on(run: Callable[..., Any]) -> None:
    params = {"conditions": ["pq", "fp16"], "k": 5}
    got, _ = run(neighbour_stability, gallery=GALLERY, params=params)
    assert got.conditions["pq_both"].undefined["changed_queries"].code == "too_few_rows"
    assert got.conditions["pq_both"].changed_queries is None
    assert got.conditions["fp16_both"].changed_queries is not None
    more = np.random.default_rng(1).normal(size=(256, 12))
    got, _ = run(neighbour_stability, gallery=GALLERY, calibration=more, params=params)
    back = stored("pq", unit(GALLERY), unit(more))
    scores = unit(GALLERY) @ unit(back).T
    before = pair("fp16", "gallery", GALLERY).before
    np.fill_diagonal(scores, -np.inf)
    changed = shared(top(before, 5), top(scores, 5)) < 5
    assert got.conditions["pq_gallery"].changed_queries == changed.sum()
