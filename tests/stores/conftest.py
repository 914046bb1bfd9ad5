"""Every store, running, with the same rows in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.stores.loading import HOSTILE, Store, Table, every_store


@pytest.fixture(scope="session")
def stores() -> Iterator[dict[str, Store]]:
    with every_store() as running:
        yield running


@pytest.fixture(scope="session")
def table(rows: Any, column: Any) -> Table:
    """The documents of debian_pairs with a text and a number, some missing, some hostile."""
    vectors = rows("debian_pairs/minilm_doc")
    section = column("debian_pairs", "section")
    n = len(vectors)
    return Table(
        list(vectors),
        {
            "section": [
                None if i % 5 == 4 else HOSTILE if i % 7 == 3 else section[i] for i in range(n)
            ],
            "size": [None if i % 11 == 2 else (i * 37) % 100 for i in range(n)],
        },
    )


@pytest.fixture(scope="session")
def loaded(stores: dict[str, Store], table: Table) -> dict[str, tuple[Store, list[str]]]:
    return {kind: (store, store.load("docs", table)) for kind, store in stores.items()}
