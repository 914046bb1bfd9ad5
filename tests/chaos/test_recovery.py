"""
Whatever is killed in the middle of a job, the job ends once, with one report and the same digest.

The kills wait for leases most of their time, so the services they need run side by side; each test
reads one of the outcomes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from service.storage.queue import LEASE_S, RqQueue

from .processes import alive, kill, until
from .stack import Stack

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(180),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

AT_ONCE_S = 5
MAINTENANCE_S = 5
RESTART_S = 10
RECOVERED_S = LEASE_S + MAINTENANCE_S + RESTART_S
"""A dead worker's job starts again within its lease, one round of maintenance and a restart."""

LONG_S = LEASE_S + MAINTENANCE_S
"""An undisturbed job this long would start twice if its lease were not renewed."""

EXPECTED = {
    "job process": (2, AT_ONCE_S),
    "worker with its job process": (2, RECOVERED_S),
    "worker": (2, RECOVERED_S),
    "worker that took a job": (1, RECOVERED_S),
    "API": (1, LONG_S + AT_ONCE_S),
    "server": (1, AT_ONCE_S),
    "several processes": (3, RECOVERED_S + RESTART_S),
    "supervisor": (2, RECOVERED_S + RESTART_S),
    "supervisor behind which it waited": (1, RECOVERED_S + RESTART_S),
    "service": (2, RECOVERED_S + RESTART_S),
    "service that forgot the queued job": (1, RECOVERED_S + RESTART_S),
}
"""Attempts, and seconds from the kill to the end of the job."""

SCENARIOS = {
    "several processes": "several",
    "supervisor": "supervisor",
    "supervisor behind which it waited": "supervisor",
    "service": "stopped",
    "service that forgot the queued job": "stopped",
}
"""Where the outcome comes from; the rest dies one by one."""

SEEDS = {name: seed for seed, name in enumerate(EXPECTED, start=1)}


@dataclass(frozen=True)
class Outcome:
    """What became of a job, and when."""

    job: dict[str, Any]
    digest: str
    starts: int
    took_s: float
    """From the kill to the end of the job."""


def outcome(stack: Stack, job_id: str, since: datetime) -> Outcome:
    job = stack.ended(job_id, RECOVERED_S + 30)
    assert job["state"] == "succeeded", job
    ended = datetime.fromisoformat(job["finished_at"])
    return Outcome(
        job=job,
        digest=stack.report(job_id)["digest"],
        starts=len(stack.book(job["seed"])),
        took_s=(ended - since).total_seconds(),
    )


def reports_are_single(stack: Stack, outcomes: dict[str, Outcome]) -> None:
    """As many report files as jobs, each under the digest of its request."""
    wanted = sorted(stack.report(one.job["id"])["request_digest"] for one in outcomes.values())
    assert stack.stored_reports() == wanted


def freeze(stack: Stack, idle: int) -> None:
    """Stop the one worker that waits at the server: it will take the next job and not start it."""
    with Redis.from_url(stack.redis_url) as redis:

        def frozen() -> bool:
            os.kill(idle, signal.SIGSTOP)
            if any("b" in client["flags"] for client in redis.client_list()):
                return True
            os.kill(idle, signal.SIGCONT)
            return False

        until(frozen, RESTART_S, "a worker blocked at the server")


