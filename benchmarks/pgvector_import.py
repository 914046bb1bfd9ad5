"""
Import from PostgreSQL beside the driver's bare binary COPY of the same rows.

An import is all of it: the pages of our adapter (told as well), hashed, checked and stored
with their ids. The server is the one of `make test-stores` and makes the rows itself, 1,000,000 x 384
unless ROWS says otherwise. Prints seconds, the ratio and the most memory beyond that of the start.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from service.importing import fetch
from service.operations import import_dataset
from service.references import SourceRef
from service.sources import NamedSources
from service.storage.memory import memory_services
from service.storage.objects import ObjectDatasets
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


def imported(port: int) -> int:
    """Rows of the dataset that the table became."""
    store = Pgvector(port)
    reference = {
        **store.reference("big"), "connection": store.connection.name, "columns": ["bucket"],
        "page_rows": PAGE_ROWS,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as folder:
        services = memory_services(
            datasets=ObjectDatasets(Path(folder)),
            sources=NamedSources({store.connection.name: store.connection}, Path(folder)),
        )
        asked = SourceRef.model_validate({"source": reference})
        job = import_dataset(services, "default", asked)
        fetch(services, job.id)
        job = services.jobs.get("default", job.id)
        return services.datasets.record("default", job.inputs["dataset"].dataset).n


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
        reading, _, reading_peak = measured(server.port, adapter)
        ours, rows, peak = measured(server.port, imported)
    page = PAGE_ROWS * DIMENSIONS * 4
    print(
        f"bare COPY     {driver:6.1f} s  {driver_rows / driver:9.0f} rows/s  {driver_peak >> 20} MiB"
    )
    print(f"adapter       {reading:6.1f} s  {rows / reading:9.0f} rows/s  {reading_peak >> 20} MiB")
    print(f"import        {ours:6.1f} s  {rows / ours:9.0f} rows/s  {peak >> 20} MiB with all ids")
    print(
        f"rate of the driver's: {driver / ours:.2f}, of pages alone {driver / reading:.2f}, which "
        f"take the memory of {reading_peak / page:.1f} pages"
    )
    assert rows == ROWS
    assert driver / ours >= LEAST_RATIO
    assert reading_peak <= MOST_PAGES * page + OVERHEAD_BYTES


if __name__ == "__main__":
    main()
