"""Relevance and models of several matrices over HTTP: how they are given, kept and refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml

from service.operations import Services

random = np.random.default_rng(31)
DOCUMENTS = random.normal(size=(12, 6))
QUERIES = DOCUMENTS[:5] + 0.1 * random.normal(size=(5, 6))
NAMES = [f"d{i}" for i in range(12)]
KS = {"ks": [1, 3]}
POLICY = """
version: 1
name: search-index
inputs:
  {reference: vectors, candidate: vectors, queries: vectors, relevance: relevance, parents: column}
checks:
  stability:
    {kind: neighbour_stability, inputs: {gallery: candidate},
     params: {conditions: [fp16, int8], k: 10}}
  quality:
    kind: retrieval
    inputs:
      models:
        [{name: reference, queries: queries, documents: reference},
         {name: candidate, queries: queries, documents: candidate}]
      relevance: relevance
      groups: parents
rules:
  - {measure: stability.conditions.int8_gallery.overlap@10, at_least: 0.98}
  - {measure: quality.differences.candidate.reference.ndcg@10, not_worse_by: 0.01}
  - {measure: quality.models.candidate.hit@10, at_least: 0.9, level: warn}
"""


def body(rows: Any, ids: list[str] | None = None, **columns: list[Any]) -> dict[str, Any]:
    named = {} if ids is None else {"ids": ids}
    return {"vectors": np.asarray(rows).tolist(), "columns": columns, **named}


@pytest.fixture
def given(upload: Any) -> dict[str, Any]:
    """Five queries and twelve documents with ids; document i is right for query i."""
    queries = upload(body(QUERIES, [f"q{i}" for i in range(5)], right=NAMES[:5]))["id"]
    documents = upload(body(DOCUMENTS, NAMES))["id"]
    return {
        "models": [{"queries": {"dataset": queries}, "documents": {"dataset": documents}}],
        "relevance": {"column": "right"},
    }


def hits(report: dict[str, Any], model: str = "model_1") -> float:
    return float(report["results"]["models"][model]["hit@1"]["estimate"])


def test_a_column_of_the_queries_is_the_relevance(report: Any, given: dict[str, Any]) -> None:
    """Each query lies beside its document: all hit."""
    found = report("retrieval", given, KS)
    assert hits(found) == 1
    assert found["results"]["chance_hit@1"] == pytest.approx(1 / 12)
    (model,) = found["inputs"]["models"]
    assert (model["queries"]["n"], model["documents"]["n"]) == (5, 12)
    assert found["inputs"]["relevance"]["column"] == "right"


@pytest.mark.parametrize(
    "values",
    [
        [[name] for name in NAMES[:5]],
        [[[name, 2]] for name in NAMES[:5]],
        [[name, ["d11", 0]] for name in NAMES[:5]],
    ],
    ids=["ids", "grades", "not relevant"],
)
def test_inline_relevance_is_stored(
    values: list[Any], report: Any, given: dict[str, Any], ask: Any, services: Services
) -> None:
    """Ids, or ids with grades; the job holds a reference."""
    asked = {**given, "relevance": {"values": values}}
    assert hits(report("retrieval", asked, KS)) == 1
    job = ask("retrieval", asked, KS).json()
    assert job["cached"]
    assert job["inputs"]["relevance"].keys() == {"dataset", "column"}


def test_one_model_may_be_given_by_bare_roles(report: Any, given: dict[str, Any]) -> None:
    """The same request and the same report, digest included."""
    (model,) = given["models"]
    bare = report("retrieval", {**model, "relevance": given["relevance"]}, KS)
    listed = report("retrieval", given, KS)
    assert bare["request_digest"] == listed["request_digest"]
    assert bare["inputs"]["models"][0]["name"] == "model_1"


def test_documents_without_ids_are_numbered(report: Any, given: dict[str, Any]) -> None:
    """Vectors inside the request, rows as numbers."""
    asked = {
        "queries": {"vectors": QUERIES.tolist()},
        "documents": {"vectors": DOCUMENTS.tolist()},
        "relevance": {"values": [[i] for i in range(5)]},
    }
    assert hits(report("retrieval", asked, KS)) == 1


def test_models_are_named_and_compared(report: Any, upload: Any, given: dict[str, Any]) -> None:
    """By position, or aligned by ids: the second model has its documents in another order."""
    order = [3, 1, 0, 2, *range(4, 12)]
    turned = upload(body(DOCUMENTS[order], [NAMES[i] for i in order]))["id"]
    (first,) = given["models"]
    models = [
        {**first, "name": "old"}, {**first, "documents": {"dataset": turned}, "name": "new"},
    ]  # fmt: skip
    found = report("retrieval", {**given, "models": models}, {**KS, "align_by_ids": True})
    assert hits(found, "old") == hits(found, "new") == 1
    assert found["results"]["differences"]["new"]["old"]["hit@1"]["estimate"] == 0


@pytest.mark.parametrize(
    ("change", "code", "pointer", "rows"),
    [
        ({"relevance": {"values": [["d0"], ["x"], ["d2"], ["y"], ["d4"]]}}, "ids-mismatch",
         "/inputs/relevance", ["q1", "q3"]),
        ({"relevance": {"values": [["d0"], ["d1", "d1"], ["d2"], ["d3"], ["d4"]]}},
         "duplicate-ids", "/inputs/relevance", ["q1"]),
        ({"relevance": {"values": [["d0"], [], ["d2"], None, [["d4", 0]]]}}, "missing-labels",
         "/inputs/relevance", ["q1", "q3", "q4"]),
        ({"relevance": {"values": [["d0"]]}}, "shape-mismatch", "/inputs/relevance", None),
        ({"relevance": {"values": [[["d0", -1]]] * 5}}, "invalid-request",
         "/inputs/relevance/values/0/0/1", None),
        ({"models": None}, "invalid-request", "/inputs", None),
        ({"queries": {"dataset": "ds_1"}}, "invalid-request", "/inputs", None),
    ],
)  # fmt: skip
def test_wrong_relevance_is_refused_at_submit(
    change: dict[str, Any], code: str, pointer: str, rows: list[str] | None, ask: Any, given: Any,
    refusal: Any,
) -> None:  # fmt: skip
    """With the place in the request and the ids of the queries."""
    asked = {name: value for name, value in {**given, **change}.items() if value is not None}
    found = refusal(ask("retrieval", asked, KS), 422, code)
    places = {fault["pointer"]: fault for fault in found["errors"]}
    assert any(place.startswith(pointer) for place in places), places
    if rows is not None:
        assert places[pointer]["rows"] == rows
        assert places[pointer]["count"] == len(rows)


def test_more_than_there_are_documents_is_refused(ask: Any, given: Any, refusal: Any) -> None:
    """Where they stand in the request, listed or bare."""
    found = refusal(ask("retrieval", given), 422, "too-few-rows")
    (fault,) = found["errors"]
    assert fault["pointer"] == "/inputs/models/0/documents"
    assert fault["message"] == "at least 100 rows, or a smaller `ks`"
    (model,) = given["models"]
    bare = {**model, "relevance": given["relevance"]}
    found = refusal(ask("retrieval", bare), 422, "too-few-rows")
    assert found["errors"][0]["pointer"] == "/inputs/documents"


def test_matrices_of_one_model_share_their_dimensions(
    ask: Any, upload: Any, given: Any, refusal: Any
) -> None:
    """Those of different models need not."""
    narrow = {"dataset": upload(body(DOCUMENTS[:, :4], NAMES))["id"]}
    (model,) = given["models"]
    mixed = {**given, "models": [{**model, "documents": narrow}]}
    found = refusal(ask("retrieval", mixed, KS), 422, "dimension-mismatch")
    assert {fault["pointer"] for fault in found["errors"]} == {
        "/inputs/models/0/queries", "/inputs/models/0/documents",
    }  # fmt: skip
    queries = {"dataset": upload(body(QUERIES[:, :4], [f"q{i}" for i in range(5)]))["id"]}
    other = {"queries": queries, "documents": narrow, "name": "narrow"}
    assert ask("retrieval", {**given, "models": [model, other]}, KS).status_code == 202


def test_bad_rows_are_dropped_from_both_sides(report: Any, upload: Any) -> None:
    """A query without a relevant document, and a document that is zero: the others keep their names."""
    documents = DOCUMENTS.copy()
    documents[0] = 0
    asked = {
        "queries": {"dataset": upload(body(QUERIES))["id"]},
        "documents": {"dataset": upload(body(documents))["id"]},
        "relevance": {"values": [None, [1], [2], [3], [4]]},
    }
    found = report("retrieval", asked, {**KS, "on_bad_rows": "drop"})
    assert (found["results"]["queries"], found["results"]["documents"]) == (4, 11)
    assert hits(found) == 1
    assert [one["code"] for one in found["warnings"]] == ["rows_dropped", "rows_dropped"]


def test_a_relevant_document_that_is_dropped_fails_the_job(
    ask: Any, upload: Any, work: Any, door: Any
) -> None:
    """Its query would lose what is right for it in silence."""
    documents = DOCUMENTS.copy()
    documents[3] = 0
    asked = {
        "queries": {"dataset": upload(body(QUERIES))["id"]},
        "documents": {"dataset": upload(body(documents))["id"]},
        "relevance": {"values": [[i] for i in range(5)]},
    }
    answer = ask("retrieval", asked, {**KS, "on_bad_rows": "drop"})
    work()
    job = door.get(answer.headers["location"]).json()
    assert job["state"] == "failed"
    assert job["problem"]["code"] == "ids-mismatch"
    assert job["problem"]["errors"][0]["rows"] == ["3"]


@pytest.mark.parametrize(("noise", "verdict"), [(0.02, "pass"), (1.5, "fail")])
def test_a_policy_judges_an_upgrade(
    noise: float, verdict: str, door: Any, upload: Any, work: Any
) -> None:
    """The complete policy of the contract, on documents that moved a little and on others."""
    documents = np.random.default_rng(1).normal(size=(400, 16))
    queries = documents[:300] + 0.3 * np.random.default_rng(2).normal(size=(300, 16))
    moved = documents + noise * np.random.default_rng(3).normal(size=documents.shape)
    inputs = {
        "reference": {"dataset": upload(documents)["id"]},
        "candidate": {"dataset": upload(moved)["id"]},
        "queries": {"dataset": upload(queries)["id"]},
        "relevance": {"values": [[i] for i in range(300)]},
        "parents": {"values": [i // 2 for i in range(300)]},
    }
    policy = yaml.safe_load(POLICY)
    policy["rules"][0]["at_least"] = 0.9
    policy["rules"][1]["not_worse_by"] = 0.1  # 150 groups cannot show .01
    run = door.post("/v1/gates", json={"policy": policy, "inputs": inputs})
    assert run.status_code in (200, 202), run.text
    work()
    found = door.get(run.json()["links"]["self"]).json()
    assert {rule["rule"]["measure"] for rule in found["rules"]} == {
        rule["measure"] for rule in policy["rules"]
    }
    assert found["rules"][1]["verdict"] == verdict
    assert found["verdict"] == verdict
    wrong = door.post(
        "/v1/gates", json={"policy": policy, "inputs": {**inputs, "relevance": inputs["queries"]}}
    )
    assert wrong.status_code == 422
    assert wrong.json()["errors"][0]["pointer"].startswith("/inputs/relevance")
