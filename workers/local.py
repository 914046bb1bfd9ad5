"""One check in this process: the same operations, on memory storage and mapped files."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from service import logs
from service.checks import CATALOGUE
from service.dataset import Dataset
from service.errors import InvalidRequest
from service.job import Progress
from service.operations import Services, Upload, perform, report_bytes, submit
from service.request import parse_request
from service.storage.memory import (
    MemoryDatasets,
    MemoryDraft,
    MemoryJobs,
    memory_services,
)
from service.views import check_view

PROJECT = "local"
PIECE_BYTES = 4 << 20
CONTENT_TYPES = {".npy": "application/x-npy", ".csv": "text/csv", ".json": "application/json"}
Tell = Callable[[str, int, int], None]


class _MappedDatasets(MemoryDatasets):
    """Maps a .npy file instead of copying it, where its bytes are canonical already."""

    mapping: Path | None = None
    """The file that is being read, where its rows can be mapped."""

    def draft(self, project: str) -> MemoryDraft:
        if self.mapping is None:
            return MemoryDraft(project)
        return _Mapped(project, file=self.mapping)

    def commit(self, draft: Any, record: Any, ids: Any, columns: Any) -> Any:
        if not isinstance(draft, _Mapped):
            return super().commit(draft, record, ids, columns)
        rows = np.load(draft.file, mmap_mode="r", allow_pickle=False)
        return self.keep(PROJECT, record, Dataset(rows, ids, dict(columns), record.spec))


@dataclass
class _Mapped(MemoryDraft):
    file: Path = Path()

    def write(self, data: bytes | memoryview) -> None:
        pass


class _Told(MemoryJobs):
    """Hands progress to whoever watches."""

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell

    def report_progress(self, job_id: str, progress: Progress) -> None:
        self._tell(progress.stage, progress.done, progress.total)


def run(request: dict[str, Any], base: Path, progress: Tell) -> bytes:
    """
    The report of a request whose roles may be `{"path": file}` relative to `base`.

    Raises AssayError with code, detail and the rows concerned.
    """
    logs.configure(logging.WARNING)
    datasets = _MappedDatasets()
    services = memory_services(
        datasets=datasets,
        jobs=_Told(progress),
        threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
    )
    inputs = request.get("inputs")
    known: dict[Path, str] = {}
    if isinstance(inputs, dict):
        request = {
            **request,
            "inputs": {
                role: _stored(services, datasets, base, value, known)
                for role, value in inputs.items()
            },
        }
    job = submit(services, PROJECT, parse_request(request))
    perform(services, job.id)
    return report_bytes(services, PROJECT, job.id)


def _stored(
    services: Services, datasets: _MappedDatasets, base: Path, value: Any, known: dict[Path, str]
) -> Any:
    if isinstance(value, list):
        return [_stored(services, datasets, base, one, known) for one in value]
    if not isinstance(value, dict):
        return value
    if "path" not in value:
        return {
            key: _stored(services, datasets, base, one, known) if isinstance(one, dict) else one
            for key, one in value.items()
        }
    path = (base / value["path"]).resolve()
    if path not in known:
        known[path] = _read(services, datasets, path)
    rest = {key: item for key, item in value.items() if key != "path"}
    return {"dataset": known[path], **rest}


def _read(services: Services, datasets: _MappedDatasets, path: Path) -> str:
    content_type = CONTENT_TYPES.get(path.suffix)
    if content_type is None:
        raise InvalidRequest(f"{path.name}: only {', '.join(CONTENT_TYPES)} files can be read.")
    if not path.is_file():
        raise InvalidRequest(f"There is no file {path.name} in {path.parent}.")
    datasets.mapping = path if _canonical(path) else None
    upload = Upload(services, PROJECT, content_type, name=path.name)
    datasets.mapping = None
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            upload.feed(piece)
    return upload.finish()[0].id


def _canonical(path: Path) -> bool:
    """Whether a file holds exactly the bytes a dataset keeps: C order, little-endian."""
    if path.suffix != ".npy":
        return False
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError):
        return False
    return bool(rows.flags.c_contiguous and rows.dtype.newbyteorder("<") == rows.dtype)


def kinds() -> list[dict[str, Any]]:
    """The catalogue, as `GET /v1/checks` answers it."""
    return [check_view(check).model_dump(mode="json") for check in CATALOGUE]
