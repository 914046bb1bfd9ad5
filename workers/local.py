"""A check, or a gate, in this process: the same operations, on memory storage and mapped files."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from service import logs, npy
from service.charts import NOT_INSTALLED, Painter, pictures
from service.checks import CATALOGUE
from service.dataset import Dataset
from service.errors import AssayError, ChartsNotInstalled, InvalidRequest, UnsupportedFormat
from service.formats import Options
from service.gate import read_policy, verdict_page
from service.gating import read_gate, run_gate
from service.operations import Upload, perform, report_bytes, submit
from service.report import load_report
from service.request import parse_request
from service.storage.memory import memory_services
from service.storage.memory_objects import MemoryDatasets, MemoryDraft
from service.views import check_view
from workers.watched import Tell, WatchedJobs

PROJECT = "local"
PIECE_BYTES = 4 << 20
CONTENT_TYPES = {
    ".npy": "application/x-npy",
    ".csv": "text/csv",
    ".parquet": "application/vnd.apache.parquet",
    ".arrow": "application/vnd.apache.arrow.stream",
    ".arrows": "application/vnd.apache.arrow.stream",
}
TABLE_OPTIONS = ("vector_column", "id_column")


class _MappedDatasets(MemoryDatasets):
    """Maps a .npy file instead of copying it, where its bytes are canonical already."""

    mapping: Path | None = None
    """The file that is being read, where its rows can be mapped."""

    def draft(self, project: str, job: str | None = None) -> MemoryDraft:
        if self.mapping is None:
            return MemoryDraft(project)
        return _Mapped(project, file=self.mapping)

    def commit(self, draft: Any, record: Any, ids: Any, columns: Any) -> Any:
        if not isinstance(draft, _Mapped):
            return super().commit(draft, record, ids, columns)
        rows = npy.mapped(draft.file)
        return self.keep(PROJECT, record, Dataset(rows, ids, dict(columns), record.spec))


@dataclass
class _Mapped(MemoryDraft):
    file: Path = Path()

    def write(self, data: bytes | memoryview) -> None:
        pass


def run(request: dict[str, Any], base: Path, progress: Tell) -> bytes:
    """
    The report of a request whose roles may be `{"path": file}` relative to `base`.

    Raises AssayError with code, detail and the rows concerned.
    """
    here = _Here(base, progress)
    job = submit(here.services, PROJECT, parse_request(here.stored(request)))
    perform(here.services, job.id)
    return report_bytes(here.services, PROJECT, job.id)


def charts() -> Callable[[bytes], dict[str, Callable[[], bytes]]]:
    """What finds the charts of a report, by name, each drawn as SVG when it is wanted."""
    painter = Painter()
    if not painter.installed:
        raise ChartsNotInstalled(NOT_INSTALLED)

    def found(report: bytes) -> dict[str, Callable[[], bytes]]:
        return {
            one.name: partial(painter.draw, one, "svg") for one in pictures(load_report(report))
        }

    return found


def gate(
    policy: dict[str, Any], inputs: dict[str, Any], base: Path, progress: Tell
) -> tuple[dict[str, Any], str]:
    """A judged gate run, much as `POST /v1/gates` answers it, and its page as Markdown."""
    here = _Here(base, progress)
    bound = here.stored({"inputs": inputs})["inputs"]
    run = run_gate(here.services, PROJECT, policy, bound, {})
    for job_id in (*run.jobs.values(), *run.fail_jobs.values()):
        perform(here.services, job_id)
    end = read_gate(here.services, PROJECT, run.id)
    name = end.policy.name
    shown = end.model_dump(mode="json", exclude={"policy", "project", "version"})
    page = verdict_page(name, end.state, end.verdict, end.rules, end.warnings, end.digest)
    return {**shown, "policy": name}, page


def wanted(policy: dict[str, Any]) -> dict[str, str]:
    """What to bind to the inputs of a policy; one with faults is refused with each of them."""
    return dict(read_policy(policy).inputs)


class _Here:
    """The service in this process, and the files it has read."""

    def __init__(self, base: Path, progress: Tell) -> None:
        logs.configure(logging.WARNING)
        self._base, self._datasets = base, _MappedDatasets()
        self._known: dict[tuple[Path, Options], str] = {}
        self.services = memory_services(
            datasets=self._datasets,
            jobs=WatchedJobs(progress),
            threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        )

    def stored(self, request: dict[str, Any]) -> dict[str, Any]:
        """The same with every file read once, and named by its dataset."""
        inputs = request.get("inputs")
        if not isinstance(inputs, dict):
            return request
        return {**request, "inputs": {role: self._value(role, one) for role, one in inputs.items()}}

    def _value(self, role: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self._value(role, one) for one in value]
        if not isinstance(value, dict) or "source" in value:
            return value
        if "path" not in value:
            return {
                key: self._value(role, one) if isinstance(one, dict) else one
                for key, one in value.items()
            }
        options = Options(**{key: value.get(key) for key in TABLE_OPTIONS})
        known = (self._base / value["path"]).resolve(), options
        if known not in self._known:
            try:
                self._known[known] = self._read(*known)
            except AssayError as error:
                error.detail = f"`{role}` {known[0].name}: {error.detail}"
                raise
        rest = {key: item for key, item in value.items() if key not in ("path", *TABLE_OPTIONS)}
        return {"dataset": self._known[known], **rest}

    def _read(self, path: Path, options: Options) -> str:
        content_type = CONTENT_TYPES.get(path.suffix.lower())
        if content_type is None:
            raise UnsupportedFormat(f"Only {', '.join(CONTENT_TYPES)} files can be read.")
        if not path.is_file():
            raise InvalidRequest(f"There is no such file in {path.parent}.")
        self._datasets.mapping = path if _canonical(path) else None
        upload = Upload(self.services, PROJECT, content_type, options, name=path.name)
        self._datasets.mapping = None
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                upload.feed(piece)
        return upload.finish()[0].id


def _canonical(path: Path) -> bool:
    """Whether a file holds exactly the bytes a dataset keeps: C order, little-endian."""
    if path.suffix != ".npy":
        return False
    try:
        rows = npy.mapped(path)
    except (ValueError, OSError):
        return False
    return bool(rows.flags.c_contiguous and rows.dtype.newbyteorder("<") == rows.dtype)


def kinds() -> list[dict[str, Any]]:
    """The catalogue, as `GET /v1/checks` answers it."""
    return [check_view(check).model_dump(mode="json") for check in CATALOGUE]
