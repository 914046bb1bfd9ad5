"""A request that is sent again with its key is the same request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from redis.exceptions import ConnectionError

from service.operations import Services

KEY = {"Idempotency-Key": "release-7"}
POLICY = {
    "version": 1, "name": "x", "inputs": {"rows": "vectors"},
    "checks": {
        "shape": {"kind": "geometry", "inputs": {"vectors": "rows"}},
        "again": {"kind": "geometry", "inputs": {"vectors": "rows"}, "seed": 1},
    },
    "rules": [{"measure": "shape.rankme", "at_least": 1.01}],
}  # fmt: skip


@pytest.fixture
def bodies(upload: Callable[..., Any], some_rows: Any) -> dict[str, Any]:
    """A job and a gate by path."""
    bound = {"dataset": upload(some_rows)["id"]}
    return {
        "/v1/jobs": {"kind": "geometry", "inputs": {"vectors": bound}},
        "/v1/gates": {"policy": POLICY, "inputs": {"rows": bound}},
    }


PATHS = ["/v1/jobs", "/v1/gates"]
JOBS = {"/v1/jobs": 1, "/v1/gates": 2}
"""How many jobs a request of this path makes."""


@pytest.mark.parametrize("path", PATHS)
def test_a_repeat_answers_with_the_resource_as_it_is_now(
    path: str, door: Any, bodies: Any, waiting: list[str], work: Any
) -> None:
    """First while it waits, then once it has ended; nothing is queued twice."""
    first = door.post(path, json=bodies[path], headers=KEY)
    again = door.post(path, json=bodies[path], headers=KEY)
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.content == first.content
    assert len(waiting) == JOBS[path]

    work()
    ended = door.post(path, json=bodies[path], headers=KEY)
    assert ended.status_code == 200
    assert ended.json()["id"] == first.json()["id"]
    assert ended.json()["state"] in ("succeeded", "done")
    assert ended.headers["location"] == first.headers["location"]
    assert len(door.get("/v1/jobs").json()["items"]) == JOBS[path]


def test_a_cancelled_job_is_answered_as_cancelled(door: Any, bodies: Any) -> None:
    """A repeat does not start what somebody has stopped."""
    job = door.post("/v1/jobs", json=bodies["/v1/jobs"], headers=KEY).json()
    door.delete(job["links"]["self"])
    again = door.post("/v1/jobs", json=bodies["/v1/jobs"], headers=KEY)
    assert (again.status_code, again.json()["state"]) == (200, "cancelled")


@pytest.mark.parametrize("path", PATHS)
def test_the_body_counts_as_json_not_as_bytes(path: str, door: Any, bodies: Any) -> None:
    """Other spaces and another order of keys are the same body; another value is not."""
    first = door.post(path, json=bodies[path], headers=KEY).json()
    turned = json.dumps(dict(reversed(bodies[path].items())), indent=3)
    again = door.post(path, content=turned, headers=KEY)
    assert again.json()["id"] == first["id"]


@pytest.mark.parametrize("path", PATHS)
def test_another_body_under_the_same_key_is_refused(
    path: str, door: Any, bodies: Any, refusal: Any, waiting: list[str]
) -> None:
    """422, and nothing is started."""
    door.post(path, json=bodies[path], headers=KEY)
    other = {**bodies[path], "tags": {"env": "prod"}}
    refusal(door.post(path, json=other, headers=KEY), 422, "idempotency-conflict")
    assert len(waiting) == JOBS[path]


def test_a_key_belongs_to_one_path_and_one_project(
    door: Any, bodies: Any, knock: Any, tmp_path: Any, npy: Any, some_rows: Any
) -> None:
    """The same key on the other path, and from another project, is another key."""
    from api.keys import Keys, Scope, create_key

    job = door.post("/v1/jobs", json=bodies["/v1/jobs"], headers=KEY)
    gate = door.post("/v1/gates", json=bodies["/v1/gates"], headers=KEY)
    assert (job.status_code, gate.status_code) == (202, 202)

    key = create_key(tmp_path / "keys", "other", [Scope.admin])
    theirs = knock(keys=Keys(tmp_path / "keys"), key=key)
    dataset = theirs.post(
        "/v1/datasets", content=npy(some_rows), headers={"Content-Type": "application/x-npy"}
    ).json()["id"]
    body = {"kind": "geometry", "inputs": {"vectors": {"dataset": dataset}}}
    answer = theirs.post("/v1/jobs", json=body, headers=KEY)
    assert answer.status_code == 202
    assert answer.json()["id"] != job.json()["id"]


def test_a_quoted_key_is_the_same_key(door: Any, bodies: Any) -> None:
    """A structured field says `"release-7"`, many clients say it bare."""
    first = door.post("/v1/jobs", json=bodies["/v1/jobs"], headers=KEY).json()
    again = door.post(
        "/v1/jobs", json=bodies["/v1/jobs"], headers={"Idempotency-Key": '"release-7"'}
    )
    assert again.json()["id"] == first["id"]


@pytest.mark.parametrize("key", ["", " ", '""', "a b", "x" * 201, "\x7f"])
@pytest.mark.parametrize("path", PATHS)
def test_a_key_that_is_none_is_refused(
    path: str, key: str, door: Any, bodies: Any, refusal: Any
) -> None:
    """Silently ignoring it would double the job it was meant to protect."""
    answer = door.post(path, json=bodies[path], headers={"Idempotency-Key": key})
    assert "Idempotency-Key" in refusal(answer, 422, "invalid-request")["detail"]


def test_a_refusal_leaves_the_key_free(door: Any, bodies: Any, refusal: Any) -> None:
    """The corrected request may carry the same key."""
    wrong = {**bodies["/v1/jobs"], "params": {"wrong": 1}}
    refusal(door.post("/v1/jobs", json=wrong, headers=KEY), 422, "invalid-request")
    assert door.post("/v1/jobs", json=bodies["/v1/jobs"], headers=KEY).status_code == 202


def test_a_gate_that_is_refused_halfway_can_be_sent_again(
    door: Any, bodies: Any, services: Services, refusal: Any, work: Any, monkeypatch: Any
) -> None:
    """Its first job was cancelled with it; the repeat has jobs of its own and a verdict."""
    from service.errors import QueueFull

    enqueue, calls = services.queue.enqueue, []

    def full(job: Any, step: Any) -> None:
        calls.append(job.id)
        if len(calls) == 2:
            raise QueueFull("full")
        enqueue(job, step)

    monkeypatch.setattr(services.queue, "enqueue", full)
    refusal(door.post("/v1/gates", json=bodies["/v1/gates"], headers=KEY), 429, "queue-full")
    run = door.post("/v1/gates", json=bodies["/v1/gates"], headers=KEY).json()
    work()
    assert door.get(run["links"]["self"]).json()["verdict"] == "pass"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("port", ["jobs.create", "queue.enqueue", "gates.create"])
def test_an_outage_is_not_stored_and_its_repeat_doubles_nothing(
    path: str, port: str, door: Any, bodies: Any, services: Services, refusal: Any, work: Any,
    monkeypatch: Any,
) -> None:  # fmt: skip
    """503 after any step: the repeat ends with one resource and no job that nobody asked for."""
    owner, name = getattr(services, port.split(".")[0]), port.split(".")[1]
    whole = getattr(owner, name)
    once = iter([True])

    def away(*given: Any) -> Any:
        answer = whole(*given)
        if next(once, False):
            raise ConnectionError("away")
        return answer

    monkeypatch.setattr(owner, name, away)
    first = door.post(path, json=bodies[path], headers=KEY)
    if path == "/v1/jobs" and port == "gates.create":
        assert first.status_code == 202
    else:
        refusal(first, 503, "unavailable")
    answer = door.post(path, json=bodies[path], headers=KEY)
    assert answer.status_code in (200, 202)
    work()

    jobs = door.get("/v1/jobs").json()["items"]
    live = [job for job in jobs if job["state"] != "cancelled"]
    assert len(live) == JOBS[path]
    assert {job["state"] for job in live} == {"succeeded"}
    if path == "/v1/gates":
        run = door.get(answer.json()["links"]["self"]).json()
        assert run["verdict"] == "pass"
        assert sorted(run["jobs"].values()) == sorted(job["id"] for job in live)


def test_a_second_request_meanwhile_is_told_to_come_again(
    door: Any, bodies: Any, services: Services, refusal: Any, monkeypatch: Any
) -> None:
    """409 with Retry-After while the first is being answered; then its answer."""
    inside, leave = threading.Event(), threading.Event()
    create = services.jobs.create

    def slow(job: Any) -> bool:
        inside.set()
        assert leave.wait(20)
        return create(job)

    monkeypatch.setattr(services.jobs, "create", slow)
    answers: list[httpx.Response] = []
    body = bodies["/v1/jobs"]
    first = threading.Thread(
        target=lambda: answers.append(door.post("/v1/jobs", json=body, headers=KEY))
    )
    first.start()
    assert inside.wait(20)
    second = door.post("/v1/jobs", json=body, headers=KEY)
    leave.set()
    first.join()

    refusal(second, 409, "idempotency-in-flight")
    assert int(second.headers["retry-after"]) >= 1
    assert door.post("/v1/jobs", json=body, headers=KEY).json()["id"] == answers[0].json()["id"]


def test_inline_data_is_part_of_the_body(door: Any, waiting: list[str]) -> None:
    """Rows inside the request: the repeat stores and queues nothing new."""
    rows = np.arange(12.0).reshape(6, 2).tolist()
    body = {"kind": "geometry", "inputs": {"vectors": {"vectors": rows}}}
    first = door.post("/v1/jobs", json=body, headers=KEY).json()
    assert door.post("/v1/jobs", json=body, headers=KEY).json()["id"] == first["id"]
    rows[0][0] = 1.0
    assert door.post("/v1/jobs", json=body, headers=KEY).status_code == 422
    assert waiting == [first["id"]]


def test_without_a_key_each_request_is_its_own(door: Any, bodies: Any) -> None:
    """Two jobs, two gates."""
    for path in PATHS:
        ids = {door.post(path, json=bodies[path]).json()["id"] for _ in range(2)}
        assert len(ids) == 2
