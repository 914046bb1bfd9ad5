"""Jobs over HTTP: accepted, answered from cache, watched, cancelled, listed, or refused by name."""

from __future__ import annotations

import re
import threading
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest

from service.errors import TimedOut
from service.job import now
from service.operations import Services, fail

JOB = {
    "id", "kind", "kind_version", "project", "state", "inputs", "params", "seed", "tags",
    "created_at", "started_at", "finished_at", "deadline_s", "progress", "attempts", "cached",
    "result", "problem", "links",
}  # fmt: skip


@pytest.fixture
def rows(upload: Any, some_rows: Any) -> str:
    """A stored dataset of forty rows."""
    return str(upload(some_rows)["id"])


def test_a_job_is_accepted_at_once_with_its_place(ask: Any, rows: str, waiting: list[str]) -> None:
    """202, Location, Retry-After, and the record CONTRACT.md names."""
    answer = ask("geometry", {"vectors": rows}, tags={"env": "prod"}, seed=7)

    assert answer.status_code == 202
    job = answer.json()
    assert job.keys() == JOB
    assert re.fullmatch(r"job_[0-9a-f]{24}", job["id"])
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert int(answer.headers["retry-after"]) > 0
    assert (job["state"], job["attempts"], job["cached"]) == ("queued", 0, False)
    assert job["inputs"] == {"vectors": {"dataset": rows}}
    assert (job["seed"], job["tags"], job["kind_version"]) == (7, {"env": "prod"}, 2)
    assert job["params"] == {
        "level": 0.95, "on_bad_rows": "error", "align_by_ids": False, "census": False,
        "max_spectrum": 64,
    }  # fmt: skip
    assert job["result"] is job["problem"] is job["progress"] is None
    assert job["started_at"] is job["finished_at"] is None
    assert waiting == [job["id"]]


def test_a_finished_job_says_when_and_where_its_report_is(
    ask: Any, rows: str, work: Any, door: Any
) -> None:
    """RFC 3339 times in UTC, in order; no Retry-After any more."""
    place = ask("geometry", {"vectors": rows}).headers["location"]
    work()
    answer = door.get(place)
    job = answer.json()

    assert (job["state"], job["attempts"], job["cached"]) == ("succeeded", 1, False)
    assert job["result"] == {"report": f"{place}/report"}
    assert "retry-after" not in answer.headers
    times = [
        datetime.fromisoformat(job[f"{name}_at"]) for name in ("created", "started", "finished")
    ]
    assert times == sorted(times)
    assert all(time.utcoffset() == timedelta(0) for time in times)
    assert all(job[f"{name}_at"].endswith("Z") for name in ("created", "started", "finished"))


def test_a_waiting_submit_answers_with_the_ended_job(ask: Any, rows: str, hands: None) -> None:
    """Prefer: wait with a worker beside it: 200, the preference confirmed, Location still there."""
    answer = ask("geometry", {"vectors": rows}, headers={"Prefer": "wait=20"})

    assert (answer.status_code, answer.json()["state"]) == (200, "succeeded")
    assert answer.headers["preference-applied"] == "wait=20"
    assert answer.headers["location"] == answer.json()["links"]["self"]
    assert "retry-after" not in answer.headers


def test_a_wait_ends_when_its_time_is_up(ask: Any, rows: str, door: Any) -> None:
    """Nobody works: after a second the job is still queued, on POST and on GET."""
    answer = ask("geometry", {"vectors": rows}, headers={"Prefer": "wait=1"})
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    assert answer.headers["preference-applied"] == "wait=1"
    assert "retry-after" in answer.headers

    again = door.get(answer.headers["location"], headers={"Prefer": "wait=1"})
    assert (again.status_code, again.json()["state"]) == (200, "queued")
    assert again.headers["preference-applied"] == "wait=1"


def test_a_waiting_read_returns_as_soon_as_the_job_ends(
    ask: Any, rows: str, work: Any, door: Any
) -> None:
    """The job is run half a second after the read began; the read has thirty."""
    place = ask("geometry", {"vectors": rows}).headers["location"]
    timer = threading.Timer(0.3, work)
    timer.start()
    answer = door.get(place, headers={"Prefer": "wait=30"})
    timer.join()

    assert answer.json()["state"] == "succeeded"
    assert answer.elapsed < timedelta(seconds=10)


