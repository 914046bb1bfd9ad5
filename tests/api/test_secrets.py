"""A planted secret, through every route and place of a request, is in nothing that comes out."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from api.keys import Keys, Scope, create_key
from service import logs
from service.operations import Services, perform

from .test_routes import ROUTES

NPY = {"Content-Type": "application/x-npy"}
SECRET = "hunter2hunter2hunter2"
URL = f"https://reader:{SECRET}@store.example/rows.npy"
FORGED = f"assay_0123456789ab_{SECRET}"
POLICY = {
    "version": 1, "name": "x", "inputs": {"rows": "vectors"},
    "checks": {"shape": {"kind": "geometry", "inputs": {"vectors": "rows"}}},
    "rules": [{"measure": "shape.rankme", "at_least": 1.01}],
}  # fmt: skip
DISGUISES = (SECRET, base64.b64encode(f"reader:{SECRET}".encode()).decode(), SECRET[4:])


OPEN_PATHS = {"/healthz", "/readyz", "/metrics"}
"""What is asked for every few seconds is not logged."""


class Outputs:
    """Everything that has come out: answers with their headers."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def keep(self, answer: httpx.Response) -> httpx.Response:
        self.seen.append(answer.text)
        self.seen += [f"{name}: {value}" for name, value in answer.headers.items()]
        return answer


@pytest.fixture
def outputs() -> Outputs:
    return Outputs()


@pytest.fixture
def key(tmp_path: Path) -> str:
    return create_key(tmp_path / "keys", "p", [Scope.admin])


@pytest.fixture
def guarded(knock: Any, tmp_path: Path, key: str) -> Any:
    """A door with keys."""
    return knock(keys=Keys(tmp_path / "keys"), key=key)


def plants(key: str) -> list[dict[str, Any]]:
    """Requests that carry the secret where it belongs, and where it does not."""
    body = {"kind": URL, "inputs": {"vectors": {"source": {"kind": "npy", "url": URL}}}}
    return [
        {"headers": {"Authorization": f"Bearer {FORGED}"}},
        {"headers": {"Authorization": f"Basic {DISGUISES[1]}"}},
        {"headers": {"Cookie": f"token={SECRET}", "X-Api-Key": SECRET, "Proxy-Authorization": SECRET}},
        {"headers": {"Idempotency-Key": FORGED}, "json": body},
        {"headers": {"Idempotency-Key": f"{SECRET} {SECRET}"}, "json": body},
        {"headers": {"Prefer": f"wait={SECRET}", "If-None-Match": f'"{SECRET}"'}},
        {"params": {"api_key": SECRET, "access_token": SECRET}},
        {"params": {"name": URL, "model": URL, "revision": FORGED, "id_column": URL}, "content": b"x"},
        {"params": {"cursor": URL, "kind": URL, "state": URL, "tag": URL, "body_sha256": URL}},
        {"json": body},
        {"json": {"kind": "geometry", "inputs": {URL: {"dataset": FORGED}}}},
        {"json": {"kind": "geometry", "inputs": {"vectors": {"dataset": URL}}}},
        {"json": {"kind": "geometry", "tags": {"from": URL}, "params": {URL: FORGED}}},
        {"json": {"policy": {"name": "x", "checks": {URL: {"kind": URL}}}, "inputs": {URL: URL}}},
        {"json": {"spec": {"source": URL}, "name": URL, "vectors": [[1.0, 2.0]]}},
        {"headers": {"Accept": "text/markdown"}, "params": {"tag": f"x:{URL}", "limit": SECRET}},
        {"json": {"dataset": URL}},
        {"json": {"input": URL, "baseline": FORGED}},
        {"json": {"policy": {**POLICY, "name": URL}, "inputs": {"rows": {"dataset": FORGED}}}},
        {"json": {"policy": POLICY, "inputs": {"rows": {"baseline": FORGED}}}},
        {"json": {"policy": POLICY, "inputs": {"rows": {"vectors": [[1.0]], "ids": [URL, URL]}}}},
        {"json": {"policy": {**POLICY, "rules": [{"measure": FORGED, "at_least": URL}]}}},
        {"headers": {"Authorization": f"Bearer {key}"}, "content": f'{{"{FORGED}'.encode()},
    ]  # fmt: skip


