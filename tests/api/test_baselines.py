"""Baselines over HTTP: named, kept, used by jobs and gates, promoted by what passed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

X = np.random.default_rng(3).normal(size=(24, 4))
ENTRY = {"name", "dataset", "version", "gate", "set_at"}


@pytest.fixture
def put(door: Any) -> Any:
    def send(name: str, body: Any) -> Any:
        return door.send("PUT", f"/v1/baselines/{name}", json=body)

    return send


def test_a_baseline_is_set_read_and_listed(door: Any, put: Any, upload: Any) -> None:
    """What it names, and what it named before."""
    first, second = upload(X)["id"], upload(X[::-1])["id"]
    answer = put("prod", {"dataset": first})
    assert (answer.status_code, answer.json().keys()) == (200, ENTRY)
    assert put("prod", {"dataset": first}).json() == answer.json(), "PUT twice is once"
    put("prod", {"dataset": second})
    put("a-nother_1", {"dataset": first})

    found = door.get("/v1/baselines/prod").json()
    assert found.keys() == ENTRY | {"history"}
    assert (found["dataset"], found["version"], found["gate"]) == (second, 2, None)
    assert [one["dataset"] for one in found["history"]] == [second, first]
    listed = door.get("/v1/baselines?limit=1").json()
    assert [one["name"] for one in listed["items"]] == ["a-nother_1"]
    rest = door.get(f"/v1/baselines?cursor={listed['next_cursor']}").json()
    assert [one["name"] for one in rest["items"]] == ["prod"]
    assert rest["next_cursor"] is None


@pytest.mark.parametrize(
    ("name", "body", "status", "code"),
    [
        ("prod", {"dataset": "ds_" + "0" * 24}, 404, "unknown-dataset"),
        ("prod", {"datset": "x"}, 422, "invalid-request"),
        ("prod", [], 422, "invalid-request"),
        ("Prod", {"dataset": "x"}, 422, "invalid-request"),
        ("a.b", {"dataset": "x"}, 422, "invalid-request"),
        ("-a", {"dataset": "x"}, 422, "invalid-request"),
        ("a" * 65, {"dataset": "x"}, 422, "invalid-request"),
    ],
    ids=str,
)
def test_a_wrong_baseline_is_refused(
    name: str, body: Any, status: int, code: str, put: Any, refusal: Any
) -> None:
    """Names are plain, datasets exist."""
    refusal(put(name, body), status, code)


def test_columns_alone_are_no_baseline(put: Any, door: Any, refusal: Any) -> None:
    """There is nothing to compare."""
    answer = door.post("/v1/datasets", content="a,b\n1,2\n", headers={"Content-Type": "text/csv"})
    refusal(put("prod", {"dataset": answer.json()["id"]}), 422, "invalid-request")


def test_an_unknown_baseline_is_not_found(door: Any, refusal: Any) -> None:
    """To read, to use in a job, in a role or in a column."""
    refusal(door.get("/v1/baselines/prod"), 404, "unknown-baseline")
    for inputs in (
        {"vectors": {"baseline": "prod"}},
        {"vectors": {"vectors": X.tolist()}, "groups": {"baseline": "prod", "column": "t"}},
    ):
        answer = door.post("/v1/jobs", json={"kind": "geometry", "inputs": inputs})
        assert "`prod`" in refusal(answer, 404, "unknown-baseline")["detail"]


def test_a_job_takes_a_baseline_for_its_dataset(
    door: Any, put: Any, upload: Any, work: Any
) -> None:
    """In a role, a column and a model; the record holds ids only, and the request is the same."""
    dataset = upload({"vectors": X.tolist(), "columns": {"t": [f"t{i % 6}" for i in range(24)]}})
    put("prod", {"dataset": dataset["id"]})
    named = {"vectors": {"baseline": "prod"}, "groups": {"baseline": "prod", "column": "t"}}
    job = door.post("/v1/jobs", json={"kind": "geometry", "inputs": named}).json()
    assert job["inputs"] == {
        "vectors": {"dataset": dataset["id"]},
        "groups": {"dataset": dataset["id"], "column": "t"},
    }
    work()
    plain = {"vectors": {"dataset": dataset["id"]}, "groups": {"column": "t"}}
    again = door.post("/v1/jobs", json={"kind": "geometry", "inputs": plain}).json()
    assert again["cached"]
    models = [{"name": "old", "baseline": "prod"}, {"name": "new", "dataset": dataset["id"]}]
    body = {"kind": "group_structure", "inputs": {"models": models, "groups": {"column": "t"}}}
    found = door.post("/v1/jobs", json=body).json()["inputs"]["models"]
    assert found == [{"name": n, "dataset": dataset["id"]} for n in ("old", "new")]


POLICY: dict[str, Any] = {
    "version": 1, "name": "r", "inputs": {"rows": "vectors"},
    "checks": {"shape": {"kind": "geometry", "inputs": {"vectors": "rows"}}},
    "rules": [{"measure": "shape.duplicates.rows", "at_most": 0}],
}  # fmt: skip


def test_what_passed_is_promoted(door: Any, upload: Any, work: Any, refusal: Any) -> None:
    """409 until the verdict is pass; then the name, with the run that says so."""
    dataset = upload(X)["id"]
    body = {"policy": POLICY, "inputs": {"rows": {"dataset": dataset}}}
    run = door.post("/v1/gates", json=body).json()
    place, wanted = f"{run['links']['self']}/promote", {"input": "rows", "baseline": "prod"}
    refusal(door.post(place, json=wanted), 409, "gate-not-passed")
    work()
    answer = door.post(place, json=wanted)
    assert answer.status_code == 200
    assert (answer.json()["dataset"], answer.json()["gate"]) == (dataset, run["id"])
    assert door.get("/v1/baselines/prod").json()["dataset"] == dataset
    for wrong in ({**wanted, "input": "x"}, {**wanted, "baseline": "A B"}, {"input": "rows"}, []):
        refusal(door.post(place, json=wrong), 422, "invalid-request")
    refusal(door.post("/v1/gates/gate_x/promote", json=wanted), 404, "unknown-gate")


def test_what_failed_is_not_promoted(door: Any, upload: Any, work: Any, refusal: Any) -> None:
    """A gate that says no keeps the baseline where it was."""
    rules = [{"measure": "shape.duplicates.rows", "at_least": 1}]
    dataset = upload(X)["id"]
    body = {"policy": {**POLICY, "rules": rules}, "inputs": {"rows": {"dataset": dataset}}}
    run = door.post("/v1/gates", json=body).json()
    work()
    answer = door.post(
        f"{run['links']['self']}/promote", json={"input": "rows", "baseline": "prod"}
    )
    assert "is fail" in refusal(answer, 409, "gate-not-passed")["detail"]
    refusal(door.get("/v1/baselines/prod"), 404, "unknown-baseline")


def test_a_gate_may_be_bound_to_baselines_and_inline_data(
    door: Any, put: Any, upload: Any, work: Any, refusal: Any
) -> None:
    """The nightly batch against what was approved; the run remembers the name."""
    put("prod", {"dataset": upload(X)["id"]})
    for value in ({"baseline": "prod"}, {"vectors": X.tolist()}):
        run = door.post("/v1/gates", json={"policy": POLICY, "inputs": {"rows": value}}).json()
        assert run["inputs"]["rows"].keys() == {"dataset"}
        assert run["baselines"] == ({"rows": "prod"} if "baseline" in value else {})
        work()
        assert door.get(run["links"]["self"]).json()["verdict"] == "pass"
    body = {"policy": POLICY, "inputs": {"rows": {"baseline": "nobody"}}}
    refusal(door.post("/v1/gates", json=body), 404, "unknown-baseline")
