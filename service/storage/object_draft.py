"""Rows on their way into an object store."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import obstore
from obstore.store import LocalStore

from service.job import new_id

DRAFTS = "_drafts"
PIECE_BYTES = 1 << 20
PIECES_IN_FLIGHT = 1
"""By default a dozen pieces of each upload wait in memory for a slow disk."""


class ObjectDraft:
    """Rows on their way to the store; nothing is visible before they are whole."""

    def __init__(self, store: LocalStore, root: Path, project: str, job: str | None) -> None:
        self.project = project
        self.id = new_id("ds")
        self._mark = None if job is None else mark(root, job) / project / self.id
        if self._mark is not None:
            self._mark.parent.mkdir(parents=True, exist_ok=True)
            self._mark.touch()
        self._store, self._root = store, root
        self._file: Any = None
        self._start = b""

    @property
    def folder(self) -> str:
        return f"{self.project}/datasets/{self.id}"

    def write(self, data: bytes | memoryview) -> None:
        if self._file is None:
            self._file = obstore.open_writer(
                self._store,
                f"{self.folder}/vectors.npy",
                buffer_size=PIECE_BYTES,
                max_concurrency=PIECES_IN_FLIGHT,
            )
        self._file.write(data)

    def restart(self, data: bytes) -> None:
        self._start = data

    def spool(self) -> IO[bytes]:
        folder = self._root / self.folder
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=folder)

    def close(self) -> None:
        """The rows are whole."""
        if self._file is not None:
            self._file.close()
        if self._start:
            with (self._root / self.folder / "vectors.npy").open("r+b") as file:
                file.write(self._start)

    def drop(self) -> None:
        """Forget rows that were not closed: the store removes what it staged."""
        self._file = None

    def forget(self) -> None:
        """It is no draft any more."""
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)
            for folder in (self._mark.parent, self._mark.parent.parent):
                with suppress(OSError):  # others are there, or it is gone
                    folder.rmdir()


def mark(root: Path, job: str) -> Path:
    """Where the drafts of a job are named."""
    return root / DRAFTS / job
