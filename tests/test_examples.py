"""What `examples/` shows is what the code does."""

from __future__ import annotations

import asyncio
import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from scipy import stats

from api.main import create_app
from service.gate import read_policy
from service.operations import perform
from service.storage.memory import memory_services
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


def test_example_packages_are_every_ninth_of_the_whole_set() -> None:
    """Compared bit for bit with the rows the independent readings were made from, as float16."""
    for model in ("minilm", "e5small_q4"):
        for side, file in (("query", "lines"), ("doc", "texts")):
            whole = np.load(ROOT / f"tests/data/debian_pairs/{model}_{side}.npy")
            shown = np.load(EXAMPLES / f"debian_packages/{model}_{file}.npy")
            assert np.array_equal(shown, whole[:1800:9].astype(np.float16))
    packages = [
        (ROOT / folder / "rows.csv").read_text().splitlines()[1:]
        for folder in ("tests/data/debian_pairs", "examples/debian_packages")
    ]
    assert [line.split(",")[1] for line in packages[0][:1800:9]] == [
        line.split(",")[0] for line in packages[1]
    ]


async def _gate(
    policy: dict[str, Any], bound: dict[str, tuple[Path, str | None]]
) -> dict[str, Any]:
    services = memory_services()
    transport = httpx.ASGITransport(create_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        inputs = {}
        for name, (file, column) in bound.items():
            kind = "text/csv" if file.suffix == ".csv" else "application/x-npy"
            answer = await client.post(
                "/v1/datasets", content=file.read_bytes(), headers={"Content-Type": kind}
            )
            inputs[name] = {
                "dataset": answer.json()["id"],
                **({"column": column} if column else {}),
            }
        for name in inputs.keys() & NAMED.keys():
            named = await client.put(f"/v1/baselines/{NAMED[name]}", json=inputs[name])
            named.raise_for_status()
            inputs[name] = {"baseline": NAMED[name]}
        body = {"policy": policy, "inputs": inputs}
        run = (await client.post("/v1/gates", json=body)).raise_for_status().json()
        for job in run["jobs"].values():
            perform(services, job)
        found: dict[str, Any] = (await client.get(run["links"]["self"])).json()
        return found


Bound = dict[str, tuple[Path, str | None]]
NAMED = {"approved": "abstracts"}
"""Inputs that are bound as baselines, by their name."""
HALVES, CLINC = EXAMPLES / "scifact_halves", EXAMPLES / "clinc_intents"
PACKAGES = EXAMPLES / "debian_packages"
INTENTS: Bound = {"intents": (CLINC / "rows.csv", "intent")}
BINDINGS: dict[str, Bound] = {
    "halves": {
        f"{name}_{side.lower()}": (HALVES / folder / f"{side}.npy", None)
        for name, folder in (("minilm", "minilm"), ("e5", "e5small_q4"))
        for side in "AB"
    },
    "paraphrases_kept": {
        "left": (HALVES / "minilm_int8/A.npy", None), "right": (HALVES / "minilm_int8/B.npy", None),
    },
    "group_structure_kept": {
        "present": (CLINC / "minilm.npy", None), "candidate": (CLINC / "e5small_q4.npy", None),
        **INTENTS,
    },
    "index_precision": {"rows": (CLINC / "e5small_q4.npy", None)},
    "nightly_batch": {
        "approved": (HALVES / "minilm/fit_A.npy", None), "batch": (HALVES / "minilm/A.npy", None),
    },
    "model_upgrade": {
        **{
            f"{role}_{part}": (PACKAGES / f"{encoder}_{file}.npy", None)
            for role, encoder in (("present", "minilm"), ("candidate", "e5small_q4"))
            for part, file in (("queries", "lines"), ("documents", "texts"))
        },
        "relevance": (PACKAGES / "rows.csv", "relevant"),
    },
    "training_change": {"runs": (EXAMPLES / "training_runs/runs.csv", None)},
}  # fmt: skip


def judged(name: str, changes: Bound | None = None) -> dict[str, Any]:
    """A sample policy on the sample data its comment names, with these changes."""
    policy = yaml.safe_load((EXAMPLES / f"policies/{name}.yaml").read_text())
    return asyncio.run(_gate(policy, {**BINDINGS[name], **(changes or {})}))


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("halves", "pass"),
        ("paraphrases_kept", "pass"),
        ("group_structure_kept", "fail"),
        ("index_precision", "pass"),
        ("model_upgrade", "pass"),
        ("nightly_batch", "pass"),
        ("training_change", "pass"),
    ],
)
def test_a_sample_policy_has_the_verdict_its_comment_states(name: str, verdict: str) -> None:
    """The word stands there too."""
    assert judged(name)["verdict"] == verdict
    comment = (EXAMPLES / f"policies/{name}.yaml").read_text().partition("version:")[0]
    assert f": {verdict}." in comment


