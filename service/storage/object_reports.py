"""Reports and parts of jobs in an object store: bytes that are put once; see `storage.objects`."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import LocalStore

from service.storage.objects import DIGEST

PARTS = "_parts"


class ObjectReports:
    """Reports in the same store."""

    def __init__(self, root: Path) -> None:
        self._store = LocalStore(root, mkdir=True)

    def get(self, project: str, request_digest: str) -> bytes | None:
        if not DIGEST.fullmatch(request_digest):
            return None
        try:
            return bytes(obstore.get(self._store, _report(project, request_digest)).bytes())
        except FileNotFoundError:
            return None

    def put(self, project: str, request_digest: str, data: bytes) -> bytes:
        try:
            obstore.put(self._store, _report(project, request_digest), data, mode="create")
        except AlreadyExistsError:
            return bytes(obstore.get(self._store, _report(project, request_digest)).bytes())
        return data


def _report(project: str, request_digest: str) -> str:
    return f"{project}/reports/{request_digest}"


class ObjectParts:
    """Parts of jobs in the same store, where no project can be."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._store = LocalStore(root, mkdir=True)

    def put(self, job_id: str, shard: int, data: bytes | memoryview) -> None:
        try:
            obstore.put(self._store, _part(job_id, shard), data, mode="create")
        except AlreadyExistsError:
            return

    def open(self, job_id: str, shard: int) -> IO[bytes] | None:
        try:
            return (self._root / _part(job_id, shard)).open("rb")
        except FileNotFoundError:
            return None

    def jobs(self) -> list[str]:
        folders = obstore.list_with_delimiter(self._store, prefix=PARTS)["common_prefixes"]
        return [Path(folder).name for folder in folders]

    def remove(self, job_id: str) -> None:
        # the store does not list what a killed process has staged
        with suppress(FileNotFoundError):  # somebody else removes them too
            shutil.rmtree(self._root / PARTS / job_id)


def _part(job_id: str, shard: int) -> str:
    return f"{PARTS}/{job_id}/{shard}"
