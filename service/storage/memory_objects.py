"""What an object store keeps, in memory."""

from __future__ import annotations

import io
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO

import numpy as np

from service import npy
from service.baseline import Baseline
from service.dataset import Dataset, Labels
from service.dataset_record import DatasetRecord
from service.errors import (
    UnknownBaseline,
    UnknownDataset,
)
from service.job import new_id, now
from service.ports import Draft, Page
from service.storage.listing import cut, position


@dataclass
class MemoryDraft:
    project: str
    id: str = field(default_factory=lambda: new_id("ds"))
    buffer: io.BytesIO = field(default_factory=io.BytesIO)

    def write(self, data: bytes | memoryview) -> None:
        self.buffer.write(data)

    def restart(self, data: bytes) -> None:
        self.buffer.seek(0)
        self.buffer.write(data)

    def spool(self) -> IO[bytes]:
        return tempfile.TemporaryFile()


class MemoryDatasets:
    """Datasets by project."""

    def __init__(self) -> None:
        self._stored: dict[tuple[str, str], tuple[DatasetRecord, Dataset]] = {}
        self._by_content: dict[tuple[str, str], str] = {}
        self._by_body: dict[tuple[str, str], str] = {}
        self._removing: set[tuple[str, str]] = set()
        self._used: dict[tuple[str, str], datetime] = {}
        self._lock = threading.Lock()

    def draft(self, project: str, job: str | None = None) -> Draft:
        return MemoryDraft(project)

    def drafting(self) -> list[str]:
        return []

    def abandon(self, job: str) -> None:
        pass

    def commit(
        self,
        draft: Draft,
        record: DatasetRecord,
        ids: tuple[str, ...] | None,
        columns: Mapping[str, Labels],
    ) -> tuple[DatasetRecord, bool]:
        rows = None
        if record.d is not None and isinstance(draft, MemoryDraft):
            draft.buffer.seek(0)
            rows = npy.read(draft.buffer)
        return self.keep(draft.project, record, Dataset(rows, ids, dict(columns), record.spec))

    def keep(
        self, project: str, record: DatasetRecord, data: Dataset
    ) -> tuple[DatasetRecord, bool]:
        """Keep rows that are in memory, or mapped, already."""
        with self._lock:
            known = self._by_content.get((project, record.sha256), record.id)
            if known != record.id and (project, known) not in self._removing:
                self._used[project, known] = now()
                return self._stored[project, known][0], False
            self._by_content[project, record.sha256] = record.id
            self._used[project, record.id] = now()
            self._stored[project, record.id] = (record, data)
            return record, True

    def discard(self, draft: Draft) -> None:
        pass

    def _get(self, project: str, dataset: str) -> tuple[DatasetRecord, Dataset]:
        try:
            return self._stored[project, dataset]
        except KeyError:
            raise UnknownDataset(f"There is no dataset `{dataset}`.") from None

    def record(self, project: str, dataset: str) -> DatasetRecord:
        return self._get(project, dataset)[0]

    def usable(self, project: str, dataset: str) -> DatasetRecord:
        if (project, dataset) in self._removing:
            raise UnknownDataset(f"Dataset `{dataset}` is being deleted.")
        record = self.record(project, dataset)
        self._used[project, dataset] = now()
        return record

    def page(self, project: str, limit: int, cursor: str | None) -> Page[DatasetRecord]:
        stored = list(self._stored.items())
        ours = [record for (owner, _), (record, _) in stored if owner == project]
        return cut(ours, limit, cursor, position)

    def remember_body(self, project: str, body: str, dataset: str) -> None:
        self._by_body[project, body] = dataset

    def of_body(self, project: str, body: str) -> DatasetRecord | None:
        with suppress(UnknownDataset):
            return self.usable(project, self._by_body.get((project, body), ""))
        return None

    def load(self, project: str, dataset: str) -> Dataset:
        return self._get(project, dataset)[1]

    def open_vectors(self, project: str, dataset: str) -> IO[bytes]:
        file = io.BytesIO()
        np.save(file, self.load(project, dataset).vectors)
        file.seek(0)
        return file

    def remove(self, project: str, dataset: str, keep: Callable[[], bool]) -> bool:
        with self._lock:
            record = self.usable(project, dataset)
            self._removing.add((project, dataset))
        try:
            if keep():
                return False
            with self._lock:
                del self._stored[project, dataset]
                self._used.pop((project, dataset), None)
                if self._by_content[project, record.sha256] == dataset:
                    del self._by_content[project, record.sha256]
            return True
        finally:
            self._removing.discard((project, dataset))

    def unused(self, since: datetime) -> list[tuple[str, str]]:
        return [key for key, at in list(self._used.items()) if at < since]

    def used(self, project: str, dataset: str) -> datetime:
        self.record(project, dataset)
        return self._used[project, dataset]

    def tidy(self, older_than: datetime) -> int:
        return 0

    def ids(self, project: str, dataset: str) -> tuple[str, ...] | None:
        return self.load(project, dataset).ids

    def column(self, project: str, dataset: str, name: str) -> Labels:
        return self.load(project, dataset).columns[name]

    def stored_bytes(self, project: str) -> int:
        stored = list(self._stored.items())
        return sum(_size(data) for (owner, _), (_, data) in stored if owner == project)

    def reachable(self) -> bool:
        return True


def _size(data: Dataset) -> int:
    rows = 0 if data.rows is None else data.vectors.nbytes
    ids = sum(len(value.encode()) for value in data.ids or ())
    return rows + ids + sum(column.codes.nbytes for column in data.columns.values())


class MemoryReports:
    """Report bytes by project and request digest."""

    def __init__(self) -> None:
        self._stored: dict[tuple[str, str], bytes] = {}

    def get(self, project: str, request_digest: str) -> bytes | None:
        return self._stored.get((project, request_digest))

    def put(self, project: str, request_digest: str, data: bytes) -> bytes:
        return self._stored.setdefault((project, request_digest), data)


class MemoryParts:
    """Parts by job and shard."""

    def __init__(self) -> None:
        self._stored: dict[str, dict[int, bytes]] = {}

    def put(self, job_id: str, shard: int, data: bytes | memoryview) -> None:
        self._stored.setdefault(job_id, {}).setdefault(shard, bytes(data))

    def open(self, job_id: str, shard: int) -> IO[bytes] | None:
        data = self._stored.get(job_id, {}).get(shard)
        return None if data is None else io.BytesIO(data)

    def jobs(self) -> list[str]:
        return list(self._stored)

    def remove(self, job_id: str) -> None:
        self._stored.pop(job_id, None)


class MemoryBaselines:
    """Baselines by project and name."""

    def __init__(self) -> None:
        self._stored: dict[tuple[str, str], list[Baseline]] = {}
        self._lock = threading.Lock()

    def set(self, project: str, name: str, dataset: str, gate: str | None) -> Baseline:
        with self._lock:
            past = self._stored.setdefault((project, name), [])
            if not past or past[-1].dataset != dataset:
                past.append(
                    Baseline(
                        name=name,
                        dataset=dataset,
                        version=len(past) + 1,
                        gate=gate,
                        set_at=now(),
                    )
                )
            return past[-1]

    def get(self, project: str, name: str) -> Baseline:
        return self.history(project, name, 1)[0]

    def history(self, project: str, name: str, limit: int) -> list[Baseline]:
        past = self._stored.get((project, name))
        if past is None:
            raise UnknownBaseline(f"There is no baseline `{name}`.")
        return past[: -limit - 1 : -1]

    def names(self, project: str) -> list[str]:
        return sorted(name for owner, name in self._stored if owner == project)
