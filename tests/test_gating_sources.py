"""Gates over rows that live elsewhere: one import for all checks, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from service.errors import DatasetInUse, InvalidRequest, SourceDenied
from service.gating import cancel_gate, promote, read_gate, run_gate
from service.importing import fetch
from service.job import FETCH, GateRun, State
from service.operations import Services, cancel, perform, remove_dataset
from service.storage.memory import MemoryQueue
from tests.given_store import SOURCE, Store

ROWS = 40
POLICY = {
    "version": 1,
    "name": "elsewhere",
    "inputs": {"new": "vectors", "old": "vectors", "half": "column"},
    "checks": {
        "shape": {"kind": "geometry", "inputs": {"vectors": "new", "groups": "half"}},
        "floor": {"kind": "cosine_floor", "inputs": {"a": "new", "b": "old"}},
        "kept": {"kind": "geometry", "inputs": {"vectors": "old"}},
    },
    "rules": [
        {"measure": "shape.duplicates.rows", "at_most": 0},
        {"measure": "floor.raw.gap_all", "at_least": -1.9},
        {"measure": "kept.duplicates.rows", "at_most": 0},
    ],
}
RUN_ID = "gate_" + "5" * 24


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def here() -> Store:
    """Forty rows in four pages."""
    return Store([list(range(k, ROWS, 4)) for k in range(4)], [ROWS, ROWS])


@pytest.fixture
def on(services: Services, here: Store) -> Services:
    return replace(services, sources=here)


@pytest.fixture
def start(on: Services, store: Any) -> Callable[..., GateRun]:
    """The policy with `new` in a store, `old` here and the column a label of `new`."""
    rows = [[float((i * 7) % 11), float((i * 5) % 13) + 1] for i in range(ROWS)]
    old = {"dataset": store(rows).id}

    def run(
        inputs: Any = None, run_id: str | None = RUN_ID, inputs_of: Any = None, **changes: Any
    ) -> GateRun:
        policy = {**POLICY, **changes, "inputs": inputs_of or POLICY["inputs"]}
        bound = {"new": {"source": SOURCE}, "old": old, "half": {"column": "parity"}}
        given = {**bound, **(inputs or {})}
        taken = {name: given[name] for name in policy["inputs"]}
        return run_gate(on, "default", policy, taken, {"run": "7"}, run_id)

    return run


def queued(on: Services) -> list[str]:
    assert isinstance(on.queue, MemoryQueue)
    return on.queue.waiting


def work(on: Services) -> None:
    """Every step in the queue, and what follows it."""
    while waiting := queued(on):
        job, _, step = waiting.pop(0).partition("-")
        (fetch if step else perform)(on, job)


def states(on: Services, run: GateRun) -> dict[str, State]:
    return {name: on.jobs.get("default", job).state for name, job in run.jobs.items()}


def test_a_source_is_read_once_for_all_checks_it_is_bound_to(
    start: Any, on: Services, here: Store
) -> None:
    """While it is read the run says by which job, and the jobs of its checks wait outside the queue."""
    run = start()
    assert (run.state, run.verdict, set(run.jobs)) == ("running", None, {"shape", "floor", "kept"})
    assert set(run.imports) == {"new"}
    assert set(run.inputs) == {"old", "half"}
    imported = on.jobs.get("default", run.imports["new"])
    assert (imported.kind, imported.state, imported.tags) == ("import", "queued", {"run": "7"})
    assert queued(on) == [FETCH.of(imported.id), run.jobs["kept"]]
    work(on)
    assert here.opened == 1
    judged = read_gate(on, "default", run.id)
    assert judged.verdict == "pass", judged.rules
    dataset = on.jobs.get("default", run.imports["new"]).inputs["dataset"].dataset
    assert judged.inputs["new"].dataset == dataset
    shape = on.jobs.get("default", run.jobs["shape"]).inputs
    assert shape["vectors"].dataset == shape["groups"].dataset == dataset
    assert promote(on, "default", run.id, "new", "prod").dataset == dataset


def test_what_was_imported_for_checks_is_kept_while_they_wait(start: Any, on: Services) -> None:
    run = start()
    queued(on).remove(FETCH.of(run.imports["new"]))
    fetch(on, run.imports["new"])
    dataset = on.jobs.get("default", run.imports["new"]).inputs["dataset"].dataset
    with pytest.raises(DatasetInUse):
        remove_dataset(on, "default", dataset)
    work(on)
    assert read_gate(on, "default", run.id).verdict == "pass"
    remove_dataset(on, "default", dataset)


def test_the_verdict_is_that_of_the_same_rows_uploaded(start: Any, on: Services) -> None:
    """Rule for rule."""
    by_source = start()
    work(on)
    dataset = read_gate(on, "default", by_source.id).inputs["new"].dataset
    column = {"dataset": dataset, "column": "parity"}
    by_id = start({"new": {"dataset": dataset}, "half": column}, run_id=None)
    assert by_id.state == "done", "the reports are there"
    assert by_id.rules == read_gate(on, "default", by_source.id).rules


def test_two_inputs_of_one_source_are_one_import(start: Any, on: Services, here: Store) -> None:
    """Also where the two are different models of a check."""
    checks = {
        "agree": {
            "kind": "model_comparison",
            "inputs": {
                "models": [{"name": "a", "vectors": "new"}, {"name": "b", "vectors": "old"}]
            },
            "params": {"k": 3},
        }
    }
    rules = [{"measure": "agree.pairs.b.a.changed_sets", "at_most": 0}]
    run = start({"old": {"source": SOURCE}}, checks=checks, rules=rules)
    assert run.imports["new"] == run.imports["old"]
    work(on)
    assert here.opened == 1
    assert read_gate(on, "default", run.id).verdict == "pass"


def test_a_source_may_be_one_matrix_of_several(
    start: Any, on: Services, here: Store, store: Any
) -> None:
    """Documents of a model in a store, its queries inline; right is the document of the same id."""
    rows = [[float(i), float(i * i + 1)] for i in range(ROWS)]
    checks = {
        "found": {
            "kind": "retrieval",
            "inputs": {
                "models": [{"name": "m", "queries": "old", "documents": "new"}],
                "relevance": "right",
            },
            "params": {"ks": [1, 5]},
        }
    }
    run = start(
        {"old": {"vectors": rows}, "right": {"values": [[str(i)] for i in range(ROWS)]}},
        inputs_of={"new": "vectors", "old": "vectors", "right": "relevance"},
        checks=checks,
        rules=[{"measure": "found.models.m.hit@5", "at_least": 0.01}],
    )
    work(on)
    judged = read_gate(on, "default", run.id)
    assert here.opened == 1
    assert judged.verdict == "pass", judged.rules
    documents = on.jobs.get("default", run.jobs["found"]).inputs["models"][0].parts["documents"]
    assert documents == judged.inputs["new"]


def test_a_failed_import_makes_the_rules_of_its_checks_invalid(
    start: Any, on: Services, here: Store
) -> None:
    """With the problem of the import; another check keeps its verdict."""
    here.pages[1] = [1, 1]
    run = start()
    work(on)
    judged = read_gate(on, "default", run.id)
    assert judged.verdict == "invalid"
    shape, floor, kept = judged.rules
    for one in (shape, floor):
        assert one.verdict == "invalid"
        assert "source-inconsistent" in one.reason
        assert "repeated 1" in one.reason
    assert kept.verdict != "invalid"
    problem = on.jobs.get("default", run.imports["new"]).problem
    assert on.jobs.get("default", run.jobs["floor"]).problem == problem
    assert "new" not in judged.inputs


def test_what_a_check_forbids_of_imported_rows_is_invalid(start: Any, on: Services) -> None:
    """The column is not among those of the source."""
    run = start({"half": {"column": "topic"}})
    work(on)
    judged = read_gate(on, "default", run.id)
    assert (judged.rules[0].verdict, judged.rules[1].verdict) == ("invalid", "pass")
    assert "topic" in judged.rules[0].reason


def test_an_import_that_is_stopped_ends_the_run(start: Any, on: Services) -> None:
    run = start()
    cancel(on, "default", run.imports["new"])
    work(on)
    judged = read_gate(on, "default", run.id)
    assert [one.verdict for one in judged.rules][:2] == ["invalid", "invalid"]
    assert "cancelled" in judged.rules[0].reason


def test_cancelling_a_run_stops_its_import(start: Any, on: Services, here: Store) -> None:
    """In the middle of it."""
    run = start()
    here.before_page = lambda place: cancel_gate(on, "default", run.id) and None
    work(on)
    assert set(states(on, run).values()) == {State.cancelled}
    assert on.jobs.get("default", run.imports["new"]).state is State.cancelled
    assert on.jobs.active() == []


def test_a_process_that_dies_in_the_import_loses_nothing(
    start: Any, on: Services, here: Store
) -> None:
    """The import is run again, and what waits goes on waiting."""

    def die(place: int) -> None:
        raise Killed

    here.before_page = die
    run = start()
    queued(on).remove(FETCH.of(run.imports["new"]))
    with pytest.raises(Killed):
        fetch(on, run.imports["new"])
    assert states(on, run)["shape"] is State.queued
    here.before_page = lambda place: None
    fetch(on, run.imports["new"])
    work(on)
    assert read_gate(on, "default", run.id).verdict == "pass"


def test_a_process_that_dies_after_the_import_loses_nothing(
    start: Any, on: Services, here: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not queue what waited: the next delivery of its step does."""
    run = start()
    with monkeypatch.context() as dying:
        dying.setattr("service.importing.release", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            fetch(on, run.imports["new"])
    assert on.jobs.get("default", run.imports["new"]).state is State.succeeded
    fetch(on, run.imports["new"])
    assert here.opened == 1
    work(on)
    assert read_gate(on, "default", run.id).verdict == "pass"


def test_a_delivery_before_the_import_has_ended_does_nothing(start: Any, on: Services) -> None:
    """Too early, and it does not count as a start."""
    run = start()
    for _ in range(on.attempts + 1):
        fetch(on, run.jobs["shape"])
    assert states(on, run)["shape"] is State.queued
    work(on)
    assert read_gate(on, "default", run.id).verdict == "pass"


def test_an_attempt_that_died_is_taken_over(
    start: Any, on: Services, here: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run was not stored: its import and its jobs are those of the next attempt."""

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(on.gates, "create", killed)
        dying.setattr("service.gating.cancel", lambda *_: None)  # nobody is there to cancel
        with pytest.raises(Killed):
            start()
    before = set(on.jobs.active())
    assert len(before) == 4
    work(on)
    run = start()
    assert {*run.jobs.values(), *run.imports.values()} == before
    assert run.verdict == "pass"
    assert here.opened == 1


def test_a_refused_gate_leaves_no_import_behind(start: Any, on: Services, store: Any) -> None:
    """Another check is refused, or the source is."""
    kept = {"kind": "geometry", "inputs": {"vectors": "old", "groups": "half"}}
    with pytest.raises(InvalidRequest):
        start(checks={**POLICY["checks"], "kept": kept})
    with pytest.raises(SourceDenied):
        start({"new": {"source": {**SOURCE, "connection": "other"}}})
    assert on.jobs.active() == []
    assert queued(on) == []
