"""`assay verify` as people run it: a store on disk, a report in a file, an exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from assay_client.cli import run as assay

from service.operations import Services, Upload, perform, remove_dataset, report_bytes, submit
from service.request import parse_request
from service.storage.memory import memory_services
from service.storage.objects import ObjectDatasets

ROWS = np.random.default_rng(5).normal(size=(30, 4)).astype(np.float32)


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Services:
    """Services whose datasets lie where the command looks."""
    monkeypatch.setenv("ASSAY_STORE", str(tmp_path / "store"))
    return memory_services(datasets=ObjectDatasets(tmp_path / "store"))


@pytest.fixture
def report(on: Services, npy: Callable[[Any], bytes], tmp_path: Path) -> Path:
    """A report of the second of two projects, in a file."""
    for project, rows in (("one", 2 * ROWS), ("two", ROWS)):
        upload = Upload(on, project, "application/x-npy")
        upload.feed(npy(rows))
        stored = upload.finish()[0].id
    body = {"kind": "geometry", "inputs": {"vectors": {"dataset": stored}}}
    job = submit(on, "two", parse_request(body))
    perform(on, job.id)
    file = tmp_path / "report.json"
    file.write_bytes(report_bytes(on, "two", job.id))
    return file


def change(file: Path, **results: Any) -> None:
    body = json.loads(file.read_text())
    body["results"].update(results)
    file.write_text(json.dumps(body))


def test_an_equal_report_exits_0_and_says_the_digest(
    report: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The project is found; progress is no part of the answer."""
    assert assay(["verify", str(report)]) == 0
    out, err = capfd.readouterr()
    assert out == f"equal: recomputing gives digest {json.loads(report.read_text())['digest']}\n"
    assert err.splitlines(), "a run says what it does"


def test_a_tampered_number_exits_1_and_is_shown(
    report: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where, what was reported and what it should be."""
    right = json.loads(report.read_text())["results"]["rankme"]
    change(report, rankme=3.25)
    assert assay(["verify", str(report)]) == 1
    out = capfd.readouterr().out
    assert f"/results/rankme: reported 3.25, recomputed {right}" in out
    assert "is not that of what the report says" in out
    assert assay(["verify", str(report), "--json"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert found["equal"] is False
    assert {"pointer": "/results/rankme", "reported": 3.25, "recomputed": right} in found[
        "differences"
    ]


def test_a_file_that_is_not_there_is_a_matter_of_usage(
    tmp_path: Path, on: Services, capfd: pytest.CaptureFixture[str]
) -> None:
    assert assay(["verify", str(tmp_path / "none.json")]) == 2
    assert "cannot be read" in capfd.readouterr().err
    assert assay(["verify"]) == 2


def test_no_report_or_an_old_one_exits_4(report: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body = json.loads(report.read_text())
    report.write_text(json.dumps({**body, "kind_version": 0}))
    assert assay(["verify", str(report)]) == 4
    assert "of version 0 of `geometry`" in capfd.readouterr().err
    report.write_text(json.dumps({**body, "seed": "x"}))
    assert assay(["verify", str(report)]) == 4
    assert "/seed" in capfd.readouterr().err
    report.write_text("hello")
    assert assay(["verify", str(report)]) == 4


def test_data_that_are_gone_exit_4(
    on: Services, report: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """From the store, from the project that was named, or with the whole store."""
    assert assay(["verify", str(report), "--project", "one"]) == 4
    assert "inputs/vectors" in capfd.readouterr().err
    vectors = json.loads(report.read_text())["inputs"]["vectors"]
    remove_dataset(on, "two", vectors["dataset"])
    assert assay(["verify", str(report)]) == 4
    assert vectors["sha256"] in capfd.readouterr().err


def test_a_store_that_is_not_there_exits_4(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ASSAY_STORE", str(tmp_path / "elsewhere"))
    assert assay(["verify", str(report)]) == 4
    assert "ASSAY_STORE" in capfd.readouterr().err
    assert not (tmp_path / "elsewhere").exists(), "asking makes no store"
