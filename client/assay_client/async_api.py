"""AsyncAssay: the flows of Assay, from an event loop."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from assay_client.api import Client, Source, Watch
from assay_client.drivers import AsyncDriver
from assay_client.flows import Heard, id_of
from assay_client.located import Json
from assay_client.payload import payload
from assay_client.records import (
    CHART_FORMATS,
    Baseline,
    BaselineHistory,
    Dataset,
    Event,
    GateRun,
    Job,
    Policy,
    Report,
    ReportPoint,
)
from assay_client.steps import Flow, UploadProgress

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


class AsyncAssay(Client):
    """The same server from an event loop; every method as in `Assay`, awaited."""

    def __init__(
        self,
        server: str | None = None,
        api_key: str | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(server, tell)
        key = api_key or os.environ.get("ASSAY_API_KEY")
        self._driver = AsyncDriver(self._address, key, transport)

    async def close(self) -> None:
        await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _run(self, flow: Flow[T]) -> T:
        return await self._driver.run(flow)

    async def upload(
        self,
        source: Source,
        name: str | None = None,
        progress: UploadProgress | None = None,
        *,
        model: str | None = None,
        revision: str | None = None,
        vector_column: str | None = None,
        id_column: str | None = None,
    ) -> Dataset:
        columns = {"vector_column": vector_column, "id_column": id_column}
        body = payload(source, name, columns)
        return await self._run(
            self._flows.upload(body, model=model, revision=revision, progress=progress)
        )

    async def upload_files(
        self, inputs: Any, base: Path | None = None, progress: UploadProgress | None = None
    ) -> Any:
        return await self._run(self._flows.upload_files(inputs, base, progress))

    async def import_dataset(
        self,
        source: Mapping[str, Any],
        name: str | None = None,
        progress: Watch | None = None,
        *,
        model: str | None = None,
        revision: str | None = None,
    ) -> Dataset:
        spec = {"model": model, "revision": revision}
        return await self._run(self._flows.import_dataset(source, name, spec, progress))

    async def dataset(self, dataset: str) -> Dataset:
        return await self._run(self._flows.get(Dataset, "datasets", dataset))

    async def delete_dataset(self, dataset: str) -> None:
        await self._run(self._flows.delete("datasets", dataset))

    async def datasets(self, *, limit: int = 20) -> list[Dataset]:
        return await self._run(self._flows.newest(Dataset, "datasets", limit))

    async def checks(self) -> list[Json]:
        return await self._run(self._flows.checks())

    async def check(self, kind: str) -> Json:
        return await self._run(self._flows.get(dict, "checks", kind))

    async def submit(
        self,
        request: Mapping[str, Any],
        *,
        key: str | None = None,
        progress: UploadProgress | None = None,
    ) -> Job:
        return await self._run(self._flows.submit(request, key, progress))

    async def run(
        self,
        request: Mapping[str, Any],
        watch: Watch | None = None,
        progress: UploadProgress | None = None,
    ) -> Report:
        return await self._run(self._flows.run(request, watch, progress))

    async def job(self, job: str | Job) -> Job:
        return await self._run(self._flows.get(Job, "jobs", id_of(job)))

    async def jobs(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        tag: str | None = None,
        limit: int = 20,
    ) -> list[Job]:
        return await self._run(
            self._flows.newest(Job, "jobs", limit, state=state, kind=kind, tag=tag)
        )

    async def cancel(self, job: str | Job) -> Job:
        return await self._run(self._flows.cancel(Job, "jobs", job))

    async def wait(self, job: str | Job, progress: Watch | None = None) -> Job:
        return await self._run(self._flows.wait(job, progress))

    async def events(self, job: str | Job, after: str | None = None) -> AsyncIterator[Event]:
        heard = Heard(id_of(job), after)
        try:
            while (event := await self._run(self._flows.next_event(heard))) is not None:
                yield event
        finally:
            await self._run(self._flows.hang_up(heard))

    async def report(self, job: str | Job) -> Report:
        return await self._run(self._flows.report(job))

    async def report_bytes(self, job: str | Job) -> bytes:
        return await self._run(self._flows.report_bytes(job))

    async def report_markdown(self, job: str | Job) -> bytes:
        return await self._run(self._flows.fetched("text/markdown", "jobs", id_of(job), "report"))

    async def report_html(self, job: str | Job) -> bytes:
        return await self._run(self._flows.fetched("text/html", "jobs", id_of(job), "report"))

    async def charts(self, job: str | Job) -> list[Json]:
        page = await self._run(self._flows.get(dict, "jobs", id_of(job), "charts"))
        return list(page["items"])

    async def chart(self, job: str | Job, name: str, format: str = "svg") -> bytes:
        media_type, file = CHART_FORMATS.get(format, "*/*"), f"{name}.{format}"
        return await self._run(self._flows.fetched(media_type, "jobs", id_of(job), "charts", file))

    async def history(
        self,
        *,
        kind: str | None = None,
        measures: Sequence[str] = (),
        tag: str | None = None,
        dataset: str | None = None,
        computed: bool = False,
        limit: int = 20,
    ) -> list[ReportPoint]:
        filters = {
            "kind": kind, "measure": measures, "tag": tag, "dataset": dataset,
            "computed": "true" if computed else None,
        }  # fmt: skip
        return await self._run(self._flows.newest(ReportPoint, "reports", limit, **filters))

    async def history_csv(
        self,
        *,
        kind: str | None = None,
        measures: Sequence[str] = (),
        tag: str | None = None,
        dataset: str | None = None,
        computed: bool = False,
        limit: int = 20,
    ) -> bytes:
        filters = {
            "kind": kind, "measure": measures, "tag": tag, "dataset": dataset,
            "computed": "true" if computed else None,
        }  # fmt: skip
        return await self._run(self._flows.history_csv(limit, **filters))

    async def start_gate(
        self,
        policy: Mapping[str, Any],
        inputs: Mapping[str, Any],
        *,
        key: str | None = None,
        tags: Mapping[str, str] | None = None,
        progress: UploadProgress | None = None,
    ) -> GateRun:
        body = {"policy": policy, "inputs": inputs, **({"tags": dict(tags)} if tags else {})}
        return await self._run(self._flows.start_gate(body, key, progress))

    async def wait_gate(self, run: str | GateRun, progress: Watch | None = None) -> GateRun:
        return await self._run(self._flows.wait_gate(run, progress))

    async def gate(
        self,
        policy: Mapping[str, Any],
        inputs: Mapping[str, Any],
        progress: Watch | None = None,
        *,
        key: str | None = None,
    ) -> GateRun:
        body = {"policy": policy, "inputs": inputs}
        return await self._run(self._flows.gate(body, key, progress, None))

    async def validate(self, policy: Mapping[str, Any]) -> Policy:
        return await self._run(self._flows.validate(policy))

    async def gate_run(self, run: str | GateRun) -> GateRun:
        return await self._run(self._flows.get(GateRun, "gates", id_of(run)))

    async def gate_runs(self, *, tag: str | None = None, limit: int = 20) -> list[GateRun]:
        return await self._run(self._flows.newest(GateRun, "gates", limit, tag=tag))

    async def gate_markdown(self, run: str | GateRun) -> bytes:
        return await self._run(self._flows.gate_markdown(run))

    async def promote(self, run: str | GateRun, input_name: str, baseline: str) -> Baseline:
        return await self._run(self._flows.promote(run, input_name, baseline))

    async def baselines(self) -> list[Baseline]:
        return await self._run(self._flows.named())

    async def baseline(self, name: str) -> BaselineHistory:
        return await self._run(self._flows.get(BaselineHistory, "baselines", name))

    async def set_baseline(self, name: str, dataset: str) -> Baseline:
        return await self._run(self._flows.set_baseline(name, dataset))

    async def cancel_gate(self, run: str | GateRun) -> GateRun:
        return await self._run(self._flows.cancel(GateRun, "gates", run))
