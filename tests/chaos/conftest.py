"""The real service in processes of its own, with checks that only these tests know."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from .stack import Stack, copy_tree, environment

LOCALLY = """
import json, os, pathlib, sys
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from workers.local import run
base, requests = pathlib.Path(sys.argv[1]), json.load(sys.stdin)
reports = [json.loads(run(request, base, lambda *told: None)) for request in requests]
print(json.dumps([report["digest"] for report in reports]))
"""

MEASURED = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MEASURED] = []


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Show what the tests have measured, passed or not."""
    if lines := config.stash[MEASURED]:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def measured(pytestconfig: pytest.Config) -> Callable[[str, object], None]:
    """Note a number for the end of the test run."""
    return lambda what, value: pytestconfig.stash[MEASURED].append(f"{what}: {value}")


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the service that knows the checks of these tests."""
    return copy_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def serve(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Stack]]:
    """Start a service on a folder of its own; it is stopped after the module."""
    with ExitStack() as stacks:

        def start(workers: int = 1, sources: Path = tree, **settings: str) -> Stack:
            stack = Stack(sources, tmp_path_factory.mktemp("home"), workers, **settings)
            stacks.callback(stack.close)
            return stack.started()

        yield start


@pytest.fixture(scope="session")
def rows() -> NDArray[np.float32]:
    """A few rows."""
    return np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)


@pytest.fixture(scope="session")
def undisturbed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """Digests of requests whose roles are files, from one process without queue or worker."""

    def run(arrays: dict[str, NDArray[Any]], requests: list[dict[str, Any]]) -> list[str]:
        home = tmp_path_factory.mktemp("alone")
        (home / "chaos").mkdir()
        for name, array in arrays.items():
            np.save(home / f"{name}.npy", array)
        done = subprocess.run(
            [sys.executable, "-c", LOCALLY, str(home)],
            input=json.dumps(requests),
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree,
            env=environment(tree, home),
            check=True,
            timeout=120,
        )
        return list(json.loads(done.stdout))

    return run
