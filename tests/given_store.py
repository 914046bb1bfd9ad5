"""A store for tests of imports, whose pages are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from service.errors import SourceDenied, SourceUnreachable
from service.ports import Opened, Tell
from service.source_page import SourcePage
from service.source_reference import Provenance, Reference

SOURCE = {"kind": "qdrant", "connection": "prod", "collection": "docs"}


@dataclass
class Store:
    """A store whose pages are given; it counts as it likes, and may be gone after some pages."""

    pages: list[list[int]]
    counts: list[int | None] = field(default_factory=lambda: [None, None])
    gone_after: int | None = None
    before_page: Callable[[int], None] = lambda place: None
    opened: int = 0
    missing: list[str] = field(default_factory=list)
    snapshot: bool = False
    lossy: bool | None = None

    def refuse(self, project: str, reference: Reference) -> None:
        if reference.connection != "prod":
            raise SourceDenied("There is no such connection.")

    @contextmanager
    def open(self, project: str, reference: Reference, tell: Tell) -> Iterator[Opened]:
        self.opened += 1
        about = Provenance(
            kind="qdrant",
            connection="prod",
            location="docs",
            stored_as="float32",
            lossy=self.lossy,
        )
        yield Opened(
            self.counts[0], about, self._read(), lambda: self.counts[1], snapshot=self.snapshot
        )

    def _read(self) -> Iterator[SourcePage]:
        for place, page in enumerate(self.pages):
            self.before_page(place)
            if place == self.gone_after:
                raise SourceUnreachable("Connection `prod` broke.")
            rows = np.array([[i, i * i + 1] for i in page], dtype=np.float32).reshape(-1, 2)
            names = [str(i) for i in page]
            missing = self.missing if place == 0 else []
            yield SourcePage(names, rows, {"parity": [i % 2 for i in page]}, missing)