def test_the_training_policy_says_what_its_comment_says() -> None:
    """Compared with scipy on the table: who wins, who is open, and by how many seeds it could end."""
    with (EXAMPLES / "training_runs/runs.csv").open(newline="") as file:
        runs = {(row["condition"], row["seed"]): row for row in csv.DictReader(file)}
    found = {
        rule["rule"]["measure"].split(".", 2)[2]: rule
        for rule in judged("training_change")["rules"]
    }
    for path, verdict in (
        ("noise.metrics.neighbours.mean", "pass"),
        ("noise.metrics.accuracy.mean", "inconclusive"),
        ("narrow.metrics.accuracy.mean", "fail"),
    ):
        contrast, _, metric, _ = path.split(".")
        a = {"noise": "input_noise"}.get(contrast, contrast)
        sides = [[float(runs[name, str(i)][metric]) for i in range(8)] for name in (a, "plain")]
        limits = stats.ttest_rel(*sides).confidence_interval(0.95)
        assert found[path]["verdict"] == verdict
        assert found[path]["interval"]["low"] == pytest.approx(limits.low)
        assert found[path]["interval"]["high"] == pytest.approx(limits.high)
    assert found["noise.metrics.accuracy.mean"]["needed"] == {"unit": "seeds", "count": 99}


def test_a_stricter_precision_rule_fails_on_the_same_interval() -> None:
    """.97 passes and .999 fails: all of the interval lies between them."""
    rules = judged("index_precision")["rules"]
    loose, strict = (
        rule for rule in rules if "int8_per_vector_gallery.overlap" in rule["rule"]["measure"]
    )
    assert (loose["verdict"], strict["verdict"]) == ("pass", "fail")
    assert loose["interval"] == strict["interval"]
    assert 0.97 < loose["interval"]["low"] < loose["interval"]["high"] < 0.999


def test_every_sample_policy_has_a_stated_verdict() -> None:
    assert {file.stem for file in (EXAMPLES / "policies").glob("*.yaml")} == BINDINGS.keys()


def test_the_sample_policy_fails_on_shuffled_partners(tmp_path: Path) -> None:
    """A verdict that cannot fail shows nothing: the same policy on re-paired rows."""
    rows = np.load(BINDINGS["halves"]["e5_b"][0])
    np.save(tmp_path / "shuffled.npy", np.roll(rows, 1, axis=0))
    verdict = judged("halves", {"e5_b": (tmp_path / "shuffled.npy", None)})
    assert verdict["verdict"] == "fail"
    failed = {rule["rule"]["measure"] for rule in verdict["rules"] if rule["verdict"] == "fail"}
    assert "e5.centred.gap_all" in failed
    assert not any(measure.startswith("minilm") for measure in failed)


def test_a_sample_of_twenty_pairs_is_inconclusive(tmp_path: Path) -> None:
    """What a fifth of the pairs says of the share that are ranked first."""
    few: Bound = {}
    for name, (file, _) in BINDINGS["paraphrases_kept"].items():
        np.save(tmp_path / f"{name}.npy", np.load(file)[:20])
        few[name] = (tmp_path / f"{name}.npy", None)
    found = judged("paraphrases_kept", few)
    assert found["verdict"] == "inconclusive"
    shares = [rule for rule in found["rules"] if "first" in rule["rule"]["measure"]]
    assert all(rule["verdict"] == "inconclusive" for rule in shares)
    assert all(rule["needed"]["unit"] == "rows" for rule in shares)


def test_the_other_way_round_the_structure_is_kept() -> None:
    """From the encoder with less structure to the one with more: pass."""
    files = BINDINGS["group_structure_kept"]
    turned = {"present": files["candidate"], "candidate": files["present"]}
    assert judged("group_structure_kept", turned)["verdict"] == "pass"


def test_an_unchanged_encoder_keeps_all_structure() -> None:
    """The same vectors under both names: nothing can differ, and twenty intents are enough for it."""
    same = {"candidate": BINDINGS["group_structure_kept"]["present"]}
    found = judged("group_structure_kept", same)
    assert found["verdict"] == "pass"
    assert "the same vectors" in found["rules"][1]["reason"]


def test_an_upgrade_changes_by_what_its_comment_says() -> None:
    """The difference of nDCG@10 with its interval, and that even the narrow margin is kept."""
    comment = (EXAMPLES / "policies/model_upgrade.yaml").read_text().partition("version:")[0]
    rules = judged("model_upgrade")["rules"]
    assert [rule["verdict"] for rule in rules] == ["pass"] * 3
    change = rules[2]
    ends = (change["observed"], change["interval"]["low"], change["interval"]["high"])
    value, low, high = (f"{end:.4f}".replace("0.", ".", 1) for end in ends)
    assert f"changes by {value} [{low}, {high}]: no loss of .05" in comment


def test_an_upgrade_that_loses_the_texts_fails(tmp_path: Path) -> None:
    """The texts of the candidate in another order: its hits fall to chance, and below the present."""
    rows = np.load(BINDINGS["model_upgrade"]["candidate_documents"][0])
    np.save(tmp_path / "turned.npy", np.roll(rows, 1, axis=0))
    found = judged("model_upgrade", {"candidate_documents": (tmp_path / "turned.npy", None)})
    assert found["verdict"] == "fail"
    assert all(rule["verdict"] == "fail" for rule in found["rules"])


