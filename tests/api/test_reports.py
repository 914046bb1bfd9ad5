"""Reports over HTTP: what they hold, when there is none, and that every null says why."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.operations import Services
from service.request import BY_KIND

REPORT = {
    "report_version", "kind", "kind_version", "request_digest", "digest", "created_at", "inputs",
    "params", "seed", "results", "readings", "warnings", "scope", "environment", "timing",
}  # fmt: skip
REFUSALS = ("too-few-rows", "too-few-groups", "zero-rows")
P_VALUE = {"exceedances", "permutations", "exact"}
KEY = re.compile(r"[A-Za-z0-9_@]+")
RNG = np.random.default_rng(14)
DEGENERATE: dict[str, NDArray[Any]] = {
    "one row": np.array([[1.0, 2.0, 3.0]]),
    "two rows": RNG.normal(size=(2, 3)),
    "two equal rows": np.ones((2, 3)),
    "three rows": RNG.normal(size=(3, 5)),
    "three orthogonal rows": np.eye(3),
    "all rows equal": np.full((7, 4), 0.1),
    "opposite rows": np.array([[1.0, 1.0], [-1.0, -1.0]] * 4),
    "one dimension": RNG.normal(size=(9, 1)),
    "one dimension of ones": np.ones((9, 1)),
    "four orthogonal rows": np.eye(4),
    "rank one": np.outer(np.arange(1.0, 9.0), [1.0, 2.0, 3.0]),
    "huge numbers": RNG.normal(size=(8, 3)) * 1e200,
    "tiny numbers": RNG.normal(size=(8, 3)) * 1e-200,
    "integers": RNG.integers(-128, 128, size=(9, 3), dtype=np.int8),
    "halves at their limit": np.full((6, 3), 65504, dtype=np.float16),
    "float32 at its limit": np.full((6, 3), 3.4e38, dtype=np.float32),
    "many rows": RNG.normal(size=(60, 4)),
}


def objects(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every JSON object in a value but the reasons, with its path."""
    if isinstance(node, dict):
        yield path, node
        for key, value in node.items():
            if key != "undefined":
                yield from objects(value, f"{path}.{key}")
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from objects(value, f"{path}.{i}")


def check_nulls(results: Any) -> None:
    """Each null has a reason in the same object, each reason a null, and `undefined` is not empty."""
    for path, found in objects(results):
        nulls = {key for key, value in found.items() if value is None}
        reasons = found.get("undefined", {})
        assert nulls == set(reasons), (path, nulls, reasons)
        assert "undefined" not in found or reasons, path
        for reason in reasons.values():
            assert reason.keys() == {"code", "message"}
            assert re.fullmatch("[a-z0-9_]+", reason["code"])
            assert reason["message"].endswith("."), reason


def check_shapes(results: Any) -> None:
    """Keys are of the contract's alphabet; an estimate has its interval, or null, and nothing else."""
    for path, found in objects(results):
        assert all(KEY.fullmatch(key) for key in found), (path, found.keys())
        if "estimate" in found:
            extra = found.keys() - {"undefined", "estimate", "interval"}
            assert not extra or extra >= P_VALUE, path
            if found["interval"] is not None:
                assert found["interval"].keys() - {"attainable"} == {
                    "low", "high", "level", "method", "unit", "resamples",
                }, path  # fmt: skip
                assert 0 < found["interval"].get("attainable", 0.5) < 1, path
                assert found["interval"]["low"] <= found["estimate"] <= found["interval"]["high"]


@pytest.fixture
def halves(upload: Any, rows: Any) -> dict[str, str]:
    """Real pairs: both halves of a hundred abstracts."""
    return {side.lower(): upload(rows(f"scifact_halves/minilm/{side}"))["id"] for side in "AB"}


def test_a_report_holds_what_the_contract_names(
    report: Any, door: Any, halves: dict[str, str]
) -> None:
    """Envelope, inputs with their hashes, all params, environment and timing."""
    found = report("cosine_floor", halves, {"shared_mean": True}, seed=3)

    assert found.keys() == REPORT
    assert (found["report_version"], found["kind"], found["kind_version"]) == (
        "1.0", "cosine_floor", 3,
    )  # fmt: skip
    assert re.fullmatch("[0-9a-f]{64}", found["request_digest"])
    assert re.fullmatch("[0-9a-f]{64}", found["digest"])
    assert found["seed"] == 3
    assert found["params"] == {
        "level": 0.95, "on_bad_rows": "error", "align_by_ids": False, "census": False,
        "shared_mean": True, "derangements": 20, "align": None,
    }  # fmt: skip
    for role, dataset in halves.items():
        stored = door.get(f"/v1/datasets/{dataset}").json()
        assert found["inputs"][role].pop("dataset") == dataset
        assert found["inputs"][role] == {
            key: stored[key] for key in ("sha256", "vectors_sha256", "n", "d", "dtype", "spec")
        }
    assert datetime.fromisoformat(found["created_at"]).utcoffset().total_seconds() == 0
    assert found["environment"].keys() >= {"service", "numpy", "scipy", "faiss", "blas", "cpu"}
    assert found["environment"]["numpy"] == np.__version__
    assert found["timing"]["run_s"] >= max(found["timing"]["stages"].values())
    assert found["readings"]
    assert all(reading.endswith(".") for reading in found["readings"])
    assert found["scope"]
    for warning in found["warnings"]:
        assert warning.keys() == {"code", "message", "where"}


