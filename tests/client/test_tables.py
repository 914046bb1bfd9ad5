"""Lists as people, and programs that are piped to, read them."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from assay_client.render import show_report
from assay_client.tables import show_baselines, show_checks, show_datasets, show_job, show_jobs
from assay_client.verdicts import show_gates
from rich.console import Console

from .conftest import job, report

JOB, DATASET, GATE = (f"{kind}_{'0123456789abcdef01234567'}" for kind in ("job", "ds", "gate"))
TIME = "2026-01-01T00:00:00Z"
STAGE = {"stage": "neighbours of every condition", "done": 1, "total": 5, "eta_s": 1.0}
LISTS: dict[str, Callable[[Console], None]] = {
    "jobs": lambda console: show_jobs(
        [job("running", id=JOB, kind="neighbour_stability", progress=STAGE)], console
    ),
    "job": lambda console: show_job(
        job(inputs={"models": [{"name": "old", "dataset": DATASET}]}), console
    ),
    "datasets": lambda console: show_datasets(
        [{"id": DATASET, "name": "a name of some words " * 2, "n": 10**6, "d": 768,
          "bytes": 3 * 10**9, "created_at": TIME}],
        console,
    ),
    "baselines": lambda console: show_baselines(
        [{"name": "search-prod", "version": 3, "dataset": DATASET, "set_at": TIME, "gate": GATE}],
        console,
        "none",
    ),
    "gates": lambda console: show_gates(
        [{"id": GATE, "policy": "index-precision of all collections", "state": "running",
          "rules": [], "created_at": TIME}],
        console,
    ),
    "report": lambda console: show_report(
        {**report(), "inputs": {"models": [
            {"name": "e5small_q4", "queries": {"dataset": DATASET, "n": 200, "d": 384,
             "dtype": "float16", "spec": {"model": "intfloat/e5-small"}}}]}},
        console,
    ),
}  # fmt: skip


def shown(what: Callable[[Console], None], width: int, *, terminal: bool) -> str:
    file = io.StringIO()
    what(Console(file=file, width=width, force_terminal=terminal, color_system=None))
    return file.getvalue()


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("width", [30, 60, 80])
@pytest.mark.parametrize("terminal", [True, False])
def test_ids_are_never_cut(name: str, width: int, terminal: bool) -> None:
    """Whoever reads one pastes it into the next command."""
    text = shown(LISTS[name], width, terminal=terminal)
    whole = [one for one in (JOB, DATASET, GATE) if one in shown(LISTS[name], 400, terminal=False)]
    assert whole
    for one in whole:
        assert one in text


@pytest.mark.parametrize("name", ["jobs", "datasets", "baselines", "gates"])
def test_to_a_pipe_each_row_is_a_line(name: str) -> None:
    """However narrow the terminal was that is not there."""
    lines = shown(LISTS[name], 30, terminal=False).splitlines()
    assert len(lines) == 2
    assert [bool(re.search("_[0-9a-f]{24}", line)) for line in lines] == [False, True]


@pytest.mark.parametrize("name", ["job", "jobs", "datasets", "baselines", "gates"])
def test_to_a_pipe_no_line_is_padded(name: str) -> None:
    """A dataset with one long value was as wide in each of its lines."""
    lines = shown(LISTS[name], 30, terminal=False).splitlines()
    assert [line for line in lines if line != line.rstrip()] == []


def test_models_of_a_job_are_shown_as_json() -> None:
    assert f'input models  [{{"name": "old", "dataset": "{DATASET}"}}]' in shown(
        LISTS["job"], 80, terminal=False
    )


@pytest.mark.parametrize("name", ["jobs", "datasets", "gates"])
def test_on_a_terminal_the_rest_folds_into_its_width(name: str) -> None:
    lines = shown(LISTS[name], 80, terminal=True).splitlines()
    assert max(map(len, lines)) <= 80


def test_a_pipe_has_the_whole_catalogue(catalogue: Any) -> None:
    lines = shown(lambda console: show_checks(catalogue, console), 30, terminal=False).splitlines()
    assert len(lines) == 1 + len(catalogue)


@pytest.fixture
def catalogue() -> list[dict[str, Any]]:
    roles = [{"name": "vectors", "required": True}, {"name": "groups", "required": False}]
    return [{"kind": "geometry", "title": "A long title of many words", "roles": roles}] * 3
