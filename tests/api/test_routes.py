"""Every route of the application, also those that will be added: its scope, and whose it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from api.keys import Keys, Scope, create_key
from api.main import create_app
from service.operations import Services, perform
from service.storage.memory import memory_services

NPY = {"Content-Type": "application/x-npy"}
OPEN = {("GET", "/healthz"), ("GET", "/readyz")}
"""An orchestrator has no key."""
UNDOCUMENTED = {"/", "/docs", "/docs/oauth2-redirect", "/openapi.json"}
"""Pages that tell nothing of any project."""
ABOUT_NO_PROJECT = {("GET", "/v1/checks/{kind}")}
CHANGES_NOTHING = {("POST", "/v1/gates/validate")}
BODIES: dict[tuple[str, str], dict[str, str]] = {
    ("PUT", "/v1/baselines/{name}"): {"dataset": "{dataset_id}"},
    ("POST", "/v1/gates/{gate_id}/promote"): {"input": "rows", "baseline": "next"},
}
"""What a route has to be sent before it looks for anything."""


def documented() -> list[tuple[str, str]]:
    """Method and path of every operation."""
    paths = create_app(memory_services()).openapi()["paths"]
    return sorted((method.upper(), path) for path, ways in paths.items() for method in ways)


ROUTES = documented()
GUARDED = [route for route in ROUTES if route not in OPEN]
OWNED = [route for route in ROUTES if "{" in route[1] and route not in ABOUT_NO_PROJECT]
LISTINGS = ["/v1/baselines", "/v1/datasets", "/v1/gates", "/v1/jobs", "/v1/reports"]


def scope_of(method: str, path: str) -> Scope:
    """Looking needs `read`, everything that changes or starts something needs `submit`."""
    looks = method == "GET" or (method, path) in CHANGES_NOTHING
    return Scope.read if looks else Scope.submit


def filled(path: str, values: dict[str, str] | None = None) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: (values or {}).get(found[1], "x"), path)


@pytest.fixture
def door_of(knock: Any, tmp_path: Path) -> Callable[..., Any]:
    """A door with a new key of this project and these scopes."""

    def open_with(project: str, *scopes: Scope) -> Any:
        return knock(
            keys=Keys(tmp_path / "keys"), key=create_key(tmp_path / "keys", project, list(scopes))
        )

    return open_with


def test_these_are_all_routes() -> None:
    """What is not documented is a page of the documentation."""
    app = create_app(memory_services())
    plain = {route.path for route in app.routes if hasattr(route, "path")}
    assert plain == UNDOCUMENTED
    assert len(ROUTES) >= 15
    assert set(ROUTES) >= OPEN


@pytest.mark.parametrize(("method", "path"), GUARDED, ids=" ".join)
def test_each_route_asks_for_its_scope(
    method: str, path: str, door_of: Any, knock: Any, tmp_path: Path, refusal: Any
) -> None:
    """401 without a key, 403 with every scope but its own, neither with it or with `admin`."""
    wanted = scope_of(method, path)
    others = [scope for scope in (Scope.read, Scope.submit) if scope is not wanted]
    at = filled(path)
    refused = door_of("p", *others).send(method, at, content=b"x")
    assert f"`{wanted.value}`" in refusal(refused, 403, "forbidden")["detail"]
    refusal(knock(keys=Keys(tmp_path / "keys")).send(method, at, content=b"x"), 401, "unauthorised")
    for scope in (wanted, Scope.admin):
        answer = door_of("p", scope).send(method, at, content=b"x")
        assert answer.status_code not in (401, 403), answer.text


@pytest.mark.parametrize(("method", "path"), sorted(OPEN), ids=" ".join)
def test_open_routes_need_no_key(method: str, path: str, knock: Any, tmp_path: Path) -> None:
    create_key(tmp_path / "keys", "p", [Scope.read])
    assert knock(keys=Keys(tmp_path / "keys")).send(method, path).status_code == 200


@pytest.fixture
def ours(door_of: Any, npy: Any, services: Services, waiting: list[str]) -> dict[str, str]:
    """Ids of one project: a dataset, a job, a chart of its report, a gate that passed, a baseline."""
    door = door_of("search", Scope.admin)
    rows = npy(np.random.default_rng(1).normal(size=(9, 3)))
    dataset = door.post("/v1/datasets", content=rows, headers=NPY).json()["id"]
    bound = {"dataset": dataset}
    request = {"kind": "geometry", "inputs": {"vectors": bound}}
    policy = {
        "version": 1, "name": "x", "inputs": {"rows": "vectors"},
        "checks": {"shape": {"kind": "geometry", "inputs": {"vectors": "rows"}}},
        "rules": [{"measure": "shape.rankme", "at_least": 1.01}],
    }  # fmt: skip
    job = door.post("/v1/jobs", json=request).json()["id"]
    perform(services, waiting.pop())
    gate = door.post("/v1/gates", json={"policy": policy, "inputs": {"rows": bound}}).json()["id"]
    assert door.send("PUT", "/v1/baselines/prod", json=bound).status_code == 200
    return {
        "dataset_id": dataset,
        "job_id": job,
        "gate_id": gate,
        "name": "prod",
        "chart": "spread",
    }


@pytest.mark.parametrize(("method", "path"), OWNED, ids=" ".join)
def test_what_belongs_to_another_project_is_not_there(
    method: str, path: str, ours: dict[str, str], door_of: Any, refusal: Any
) -> None:
    """404, as for an id that never was; its owner gets it, whatever was asked before."""
    names = set(re.findall(r"\{(\w+)\}", path))
    assert names & ours.keys(), f"make one for {path} in `ours`"

    def send(project: str, values: dict[str, str]) -> Any:
        body = {key: filled(v, values) for key, v in BODIES.get((method, path), {}).items()}
        return door_of(project, Scope.admin).send(method, filled(path, values), json=body or None)

    answer = send("ads", ours)
    code = str(answer.json()["code"])
    assert code.startswith("unknown-")
    found = refusal(answer, 404, code)
    never = send("ads", dict.fromkeys(ours, "x" * 28))
    assert never.json()["code"] == code
    assert set(ours.values()).isdisjoint(re.findall(r"\w+", str(found["errors"])))
    kept = (method, path) == ("DELETE", "/v1/datasets/{dataset_id}")  # a baseline stands for it
    assert send("search", ours).status_code == (409 if kept else 200)


@pytest.mark.parametrize("path", LISTINGS)
def test_listings_show_one_project(path: str, ours: dict[str, str], door_of: Any) -> None:
    """Its owner sees what is there, nobody else anything."""
    assert door_of("search", Scope.read).get(path).json()["items"]
    assert door_of("ads", Scope.admin).get(path).json()["items"] == []


def test_these_are_all_listings() -> None:
    """Pages of something a project owns."""
    found = create_app(memory_services()).openapi()["paths"]
    paged = {
        path
        for path, ways in found.items()
        if "cursor" in str(ways.get("get", {}).get("parameters"))
    }
    assert paged == set(LISTINGS)


def test_a_name_may_stand_for_something_in_each_project(
    ours: dict[str, str], door_of: Any, npy: Any
) -> None:
    """Setting a baseline touches no other project's baseline of that name."""
    ads = door_of("ads", Scope.admin)
    theirs = ads.post("/v1/datasets", content=npy(np.eye(3)), headers=NPY).json()["id"]
    assert ads.send("PUT", "/v1/baselines/prod", json={"dataset": theirs}).status_code == 200
    mine = door_of("search", Scope.read).get("/v1/baselines/prod").json()
    assert [one["dataset"] for one in mine["history"]] == [ours["dataset_id"]]


@pytest.mark.parametrize("route", ROUTES)
def test_query_parameters_nobody_declared_are_refused(
    route: tuple[str, str], knock: Any, strict: Callable[[bytes], Any]
) -> None:
    """Ignored, a misspelled filter would list everything."""
    method, path = route
    refused = knock().send(method, filled(path), params={"stat": "failed"})
    assert refused.status_code == 422
    problem = strict(refused.content)
    assert problem["code"] == "invalid-request"
    (fault,) = problem["errors"]
    assert fault["pointer"] == "/query/stat"


def test_the_name_that_was_meant_is_said(knock: Any) -> None:
    door = knock()
    (fault,) = door.get("/v1/jobs?stat=failed&limit=5").json()["errors"]
    assert fault["message"] == "did you mean `state`?"
    (fault,) = door.get("/v1/jobs/x?wait=5").json()["errors"]
    assert fault["message"] == "known: none"
    assert door.get("/v1/jobs?state=failed&kind=geometry&limit=5").status_code == 200
    many = "&".join(f"x{i}~/{'y' * 300}=1" for i in range(30))
    faults = door.get(f"/v1/jobs?{many}").json()["errors"]
    assert len(faults) == 10
    assert all(len(fault["pointer"]) < 120 for fault in faults)