@pytest.mark.parametrize(
    ("lines", "applied"),
    [
        (["wait=1"], "wait=1"),
        (["wait=999"], "wait=60"),
        (["respond-async, wait=2"], "wait=2"),
        (["respond-async", "wait=3"], "wait=3"),
        (['Wait = "4" ; x'], "wait=4"),
        (["wait=0"], "wait=0"),
        (["waiting=5"], None),
        (["wait=x"], None),
        ([], None),
    ],
)
def test_the_preference_is_read_as_rfc_7240_writes_it(
    lines: list[str], applied: str | None, ask: Any, rows: str, work: Any, door: Any
) -> None:
    """On an ended job, so that nothing waits; at most 60 seconds are granted."""
    place = ask("geometry", {"vectors": rows}).headers["location"]
    work()
    answer = door.get(place, headers=[("Prefer", line) for line in lines])
    assert answer.headers.get("preference-applied") == applied


def test_the_tag_of_a_job_changes_with_the_job(ask: Any, rows: str, work: Any, door: Any) -> None:
    """304 with an empty body while nothing changed; another tag after the run; weak forms match."""
    place = ask("geometry", {"vectors": rows}).headers["location"]
    first = door.get(place)
    tag = first.headers["etag"]
    assert re.fullmatch(r'"[^"]+"', tag), "strong"

    for known in (tag, f'"x", {tag}', f"W/{tag}", "*"):
        same = door.get(place, headers={"If-None-Match": known})
        assert (same.status_code, same.content) == (304, b"")
        assert same.headers["etag"] == tag
        assert "retry-after" in same.headers
    work()
    later = door.get(place, headers={"If-None-Match": tag})
    assert (later.status_code, later.json()["state"]) == (200, "succeeded")
    assert later.headers["etag"] != tag


def test_a_cancelled_job_never_runs(ask: Any, rows: str, door: Any, services: Services) -> None:
    """DELETE takes it from the queue, twice is once, and a worker that has it already leaves it."""
    from service.operations import perform

    place = ask("geometry", {"vectors": rows}).headers["location"]
    first = door.delete(place)
    assert (first.status_code, first.json()["state"]) == (200, "cancelled")
    assert first.json()["finished_at"] is not None
    assert services.queue.depth() == 0

    assert door.delete(place).json() == first.json()
    perform(services, first.json()["id"])
    assert door.get(place).json() == first.json()


def test_an_ended_job_cannot_be_cancelled(ask: Any, rows: str, work: Any, door: Any) -> None:
    """It stays as it is, with its report."""
    place = ask("geometry", {"vectors": rows}).headers["location"]
    work()
    assert door.delete(place).json()["state"] == "succeeded"
    assert door.get(f"{place}/report").status_code == 200


def test_the_same_question_is_answered_without_a_second_run(
    ask: Any, rows: str, work: Any, door: Any, waiting: list[str], services: Services
) -> None:
    """200 at once, `cached`, no attempt, an empty queue, and the same bytes."""
    first = ask("geometry", {"vectors": rows})
    work()
    again = ask("geometry", {"vectors": rows}, tags={"run": "2"})

    assert again.status_code == 200
    job = again.json()
    assert (job["state"], job["cached"], job["attempts"]) == ("succeeded", True, 0)
    assert job["tags"] == {"run": "2"}
    assert waiting == []
    reports = [door.get(f"{answer.headers['location']}/report") for answer in (first, again)]
    assert reports[0].content == reports[1].content


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"params": {"max_spectrum": 3}}, {"params": {"census": True}}],
    ids=str,
)
def test_another_question_is_computed(
    change: dict[str, Any], ask: Any, rows: str, work: Any
) -> None:
    """Seed and params are part of the question."""
    ask("geometry", {"vectors": rows})
    work()
    assert ask("geometry", {"vectors": rows}, **change).status_code == 202


def test_without_cache_the_answer_is_computed_again_and_agrees(
    ask: Any, rows: str, work: Any, door: Any
) -> None:
    """`cache: false` runs; the digest is the same, and so are the stored bytes."""
    first = ask("geometry", {"vectors": rows})
    work()
    again = ask("geometry", {"vectors": rows}, cache=False)
    assert (again.status_code, again.json()["cached"]) == (202, False)
    work()

    assert door.get(again.headers["location"]).json()["attempts"] == 1
    reports = [door.get(f"{answer.headers['location']}/report") for answer in (first, again)]
    assert reports[0].content == reports[1].content


def test_a_recomputation_that_differs_fails(
    ask: Any, rows: str, work: Any, door: Any, monkeypatch: pytest.MonkeyPatch, refusal: Any
) -> None:
    """On the same image another digest means that something is broken: the job ends `internal`."""
    ask("geometry", {"vectors": rows})
    work()
    monkeypatch.setattr("service.answering.result_digest", lambda digest, results: "0" * 64)
    place = ask("geometry", {"vectors": rows}, cache=False).headers["location"]
    work()

    job = door.get(place).json()
    assert (job["state"], job["problem"]["code"]) == ("failed", "internal")
    refusal(door.get(f"{place}/report"), 409, "internal")