def test_a_column_is_reported_with_its_hash(report: Any, upload: Any, some_rows: Any) -> None:
    """`inputs.groups`: dataset, column, rows and the hash of the values."""
    labels = {"columns": {"g": [str(i % 8) for i in range(40)]}}
    column = upload(labels)
    inputs = {
        "vectors": upload(some_rows)["id"], "groups": {"dataset": column["id"], "column": "g"},
    }  # fmt: skip
    found = report("geometry", inputs)["inputs"]["groups"]
    assert found == {
        "dataset": column["id"], "column": "g", "n": 40,
        "sha256": column["columns"]["g"]["sha256"], "ids_sha256": None,
    }  # fmt: skip


def test_real_readings_are_the_reference_ones(
    report: Any, halves: dict[str, str], reference: dict[str, Any], printed: Any
) -> None:
    """scifact_halves: values of a script that shares no code with the service."""
    found = report("cosine_floor", halves, {"shared_mean": True})["results"]
    assert found["raw"]["matched"]["estimate"] == pytest.approx(0.7002, abs=5e-5)
    assert found["raw"]["floor_all"]["estimate"] == pytest.approx(0.1148, abs=5e-5)
    assert found["centred"]["matched"]["estimate"] == pytest.approx(0.6537, abs=5e-5)
    assert found["anisotropy_a"] == pytest.approx(0.1081, abs=5e-5)
    assert found["anisotropy_b"] == pytest.approx(0.1254, abs=5e-5)
    assert found["raw"]["partner_ranked_first"]["a_to_b_count"] == 93


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("census", [False, True], ids=["sample", "census"])
@pytest.mark.parametrize("kind", sorted(BY_KIND))
def test_every_null_of_a_report_has_a_reason(
    kind: str, census: bool, name: str, upload: Any, ask: Any, work: Any, door: Any, strict: Any,
    roles: Any, small: Any,
) -> None:  # fmt: skip
    """
    Degenerate rows through every check of the catalogue.

    A job may refuse or fail only for what the rows are, never as `internal`; the answer is strict
    JSON either way.
    """
    x = DEGENERATE[name]
    answer = ask(
        kind, roles(kind, len(x), upload(x)["id"]), {"census": census, **small(kind, len(x))}
    )
    if answer.status_code == 422:
        assert strict(answer.content)["code"] in REFUSALS
        return
    work()
    job = strict(door.get(answer.headers["location"]).content)
    if job["state"] == "failed":
        assert job["problem"]["code"] in REFUSALS, job
        return
    found = strict(door.get(job["links"]["report"]).content)
    check_nulls(found["results"])
    check_shapes(found["results"])