def refuse(texts: list[str], *words: str) -> None:
    for text in texts:
        for word in words:
            assert word not in text, text[:2000]


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=" ".join)
def test_no_route_gives_a_secret_away(
    method: str, path: str, guarded: Any, key: str, outputs: Outputs,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """In headers, query, body and path; what it answers, logs and counts is searched."""
    logs.configure(logging.DEBUG)
    for plant in plants(key):
        for place in ("x", URL, FORGED):
            at = re.sub(r"\{\w+\}", place.replace("/", "%2F"), path)
            outputs.keep(guarded.send(method, at, **plant))
    outputs.keep(guarded.get("/metrics"))
    out, err = capsys.readouterr()
    assert path in OPEN_PATHS or f'"route": "{path}"' in err
    refuse([*outputs.seen, out, err], *DISGUISES, key.split("_", 2)[2])


def test_what_is_kept_holds_no_credentials(guarded: Any, refusal: Any) -> None:
    """A name, a tag or the origin of rows with a password in it is refused, and says where."""
    rows = {"vectors": [[1.0, 2.0], [3.0, 4.0]]}
    for body, pointer in (
        ({**rows, "spec": {"source": URL}}, "/spec/source"),
        ({**rows, "spec": {"model": f"x {FORGED}"}}, "/spec/model"),
        ({**rows, "name": URL}, "/name"),
    ):
        (fault,) = refusal(guarded.post("/v1/datasets", json=body), 422, "invalid-request")[
            "errors"
        ]
        assert fault["pointer"] == pointer
        assert "leave the credentials out" in fault["message"]
    request = {"kind": "geometry", "inputs": {"vectors": rows}, "tags": {"from": URL}}
    (fault,) = refusal(guarded.post("/v1/jobs", json=request), 422, "invalid-request")["errors"]
    assert fault["pointer"] == "/tags/from"
    gate = {"policy": POLICY, "inputs": {"rows": rows}}
    for body, pointer in (
        ({**gate, "tags": {"from": URL}}, "/tags/from"),
        ({**gate, "policy": {**POLICY, "name": URL}}, "/policy/name"),
        ({**gate, "policy": {**POLICY, "inputs": {FORGED: "vectors"}}}, "/policy/inputs"),
    ):
        found = refusal(guarded.post("/v1/gates", json=body), 422, "invalid-request")["errors"]
        assert any(fault["pointer"].startswith(pointer) for fault in found), found
    kept = guarded.send("PUT", f"/v1/baselines/{FORGED}", json={"dataset": "x"})
    assert "leave the credentials out" in str(refusal(kept, 422, "invalid-request")["errors"])
    assert guarded.get("/v1/gates").json()["items"] == []
    assert guarded.get("/v1/datasets").json()["items"] == []


def test_what_breaks_gives_no_secret_away(
    guarded: Any, key: str, outputs: Outputs, npy: Callable[[Any], bytes], services: Services,
    waiting: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A report, an outage whose error quotes an address, a request and a job that raise with it."""
    from redis.exceptions import ConnectionError

    logs.configure(logging.DEBUG)
    rows = np.random.default_rng(1).normal(size=(9, 3))
    sent = guarded.post("/v1/datasets", content=npy(rows), headers=NPY)
    request = {
        "kind": "geometry",
        "inputs": {"vectors": {"dataset": outputs.keep(sent).json()["id"]}},
    }
    job = outputs.keep(guarded.post("/v1/jobs", json=request)).json()
    perform(services, waiting.pop())
    assert outputs.keep(guarded.get(job["links"]["report"])).status_code == 200

    def raising(error: Exception) -> Any:
        def broken(*_: Any) -> None:
            raise error

        return broken

    whole = services.jobs.get
    for error, status in ((RuntimeError(URL), 500), (ConnectionError(f"at {URL}"), 503)):
        monkeypatch.setattr(services.jobs, "get", raising(error))
        assert outputs.keep(guarded.get(job["links"]["self"])).status_code == status
    monkeypatch.setattr(services.jobs, "get", whole)

    monkeypatch.setattr("service.check.Check.run", raising(RuntimeError(f"{URL} {key}")))
    other = guarded.post("/v1/jobs", json={**request, "seed": 1}).json()
    perform(services, waiting.pop())
    outputs.keep(guarded.get(other["links"]["self"]))
    outputs.keep(guarded.get(other["links"]["report"]))
    outputs.keep(guarded.get("/metrics"))

    out, err = capsys.readouterr()
    for event in ("request broke", "job broke", "a part does not answer"):
        assert f'"event": "{event}"' in err
    assert "https://***@store.example" in err
    refuse([*outputs.seen, out, err], *DISGUISES, key.split("_", 2)[2])
