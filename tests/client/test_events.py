"""What happens to a job, heard by both clients through whatever cuts them off."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from assay_client import Assay, AssayError, AsyncAssay

from .conftest import Answer, FakeServer, job, problem

ROUTE = "GET /v1/jobs/job_1/events"
STREAM = {"Content-Type": "text/event-stream; charset=utf-8"}


def hear_sync(url: str, most: int | None, given: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    with Assay(url, "secret") as assay:
        for event in assay.events(**{"job": "job_1", **given}):
            found.append(event)
            if len(found) == most:
                break
    return found


def hear_async(url: str, most: int | None, given: dict[str, Any]) -> list[Any]:
    async def run() -> list[Any]:
        found: list[Any] = []
        async with AsyncAssay(url, "secret") as assay:
            async for event in assay.events(**{"job": "job_1", **given}):
                found.append(event)
                if len(found) == most:
                    break
        return found

    return asyncio.run(run())


@pytest.fixture(params=[hear_sync, hear_async], ids=["Assay", "AsyncAssay"])
def hear(request: pytest.FixtureRequest, server: FakeServer) -> Any:
    """All events of a job, or the first of them."""
    return lambda most=None, **given: request.param(server.url, most, given)


def told(event_id: str, kind: str, **data: Any) -> bytes:
    return f"id: {event_id}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def as_dicts(*events: tuple[str, str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"id": one, "event": kind, "data": data} for one, kind, data in events]


QUEUED = told("1-0", "state", state="queued")
RUNNING = told("2-0", "state", state="running")
DONE = told("3-1", "done", state="succeeded")
ALL = as_dicts(
    ("1-0", "state", {"state": "queued"}),
    ("2-0", "state", {"state": "running"}),
    ("3-1", "done", {"state": "succeeded"}),
)


def test_a_stream_is_heard_to_its_end_and_asked_for_once(hear: Any, server: FakeServer) -> None:
    """Comments are no events."""
    server.on(ROUTE, Answer(200, b": ping\n\n" + QUEUED + b": ping\n\n" + RUNNING + DONE, STREAM))
    assert hear() == ALL
    (asked,) = server.calls(ROUTE)
    assert "last-event-id" not in asked.headers
    assert asked.headers["accept"] == "text/event-stream"
    assert asked.headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize("rest", [b"", RUNNING[:-1], b"id: 2-0\nevent: sta", b": ping\n\n"])
def test_a_stream_that_was_cut_off_is_gone_on_with(
    hear: Any, server: FakeServer, rest: bytes
) -> None:
    """After the last whole event, wherever it was cut."""
    server.on(
        ROUTE,
        Answer(200, QUEUED + rest, STREAM),
        problem(503, "unavailable", "Ask again."),
        Answer(200, b"", STREAM),
        Answer(200, RUNNING + DONE, STREAM),
    )
    assert hear() == ALL
    assert [one.headers.get("last-event-id") for one in server.calls(ROUTE)] == [
        None, "1-0", "1-0", "1-0",
    ]  # fmt: skip


def test_who_knows_the_end_hears_nothing(hear: Any, server: FakeServer) -> None:
    """204: there is nothing to come."""
    server.on(ROUTE, Answer(204, b""))
    assert hear(after="3-1") == []
    (asked,) = server.calls(ROUTE)
    assert asked.headers["last-event-id"] == "3-1"


def test_a_job_may_be_named_by_its_record_and_left_early(hear: Any, server: FakeServer) -> None:
    """Who has heard enough closes the stream and may ask for more later."""
    server.on(ROUTE, Answer(200, QUEUED + RUNNING + DONE, STREAM))
    assert hear(1, job=job()) == ALL[:1]


def test_a_problem_is_raised_as_such(hear: Any, server: FakeServer) -> None:
    server.on(ROUTE, problem(404, "unknown-job", "There is no job `job_1`."))
    with pytest.raises(AssayError, match="unknown-job") as raised:
        hear()
    assert raised.value.status == 404


def test_an_answer_that_is_no_stream_is_none_of_an_assay_server(
    hear: Any, server: FakeServer
) -> None:
    """The page of a proxy, say."""
    server.on(ROUTE, Answer(200, b"<html>Hello", {"Content-Type": "text/html"}))
    with pytest.raises(AssayError, match="unexpected-answer") as raised:
        hear()
    assert "<html>Hello" in raised.value.detail
