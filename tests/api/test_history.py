"""`GET /v1/reports`: JSON and CSV of measures over time, a page at a time."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

ROWS = np.random.default_rng(9).normal(size=(30, 4)).tolist()
CSV = {"Accept": "text/csv"}
FIELDS = [
    "job", "created_at", "kind", "kind_version", "tags", "digest", "cached", "measure", "unit",
    "estimate", "low", "high", "level", "undefined",
]  # fmt: skip


@pytest.fixture
def jobs(ask: Callable[..., Any], work: Callable[[], None]) -> list[str]:
    """Ids of finished jobs, oldest first: five of geometry and one of cosine_floor."""
    vectors = {"vectors": ROWS}
    made = [
        ask("geometry", {"vectors": vectors}, seed=seed, tags={"run": f'"a", {seed}'})
        for seed in range(5)
    ]
    made.append(ask("cosine_floor", {"a": vectors, "b": vectors}, {"shared_mean": True}))
    work()
    return [one.json()["id"] for one in made]


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_json_and_csv_hold_the_same_numbers(door: Any, jobs: list[str], strict: Any) -> None:
    """Every digit; each with a tag of its own."""
    answer = door.get("/v1/reports")
    found = strict(answer.content)
    assert [one["job"] for one in found["items"]] == jobs[::-1]
    table = door.get("/v1/reports", headers=CSV)
    assert table.headers["content-type"] == "text/csv; charset=utf-8"
    assert table.headers["vary"] == answer.headers["vary"] == "Accept"
    assert table.headers["etag"] != answer.headers["etag"]
    lines = rows(table.text)
    assert list(lines[0]) == FIELDS
    expected = [
        (point["job"], one["measure"], one["estimate"], one["interval"])
        for point in found["items"]
        for one in point["measures"]
    ]
    assert len(lines) == len(expected) > 50
    for line, (job, measure, estimate, interval) in zip(lines, expected, strict=True):
        assert (line["job"], line["measure"]) == (job, measure)
        assert (float(line["estimate"]) if line["estimate"] else None) == estimate
        assert bool(line["undefined"]) == (estimate is None)
        assert bool(line["low"]) == (interval is not None)
        if interval:
            ends = [float(line[key]) for key in ("low", "high", "level")]
            assert ends == [interval[key] for key in ("low", "high", "level")]
    assert lines[-1]["tags"] == r'{"run": "\"a\", 0"}'


def test_a_report_that_was_asked_for_again_is_marked_and_can_be_left_out(
    door: Any, jobs: list[str], ask: Any, work: Any
) -> None:
    """Four repeats of a gate's check are four rows that say so, or none; pages keep the choice."""
    for run in range(4):
        ask("geometry", {"vectors": {"vectors": ROWS}}, seed=0, tags={"run": f"again {run}"})
    work()
    every = rows(door.get("/v1/reports", params={"measure": "rankme"}, headers=CSV).text)
    assert [line["cached"] for line in every] == ["true"] * 4 + ["false"] * 5
    assert len({line["digest"] for line in every}) == 5
    once = {"measure": "rankme", "computed": True}
    found = rows(door.get("/v1/reports", params=once, headers=CSV).text)
    assert [line["job"] for line in found] == jobs[4::-1]
    first = door.get("/v1/reports", params={**once, "limit": 3})
    rest = door.get(first.links["next"]["url"])
    listed = [*first.json()["items"], *rest.json()["items"]]
    assert [one["job"] for one in listed] == jobs[4::-1]
    assert not any(one["cached"] for one in listed)


def test_nulls_say_why(door: Any, jobs: list[str]) -> None:
    """In the same object, as everywhere."""
    for point in door.get("/v1/reports").json()["items"]:
        for one in point["measures"]:
            nulls = {key for key, value in one.items() if value is None}
            assert nulls == set(one.get("undefined", {}))


def test_pages_follow_their_link(door: Any, jobs: list[str]) -> None:
    """The `Link` header leads through all of them with the same filters, in either form."""
    address = "/v1/reports?kind=geometry&measure=rankme&measure=anisotropy&limit=2"
    for headers in (CSV, {}):
        found, place = [], address
        while place:
            answer = door.get(place, headers=headers)
            if headers:
                found += [(line["job"], line["measure"]) for line in rows(answer.text)]
            else:
                items = answer.json()["items"]
                found += [
                    (one["job"], each["measure"]) for one in items for each in one["measures"]
                ]
            link = answer.headers.get("link", "")
            assert link == "" or link.endswith('>; rel="next"')
            place = re.sub(r"^<|>;.*$", "", link)
        wanted = [(job, name) for job in jobs[4::-1] for name in ("anisotropy", "rankme")]
        assert sorted(found) == sorted(wanted)
        assert [job for job, _ in found] == [job for job, _ in wanted]


def test_an_unchanged_list_is_not_sent_again(door: Any, jobs: list[str]) -> None:
    tag = door.get("/v1/reports", headers=CSV).headers["etag"]
    assert door.get("/v1/reports", headers={**CSV, "If-None-Match": tag}).status_code == 304


def test_wrong_filters_are_refused_by_name(door: Any, jobs: list[str], refusal: Any) -> None:
    (fault,) = refusal(
        door.get("/v1/reports", params={"measure": "rankmee"}), 422, "invalid-request"
    )["errors"]
    assert (fault["pointer"], "did you mean `rankme`?" in fault["message"]) == (
        "/query/measure",
        True,
    )
    refusal(door.get("/v1/reports", params={"kind": "geometri"}), 404, "unknown-check")
    refusal(door.get("/v1/reports", params={"tag": "run"}), 422, "invalid-request")
    refusal(door.get("/v1/reports", params={"cursor": "x"}), 422, "invalid-request")
    refusal(door.get("/v1/reports", params={"limit": 0}), 422, "invalid-request")
    refusal(door.get("/v1/reports", headers={"Accept": "text/html"}), 406, "not-acceptable")


def test_reports_of_other_projects_are_not_listed(door: Any, store: Any, ended: Any) -> None:
    ended({"kind": "geometry", "inputs": {"vectors": {"vectors": ROWS}}}, project="other")
    assert door.get("/v1/reports").json() == {"items": [], "next_cursor": None}
    assert door.get("/v1/reports", headers=CSV).text == ",".join(FIELDS) + "\r\n"
