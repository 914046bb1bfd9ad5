"""Errors on the wire: one shape, one status per code, and nothing that should not be told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from api.problems import STATUS, answers
from service import errors, logs
from service.errors import AssayError
from service.operations import Services

CONTRACT = """
    invalid-request unknown-dataset unknown-job unknown-check report-not-ready non-finite-rows
    zero-rows shape-mismatch dimension-mismatch ids-mismatch too-few-rows too-few-groups
    missing-labels duplicate-ids unsupported-format malformed-payload payload-too-large
    unauthorised forbidden queue-full cancelled timed-out out-of-memory worker-lost internal
"""


def subclasses(of: type[AssayError]) -> Iterator[type[AssayError]]:
    """Every error the service declares."""
    for found in of.__subclasses__():
        yield found
        yield from subclasses(found)


def test_every_code_of_the_contract_that_can_happen_has_a_status() -> None:
    """Those of sources, baselines and idempotency keys come with them."""
    assert STATUS.keys() >= set(CONTRACT.split())
    declared = {
        error.code for error in subclasses(AssayError) if error.__module__ == "service.errors"
    }
    assert declared <= STATUS.keys()
    assert STATUS.keys() - declared <= {"unknown-path", "method-not-allowed", "internal"}


def test_statuses_are_errors_and_say_whose() -> None:
    """4xx for the caller, 5xx for the service; unknown things are 404, refusals of content 422."""
    assert all(400 <= status < 600 for status in STATUS.values())
    assert {status for code, status in STATUS.items() if code.startswith("unknown-")} == {404}
    expected = {
        "payload-too-large": 413, "body-stalled": 408, "unsupported-format": 415,
        "report-not-ready": 409,
        "unauthorised": 401, "forbidden": 403, "queue-full": 429, "method-not-allowed": 405,
        "internal": 500, "unavailable": 503, "invalid-request": 422, "malformed-payload": 422,
    }  # fmt: skip
    assert {code: STATUS[code] for code in expected} == expected


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    """Names and codes drawn there, against the classes."""
    drawn = dict(re.findall(r"[├└]── (\w+) +([a-z-]+)", errors.__doc__ or ""))
    declared = {
        error.__name__: error.code
        for error in subclasses(AssayError)
        if error.__module__ == "service.errors"
    }
    assert drawn == declared


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nope"),
        ("GET", "/v1"),
        ("POST", "/v1/job"),
        ("GET", "/v1/jobs/a/b"),
        ("GET", "/%00"),
    ],
)
def test_an_unknown_path_is_a_problem(method: str, path: str, door: Any, refusal: Any) -> None:
    """404 `unknown-path`."""
    refusal(door.send(method, path), 404, "unknown-path")


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/v1/jobs"), ("DELETE", "/v1/checks"), ("POST", "/healthz")]
)
def test_another_method_is_a_problem_that_names_the_right_ones(
    method: str, path: str, door: Any, refusal: Any
) -> None:
    """405 with Allow."""
    answer = door.send(method, path)
    refusal(answer, 405, "method-not-allowed")
    assert answer.headers["allow"]


@pytest.mark.parametrize(
    ("query", "says"),
    [("limit=x", "takes a whole number"), ("limit=0", "takes 1 or more"), ("state=x", "takes '")],
)
def test_a_wrong_query_is_a_problem_that_names_it(
    query: str, says: str, door: Any, refusal: Any
) -> None:
    """The framework's own 422 has the same shape, and our words."""
    (fault,) = refusal(door.get(f"/v1/jobs?{query}"), 422, "invalid-request")["errors"]
    assert fault["pointer"] == f"/query/{query.partition('=')[0]}"
    assert fault["message"].startswith(says)


def test_what_breaks_is_a_problem_without_the_reason(
    door: Any, services: Services, monkeypatch: pytest.MonkeyPatch, refusal: Any
) -> None:
    """500 `internal`; the message of the exception stays here."""

    def broken(*_: Any) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(services.jobs, "get", broken)
    answer = door.get("/v1/jobs/job_" + "0" * 24)
    refusal(answer, 500, "internal")
    assert "hunter2" not in answer.text


@pytest.mark.parametrize("error", sorted(subclasses(AssayError), key=lambda one: one.__name__))
def test_every_error_has_its_wire_form(
    error: type[AssayError], door: Any, services: Services, monkeypatch: pytest.MonkeyPatch,
    refusal: Any,
) -> None:  # fmt: skip
    """Raised anywhere below a route, each comes out in its own code and status, with its faults."""
    if error.__module__ != "service.errors":
        return
    fault = errors.Fault(pointer="/inputs/a", message="look here", count=3, rows=["x"])

    def refuse(*_: Any) -> None:
        raise error("What is wrong.", [fault])

    monkeypatch.setattr(services.jobs, "get", refuse)
    found = refusal(door.get("/v1/jobs/job_x"), STATUS[error.code], error.code)
    assert found["title"] == error.title
    assert found["detail"] == "What is wrong."
    assert found["errors"] == [
        {"pointer": "/inputs/a", "message": "look here", "count": 3, "rows": ["x"]}
    ]


def test_documented_answers_are_those_of_the_table() -> None:
    """Codes of one status share an entry that names them all."""
    found = answers("zero-rows", "too-few-rows", "unknown-job")
    assert found.keys() == {422, 404}
    assert found[422]["description"] == "`zero-rows`, `too-few-rows`"


def test_logs_of_a_service_are_json_lines_on_standard_error(
    door: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line a request that changes or refuses something, and nothing on standard output."""
    logs.configure()
    door.get("/v1/jobs?tag=a:secret")
    door.get("/v1/jobs/job_secret")
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in err.splitlines()]
    assert out == ""
    assert [(line["event"], line["route"], line["status"]) for line in lines] == [
        ("request", "/v1/jobs/{job_id}", 404),
    ]
    assert "secret" not in err
