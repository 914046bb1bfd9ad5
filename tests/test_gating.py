"""Gate runs: jobs for every check, one verdict however many readers, and a clean end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service.check import Check
from service.errors import (
    GateNotPassed,
    InvalidRequest,
    QueueFull,
    ShapeMismatch,
    UnknownBaseline,
    UnknownDataset,
    UnknownGate,
)
from service.gate import VerdictWarning
from service.gating import cancel_gate, promote, read_gate, run_gate
from service.job import GateRun, State
from service.operations import Services, perform, report_of

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

    def run(
        on: Services = services, inputs: Any = None, run_id: str | None = None, **changes: Any
    ) -> GateRun:
        policy = {**POLICY, **changes}
        return run_gate(on, "default", policy, inputs or bound, {"run": "1"}, run_id)

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
        {"measure": "floor.raw.matched", "at_least": 0.999999},
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


def test_each_level_of_a_check_has_one_job_however_often_it_is_tried(
    start: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt dies before the run is stored: the next takes its jobs over, three, not six."""
    run_id, create = "gate_" + "1" * 24, services.gates.create
    changes = {"rules": BLOCKING, "familywise": True, "run_id": run_id}
    with monkeypatch.context() as dying:
        dying.setattr(services.gates, "create", _killed)
        dying.setattr("service.gating.cancel", lambda *_: None)  # nobody is there to cancel
        with pytest.raises(_Killed):
            start(**changes)
    before = set(services.jobs.active())
    assert services.gates.create == create
    run = start(**changes)
    assert {*run.jobs.values(), *run.fail_jobs.values()} == before
    assert len(before) == 3
    assert set(services.jobs.active()) == before
    assert start(**changes) == run