def test_the_job_record_holds_ids_and_no_data(
    ask: Any, door: Any, services: Services, work: Any
) -> None:
    """Inline vectors and values become datasets before queueing."""
    answer = ask(
        "geometry",
        {
            "vectors": {"vectors": [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], "spec": {"model": "m"}},
            "groups": {"values": ["a", "b", "b"]},
        },
    )
    inputs = answer.json()["inputs"]

    assert inputs["vectors"].keys() == {"dataset"}
    assert inputs["groups"].keys() == {"dataset", "column"}
    dataset = door.get(f"/v1/datasets/{inputs['vectors']['dataset']}").json()
    assert (dataset["n"], dataset["d"], dataset["spec"]["model"]) == (3, 2, "m")
    labels = door.get(f"/v1/datasets/{inputs['groups']['dataset']}").json()
    assert (labels["n"], labels["d"]) == (3, None)
    work()
    assert door.get(answer.headers["location"]).json()["state"] == "succeeded"


def test_a_column_is_read_from_its_role_or_from_a_named_dataset(
    ask: Any, upload: Any, some_rows: Any
) -> None:
    """`{"column"}` alone means the role the check declares."""
    labels = [str(i % 4) for i in range(40)]
    both = upload({"vectors": some_rows.tolist(), "columns": {"intent": labels}})["id"]
    alone = upload("intent\n" + "\n".join(labels) + "\n")["id"]

    own = ask("geometry", {"vectors": both, "groups": {"column": "intent"}}).json()
    other = ask("geometry", {"vectors": both, "groups": {"dataset": alone, "column": "intent"}})
    assert own["inputs"]["groups"] == {"dataset": both, "column": "intent"}
    assert other.json()["inputs"]["groups"] == {"dataset": alone, "column": "intent"}


def test_an_unknown_column_is_refused_with_what_it_may_have_been(
    ask: Any, upload: Any, refusal: Any
) -> None:
    """The pointer names the role, the message the nearest column."""
    body = {"vectors": [[1.0, 0.0]] * 3, "columns": {"intent": ["a", "b", "a"]}}
    dataset = upload(body)["id"]
    found = refusal(
        ask("geometry", {"vectors": dataset, "groups": {"column": "intnet"}}),
        422,
        "invalid-request",
    )
    (fault,) = found["errors"]
    assert fault["pointer"] == "/inputs/groups"
    assert "did you mean `intent`" in fault["message"]


def test_an_unknown_check_is_not_found_with_what_it_may_have_been(
    ask: Any, refusal: Any, rows: str
) -> None:
    """404 `unknown-check`."""
    found = refusal(ask("geometri", {"vectors": rows}), 404, "unknown-check")
    assert "id you mean `geometry`" in found["detail"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"params": {"derangements": 0}}, "/params/derangements"),
        ({"params": {"level": 1.5}}, "/params/level"),
        ({"params": {"align": "x"}}, "/params/align"),
        ({"params": {"derangments": 3}}, "/params/derangments"),
        ({"params": {"on_bad_rows": "ignore"}}, "/params/on_bad_rows"),
        ({"params": []}, "/params"),
        ({"seed": -1}, "/seed"),
        ({"seed": 2**53}, "/seed"),
        ({"seed": 1.5}, "/seed"),
        ({"tags": {"a/b~c": 1}}, "/tags/a~1b~0c"),
        ({"tags": {"a": ""}}, "/tags/a"),
        ({"sed": 1}, "/sed"),
        ({"inputs": {"a": {"dataset": 5}}}, "/inputs/a/dataset"),
        ({"inputs": {"a": {"datset": "x"}}}, "/inputs/a/datset"),
        ({"inputs": {"a": {"dataset": "x", "row": 1}}}, "/inputs/a/row"),
        ({"inputs": {"a": {"vectors": [[1, "x"]]}}}, "/inputs/a/vectors/0/1"),
        ({"inputs": {"a": {"vectors": [[1, True]]}}}, "/inputs/a/vectors/0/1"),
        ({"inputs": {"a": {"vectors": [[1]], "ids": [1]}}}, "/inputs/a/ids/0"),
        ({"inputs": {"c": {"dataset": "x"}}}, "/inputs/c"),
        ({"inputs": {"groups": {"values": [{}]}}}, "/inputs/groups/values/0"),
        ({"inputs": {"groups": {"column": "g", "dataset": 5}}}, "/inputs/groups/dataset"),
        ({"inputs": {"a": None}}, "/inputs/a"),
        ({"inputs": {"b": "ds"}}, "/inputs/b"),
    ],
    ids=str,
)
def test_what_is_wrong_in_a_request_is_named_by_its_place(
    change: dict[str, Any], pointer: str, door: Any, refusal: Any, rows: str
) -> None:
    """RFC 6901 pointers into the body that was sent; wrong and unknown fields alike."""
    body = {"kind": "cosine_floor", "inputs": {"a": {"dataset": rows}, "b": {"dataset": rows}}}
    for key, value in change.items():
        old = body.get(key)
        body[key] = {**old, **value} if key == "inputs" and isinstance(old, dict) else value
    found = refusal(door.post("/v1/jobs", json=body), 422, "invalid-request")
    assert pointer in [fault["pointer"] for fault in found["errors"]]


