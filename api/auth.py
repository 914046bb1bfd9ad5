"""Who may do what: API keys with a project and scopes, or the rules of loopback without keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.requests import HTTPConnection

from api.keys import Keys, Scope
from service.errors import Forbidden, Unauthorised

LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}
PROXIED = ("origin", "forwarded", "x-forwarded-for")
OPEN_PROJECT = "default"


@dataclass(frozen=True)
class Identity:
    """The project a request acts in, and what it may do there."""

    project: str
    scopes: frozenset[Scope]
    key: str = "loopback"
    """Id of the key that was sent."""

    def need(self, scope: Scope) -> None:
        """Refuse unless the scope was granted; `admin` includes all."""
        if scope not in self.scopes and Scope.admin not in self.scopes:
            raise Forbidden(f"This key lacks the scope `{scope.value}`.")


EVERYONE = Identity(OPEN_PROJECT, frozenset(Scope))


def identify(connection: HTTPConnection, keys: Keys | None) -> Identity:
    """The identity behind a request."""
    if keys is None:
        _refuse_unless_loopback(connection)
        return EVERYONE
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    prefix, _, rest = key.strip().partition("_")
    key_id, _, secret = rest.partition("_")
    record = keys.find(key_id) if scheme.lower() == "bearer" and prefix == "assay" else None
    if not key:
        raise Unauthorised("Send `Authorization: Bearer <key>` with a key of `assay keys create`.")
    if record is None or not record.matches(secret, datetime.now(UTC)):
        raise Unauthorised("This key is not known here; make one with `assay keys create`.")
    return Identity(record.project, frozenset(record.scopes), record.id)


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
