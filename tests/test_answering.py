"""One run of a check for a job, as those hear it who listen."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.dataset_record import DatasetRecord
from service.events import START, Kind
from service.job import Job, State
from service.operations import Services, report_bytes


@pytest.mark.usefixtures("quiet")
def test_warnings_are_told_as_they_come_and_stand_in_the_report(
    services: Services, store: Callable[..., DatasetRecord], ended: Callable[..., Job]
) -> None:
    """Of rows that were dropped before, then of what the check came upon, each once and in order."""
    rows = np.random.default_rng(0).normal(size=(40, 8))
    a, b = rows.copy(), rows + 0.1 * np.random.default_rng(1).normal(size=rows.shape)
    a[3] = np.nan
    job = ended(
        {
            "kind": "cosine_floor",
            "inputs": {"a": {"dataset": store(a).id}, "b": {"dataset": store(b).id}},
            "params": {"shared_mean": True, "on_bad_rows": "drop"},
        }
    )
    assert job.state is State.succeeded, job.problem

    told = services.jobs.events({job.id: START})[job.id]

    warned = [json.loads(event.data) for event in told if event.kind is Kind.warning]
    report: dict[str, Any] = json.loads(report_bytes(services, "default", job.id))
    assert warned == report["warnings"]
    assert len({one["code"] for one in warned}) >= 2
    kinds = [event.kind for event in told]
    first, last = kinds.index(Kind.warning), len(kinds) - 1
    assert [kinds[0], kinds[1], kinds[last]] == [Kind.state] * 3
    assert 1 < first < last
    states = [json.loads(event.data)["state"] for event in told if event.kind is Kind.state]
    assert states == ["queued", "running", "succeeded"]


@pytest.mark.usefixtures("quiet")
def test_a_job_answered_from_a_stored_report_tells_its_end_alone(
    services: Services, store: Callable[..., DatasetRecord], ended: Callable[..., Job]
) -> None:
    """Nobody works on it."""
    rows = store(np.random.default_rng(0).normal(size=(40, 8)))
    request = {"kind": "geometry", "inputs": {"vectors": {"dataset": rows.id}}}
    ended(request)
    again = ended(request)
    assert again.cached
    (told,) = services.jobs.events({again.id: START})[again.id]
    assert json.loads(told.data)["state"] == "succeeded"