def test_a_missing_role_is_named(ask: Any, rows: str, refusal: Any) -> None:
    """`b` is required."""
    found = refusal(ask("cosine_floor", {"a": rows}), 422, "invalid-request")
    assert [fault["pointer"] for fault in found["errors"]] == ["/inputs/b"]


@pytest.mark.parametrize("body", ["[]", "5", "null", "{}", '{"kind": 5}', '{"kind": "geometry"}'])
def test_a_request_is_an_object_with_kind_and_inputs(body: str, door: Any, refusal: Any) -> None:
    """Anything else is 422, never 500."""
    refusal(door.post("/v1/jobs", content=body), 422, "invalid-request")


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_request_with_numbers_that_json_does_not_have_is_malformed(
    token: str, door: Any, refusal: Any
) -> None:
    """Wherever they stand."""
    body = f'{{"kind": "geometry", "inputs": {{}}, "params": {{"level": {token}}}}}'
    refusal(door.post("/v1/jobs", content=body), 422, "malformed-payload")


def test_a_refusal_stays_short_however_much_is_wrong(door: Any, refusal: Any) -> None:
    """Twenty thousand wrong numbers: some places and the count, in under 10 KB."""
    body = {"kind": "geometry", "inputs": {"vectors": {"vectors": [["x"] * 20_000]}}}
    answer = door.post("/v1/jobs", json=body)
    found = refusal(answer, 422, "invalid-request")

    assert len(answer.content) < 10_000
    assert re.match("2000[01] ", found["detail"])


def test_paired_inputs_have_equal_numbers_of_rows(
    ask: Any, upload: Any, rows: str, refusal: Any, some_rows: Any
) -> None:
    """Vectors against vectors, and a column against vectors."""
    short = upload(some_rows[:-1])["id"]
    found = refusal(ask("cosine_floor", {"a": rows, "b": short}), 422, "shape-mismatch")
    assert {fault["pointer"] for fault in found["errors"]} == {"/inputs/a", "/inputs/b"}
    assert "40" in found["detail"]
    assert "39" in found["detail"]

    groups = {"values": ["a", "b"]}
    refusal(ask("geometry", {"vectors": rows, "groups": groups}), 422, "shape-mismatch")


def test_compared_vectors_have_equal_dimensions(
    ask: Any, upload: Any, rows: str, refusal: Any, some_rows: Any
) -> None:
    """Eight against seven, for the pair and for the rows of the mean."""
    narrow = upload(some_rows[:, :7])["id"]
    refusal(ask("cosine_floor", {"a": rows, "b": narrow}), 422, "dimension-mismatch")
    refusal(ask("cosine_floor", {"a": rows, "b": rows, "fit_a": narrow}), 422, "dimension-mismatch")


def test_a_check_has_a_least_number_of_rows(ask: Any, upload: Any, refusal: Any) -> None:
    """Two pairs have no floor."""
    two = upload(np.eye(2))["id"]
    (fault,) = refusal(ask("cosine_floor", {"a": two, "b": two}), 422, "too-few-rows")["errors"]
    assert fault["pointer"] == "/inputs/a"


@pytest.mark.parametrize(
    "values",
    [["a"] * 40, [None] * 40, ["a"] * 39 + [None]],
    ids=["one label", "no label", "one label and a gap"],
)
def test_one_group_is_too_few(values: list[Any], ask: Any, rows: str, refusal: Any) -> None:
    """Counted over present labels, also where missing ones are dropped."""
    answer = ask(
        "geometry", {"vectors": rows, "groups": {"values": values}}, {"on_bad_rows": "drop"}
    )
    refusal(answer, 422, "too-few-groups")


def test_vectors_and_columns_are_not_exchanged(
    ask: Any, upload: Any, rows: str, refusal: Any
) -> None:
    """Columns alone cannot be vectors; a dataset cannot be a column."""
    columns = upload({"columns": {"g": ["a", "b"]}})["id"]
    refusal(ask("geometry", {"vectors": columns}), 422, "invalid-request")
    refusal(ask("geometry", {"vectors": rows, "groups": columns}), 422, "invalid-request")


