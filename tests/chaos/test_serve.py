"""`serve` leaves nothing behind, and does not start where it must not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .processes import alive, descendants, process_parents, until, words
from .stack import Stack, copy_tree, environment

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

GONE_S = 15
USAGE = 2
UNAVAILABLE = 4


@pytest.fixture(scope="module")
def shared(serve: Callable[..., Stack]) -> Stack:
    return serve(workers=2)


@pytest.fixture
def stack(shared: Stack) -> Stack:
    """A running service; a test may stop it."""
    return shared if alive(shared.pid) else shared.started()


def of_this_home(stack: Stack) -> list[str]:
    """Processes anywhere that were started with this folder, or name it."""
    found = []
    for pid in process_parents():
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if str(stack.home).encode() in environ or str(stack.home) in words(pid):
            found.append(words(pid))
    return found


def test_sigterm_leaves_no_process(stack: Stack, rows: Any) -> None:
    """Server, API, workers and supervisor are gone, with exit code 0, and the port is free."""
    job = stack.submit("stuck", {"vectors": stack.upload(rows)})
    assert stack.ended(job, 10)["state"] == "succeeded"
    assert of_this_home(stack)

    code, seconds = stack.stop(GONE_S)

    assert code == 0
    assert seconds < GONE_S
    assert of_this_home(stack) == []


def test_sigterm_leaves_no_process_while_a_job_is_inside_a_c_call(stack: Stack, rows: Any) -> None:
    """A worker is asked twice and then gives up its job with its process."""
    stack.hold(1, 600)
    stack.submit("stuck", {"vectors": stack.upload(rows)}, seed=1)
    process = stack.inside(1)

    code, _ = stack.stop(GONE_S)

    assert code == 0
    assert not alive(process)
    assert of_this_home(stack) == []


def command(stack: Stack, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """`assay ...` in the folder of a stack."""
    return subprocess.run(
        [sys.executable, "-m", "assay_client.cli", *words],
        cwd=stack.tree,
        env=environment(stack.tree, stack.home) | settings,
        capture_output=True,
        text=True,
        timeout=50,
    )


def lasting(stack: Stack) -> list[int]:
    """Processes of a service but the one that compiles kernels and ends."""
    said = {pid: words(pid) for pid in descendants(stack.pid)}
    return sorted(pid for pid, line in said.items() if line and "workers.warm" not in line)


def test_a_second_serve_on_the_same_folder_is_refused(stack: Stack, rows: Any) -> None:
    """It says why, exits with 2, and the first goes on as if nothing had happened."""
    before = lasting(stack)

    second = command(stack, "serve", "--port", "0")

    assert second.returncode == USAGE
    assert "Another `assay serve` uses" in second.stderr
    assert "ASSAY_HOME" in second.stderr
    assert "Traceback" not in second.stderr
    assert lasting(stack) == before
    job = stack.submit("stuck", {"vectors": stack.upload(rows)})
    assert stack.ended(job, 10)["state"] == "succeeded"


def test_serving_beyond_loopback_without_keys_is_refused(tree: Path, tmp_path: Path) -> None:
    """It exits with 2 before anything starts, and says how to make a key."""
    stack = Stack(tree, tmp_path / "home")

    refused = command(stack, "serve", "--host", "0.0.0.0")

    assert refused.returncode == USAGE
    assert "assay keys create" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (stack.home / "server").exists()
    assert of_this_home(stack) == []


def test_jobs_run_whatever_the_folder_is_called(tree: Path, tmp_path: Path, rows: Any) -> None:
    """A space splits lists that Redis sends, and `#` and `%` mean something in an address."""
    stack = Stack(tree, tmp_path / "x y #1 100%")
    try:
        stack.started()
        job = stack.submit("stuck", {"vectors": stack.upload(rows)})
        assert stack.ended(job, 20)["state"] == "succeeded"
    finally:
        stack.close()


@pytest.mark.parametrize("variable", ["ASSAY_HOME", "ASSAY_STORE"])
def test_a_folder_that_cannot_be_made_is_refused_in_one_line(
    variable: str, tree: Path, tmp_path: Path
) -> None:
    """It exits with 2, names the path and the variable, and nothing has started."""
    (tmp_path / "file").write_text("")
    stack = Stack(tree, tmp_path / "home")

    refused = command(stack, "serve", "--port", "0", **{variable: str(tmp_path / "file" / "in")})

    assert refused.returncode == USAGE
    assert refused.stderr.splitlines() == [
        f"{tmp_path}/file/in cannot be used: Not a directory. Set {variable} to a folder that can be "
        "made and written."
    ]
    assert of_this_home(stack) == []


def test_it_says_when_it_is_ready_and_that_it_stops(stack: Stack) -> None:
    """In words, among which polls are no lines."""
    until(lambda: "Assay is ready (2 workers)." in stack.log.read_text(), 20, "the line")
    stack.stop(GONE_S)
    assert "Stopping; a job that runs is given 10 s" in stack.log.read_text()


def test_workers_that_never_start_end_it_in_one_line(tmp_path: Path) -> None:
    """Jobs would be accepted and never run."""
    tree = copy_tree(tmp_path / "tree")
    (tree / "workers" / "main.py").write_text("raise SystemExit('broken')\n")
    stack = Stack(tree, tmp_path / "home")

    ended = command(stack, "serve", "--port", "0")

    assert ended.returncode == UNAVAILABLE
    (line,) = [one for one in ended.stderr.splitlines() if "cannot start" in one]
    assert line.startswith(
        ("jobs-worker-1 cannot start: it has", "shards-worker-1 cannot start: it")
    )
    assert of_this_home(stack) == []
