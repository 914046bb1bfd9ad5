"""Files below a folder: the same rows as an upload, and nothing outside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.dataset_record import DatasetRecord
from service.errors import AssayError
from service.importing import fetch
from service.job import Job, State
from service.operations import Services, import_dataset
from service.references import SourceRef
from service.sources import NamedSources
from service.sources.connection import read_connections

Import = Callable[..., Job]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    (tmp_path / "lake").mkdir()
    return tmp_path / "lake"


@pytest.fixture
def on(services: Services, lake: Path, tmp_path: Path) -> Services:
    text = json.dumps(
        {
            "lake": {"url": f"file://{lake}"},
            "theirs": {"url": f"file://{lake}", "projects": ["theirs"]},
            "inside": {"url": "https://127.0.0.1:9/x"},
            "plain": {"url": "http://93.184.216.34/x"},
        }
    )
    return replace(services, sources=NamedSources(read_connections(text), tmp_path / "scratch"))


@pytest.fixture
def read(on: Services) -> Import:
    def run(kind: str, path: str, connection: str = "lake", **options: Any) -> Job:
        source = {"kind": kind, "connection": connection, "path": path, **options}
        job = import_dataset(on, "default", SourceRef.model_validate({"source": source}))
        fetch(on, job.id)
        return on.jobs.get("default", job.id)

    return run


@pytest.fixture
def record(on: Services, read: Import) -> Callable[..., DatasetRecord]:
    def run(*words: Any, **options: Any) -> DatasetRecord:
        job = read(*words, **options)
        assert job.state is State.succeeded, job.problem
        return on.datasets.record("default", job.inputs["dataset"].dataset)  # type: ignore[union-attr]

    return run


def write(folder: Path, data: np.ndarray) -> dict[str, str]:
    """The same rows in every kind of file."""
    names = [f"r{i}" for i in range(len(data))]
    table = pa.table(
        {"id": names, "v": pa.FixedSizeListArray.from_arrays(pa.array(data.ravel()), data.shape[1])}
    )
    np.save(folder / "c.npy", data)
    np.save(folder / "f.npy", np.asfortranarray(data))
    np.save(folder / "b.npy", data.astype(">f4"))
    pq.write_table(table, folder / "rows.parquet", row_group_size=700)
    with pa.ipc.new_stream(folder / "rows.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=333)
    for name in ("Flat", "HNSW8,Flat", "IVF8,Flat"):
        index = faiss.index_factory(data.shape[1], name)
        index.train(data)
        index.add(data)
        faiss.write_index(index, str(folder / f"{name.partition(',')[0]}.faiss"))
    return {
        "c.npy": "npy", "f.npy": "npy", "b.npy": "npy", "rows.parquet": "parquet",
        "rows.arrow": "arrow", "Flat.faiss": "faiss", "HNSW8.faiss": "faiss", "IVF8.faiss": "faiss",
    }  # fmt: skip


def test_every_kind_of_file_gives_the_hash_of_the_npy_upload(
    rows: Any, store: Any, lake: Path, record: Any
) -> None:
    data = np.array(rows("debian_pairs/minilm_doc"))
    uploaded = store(data)
    for path, kind in write(lake, data).items():
        found = record(kind, path)
        assert found.vectors_sha256 == uploaded.vectors_sha256, path
        assert found.facts == uploaded.facts
        assert found.spec.source.location == path
        assert found.spec.source.lossy is False
        assert found.spec.source.rows == len(data)


def test_columns_are_chosen_and_rows_without_a_vector_reported(lake: Path, record: Any) -> None:
    table = pa.table(
        {"v": [[1.0], None, [3.0]], "k": ["a", "b", "c"], "x": [1, 2, 3], "y": [1, 2, 3]}
    )
    pq.write_table(table, lake / "some.parquet")
    found = record("parquet", "some.parquet", id="k", columns=["x"])
    assert found.n == 2
    assert set(found.columns) == {"x"}
    about = found.spec.source
    assert (about.missing_vectors, about.missing_ids, about.count_before) == (1, ["b"], 3)


def test_bfloat16_words_are_widened(lake: Path, record: Any, on: Services) -> None:
    np.save(lake / "w.npy", np.array([[0x3F80, 0xC000]], np.uint16))
    found = record("npy", "w.npy", dtype="bf16")
    assert on.datasets.load("default", found.id).rows.tolist() == [[1.0, -2.0]]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "path", "connection", "code"),
    [
        ("npy", "../secret.npy", "lake", "invalid-request"),
        ("npy", "link.npy", "lake", "source-denied"),
        ("npy", "none.npy", "lake", "invalid-request"),
        ("npy", "text.npy", "lake", "malformed-payload"),
        ("faiss", "text.npy", "lake", "malformed-payload"),
        ("parquet", "text.npy", "lake", "malformed-payload"),
        ("arrow", "empty", "lake", "malformed-payload"),
        ("npy", "cut.npy", "lake", "malformed-payload"),
        ("npy", "x.npy", "inside", "source-denied"),
        ("npy", "x.npy", "plain", "source-denied"),
    ],
)
def test_what_cannot_be_read_fails_the_job_and_leaves_nothing(
    kind: str, path: str, connection: str, code: str, lake: Path, read: Any, on: Services
) -> None:
    np.save(lake.parent / "secret.npy", np.ones((2, 2)))
    (lake / "link.npy").symlink_to(lake.parent / "secret.npy")
    (lake / "text.npy").write_text("not a file of rows")
    (lake / "empty").write_bytes(b"")
    np.save(lake / "cut.npy", np.ones((20, 20)))
    (lake / "cut.npy").write_bytes((lake / "cut.npy").read_bytes()[:-5])
    job = read(kind, path, connection)
    assert job.state is State.failed
    assert job.problem.code == code, job.problem.detail
    assert on.datasets.page("default", 10, None).items == []


def test_a_connection_of_another_project_is_not_there(on: Services) -> None:
    value = SourceRef.model_validate(
        {"source": {"kind": "npy", "connection": "theirs", "path": "a.npy"}}
    )
    with pytest.raises(AssayError, match="no connection `theirs`"):
        import_dataset(on, "default", value)
    assert import_dataset(on, "theirs", value).state is State.queued


def test_a_file_that_changes_while_it_is_read_is_refused(lake: Path, on: Services) -> None:
    np.save(lake / "a.npy", np.ones((30, 2), np.float32))
    value = SourceRef.model_validate(
        {"source": {"kind": "npy", "connection": "lake", "path": "a.npy"}}
    )
    with on.sources.open("default", value.source, lambda *told: None) as opened:
        assert len(next(opened.pages)) == 30
        with (lake / "a.npy").open("ab") as file:
            file.write(b"more")
        with pytest.raises(AssayError, match="changed while it was read"):
            opened.recount()