def test_an_unknown_dataset_is_not_found(ask: Any, rows: str, refusal: Any) -> None:
    """In a role, and under a column."""
    nobody = "ds_" + "0" * 24
    refusal(ask("geometry", {"vectors": nobody}), 404, "unknown-dataset")
    groups = {"dataset": nobody, "column": "g"}
    refusal(ask("geometry", {"vectors": rows, "groups": groups}), 404, "unknown-dataset")


def test_rows_that_are_not_finite_are_named(ask: Any, upload: Any, refusal: Any) -> None:
    """CASES P11: row 3, one of them, by number, and by id where rows have ids."""
    x = np.random.default_rng(96).normal(size=(8, 3)).astype(np.float32)
    x[3, 1] = np.nan
    found = refusal(ask("geometry", {"vectors": upload(x)["id"]}), 422, "non-finite-rows")
    (fault,) = found["errors"]
    assert (fault["pointer"], fault["count"], fault["rows"]) == ("/inputs/vectors", 1, ["3"])


def test_zero_rows_are_named(ask: Any, upload: Any, refusal: Any) -> None:
    """CASES P16: row 2, here by its id."""
    x = [[1, 0, 0], [0.6, 0.8, 0], [0, 0, 0], [0, 1, 0], [0.8, 0, 0.6]]
    dataset = upload({"vectors": x, "ids": list("pqrst")})["id"]
    (fault,) = refusal(ask("geometry", {"vectors": dataset}), 422, "zero-rows")["errors"]
    assert (fault["count"], fault["rows"]) == (1, ["r"])


def test_dropped_rows_are_left_out_and_counted(report: Any, upload: Any) -> None:
    """CASES P11: n = 7 and the report says which one went."""
    x = np.random.default_rng(96).normal(size=(8, 3)).astype(np.float32)
    x[3, 1] = np.nan
    found = report("geometry", {"vectors": upload(x)["id"]}, {"on_bad_rows": "drop"})

    assert found["results"]["n"] == 7
    assert found["params"]["on_bad_rows"] == "drop"
    (said,) = [warning for warning in found["warnings"] if warning["code"] == "rows_dropped"]
    assert "1 of 8" in said["message"]
    assert said["message"].rstrip(".").endswith("3")
    assert said["where"] == "inputs/vectors"


def test_a_dropped_zero_row_leaves_the_others(report: Any, upload: Any) -> None:
    """CASES P16: n = 4, mean cosine 0.44666667."""
    x = np.array([[1, 0, 0], [0.6, 0.8, 0], [0, 0, 0], [0, 1, 0], [0.8, 0, 0.6]])
    found = report("geometry", {"vectors": upload(x)["id"]}, {"on_bad_rows": "drop"})

    assert found["results"]["n"] == 4
    assert found["results"]["anisotropy"]["estimate"] == pytest.approx(0.44666667, abs=5e-9)


def test_bad_rows_of_paired_inputs_are_dropped_together(report: Any, upload: Any) -> None:
    """One row is NaN in a, another zero in b, a third has no label: 37 of 40 are left in all."""
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 40, 8))
    a[3], b[11] = np.nan, 0
    labels = [f"g{i % 10}" if i != 20 else None for i in range(40)]
    inputs = {"a": upload(a)["id"], "b": upload(b)["id"], "groups": {"values": labels}}
    found = report("cosine_floor", inputs, {"on_bad_rows": "drop"})

    keep = [i for i in range(40) if i not in (3, 11, 20)]
    x, y = (m[keep] / np.linalg.norm(m[keep], axis=1, keepdims=True) for m in (a, b))
    assert found["results"]["n"] == 37
    matched = found["results"]["raw"]["matched"]["estimate"]
    assert matched == pytest.approx(float((x * y).sum(1).mean()), abs=1e-12)
    (said,) = [warning for warning in found["warnings"] if warning["code"] == "rows_dropped"]
    assert "3 of 40" in said["message"]
    assert said["where"] == "inputs/a, inputs/b, inputs/groups"


def test_dropping_too_many_rows_fails_with_a_count(
    ask: Any, upload: Any, work: Any, door: Any
) -> None:
    """Two of four pairs are left, three are needed: known only once the rows are read."""
    x = np.random.default_rng(3).normal(size=(4, 3))
    x[:2] = np.nan
    dataset = upload(x)["id"]
    answer = ask("cosine_floor", {"a": dataset, "b": dataset}, {"on_bad_rows": "drop"})
    work()
    job = door.get(answer.headers["location"]).json()
    assert (job["state"], job["problem"]["code"]) == ("failed", "too-few-rows")
    assert "2 rows are left of a, b after dropping 2" in job["problem"]["detail"]


