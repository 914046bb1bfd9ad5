"""Checks and gates in this process: the same files, the same answers as through a service."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from assay_client.cli import run as assay

from service.errors import Internal, InvalidRequest, SourceDenied
from service.gating import read_gate, run_gate
from service.operations import Services, perform
from workers.local import charts, gate, run, wanted

ROOT = Path(__file__).parent.parent.parent
POLICY = ROOT / "examples/policies/index_precision.yaml"
ROWS = np.random.default_rng(6).normal(size=(40, 5)).astype(np.float32)


def told(*_: Any) -> None:
    pass


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder with the same rows as .npy, .parquet and both kinds of Arrow."""
    table = pa.table(
        {
            "doc": [f"d{i}" for i in range(40)],
            "old": pa.FixedSizeListArray.from_arrays(ROWS.ravel()[::-1], 5),
            "new": pa.FixedSizeListArray.from_arrays(ROWS.ravel(), 5),
            "topic": [f"t{i % 8}" for i in range(40)],
        }
    )
    np.save(tmp_path / "rows.npy", ROWS)
    topics = ["topic", *table["topic"].to_pylist()]
    (tmp_path / "rows.csv").write_text("\n".join(topics) + "\n")
    pq.write_table(table, tmp_path / "rows.parquet")
    for name, made in (("rows.arrow", pa.ipc.new_file), ("rows.arrows", pa.ipc.new_stream)):
        with made(str(tmp_path / name), table.schema) as writer:
            writer.write_table(table)
    return tmp_path


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "rows.arrows"])
def test_a_table_is_read_as_its_rows_and_labels(name: str, tables: Path) -> None:
    """Against the same numbers in .npy and .csv."""
    columns = {"vector_column": "new", "id_column": "doc"}
    vectors = {"path": name, **columns}
    inputs = {"vectors": vectors, "groups": {**vectors, "column": "topic"}}
    read = json.loads(run({"kind": "geometry", "inputs": inputs}, tables, told))
    plain = {"vectors": {"path": "rows.npy"}, "groups": {"path": "rows.csv", "column": "topic"}}
    expected = json.loads(run({"kind": "geometry", "inputs": plain}, tables, told))
    assert read["results"] == expected["results"]
    assert read["inputs"]["vectors"]["dataset"] == read["inputs"]["groups"]["dataset"]
    with pytest.raises(InvalidRequest, match="old"):
        run({"kind": "geometry", "inputs": {"vectors": {"path": name}}}, tables, told)


def test_the_command_reads_a_table_here(
    tables: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the words the help shows; the column is of the rows that were named."""
    monkeypatch.chdir(tables)
    words = ["check", "geometry", "--local", "--json", "--groups", "rows.parquet:topic"]
    code = assay([*words, "--vectors", "rows.parquet?vector_column=new&id_column=doc"])
    report = json.loads(capfd.readouterr().out)
    assert code == 0
    assert report["inputs"]["vectors"]["dataset"] == report["inputs"]["groups"]["dataset"]


def test_a_gate_judged_here_has_the_verdict_of_the_service(services: Services, store: Any) -> None:
    """Rules and digest, byte for byte."""
    policy = yaml.safe_load(POLICY.read_text())
    rows = "examples/clinc_intents/e5small_q4.npy"
    judged, page = gate(policy, {"rows": {"path": rows}}, ROOT, told)
    dataset = store(np.load(ROOT / rows)).id
    started = run_gate(services, "default", policy, {"rows": {"dataset": dataset}}, {})
    for job in started.jobs.values():
        perform(services, job)
    there = read_gate(services, "default", started.id)
    assert (judged["state"], judged["verdict"]) == ("done", "pass")
    assert judged["digest"] == there.digest
    assert judged["rules"] == [rule.model_dump(mode="json") for rule in there.rules]
    assert f"digest `{there.digest}`" in page
    assert wanted(policy) == {"rows": "vectors"}


def test_the_command_exits_by_a_verdict_judged_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the page and JUnit; faults of the policy and misfits are usage errors."""
    monkeypatch.chdir(ROOT)
    rows = "rows=examples/clinc_intents/e5small_q4.npy"
    out = [
        "--markdown", str(tmp_path / "gate.md"), "--junit", str(tmp_path / "gate.xml"), "--json",
    ]  # fmt: skip
    assert assay(["gate", str(POLICY), "--local", "--input", rows, *out]) == 0
    assert json.loads(capfd.readouterr().out)["verdict"] == "pass"
    assert (tmp_path / "gate.md").read_text().startswith("## ")
    assert b'failures="0"' in (tmp_path / "gate.xml").read_bytes()
    strict = POLICY.read_text().replace("at_least: 0.97", "at_least: 0.9999")
    (tmp_path / "strict.yaml").write_text(strict)
    assert assay(["gate", str(tmp_path / "strict.yaml"), "--local", "--input", rows]) == 1
    (tmp_path / "wrong.yaml").write_text(strict.replace("neighbour_stability", "stabilty"))
    capfd.readouterr()
    assert assay(["gate", str(tmp_path / "wrong.yaml"), "--local", "--input", rows]) == 2
    assert assay(["gate", str(POLICY), "--local"]) == 2
    assert "--input rows=FILE.npy" in capfd.readouterr().err


def test_a_store_is_not_read_here(tmp_path: Path) -> None:
    """Connections belong to a service."""
    source = {"kind": "npy", "connection": "lake", "path": "a.npy"}
    with pytest.raises(SourceDenied):
        run({"kind": "geometry", "inputs": {"vectors": {"source": source}}}, tmp_path, told)


def test_charts_of_a_report_are_drawn_here(tables: Path) -> None:
    """The same as `assay check --local --charts` writes, one file for each."""
    inputs = {"vectors": {"path": "rows.npy"}}
    report = run({"kind": "geometry", "inputs": inputs}, tables, told)
    drawn = {name: draw() for name, draw in charts()(report).items()}
    assert list(drawn) == ["spread", "directions", "spectrum"]
    folder = tables / "drawn"
    words = ["check", "geometry", "--vectors", str(tables / "rows.npy"), "--local"]
    assert assay([*words, "--charts", str(folder), "--json"]) == 0
    assert {file.stem: file.read_bytes() for file in folder.iterdir()} == drawn


def test_without_the_library_charts_are_refused_before_the_check_is_run(
    tables: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    words = ["check", "geometry", "--vectors", str(tables / "rows.npy"), "--local", "--charts", "."]
    monkeypatch.setattr("assay_client.cli.run_local", None)
    monkeypatch.chdir(tables)
    assert assay(words) == 4
    assert "pip install 'embedding-assay[charts]'" in capfd.readouterr().err


def test_a_report_made_here_outlives_charts_that_fail(
    tables: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> bytes:
        raise Internal("It has no bars.")

    monkeypatch.setattr("service.charts.Painter.draw", fail)
    words = ["check", "geometry", "--vectors", str(tables / "rows.npy"), "--local", "--json"]
    assert assay([*words, "--charts", str(tables / "drawn")]) == 4
    said = capfd.readouterr()
    assert json.loads(said.out)["kind"] == "geometry"
    assert json.loads(said.err.splitlines()[-1])["detail"] == "chart `spectrum`: It has no bars."
