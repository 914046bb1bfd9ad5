"""Datasets by reference, downloaded and deleted, over HTTP."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.operations import Services, fetch, perform
from service.sources import NamedSources
from service.sources.connection import read_connections

SECRET = "s3cr3t-of-the-operator"
PARQUET = {"Content-Type": "application/vnd.apache.parquet"}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    (tmp_path / "lake").mkdir()
    return tmp_path / "lake"


@pytest.fixture
def on(services: Services, lake: Path, tmp_path: Path) -> Services:
    secrets = {"user": SECRET, "password": SECRET, "options": {"token": SECRET}}
    text = json.dumps(
        {
            "lake": {"url": f"file://{lake}", **secrets},
            "gone": {"url": "https://127.0.0.1:9/", "private": True, **secrets},
            "stores": {"url": f"s3://lake/{SECRET}", "options": {"endpoint": "http://127.0.0.1:9"}},
        }
    )
    return replace(services, sources=NamedSources(read_connections(text), tmp_path / "scratch"))


@pytest.fixture
def door(knock: Callable[..., Any], on: Services) -> Any:
    return knock(on)


@pytest.fixture
def drain(on: Services, waiting: list[str]) -> Callable[[], None]:
    def run() -> None:
        while waiting:
            fetch(on, waiting.pop(0).partition("-")[0])

    return run


DOCS = {"kind": "qdrant", "connection": "lake", "collection": "docs"}


def source(path: str = "a.npy", connection: str = "lake", kind: str = "npy") -> dict[str, Any]:
    return {"kind": kind, "connection": connection, "path": path}


def test_a_reference_becomes_a_job_and_the_job_a_dataset(
    door: Any, drain: Callable[[], None], lake: Path
) -> None:
    rows = np.random.default_rng(2).normal(size=(30, 4)).astype(np.float32)
    np.save(lake / "a.npy", rows)
    answer = door.post(
        "/v1/datasets", json={"name": "mine", "source": source(), "spec": {"model": "m"}}
    )
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"/v1/jobs/{answer.json()['id']}"
    assert (answer.json()["kind"], answer.json()["state"]) == ("import", "queued")
    drain()
    job = door.get(answer.headers["Location"]).json()
    assert job["state"] == "succeeded", job["problem"]
    dataset = door.get(f"/v1/datasets/{job['result']['dataset']}").json()
    assert dataset["name"] == "mine"
    assert dataset["spec"]["model"] == "m"
    assert dataset["spec"]["source"]["location"] == "a.npy"
    report = door.get(f"{answer.headers['Location']}/report")
    assert (report.status_code, report.json()["code"]) == (409, "report-not-ready")

    answer = door.get(f"/v1/datasets/{dataset['id']}/vectors")
    assert answer.headers["Content-Type"] == "application/x-npy"
    assert answer.headers["ETag"] == f'"{dataset["vectors_sha256"]}"'
    assert int(answer.headers["Content-Length"]) == len(answer.content)
    np.testing.assert_array_equal(np.load(io.BytesIO(answer.content)), rows)
    same = door.get(
        f"/v1/datasets/{dataset['id']}/vectors", headers={"If-None-Match": answer.headers["ETag"]}
    )
    assert (same.status_code, same.content) == (304, b"")


@pytest.mark.parametrize(
    ("body", "status", "code", "pointer"),
    [
        ({"source": source(connection="other")}, 403, "source-denied", None),
        ({"source": {**source(), "kind": "excel"}}, 422, "invalid-request", "/source"),
        ({"source": {**source(), "password": "x"}}, 422, "invalid-request", "/source/password"),
        ({"source": {"kind": "npy", "connection": "lake"}}, 422, "invalid-request", "/source/path"),
        ({"source": source(), "vectors": [[1]]}, 422, "invalid-request", "/vectors"),
        *(
            (
                {"source": {**DOCS, "where": [{"column": "k", "op": op, "value": value}]}},
                422,
                "invalid-request",
                "/source/where/0/value",
            )
            for op, value in (("=", [1]), ("<", ["a"]), ("!=", []), ("in", 1), ("in", "a"))
        ),
    ],
)
def test_a_wrong_reference_is_refused_at_its_place(
    body: dict[str, Any], status: int, code: str, pointer: str | None, door: Any
) -> None:
    answer = door.post("/v1/datasets", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    if pointer is not None:
        assert pointer in [fault["pointer"] for fault in answer.json()["errors"]]


def test_no_answer_shows_a_secret_of_a_connection(
    door: Any, drain: Callable[[], None], lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(lake / "a.npy", np.ones((20, 3), np.float32))
    (lake / "bad.npy").write_bytes(b"bad")
    seen, states = "", set()
    for path, connection, kind in (
        ("a.npy", "lake", "npy"),
        ("bad.npy", "lake", "npy"),
        ("none.npy", "lake", "npy"),
        ("../x", "lake", "npy"),
        ("a.npy", "lake", "faiss"),
        ("a.npy", "gone", "npy"),
        ("a.npy", "stores", "npy"),
        ("a.npy", "other", "npy"),
    ):
        answer = door.post("/v1/datasets", json={"source": source(path, connection, kind)})
        drain()
        found = door.get(answer.headers.get("Location", "/v1/jobs"))
        states.add(found.json().get("state"))
        seen += answer.text + str(answer.headers) + found.text + str(found.headers)
    for place in ("/v1/jobs", "/v1/datasets", "/metrics", "/v1/limits", "/openapi.json"):
        seen += door.get(place).text
    assert {"succeeded", "failed"} <= states
    assert SECRET not in seen + "".join(capsys.readouterr())


def test_a_parquet_body_is_a_dataset_with_its_columns(door: Any) -> None:
    file = io.BytesIO()
    table = pa.table(
        {"doc": ["a", "b"], "v": [[1.0, 2.0], [3.0, 4.0]], "w": [[1.0], [2.0]], "k": [1, 1]}
    )
    pq.write_table(table, file)
    answer = door.post("/v1/datasets", content=file.getvalue(), headers=PARQUET)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    answer = door.post(
        "/v1/datasets",
        content=file.getvalue(),
        headers=PARQUET,
        params={"vector_column": "v", "id_column": "doc", "name": "t"},
    )
    assert answer.status_code == 201, answer.text
    found = answer.json()
    assert (found["n"], found["d"], found["dtype"]) == (2, 2, "float64")
    assert found["columns"]["k"]["distinct"] == 1


def test_a_dataset_is_deleted_once_nothing_needs_it(
    door: Any, upload: Any, waiting: list[str]
) -> None:
    rows = np.random.default_rng(4).normal(size=(30, 4)).astype(np.float32)
    first = upload(rows)["id"]
    job = door.post(
        "/v1/jobs", json={"kind": "geometry", "inputs": {"vectors": {"dataset": first}}}
    )
    refused = door.delete(f"/v1/datasets/{first}")
    assert (refused.status_code, refused.json()["code"]) == (409, "dataset-in-use")
    door.delete(f"/v1/jobs/{job.json()['id']}")
    assert door.delete(f"/v1/datasets/{first}").status_code == 204
    assert door.delete(f"/v1/datasets/{first}").json()["code"] == "unknown-dataset"
    assert door.get(f"/v1/datasets/{first}/vectors").json()["code"] == "unknown-dataset"
    assert upload(rows)["id"] != first


def test_columns_alone_have_no_vectors_to_download(door: Any, upload: Any) -> None:
    columns = upload("k\n1\n")["id"]
    answer = door.get(f"/v1/datasets/{columns}/vectors")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")


def test_a_gate_takes_a_source_wherever_it_takes_rows(
    door: Any, on: Services, waiting: list[str], lake: Path
) -> None:
    """202 with the import and its link; what a source forbids is refused at once, at its place."""
    np.save(lake / "a.npy", np.random.default_rng(3).normal(size=(30, 4)))
    policy = {
        "version": 1,
        "name": "elsewhere",
        "inputs": {"rows": "vectors"},
        "checks": {"shape": {"kind": "geometry", "inputs": {"vectors": "rows"}}},
        "rules": [{"measure": "shape.duplicates.rows", "at_most": 0}],
    }
    body = {"policy": policy, "inputs": {"rows": {"source": source()}}}
    answer = door.post("/v1/gates", json=body)
    assert answer.status_code == 202, answer.text
    run = answer.json()
    assert run["links"]["imports"] == {"rows": f"/v1/jobs/{run['imports']['rows']}"}
    assert (run["state"], run["inputs"]) == ("running", {})
    shape = door.get(run["links"]["jobs"]["shape"]).json()
    assert (shape["state"], shape["inputs"]) == ("queued", {})
    while waiting:
        job, _, step = waiting.pop(0).partition("-")
        (fetch if step else perform)(on, job)
    judged = door.get(run["links"]["self"]).json()
    assert judged["verdict"] == "pass"
    imported = door.get(run["links"]["imports"]["rows"]).json()
    assert judged["inputs"]["rows"] == imported["result"]
    for wrong, status, code, pointer in (
        (source(connection="other"), 403, "source-denied", None),
        ({**source(), "kind": "excel"}, 422, "invalid-request", "/inputs/rows/source"),
        ({**source(), "token": "x"}, 422, "invalid-request", "/inputs/rows/source/token"),
    ):
        answer = door.post("/v1/gates", json={**body, "inputs": {"rows": {"source": wrong}}})
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        if pointer is not None:
            assert pointer in [fault["pointer"] for fault in answer.json()["errors"]]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_ids_that_repeat_in_a_file_are_named(
    kind: str, door: Any, drain: Callable[[], None], lake: Path
) -> None:
    """A file is one state: its rows are all there, and some have the same id."""
    table = pa.table({"doc": ["a", "b", "a"], "v": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]})
    file = lake / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(table, file)
    else:
        with pa.ipc.new_file(str(file), table.schema) as writer:
            writer.write_table(table)
    asked = {**source(file.name, kind=kind), "vector": "v", "id": "doc"}
    answer = door.post("/v1/datasets", json={"source": asked})
    drain()
    problem = door.get(answer.headers["Location"]).json()["problem"]
    assert problem["code"] == "duplicate-ids"
    assert problem["errors"][0]["rows"] == ["a"]
