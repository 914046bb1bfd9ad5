"""The API dies between any two steps of a request with a key: its repeat loses and doubles nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.operations import perform
from service.settings import Settings
from service.storage.queue import RqQueue
from service.storage.redis import RedisJobs, connect
from service.wiring import build
from workers import embedded
from workers.sweeper import Sweeper

from .processes import kill
from .stack import ROOT, Stack, environment

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

HELD_S = 0.3
STEPS = 90
RETENTION_S = 3600
DYING = """
import asyncio, json, os, sys, threading
from dataclasses import replace
import httpx
from api import auth
from api.main import create_app
from service import logs
from service.settings import Settings
from service.storage.redis import RedisClaims, connect
from service.wiring import build

logs.configure()
path, bodies, held_s = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
settings = Settings.read()


class Dying:
    # a port whose process ends right after, or right before, a chosen call to any port
    left, lock = 0, threading.Lock()

    def __init__(self, port):
        self._port = port

    def __getattr__(self, name):
        whole = getattr(self._port, name)

        def step(*given, **more):
            with Dying.lock:
                Dying.left -= 1
                if Dying.left == 0:
                    os._exit(9)
            answer = whole(*given, **more)
            with Dying.lock:
                Dying.left -= 1
                if Dying.left == 0:
                    os._exit(9)
            return answer

        return step


async def send(app, body):
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.post(path, json=body, headers={"Idempotency-Key": "k"})
    assert answer.status_code in (200, 202), answer.text


for step, body in enumerate(bodies, start=1):
    if os.fork() == 0:
        auth.EVERYONE = auth.Identity(f"p{step}", frozenset(auth.Scope))
        found = build(settings)
        claims = RedisClaims(connect(settings.redis_url), held_s=held_s)
        parts = ("datasets", "reports", "jobs", "gates", "queue", "baselines")
        dying = {name: Dying(getattr(found, name)) for name in parts}
        Dying.left = step
        asyncio.run(send(create_app(replace(found, claims=Dying(claims), **dying)), body))
        os._exit(0)
    _, status = os.wait()
    print(os.waitstatus_to_exitcode(status), flush=True)
