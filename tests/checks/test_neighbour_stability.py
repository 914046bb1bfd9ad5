"""Neighbour stability against stored readings, whole matrices and intervals by hand."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from service.check import Context
from service.checks.neighbour_stability import neighbour_stability
from service.dataset import Dataset, Labels
from service.errors import InvalidRequest, TooFewRows
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
