"""Connections: addresses and credentials that an operator has named."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import Field, SecretStr, TypeAdapter, ValidationError

from service.errors import InvalidRequest
from service.model import Model
from service.ports import Tell

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class _Written(Model):
    """A connection as the operator writes it."""

    url: SecretStr
    user: str | None = None
    password: SecretStr | None = None
    options: dict[str, SecretStr] = Field(default_factory=dict)
    private: bool = False
    projects: list[str] | None = None
    timeout_s: float = Field(default=30.0, gt=0, le=600)


@dataclass(frozen=True)
class Connection:
    """One of them; its repr, and every error about it, shows its name alone."""

    name: str
    url: str = field(repr=False)
    """Address, without credentials."""
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What a kind needs besides (`region`, `endpoint`, `access_key_id`, ...); may be secret."""
    private: bool = False
    """Whether the address may be private or of this machine."""
    projects: frozenset[str] | None = None
    """Projects that may use it; None for all."""
    timeout_s: float = 30.0
    """Longest wait for an answer."""
    scratch: Path | None = field(default=None, repr=False)
    """Folder for what has to be kept while it is read."""
    largest_bytes: int = 8 << 30
    """Most that is kept there."""
    tell: Tell = field(default=lambda stage, done, total: None, repr=False, compare=False)
    """Told of what is fetched before it is read."""

    @property
    def parts(self) -> SplitResult:
        """The address in parts."""
        return urlsplit(self.url)

    @property
    def host(self) -> str:
        return self.parts.hostname or ""

    def port(self, default: int) -> int:
        return self.parts.port or default

    def open_to(self, project: str) -> bool:
        """Whether a project may use it."""
        return self.projects is None or project in self.projects

    def at(self, scratch: Path, largest_bytes: int) -> Connection:
        """The same, with a folder for what has to be kept meanwhile."""
        return dataclasses.replace(self, scratch=scratch, largest_bytes=largest_bytes)

    def telling(self, tell: Tell) -> Connection:
        """The same, for somebody who waits."""
        return dataclasses.replace(self, tell=tell)

    def to(self, url: str) -> Connection:
        """The same at another address."""
        return dataclasses.replace(self, url=url)


def read_connections(text: str) -> dict[str, Connection]:
    """
    Connections from JSON: `{"prod": {"url": "postgresql://reader:secret@db:5432/app"}}`.

    An error names places, never values.
    """
    try:
        written = TypeAdapter(dict[str, _Written]).validate_python(json.loads(text))
        return {name: _connection(name, one) for name, one in written.items()}
    except ValidationError as error:
        places = ", ".join(".".join(map(str, item["loc"])) for item in error.errors())
        known = ", ".join(_Written.model_fields)
        raise InvalidRequest(
            f"The connections are not valid at: {places}; a connection has {known}."
        ) from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"The connections are not JSON (line {error.lineno}).") from None


def _connection(name: str, written: _Written) -> Connection:
    if not NAME.fullmatch(name):
        raise InvalidRequest("A connection is named by 1-63 of a-z, 0-9, _ and -.")
    try:
        parts = urlsplit(written.url.get_secret_value())
        _ = parts.port
    except ValueError:
        raise InvalidRequest(f"The address of connection `{name}` cannot be read.") from None
    if not parts.scheme:
        raise InvalidRequest(f"The address of connection `{name}` needs a scheme.")
    given: dict[str, Any] = {"user": written.user}
    given["password"] = written.password.get_secret_value() if written.password else None
    return Connection(
        name=name,
        url=parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
        user=given["user"] or (unquote(parts.username) if parts.username else None),
        password=given["password"] or (unquote(parts.password) if parts.password else None),
        options={key: value.get_secret_value() for key, value in written.options.items()},
        private=written.private,
        projects=None if written.projects is None else frozenset(written.projects),
        timeout_s=written.timeout_s,
    )
