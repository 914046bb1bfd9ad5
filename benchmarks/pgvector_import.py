"""
Reading PostgreSQL: pages of our adapter against the driver's bare binary COPY of the same rows.

The server is the one of `make test-stores` and makes the rows itself, 1,000,000 x 384 unless ROWS says
otherwise. Prints seconds, the ratio and the most memory beyond that of the start.
"""

from __future__ import annotations

import os
import resource
import time
from multiprocessing import get_context
from typing import Any

from tests.stores import servers
from tests.stores.loading import SECRET, Pgvector, opened

ROWS = int(os.environ.get("ROWS", "1000000"))
DIMENSIONS = 384
PAGE_ROWS = 4096
LEAST_RATIO = 0.5
MOST_PAGES = 2
OVERHEAD_BYTES = 32 << 20  # buffers of the driver and of the interpreter


def fill(store: Pgvector) -> None:
    with store.client() as client:
        client.execute(b"CREATE UNLOGGED TABLE big (id bigint, embedding vector(384), bucket text)")
        client.execute(
            (
                "INSERT INTO big SELECT i, vector, 'b' || i % 10 FROM (SELECT array_agg(random())"
                "::real[]::vector(384) AS vector FROM generate_series(1, 384)) v, "
                f"generate_series(1, {ROWS}) i"
            ).encode()
        )
        client.execute(b"ALTER TABLE big ADD PRIMARY KEY (id)")
    with store.client() as client:
        client.autocommit = True
        client.execute(b"VACUUM ANALYZE big")


def bare(port: int) -> int:
    """Rows that the driver hands over, looked at by nobody."""
    store = Pgvector(port)
    with (
        store.client() as client,
        client.cursor() as cursor,
        cursor.copy(
            b"COPY (SELECT embedding, id::text, bucket FROM big ORDER BY big.id) "
            b"TO STDOUT (FORMAT binary)"
        ) as copy,
    ):
        return sum(1 for _ in copy)


def adapter(port: int) -> int:
    """Rows as arrays, ids and labels, page by page."""
    store = Pgvector(port)
    reference = {**store.reference("big"), "columns": ["bucket"], "page_rows": PAGE_ROWS}
    with opened(store.connection, reference) as source:
        return sum(len(page) for page in source.pages)


def measured(port: int, reader: Any) -> tuple[float, int, int]:
    """Seconds, rows and bytes beyond the start, in a process of its own."""
    with get_context("spawn").Pool(1) as pool:
        seconds, rows, peak = pool.apply(run, (port, reader))
    return seconds, rows, peak


def run(port: int, reader: Any) -> tuple[float, int, int]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    rows = reader(port)
    seconds = time.perf_counter() - start
    return seconds, rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def main() -> None:
    with servers.postgres(SECRET, "shared_buffers=256MB", "max_wal_size=4GB") as server:
        store = Pgvector(server.port)
        start = time.perf_counter()
        fill(store)
        print(f"{ROWS} x {DIMENSIONS} written in {time.perf_counter() - start:.0f} s")
        measured(server.port, bare)
        driver, driver_rows, driver_peak = measured(server.port, bare)
        ours, rows, peak = measured(server.port, adapter)
    page = PAGE_ROWS * DIMENSIONS * 4
    print(
        f"bare COPY     {driver:6.1f} s  {driver_rows / driver:9.0f} rows/s  {driver_peak >> 20} MiB"
    )
    print(f"adapter       {ours:6.1f} s  {rows / ours:9.0f} rows/s  {peak >> 20} MiB")
    print(f"rate of the driver's: {driver / ours:.2f}; memory in pages: {peak / page:.1f}")
    assert rows == ROWS
    assert driver / ours >= LEAST_RATIO
    assert peak <= MOST_PAGES * page + OVERHEAD_BYTES


if __name__ == "__main__":
    main()