def test_missing_labels_are_named(ask: Any, upload: Any, refusal: Any) -> None:
    """CASES P05: rows 1 and 6, inline, by CSV, and by null in JSON."""
    x = np.random.default_rng(51).normal(size=(12, 3))
    labels = ["a", None, "a", "a", "b", "b", None, "b", "c", "c", "c", "c"]
    vectors = upload(x)["id"]
    csv = upload("g\n" + "\n".join(label or "" for label in labels) + "\n")["id"]
    listed = upload({"columns": {"g": labels}})["id"]
    for groups in (
        {"values": labels}, {"dataset": csv, "column": "g"}, {"dataset": listed, "column": "g"},
    ):  # fmt: skip
        answer = ask("geometry", {"vectors": vectors, "groups": groups})
        (fault,) = refusal(answer, 422, "missing-labels")["errors"]
        assert (fault["pointer"], fault["count"]) == ("/inputs/groups", 2)
        assert fault["rows"] == ["1", "6"]


def test_rows_without_a_label_can_be_dropped(report: Any, upload: Any) -> None:
    """CASES P05: n = 10 and three groups; the strings "None" and "nan" are labels and stay."""
    x = np.random.default_rng(51).normal(size=(12, 3))
    labels = ["a", None, "a", "a", "b", "b", None, "b", "c", "c", "c", "c"]
    inputs = {"vectors": upload(x)["id"], "groups": {"values": labels}}
    found = report("geometry", inputs, {"on_bad_rows": "drop"})
    assert found["results"]["n"] == 10
    assert "3 groups" in found["results"]["anisotropy"]["undefined"]["interval"]["message"]
    assert "rows_dropped" in [warning["code"] for warning in found["warnings"]]

    text = ["None" if label is None else label for label in labels]
    text[6] = "nan"
    found = report("geometry", {**inputs, "groups": {"values": text}}, {"on_bad_rows": "drop"})
    assert found["results"]["n"] == 12
    assert found["results"]["anisotropy"]["interval"]["resamples"] == 5


def test_one_true_and_the_text_1_are_three_groups(report: Any, rows: str) -> None:
    """With two other labels that makes five, just enough for an interval."""
    labels = [1, True, "1", "a", "b"] * 8
    found = report("geometry", {"vectors": rows, "groups": {"values": labels}})
    interval = found["results"]["anisotropy"]["interval"]
    assert (interval["resamples"], interval["unit"]) == (5, "group")


def test_paired_inputs_with_other_ids_are_refused(
    ask: Any, upload: Any, refusal: Any, some_rows: Any
) -> None:
    """Forty rows, one pair in its place: 38 differ by position, ten are named."""
    ids = [f"r{i:02}" for i in range(40)]
    turned = [*ids[:2], *reversed(ids[2:])]
    a = upload({"vectors": some_rows.tolist(), "ids": ids})["id"]
    b = upload({"vectors": some_rows.tolist(), "ids": turned})["id"]
    (fault,) = refusal(ask("cosine_floor", {"a": a, "b": b}), 422, "ids-mismatch")["errors"]
    assert (fault["pointer"], fault["count"]) == ("/inputs/b", 38)
    assert fault["rows"] == ids[2:12]

    other = upload({"vectors": some_rows.tolist(), "ids": [*ids[:-1], "new"]})["id"]
    answer = ask("cosine_floor", {"a": a, "b": other}, {"align_by_ids": True})
    faults = refusal(answer, 422, "ids-mismatch")["errors"]
    assert [(fault["pointer"], fault["count"], fault["rows"]) for fault in faults] == [
        ("/inputs/a", 1, ["new"]), ("/inputs/b", 1, ["r39"]),
    ]  # fmt: skip


def test_ids_are_compared_between_all_paired_inputs(
    ask: Any, upload: Any, refusal: Any, some_rows: Any
) -> None:
    """The first side has no ids; the second and the groups have, and they differ."""
    ids = [f"r{i}" for i in range(40)]
    a = upload(some_rows)["id"]
    b = upload({"vectors": some_rows.tolist(), "ids": ids})["id"]
    labels = {"columns": {"g": ["x", "y"] * 20}, "ids": ids[::-1]}
    groups = {"dataset": upload(labels)["id"], "column": "g"}
    refusal(ask("cosine_floor", {"a": a, "b": b, "groups": groups}), 422, "ids-mismatch")


