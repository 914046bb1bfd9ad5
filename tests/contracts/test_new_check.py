"""
A new check is one file and its name in the catalogue.

Both are added to a copy of the source; everything else follows: catalogue, schemas, OpenAPI,
catalogue page, measures of gates, the command line, and the run itself. Neither the API nor the
client knows the name of any check.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("service", "api", "workers", "client/assay_client", "openapi")
OPENING = "CATALOGUE: tuple[Check, ...] = ("
SOURCE = '''
"""Loudness: how long the longest row is."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from service.check import (
    Context, Inputs, Params, Results, Undefined, check, labels, measure, vectors,
)
from service.dataset import Dataset, Labels


class LoudnessInputs(Inputs):
    sounds: Dataset = vectors(rows="sounds", least=2)
    """Rows to listen to."""
    rooms: Labels | None = labels(of="sounds")
    """Where they were heard."""


class LoudnessParams(Params):
    gain: float = Field(default=2.0, gt=0)
    """Factor of every length."""


class Echo(Results):
    delay: float | None = measure(unit="s", low=0, better="lower")
    """Seconds until it comes back."""


class Loudness(Results):
    n: int
    """Rows heard."""
    peak: float = measure(low=0, better="lower", invariance=("orthogonal",))
    """Length of the longest row, times gain."""
    echo: Echo

    def readings(self) -> list[str]:
        return [f"The loudest of {self.n} rows has {self.peak:.1f}."]


@check(version=4, title="How loud the rows are", scope=("Loudness is not importance.",),
       sources=("doi:10.1000/182",))
def loudness(context: Context, inputs: LoudnessInputs, params: LoudnessParams) -> Loudness:
    """The length of the longest row."""
    rows = inputs.sounds.vectors.astype(np.float64)
    silence = Undefined(code="no_walls", message="There is nothing to come back from.")
    return Loudness(n=len(rows), peak=params.gain * float(np.linalg.norm(rows, axis=1).max()),
                    echo=Echo.build(delay=silence))
