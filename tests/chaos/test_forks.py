"""Libraries with threads of their own run in forked job processes, or end in time (P27)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .processes import children, until
from .stack import Stack, copy_tree

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

ROWS = 4000
SEARCHED_S = 10
COMPILED_S = 40
"""The first job of a fresh folder compiles its kernels."""
DEADLINE_S = 4
SWEPT_S = 4
WARM_UP = """
import faiss
import numpy as np

_rows = np.random.default_rng(0).standard_normal((4000, 64)).astype(np.float32)
faiss.omp_set_num_threads(2)
_index = faiss.IndexFlatL2(64)
_index.add(_rows)
_index.search(_rows, 10)
"""


def warmed_up(folder: Path) -> Path:
    """Sources whose worker has searched with faiss before it forks."""
    sources = copy_tree(folder / "tree")
    with (sources / "workers" / "main.py").open("r+") as file:
        text = file.read()
        start = text.index("\nclass IsolatedWorker")
        file.seek(0)
        file.write(text[:start] + WARM_UP + text[start:])
    return sources


@pytest.fixture(scope="module")
def many_rows() -> Any:
    """Enough rows that faiss shares a search among threads."""
    return np.random.default_rng(1).standard_normal((ROWS, 64)).astype(np.float32)


@pytest.fixture(scope="module")
def stack(serve: Callable[..., Stack]) -> Stack:
    return serve()


@pytest.fixture(scope="module")
def dataset(stack: Stack, many_rows: Any) -> str:
    return stack.upload(many_rows)


def test_the_same_search_runs_twice_on_one_worker(stack: Stack, dataset: str) -> None:
    """A worker imports faiss and never searches, so every fork of it can."""
    workers = stack.worker_processes()

    for seed in (1, 2):
        job = stack.ended(stack.submit("knn", {"vectors": dataset}, seed), SEARCHED_S)
        assert job["state"] == "succeeded"
        assert stack.report(job["id"])["results"]["first"] == ROWS

    assert stack.worker_processes() == workers


def test_compiled_permutations_run_twice_on_one_worker(stack: Stack, dataset: str) -> None:
    """A worker imports numba and runs no kernel, so every fork of it can, after a search too."""
    workers = stack.worker_processes()
    groups = {"values": [row % 40 for row in range(ROWS)]}
    inputs = {"models": [{"dataset": dataset}], "groups": groups}

    for seed in (1, 2):
        request = {"kind": "group_structure", "inputs": inputs, "seed": seed}
        answer = stack.ask("POST", "/v1/jobs", json=request)
        assert answer.status_code == 202, answer.text
        assert stack.ended(answer.json()["id"], COMPILED_S)["state"] == "succeeded"

    assert stack.worker_processes() == workers


def test_our_own_search_runs_whatever_the_worker_has_searched(
    serve: Callable[..., Stack], many_rows: Any, tmp_path: Path
) -> None:
    """It starts no thread pool of faiss's, so a pool the parent has started is not waited for."""
    warmed = serve(sources=warmed_up(tmp_path), ASSAY_JOB_DEADLINE_S=str(COMPILED_S))
    dataset = warmed.upload(many_rows)
    workers = warmed.worker_processes()

    for seed in (1, 2):
        request = {
            "kind": "neighbour_stability",
            "inputs": {"gallery": {"dataset": dataset}},
            "seed": seed,
        }
        answer = warmed.ask("POST", "/v1/jobs", json=request)
        assert answer.status_code == 202, answer.text
        assert warmed.ended(answer.json()["id"], COMPILED_S)["state"] == "succeeded"

    assert warmed.worker_processes() == workers


def test_a_search_that_hangs_because_its_worker_has_searched_is_never_left_running(
    serve: Callable[..., Stack],
    many_rows: Any,
    tmp_path: Path,
    measured: Callable[[str, object], None],
) -> None:
    """It ends: with a report where the libraries survive a fork, else timed out and killed."""
    warmed = serve(sources=warmed_up(tmp_path), ASSAY_JOB_DEADLINE_S=str(DEADLINE_S))
    dataset = warmed.upload(many_rows)
    workers = warmed.worker_processes()

    job = warmed.ended(warmed.submit("knn", {"vectors": dataset}), DEADLINE_S + SWEPT_S)
    code = job["problem"] and job["problem"]["code"]
    measured("search after a search in the parent", code or job["state"])
    assert (job["state"], code) in {("succeeded", None), ("failed", "timed-out")}

    until(lambda: not children(workers[0]), 5, "the job process gone")
    after = warmed.submit("stuck", {"vectors": dataset}, seed=1)
    assert warmed.ended(after, SEARCHED_S)["state"] == "succeeded"
    assert warmed.worker_processes() == workers
