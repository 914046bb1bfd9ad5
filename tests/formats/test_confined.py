"""A file that breaks its reader breaks that process alone."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from service.errors import AssayError, MalformedPayload, PayloadTooLarge, UnsupportedFormat
from service.formats.confined import Allowance, confined

IDS = np.array([42, 7, 1000, 3, 55, 8])


@pytest.fixture
def read_index(tmp_path: Path) -> Any:
    """Write an index and read it back: (ids or None, rows, what was found)."""

    def read(index: Any) -> tuple[list[str] | None, NDArray[Any], Any]:
        path = tmp_path / "index.faiss"
        faiss.write_index(index, str(path))
        return read_file(path, "faiss")

    return read


def read_file(path: Path, kind: Any, **options: Any) -> tuple[list[str] | None, Any, Any]:
    with path.open("rb") as file, confined(file, kind, {}, **options) as (found, pages):
        kept = list(pages)
    ids = None if kept[0].ids is None else [name for page in kept for name in page.ids or ()]
    return ids, np.concatenate([page.vectors for page in kept]), found


def x(n: int = 300, d: int = 16) -> NDArray[np.float32]:
    return np.random.default_rng(141).normal(size=(n, d)).astype(np.float32)


def test_an_id_map_keeps_its_ids_with_their_rows(read_index: Any) -> None:
    rows = np.random.default_rng(141).normal(size=(6, 3)).astype(np.float32)
    index = faiss.IndexIDMap(faiss.IndexFlatL2(3))
    index.add_with_ids(rows, IDS)
    ids, found, about = read_index(index)
    assert ids == ["42", "7", "1000", "3", "55", "8"]
    np.testing.assert_array_equal(found, rows)
    assert not about.lossy


@pytest.mark.parametrize(
    "index",
    [
        "Flat",
        "HNSW8,Flat",
        "IVF4,Flat",
        "IDMap,Flat",
        "IDMap2,Flat",
        "IDMap,HNSW8,Flat",
        "SQ8,RFlat",
        "NSG8,Flat",
    ],
)
def test_exact_indexes_give_their_rows_back(index: str, read_index: Any) -> None:
    made = faiss.index_factory(16, index)
    made.train(x())
    made.add_with_ids(x(), np.arange(300)) if index.startswith("IDMap") else made.add(x())
    ids, found, about = read_index(made)
    np.testing.assert_array_equal(found, x())
    assert about.lossy is False
    assert about.count == 300
    assert (ids is None) is not index.startswith("IDMap")


def test_an_inverted_file_with_ids_of_its_own_is_read_by_ascending_id(read_index: Any) -> None:
    made = faiss.index_factory(16, "IVF4,Flat")
    made.train(x())
    names = np.random.default_rng(5).permutation(10_000)[:300]
    made.add_with_ids(x(), names)
    ids, found, _ = read_index(made)
    order = np.argsort(names)
    assert ids == [str(name) for name in names[order]]
    np.testing.assert_array_equal(found, x()[order])


def nearest(rows: NDArray[Any], centres: NDArray[Any]) -> NDArray[Any]:
    """The centre next to each row, by brute force."""
    far = ((rows[:, None, :].astype(np.float64) - centres[None]) ** 2).sum(axis=2)
    return np.asarray(centres[far.argmin(axis=1)])


def product_code(rows: NDArray[Any], index: Any) -> NDArray[Any]:
    """Rows as a product quantiser with these centroids restores them."""
    pq = index.pq
    centres = faiss.vector_to_array(pq.centroids).reshape(pq.M, pq.ksub, pq.dsub)
    parts = np.split(rows, pq.M, axis=1)
    return np.concatenate([nearest(*pair) for pair in zip(parts, centres, strict=True)], axis=1)


def coarse(rows: NDArray[Any], index: Any) -> NDArray[Any]:
    return nearest(rows, index.quantizer.reconstruct_n(0, index.nlist))


@pytest.mark.parametrize(
    "index", ["SQ8", "SQfp16", "HNSW8,SQ8", "IVF4,SQ8", "PQ4x4", "HNSW8,PQ4x4", "IVF4,PQ4x4"]
)
def test_rows_read_back_from_codes_are_as_near_as_the_code_lets_them_and_said_to_be_lossy(
    index: str, read_index: Any
) -> None:
    made = faiss.index_factory(16, index)
    made.train(x())
    made.add(x())
    _, found, about = read_index(made)
    assert about.lossy is True
    assert found.shape == (300, 16)
    if "PQ" in index:
        coder = faiss.downcast_index(made.storage) if "HNSW" in index else made
        base = coarse(x(), made) if "IVF" in index else np.zeros_like(x())
        np.testing.assert_allclose(found, base + product_code(x() - base, coder), atol=1e-5)
        return
    kept = x() - coarse(x(), made) if "IVF" in index else x()
    step = np.ptp(kept, axis=0) / 255
    bound = np.abs(x()) * 2.0**-11 if index == "SQfp16" else np.broadcast_to(step / 2, found.shape)
    error = np.abs(found - x())
    assert (error <= bound + 1e-6).all()
    assert error.mean() > 0


def test_an_index_that_would_end_its_reader_is_refused_by_name(read_index: Any) -> None:
    made = faiss.index_factory(16, "IVF4,PQ4x4fs")
    made.train(x())
    made.add(x())
    with pytest.raises(UnsupportedFormat, match="IndexIVFPQFastScan keeps no rows"):
        read_index(made)


def test_an_inverted_file_that_repeats_an_id_is_refused(read_index: Any) -> None:
    made = faiss.index_factory(16, "IVF4,Flat")
    made.train(x())
    made.add_with_ids(x()[:6], np.array([1, 2, 3, 3, 4, 5]))
    with pytest.raises(AssayError) as caught:
        read_index(made)
    assert caught.value.code == "duplicate-ids"
    assert caught.value.faults[0].rows == ["3"]


def test_an_index_of_bits_is_refused(tmp_path: Path) -> None:
    bits = faiss.IndexBinaryFlat(64)
    bits.add(np.zeros((4, 8), np.uint8))
    faiss.write_index_binary(bits, str(tmp_path / "bits"))
    with pytest.raises(MalformedPayload, match="FAISS"):
        read_file(tmp_path / "bits", "faiss")


def test_an_id_map_over_ids_of_its_own_is_refused(read_index: Any) -> None:
    inner = faiss.index_factory(16, "IVF4,Flat")
    inner.train(x())
    outer = faiss.IndexIDMap(inner)
    inner.add_with_ids(x(), np.arange(300) + 7)
    outer.ntotal = 300
    faiss.copy_array_to_vector(np.arange(300) + 90, outer.id_map)
    with pytest.raises(UnsupportedFormat, match="ids of its own"):
        read_index(outer)


def test_a_damaged_index_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index.faiss"
    made = faiss.index_factory(16, "IVF4,Flat")
    made.train(x())
    made.add(x())
    faiss.write_index(made, str(path))
    whole = path.read_bytes()
    rng = np.random.default_rng(9)
    for _ in range(8):
        damaged = bytearray(whole[: rng.integers(8, len(whole))])
        damaged[int(rng.integers(4, min(200, len(damaged))))] = int(rng.integers(0, 256))
        path.write_bytes(bytes(damaged))
        with pytest.raises(AssayError) as caught:
            read_file(path, "faiss")
        assert caught.value.code != "internal"


def test_a_reader_that_aborts_is_an_error_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    killer = tmp_path / "killer"
    killer.write_text("#!/bin/sh\nkill -6 $$\n")
    killer.chmod(0o700)
    monkeypatch.setattr("service.formats.confined.sys.executable", str(killer))
    with pytest.raises(MalformedPayload, match=r"\(-6\)"):
        read_file(path, "faiss")


@pytest.mark.parametrize("says", ["head -c 70000 /dev/zero", "printf '{'", "true"])
def test_a_reader_that_says_nothing_more_is_ended(
    says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocked or stopped, it takes no time of the processor, and no limit of that would end it."""
    path = tmp_path / "file"
    path.write_bytes(b"x")
    hanging = tmp_path / "hanging"
    hanging.write_text(f"#!/bin/sh\n{says}\nexec sleep 1000\n")
    hanging.chmod(0o700)
    monkeypatch.setattr("service.formats.confined.sys.executable", str(hanging))
    started = time.monotonic()
    with pytest.raises(MalformedPayload, match=r"\(-9\)"):
        read_file(path, "parquet", allowance=Allowance(cpu_s=1, patience=1))
    assert time.monotonic() - started < 30


