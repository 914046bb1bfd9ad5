"""The examples for pipelines and the skill, run as they are written against a real socket."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
import yaml

from api.main import create_app
from service.gate import read_policy
from service.operations import perform
from service.request import BY_KIND
from service.storage.memory import MemoryQueue, memory_services

ROOT = Path(__file__).parent.parent
CI = ROOT / "examples/ci"
HALVES = ROOT / "examples/scifact_halves"
SKILL = ROOT / "skills/embedding-assay/SKILL.md"
COMMANDS = str(Path(sys.executable).parent)
"""Where `assay` and `pytest` are installed."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server in a thread, with a worker beside it."""
    queue = MemoryQueue()
    services = memory_services(queue=queue)
    config = uvicorn.Config(create_app(services), port=0, log_level="error", ws="none")
    server = uvicorn.Server(config)
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.01):
            while queue.waiting:
                perform(services, queue.waiting.pop(0))

    threads = [threading.Thread(target=server.run), threading.Thread(target=work)]
    for thread in threads:
        thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    stop.set()
    for thread in threads:
        thread.join()


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder as a pipeline has it: the example files and vectors to be released."""
    for name in ("policy.yaml", "gate.sh", "test_embeddings.py"):
        (tmp_path / name).write_bytes((CI / name).read_bytes())
    for side in "AB":
        (tmp_path / f"{side}.npy").write_bytes((HALVES / "e5small_q4" / f"{side}.npy").read_bytes())
    return tmp_path


@pytest.fixture
def shell(address: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a line as a step of a pipeline would."""

    def run(line: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ASSAY_")}
        path = os.pathsep.join([COMMANDS, os.environ["PATH"]])
        return subprocess.run(
            ["sh", "-c", line], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
            env={**kept, "PATH": path, "ASSAY_SERVER": address, **env},
        )  # fmt: skip

    return run


def shuffle(folder: Path) -> None:
    """Give every row another partner."""
    rows = np.load(folder / "B.npy")
    np.save(folder / "B.npy", np.roll(rows, 1, axis=0))


def few(folder: Path) -> None:
    """Leave so few rows that the shares cannot be sure."""
    for side in "AB":
        np.save(folder / f"{side}.npy", np.load(folder / f"{side}.npy")[:12])


def test_the_policy_can_be_read() -> None:
    read_policy(yaml.safe_load((CI / "policy.yaml").read_text()))


def test_the_workflow_is_one_and_its_step_judges(release: Path, shell: Any) -> None:
    """Its shape; and its `assay` line, which passes on good vectors and fails on shuffled ones."""
    workflow = yaml.safe_load((CI / "github-actions.yml").read_text())
    assert {"name", "permissions", "jobs"} <= workflow.keys()
    assert workflow[True] == ["pull_request"], "YAML 1.1 reads `on` as true"
    (job,) = workflow["jobs"].values()
    assert job["runs-on"]
    assert job["env"].keys() == {"ASSAY_SERVER", "ASSAY_API_KEY"}
    for step in job["steps"]:
        assert ("uses" in step) != ("run" in step)
        assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step.get("uses", "a/b@v1"))
    install, gate = [step["run"] for step in job["steps"] if "run" in step]
    found = re.fullmatch(
        r'pip install "git\+\$\{\{ vars\.ASSAY_GIT \}\}#subdirectory=(\w+)"', install
    )
    assert found is not None, "a repository of users has no folder of ours"
    assert (ROOT / found[1] / "pyproject.toml").is_file()

    summary = release / "summary.md"
    assert shell(gate, release, GITHUB_STEP_SUMMARY=str(summary)).returncode == 0
    assert "pass" in summary.read_text()
    shuffle(release)
    assert shell(gate, release, GITHUB_STEP_SUMMARY=str(summary)).returncode == 1
    assert "fail" in summary.read_text()


STEP = "sh gate.sh policy.yaml a=A.npy b=B.npy"


def test_the_shell_step_ends_by_the_verdict(release: Path, shell: Any) -> None:
    """Pass, inconclusive (which may be let through), fail, and no server: each with its sentence."""
    assert shell("sh -n gate.sh", release).returncode == 0
    passed = shell(STEP, release)
    assert (passed.returncode, "verdict  pass" in passed.stdout) == (0, True), passed.stderr
    away = shell(STEP, release, ASSAY_SERVER="http://127.0.0.1:9")
    assert (away.returncode, "There is no verdict" in away.stderr) == (4, True)
    missing = shell("sh gate.sh policy.yaml a=gone.npy b=B.npy", release)
    assert missing.returncode == 2

    few(release)
    unsure = shell(STEP, release)
    assert (unsure.returncode, "cannot decide" in unsure.stderr) == (3, True), unsure.stdout
    assert shell(STEP, release, ALLOW_INCONCLUSIVE="1").returncode == 0

    shuffle(release)
    failed = shell(STEP, release)
    assert (failed.returncode, "do not release" in failed.stderr) == (1, True)


def test_the_test_suite_passes_and_fails(release: Path, shell: Any) -> None:
    """Under pytest, with the readings in the failure."""
    line = "pytest -q -p no:cacheprovider test_embeddings.py"
    passed = shell(line, release)
    assert (passed.returncode, "2 passed" in passed.stdout) == (0, True), passed.stdout
    shuffle(release)
    failed = shell(line, release)
    assert (failed.returncode, "2 failed" in failed.stdout) == (1, True)
    assert "Centred: matched pairs score" in failed.stdout


def skill() -> tuple[dict[str, Any], str]:
    _, front, body = SKILL.read_text().split("---\n", 2)
    return yaml.safe_load(front), body


def test_the_skill_has_the_open_form() -> None:
    """agentskills.io: the name is that of the folder, the description says what and when."""
    front, body = skill()
    assert front.keys() <= {"name", "description", "license", "compatibility", "metadata"}
    assert front["name"] == SKILL.parent.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", front["name"])
    assert 0 < len(front["description"]) <= 1024
    assert len(front["compatibility"]) <= 500
    assert "Use before" in front["description"]
    assert len(body.splitlines()) < 120


COMMAND = re.compile(r"^\$ (assay .+)$", re.MULTILINE)


@pytest.mark.parametrize("line", COMMAND.findall(SKILL.read_text()))
def test_every_command_of_the_skill_runs(line: str, shell: Any, tmp_path: Path) -> None:
    """On sample data, with nothing installed but this."""
    folder = HALVES / "e5small_q4"
    pairs = tmp_path / "pairs.csv"
    rows = (HALVES / "rows.csv").read_text().splitlines()
    pairs.write_text("\n".join([rows[0], *(row for row in rows if ",pair," in row)]) + "\n")
    line = line.replace("pairs.csv", shlex.quote(str(pairs)))
    done = shell(line, folder, ASSAY_SERVER="http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_what_the_skill_names_is_there(shell: Any) -> None:
    """Checks, options and the numbers of its example."""
    _, body = skill()
    named = set(re.findall(r"\| `(\w+) --", body)) | set(re.findall(r"check (\w+) --", body))
    assert named == BY_KIND.keys(), "a question for each check"
    shown = shell(
        "assay check cosine_floor --a A.npy --b B.npy --local", HALVES / "e5small_q4"
    ).stdout
    for number in (
        "0.9161 [0.9125, 0.9198]",
        "0.8220",
        "0.0941 [0.0896, 0.0986]",
        "98 of 100",
    ):
        assert number in shown
    for word in ("floor_all", "gap_all", "first_mapped", "partner_ranked_first", "chance"):
        assert word in shown
