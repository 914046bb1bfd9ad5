"""Rate limits and quotas, as a client meets them."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from redis.exceptions import ConnectionError

from api.keys import Keys, Scope, create_key
from service.allowance import Quotas
from service.operations import Services

NPY = {"Content-Type": "application/x-npy"}


@pytest.fixture
def allowed(knock: Any, services: Services) -> Callable[..., Any]:
    """The door of the same service with other quotas."""
    return lambda **quotas: knock(replace(services, quotas=Quotas(**quotas)))


def ask(door: Any, kind: str, body: bytes) -> Any:
    """One request of this kind; whether it succeeds does not matter."""
    if kind == "uploads":
        return door.post("/v1/datasets", content=body, headers=NPY)
    return door.get("/v1/jobs") if kind == "polls" else door.post("/v1/jobs", json={})


@pytest.mark.parametrize("kind", ["uploads", "submits", "polls"])
def test_requests_over_the_rate_are_told_when_to_come_again(
    kind: str, allowed: Any, npy: Any, some_rows: Any, refusal: Any
) -> None:
    """429 with Retry-After, and both fields of the draft; the other kinds go on."""
    door, body = allowed(**{f"{kind}_per_minute": 6}), npy(some_rows)
    for left in range(5, -1, -1):
        answer = ask(door, kind, body)
        assert answer.status_code != 429
        assert answer.headers["ratelimit-policy"] == f'"{kind}";q=6;w=60'
        found = re.fullmatch(rf'"{kind}";r={left};t=(\d+)', answer.headers["ratelimit"])
        assert found is not None
        assert int(found[1]) == pytest.approx(10 * (6 - left), abs=5)
    refused = ask(door, kind, body)
    assert f"6 {kind} a minute" in refusal(refused, 429, "rate-limited")["detail"]
    assert int(refused.headers["retry-after"]) in range(5, 11)
    assert refused.headers["ratelimit"].startswith(f'"{kind}";r=0;t=')
    for other in {"uploads", "submits", "polls"} - {kind}:
        assert ask(door, other, body).status_code != 429


def test_each_key_has_its_own_rate(
    services: Services, knock: Any, tmp_path: Path, refusal: Any
) -> None:
    """Two keys of one project, one of another: none uses up what another has."""
    file = tmp_path / "keys"
    few = replace(services, quotas=Quotas(polls_per_minute=2))
    keys = [create_key(file, project, [Scope.read]) for project in ("p", "p", "q")]
    for key in keys:
        door = knock(few, keys=Keys(file), key=key)
        assert [door.get("/v1/jobs").status_code for _ in range(3)] == [200, 200, 429]


def test_a_refused_upload_is_not_read(allowed: Any, npy: Any, some_rows: Any) -> None:
    """And an unknown key is not counted: there is nobody to count it for."""
    door = allowed(uploads_per_minute=1)
    door.post("/v1/datasets", content=npy(some_rows), headers=NPY)
    before = door.app.state.metrics.registry.get_sample_value("assay_bytes_in_total")
    assert ask(door, "uploads", npy(some_rows + 1)).status_code == 429
    assert door.app.state.metrics.registry.get_sample_value("assay_bytes_in_total") == before


def test_a_dashboard_polls_a_hundred_times_a_second_undisturbed(
    services: Services, knock: Any
) -> None:
    """By default: ten minutes of it, on a clock that jumps."""
    from service.storage.memory import MemoryRates

    now = 0.0
    rates = MemoryRates(lambda: now)
    for _ in range(60_000):
        assert rates.take("p:loopback:polls", services.quotas.polls_per_minute).granted
        now += 0.01


def test_health_is_never_limited(allowed: Any) -> None:
    """Whoever restarts what does not answer must get an answer."""
    door = allowed(polls_per_minute=1)
    answers = [door.get(path) for path in ("/healthz", "/readyz") for _ in range(5)]
    assert {answer.status_code for answer in answers} == {200}
    assert not any("ratelimit" in answer.headers for answer in answers)


def test_nothing_is_refused_because_counting_fails(
    door: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit protects the service; its outage must not end it."""

    def away(*_: Any) -> None:
        raise ConnectionError("away")

    monkeypatch.setattr(services.rates, "take", away)
    answer = door.get("/v1/checks")
    assert answer.status_code == 200
    assert "ratelimit" not in answer.headers


