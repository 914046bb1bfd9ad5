"""The client against the real application: what it sends is what the service understands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from assay_client import AssayError, AsyncAssay

from api.keys import Keys, Scope, create_key
from api.main import create_app
from service.operations import Services, perform

POLICY = {
    "version": 1, "name": "x", "inputs": {"rows": "vectors"},
    "checks": {"shape": {"kind": "geometry", "inputs": {"vectors": "rows"}}},
    "rules": [{"measure": "shape.rankme", "at_least": 1.0001}],
}  # fmt: skip


@pytest.fixture
def app(services: Services, quiet: None) -> Any:
    return create_app(services)


@pytest.fixture
def talk(app: Any, services: Services) -> Callable[..., Any]:
    """Run a conversation with the application, whose queue is worked off meanwhile."""

    async def work() -> None:
        waiting: Any = services.queue
        while True:
            while waiting.waiting:
                await asyncio.to_thread(perform, services, waiting.waiting.pop(0))
            await asyncio.sleep(0.01)

    async def run(conversation: Any, on: Any, key: str | None) -> Any:
        worker = asyncio.create_task(work())
        transport = httpx.ASGITransport(on)
        try:
            async with AsyncAssay("http://localhost", key, transport=transport) as assay:
                return await conversation(assay)
        finally:
            worker.cancel()

    return lambda conversation, on=app, key=None: asyncio.run(run(conversation, on, key))


def received(app: Any) -> int:
    """Bytes of uploads the service has taken."""
    return int(app.state.metrics.registry.get_sample_value("assay_bytes_in_total"))


def test_an_upload_is_sent_once(talk: Any, app: Any, vectors: Path, labels: Path) -> None:
    """A file and the array in it are the same bytes; a table and its name do not matter."""
    rows = np.load(vectors)

    async def conversation(assay: AsyncAssay) -> list[str]:
        first = await assay.upload(vectors)
        sent = received(app)
        assert sent == vectors.stat().st_size
        again = [await assay.upload(vectors, "other"), await assay.upload(rows)]
        assert received(app) == sent
        table = await assay.upload(labels)
        assert (await assay.upload(labels))["id"] == table["id"]
        assert received(app) == sent + labels.stat().st_size
        named = await assay.upload(rows, model="e5")
        assert named["spec"]["model"] == "e5"
        assert (first["n"], first["d"], first["dtype"]) == (7500, 100, "float32")
        assert [one["id"] for one in await assay.datasets()] == [
            named["id"], table["id"], first["id"],
        ]  # fmt: skip
        return [one["id"] for one in (first, *again)]

    assert len(set(talk(conversation))) == 1


def test_files_go_in_and_a_report_comes_out(talk: Any, vectors: Path) -> None:
    """Submit, wait, report; and a gate."""
    request = {"kind": "geometry", "inputs": {"vectors": {"path": str(vectors)}}}

    async def conversation(assay: AsyncAssay) -> tuple[Any, ...]:
        seen: list[str] = []
        job = await assay.wait(await assay.submit(request), lambda now: seen.append(now["state"]))
        report = await assay.report(job)
        run = await assay.gate(POLICY, {"rows": {"path": str(vectors)}})
        return job, report, run, await assay.run(request)

    job, report, run, again = talk(conversation)
    assert (job["state"], report["kind"]) == ("succeeded", "geometry")
    assert run["verdict"] == "pass"
    assert again == report


def test_arrays_stand_where_files_do(talk: Any) -> None:
    """Rows are uploaded once, labels become a column; also in a list of models."""
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(60, 8)).astype(np.float32), np.arange(60) % 3

    async def conversation(assay: AsyncAssay) -> tuple[Any, ...]:
        inputs = {"vectors": rows, "labels": labels}
        one = await assay.run({"kind": "label_neighbours", "inputs": inputs})
        models = [{"name": "old", "rows": rows}, {"name": "new", "rows": rows[::-1]}]
        two = await assay.run(
            {"kind": "linear_probe", "inputs": {"models": models, "labels": labels.astype(str)}}
        )
        assert len([d for d in await assay.datasets() if d["d"] is not None]) == 2
        return one, two

    one, two = talk(conversation)
    assert (one["results"]["n"], one["results"]["labels"]) == (60, 3)
    assert [model["name"] for model in two["inputs"]["models"]] == ["old", "new"]


def test_charts_come_in_every_form(talk: Any, vectors: Path) -> None:
    """Listed with their questions, then as SVG, PNG and Vega-Lite; an unknown one is raised."""
    request = {"kind": "geometry", "inputs": {"vectors": {"path": str(vectors)}}}

    async def conversation(assay: AsyncAssay) -> None:
        job = await assay.wait(await assay.submit(request))
        listed = await assay.charts(job)
        assert [one["name"] for one in listed] == ["spread", "directions", "spectrum"]
        for one in listed:
            assert (await assay.chart(job, one["name"])).startswith(b"<svg role=")
        assert (await assay.chart(job["id"], "spread", "png")).startswith(b"\x89PNG")
        spec = json.loads(await assay.chart(job, "spread", "vl.json"))
        assert spec["description"] == listed[0]["text"]
        with pytest.raises(AssayError, match="did you mean `spread`"):
            await assay.chart(job, "spred")

    talk(conversation)


def test_a_job_is_heard_to_its_end(talk: Any, vectors: Path) -> None:
    """What comes last is the job; after it there is nothing."""
    request = {"kind": "geometry", "inputs": {"vectors": {"path": str(vectors)}}}

    async def conversation(assay: AsyncAssay) -> None:
        job = await assay.submit(request)
        heard = [event async for event in assay.events(job)]
        states = [one["data"]["state"] for one in heard if one["event"] == "state"]
        assert states == ["queued", "running", "succeeded"]
        assert heard[-1]["data"] == await assay.job(job)
        assert [one async for one in assay.events(job, heard[1]["id"])] == heard[2:]
        assert [one async for one in assay.events(job, heard[-1]["id"])] == []

    talk(conversation)


def test_the_same_key_is_the_same_job(talk: Any, vectors: Path) -> None:
    """A pipeline step that is started again finds what it began."""
    request = {"kind": "geometry", "inputs": {"vectors": {"path": str(vectors)}}}

    async def conversation(assay: AsyncAssay) -> None:
        jobs = [await assay.submit(request, key="step-3") for _ in range(2)]
        assert jobs[0]["id"] == jobs[1]["id"]
        assert len(await assay.jobs()) == 1
        with pytest.raises(AssayError, match="idempotency-conflict") as raised:
            await assay.submit({**request, "seed": 1}, key="step-3")
        assert raised.value.next_step is not None

    talk(conversation)


def test_a_gate_is_validated_judged_listed_and_shown(talk: Any, vectors: Path) -> None:
    """Faults before anything is sent; a second call with the same key is the same run."""

    async def conversation(assay: AsyncAssay) -> None:
        wanted = await assay.validate(POLICY)
        assert (wanted["inputs"], wanted["checks"]) == ({"rows": "vectors"}, {"shape": "geometry"})
        with pytest.raises(AssayError) as raised:
            await assay.validate({**POLICY, "rules": []})
        assert [fault.pointer for fault in raised.value.faults] == ["/policy/rules"]

        inputs = {"rows": {"path": str(vectors.resolve())}}
        run = await assay.gate(POLICY, inputs, key="release-1")
        assert run["verdict"] == "pass"
        again = await assay.gate(POLICY, inputs, key="release-1")
        assert again == run == await assay.gate_run(run)
        assert await assay.gate_runs() == [run]
        assert await assay.gate_runs(tag="env:prod") == []
        page = (await assay.gate_markdown(run)).decode()
        assert "pass" in page
        assert run["digest"] in page
        assert await assay.cancel_gate(run) == run

    talk(conversation)


def test_a_key_that_may_only_submit_uploads_without_looking(
    talk: Any, services: Services, tmp_path: Path, vectors: Path
) -> None:
    """Nothing more is asked of a key than what it is for."""
    key = create_key(tmp_path / "keys", "p", [Scope.submit])

    async def conversation(assay: AsyncAssay) -> None:
        first, again = await assay.upload(vectors), await assay.upload(vectors)
        assert first["id"] == again["id"]

    talk(conversation, create_app(services, Keys(tmp_path / "keys")), key)


def test_others_run_while_a_large_file_is_read(talk: Any, vectors: Path) -> None:
    """Files are read on threads: the loop turns between any two pieces."""

    async def conversation(assay: AsyncAssay) -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        told: list[int] = []
        await assay.upload(vectors, progress=lambda name, sent, total: told.append(turns))
        counting.cancel()
        assert len(set(told)) == len(told) == 3

    talk(conversation)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrows"])
def test_a_table_goes_in_by_the_columns_that_are_named(
    kind: str, talk: Any, tmp_path: Path
) -> None:
    """Vectors, ids and labels; sent once; the report is that of the same rows as .npy."""
    rows = np.random.default_rng(6).normal(size=(40, 5)).astype(np.float32)
    table = pa.table(
        {
            "doc": [f"d{i}" for i in range(40)],
            "old": pa.FixedSizeListArray.from_arrays(rows.ravel()[::-1], 5),
            "new": pa.FixedSizeListArray.from_arrays(rows.ravel(), 5),
            "topic": [f"t{i % 8}" for i in range(40)],
        }
    )
    file = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(table, file)
    else:
        made = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with made(str(file), table.schema) as writer:
            writer.write_table(table)
    named = {"path": str(file), "vector_column": "new", "id_column": "doc"}

    async def conversation(assay: AsyncAssay) -> tuple[Any, ...]:
        groups = {"path": str(file), "column": "topic"}
        read = await assay.run({"kind": "geometry", "inputs": {"vectors": named, "groups": groups}})
        plain = await assay.upload(rows)
        column = {"dataset": read["inputs"]["vectors"]["dataset"], "column": "topic"}
        inputs = {"vectors": {"dataset": plain["id"]}, "groups": column}
        again = await assay.upload(file, vector_column="new", id_column="doc")
        return read, await assay.run({"kind": "geometry", "inputs": inputs}), again

    read, plain, again = talk(conversation)
    assert again["id"] == read["inputs"]["vectors"]["dataset"]
    assert again["columns"].keys() == {"topic"}
    assert read["results"] == plain["results"]


def test_baselines_are_set_promoted_and_read(talk: Any, vectors: Path) -> None:
    async def conversation(assay: AsyncAssay) -> tuple[Any, ...]:
        first = await assay.upload(np.eye(9, dtype=np.float32))
        await assay.set_baseline("prod", first["id"])
        run = await assay.gate(POLICY, {"rows": {"vectors": np.eye(12).tolist()}})
        made = await assay.promote(run, "rows", "prod")
        return first, run, made, await assay.baseline("prod"), await assay.baselines()

    first, run, made, shown, listed = talk(conversation)
    assert (run["verdict"], made["gate"], made["version"]) == ("pass", run["id"], 2)
    assert [one["dataset"] for one in shown["history"]] == [made["dataset"], first["id"]]
    assert listed == [made]