def test_a_baseline_that_moved_between_attempts_is_not_judged_on_old_jobs(
    start: Any, services: Services, bound: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs of a run are of the data the run says it judged."""
    run_id = "gate_" + "2" * 24
    inputs = {**bound, "left": {"baseline": "prod"}}
    services.baselines.set("default", "prod", bound["right"]["dataset"], None)
    with monkeypatch.context() as dying:
        dying.setattr(services.gates, "create", _killed)
        dying.setattr("service.gating.cancel", lambda *_: None)
        with pytest.raises(_Killed):
            start(inputs=inputs, run_id=run_id)
    services.baselines.set("default", "prod", bound["left"]["dataset"], None)
    run = start(inputs=inputs, run_id=run_id)
    assert run.inputs["left"].model_dump() == bound["left"]
    for job, role in (("shape", "vectors"), ("floor", "a")):
        found = services.jobs.get("default", run.jobs[job]).inputs[role]
        assert not isinstance(found, list)
        assert found.dataset == bound["left"]["dataset"]


class _Killed(BaseException):
    """The process is gone."""


def _killed(*_: Any) -> None:
    raise _Killed


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


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kinds of the checks that have been computed."""
    found: list[str] = []
    original = Check.run

    def run(self: Check, *args: Any) -> Any:
        found.append(self.kind)
        return original(self, *args)

    monkeypatch.setattr(Check, "run", run)
    return found


def test_a_gate_run_twice_computes_once(start: Any, services: Services, runs: list[str]) -> None:
    """One after the other, and both before the first has ended; `cache` keeps its meaning."""
    first, waiting = start(), start()
    assert services.queue.depth() == 4
    work(services)
    assert sorted(runs) == ["cosine_floor", "geometry"]
    again = start()
    assert again.state == "done"
    assert len(runs) == 2
    verdicts = {read_gate(services, "default", run.id).digest for run in (first, waiting, again)}
    assert len(verdicts) == 1


def test_two_checks_that_ask_the_same_compute_once(
    start: Any, services: Services, runs: list[str]
) -> None:
    """Under two names in one policy."""
    checks = dict.fromkeys(("one", "other"), POLICY["checks"]["shape"])
    run = start(checks=checks, rules=[{"measure": "one.duplicates.rows", "at_most": 0}])
    work(services)
    assert runs == ["geometry"]
    assert read_gate(services, "default", run.id).verdict == "pass"


BLOCKING = [
    {"measure": "floor.raw.gap_all", "at_least": -1.9},
    {"measure": "floor.raw.matched", "at_least": 0.9},
]


def test_a_family_of_rules_runs_its_check_at_two_levels(
    start: Any, services: Services, runs: list[str]
) -> None:
    """`fail` is said at alpha / 2, on intervals the check itself made; both are cancelled together."""
    run = start(rules=BLOCKING, familywise=True)
    assert run.fail_jobs.keys() == {"floor"}
    levels = {
        job.id: job.params["level"]
        for job in (
            services.jobs.get("default", one)
            for one in (*run.jobs.values(), *run.fail_jobs.values())
        )
    }
    assert levels == {
        run.jobs["shape"]: 0.95, run.jobs["floor"]: 0.95, run.fail_jobs["floor"]: 0.975,
    }  # fmt: skip
    assert read_gate(services, "default", run.id).state == "running"
    for job in run.jobs.values():
        perform(services, job)
    assert read_gate(services, "default", run.id).state == "running", "the wider one is missing"
    perform(services, run.fail_jobs["floor"])
    judged = read_gate(services, "default", run.id)
    assert judged.verdict == "fail"
    passed, failed = judged.rules
    assert passed.interval is not None
    assert failed.interval is not None
    assert (passed.interval.level, failed.interval.level) == (0.95, 0.975)
    stopped = cancel_gate(services, "default", start(rules=BLOCKING, familywise=True, look=4).id)
    jobs = [*stopped.jobs.values(), *stopped.fail_jobs.values()]
    assert {services.jobs.get("default", job).state for job in jobs} == {State.cancelled}


def test_the_rule_that_fails_alone_may_not_fail_in_a_family(start: Any, services: Services) -> None:
    """The same data and threshold: broken at alpha, open at alpha / 40 (level .5: [-.00, .11])."""
    run = start()
    work(services)
    level = {"params": {"level": 0.5}}
    checks = {"floor": {**POLICY["checks"]["floor"], **level}}
    rule = {"measure": "floor.raw.matched", "at_least": 0.15}
    alone = start(checks=checks, rules=[rule])
    together = start(checks=checks, rules=[rule] * 40, familywise=True)
    work(services)
    assert read_gate(services, "default", alone.id).verdict == "fail"
    assert read_gate(services, "default", together.id).verdict == "inconclusive"
    assert run.fail_jobs == {}


def test_looks_widen_every_interval_once(start: Any, services: Services) -> None:
    """`look: 2` is the level .975 for pass and fail; without it the verdict warns."""
    plain, looked = start(rules=BLOCKING[:1]), start(rules=BLOCKING[:1], look=2)
    work(services)
    one, two = (read_gate(services, "default", run.id) for run in (plain, looked))
    assert (one.rules[0].interval.level, two.rules[0].interval.level) == (0.95, 0.975)
    assert two.rules[0].interval.low < one.rules[0].interval.low
    assert [warned.code for warned in one.warnings if warned.check is None] == ["one_look"]
    assert [warned.code for warned in two.warnings if warned.check is None] == []
    assert two.fail_jobs == {}


def test_inputs_may_be_inline_or_baselines(
    start: Any, services: Services, bound: dict[str, Any]
) -> None:
    """The same rows in other words: the same requests, the same digest; each is stored once."""
    named = start()
    services.baselines.set("default", "prod", bound["left"]["dataset"], None)
    inline = start(
        inputs={
            "left": {"baseline": "prod"},
            "right": {"vectors": X[::-1].tolist()},
            "topics": {"baseline": "prod", "column": "t"},
        }
    )
    assert inline.inputs["left"].dataset == bound["left"]["dataset"]
    assert inline.baselines == {"left": "prod", "topics": "prod"}
    work(services)
    assert (
        read_gate(services, "default", named.id).rules
        == read_gate(services, "default", inline.id).rules
    )
    values = start(inputs={**bound, "topics": {"values": [f"t{i % 6}" for i in range(30)]}})
    assert values.inputs["topics"].column == "values"


def test_a_baseline_is_what_it_was_when_the_gate_began(
    start: Any, services: Services, bound: dict[str, Any]
) -> None:
    """Moving the name later changes no job."""
    services.baselines.set("default", "prod", bound["left"]["dataset"], None)
    run = start(inputs={**bound, "left": {"baseline": "prod"}})
    services.baselines.set("default", "prod", bound["right"]["dataset"], None)
    job = services.jobs.get("default", run.jobs["shape"])
    assert job.inputs["vectors"].dataset == bound["left"]["dataset"]


def test_an_unknown_baseline_starts_nothing(
    start: Any, services: Services, bound: dict[str, Any]
) -> None:
    with pytest.raises(UnknownBaseline, match="`prod`"):
        start(inputs={**bound, "left": {"baseline": "prod"}})
    assert services.jobs.active() == []


def test_what_passed_becomes_a_baseline(
    start: Any, services: Services, bound: dict[str, Any]
) -> None:
    """With the run that says so; twice is once."""
    run = start()
    with pytest.raises(GateNotPassed, match="running"):
        promote(services, "default", run.id, "left", "prod")
    work(services)
    for _ in range(2):
        found = promote(services, "default", run.id, "left", "prod")
    assert (found.dataset, found.gate, found.version) == (bound["left"]["dataset"], run.id, 1)
    assert services.baselines.get("default", "prod") == found
    for name in ("topics", "lft"):
        with pytest.raises(InvalidRequest, match="left"):
            promote(services, "default", run.id, name, "prod")
    with pytest.raises(UnknownGate):
        promote(services, "other", run.id, "left", "prod")


@pytest.mark.parametrize("verdict", ["fail", "inconclusive", "invalid", "cancelled"])
def test_nothing_else_becomes_a_baseline(verdict: str, start: Any, services: Services) -> None:
    """Every end of a gate but one."""
    rule = {
        "fail": {"measure": "shape.duplicates.rows", "within": [1, 2]},
        "inconclusive": {"measure": "floor.raw.gap_all", "within": [-0.001, 0.001]},
    }.get(verdict, {"measure": "shape.duplicates.rows", "at_most": 0})
    run = start(rules=[rule])
    if verdict == "cancelled":
        cancel_gate(services, "default", run.id)
    if verdict == "invalid":
        services.jobs.change(run.jobs["shape"], lambda job: job.moved(State.cancelled))
    work(services)
    with pytest.raises(GateNotPassed, match=verdict):
        promote(services, "default", run.id, "left", "prod")
    with pytest.raises(UnknownBaseline):
        services.baselines.get("default", "prod")


MODELS = {
    "version": 1,
    "name": "agree",
    "inputs": {"was": "vectors", "now": "vectors"},
    "checks": {
        "agree": {
            "kind": "model_comparison",
            "inputs": {
                "models": [{"name": "old", "vectors": "was"}, {"name": "new", "vectors": "now"}]
            },
        }
    },
    "rules": [{"measure": "agree.pairs.old.new.cka", "at_least": 0.5}],
}


def test_a_misfit_is_told_in_the_names_of_the_policy(services: Services, store: Any) -> None:
    """With the models' names in the sentence, so that two of one role are not alike."""
    values = {"was": X, "now": X[:-1]}
    inputs = {name: {"dataset": store(rows).id} for name, rows in values.items()}

    with pytest.raises(ShapeMismatch) as refused:
        run_gate(services, "default", MODELS, inputs, {})

    assert refused.value.detail.startswith("`models/old` has 30 rows and `models/new` has 29;")
    assert [(one.pointer, one.message) for one in refused.value.faults] == [
        ("/policy/checks/agree/inputs/models/0", "input `was`: 30 rows"),
        ("/policy/checks/agree/inputs/models/1", "input `now`: 29 rows"),
    ]


def test_a_misfit_of_a_plain_role_is_told_so_too(
    start: Any, bound: dict[str, Any], store: Any
) -> None:
    short = {**bound, "right": {"dataset": store(X[:7]).id}}
    with pytest.raises(ShapeMismatch) as refused:
        start(inputs=short)
    assert {one.message for one in refused.value.faults} == {
        "input `left`: 30 rows", "input `right`: 7 rows",
    }  # fmt: skip


def test_a_run_hears_the_warnings_of_its_reports(
    start: Any, services: Services, store: Any, bound: dict[str, Any]
) -> None:
    """Each with the check of the policy; a check that failed has none, and cautions are of no check."""
    twice = store({"vectors": [*X[:29].tolist(), X[0].tolist()], "columns": {"t": ["a", "b"] * 15}})
    inputs = {
        **bound, "left": {"dataset": twice.id}, "topics": {"dataset": twice.id, "column": "t"},
    }  # fmt: skip
    run = start(inputs=inputs)
    assert run.warnings == []
    work(services)
    found = read_gate(services, "default", run.id)
    assert found.verdict == "fail"
    heard = [(one.check, one.code, one.where) for one in found.warnings]
    assert ("shape", "duplicates", "results/duplicates") in heard
    assert heard[-1] == (None, "one_look", "policy/look")
    of_reports = [
        (name, warned.code, warned.where)
        for name, job in found.jobs.items()
        for warned in report_of(services, services.jobs.get("default", job)).warnings
    ]
    assert heard[:-1] == of_reports
    assert {"floor", "shape"} == {name for name, _, _ in of_reports}


def test_a_stored_run_without_checks_in_its_warnings_still_loads() -> None:
    """As those judged before had them."""
    old = {"code": "one_look", "message": "Once.", "where": "policy/look"}
    assert VerdictWarning.model_validate(old).check is None


def test_a_probe_tested_on_its_own_train_rows_is_stopped_by_a_rule_about_the_warning(
    services: Services, store: Any
) -> None:
    """All labels are recovered either way; without the rule the warning alone is in the verdict."""
    labels = ["a", "b"] * 15
    rows = X + np.where(np.array(labels) == "a", 9.0, -9.0)[:, None]
    data = store({"vectors": rows.tolist(), "columns": {"t": labels}})
    column = {"dataset": data.id, "column": "t"}
    policy = {
        "inputs": {
            "train": "vectors", "test": "vectors", "labels": "column", "test_labels": "column",
        },
        "checks": {
            "probe": {
                "kind": "linear_probe",
                "inputs": {
                    "models": [{"name": "new", "rows": "train", "test": "test"}],
                    "labels": "labels", "test_labels": "test_labels",
                },
            }
        },
    }  # fmt: skip
    recovered = {"measure": "probe.models.new.accuracy", "at_least": 0.8}
    honest = {"measure": "probe.warnings.tested_on_train_rows", "at_most": 0}
    inputs = {
        "train": {"dataset": data.id},
        "test": {"dataset": data.id},
        **dict.fromkeys(("labels", "test_labels"), column),
    }
    runs = [
        run_gate(services, "default", {**POLICY, **policy, "rules": rules}, inputs, {})
        for rules in ([recovered], [recovered, honest])
    ]
    work(services)
    shown, stopped = (read_gate(services, "default", run.id) for run in runs)
    assert (shown.verdict, stopped.verdict) == ("pass", "fail")
    assert "tested_on_train_rows" in {one.code for one in shown.warnings}
    assert "30 of 30 test rows are equal to a train row" in stopped.rules[1].reason


def test_what_would_decide_a_probe_is_test_groups(services: Services, store: Any) -> None:
    """Some groups of all are drawn for testing; those are what its interval rests on."""
    labels = ["a", "b"] * 60
    rows = np.random.default_rng(3).normal(size=(120, 4))
    rows[:, 0] += np.where(np.array(labels) == "a", 1.0, -1.0)
    columns = {"t": labels, "g": [f"g{i // 2}" for i in range(120)]}
    data = store({"vectors": rows.tolist(), "columns": columns})
    policy = {
        **POLICY,
        "inputs": {"rows": "vectors", "labels": "column", "groups": "column"},
        "checks": {
            "probe": {
                "kind": "linear_probe",
                "inputs": {"rows": "rows", "labels": "labels", "groups": "groups"},
            }
        },
        "rules": [{"measure": "probe.models.model_1.accuracy", "at_least": 0.8}],
    }
    inputs = {
        "rows": {"dataset": data.id},
        "labels": {"dataset": data.id, "column": "t"},
        "groups": {"dataset": data.id, "column": "g"},
    }
    run = run_gate(services, "default", policy, inputs, {})
    work(services)
    (rule,) = read_gate(services, "default", run.id).rules
    assert rule.verdict == "inconclusive"
    assert rule.needed is not None
    assert rule.needed.model_dump().keys() == {"unit", "count", "drawn"}
    assert str(rule.needed).endswith("test groups")
