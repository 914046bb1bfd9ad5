"""Redis is lost, all of it: what was approved and reported is there, under the ids it had."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis import Redis

from api.keys import Scope, create_key

from .processes import until
from .stack import Stack, npy

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

ROWS = np.random.default_rng(4).normal(size=(60, 8)).astype(np.float32)
REINDEX = "from workers.commands import reindex; reindex(as_json=True)"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The keys of two projects, and their file."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    scopes = [Scope.read, Scope.submit]
    made = {project: create_key(file, project, scopes) for project in ("one", "other")}
    return {"file": str(file), **made}


@pytest.fixture(scope="module")
def stack(serve: Callable[..., Stack], keys: dict[str, str]) -> Stack:
    return serve(ASSAY_API_KEYS_FILE=keys["file"], ASSAY_LOG_LEVEL="info")


@pytest.fixture
def ask(stack: Stack, keys: dict[str, str]) -> Callable[..., Any]:
    """Ask as a project."""

    def send(project: str, method: str, path: str, **given: Any) -> Any:
        headers = {"Authorization": f"Bearer {keys[project]}", **given.pop("headers", {})}
        return stack.ask(method, path, headers=headers, **given)

    return send


def reindex(stack: Stack) -> list[dict[str, Any]]:
    """The command, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", REINDEX], cwd=stack.tree, env=stack.env, check=True,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return list(json.loads(done.stdout))


def test_a_lost_redis_takes_no_dataset_no_baseline_and_no_report(
    stack: Stack, ask: Callable[..., Any]
) -> None:
    upload = {"content": npy(ROWS), "headers": {"Content-Type": "application/x-npy"}}
    ids = [ask("one", "POST", "/v1/datasets?name=a", **upload).json()["id"]]
    csv = {"content": "topic\n" + "a\nb\n" * 30, "headers": {"Content-Type": "text/csv"}}
    ids.append(ask("one", "POST", "/v1/datasets", **csv).json()["id"])
    theirs = ask("other", "POST", "/v1/datasets", **upload).json()["id"]
    ask("one", "PUT", "/v1/baselines/prod", json={"dataset": ids[0]})
    body = {
        "kind": "geometry",
        "inputs": {
            "vectors": {"baseline": "prod"},
            "groups": {"dataset": ids[1], "column": "topic"},
        },
    }
    wait = {"Prefer": "wait=30"}
    first = ask("one", "POST", "/v1/jobs", json=body, headers=wait).json()
    assert first["state"] == "succeeded", first
    report = ask("one", "GET", first["links"]["report"]).content
    places = [
        "/v1/datasets", *(f"/v1/datasets/{one}" for one in ids), f"/v1/datasets/{ids[0]}/vectors",
        "/v1/baselines", "/v1/baselines/prod",
    ]  # fmt: skip

    def seen() -> list[Any]:
        return [(answer.status_code, answer.content) for answer in (
            ask(project, "GET", place) for project in ("one", "other") for place in places
        )]  # fmt: skip

    before = seen()
    assert [status for status, _ in before[len(places) :]] == [200, 404, 404, 404, 200, 404]

    Redis.from_url(stack.redis_url).flushall()
    shutil.rmtree(stack.home / "store" / "one" / "contents")
    counts = reindex(stack)
    assert counts == [
        {"project": "one", "datasets": 2, "baselines": 1, "reports": 1, "restored": 2,
         "repeated": 0, "dropped": 0, "damaged": []},
        {"project": "other", "datasets": 1, "baselines": 0, "reports": 0, "restored": 0,
         "repeated": 0, "dropped": 0, "damaged": []},
    ]  # fmt: skip
    assert reindex(stack) == [{**one, "restored": 0} for one in counts]

    assert seen() == before
    again = ask("one", "POST", "/v1/datasets?name=b", **upload)
    assert (again.status_code, again.json()["id"]) == (200, ids[0])
    assert ask("other", "POST", "/v1/datasets", **upload).json()["id"] == theirs
    answered = ask("one", "POST", "/v1/jobs", json=body).json()
    assert (answered["state"], answered["cached"]) == ("succeeded", True)
    assert ask("one", "GET", answered["links"]["report"]).content == report
    assert ask("one", "GET", f"/v1/jobs/{first['id']}").status_code == 404
    until(lambda: stack.http.get("/readyz").status_code == 200, 30, "ready")
    fresh = ask("one", "POST", "/v1/jobs", json={**body, "seed": 5}, headers=wait).json()
    assert fresh["state"] == "succeeded", Path(stack.log).read_text()