def test_inputs_aligned_by_ids_give_the_results_of_aligned_inputs(report: Any, upload: Any) -> None:
    """The other side and the labels arrive in another order; every result is equal."""
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(2, 30, 6))
    ids = [f"r{i}" for i in range(30)]
    labels = [f"g{i // 3}" for i in range(30)]
    order = rng.permutation(30)
    straight = {
        "a": upload({"vectors": a.tolist(), "ids": ids})["id"],
        "b": upload({"vectors": b.tolist(), "ids": ids})["id"],
        "groups": {
            "dataset": upload({"columns": {"g": labels}, "ids": ids})["id"],
            "column": "g",
        },
    }
    mixed = {
        "a": straight["a"],
        "b": upload({"vectors": b[order].tolist(), "ids": [ids[i] for i in order]})["id"],
        "groups": {
            "dataset": upload(
                {"columns": {"g": [labels[i] for i in order]}, "ids": [ids[i] for i in order]}
            )["id"],
            "column": "g",
        },
    }
    expected = report("cosine_floor", straight, {"align_by_ids": True})
    found = report("cosine_floor", mixed, {"align_by_ids": True})
    assert found["results"] == expected["results"]
    assert found["request_digest"] != expected["request_digest"]


def test_labels_aligned_another_way_are_another_question(
    report: Any, upload: Any, some_rows: Any
) -> None:
    """Equal values in equal order under other ids land on other rows: never answered from cache."""
    ids = [f"r{i:02}" for i in range(40)]
    vectors = upload({"vectors": some_rows.tolist(), "ids": ids})["id"]
    values = [f"g{i // 4}" for i in range(40)]
    found = []
    for order in (ids, sorted(ids, key=lambda name: name[::-1])):
        column = {"dataset": upload({"columns": {"g": values}, "ids": order})["id"], "column": "g"}
        found.append(
            report("geometry", {"vectors": vectors, "groups": column}, {"align_by_ids": True})
        )
    assert found[0]["request_digest"] != found[1]["request_digest"]
    intervals = [one["results"]["anisotropy"]["interval"] for one in found]
    assert intervals[0] != intervals[1]


def test_jobs_are_listed_newest_first_in_pages(ask: Any, rows: str, door: Any) -> None:
    """Seven jobs in pages of three; the last page has no cursor."""
    made = [ask("geometry", {"vectors": rows}, seed=seed).json()["id"] for seed in range(7)]
    seen, cursor, sizes = [], None, []
    while True:
        query = {"limit": "3", **({"cursor": cursor} if cursor else {})}
        page = door.get("/v1/jobs", params=query).json()
        assert page.keys() == {"items", "next_cursor"}
        seen += [job["id"] for job in page["items"]]
        sizes.append(len(page["items"]))
        if (cursor := page["next_cursor"]) is None:
            break
    assert seen == made[::-1]
    assert sizes == [3, 3, 1]


def test_pages_are_stable_while_new_jobs_arrive(ask: Any, rows: str, door: Any) -> None:
    """A new job between two pages is on neither, and nothing is shown twice or left out."""
    made = [ask("geometry", {"vectors": rows}, seed=seed).json()["id"] for seed in range(4)]
    first = door.get("/v1/jobs?limit=2").json()
    ask("geometry", {"vectors": rows}, seed=99)
    second = door.get("/v1/jobs", params={"limit": 2, "cursor": first["next_cursor"]}).json()

    shown = [job["id"] for page in (first, second) for job in page["items"]]
    assert shown == made[::-1]
    assert second["next_cursor"] is None


def test_a_listing_can_be_filtered(ask: Any, rows: str, door: Any, work: Any) -> None:
    """By state, kind and tag, alone and together."""
    plain = ask("geometry", {"vectors": rows}).json()["id"]
    tagged = ask("geometry", {"vectors": rows}, seed=1, tags={"env": "a:b"}).json()["id"]
    work()
    floor = ask("cosine_floor", {"a": rows, "b": rows}, tags={"env": "dev"}).json()["id"]
    door.delete(f"/v1/jobs/{floor}")

    def listed(**query: str) -> list[str]:
        return [job["id"] for job in door.get("/v1/jobs", params=query).json()["items"]]

    assert listed(state="succeeded") == [tagged, plain]
    assert listed(state="cancelled") == [floor]
    assert listed(kind="geometry") == [tagged, plain]
    assert listed(tag="env:a:b") == [tagged]
    assert listed(tag="env:dev", state="succeeded") == []
    assert door.get("/v1/jobs", params={"kind": "nothing"}).status_code == 404


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=201", "limit=x", "state=done", "tag=env", "cursor=", "cursor=x",
        "cursor=-", "cursor=1-", "cursor=1-x", "cursor=%C2%B2-x", "cursor=" + "9" * 5000 + "-x",
        "cursor=" + "9" * 400 + "-job_" + "0" * 24,
    ],
    ids=range(13),
)  # fmt: skip
def test_a_listing_refuses_what_it_cannot_mean(query: str, door: Any, refusal: Any) -> None:
    """Also while there is no job at all."""
    refusal(door.get(f"/v1/jobs?{query}"), 422, "invalid-request")


