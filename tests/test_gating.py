"""Gate runs: jobs for every check, one verdict however many readers, and a clean end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service.errors import QueueFull, ShapeMismatch, UnknownDataset, UnknownGate
from service.gating import cancel_gate, read_gate, run_gate
from service.job import GateRun, State
from service.operations import Services, perform

X = np.random.default_rng(23).normal(size=(30, 4))
POLICY = {
    "version": 1,
    "name": "release",
    "inputs": {"left": "vectors", "right": "vectors", "topics": "column"},
    "checks": {
        "shape": {
            "kind": "geometry", "inputs": {"vectors": "left", "groups": "topics"},
            "params": {"max_spectrum": 2}, "seed": 3,
        },
        "floor": {"kind": "cosine_floor", "inputs": {"a": "left", "b": "right"}},
    },
    "rules": [{"measure": "shape.duplicates.rows", "at_most": 0}],
}  # fmt: skip


@pytest.fixture
def bound(store: Any) -> dict[str, Any]:
    """Data for every input of the policy."""
    left = store({"vectors": X.tolist(), "columns": {"t": [f"t{i % 6}" for i in range(30)]}})
    return {
        "left": {"dataset": left.id},
        "right": {"dataset": store(X[::-1]).id},
        "topics": {"dataset": left.id, "column": "t"},
    }


@pytest.fixture
def start(services: Services, bound: dict[str, Any]) -> Callable[..., GateRun]:
    """Start the policy with these changes."""

    def run(on: Services = services, inputs: Any = None, **changes: Any) -> GateRun:
        return run_gate(on, "default", {**POLICY, **changes}, inputs or bound, {"run": "1"})

    return run


def work(services: Services) -> None:
    while services.queue.waiting:
        perform(services, services.queue.waiting.pop(0))


def test_every_check_becomes_a_job_as_the_policy_says(
    start: Any, services: Services, bound: dict[str, Any]
) -> None:
    """Kind, data, params, seed and tags; and the run waits for them."""
    run = start()
    jobs = {name: services.jobs.get("default", job) for name, job in run.jobs.items()}
    assert {name: job.kind for name, job in jobs.items()} == {
        "shape": "geometry", "floor": "cosine_floor",
    }  # fmt: skip
    shape = jobs["shape"]
    assert (shape.seed, shape.params["max_spectrum"], shape.tags) == (3, 2, {"run": "1"})
    assert shape.inputs["groups"].model_dump() == bound["topics"]
    assert (run.state, run.verdict, run.rules) == ("running", None, [])
    assert read_gate(services, "default", run.id) == run


def test_half_done_is_not_done(start: Any, services: Services) -> None:
    """One of two jobs has ended."""
    run = start()
    perform(services, run.jobs["shape"])
    assert read_gate(services, "default", run.id).state == "running"
    perform(services, run.jobs["floor"])
    assert read_gate(services, "default", run.id).verdict == "pass"


def test_eight_readers_at_once_store_one_verdict(
    start: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them have judged before the first may write: one version, one answer."""
    run = start()
    work(services)
    ready = threading.Barrier(8)
    original = services.gates.change
    changed: list[Any] = []

    def change(*args: Any) -> Any:
        ready.wait(20)
        changed.append(original(*args))
        return changed[-1]

    monkeypatch.setattr(services.gates, "change", change)
    seen: list[GateRun] = []
    threads = [
        threading.Thread(target=lambda: seen.append(read_gate(services, "default", run.id)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.version for one in seen] == [1] * 8
    assert all(one == seen[0] for one in seen)
    assert len([one for one in changed if one is not None]) == 1


def test_a_verdict_is_a_pure_function_of_policy_and_data(start: Any, services: Services) -> None:
    """A second run of the same gives the same digest from cached reports; another rule another."""
    first = start()
    work(services)
    judged = read_gate(services, "default", first.id)
    again = start()
    assert again.state == "done"
    assert services.queue.depth() == 0
    assert (again.digest, again.rules) == (judged.digest, judged.rules)
    other = start(rules=[{"measure": "shape.duplicates.rows", "at_most": 1}])
    assert other.digest != judged.digest


@pytest.mark.parametrize("name", ["shape", "floor"])
def test_a_failed_check_is_invalid_wherever_it_stands(
    name: str, start: Any, services: Services
) -> None:
    """The rules of that check; a rule of another check keeps its own verdict."""
    rules = [
        {"measure": "shape.duplicates.rows", "at_most": 0},
        {"measure": "floor.raw.matched", "at_least": 2},
    ]
    run = start(rules=rules)
    services.jobs.change(run.jobs[name], lambda job: job.moved(State.cancelled))
    work(services)
    judged = read_gate(services, "default", run.id)
    assert judged.verdict == "invalid"
    verdicts = dict(zip(("shape", "floor"), [rule.verdict for rule in judged.rules], strict=True))
    assert verdicts[name] == "invalid"
    assert verdicts[{"shape": "floor", "floor": "shape"}[name]] in ("pass", "fail")


def test_a_refused_check_leaves_no_job_behind(
    start: Any, services: Services, bound: dict[str, Any], store: Any
) -> None:
    """The second check does not pair: what was queued for the first is cancelled."""
    short = {**bound, "right": {"dataset": store(X[:29]).id}}
    with pytest.raises(ShapeMismatch):
        start(inputs=short)
    assert services.queue.depth() == 0
    assert services.jobs.active() == []


def test_a_full_queue_leaves_no_job_behind(start: Any, services: Services) -> None:
    """Room for one of two."""
    with pytest.raises(QueueFull):
        start(on=replace(services, queue_depth=1))
    assert services.queue.depth() == 0
    assert services.jobs.active() == []


def test_an_outage_while_cancelling_does_not_keep_other_jobs(
    start: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate cannot be stored, and stopping one job fails: the other is cancelled all the same."""

    def gone(run: GateRun) -> None:
        raise ConnectionError("gates")

    stop, stopped = services.queue.stop, []

    def once(job_id: str) -> None:
        stopped.append(job_id)
        if len(stopped) == 1:
            raise ConnectionError("queue")
        stop(job_id)

    monkeypatch.setattr(services.gates, "create", gone)
    monkeypatch.setattr(services.queue, "stop", once)
    with pytest.raises(ConnectionError):
        start()
    assert len(stopped) == 2
    assert services.jobs.active() == []


def test_unknown_data_starts_nothing(start: Any, services: Services, bound: dict[str, Any]) -> None:
    """The first check's data is not there."""
    with pytest.raises(UnknownDataset):
        start(inputs={**bound, "left": {"dataset": "ds_" + "0" * 24}})
    assert services.jobs.active() == []


def test_a_cancelled_gate_stays_cancelled(start: Any, services: Services) -> None:
    """Its jobs too; reading it later judges nothing, and cancelling again changes nothing."""
    run = start()
    cancelled = cancel_gate(services, "default", run.id)
    assert (cancelled.state, cancelled.verdict) == ("cancelled", None)
    assert services.queue.depth() == 0
    states = {services.jobs.get("default", job).state for job in run.jobs.values()}
    assert states == {State.cancelled}
    assert read_gate(services, "default", run.id) == cancelled
    assert cancel_gate(services, "default", run.id) == cancelled


def test_a_judged_gate_is_not_cancelled(start: Any, services: Services) -> None:
    """Nor are jobs of other runs that share its reports."""
    run = start()
    work(services)
    judged = read_gate(services, "default", run.id)
    assert cancel_gate(services, "default", run.id) == judged


def test_a_gate_belongs_to_its_project(start: Any, services: Services) -> None:
    """To read and to cancel."""
    run = start()
    for act in (read_gate, cancel_gate):
        with pytest.raises(UnknownGate):
            act(services, "other", run.id)
    assert services.queue.depth() == 2
