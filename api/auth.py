"""Who may do what: API keys with a project and scopes, or the rules of loopback without keys."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import structlog
from starlette.requests import HTTPConnection

from service.errors import Forbidden, InvalidRequest, Unauthorised
from service.references import Model

LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}
PROXIED = ("origin", "forwarded", "x-forwarded-for")
PROJECT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
OPEN_PROJECT = "default"

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


@dataclass(frozen=True)
class Identity:
    """The project a request acts in, and what it may do there."""

    project: str
    scopes: frozenset[Scope]

    def need(self, scope: Scope) -> None:
        """Refuse unless the scope was granted; `admin` includes all."""
        if scope not in self.scopes and Scope.admin not in self.scopes:
            raise Forbidden(f"This key lacks the scope `{scope.value}`.")


EVERYONE = Identity(OPEN_PROJECT, frozenset(Scope))


class Keys:
    """The keys file, read again whenever it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._by_id: dict[str, KeyRecord] = {}

    def find(self, key_id: str) -> KeyRecord | None:
        try:
            self._refresh()
        except FileNotFoundError:  # no file, no keys
            self._by_id, self._stamp = {}, None
        except (OSError, ValueError) as error:  # the keys known so far stay in force
            log.error("keys file cannot be read", error=type(error).__name__)
        return self._by_id.get(key_id)

    def _refresh(self) -> None:
        status = self._path.stat()
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return
        lines = self._path.read_text().splitlines()
        records = [KeyRecord.model_validate_json(line) for line in lines if line]
        self._by_id = {record.id: record for record in records}
        self._stamp = stamp


def create_key(path: Path, project: str, scopes: list[Scope]) -> str:
    """Add a key to the file; the returned key is shown once and stored nowhere."""
    if not PROJECT.fullmatch(project):
        raise InvalidRequest(
            "A project is 1-63 of a-z, 0-9, _ and -, starting with a letter or digit."
        )
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    record = KeyRecord(
        id=key_id,
        sha256=hashlib.sha256(secret.encode()).hexdigest(),
        project=project,
        scopes=scopes,
        created_at=datetime.now(UTC),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    unfinished = path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    with os.fdopen(descriptor, "w") as file:
        file.write("\n" * unfinished + json.dumps(record.model_dump(mode="json")) + "\n")
    return f"assay_{key_id}_{secret}"


def identify(connection: HTTPConnection, keys: Keys | None) -> Identity:
    """The identity behind a request."""
    if keys is None:
        _refuse_unless_loopback(connection)
        return EVERYONE
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    prefix, _, rest = key.strip().partition("_")
    key_id, _, secret = rest.partition("_")
    record = keys.find(key_id) if scheme.lower() == "bearer" and prefix == "assay" else None
    given = hashlib.sha256(secret.encode()).hexdigest()
    if not key:
        raise Unauthorised("Send `Authorization: Bearer <key>` with a key of `assay keys create`.")
    if record is None or not hmac.compare_digest(given, record.sha256):
        raise Unauthorised("This key is not known here; make one with `assay keys create`.")
    return Identity(record.project, frozenset(record.scopes))


def _refuse_unless_loopback(connection: HTTPConnection) -> None:
    host = connection.headers.get("host", "").lower()
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if name not in LOOPBACK:
        raise Forbidden(
            "Without API keys only localhost is served; create one with `assay keys create`."
        )
    for header in PROXIED:
        if header in connection.headers:
            raise Forbidden(
                f"Without API keys a request with `{header}` is refused: it may come from a web "
                "page or through a proxy."
            )
