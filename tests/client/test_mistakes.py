"""Mistakes people make at the command line end alike here and through a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from assay_client import drivers

from api.main import create_app
from service.operations import Services

from .conftest import Ran

Assay = Callable[..., Ran]
USAGE, UNAVAILABLE = 2, 4


class Straight(httpx.BaseTransport):
    """Carries requests into an application, each on an event loop of its own."""

    def __init__(self, app: Any) -> None:
        self._inside = httpx.ASGITransport(app)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body = request.read()

        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._inside) as client:
                headers = request.headers
                return await client.request(
                    request.method, request.url, headers=headers, content=body
                )

        answer = asyncio.run(ask())
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


@pytest.fixture
def through_a_server(services: Services, monkeypatch: pytest.MonkeyPatch, quiet: None) -> Services:
    """Commands reach the real application."""
    straight = Straight(create_app(services))

    def driver(server: str, api_key: str | None, transport: Any) -> drivers.Driver:
        return drivers.Driver(server, api_key, straight)

    monkeypatch.setattr("assay_client.api.Driver", driver)
    return services


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 8)).astype(np.float32)
    bad = rows.copy()
    bad[3] = 0
    arrays = {
        "rows": rows,
        "few": rows[:50],
        "zero": bad,
        "labels": np.arange(60) % 3,
        "whole": (rows * 9).astype(np.int32),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "rows.npz", rows)
    (tmp_path / "rows.pkl").write_bytes(b"")
    (tmp_path / "empty.npy").write_bytes(b"")
    lines = "".join(f"{i},{i % 3}\n" for i in range(60))
    (tmp_path / "rows.csv").write_text(f"id,intent\n{lines}", encoding="utf-8")
    request = {"kind": "geometry", "inputs": {"vectors": {"path": "gone.npy"}}}
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    (tmp_path / "request.json").write_text(json.dumps(request), encoding="utf-8")


GEOMETRY = ["geometry", "--vectors", "rows.npy"]
LABELS = ["label_neighbours", "--vectors", "rows.npy", "--labels"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["geometri", "--vectors", "rows.npy"], USAGE, "did you mean `geometry`"),
        (["geometry", "--vector", "rows.npy"], USAGE, "did you mean `vectors`"),
        (["geometry"], USAGE, "needs `vectors`"),
        ([*GEOMETRY, "--param", "levl=0.9"], USAGE, "did you mean `level`"),
        (
            [*GEOMETRY, "--param", "level=2"],
            USAGE,
            "/params/level: takes 0.999999 or less next: `assay checks geometry` lists",
        ),
        (["geometry", "--vectors", "gone.npy"], USAGE, "no such file"),
        (["--request", "list.json"], USAGE, "must hold a JSON object"),
        (["--request", "request.json"], USAGE, "there is no file"),
        (["geometry", "--vectors", "rows.npz"], USAGE, "rows.npz` cannot be uploaded: .npz is not"),
        (["geometry", "--vectors", "rows.pkl"], USAGE, ".npy, .csv, .parquet, .arrow, .arrows"),
        (["geometry", "--vectors", "rows.csv"], USAGE, "takes vectors, a .npy file, not rows.csv"),
        ([*LABELS, "rows.csv"], USAGE, "--labels rows.csv:COLUMN (it has id, intent)"),
        ([*LABELS, "rows.csv:intnet"], USAGE, "did you mean `intent`"),
        ([*LABELS, "labels.npy"], USAGE, "--labels FILE.csv:COLUMN, not labels.npy"),
        (
            ["geometry", "--vectors", "labels.npy"],
            UNAVAILABLE,
            "`vectors` labels.npy: Vectors have",
        ),
        (
            ["cosine_floor", "--a", "rows.npy", "--b", "whole.npy"],
            USAGE,
            "`b` whole.npy: Rows are float16, float32, float64, int8, not int32; "
            "`rows.astype('float32')` makes them so",
        ),
        (["cosine_floor", "--a", "rows.npy", "--b", "few.npy"], UNAVAILABLE, "shape-mismatch"),
        (["geometry", "--vectors", "zero.npy"], UNAVAILABLE, "zero-rows"),
        (
            ["geometry", "--vectors", "empty.npy"],
            UNAVAILABLE,
            "`vectors` empty.npy: The body is not",
        ),
    ],
)
def test_a_mistake_ends_alike_wherever_it_is_found(
    words: list[str], code: int, said: str, through_a_server: Services, assay: Assay
) -> None:
    """2 where other words are needed, 4 where the data cannot be taken; in the same words."""
    here, there = assay("check", *words, "--local"), assay("check", *words)
    assert (here.code, here.out) == (code, ""), here.err
    assert (there.code, there.out) == (code, ""), there.err
    for ran in (here, there):
        assert said.lower() in " ".join(ran.err.split()).lower()
        assert "interrupted" not in ran.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["jobs", "job_none"], USAGE, "unknown-job"),
        (["gates", "gate_none"], USAGE, "unknown-gate"),
        (["datasets", "ds_none"], USAGE, "unknown-dataset"),
        (["reports", "job_none"], USAGE, "unknown-job"),
        (["reports", "--kind", "nope"], USAGE, "unknown-check"),
        (["jobs", "--kind", "nope"], USAGE, "unknown-check"),
        (["jobs", "--tag", "nope"], USAGE, "name:value"),
        (["jobs", "--tag", "a:b"], 0, ""),
        (["jobs", "--state", "nope"], USAGE, "/query/state"),
        (["gates", "--tag", "nope"], USAGE, "name:value"),
        (["baselines", "show", "nope"], USAGE, "unknown-baseline"),
        (["baselines", "set", "my prod", "rows.npy"], USAGE, "`my prod` names no baseline"),
        (["baselines", "set", "prod", "ds_none"], USAGE, "unknown-dataset"),
        (["check", "geometry", "--vectors", "ds_none"], USAGE, "unknown-dataset"),
        (["check", "geometry", "--vectors", "baseline:none"], USAGE, "unknown-baseline"),
        (["upload", "labels.npy"], UNAVAILABLE, "is a column of a CSV file"),
        (["jobs", "--kind", "import"], 0, ""),
        (["jobs", "--kind", "geometry"], 0, ""),
    ],
)
def test_a_name_nobody_knows_is_a_usage_error(
    words: list[str], code: int, said: str, through_a_server: Services, assay: Assay
) -> None:
    ran = assay(*words)
    assert ran.code == code, ran.err
    assert said in " ".join(ran.err.split())
    assert through_a_server.datasets.stored_bytes("default") == 0


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("baseline:prod", "--local excludes baseline:prod: baselines are kept by a server"),
        ("ds_7", "--local excludes ds_7: datasets are kept by a server"),
        (
            "pgvector:connection=prod,table=docs,vector=v,id=id",
            "--local excludes pgvector:connection=prod: stores are read by a server",
        ),
    ],
)
def test_what_only_a_server_has_is_not_looked_for_here(
    value: str, said: str, assay: Assay, tmp_path: Path
) -> None:
    """In a check, in one of several models, and in a gate."""
    policy = {
        "version": 1, "name": "x", "inputs": {"rows": "vectors"},
        "checks": {"shape": {"kind": "geometry", "inputs": {"vectors": "rows"}}},
        "rules": [{"measure": "shape.rankme", "at_least": 2}],
    }  # fmt: skip
    (tmp_path / "policy.json").write_text(json.dumps(policy), encoding="utf-8")
    for words in (
        ["check", "geometry", "--vectors", value],
        ["check", "model_comparison", "--models", "a=rows.npy", "--models", f"b={value}"],
        ["gate", "policy.json", "--input", f"rows={value}"],
    ):
        ran = assay(*words, "--local")
        assert (ran.code, ran.out) == (USAGE, "")
        assert said in " ".join(ran.err.split())


def test_models_are_given_by_name_where_each_needs_one_matrix(
    through_a_server: Services, assay: Assay
) -> None:
    """As where models have one matrix; a check that needs two of each says how they are listed."""
    labelled = ["--labels", "rows.csv:intent", "--param", "permutations=19", "--json"]
    models = ["--models", "old=rows.npy", "--models", "new=whole.npy"]
    np.save("whole.npy", np.load("rows.npy")[::-1])
    ran = assay("check", "linear_probe", *models, *labelled[:2], "--local", "--json")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert [one["name"] for one in report["inputs"]["models"]] == ["old", "new"]
    assert all("rows" in one for one in report["inputs"]["models"])
    ran = assay("check", "retrieval", *models, "--relevance", "rows.csv:intent", "--local")
    assert ran.code == USAGE
    assert "listed in a request" in ran.err
