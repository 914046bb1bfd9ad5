"""API keys: a file with one hashed key a line, rewritten whole and read again when it changes."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

import structlog
from pydantic import ValidationError

from service.errors import InvalidRequest
from service.references import Model

PROJECT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
PRIVATE = 0o600

log = structlog.get_logger()


class Scope(StrEnum):
    read = "read"
    submit = "submit"
    admin = "admin"


class KeyRecord(Model):
    """A key as the file keeps it: the secret is hashed."""

    id: str
    sha256: str
    project: str
    scopes: list[Scope]
    created_at: datetime
    expires_at: datetime | None = None
    """When it stops to count, after it was replaced."""

    def matches(self, secret: str, at: datetime) -> bool:
        """Whether this secret counts now."""
        given = hashlib.sha256(secret.encode()).hexdigest()
        return hmac.compare_digest(given, self.sha256) and not self.expired(at)

    def expired(self, at: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= at


class Keys:
    """The keys file, read again whenever it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._by_id: dict[str, KeyRecord] = {}

    def find(self, key_id: str) -> KeyRecord | None:
        try:
            self._refresh()
        except FileNotFoundError:  # no file, no keys
            self._by_id, self._stamp = {}, None
        except (
            OSError,
            ValueError,
            InvalidRequest,
        ) as error:  # the keys known so far stay in force
            log.error("keys file cannot be read", error=type(error).__name__)
        return self._by_id.get(key_id)

    def _refresh(self) -> None:
        status = self._path.stat()
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp == self._stamp:
            return
        self._by_id = {record.id: record for record in read_keys(self._path)}
        self._stamp = stamp


def read_keys(path: Path) -> list[KeyRecord]:
    """Every key of the file, oldest first."""
    lines = path.read_text().splitlines()
    try:
        return [KeyRecord.model_validate_json(line) for line in lines if line.strip()]
    except ValidationError:
        raise InvalidRequest(f"{path} holds a line that is no key; repair it first.") from None


def create_key(path: Path, project: str, scopes: list[Scope]) -> str:
    """Add a key to the file; the returned key is shown once and stored nowhere."""
    if not PROJECT.fullmatch(project):
        raise InvalidRequest(
            "A project is 1-63 of a-z, 0-9, _ and -, starting with a letter or digit."
        )
    key, record = _new(project, scopes)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _rewriting(path) as records:
        records.append(record)
    return key


def revoke_key(path: Path, key_id: str) -> None:
    """Take a key out of the file."""
    _there(path)
    with _rewriting(path) as records:
        records.remove(_known(records, key_id))


def rotate_key(path: Path, key_id: str, keep: timedelta) -> str:
    """A new key for the same project and scopes; the old one counts for `keep` longer."""
    _there(path)
    with _rewriting(path) as records:
        old = _known(records, key_id)
        key, record = _new(old.project, old.scopes)
        place = records.index(old)
        records.append(record)
        if keep > timedelta():
            records[place] = old.model_copy(update={"expires_at": datetime.now(UTC) + keep})
        else:
            del records[place]
    return key


def _new(project: str, scopes: list[Scope]) -> tuple[str, KeyRecord]:
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    record = KeyRecord(
        id=key_id,
        sha256=hashlib.sha256(secret.encode()).hexdigest(),
        project=project,
        scopes=sorted(set(scopes), key=list(Scope).index),
        created_at=datetime.now(UTC),
    )
    return f"assay_{key_id}_{secret}", record


def _there(path: Path) -> None:
    """A mistyped path is not made into a file."""
    path.stat()


def _known(records: list[KeyRecord], key_id: str) -> KeyRecord:
    for record in records:
        if record.id == key_id:
            return record
    raise InvalidRequest(f"There is no key `{key_id}`; `assay keys list` shows what there is.")


@contextmanager
def _rewriting(path: Path) -> Iterator[list[KeyRecord]]:
    """
    The keys, to be changed; the file is replaced in one step, and by one process at a time.

    Expired keys are dropped. Readers see the old file or the new one, whoever dies.
    """
    path = path.resolve()
    with path.with_name(f"{path.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        records = read_keys(path) if path.exists() else []
        at = datetime.now(UTC)
        kept = [record for record in records if not record.expired(at)]
        yield kept
        text = "".join(f"{record.model_dump_json(exclude_none=True)}\n" for record in kept)
        _replace(path, text.encode())


def _replace(path: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
            os.fchmod(descriptor, PRIVATE)
            if path.exists():
                status = path.stat()
                os.fchmod(descriptor, status.st_mode & 0o777)
                with suppress(PermissionError):  # the service may run as another user
                    os.fchown(descriptor, status.st_uid, status.st_gid)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