def test_an_unchanged_model_loses_nothing() -> None:
    """The same vectors under both names cannot differ: even the narrow margin is kept."""
    files = BINDINGS["model_upgrade"]
    same = {f"candidate_{part}": files[f"present_{part}"] for part in ("queries", "documents")}
    found = judged("model_upgrade", same)
    assert found["verdict"] == "pass"
    assert found["rules"][2]["verdict"] == "pass"


@pytest.mark.parametrize(
    ("batch", "failing"),
    [
        (PACKAGES / "minilm_texts.npy", {"drift.mean_shift", "drift.classifier.auc"}),
        (
            HALVES / "e5small_q4/A.npy",
            {"drift.mean_shift", "drift.classifier.auc", "drift.spread_ratio"},
        ),
    ],
)
def test_a_batch_of_other_texts_or_another_encoder_is_blocked(
    batch: Path, failing: set[str]
) -> None:
    """By the rules that each of them should break."""
    found = judged("nightly_batch", {"batch": (batch, None)})
    assert found["verdict"] == "fail"
    blocking = [rule for rule in found["rules"] if rule["rule"]["level"] == "block"]
    assert {rule["rule"]["measure"] for rule in blocking if rule["verdict"] == "fail"} == failing


def test_the_approved_batch_itself_is_no_batch_of_tonight() -> None:
    """
    It has not drifted, and says nothing of tonight's: a baseline compared with itself is blocked.

    A shift of 0 [0, 0] has its ends cut at 0; it is no value that all units happen to share.
    """
    found = judged("nightly_batch", {"batch": BINDINGS["nightly_batch"]["approved"]})
    assert found["verdict"] == "fail"
    shift, *_ = found["rules"]
    assert (shift["verdict"], shift["interval"]["high"]) == ("pass", 0)
    assert "both its ends are cut at 0" in shift["reason"]
    assert "the same value" not in shift["reason"]
    broken = {
        rule["rule"]["measure"]: rule["reason"]
        for rule in found["rules"]
        if rule["verdict"] == "fail"
    }
    assert broken.keys() == {"drift.warnings.same_rows", "drift.warnings.paired_sides"}
    assert "all of the 200 rows of the batch are rows of the baseline" in str(broken)
    heard = [(one["check"], one["code"]) for one in found["warnings"]]
    assert heard == [("drift", "paired_sides"), ("drift", "same_rows"), (None, "one_look")]


def test_most_of_the_approved_batch_is_no_batch_of_tonight_either(tmp_path: Path) -> None:
    """Without some rows, or with some exchanged, the sides are still no independent ones."""
    rows = np.load(BINDINGS["nightly_batch"]["approved"][0])
    np.save(tmp_path / "fewer.npy", rows[:150])
    assert judged("nightly_batch", {"batch": (tmp_path / "fewer.npy", None)})["verdict"] == "fail"
    rows[:40] = np.load(HALVES / "minilm/A.npy")[:40]
    np.save(tmp_path / "mostly.npy", rows)
    found = judged("nightly_batch", {"batch": (tmp_path / "mostly.npy", None)})
    assert found["verdict"] == "fail"
    broken = {one["rule"]["measure"] for one in found["rules"] if one["verdict"] == "fail"}
    assert broken == {"drift.warnings.paired_sides"}


def test_a_batch_of_thirty_rows_shows_nothing(tmp_path: Path) -> None:
    """Not finding drift is no pass."""
    np.save(tmp_path / "few.npy", np.load(HALVES / "minilm/A.npy")[:30])
    found = judged("nightly_batch", {"batch": (tmp_path / "few.npy", None)})
    assert found["verdict"] == "inconclusive"
    wide = next(rule for rule in found["rules"] if rule["rule"]["measure"].endswith("auc"))
    assert (wide["verdict"], wide["needed"]["unit"]) == ("inconclusive", "rows")


@pytest.mark.parametrize("file", sorted((EXAMPLES / "policies").glob("*.yaml")), ids=str)
def test_every_sample_policy_can_be_read(file: Path) -> None:
    """Names, roles, parameters and measures all exist."""
    read_policy(yaml.safe_load(file.read_text()))


def test_the_command_and_the_request_of_the_clients_readme_run_where_it_says() -> None:
    """They ask for the same, and both answer with the same results."""
    page = (ROOT / "client" / "README.md").read_text()
    folder = re.search(r"^    \$ cd (\S+)\n    \$ assay (check .*)$", page, re.MULTILINE)
    request = re.search(r"request\.json\n((?:    .*\n)+?)    \$", page)
    assert folder is not None
    assert request is not None
    argv = [str(Path(sys.executable).parent / "assay"), *shlex.split(folder[2])]
    said = subprocess.run(
        [*argv, "--local", "--json"], cwd=ROOT / folder[1], check=True, capture_output=True,
        text=True, timeout=200,
    )  # fmt: skip
    other = run(json.loads(request[1]), ROOT / folder[1], lambda stage, done, total: None)
    found = json.loads(said.stdout)
    assert found["kind"] == folder[2].split()[1]
    assert found["results"] == json.loads(other)["results"]


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
