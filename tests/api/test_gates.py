"""Gates over HTTP: a policy bound to data becomes jobs, and the jobs a verdict."""

from __future__ import annotations

import copy
import re
import threading
from typing import Any

import numpy as np
import pytest

from service.gate.cautions import ONE_LOOK
from service.job import Progress, State
from service.operations import Services

RUN = {
    "id", "policy", "state", "inputs", "tags", "jobs", "verdict", "rules", "digest", "created_at",
    "links", "baselines", "fail_jobs", "warnings", "imports",
    "unfinished",
}  # fmt: skip
RULE = {"rule", "measured", "observed", "interval", "threshold", "verdict", "reason", "needed"}


def policy(*rules: dict[str, Any]) -> dict[str, Any]:
    """A policy over one matrix, a pair and a column, with these rules."""
    return {
        "version": 1,
        "name": "halves",
        "inputs": {"left": "vectors", "right": "vectors", "topics": "column"},
        "checks": {
            "shape": {"kind": "geometry", "inputs": {"vectors": "left", "groups": "topics"}},
            "floor": {"kind": "cosine_floor", "inputs": {"a": "left", "b": "right"}},
        },
        "rules": list(rules),
    }


@pytest.fixture
def bound(upload: Any, rows: Any) -> dict[str, Any]:
    """Real pairs, and ten groups of ten of them."""
    left = {
        "vectors": rows("scifact_halves/minilm/A").tolist(),
        "columns": {"topic": [f"t{i // 10}" for i in range(100)]},
    }
    dataset = upload(left)["id"]
    return {
        "left": {"dataset": dataset},
        "right": {"dataset": upload(rows("scifact_halves/minilm/B"))["id"]},
        "topics": {"dataset": dataset, "column": "topic"},
    }


