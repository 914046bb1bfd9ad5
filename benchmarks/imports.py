"""Import of a Parquet file beside pyarrow reading it and doing nothing with the rows."""

from __future__ import annotations

import os
import resource
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from service.importing import fetch
from service.operations import import_dataset
from service.references import SourceRef
from service.sources import NamedSources
from service.sources.connection import Connection
from service.storage.memory import memory_services
from service.storage.objects import ObjectDatasets

N, D = int(os.environ.get("BENCH_ROWS", "1000000")), 384
GROUP = 50_000
PAGE_BYTES = 8 << 20
MIB = 1 << 20
LEAST_RATIO = 0.5


def write(path: Path) -> None:
    """Random rows with ids, as a pipeline writes them: no dictionary, which finds nothing here."""
    rng = np.random.default_rng(0)
    writer = None
    for start in range(0, N, GROUP):
        rows = rng.normal(size=GROUP * D).astype(np.float32)
        table = pa.table(
            {
                "id": [f"doc-{start + i}" for i in range(GROUP)],
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(rows), D),
            }
        )
        writer = writer or pq.ParquetWriter(path, table.schema, use_dictionary=False)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def bare(path: Path) -> float:
    """Seconds of the plain reader, with its own threads and buffers."""
    started = time.perf_counter()
    rows = 0
    for batch in pq.ParquetFile(path).iter_batches(batch_size=5461):
        rows += len(batch.column("vector").flatten().to_numpy()) // D
    assert rows == N
    return time.perf_counter() - started


class Peak(threading.Thread):
    """Largest private memory of the children of this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes, self.over = 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.05):
            listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
            for child in listed.read_text().split():
                try:
                    lines = Path(f"/proc/{child}/status").read_text().splitlines()
                except OSError:
                    continue
                for line in lines:
                    if line.startswith("RssAnon"):
                        self.bytes = max(self.bytes, int(line.split()[1]) * 1024)


def main() -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as folder:
        home = Path(folder)
        write(home / "rows.parquet")
        plain = min(bare(home / "rows.parquet") for _ in range(2))
        services = memory_services(
            datasets=ObjectDatasets(home / "store"),
            sources=NamedSources({"lake": Connection("lake", f"file://{home}")}, home / "scratch"),
        )
        source = {"kind": "parquet", "connection": "lake", "path": "rows.parquet", "id": "id"}
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        peak = Peak()
        peak.start()
        started = time.perf_counter()
        job = import_dataset(services, "default", SourceRef.model_validate({"source": source}))
        fetch(services, job.id)
        ours = time.perf_counter() - started
        peak.over.set()
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        dataset = services.jobs.get("default", job.id).inputs["dataset"].dataset
        assert services.datasets.record("default", dataset).n == N
        size = N * D * 4 / 1e6
        print(
            f"import {N} x {D} of Parquet: {ours:.1f} s ({size / ours:.0f} MB/s); pyarrow alone "
            f"{plain:.1f} s ({size / plain:.0f} MB/s); ratio {plain / ours:.2f}; memory "
            f"{more / MIB:.0f} MiB here (ids included), {peak.bytes / MIB:.0f} MiB in the reader"
        )
        assert plain / ours >= LEAST_RATIO


if __name__ == "__main__":
    main()
