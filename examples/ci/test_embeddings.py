"""
Embeddings as a test suite sees them: `pytest test_embeddings.py` with ASSAY_SERVER set.

FOLDER names where A.npy and B.npy are; row i of one belongs to row i of the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from assay_client import Assay

HERE = Path(__file__).parent
FOLDER = Path(os.environ.get("FOLDER", "."))
INPUTS = {side: {"path": str((FOLDER / f"{side.upper()}.npy").resolve())} for side in "ab"}


@pytest.fixture(scope="session")
def assay() -> Iterator[Assay]:
    with Assay() as client:
        yield client


def test_matched_pairs_stand_clear_of_their_floor(assay: Assay) -> None:
    """The end of the interval counts, not the estimate."""
    report = assay.run({"kind": "cosine_floor", "inputs": INPUTS})
    gap = report["results"]["centred"]["gap_all"]
    assert gap["interval"]["low"] > 0.3, "\n".join(report["readings"])


def test_the_release_gate_passes(assay: Assay) -> None:
    policy = yaml.safe_load((HERE / "policy.yaml").read_text())
    run = assay.gate(policy, INPUTS)
    reasons = [f"{rule['verdict']}: {rule['rule']}: {rule['reason']}" for rule in run["rules"]]
    assert run["verdict"] == "pass", "\n".join(reasons)