def test_an_unknown_job_is_not_found(door: Any, refusal: Any) -> None:
    """To read, to cancel, and for its report."""
    for name in ("job_" + "0" * 24, "x", "%00"):
        refusal(door.get(f"/v1/jobs/{name}"), 404, "unknown-job")
        refusal(door.delete(f"/v1/jobs/{name}"), 404, "unknown-job")
        refusal(door.get(f"/v1/jobs/{name}/report"), 404, "unknown-job")


def test_a_failed_job_is_an_answer_with_the_problem_inside(
    ask: Any, upload: Any, work: Any, door: Any, refusal: Any
) -> None:
    """Equal rows have nothing left after centring: 200 with the problem; the report 409 in its code."""
    same = upload(np.ones((6, 3)))["id"]
    place = ask("cosine_floor", {"a": same, "b": same}).headers["location"]
    work()
    answer = door.get(place)
    job = answer.json()

    assert (answer.status_code, job["state"], job["result"]) == (200, "failed", None)
    assert job["problem"].keys() == {"type", "title", "status", "detail", "code", "errors"}
    assert (job["problem"]["code"], job["problem"]["errors"][0]["count"]) == ("zero-rows", 6)
    found = refusal(door.get(f"{place}/report"), 409, "zero-rows")
    assert found["errors"] == job["problem"]["errors"]


def test_a_check_that_breaks_fails_its_job_and_keeps_its_data_to_itself(
    ask: Any, rows: str, work: Any, door: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message of the exception stays out of the job."""

    def broken(*_: Any) -> None:
        raise RuntimeError("row 3 is 0.12345")

    monkeypatch.setattr("service.check.Check.run", broken)
    place = ask("geometry", {"vectors": rows}).headers["location"]
    work()
    job = door.get(place).json()
    assert (job["state"], job["problem"]["code"]) == ("failed", "internal")
    assert "0.12345" not in door.get(place).text


def test_a_check_without_memory_fails_its_job(
    ask: Any, rows: str, work: Any, door: Any, monkeypatch: pytest.MonkeyPatch, refusal: Any
) -> None:
    """`out-of-memory`, with what the job may use."""

    def hungry(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("service.check.Check.run", hungry)
    place = ask("geometry", {"vectors": rows}).headers["location"]
    work()
    refusal(door.get(f"{place}/report"), 409, "out-of-memory")


def test_a_job_ended_by_its_deadline_says_so(
    ask: Any, rows: str, door: Any, services: Services, refusal: Any
) -> None:
    """Ended from outside, as the sweeper does."""
    job = ask("geometry", {"vectors": rows}).json()
    fail(services, job["id"], TimedOut("The job ran over 3600 s."))
    refusal(door.get(f"/v1/jobs/{job['id']}/report"), 409, "timed-out")
    assert door.get(f"/v1/jobs/{job['id']}").json()["problem"]["status"] == 504


def test_a_running_job_shows_its_progress(
    ask: Any, rows: str, door: Any, services: Services, waiting: list[str]
) -> None:
    """Stage, done of total, seconds left; Retry-After; and it can be cancelled."""
    from service.job import Progress, State

    job = ask("geometry", {"vectors": rows}).json()
    services.jobs.change(job["id"], lambda one: one.moved(State.running, started_at=now()))
    told = Progress(stage="pairs", done=3, total=8, eta_s=1.5)
    services.jobs.report_progress(job["id"], told)
    answer = door.get(f"/v1/jobs/{job['id']}")

    assert answer.json()["progress"] == {"stage": "pairs", "done": 3, "total": 8, "eta_s": 1.5}
    assert "retry-after" in answer.headers
    ended = door.delete(f"/v1/jobs/{job['id']}").json()
    assert (ended["state"], ended["progress"]) == ("cancelled", None)


def test_tags_are_bounded(ask: Any, rows: str, refusal: Any) -> None:
    """Twenty tags of up to 200 characters."""
    assert ask("geometry", {"vectors": rows}, tags={str(i): "x" * 200 for i in range(20)})
    for tags in ({str(i): "x" for i in range(21)}, {"x" * 201: "x"}, {"x": "x" * 201}, {"": "x"}):
        refusal(ask("geometry", {"vectors": rows}, tags=tags), 422, "invalid-request")