class Scenarios:
    """Services and what is done to them."""

    def __init__(self, start: Callable[..., Stack], rows: Any) -> None:
        self._start, self._rows = start, rows

    def _stuck(self, stack: Stack, name: str, seconds: float = 600) -> str:
        stack.hold(SEEDS[name], seconds)
        dataset = stack.upload(self._rows)
        return stack.submit("stuck", {"vectors": dataset}, SEEDS[name])

    def one_by_one(self) -> dict[str, Outcome]:
        """Each kind of process dies once, each under a job of its own."""
        stack = self._start(workers=5)
        held = ("job process", "worker with its job process", "worker")
        jobs = {name: self._stuck(stack, name) for name in held}
        jobs["API"] = self._stuck(stack, "API", seconds=LONG_S)
        inside = {name: stack.inside(SEEDS[name]) for name in jobs}
        workers = {name: stack.worker_of(process) for name, process in inside.items()}

        (idle,) = set(stack.worker_processes()) - set(workers.values())
        freeze(stack, idle)
        taken = "worker that took a job"
        jobs[taken] = self._stuck(stack, taken, seconds=0)

        for name in held:
            stack.hold(SEEDS[name], 0)
        api = stack.api()
        killed_at = datetime.now(UTC)
        kill(inside["job process"])
        kill(workers["worker with its job process"], inside["worker with its job process"])
        kill(workers["worker"])
        kill(idle)
        kill(api)
        orphan = inside["worker"]
        until(lambda: not alive(orphan), AT_ONCE_S, "the job process gone with its worker")
        until(lambda: stack.ask("GET", "/healthz").status_code == 200, RESTART_S, "the API again")
        found = {name: outcome(stack, job, killed_at) for name, job in jobs.items()}

        job = self._stuck(stack, "server", seconds=3)
        stack.inside(SEEDS["server"])
        killed_at = datetime.now(UTC)
        kill(stack.server())
        found["server"] = outcome(stack, job, killed_at)
        reports_are_single(stack, found)
        return found

    def several(self) -> dict[str, Outcome]:
        """One job loses its process, then server and API, then its worker."""
        stack = self._start(workers=2)
        job = self._stuck(stack, "several processes")
        killed_at = datetime.now(UTC)
        kill(stack.inside(SEEDS["several processes"], 1))
        second = stack.inside(SEEDS["several processes"], 2)
        kill(stack.server(), stack.api())
        stack.hold(SEEDS["several processes"], 0)
        kill(stack.worker_of(second))
        found = {"several processes": outcome(stack, job, killed_at)}
        reports_are_single(stack, found)
        return found

    def supervisor(self) -> dict[str, Outcome]:
        """The supervisor is killed with a job running and one waiting, and started again."""
        stack = self._start()
        names = ("supervisor", "supervisor behind which it waited")
        jobs = {name: self._stuck(stack, name) for name in names}
        stack.inside(SEEDS["supervisor"])
        for name in names:
            stack.hold(SEEDS[name], 0)
        killed_at = datetime.now(UTC)
        stack.kill()
        stack.started()
        found = {name: outcome(stack, job, killed_at) for name, job in jobs.items()}
        reports_are_single(stack, found)
        return found

    def stopped(self) -> dict[str, Outcome]:
        """The service is stopped in order; a job runs, and another is in no queue any more."""
        stack = self._start()
        jobs = {"service": self._stuck(stack, "service")}
        stack.inside(SEEDS["service"])
        forgotten = "service that forgot the queued job"
        jobs[forgotten] = self._stuck(stack, forgotten, seconds=0)
        with Redis.from_url(stack.redis_url) as redis:
            RqQueue(redis, attempts=3).forget(jobs[forgotten])
        stack.hold(SEEDS["service"], 0)
        stack.stop()
        stopped_at = datetime.now(UTC)
        stack.started()
        found = {name: outcome(stack, job, stopped_at) for name, job in jobs.items()}
        reports_are_single(stack, found)
        return found


@pytest.fixture(scope="module")
def outcomes(serve: Callable[..., Stack], rows: Any) -> Iterator[Callable[[str], Outcome]]:
    """The outcome of a kill by its name."""
    scenarios = Scenarios(serve, rows)
    kills = (scenarios.one_by_one, scenarios.several, scenarios.supervisor, scenarios.stopped)
    with ThreadPoolExecutor(len(kills)) as pool:
        running: dict[str, Future[dict[str, Outcome]]] = {k.__name__: pool.submit(k) for k in kills}

        def get(name: str) -> Outcome:
            return running[SCENARIOS.get(name, "one_by_one")].result()[name]

        yield get


@pytest.fixture(scope="module")
def digests(undisturbed: Callable[..., list[str]], tree: Path, rows: Any) -> dict[str, str]:
    """Digests of the same requests, run in one process that nobody disturbs."""
    requests = [
        {"kind": "stuck", "inputs": {"vectors": {"path": "rows.npy"}}, "seed": seed}
        for seed in SEEDS.values()
    ]
    return dict(zip(SEEDS, undisturbed({"rows": rows}, requests), strict=True))


@pytest.mark.parametrize("killed", EXPECTED)
def test_a_job_ends_once_with_the_same_digest_whatever_is_killed_under_it(
    outcomes: Callable[[str], Outcome],
    digests: dict[str, str],
    measured: Callable[[str, object], None],
    killed: str,
) -> None:
    """P29: it costs an attempt at most for each process of the job, and a stated time."""
    found = outcomes(killed)
    attempts, seconds = EXPECTED[killed]

    measured(f"seconds from the end of the {killed} to the end of the job", found.took_s)
    assert found.digest == digests[killed]
    assert (found.job["attempts"], found.starts) == (attempts, attempts)
    assert found.took_s < seconds