@pytest.fixture
def start(door: Any, bound: dict[str, Any]) -> Any:
    """Start a gate with these rules."""

    def send(*rules: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
        body = {"policy": policy(*rules), "inputs": bound, "tags": {"env": "ci"}}
        return door.post("/v1/gates", json=body, headers=headers or {})

    return send


FINE = {"measure": "floor.raw.gap_all", "at_least": 0.4}


def test_a_gate_is_accepted_and_its_checks_are_ordinary_jobs(
    start: Any, door: Any, bound: Any
) -> None:
    """202, Location, Retry-After; one job per check, with the tags of the gate."""
    answer = start(FINE)

    assert answer.status_code == 202
    run = answer.json()
    assert run.keys() == RUN
    assert re.fullmatch(r"gate_[0-9a-f]{24}", run["id"])
    assert answer.headers["location"] == run["links"]["self"] == f"/v1/gates/{run['id']}"
    assert "retry-after" in answer.headers
    assert (run["state"], run["verdict"], run["rules"], run["digest"]) == (
        "running",
        None,
        [],
        None,
    )
    assert (run["policy"], run["tags"], run["inputs"]) == ("halves", {"env": "ci"}, bound)
    listed = {job["id"]: job for job in door.get("/v1/jobs?tag=env:ci").json()["items"]}
    assert {name: listed[job]["kind"] for name, job in run["jobs"].items()} == {
        "shape": "geometry",
        "floor": "cosine_floor",
    }
    assert run["links"]["jobs"] == {name: f"/v1/jobs/{job}" for name, job in run["jobs"].items()}


def test_a_gate_is_judged_when_its_jobs_have_ended(start: Any, door: Any, work: Any) -> None:
    """Each rule with what was seen; the numbers are those of the reports."""
    place = start(FINE, {"measure": "shape.rankme", "at_least": 5}).headers["location"]
    work()
    answer = door.get(place)
    run = answer.json()

    assert (run["state"], run["verdict"]) == ("done", "pass")
    assert "retry-after" not in answer.headers
    assert re.fullmatch("[0-9a-f]{64}", run["digest"])
    gap, rank = run["rules"]
    assert gap.keys() == rank.keys() == RULE
    floor = door.get(f"/v1/jobs/{run['jobs']['floor']}/report").json()["results"]["raw"]["gap_all"]
    assert gap["observed"] == floor["estimate"]
    assert gap["interval"] == {key: floor["interval"][key] for key in ("low", "high", "level")}
    assert gap["threshold"] == 0.4
    assert gap["interval"]["low"] > 0.4
    assert rank["interval"] is None
    shape = door.get(f"/v1/jobs/{run['jobs']['shape']}/report").json()["results"]
    assert rank["observed"] == shape["rankme"]


@pytest.mark.parametrize(
    ("rules", "verdict"),
    [
        ([FINE], "pass"),
        ([FINE, {"measure": "floor.raw.gap_all", "at_least": 0.9}], "fail"),
        ([FINE, {"measure": "floor.raw.gap_all", "at_most": 0.5854}], "inconclusive"),
        ([FINE, {"measure": "floor.raw.gap_all", "at_least": 0.9, "level": "warn"}], "pass"),
        ([FINE, {"measure": "shape.duplicates.rows", "at_most": 0}], "pass"),
        ([FINE, {"measure": "shape.norms.min", "at_least": 2}], "fail"),
    ],
    ids=["interval above", "below", "both sides", "warned", "count", "scalar"],
)
def test_the_worst_blocking_rule_decides(
    rules: list[dict[str, Any]], verdict: str, start: Any, door: Any, work: Any
) -> None:
    """Real reports: gap .5854 [.55, .62]."""
    place = start(*rules).headers["location"]
    work()
    assert door.get(place).json()["verdict"] == verdict


def test_a_check_without_a_report_makes_the_gate_invalid(
    door: Any, upload: Any, bound: Any, work: Any
) -> None:
    """Equal rows cannot be centred: the job fails, and the rule says in which code."""
    same = upload(np.ones((100, 384)))["id"]
    body = {"policy": policy(FINE), "inputs": {**bound, "right": {"dataset": same}}}
    place = door.post("/v1/gates", json=body).headers["location"]
    work()
    run = door.get(place).json()
    assert (run["state"], run["verdict"]) == ("done", "invalid")
    assert run["rules"][0]["verdict"] == "invalid"
    assert "zero-rows" in run["rules"][0]["reason"]


def test_a_gate_with_a_cancelled_job_is_invalid(start: Any, door: Any, work: Any) -> None:
    """Somebody stopped one of its checks."""
    run = start(FINE).json()
    door.delete(run["links"]["jobs"]["floor"])
    work()
    judged = door.get(run["links"]["self"]).json()
    assert judged["verdict"] == "invalid"
    assert "cancelled" in judged["rules"][0]["reason"]


def test_a_waiting_gate_answers_with_its_verdict(start: Any, hands: None) -> None:
    """Prefer: wait with a worker beside it: 200 and the verdict."""
    answer = start(FINE, headers={"Prefer": "wait=30"})
    assert (answer.status_code, answer.json()["verdict"]) == (200, "pass")
    assert answer.headers["preference-applied"] == "wait=30"


def test_a_gate_over_known_reports_is_judged_at_once(
    start: Any, door: Any, work: Any, waiting: list[str]
) -> None:
    """200 on POST, no worker, the same digest."""
    first = start(FINE).headers["location"]
    work()
    again = start(FINE)

    assert (again.status_code, again.json()["verdict"]) == (200, "pass")
    assert waiting == []
    assert again.json()["id"] not in first
    assert again.json()["digest"] == door.get(first).json()["digest"]
    other = start({**FINE, "at_least": 0.41}).json()
    assert other["digest"] != again.json()["digest"]


def test_many_readers_see_one_verdict_stored_once(
    start: Any, door: Any, work: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four reads at once of a gate whose jobs have ended: one change of the record, one answer."""
    run = start(FINE).json()
    work()
    ready = threading.Barrier(4)
    original = services.gates.change

    def change(*args: Any) -> Any:
        ready.wait(10)
        return original(*args)

    monkeypatch.setattr(services.gates, "change", change)
    answers: list[bytes] = []
    readers = [
        threading.Thread(target=lambda: answers.append(door.get(run["links"]["self"]).content))
        for _ in range(4)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(answers) == 4
    assert len(set(answers)) == 1
    assert services.gates.get("default", run["id"]).version == 1


def test_the_tag_of_a_gate_changes_with_its_verdict(start: Any, door: Any, work: Any) -> None:
    """304 while it runs, another tag once it is judged, 304 after that."""
    place = start(FINE).headers["location"]
    tag = door.get(place).headers["etag"]
    same = door.get(place, headers={"If-None-Match": tag})
    assert (same.status_code, same.content) == (304, b"")
    assert "retry-after" in same.headers
    work()
    later = door.get(place, headers={"If-None-Match": tag})
    assert later.status_code == 200
    known = {"If-None-Match": later.headers["etag"]}
    assert door.get(place, headers=known).status_code == 304


def test_a_cancelled_gate_stops_its_jobs(
    start: Any, door: Any, waiting: list[str], work: Any
) -> None:
    """DELETE twice is once; a judged gate stays judged."""
    run = start(FINE).json()
    first = door.delete(run["links"]["self"])
    assert (first.status_code, first.json()["state"], first.json()["verdict"]) == (
        200, "cancelled", None,
    )  # fmt: skip
    assert waiting == []
    for job in run["links"]["jobs"].values():
        assert door.get(job).json()["state"] == "cancelled"
    assert door.delete(run["links"]["self"]).json() == first.json()
    assert door.get(run["links"]["self"]).json() == first.json()

    place = start(FINE).headers["location"]
    work()
    done = door.get(place).json()
    assert door.delete(place).json() == done


@pytest.mark.parametrize(
    ("place", "value", "pointer", "says"),
    [
        (("rules", 0, "measure"), "floor.raw.gapp", "/policy/rules/0/measure", "raw.gap"),
        (("rules", 0, "measure"), "flor.raw.gap", "/policy/rules/0/measure", "floor"),
        (("rules", 0, "measure"), "floor", "/policy/rules/0/measure", ""),
        (("rules", 0, "measure"), "floor.raw", "/policy/rules/0/measure", "raw."),
        (("rules", 0, "measure"), "floor.n", "/policy/rules/0/measure", ""),
        (("rules", 0, "measure"), "floor.__class__", "/policy/rules/0/measure", ""),
        (("rules", 0, "measure"), 5, "/policy/rules/0/measure", ""),
        (("rules", 0, "measure"), "floor.aligned.gap_all", "/policy/rules/0/measure", "`align`"),
        (("rules", 0, "at_least"), None, "/policy/rules/0", "exactly one"),
        (("rules", 0, "at_most"), 1, "/policy/rules/0", "exactly one"),
        (("rules", 0, "at_lest"), 1, "/policy/rules/0/at_lest", ""),
        (("rules", 0, "level"), "ignore", "/policy/rules/0/level", ""),
        (("rules",), [], "/policy/rules", ""),
        (("checks",), {}, "/policy/checks", ""),
        (("checks", "floor", "kind"), 5, "/policy/checks/floor/kind", ""),
        (("checks", "floor", "inputs", "b"), "wrong", "/policy/checks/floor/inputs/b", "right"),
        (("checks", "floor", "inputs", "b"), "topics", "/policy/checks/floor/inputs/b", "column"),
        (("checks", "floor", "inputs", "grups"), "topics", "/policy/checks/floor/inputs/grups",
         "groups"),
        (("checks", "floor", "inputs"), {"a": "left"}, "/policy/checks/floor/inputs", "`b`"),
        (("checks", "floor", "params"), {"derangements": 0},
         "/policy/checks/floor/params/derangements", ""),
        (("checks", "floor", "params"), {"x": 0}, "/policy/checks/floor/params/x", ""),
        (("checks", "floor", "seed"), -1, "/policy/checks/floor/seed", ""),
        (("checks", "a.b"), {"kind": "geometry", "inputs": {"vectors": "left"}}, "/policy/checks/a.b",
         ""),
        (("inputs", "left"), "matrix", "/policy/inputs/left", ""),
        (("version",), 2, "/policy/version", ""),
        (("name",), "", "/policy/name", ""),
        (("extra",), 1, "/policy/extra", ""),
    ],
)  # fmt: skip
def test_a_policy_is_checked_when_it_is_read(
    place: tuple[Any, ...], value: Any, pointer: str, says: str, door: Any, bound: Any, refusal: Any
) -> None:
    """Names, roles, params and measures, each by its place, with what it may have been."""
    wrong = copy.deepcopy(policy(dict(FINE)))
    node: Any = wrong
    for step in place[:-1]:
        node = node[step]
    node[place[-1]] = value
    answer = door.post("/v1/gates", json={"policy": wrong, "inputs": bound})
    faults = {
        fault["pointer"]: fault["message"]
        for fault in refusal(answer, 422, "invalid-request")["errors"]
    }
    assert pointer in faults
    assert says in faults[pointer]


def test_an_unknown_measure_gets_a_suggestion(door: Any, bound: Any, refusal: Any) -> None:
    """`floor.raw.gapp`: did you mean `raw.gap`?"""
    body = {"policy": policy({"measure": "floor.raw.gapp", "at_least": 0}), "inputs": bound}
    (fault,) = refusal(door.post("/v1/gates", json=body), 422, "invalid-request")["errors"]
    assert "did you mean `raw.gap`?" in fault["message"]


def test_a_policy_of_an_unknown_check_is_not_found(door: Any, bound: Any, refusal: Any) -> None:
    """404 as for a job."""
    wrong = policy(FINE)
    wrong["checks"]["floor"]["kind"] = "cosine_flor"
    found = refusal(
        door.post("/v1/gates", json={"policy": wrong, "inputs": bound}), 404, "unknown-check"
    )
    assert "did you mean `cosine_floor`?" in found["detail"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"left": None}, "/inputs/left"),
        ({"other": {"dataset": "ds_x"}}, "/inputs/other"),
        ({"left": {"dataset": "ds_x", "column": "c"}}, "/inputs/left"),
        ({"topics": {"dataset": "ds_x"}}, "/inputs/topics"),
        ({"topics": {"column": "c"}}, "/policy/checks/shape/inputs/groups"),
        ({"left": {"datset": "ds_x"}}, "/inputs/left"),
    ],
    ids=str,
)
def test_every_input_of_a_policy_is_bound_to_its_kind(
    change: dict[str, Any], pointer: str, door: Any, bound: Any, refusal: Any
) -> None:
    """Missing, unknown, vectors for a column, a column for vectors."""
    inputs = {**bound, **change}
    inputs = {name: value for name, value in inputs.items() if value is not None}
    answer = door.post("/v1/gates", json={"policy": policy(FINE), "inputs": inputs})
    found = refusal(answer, 422, "invalid-request")
    assert any(fault["pointer"].startswith(pointer) for fault in found["errors"])


@pytest.mark.parametrize(
    "body",
    ["[]", "5", "{}", '{"policy": 5}', '{"policy": {}, "rules": []}', '{"policy": {}, "tags": 5}'],
)
def test_a_gate_request_is_an_object_with_a_policy(body: str, door: Any, refusal: Any) -> None:
    """Anything else is 422, never 500."""
    refusal(door.post("/v1/gates", content=body), 422, "invalid-request")


def test_a_gate_request_is_strict_json(door: Any, refusal: Any) -> None:
    """NaN thresholds would never be crossed."""
    body = '{"policy": {"rules": [{"measure": "a.b", "at_least": NaN}]}}'
    refusal(door.post("/v1/gates", content=body), 422, "malformed-payload")


def test_a_gate_whose_data_a_check_refuses_starts_nothing(
    door: Any, bound: Any, upload: Any, refusal: Any, waiting: list[str]
) -> None:
    """The first check is fine, the second has rows that do not pair: 422, and nothing is queued."""
    short = upload(np.random.default_rng(0).normal(size=(99, 384)))["id"]
    body = {"policy": policy(FINE), "inputs": {**bound, "right": {"dataset": short}}}
    refusal(door.post("/v1/gates", json=body), 422, "shape-mismatch")
    assert waiting == []
    states = [job["state"] for job in door.get("/v1/jobs").json()["items"]]
    assert set(states) <= {"cancelled"}


def test_an_unknown_gate_is_not_found(door: Any, refusal: Any) -> None:
    """To read and to cancel."""
    for name in ("gate_" + "0" * 24, "x", "%00"):
        refusal(door.get(f"/v1/gates/{name}"), 404, "unknown-gate")
        refusal(door.delete(f"/v1/gates/{name}"), 404, "unknown-gate")


def test_gates_are_listed_newest_first(start: Any, door: Any, work: Any, refusal: Any) -> None:
    """With their verdicts, by tag, in pages; a listing judges what has ended."""
    runs = [start({**FINE, "at_least": bound}).json()["id"] for bound in (0.4, 0.9, 0.3)]
    work()
    first = door.get("/v1/gates?limit=2&tag=env:ci").json()
    assert [run["id"] for run in first["items"]] == [runs[2], runs[1]]
    assert [run["verdict"] for run in first["items"]] == ["pass", "fail"]
    rest = door.get(f"/v1/gates?cursor={first['next_cursor']}").json()
    assert [run["id"] for run in rest["items"]] == [runs[0]]
    assert rest["next_cursor"] is None
    assert door.get("/v1/gates?tag=env:prod").json()["items"] == []
    for query in ("tag=env", "cursor=x", "limit=0"):
        refusal(door.get(f"/v1/gates?{query}"), 422, "invalid-request")


def test_a_policy_is_validated_without_data(door: Any, refusal: Any, waiting: list[str]) -> None:
    """What it wants bound; the same faults as when it is run; nothing starts."""
    answer = door.post("/v1/gates/validate", json={"policy": policy(FINE)})
    assert answer.status_code == 200
    assert answer.json() == {
        "policy": "halves",
        "inputs": {"left": "vectors", "right": "vectors", "topics": "column"},
        "checks": {"shape": "geometry", "floor": "cosine_floor"},
        "rules": 1,
        "warnings": [ONE_LOOK.model_dump(exclude={"check"})],
    }
    wrong = policy({"measure": "floor.raw.gapp", "at_least": 0})
    (fault,) = refusal(
        door.post("/v1/gates/validate", json={"policy": wrong}), 422, "invalid-request"
    )["errors"]
    assert "did you mean `raw.gap`?" in fault["message"]
    for body in ({}, [], {"policy": policy(FINE), "inputs": {}}):
        refusal(door.post("/v1/gates/validate", json=body), 422, "invalid-request")
    assert waiting == []
    assert door.get("/v1/gates").json()["items"] == []


def test_a_verdict_is_markdown_for_who_asks(start: Any, door: Any, work: Any, refusal: Any) -> None:
    """By Accept; its own ETag; JSON for who does not say, 406 for who wants neither."""
    place = start(FINE, {"measure": "floor.raw.gap_all", "at_least": 0.9, "level": "warn"}).headers[
        "location"
    ]
    asked = {"Accept": "text/markdown"}
    assert door.get(place, headers=asked).text == "## halves: running\n"
    work()
    page = door.get(place, headers=asked)
    assert page.headers["content-type"].startswith("text/markdown")
    assert page.headers["vary"] == "Accept"
    assert "halves: pass" in page.text
    assert page.text.count("`floor.raw.gap_all`") == 2
    assert "`at_least` 0.9, warns only" in page.text
    plain = door.get(place)
    assert plain.json()["verdict"] == "pass"
    assert plain.headers["etag"] != page.headers["etag"]
    known = {**asked, "If-None-Match": page.headers["etag"]}
    assert door.get(place, headers=known).status_code == 304
    for accept in ("*/*", "application/json", "text/markdown, application/json"):
        answer = door.get(place, headers={"Accept": accept})
        assert answer.headers["content-type"].startswith("application/json")
    refusal(door.get(place, headers={"Accept": "text/html"}), 406, "not-acceptable")


def test_a_running_gate_says_what_it_waits_for(
    start: Any, door: Any, services: Services, work: Any
) -> None:
    """By check, with the stage of the one that runs; nothing once it is judged."""
    run = start(FINE).json()
    assert run["unfinished"] == {
        "shape": {"state": "queued", "progress": None},
        "floor": {"state": "queued", "progress": None},
    }
    services.jobs.change(run["jobs"]["floor"], lambda job: job.moved(State.running))
    stage = Progress(stage="pairs", done=1, total=4, eta_s=2.0)
    services.jobs.report_progress(run["jobs"]["floor"], stage)

    now = door.get(run["links"]["self"]).json()
    assert now["unfinished"]["floor"] == {"state": "running", "progress": stage.model_dump()}
    work()
    assert door.get(run["links"]["self"]).json()["unfinished"] == {}