'''
INSIDE = """
import asyncio, json, sys

import httpx

from api.contracts import contract_files
from service.storage.memory import memory_services
from api.main import create_app
from service.operations import perform
import service

rows = {"vectors": [[3, 4], [0, 1], [1, 0]], "columns": {"room": ["a", "b", "a"]}}
services = memory_services()
app = create_app(services)


async def main():
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as door:
        found = {"service": service.__file__, "files": contract_files(app)}
        found["listed"] = (await door.get("/v1/checks")).json()
        found["alone"] = (await door.get("/v1/checks/loudness")).json()
        found["document"] = (await door.get("/openapi.json")).json()
        dataset = (await door.post("/v1/datasets", json=rows)).json()["id"]
        inputs = {"sounds": {"dataset": dataset}, "rooms": {"column": "room"}}
        body = {"kind": "loudness", "inputs": inputs, "params": {"gain": 3}}
        job = (await door.post("/v1/jobs", json=body)).json()
        perform(services, job["id"])
        found["job"] = (await door.get(job["links"]["self"])).json()
        found["report"] = (await door.get(job["links"]["report"])).json()
        found["charts"] = (await door.get(job["links"]["self"] + "/charts")).json()
        found["chart"] = (await door.get(found["charts"]["items"][0]["links"]["vega_lite"])).json()
        wrong = {**body, "params": {"gain": 0}}
        found["refused"] = (await door.post("/v1/jobs", json=wrong)).json()
        short = {**body, "inputs": {"sounds": {"vectors": [[1.0, 2.0]]}}}
        found["short"] = (await door.post("/v1/jobs", json=short)).json()
        policy = {
            "version": 1, "name": "quiet", "inputs": {"x": "vectors"},
            "checks": {"ear": {"kind": "loudness", "inputs": {"sounds": "x"}, "params": {"gain": 3}}},
            "rules": [
                {"measure": "ear.peak", "at_most": 15}, {"measure": "ear.echo.delay", "at_most": 1},
            ],
        }
        bound = {"policy": policy, "inputs": {"x": {"dataset": dataset}}}
        gate = (await door.post("/v1/gates", json=bound)).json()
        for name in list(services.queue.waiting):
            perform(services, name)
        found["gate"] = (await door.get(gate["links"]["self"])).json()
        policy["rules"] = [{"measure": "ear.peek", "at_most": 1}]
        found["typo"] = (await door.post("/v1/gates", json=bound)).json()
    return found


json.dump(asyncio.run(main()), sys.stdout)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source with one more file and one more name."""
    copy = tmp_path_factory.mktemp("copy")
    for package in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, copy / Path(package).name, ignore=ignore)
    (copy / "service/checks/loudness.py").write_text(SOURCE.lstrip())
    catalogue = copy / "service/checks/__init__.py"
    text = catalogue.read_text()
    assert text.count(OPENING) == 1
    added = f"from service.checks.loudness import loudness\n\n{OPENING}\n    loudness,"
    catalogue.write_text(text.replace(OPENING, added))
    return copy


def run(tree: Path, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Python on the copy."""
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("ASSAY_SERVER", None)
    command = [sys.executable, "-W", "ignore", *words]
    return subprocess.run(
        command, cwd=tree, env=env, capture_output=True, text=True, timeout=120, **more
    )


@pytest.fixture(scope="module")
def seen(tree: Path) -> dict[str, Any]:
    """What the copy answers over HTTP."""
    done = run(tree, "-c", INSIDE)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout[done.stdout.index('{"service"') :])
    assert Path(found["service"]).is_relative_to(tree)
    return dict(found)


def test_it_is_in_the_catalogue(seen: dict[str, Any]) -> None:
    """With roles, params and measures read from its types."""
    assert [item["kind"] for item in seen["listed"]["items"]].count("loudness") == 1
    check = seen["alone"]
    assert (check["kind"], check["version"], check["title"]) == (
        "loudness", 4, "How loud the rows are",
    )  # fmt: skip
    assert [(role["name"], role["kind"], role["required"]) for role in check["roles"]] == [
        ("sounds", "vectors", True), ("rooms", "column", False),
    ]  # fmt: skip
    assert [(one["path"], one["unit"], one["better"], one["shape"]) for one in check["measures"]] == [
        ("peak", "1", "lower", "scalar"), ("echo.delay", "s", "lower", "scalar"),
    ]  # fmt: skip
    assert check["params_schema"]["properties"]["gain"]["default"] == 2.0
    assert check["description"] == "The length of the longest row."


def test_it_is_in_the_contract(seen: dict[str, Any]) -> None:
    """Request and report types in OpenAPI, a schema file of its reports, a part of the page."""
    schemas = seen["document"]["components"]["schemas"]
    assert {"LoudnessRequest", "LoudnessReport", "LoudnessParams", "Loudness"} <= schemas.keys()
    body = seen["document"]["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]
    assert "#/components/schemas/LoudnessRequest" in json.dumps(body["application/json"]["schema"])
    report = json.loads(seen["files"]["reports/loudness.schema.json"])
    assert report["properties"]["kind"]["const"] == "loudness"
    page = seen["files"]["catalogue.md"]
    assert "## `loudness` - How loud the rows are" in page
    assert "| `echo.delay` |" in page


def test_it_runs_and_reports(seen: dict[str, Any]) -> None:
    """3 times the length of (3, 4) is 15; the null has its reason; params are checked by name."""
    assert seen["job"]["state"] == "succeeded"
    report = seen["report"]
    assert (report["kind"], report["kind_version"]) == ("loudness", 4)
    assert report["results"] == {
        "n": 3, "peak": 15.0,
        "echo": {"delay": None, "undefined": {"delay": {
            "code": "no_walls", "message": "There is nothing to come back from."}}},
    }  # fmt: skip
    assert report["readings"] == ["The loudest of 3 rows has 15.0."]
    assert report["scope"] == ["Loudness is not importance."]
    assert report["params"]["gain"] == 3.0
    assert report["inputs"]["rooms"]["column"] == "room"
    assert [fault["pointer"] for fault in seen["refused"]["errors"]] == ["/params/gain"]
    assert seen["short"]["code"] == "too-few-rows"


def test_it_has_a_chart(seen: dict[str, Any]) -> None:
    """Of its measures, scale by scale, though it declares none; what is null is in no picture."""
    (listed,) = seen["charts"]["items"]
    assert "15" in listed["text"]
    points = [
        row
        for layer in seen["chart"]["layer"]
        if layer["mark"]["type"] == "point"
        for row in layer["data"]["values"]
    ]
    assert [(row["row"], row["value"]) for row in points] == [("peak", 15.0)]


def test_a_gate_judges_it(seen: dict[str, Any]) -> None:
    """Its measures are rules, its nulls do not pass, and a typo gets a suggestion."""
    assert [rule["verdict"] for rule in seen["gate"]["rules"]] == ["pass", "inconclusive"]
    assert seen["gate"]["verdict"] == "inconclusive"
    (fault,) = seen["typo"]["errors"]
    assert "did you mean `peak`?" in fault["message"]


def test_the_command_line_lists_and_runs_it(tree: Path) -> None:
    """`assay checks --local`, and `assay check loudness --local` with the role as an option."""
    cli = ("-m", "assay_client.cli")
    listed = run(tree, *cli, "checks", "--local", "--json")
    assert listed.returncode == 0, listed.stderr
    assert "loudness" in [item["kind"] for item in json.loads(listed.stdout)]

    (tree / "rows.csv").write_text("room\na\nb\n")
    import numpy as np

    np.save(tree / "rows.npy", np.array([[3.0, 4.0], [0.0, 1.0]]))
    words = ("check", "loudness", "--sounds", "rows.npy", "--rooms", "rows.csv:room")
    done = run(tree, *cli, *words, "--param", "gain=1", "--local", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"]["peak"] == 5.0
    shown = run(tree, *cli, *words, "--local")
    assert shown.returncode == 0, shown.stderr
    assert "The loudest of 2 rows has 10.0." in shown.stdout
