"""What `examples/` shows is what the code does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml

from api.contracts import memory_services
from api.main import create_app
from service.gate import read_policy
from service.operations import perform
from workers.local import run

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
REFERENCE: dict[str, Any] = json.loads((ROOT / "tests/data/reference.json").read_text())


def test_the_comparison_of_encoders_prints_the_independent_readings() -> None:
    """Compared with reference.json: R2 of the first 20 intents under both encoders."""
    script = EXAMPLES / "compare_encoders.py"
    said = subprocess.run(
        [sys.executable, str(script)], check=True, capture_output=True, text=True, timeout=200
    ).stdout
    for name, model in (("minilm", "minilm"), ("e5", "e5small_q4")):
        expected = REFERENCE["clinc150"][model]["intent_first20_alphabetical"]["R2"]
        found = re.search(rf"^{name} +R2 (\S+)", said, re.MULTILINE)
        assert found is not None
        assert found[1] == f"{expected:.4f}"


def test_example_rows_are_the_rows_of_the_whole_set() -> None:
    """Compared bit for bit with the 3,000 rows the independent readings were made from."""
    lines = (ROOT / "tests/data/clinc150/rows.csv").read_text().splitlines()[1:]
    intents = [line.split(",")[1] for line in lines]
    chosen = sorted(set(intents))[:20]
    keep = [i for i, intent in enumerate(intents) if intent in chosen]
    for model in ("minilm", "e5small_q4"):
        whole = np.load(ROOT / f"tests/data/clinc150/{model}.npy")
        assert np.array_equal(np.load(EXAMPLES / f"clinc_intents/{model}.npy"), whole[keep])


async def _gate(policy: dict[str, Any], bound: dict[str, Path]) -> dict[str, Any]:
    services = memory_services()
    transport = httpx.ASGITransport(create_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        inputs = {}
        for name, file in bound.items():
            answer = await client.post(
                "/v1/datasets",
                content=file.read_bytes(),
                headers={"Content-Type": "application/x-npy"},
            )
            inputs[name] = {"dataset": answer.json()["id"]}
        body = {"policy": policy, "inputs": inputs}
        run = (await client.post("/v1/gates", json=body)).raise_for_status().json()
        for job in run["jobs"].values():
            perform(services, job)
        found: dict[str, Any] = (await client.get(run["links"]["self"])).json()
        return found


def test_the_sample_policy_passes_on_the_sample_data_and_fails_on_shuffled_partners(
    tmp_path: Path,
) -> None:
    """A verdict that cannot fail shows nothing: the same policy on re-paired rows."""
    import asyncio

    policy = yaml.safe_load((EXAMPLES / "policies/halves.yaml").read_text())
    bound = {
        f"{name}_{side.lower()}": EXAMPLES / "scifact_halves" / folder / f"{side}.npy"
        for name, folder in (("minilm", "minilm"), ("e5", "e5small_q4"))
        for side in "AB"
    }
    assert asyncio.run(_gate(policy, bound))["verdict"] == "pass"
    rows = np.load(bound["e5_b"])
    np.save(tmp_path / "shuffled.npy", np.roll(rows, 1, axis=0))
    verdict = asyncio.run(_gate(policy, {**bound, "e5_b": tmp_path / "shuffled.npy"}))
    assert verdict["verdict"] == "fail"
    failed = {rule["rule"]["measure"] for rule in verdict["rules"] if rule["verdict"] == "fail"}
    assert "e5.centred.gap_all" in failed
    assert not any(measure.startswith("minilm") for measure in failed)


@pytest.mark.parametrize("file", sorted((EXAMPLES / "policies").glob("*.yaml")), ids=str)
def test_every_sample_policy_can_be_read(file: Path) -> None:
    """Names, roles, parameters and measures all exist."""
    read_policy(yaml.safe_load(file.read_text()))


def test_the_readme_shows_what_the_service_answers() -> None:
    """The readings in README.md, word for word, from the example data."""
    report = json.loads(
        run(
            {
                "kind": "cosine_floor",
                "inputs": {"a": {"path": "A.npy"}, "b": {"path": "B.npy"}},
                "params": {"shared_mean": True},
            },
            EXAMPLES / "scifact_halves" / "e5small_q4",
            lambda stage, done, total: None,
        )
    )
    shown = " ".join((ROOT / "README.md").read_text().split())
    for reading in report["readings"][:2]:
        assert " ".join(reading.split()) in shown


def test_examples_stay_small() -> None:
    """Under 6 MB, so that a clone is quick."""
    assert sum(file.stat().st_size for file in EXAMPLES.rglob("*") if file.is_file()) < 6_000_000
