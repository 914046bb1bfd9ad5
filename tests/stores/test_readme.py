"""The command the README prints for a table of PostgreSQL, as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.chaos.stack import ROOT, Stack
from tests.stores import servers
from tests.stores.loading import SECRET, Pgvector, Table

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def stack(tmp_path: Path, table: Table) -> Iterator[Stack]:
    """A service whose operator has named a database with the table of the README."""
    with servers.postgres(SECRET) as server:
        Pgvector(server.port).load("docs", table)
        named = re.search(r'\{"prod": \{"url": "postgresql://(\w+)@db/(\w+)"', README)
        assert named is not None
        owned = {
            "url": f"postgresql://owner@127.0.0.1:{server.port}/postgres",
            "password": SECRET,
            "private": True,
        }
        file = tmp_path / "connections.json"
        file.write_text(json.dumps({"prod": owned}))
        running = Stack(ROOT, tmp_path / "home", ASSAY_CONNECTIONS_FILE=str(file))
        try:
            yield running.started()
        finally:
            running.close()


def command(word: str) -> str:
    """The command of a block of the README that has this word in it."""
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    (found,) = [block for block in blocks if word in block]
    return found.removeprefix("$ ").rstrip()


def test_the_command_of_the_readme_reads_a_table_and_says_what_an_index_would_lose(
    stack: Stack, rows: Any
) -> None:
    """By the shell, against a real server; the report is that of the same rows as a file."""
    address = f"http://127.0.0.1:{stack.port}"
    env = {
        **os.environ,
        "ASSAY_SERVER": address,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
    }
    shown = subprocess.run(
        ["/bin/sh", "-c", command("pgvector:connection")], env=env, capture_output=True,
        text=True, timeout=200,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert "fp16_gallery" in shown.stdout
    jobs = stack.ask("GET", "/v1/jobs?kind=neighbour_stability").json()["items"]
    report = stack.report(jobs[0]["id"])
    assert report["inputs"]["gallery"]["spec"]["source"]["location"] == "public.docs"
    vectors = np.array(rows("debian_pairs/minilm_doc"))
    again = {
        "kind": "neighbour_stability",
        "inputs": {"gallery": {"dataset": stack.upload(vectors)}},
        "params": {"conditions": ["fp16_gallery", "int8_gallery"]},
    }
    direct = stack.ask("POST", "/v1/jobs", json=again).json()["id"]
    stack.ended(direct, 100)
    assert stack.report(direct)["results"] == report["results"]
    seen = shown.stdout + shown.stderr + stack.log.read_text() + json.dumps(report)
    assert SECRET not in seen
