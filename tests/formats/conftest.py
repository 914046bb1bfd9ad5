"""Readers fed by hand: bytes in pieces of any size, rows out of a sink."""

from __future__ import annotations

import io
import itertools
import tempfile
from collections.abc import Callable
from typing import IO, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.formats import Limits, Options, Parsed, reader_for


class Kept(io.BytesIO):
    """A sink in memory."""

    def restart(self, data: bytes) -> None:
        self.seek(0)
        self.write(data)

    def spool(self) -> IO[bytes]:
        return tempfile.TemporaryFile()


Read = Callable[..., tuple[Parsed, NDArray[Any] | None]]


@pytest.fixture(scope="session")
def read() -> Read:
    """Read a body of a content type, in pieces of these sizes; what was parsed, and the rows."""

    def run(
        kind: str,
        body: bytes,
        cuts: list[int] | None = None,
        limits: Limits | None = None,
        **options: str,
    ) -> tuple[Parsed, NDArray[Any] | None]:
        sink = Kept()
        reader = reader_for(kind, sink, limits or Limits(), Options(**options))
        places = [0, *sorted(cut % (len(body) + 1) for cut in cuts or []), len(body)]
        try:
            for start, end in itertools.pairwise(places):
                reader.feed(body[start:end])
            parsed = reader.finish()
        finally:
            getattr(reader, "close", lambda: None)()
        if parsed.d is None:
            assert sink.getvalue() == b""
            return parsed, None
        sink.seek(0)
        return parsed, np.load(sink, allow_pickle=False)

    return run
