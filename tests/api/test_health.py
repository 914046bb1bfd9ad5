"""Alive, ready, and counted."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from obstore.exceptions import BaseError
from prometheus_client.parser import text_string_to_metric_families
from redis.exceptions import ConnectionError as RedisDown

from service import logs
from service.job import Step
from service.operations import Services


def metrics(door: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by name and labels, through the parser of another library than ours."""
    answer = door.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_the_process_is_alive_whatever_the_rest_does(
    door: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/healthz` asks nobody."""
    monkeypatch.setattr(services.queue, "workers", lambda: 1 / 0)
    answer = door.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "alive"})


def test_the_service_is_ready_with_queue_store_and_worker(door: Any) -> None:
    """The memory queue counts as one worker; nobody has to work on shards."""
    answer = door.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "workers": {"jobs": 1, "shards": 0}}


def test_what_is_missing_is_named(
    door: Any, services: Services, monkeypatch: pytest.MonkeyPatch, refusal: Any
) -> None:
    """503 with each part that does not answer, and Retry-After."""

    def down(_: object) -> int:
        raise RedisDown("redis at 10.0.0.9 refused")

    monkeypatch.setattr(services.queue, "workers", lambda _: 0)
    answer = door.get("/readyz")
    assert "no live worker" in refusal(answer, 503, "unavailable")["detail"]
    assert "retry-after" in answer.headers

    monkeypatch.setattr(services.queue, "workers", down)
    monkeypatch.setattr(services.datasets, "reachable", lambda: False)
    detail = refusal(door.get("/readyz"), 503, "unavailable")["detail"]
    assert "queue" in detail
    assert "store" in detail
    assert "10.0.0.9" not in detail


def test_readiness_does_not_hang_with_its_parts(
    door: Any, services: Services, monkeypatch: pytest.MonkeyPatch, refusal: Any
) -> None:
    """A queue that never answers: 503 in the time it is given."""
    import threading

    freed = threading.Event()
    monkeypatch.setattr("api.routes.health.READY_WITHIN_S", 0.1)
    monkeypatch.setattr(services.queue, "workers", lambda _: freed.wait(20) and 1)
    refusal(door.get("/readyz"), 503, "unavailable")
    freed.set()


@pytest.mark.parametrize("error", [RedisDown("secret-host:6379"), BaseError("secret-host")])
def test_an_outage_is_503_and_tells_no_address(
    error: Exception, door: Any, services: Services, monkeypatch: pytest.MonkeyPatch, refusal: Any
) -> None:
    """A part that does not answer is `unavailable` with Retry-After, not `internal`."""

    def down(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(services.jobs, "get", down)
    answer = door.get("/v1/jobs/job_" + "0" * 24)
    refusal(answer, 503, "unavailable")
    assert int(answer.headers["retry-after"]) > 0
    assert "secret-host" not in answer.text


def test_metrics_count_requests_jobs_and_bytes(
    door: Any, services: Services, upload: Any, ask: Any, work: Any, npy: Any
) -> None:
    """Requests by route, not by path; bytes received; jobs by kind and state; depth of each queue."""
    rows = np.eye(4)
    dataset = upload(rows)["id"]
    ask("geometry", {"vectors": dataset})
    work()
    waits = ask("geometry", {"vectors": dataset}, seed=1)
    for shard in range(3):
        services.queue.enqueue(
            services.jobs.get("default", waits.json()["id"]), Step("shard", shard)
        )
    door.get("/v1/jobs/job_" + "0" * 24)
    door.get("/some/secret/path")
    found = metrics(door)

    def of(name: str, **labels: str) -> float | None:
        return found.get((name, frozenset(labels.items())))

    assert of("assay_requests_total", method="POST", route="/v1/jobs", status="202") == 2
    unknown = {"method": "GET", "route": "/v1/jobs/{job_id}", "status": "404"}
    assert of("assay_requests_total", **unknown) == 1
    assert of("assay_bytes_in_total") == len(npy(rows))
    assert (of("assay_queue_depth", queue="jobs"), of("assay_workers", queue="jobs")) == (1, 1)
    assert (of("assay_queue_depth", queue="shards"), of("assay_workers", queue="shards")) == (3, 0)
    assert of("assay_jobs_active") == 1
    assert of("assay_jobs_ended", kind="geometry", state="succeeded") == 1
    assert of("assay_request_seconds_count", route="/v1/jobs") == 2
    assert not any("secret" in value for _, labels in found for _, value in labels)


def test_limits_are_those_of_the_service(knock: Any, services: Services) -> None:
    """What an operator sets is what `/v1/limits` shows."""
    from service.formats import Limits

    limits = Limits(body_bytes=5, text_bytes=4, csv_bytes=3, names_bytes=6, rows=2, dimensions=1)
    door = knock(replace(services, limits=limits, queue_depth=7, deadline_s=9))
    assert door.get("/v1/limits").json() == {
        "body_bytes": 5, "text_bytes": 4, "csv_bytes": 3, "names_bytes": 6, "rows": 2, "dimensions": 1,
        "queue_depth": 7, "wait_s": 60, "deadline_s": 9,
        "rows_per_check": {
            "cosine_floor": 200_000, "linear_probe": 50_000, "stress_response": 50_000,
            "seed_contrasts": 2000,
        },
        "requests_per_minute": {"uploads": 1200, "submits": 6000, "polls": 30_000},
        "project_jobs": 5000, "project_bytes": 2**38, "dataset_retention_s": None,
        "used": {"jobs": 0, "bytes": 0},
    }  # fmt: skip


def test_reading_that_succeeds_is_logged_for_debugging_alone(
    door: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Polls would fill the terminal of `assay serve`; what fails, or changes something, is told."""
    logs.configure()
    door.get("/v1/checks")
    assert capsys.readouterr().err == ""
    door.get("/v1/jobs/job_x")
    door.send("POST", "/v1/jobs", json={})
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["method"], line["status"]) for line in lines] == [("GET", 404), ("POST", 422)]
    logs.configure(logging.DEBUG)
    door.get("/v1/checks")
    assert json.loads(capsys.readouterr().err)["route"] == "/v1/checks"
