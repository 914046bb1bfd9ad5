"""
Reports of every released version load for ever.

`tests/data/reports/<version>/` holds real ones, made with `workers.local.run` of that version on
`examples/scifact_halves/minilm`. A file is never changed and never removed; a new version adds a
folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.job import Job, State, now
from service.operations import report_of
from service.report import REPORT_VERSION, REPORTS, load_report
from service.storage.memory import memory_services

REPORTS_FOLDER = Path(__file__).parent.parent / "data" / "reports"
FILES = sorted(REPORTS_FOLDER.glob("*/*.json"))


def included(old: Any, new: Any, path: str = "") -> None:
    """Whatever the old document says, the new one says too; it may say more."""
    if isinstance(old, dict):
        assert old.keys() <= new.keys(), path
        for key, value in old.items():
            included(value, new[key], f"{path}.{key}")
    elif isinstance(old, list):
        assert len(old) == len(new), path
        for i, (one, other) in enumerate(zip(old, new, strict=True)):
            included(one, other, f"{path}.{i}")
    else:
        assert old == new, path


def test_there_are_reports_of_the_present_version() -> None:
    """Of the first checks at least, with and without nulls."""
    found = {file.stem for file in FILES if file.parent.name == REPORT_VERSION}
    assert found >= {"geometry", "geometry_equal_rows", "cosine_floor", "cosine_floor_aligned"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_an_old_report_loads_and_keeps_what_it_says(file: Path) -> None:
    """As its own type; every field and number of the file is still there."""
    stored = json.loads(file.read_text())
    assert stored["report_version"] == file.parent.name
    loaded = load_report(file.read_bytes())
    assert type(loaded) is REPORTS[stored["kind"]]
    included(stored, json.loads(loaded.model_dump_json()))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_an_old_report_is_served_and_judged(file: Path) -> None:
    """A job that is answered by it: the same bytes, and a typed report for a gate."""
    stored = json.loads(file.read_text())
    services = memory_services()
    services.reports.put("p", stored["request_digest"], file.read_bytes())
    job = Job(
        id="job_1", project="p", kind=stored["kind"], kind_version=stored["kind_version"],
        state=State.succeeded, inputs={}, params={}, seed=0, cache=True, tags={},
        request_digest=stored["request_digest"], deadline_s=1, memory_bytes=1, created_at=now(),
    )  # fmt: skip
    services.jobs.create(job)
    report = report_of(services, job)
    assert not isinstance(report, str)
    assert report.readings == stored["readings"]