def test_a_project_may_have_so_many_unfinished_jobs(
    allowed: Any, upload: Any, some_rows: Any, refusal: Any, work: Any
) -> None:
    """One more is `queue-full`; cached answers and ended jobs do not count."""
    door = allowed(project_jobs=2)
    bound = {"vectors": {"dataset": upload(some_rows)["id"]}}

    def submit(seed: int) -> Any:
        return door.post("/v1/jobs", json={"kind": "geometry", "inputs": bound, "seed": seed})

    assert [submit(seed).status_code for seed in (0, 1)] == [202, 202]
    assert door.get("/v1/limits").json()["used"]["jobs"] == 2
    refused = submit(2)
    detail = refusal(refused, 429, "queue-full")["detail"]
    assert "has 2 jobs" in detail
    assert int(refused.headers["retry-after"]) >= 1
    work()
    assert submit(2).status_code == 202
    assert submit(3).status_code == 202
    assert submit(0).status_code == 200


def test_a_project_may_store_so_many_bytes(
    allowed: Any, npy: Any, some_rows: Any, refusal: Any, services: Services
) -> None:
    """What does not fit is refused: by its header if it is large, inline data too."""
    size = some_rows.nbytes
    door = allowed(project_bytes=2 * size)

    def send(rows: Any) -> Any:
        return door.post("/v1/datasets", content=npy(rows), headers=NPY)

    assert [send(some_rows + i).status_code for i in range(2)] == [201, 201]
    assert door.get("/v1/limits").json()["used"]["bytes"] == 2 * size
    detail = refusal(send(some_rows + 2), 413, "payload-too-large")["detail"]
    assert f"stores {2 * size} bytes of the {2 * size}" in detail
    inline = {"kind": "geometry", "inputs": {"vectors": {"vectors": [[1.0, 2.0]] * 9}}}
    refusal(door.post("/v1/jobs", json=inline), 413, "payload-too-large")
    large = send(np.zeros((1000, 100)))
    assert "it may" in refusal(large, 413, "payload-too-large")["detail"]
    assert services.datasets.stored_bytes("default") == 2 * size


def test_a_table_is_refused_where_the_room_of_its_project_ends(allowed: Any, refusal: Any) -> None:
    """Not once its rows are on disk: they may be a thousand times the body."""
    rows = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(640_000, np.float32)), 64)
    body = io.BytesIO()
    pq.write_table(pa.table({"v": rows}), body, compression="zstd")
    sent = allowed(project_bytes=100_000).post(
        "/v1/datasets",
        content=body.getvalue(),
        headers={"Content-Type": "application/vnd.apache.parquet"},
    )
    detail = refusal(sent, 413, "payload-too-large")["detail"]
    assert "the 100000 bytes that the project may still store" in detail


def test_a_quota_is_of_one_project(
    services: Services, knock: Any, tmp_path: Path, npy: Any
) -> None:
    """Another one still stores."""
    few = replace(services, quotas=Quotas(project_bytes=1))
    file = tmp_path / "keys"
    codes = []
    for quotas in (few, services):
        door = knock(quotas, keys=Keys(file), key=create_key(file, "p", [Scope.submit]))
        codes.append(door.post("/v1/datasets", content=npy(np.eye(2)), headers=NPY).status_code)
    assert codes == [413, 201]


def test_every_limit_is_declared(allowed: Any) -> None:
    """As it is set."""
    found = allowed(
        uploads_per_minute=1, submits_per_minute=2, polls_per_minute=30, project_jobs=4,
        project_bytes=5,
    ).get("/v1/limits").json()  # fmt: skip
    assert found["requests_per_minute"] == {"uploads": 1, "submits": 2, "polls": 30}
    assert (found["project_jobs"], found["project_bytes"]) == (4, 5)
    assert found["used"] == {"jobs": 0, "bytes": 0}
