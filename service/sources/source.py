"""What an adapter is."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from service.ports import Opened
from service.sources.connection import Connection


class Source(Protocol):
    """
    Opens a store; one function per kind, named in `SOURCES`.

    It pages in a stable key order, composes identifiers by its driver, binds values, connects only to
    addresses `guard` has checked, and raises SourceUnreachable, SourceDenied or InvalidRequest (an
    unknown table or column, named) without a word of the driver's own message, which may hold
    credentials.
    """

    def __call__(
        self, reference: Any, connection: Connection
    ) -> AbstractContextManager[Opened]: ...
