"""Record the answers shown in the OpenAPI document and the catalogue: `make contracts` runs this."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

from api.catalogue_page import ANSWERS, REQUESTS
from api.main import create_app
from service import logs
from service.operations import Services, perform
from service.storage.memory import memory_services
from workers.local import charts, run

ROOT = Path(__file__).parent.parent
DATA = ROOT / "examples" / "scifact_halves"
OUT = ROOT / "openapi" / "examples"
PICTURED = ("compression", "bytes")
PICTURE = ROOT / "examples" / "charts" / "compression_bytes.svg"
"""The chart that the README shows."""


async def record() -> dict[str, dict[str, Any]]:
    """Answers of the real application on sample data, by file name."""
    services = memory_services()
    transport = httpx.ASGITransport(create_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await _record(services, client)


async def _record(services: Services, client: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    ids = {}
    found: dict[str, dict[str, Any]] = {}
    for folder in ("minilm", "e5small_q4"):
        for side in "AB":
            body = (DATA / folder / f"{side}.npy").read_bytes()
            answer = await client.post(
                "/v1/datasets",
                params={"name": f"{folder}/{side}", "model": folder},
                content=body,
                headers={"Content-Type": "application/x-npy"},
            )
            ids[folder, side] = answer.json()["id"]
            if (folder, side) == ("minilm", "A"):
                found["dataset"] = entry("/v1/datasets", "post", answer)
    request = {
        "kind": "cosine_floor",
        "inputs": {
            "a": {"dataset": ids["minilm", "A"]},
            "b": {"dataset": ids["minilm", "B"]},
        },
        "params": {"shared_mean": True},
    }
    answer = await client.post("/v1/jobs", json=request)
    found["cosine_floor"] = entry("/v1/jobs", "post", answer, request)
    job = answer.json()["id"]
    perform(services, job)
    here = f"/v1/jobs/{job}"
    found["job"] = entry("/v1/jobs/{job_id}", "get", await client.get(here))
    found["report"] = entry("/v1/jobs/{job_id}/report", "get", await client.get(f"{here}/report"))
    events = await client.get(f"{here}/events")
    found["events"] = {
        "path": "/v1/jobs/{job_id}/events", "method": "get", "status": 200, 
        "answer": [
            dict(line.split(": ", 1) for line in event.split("\n"))
            for event in events.text.removesuffix("\n\n").split("\n\n")
        ],
    }  # fmt: skip
    found["charts"] = entry("/v1/jobs/{job_id}/charts", "get", await client.get(f"{here}/charts"))
    for name, ending in (("chart", "vl.json"), ("chart_svg", "svg")):
        chart = await client.get(f"{here}/charts/gap.{ending}")
        found[name] = entry(f"/v1/jobs/{{job_id}}/charts/{{chart}}.{ending}", "get", chart)
    summary = await client.get(f"{here}/report", headers={"Accept": "text/markdown"})
    found["report_summary"] = entry("/v1/jobs/{job_id}/report", "get", summary)
    over_time = {"kind": "cosine_floor", "measure": ["raw.gap", "raw.floor"]}
    found["reports"] = entry(
        "/v1/reports", "get", await client.get("/v1/reports", params=over_time)
    )
    table = await client.get("/v1/reports", params=over_time, headers={"Accept": "text/csv"})
    found["reports_csv"] = entry("/v1/reports", "get", table)
    wrong = {**request, "inputs": {"a": {"dataset": ids["minilm", "A"]}}}
    found["missing_role"] = entry(
        "/v1/jobs", "post", await client.post("/v1/jobs", json=wrong), wrong
    )
    gate = {
        "policy": yaml.safe_load((ROOT / "examples" / "policies" / "halves.yaml").read_text()),
        "inputs": {
            f"{name}_{side.lower()}": {"dataset": ids[folder, side]}
            for name, folder in (("minilm", "minilm"), ("e5", "e5small_q4"))
            for side in "AB"
        },
    }
    answer = await client.post("/v1/gates", json=gate)
    found["gate"] = entry("/v1/gates", "post", answer, gate)
    for waiting in list(services.queue.waiting):  # type: ignore[attr-defined]
        perform(services, waiting)
    run = await client.get(f"/v1/gates/{answer.json()['id']}")
    found["verdict"] = entry("/v1/gates/{gate_id}", "get", run)
    return found


def entry(path: str, method: str, answer: Any, request: Any = None) -> dict[str, Any]:
    """One recorded answer."""
    shown = {"path": path, "method": method, "status": answer.status_code}
    media = answer.headers["content-type"].partition(";")[0]
    if media.endswith("json"):
        shown |= {"answer": answer.json()}
    else:
        shown |= {"media": media, "answer": answer.text}
    return shown if request is None else {**shown, "request": request}


def answers() -> Iterator[tuple[str, bytes]]:
    """What the sample request of each check answers, by kind."""
    for file in sorted((ROOT / REQUESTS).glob("*.json")):
        yield file.stem, run(json.loads(file.read_text()), file.parent, lambda *_: None)


if __name__ == "__main__":
    logs.configure(logging.WARNING)
    OUT.mkdir(parents=True, exist_ok=True)
    for name, content in asyncio.run(record()).items():
        (OUT / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    (ROOT / ANSWERS).mkdir(exist_ok=True)
    for kind, report in answers():
        lines = json.loads(report)["readings"]
        (ROOT / ANSWERS / f"{kind}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        if kind == PICTURED[0]:
            PICTURE.parent.mkdir(exist_ok=True)
            PICTURE.write_bytes(charts()(report)[PICTURED[1]]())