@pytest.mark.parametrize(
    "labels",
    [
        ["a"] * 30 + ["b"] * 30,
        ["a"] * 31 + ["b"] * 29,
        ["a"] * 59 + ["b"],
        [str(i) for i in range(60)],
        [str(i // 2) for i in range(60)],
        [str(i % 5) for i in range(60)],
    ],
    ids=["halves", "one over half", "all but one", "singletons", "pairs", "five"],
)
@pytest.mark.parametrize("kind", ["geometry", "cosine_floor"])
def test_any_grouping_is_answered_or_refused(
    kind: str, labels: list[str], upload: Any, ask: Any, work: Any, door: Any, strict: Any
) -> None:
    """A group of more than half of the pairs leaves no unrelated pairing: `too-few-groups`."""
    dataset = upload(DEGENERATE["many rows"])["id"]
    roles = ("vectors",) if kind == "geometry" else ("a", "b")
    answer = ask(kind, {**dict.fromkeys(roles, dataset), "groups": {"values": labels}})
    work()
    job = strict(door.get(answer.headers["location"]).content)

    largest = max(labels.count(label) for label in set(labels))
    if kind == "cosine_floor" and largest > 30:
        assert (job["state"], job["problem"]["code"]) == ("failed", "too-few-groups")
        assert job["problem"]["errors"][0]["pointer"] == "/inputs/groups"
        return
    found = strict(door.get(job["links"]["report"]).content)
    check_nulls(found["results"])
    check_shapes(found["results"])


def test_a_census_has_no_intervals_and_says_why(report: Any, upload: Any, some_rows: Any) -> None:
    """`undefined.interval.code` is `census` for every estimate."""
    found = report("geometry", {"vectors": upload(some_rows)["id"]}, {"census": True})
    estimates = [one for _, one in objects(found["results"]) if "estimate" in one]
    assert estimates
    assert {one["undefined"]["interval"]["code"] for one in estimates} == {"census"}


def test_the_digest_is_the_same_for_any_number_of_threads(
    services: Services, upload: Any, rows: Any, ended: Any, small_blocks: Any
) -> None:
    """One, two and three threads, with groups, on blocks of 64 rows so that there are many."""
    small_blocks(64 * 384, 64)
    big = rows("clinc150/minilm")
    a, b = upload(big[:900])["id"], upload(big[900:1800])["id"]
    labels = {"values": [str(i // 30) for i in range(900)]}
    bodies = [
        {"kind": "geometry", "inputs": {"vectors": {"dataset": a}, "groups": labels}},
        {
            "kind": "cosine_floor",
            "inputs": {"a": {"dataset": a}, "b": {"dataset": b}, "groups": labels},
            "params": {"derangements": 2},
        },
        {
            "kind": "group_structure",
            "inputs": {"models": [{"dataset": a}, {"dataset": b}], "groups": labels},
            "params": {"permutations": 99, "bootstrap": 50},
        },
    ]
    for body in bodies:
        digests = set()
        for threads in (1, 2, 3):
            fresh = type(services.reports)()
            on = replace(services, threads=threads, reports=fresh)
            job = ended(body, on=on)
            data = fresh.get("default", job.request_digest)
            digests.add(re.search(rb'"digest": ?"([0-9a-f]{64})"', data)[1])
        assert len(digests) == 1, body["kind"]


def test_the_digest_is_the_same_however_the_rows_were_sent(
    report: Any, upload: Any, knock: Any, some_rows: Any, services: Services
) -> None:
    """The .npy file in two projects' stores, and base64: equal request digest, digest and results."""
    data = base64.b64encode(some_rows.tobytes()).decode()
    encoded = {"encoding": "base64", "dtype": "<f4", "shape": [40, 8], "data": data}
    first = report("geometry", {"vectors": upload(some_rows)["id"]})

    object.__setattr__(services, "reports", type(services.reports)())
    object.__setattr__(services, "datasets", type(services.datasets)())
    second = report("geometry", {"vectors": {"vectors": encoded}})
    assert second["created_at"] != first["created_at"], "computed again"
    assert second["request_digest"] == first["request_digest"]
    assert second["digest"] == first["digest"]
    assert second["results"] == first["results"]


def test_the_request_digest_follows_the_question_and_nothing_else(
    report: Any, upload: Any, some_rows: Any
) -> None:
    """Other rows, params, seed or kind change it; names, tags, and written-out defaults do not."""
    ids = [upload(some_rows, name="x")["id"], upload(some_rows[::-1])["id"]]
    base = report("geometry", {"vectors": ids[0]})["request_digest"]
    same = [
        report("geometry", {"vectors": ids[0]}, {"max_spectrum": 64}, tags={"a": "b"}, seed=0),
        report("geometry", {"vectors": ids[0]}, {"level": 0.95}, cache=False),
    ]
    other = [
        report("geometry", {"vectors": ids[1]}),
        report("geometry", {"vectors": ids[0]}, {"level": 0.9}),
        report("geometry", {"vectors": ids[0]}, seed=1),
        report("cosine_floor", {"a": ids[0], "b": ids[1]}),
        report("cosine_floor", {"a": ids[1], "b": ids[0]}),
        report("geometry", {"vectors": ids[0], "groups": {"values": ["a", "b"] * 20}}),
        report("geometry", {"vectors": ids[0], "groups": {"values": ["b", "a"] * 20}}),
    ]
    assert {one["request_digest"] for one in same} == {base}
    digests = [base, *(one["request_digest"] for one in other)]
    assert len(set(digests)) == len(digests)
    assert len({one["digest"] for one in other}) == len(other)


def test_there_is_no_report_before_the_job_has_ended(
    ask: Any, upload: Any, some_rows: Any, door: Any, refusal: Any, work: Any
) -> None:
    """409 `report-not-ready` with Retry-After while queued; 200 after the run."""
    place = ask("geometry", {"vectors": upload(some_rows)["id"]}).headers["location"]
    answer = door.get(f"{place}/report")
    refusal(answer, 409, "report-not-ready")
    assert int(answer.headers["retry-after"]) > 0
    work()
    assert door.get(f"{place}/report").status_code == 200


def test_a_cancelled_job_has_no_report(
    ask: Any, upload: Any, some_rows: Any, door: Any, refusal: Any
) -> None:
    """409 in its own code, and no promise of a later one."""
    place = ask("geometry", {"vectors": upload(some_rows)["id"]}).headers["location"]
    door.delete(place)
    answer = door.get(f"{place}/report")
    refusal(answer, 409, "cancelled")
    assert "retry-after" not in answer.headers


def test_a_report_is_served_as_it_was_stored(
    ask: Any, upload: Any, some_rows: Any, door: Any, work: Any, services: Services
) -> None:
    """The stored bytes, byte for byte, with a strong tag that answers 304."""
    answer = ask("geometry", {"vectors": upload(some_rows)["id"]})
    work()
    place = answer.json()["links"]["report"]
    job = services.jobs.get("default", answer.json()["id"])
    read = door.get(place)

    assert read.content == services.reports.get("default", job.request_digest)
    assert read.headers["content-type"] == "application/json"
    assert re.fullmatch(r'"[^"]+"', read.headers["etag"])
    again = door.get(place, headers={"If-None-Match": read.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert door.get(place, headers={"If-None-Match": '"other"'}).content == read.content


def test_a_report_knows_no_job(ask: Any, upload: Any, some_rows: Any, door: Any, work: Any) -> None:
    """It outlives them."""
    answer = ask("geometry", {"vectors": upload(some_rows)["id"]}, tags={"secret": "tag"})
    work()
    text = door.get(answer.json()["links"]["report"]).text
    assert answer.json()["id"] not in text
    assert "job_" not in text
    assert "secret" not in text


@pytest.fixture
def told(door: Any, ask: Any, work: Any) -> str:
    """Address of the report of a finished job."""
    job = ask("geometry", {"vectors": {"vectors": RNG.normal(size=(30, 4)).tolist()}}).json()
    work()
    return str(job["links"]["report"])


def test_one_address_gives_json_a_page_and_a_summary(door: Any, told: str) -> None:
    """By `Accept`; each with a tag of its own, by which it is not sent again."""
    answers = {
        kind: door.get(told, headers={"Accept": kind})
        for kind in ("application/json", "text/html", "text/markdown")
    }
    assert len({answer.headers["etag"] for answer in answers.values()}) == 3
    for kind, answer in answers.items():
        assert answer.headers["content-type"].partition(";")[0] == kind
        assert answer.headers["vary"] == "Accept"
        known = {"Accept": kind, "If-None-Match": answer.headers["etag"]}
        again = door.get(told, headers=known)
        assert (again.status_code, again.headers["vary"]) == (304, "Accept")
    digest = answers["application/json"].json()["digest"]
    assert digest in answers["text/html"].text
    assert digest in answers["text/markdown"].text
    assert door.get(told).content == answers["application/json"].content
    other = {"Accept": "text/html", "If-None-Match": answers["text/markdown"].headers["etag"]}
    assert door.get(told, headers=other).status_code == 200


def test_the_page_may_load_and_run_nothing(door: Any, told: str) -> None:
    page = door.get(told, headers={"Accept": "text/html"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"].split("; ")
    assert "default-src 'none'" in policy
    assert not any("unsafe" in part or "http" in part or "*" in part for part in policy)
    assert page.headers["x-content-type-options"] == "nosniff"


def test_a_browser_gets_the_page_and_who_wants_neither_a_problem(
    door: Any, told: str, refusal: Any
) -> None:
    """What Firefox sends; and what an image viewer would."""
    browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    assert door.get(told, headers={"Accept": browser}).text.startswith("<!doctype html>")
    refusal(door.get(told, headers={"Accept": "image/png"}), 406, "not-acceptable")


def test_a_missing_report_is_a_problem_for_browsers_too(door: Any, ask: Any, refusal: Any) -> None:
    job = ask("geometry", {"vectors": {"vectors": [[1.0, 2.0], [3.0, 4.0]]}}).json()
    answer = door.get(job["links"]["report"], headers={"Accept": "text/html"})
    refusal(answer, 409, "report-not-ready")


def test_a_hostile_label_reaches_the_page_as_text(door: Any, ask: Any, work: Any) -> None:
    """All the way from an upload."""
    label = '"><script>alert(1)</script>'
    groups = [label if i % 2 else "tame" for i in range(30)]
    inputs = {
        "vectors": {"vectors": RNG.normal(size=(30, 4)).tolist()},
        "labels": {"values": groups},
    }
    job = ask("label_neighbours", inputs, {"min_support": 5}).json()
    work()
    page = door.get(job["links"]["report"], headers={"Accept": "text/html"}).text
    assert "<script" not in page
    assert "&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;" in page
