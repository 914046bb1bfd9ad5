"""Assay: upload, submit, wait, read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar

from assay_client.drivers import Driver, address
from assay_client.exchange import Exchange, without_credentials
from assay_client.flows import Flows, Heard, id_of
from assay_client.located import Json
from assay_client.payload import Array, payload
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

DEFAULT_SERVER = "http://127.0.0.1:8000"
T = TypeVar("T")
Source = str | Path | BinaryIO | Array
Watch = Callable[[Any], None]
"""Called with a job or gate run each time it has changed."""


class Client:
    """What both clients know of their server."""

    server: str
    """Address of the server, without credentials."""

    def __init__(self, server: str | None, tell: Callable[[str], None] | None) -> None:
        self._address = server or os.environ.get("ASSAY_SERVER") or DEFAULT_SERVER
        self.server = str(without_credentials(address(self._address)))
        self._flows = Flows(Exchange(self.server, tell))


class Assay(Client):
    """A server, as a pipeline uses it."""

    def __init__(
        self,
        server: str | None = None,
        api_key: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """
        Server and key come from ASSAY_SERVER and ASSAY_API_KEY where they are not given.

        `tell` is called with a line for people when the server has to be waited for.
        """
        super().__init__(server, tell)
        self._driver = Driver(self._address, api_key or os.environ.get("ASSAY_API_KEY"), transport)

    def close(self) -> None:
        """Close the connections."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, flow: Flow[T]) -> T:
        return self._driver.run(flow)

    def upload(
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
        """
        Store a .npy, .parquet, .arrow or .csv file, an open binary file of these, or a NumPy array.

        What the project has already is not sent again. `model` and `revision` name the encoder;
        `vector_column` and `id_column` those of a table, where it has several.
        """
        columns = {"vector_column": vector_column, "id_column": id_column}
        body = payload(source, name, columns)
        return self._run(
            self._flows.upload(body, model=model, revision=revision, progress=progress)
        )

    def import_dataset(
        self,
        source: Mapping[str, Any],
        name: str | None = None,
        progress: Watch | None = None,
        *,
        model: str | None = None,
        revision: str | None = None,
    ) -> Dataset:
        """
        Let the server read rows from a store: `{"kind": "parquet", "connection": "lake", "path": ...}`.

        Connections are named by its operator; returns once the dataset is there.
        """
        spec = {"model": model, "revision": revision}
        return self._run(self._flows.import_dataset(source, name, spec, progress))

    def upload_files(
        self, inputs: Any, base: Path | None = None, progress: UploadProgress | None = None
    ) -> Any:
        """The inputs with every `{"path": ...}` uploaded and named by its dataset, each file once."""
        return self._run(self._flows.upload_files(inputs, base, progress))

    def dataset(self, dataset: str) -> Dataset:
        """What is known of a stored dataset."""
        return self._run(self._flows.get(Dataset, "datasets", dataset))

    def delete_dataset(self, dataset: str) -> None:
        """Delete a dataset no unfinished job needs and no baseline stands for; reports on it stay."""
        self._run(self._flows.delete("datasets", dataset))

    def datasets(self, *, limit: int = 20) -> list[Dataset]:
        """The newest datasets."""
        return self._run(self._flows.newest(Dataset, "datasets", limit))

    def checks(self) -> list[Json]:
        """The catalogue."""
        return self._run(self._flows.checks())

    def check(self, kind: str) -> Json:
        """One check of the catalogue: roles, schemas of params and results, measures."""
        return self._run(self._flows.get(dict, "checks", kind))

    def submit(
        self,
        request: Mapping[str, Any],
        *,
        key: str | None = None,
        progress: UploadProgress | None = None,
    ) -> Job:
        """
        Start a job; `request` is the body of `POST /v1/jobs`.

        Files named by `{"path": ...}`, relative to the working directory, are uploaded first. The
        request is repeated until it is answered and starts one job. With a `key` of your own, kept
        for a day, a later call with the same request is answered by that job too.
        """
        return self._run(self._flows.submit(request, key, progress))

    def run(
        self,
        request: Mapping[str, Any],
        watch: Watch | None = None,
        progress: UploadProgress | None = None,
    ) -> Report:
        """Submit, wait, and the report; a job that failed is raised with its own problem."""
        return self._run(self._flows.run(request, watch, progress))

    def job(self, job: str | Job) -> Job:
        """The job as it is now."""
        return self._run(self._flows.get(Job, "jobs", id_of(job)))

    def jobs(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        tag: str | None = None,
        limit: int = 20,
    ) -> list[Job]:
        """The newest jobs; `tag` is `name:value`."""
        return self._run(self._flows.newest(Job, "jobs", limit, state=state, kind=kind, tag=tag))

    def cancel(self, job: str | Job) -> Job:
        """Stop a job; one that has ended stays as it is."""
        return self._run(self._flows.cancel(Job, "jobs", job))

    def wait(self, job: str | Job, progress: Watch | None = None) -> Job:
        """The job once it has ended, however it ended."""
        return self._run(self._flows.wait(job, progress))

    def events(self, job: str | Job, after: str | None = None) -> Iterator[Event]:
        """
        What happens to a job, as it happens, after what has happened; `done` is the last.

        Connections that end are made again where they ended. `after` is the id of an event: only what
        came after it is told.
        """
        heard = Heard(id_of(job), after)
        try:
            while (event := self._run(self._flows.next_event(heard))) is not None:
                yield event
        finally:
            self._run(self._flows.hang_up(heard))

    def report(self, job: str | Job) -> Report:
        """The report of a job that succeeded."""
        return self._run(self._flows.report(job))

    def report_bytes(self, job: str | Job) -> bytes:
        """The same as stored, byte for byte."""
        return self._run(self._flows.report_bytes(job))

    def report_markdown(self, job: str | Job) -> bytes:
        """The summary of a report for a pull request."""
        return self._run(self._flows.fetched("text/markdown", "jobs", id_of(job), "report"))

    def report_html(self, job: str | Job) -> bytes:
        """A report as a page to read, which needs nothing else."""
        return self._run(self._flows.fetched("text/html", "jobs", id_of(job), "report"))

    def charts(self, job: str | Job) -> list[Json]:
        """The charts of a report: name, title, what each says in words, links."""
        page = self._run(self._flows.get(dict, "jobs", id_of(job), "charts"))
        return list(page["items"])

    def chart(self, job: str | Job, name: str, format: str = "svg") -> bytes:
        """A chart of a report as `svg`, as `png`, or as its Vega-Lite specification, `vl.json`."""
        media_type, file = CHART_FORMATS.get(format, "*/*"), f"{name}.{format}"
        return self._run(self._flows.fetched(media_type, "jobs", id_of(job), "charts", file))

    def history(
        self,
        *,
        kind: str | None = None,
        measures: Sequence[str] = (),
        tag: str | None = None,
        dataset: str | None = None,
        computed: bool = False,
        limit: int = 20,
    ) -> list[ReportPoint]:
        """
        The newest reports with these measures, all of them by default.

        A measure is a path of results, or one of the catalogue, whose names in braces stand for all.
        With `computed`, no report that only repeats one there was already.
        """
        filters = {
            "kind": kind, "measure": measures, "tag": tag, "dataset": dataset,
            "computed": "true" if computed else None,
        }  # fmt: skip
        return self._run(self._flows.newest(ReportPoint, "reports", limit, **filters))

    def history_csv(
        self,
        *,
        kind: str | None = None,
        measures: Sequence[str] = (),
        tag: str | None = None,
        dataset: str | None = None,
        computed: bool = False,
        limit: int = 20,
    ) -> bytes:
        """The same as a table, a line for each measure of a report."""
        filters = {
            "kind": kind, "measure": measures, "tag": tag, "dataset": dataset,
            "computed": "true" if computed else None,
        }  # fmt: skip
        return self._run(self._flows.history_csv(limit, **filters))

    def start_gate(
        self,
        policy: Mapping[str, Any],
        inputs: Mapping[str, Any],
        *,
        key: str | None = None,
        tags: Mapping[str, str] | None = None,
        progress: UploadProgress | None = None,
    ) -> GateRun:
        """Start the jobs of a policy on these inputs."""
        body = {"policy": policy, "inputs": inputs, **({"tags": dict(tags)} if tags else {})}
        return self._run(self._flows.start_gate(body, key, progress))

    def wait_gate(self, run: str | GateRun, progress: Watch | None = None) -> GateRun:
        """The gate run once it is judged or cancelled."""
        return self._run(self._flows.wait_gate(run, progress))

    def gate(
        self,
        policy: Mapping[str, Any],
        inputs: Mapping[str, Any],
        progress: Watch | None = None,
        *,
        key: str | None = None,
    ) -> GateRun:
        """Judge a policy: start it and wait; the gate run with its verdict."""
        body = {"policy": policy, "inputs": inputs}
        return self._run(self._flows.gate(body, key, progress, None))

    def validate(self, policy: Mapping[str, Any]) -> Policy:
        """What a policy wants; one with faults is raised with each of them. Nothing is started."""
        return self._run(self._flows.validate(policy))

    def gate_run(self, run: str | GateRun) -> GateRun:
        """The gate run as it is now."""
        return self._run(self._flows.get(GateRun, "gates", id_of(run)))

    def gate_runs(self, *, tag: str | None = None, limit: int = 20) -> list[GateRun]:
        """The newest gate runs; `tag` is `name:value`."""
        return self._run(self._flows.newest(GateRun, "gates", limit, tag=tag))

    def gate_markdown(self, run: str | GateRun) -> bytes:
        """A gate run as a comment for a pull request."""
        return self._run(self._flows.gate_markdown(run))

    def promote(self, run: str | GateRun, input_name: str, baseline: str) -> Baseline:
        """Let a baseline stand for an input of a gate run that passed."""
        return self._run(self._flows.promote(run, input_name, baseline))

    def baselines(self) -> list[Baseline]:
        """Every baseline, by name."""
        return self._run(self._flows.named())

    def baseline(self, name: str) -> BaselineHistory:
        """What a baseline stands for, and what it stood for."""
        return self._run(self._flows.get(BaselineHistory, "baselines", name))

    def set_baseline(self, name: str, dataset: str) -> Baseline:
        """Let a baseline stand for a stored dataset."""
        return self._run(self._flows.set_baseline(name, dataset))

    def cancel_gate(self, run: str | GateRun) -> GateRun:
        """Stop a gate run and its jobs; one that is judged stays as it is."""
        return self._run(self._flows.cancel(GateRun, "gates", run))
