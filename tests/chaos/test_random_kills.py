"""
Small jobs, whole and in shards, come in while workers and their processes are killed at random: none
is lost.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from service.storage.queue import LEASE_S

from .processes import children, descendants, kill, words
from .stack import Stack

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(150),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

JOBS = 40
PAUSE_S = 0.4
KILL_EVERY_S = 1.5
DRAINED_S = 2 * LEASE_S + 30
"""The last kill may fall between taking and starting a job, which then waits for two leases."""
MANY_ATTEMPTS = 20
KINDS = (
    ("cosine_floor", "ab", {"derangements": 500}),
    ("nearest", ("vectors",), {"block_rows": 10}),
)
"""Kind, roles and parameters of every other job."""


class Killer(threading.Thread):
    """Kills a worker of either pool, or a process of one, every so often."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.killed: list[str] = []
        self._stack, self._stop_it = stack, threading.Event()

    def run(self) -> None:
        draw = random.Random(0)
        while not self._stop_it.wait(KILL_EVERY_S):
            wanted = draw.choice(("job process", "worker"))
            if victims := self._victims(wanted):
                kill(draw.choice(victims))
                self.killed.append(wanted)

    def _victims(self, wanted: str) -> list[int]:
        """Processes of that sort; a job process is waited for, because jobs are short."""
        end = time.monotonic() + KILL_EVERY_S
        while True:
            found = [pid for pid in descendants(self._stack.pid) if "workers.main" in words(pid)]
            workers = [pid for pid in found if pid in children(self._stack.pid)]
            if wanted == "worker":
                return workers
            if (jobs := sorted(set(found) - set(workers))) or time.monotonic() > end:
                return jobs
            time.sleep(0.005)

    def stop(self) -> None:
        self._stop_it.set()
        self.join()


def test_forty_jobs_end_with_one_report_each_while_processes_die(
    serve: Callable[..., Stack],
    undisturbed: Callable[..., list[str]],
    measured: Callable[[str, object], None],
) -> None:
    """Every accepted job succeeds, with the digest of a run that nobody disturbs."""
    rng = np.random.default_rng(0)
    names = {role for _, roles, _ in KINDS for role in roles}
    files = {name: rng.standard_normal((50, 8)).astype(np.float32) for name in sorted(names)}
    asked = [(seed, *KINDS[seed % len(KINDS)]) for seed in range(JOBS)]
    expected = undisturbed(
        files,
        [
            {
                "kind": kind,
                "inputs": {role: {"path": f"{role}.npy"} for role in roles},
                "params": params,
                "seed": seed,
            }
            for seed, kind, roles, params in asked
        ],
    )
    stack = serve(workers=2, ASSAY_JOB_ATTEMPTS=str(MANY_ATTEMPTS))
    datasets = {name: stack.upload(rows) for name, rows in files.items()}

    killer = Killer(stack)
    killer.start()
    jobs = []
    for seed, kind, roles, params in asked:
        inputs = {role: datasets[role] for role in roles}
        jobs.append(stack.submit(kind, inputs, seed, params=params))
        time.sleep(PAUSE_S)
    killer.stop()
    until_s = time.monotonic() + DRAINED_S
    ended = [stack.ended(job, max(1.0, until_s - time.monotonic())) for job in jobs]

    assert {job["state"] for job in ended} == {"succeeded"}
    reports = [stack.report(job) for job in jobs]
    assert [report["digest"] for report in reports] == expected
    assert stack.stored_reports() == sorted(report["request_digest"] for report in reports)
    assert killer.killed
    measured("shards of the forty jobs", [report["timing"]["shards"] for report in reports])
    measured("killed while forty jobs came in", killer.killed)
    measured("attempts of the forty jobs", [job["attempts"] for job in ended])
