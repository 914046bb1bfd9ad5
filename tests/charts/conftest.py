"""One process that draws for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from service.charts import Painter


@pytest.fixture(scope="package")
def painter() -> Iterator[Painter]:
    with closing(Painter()) as found:
        yield found
