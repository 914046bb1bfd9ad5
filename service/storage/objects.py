"""
Datasets in an object store, and where everything lies in it.

    <project>/datasets/<id>/vectors.npy   canonical rows, memory-mapped
    <project>/datasets/<id>/ids.json      ids, where rows have them
    <project>/datasets/<id>/columns.json  names and levels of columns
    <project>/datasets/<id>/codes.npy     (columns, n) int32
    <project>/datasets/<id>/dataset.json  metadata, written last: its presence is the commit, its time
                                          the last use
    <project>/contents/<sha256>           id of the dataset with this content, put-if-absent
    <project>/bodies/<sha256>             id of the dataset an upload with this body became
    <project>/reports/<request_digest>    report bytes, put-if-absent
    <project>/baselines/<name>/<version>  what the name stood for, put-if-absent
    _parts/<job>/<shard>                  .npz of a job that has not ended, put-if-absent
    _drafts/<job>/<project>/<id>          names a dataset that a job has not finished writing
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import numpy as np
import obstore
import orjson
import structlog
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore
from pydantic import ValidationError

from service import npy
from service.dataset import Dataset, Labels
from service.dataset_record import DatasetRecord
from service.errors import DamagedDataset, Internal, UnknownDataset
from service.ports import Draft, Page
from service.storage.listing import Place, cut, position
from service.storage.object_draft import DRAFTS, ObjectDraft, mark

REMOVING = "removing"
"""Lies in a dataset while it is asked whether something needs it."""
ASKING_S = 60.0
"""Whoever asks longer has died."""
COUNTED_S = 5.0
"""What other processes store is noticed after that."""
OTHERS = (errno.ENOENT, errno.ENOTEMPTY)
"""Somebody else deletes it too, or asks whether it may go."""
log = structlog.get_logger()
DATASET_ID = re.compile(r"ds_[0-9a-f]{24}")
DIGEST = re.compile(r"[0-9a-f]{64}")


class ObjectDatasets:
    """Datasets in a local folder (or a shared volume), through obstore."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._store = LocalStore(root, mkdir=True)
        self._known: dict[str, dict[str, tuple[Place, int]]] = {}
        """By project and id, a dataset's place in a listing and its size: they never change."""
        self._damaged: set[tuple[str, str]] = set()
        """Datasets whose damage has been told."""
        self._counted: dict[str, tuple[float, int]] = {}
        """By project, when it was counted and what it held."""

    def draft(self, project: str, job: str | None = None) -> Draft:
        return ObjectDraft(self._store, self._root, project, job)

    def commit(
        self,
        draft: Draft,
        record: DatasetRecord,
        ids: tuple[str, ...] | None,
        columns: Mapping[str, Labels],
    ) -> tuple[DatasetRecord, bool]:
        if not isinstance(draft, ObjectDraft):
            raise Internal("A draft belongs to the store that made it.")
        draft.close()
        if ids is not None:
            self._put(f"{draft.folder}/ids.json", orjson.dumps(ids))
        if columns:
            content = [{"name": name, "levels": c.levels} for name, c in columns.items()]
            self._put(f"{draft.folder}/columns.json", json.dumps(content).encode())
            codes = io.BytesIO()
            np.save(codes, np.stack([column.codes for column in columns.values()]))
            self._put(f"{draft.folder}/codes.npy", codes.getvalue())
        self._put(f"{draft.folder}/dataset.json", record.model_dump_json().encode())
        draft.forget()
        known = self.claim(draft.project, record)
        if known is None:
            self._grew(draft.project, record.id)
            return record, True
        self._remove(draft)
        return known, False

    def claim(self, project: str, record: DatasetRecord) -> DatasetRecord | None:
        """Make this the dataset of its content, or return the one that is."""
        key = f"{project}/contents/{record.sha256}"
        try:
            self._put(key, record.id.encode(), create=True)
        except AlreadyExistsError:
            try:
                return self.usable(project, self._bytes(key).decode())
            except (UnknownDataset, DamagedDataset, FileNotFoundError):
                # its upload died, or was undone, after the claim; or the same rows replace it, which
                # are being deleted
                self._put(key, record.id.encode())
        return None

    def discard(self, draft: Draft) -> None:
        if isinstance(draft, ObjectDraft):
            draft.drop()
            self._remove(draft)
            draft.forget()

    def _remove(self, draft: ObjectDraft) -> None:
        # the store does not list what a killed process has staged
        _delete(self._root / draft.folder)

    def record(self, project: str, dataset: str) -> DatasetRecord:
        if not DATASET_ID.fullmatch(dataset):
            raise UnknownDataset(f"There is no dataset `{dataset}`.")
        try:
            data = self._bytes(f"{project}/datasets/{dataset}/dataset.json")
        except FileNotFoundError:
            raise UnknownDataset(f"There is no dataset `{dataset}`.") from None
        try:
            return DatasetRecord.model_validate_json(data)
        except ValidationError:
            self._tell(project, dataset, "dataset.json")
            raise _damaged(dataset, "dataset.json") from None

    def usable(self, project: str, dataset: str) -> DatasetRecord:
        record = self.record(project, dataset)
        if _asked(self._root / _folder(project, dataset)):
            raise UnknownDataset(f"Dataset `{dataset}` is being deleted.")
        with suppress(FileNotFoundError):  # deleted meanwhile
            os.utime(self._root / _folder(project, dataset) / "dataset.json")
        return record

    def _tell(self, project: str, dataset: str, file: str) -> None:
        """Say once that a dataset is damaged."""
        if (project, dataset) not in self._damaged:
            self._damaged.add((project, dataset))
            log.error("a dataset is damaged", project=project, dataset=dataset, file=file)

    def page(self, project: str, limit: int, cursor: str | None) -> Page[DatasetRecord]:
        places = [place for place, _ in self._there(project).values() if place is not None]
        page = cut(places, limit, cursor, lambda place: place)
        items = []
        for _, dataset in page.items:
            with suppress(UnknownDataset, DamagedDataset):  # deleted, or damaged, meanwhile
                items.append(self.record(project, dataset))
        return Page(items, page.next_cursor)

    def damaged(self, project: str) -> tuple[str, ...]:
        """Datasets whose record cannot be read."""
        there = self._there(project).items()
        return tuple(sorted(dataset for dataset, (place, _) in there if place is None))

    def stored_bytes(self, project: str) -> int:
        counted, total = self._counted.get(project, (-COUNTED_S, 0))
        if time.monotonic() - counted >= COUNTED_S:
            total = sum(size for _, size in self._there(project).values())
            self._counted[project] = time.monotonic(), total
        return total

    def _grew(self, project: str, dataset: str) -> None:
        """A dataset was added here: it counts before the next count."""
        if project in self._counted:
            counted, total = self._counted[project]
            self._counted[project] = counted, total + self._size(project, dataset)

    def _size(self, project: str, dataset: str) -> int:
        pages = obstore.list(self._store, prefix=f"{project}/datasets/{dataset}")
        return sum(item["size"] for page in pages for item in page)

    def _there(self, project: str) -> dict[str, tuple[Place | None, int]]:
        """
        Place and size of every dataset that is there now; only new ones are read.

        A damaged one takes its room and has no place.
        """
        prefixes = obstore.list_with_delimiter(self._store, prefix=f"{project}/datasets/")
        there = [str(prefix).rsplit("/", 1)[-1] for prefix in prefixes["common_prefixes"]]
        known = self._known.get(project, {})
        found: dict[str, tuple[Place, int]] = {}
        damaged: dict[str, tuple[None, int]] = {}
        for dataset in there:
            if dataset in known:
                found[dataset] = known[dataset]
                continue
            with suppress(UnknownDataset):  # on its way in
                try:
                    place = position(self.record(project, dataset))
                    found[dataset] = place, self._size(project, dataset)
                except DamagedDataset:
                    damaged[dataset] = None, self._size(project, dataset)
        self._known[project] = found
        return {**found, **damaged}

    def remember_body(self, project: str, body: str, dataset: str) -> None:
        self._put(f"{project}/bodies/{body}", dataset.encode())

    def of_body(self, project: str, body: str) -> DatasetRecord | None:
        if not DIGEST.fullmatch(body):
            return None
        try:
            return self.usable(project, self._bytes(f"{project}/bodies/{body}").decode())
        except (FileNotFoundError, UnknownDataset, DamagedDataset):
            return None

    def forget_body(self, project: str, body: str) -> bool:
        """Forget what a body became, if that is gone; whether it was."""
        if self.of_body(project, body) is not None:
            return False
        obstore.delete(self._store, f"{project}/bodies/{body}")
        return True

    def load(self, project: str, dataset: str) -> Dataset:
        record = self.record(project, dataset)
        rows = None
        if record.d is not None:
            with self._reading(project, dataset, "vectors.npy"):
                rows = npy.mapped(self._root / _folder(project, dataset) / "vectors.npy")
                if rows.shape != (record.n, record.d):
                    raise ValueError(f"{rows.shape} rows instead of {record.n} x {record.d}")
        return Dataset(
            rows, self._ids(project, record), self._columns(project, record), record.spec
        )

    def open_vectors(self, project: str, dataset: str) -> IO[bytes]:
        self.record(project, dataset)
        with self._reading(project, dataset, "vectors.npy"):
            return (self._root / _folder(project, dataset) / "vectors.npy").open("rb")

    def remove(self, project: str, dataset: str, keep: Callable[[], bool]) -> bool:
        content = self._content(project, dataset)
        folder = self._root / _folder(project, dataset)
        if _asked(folder) or not (folder / "dataset.json").exists():
            raise UnknownDataset(f"There is no dataset `{dataset}`.")
        sign = folder / REMOVING
        try:
            asked = -ASKING_S
            while (
                time.monotonic() - asked >= ASKING_S / 2
            ):  # nothing new could use it all the while
                sign.touch()
                asked = time.monotonic()
                if keep():
                    return False
            (folder / "dataset.json").unlink()
        except FileNotFoundError:
            raise UnknownDataset(f"There is no dataset `{dataset}`.") from None
        finally:
            sign.unlink(missing_ok=True)
        # there is none for a dataset of before the index, or after somebody else's removal
        with suppress(FileNotFoundError):
            if content is not None and self._bytes(content).decode() == dataset:
                obstore.delete(self._store, content)
        _delete(folder)
        return True

    def _content(self, project: str, dataset: str) -> str | None:
        """Where the content of a dataset leads to it; None if its record does not say."""
        try:
            return f"{project}/contents/{self.record(project, dataset).sha256}"
        except DamagedDataset:  # a claim that leads to nothing is taken over by the next upload
            return None

    def drafting(self) -> list[str]:
        return [folder.name for folder in (self._root / DRAFTS).glob("*")]

    def abandon(self, job: str) -> None:
        left = mark(self._root, job)
        for named in left.glob("*/*"):
            folder = self._root / _folder(named.parent.name, named.name)
            if not (folder / "dataset.json").exists():
                _delete(folder)
        with suppress(FileNotFoundError):
            shutil.rmtree(left)

    def unused(self, since: datetime) -> list[tuple[str, str]]:
        found = []
        for shown in self._root.glob("*/datasets/ds_*/dataset.json"):
            project, dataset = shown.parts[-4], shown.parts[-2]
            with suppress(UnknownDataset):  # removed meanwhile
                if self.used(project, dataset) < since:
                    found.append((project, dataset))
        return found

    def used(self, project: str, dataset: str) -> datetime:
        try:
            shown = (self._root / _folder(project, dataset) / "dataset.json").stat()
        except FileNotFoundError:
            raise UnknownDataset(f"There is no dataset `{dataset}`.") from None
        return datetime.fromtimestamp(shown.st_mtime, UTC)

    def tidy(self, older_than: datetime) -> int:
        found = 0
        for folder in self._root.glob("*/datasets/ds_*"):
            with suppress(FileNotFoundError):  # discarded or removed meanwhile
                if (folder / "dataset.json").exists():
                    continue
                newest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
                if newest < older_than.timestamp():
                    _delete(folder)
                    found += 1
        return found

    def ids(self, project: str, dataset: str) -> tuple[str, ...] | None:
        return self._ids(project, self.record(project, dataset))

    def _ids(self, project: str, record: DatasetRecord) -> tuple[str, ...] | None:
        if record.ids_sha256 is None:
            return None
        with self._reading(project, record.id, "ids.json"):
            ids = tuple(orjson.loads(self._bytes(f"{_folder(project, record.id)}/ids.json")))
            if len(ids) != record.n:
                raise ValueError(f"{len(ids)} ids instead of {record.n}")
            return ids

    def column(self, project: str, dataset: str, name: str) -> Labels:
        return self._columns(project, self.record(project, dataset))[name]

    def _columns(self, project: str, record: DatasetRecord) -> dict[str, Labels]:
        if not record.columns:
            return {}
        folder = _folder(project, record.id)
        with self._reading(project, record.id, "columns.json"):
            listed = json.loads(self._bytes(f"{folder}/columns.json"))
            names = [(item["name"], tuple(item["levels"])) for item in listed]
        with self._reading(project, record.id, "codes.npy"):
            codes = npy.read(io.BytesIO(self._bytes(f"{folder}/codes.npy")))
            if codes.shape != (len(names), record.n):
                raise ValueError(f"codes of shape {codes.shape}")
        return {
            name: Labels(levels, column)
            for (name, levels), column in zip(names, codes, strict=True)
        }

    @contextmanager
    def _reading(self, project: str, dataset: str, file: str) -> Iterator[None]:
        """What a file of a dataset that is there cannot be read for is damage."""
        try:
            yield
        except (FileNotFoundError, ValueError, TypeError, KeyError) as error:
            self.record(project, dataset)  # deleted meanwhile is not damaged
            self._tell(project, dataset, file)
            raise _damaged(dataset, file) from error

    def reachable(self) -> bool:
        try:
            self._put("_reachable", b"")
        except (OSError, BaseError):
            return False
        return True

    def _put(self, key: str, data: bytes, *, create: bool = False) -> None:
        obstore.put(self._store, key, data, mode="create" if create else "overwrite")

    def _bytes(self, key: str) -> bytes:
        return bytes(obstore.get(self._store, key).bytes())


def projects(root: Path) -> list[str]:
    """Names of all projects that have stored something."""
    folders = (path for path in root.iterdir() if path.is_dir()) if root.is_dir() else ()
    return sorted(path.name for path in folders if not path.name.startswith("_"))


def _asked(folder: Path) -> bool:
    """Whether somebody asks at this time if a dataset may go."""
    try:
        return time.time() - (folder / REMOVING).stat().st_mtime < ASKING_S
    except FileNotFoundError:
        return False


def _damaged(dataset: str, file: str) -> DamagedDataset:
    return DamagedDataset(
        f"`{file}` of dataset `{dataset}` cannot be read: restore it from a backup, or delete the "
        "dataset and upload it again."
    )


def _folder(project: str, dataset: str) -> str:
    return f"{project}/datasets/{dataset}"


def _delete(folder: Path) -> None:
    while folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError as error:
            if error.errno not in OTHERS:
                raise