"""
POLICY = {
    "version": 1, "name": "x", "inputs": {"rows": "vectors"},
    "checks": {
        "shape": {"kind": "geometry", "inputs": {"vectors": "rows"}},
        "floor": {"kind": "cosine_floor", "inputs": {"a": "rows", "b": "rows"}},
    },
    "rules": [
        {"measure": "shape.rankme", "at_least": 1.01},
        {"measure": "floor.raw.gap_all", "at_least": -1.9},
        {"measure": "floor.raw.matched", "at_least": 0.9},
    ],
    "familywise": True,
}  # fmt: skip


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    """Settings on a server of our own."""
    process = subprocess.Popen(embedded.command(tmp_path))
    try:
        embedded.wait_until_ready(embedded.url(tmp_path))
        yield Settings.read({"REDIS_URL": embedded.url(tmp_path), "ASSAY_HOME": str(tmp_path)})
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize(("path", "jobs"), [("/v1/jobs", 1), ("/v1/gates", 3)])
def test_an_api_that_dies_after_any_step_loses_and_doubles_nothing(
    path: str, jobs: int, settings: Settings, tmp_path: Path, quiet: None, npy: Any,
    measured: Callable[[str, object], None],
) -> None:  # fmt: skip
    """One process for each step, killed there; the sweeper and a repeat finish what it began."""
    from service.operations import Upload

    services = build(settings)
    redis = connect(settings.redis_url or "")
    queue, records = RqQueue(redis, 3), RedisJobs(redis, RETENTION_S)
    bodies = []
    for step in range(1, STEPS + 1):
        upload = Upload(services, f"p{step}", "application/x-npy")
        upload.feed(npy(np.random.default_rng(0).normal(size=(12, 3))))
        bound = {"dataset": upload.finish()[0].id}
        services.baselines.set(f"p{step}", "prod", bound["dataset"], None)
        job = {"kind": "geometry", "inputs": {"vectors": bound}}
        gate = {"policy": POLICY, "inputs": {"rows": {"baseline": "prod"}}}
        bodies.append(job if path == "/v1/jobs" else gate)

    env = environment(ROOT, tmp_path) | {"REDIS_URL": settings.redis_url or ""}
    done = subprocess.run(
        [sys.executable, "-c", DYING, path, json.dumps(bodies), str(HELD_S)],
        env=env, capture_output=True, text=True, timeout=150, check=True,
    )  # fmt: skip
    codes = [int(line) for line in done.stdout.split()]
    killed = codes.count(9)
    measured(f"steps of POST {path} the API was killed after", killed)
    assert codes == [9] * killed + [0] * (STEPS - killed), done.stderr
    assert 8 <= killed < STEPS

    time.sleep(HELD_S)
    for step in range(1, killed + 2):
        _finish(step, path, bodies[step - 1], services, queue, records, jobs)


def _finish(
    step: int, path: str, body: Any, services: Any, queue: RqQueue, records: RedisJobs, jobs: int
) -> None:
    """Repeat the request of a killed process, then run what the queue holds: one of everything."""
    import asyncio

    import httpx

    from api import auth
    from api.main import create_app

    project = f"p{step}"

    def listed() -> list[Any]:
        return services.jobs.page(project, 50, None).items

    async def repeat() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(services))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, json=body, headers={"Idempotency-Key": "k"})

    before = {job.id for job in listed()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auth, "EVERYONE", auth.Identity(project, frozenset(auth.Scope)))
        first, second = asyncio.run(repeat()), asyncio.run(repeat())
    assert first.status_code in (200, 202), (step, first.text)
    assert first.json()["id"] == second.json()["id"]

    found = listed()
    assert before <= {job.id for job in found}, f"step {step}: a job was lost"
    assert len(found) == jobs, f"step {step}: {len(found)} jobs"
    assert queue.holding([job.id for job in found]) == {job.id for job in found}
    made = first.json()
    wanted = [made["id"]]
    if path == "/v1/gates":
        wanted = [*made["jobs"].values(), *made["fail_jobs"].values()]
    assert sorted(wanted) == sorted(job.id for job in found)


def test_a_job_whose_api_died_before_the_queue_is_found_by_the_sweeper(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, quiet: None
) -> None:
    """Even if nobody repeats the request."""
    from datetime import timedelta

    from service.operations import submit
    from service.request import parse_request

    services = build(settings)
    redis = connect(settings.redis_url or "")
    queue = RqQueue(redis, 3)
    monkeypatch.setattr(services.queue, "enqueue", lambda job, step: None)
    body = {"kind": "geometry", "inputs": {"vectors": {"vectors": np.eye(9).tolist()}}}
    job = submit(services, "p", parse_request(body))
    assert not queue.holds(job.id)

    monkeypatch.setattr("workers.sweeper.SETTLING", timedelta())
    sweeper = Sweeper(services, RedisJobs(redis, RETENTION_S), queue, RETENTION_S)
    sweeper.sweep()
    sweeper.sweep()
    assert queue.holds(job.id)
    perform(services, job.id)
    assert services.jobs.get("p", job.id).state.value == "succeeded"


JOBS = 24
KILLS = 4


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_jobs_sent_with_keys_while_the_api_is_killed_exist_once_each(
    serve: Callable[..., Stack], rows: Any, measured: Callable[[str, object], None]
) -> None:
    """A real server, `kill -9` again and again, four clients that repeat until they are answered."""
    stack = serve(workers=1)
    dataset = stack.upload(rows)
    stop = threading.Event()
    kills: list[int] = []

    def killing() -> None:
        while not stop.wait(0.5) and len(kills) < KILLS:
            assert stack.ask("GET", "/healthz").status_code == 200
            kills.append(stack.api())
            kill(kills[-1])

    def send(seed: int) -> str:
        body = {"kind": "geometry", "inputs": {"vectors": {"dataset": dataset}}, "seed": seed}
        end = time.monotonic() + 60
        while True:
            answer = stack.ask(
                "POST", "/v1/jobs", json=body, headers={"Idempotency-Key": f"job-{seed}"}
            )
            if answer.status_code != 409 or time.monotonic() > end:
                assert answer.status_code in (200, 202), answer.text
                time.sleep(0.5)
                return str(answer.json()["id"])
            time.sleep(0.2)

    killer = threading.Thread(target=killing)
    killer.start()
    with ThreadPoolExecutor(4) as clients:
        sent = list(clients.map(send, range(JOBS)))
    stop.set()
    killer.join()

    measured("API processes killed while keyed jobs came in", len(kills))
    assert kills
    assert len(set(sent)) == JOBS
    assert [send(seed) for seed in range(3)] == sent[:3]
    assert {stack.ended(job, 60)["state"] for job in sent} == {"succeeded"}
    listed = stack.ask("GET", "/v1/jobs?limit=200").json()["items"]
    assert sorted(job["id"] for job in listed) == sorted(sent)