def test_an_index_that_names_another_file_does_not_read_it(tmp_path: Path) -> None:
    other, path = tmp_path / "other.npX", tmp_path / "index.faiss"
    made = faiss.index_factory(4, "IVF1,Flat")
    made.train(x(50, 4))
    lists = faiss.OnDiskInvertedLists(1, made.code_size, str(other))
    made.replace_invlists(lists)
    made.add(x(8, 4))
    faiss.write_index(made, str(path))
    del made, lists
    secret = tmp_path / "other.npy"
    other.rename(secret)
    path.write_bytes(path.read_bytes().replace(b"other.npX", b"other.npy"))
    with pytest.raises(MalformedPayload, match="another file"):
        read_file(path, "faiss")


def test_a_file_that_takes_too_much_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big.arrow"
    table = pa.table(
        {"v": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(50_000_000, np.float32)), 100)}
    )
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(str(path), table.schema, options=options) as writer:
        writer.write_table(table)
    assert path.stat().st_size < 1 << 20
    with pytest.raises((PayloadTooLarge, MalformedPayload)):
        read_file(path, "arrow", allowance=Allowance(memory_bytes=64 << 20))


def test_the_process_is_told_no_secret_and_ends_with_its_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://:hunter2@host")
    path = tmp_path / "rows.arrow"
    table = pa.table(
        {"v": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(20_000_000, np.float32)), 100)}
    )
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    with path.open("rb") as file, confined(file, "arrow", {}) as (_, pages):
        next(pages)
        child = _children()[-1]
        environment = Path(f"/proc/{child}/environ").read_bytes()
        assert b"hunter2" not in environment
        assert b"OMP_NUM_THREADS=1" in environment
    until = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not Path(f"/proc/{child}").exists()


def _children() -> list[int]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(one) for one in listed]
