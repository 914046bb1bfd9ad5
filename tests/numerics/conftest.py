"""Kernels run as checks run them: one BLAS thread, parallel over blocks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(scope="package", autouse=True)
def single_threaded_blas() -> Iterator[None]:
    """Hold BLAS to one thread for the kernels' tests."""
    with threadpool_limits(limits=1):
        yield
