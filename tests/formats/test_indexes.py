"""Rows of an index file are those that were put into it, under their ids, or the file is refused."""

from __future__ import annotations

import io
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.confined.frames import Unreadable
from service.confined.indexes import read_index

N, D = 320, 16
TRANSFORMS = [
    "",
    "PCA16,",
    "PCA4,",
    "PCAR4,",
    "PCAW4,",
    "OPQ4,",
    "RR16,",
    "Pad24,",
    "L2norm,",
    "ITQ8,",
]
KEEPERS = [
    "Flat", "SQ8", "SQfp16", "PQ4x4", "RQ3x4", "LSQ3x4", "LSH", "HNSW8", "HNSW8,SQ8", "NSG8,Flat",
    "IVF4,Flat", "IVF4,SQ8", "IVF4,SQfp16", "IVF4,PQ4x4", "IVF4,RQ3x4", "IVF4,FlatDedup",
    "IVF4,PQ4x4fs", "PQ4x4fs", "IVF4,RaBitQ",
]  # fmt: skip
REFUSED = ("PCAW", "ITQ", "LSH", "FlatDedup", "IVF4,PQ4x4fs", "RaBitQ")
"""Of which nothing but the signs, other scales, or nothing at all can be read."""
REFINED = ["", ",RFlat", ",Refine(SQ8)"]


def rows() -> NDArray[np.float32]:
    """Eight tight groups, so that any code that works restores a row to its own."""
    rng = np.random.default_rng(142)
    centres = rng.normal(size=(8, D)) * 4
    found = centres[rng.integers(0, 8, N)] + 0.05 * rng.normal(size=(N, D))
    return found.astype(np.float32)


def made(name: str, ids: NDArray[np.int64] | None, removed: NDArray[np.int64]) -> Any:
    """An index of all rows, some of them taken out again."""
    index = faiss.index_factory(D, name)
    index.train(rows())
    if ids is None:
        index.add(rows())
    else:
        index.add_with_ids(rows(), ids)
    if len(removed):
        index.remove_ids(removed)
    return index


def read(index: Any) -> tuple[NDArray[np.float32], list[str] | None, Any]:
    data = faiss.serialize_index(index).tobytes()
    found, pages = read_index(io.BytesIO(data))
    kept = list(pages)
    ids = None if kept[0].ids is None else [one for page in kept for one in page.ids or ()]
    return np.concatenate([page.vectors for page in kept]), ids, found


def kept_by(transform: str, rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """What a transform leaves of rows, by numpy."""
    if transform == "L2norm,":
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)
    if transform.startswith("PCA"):
        d = int(transform.strip("PCARW,"))
        mean = rows.mean(axis=0, dtype=np.float64)
        axes = np.linalg.svd(rows - mean)[2][:d]
        return rows @ axes.T @ axes
    return rows.astype(np.float64)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(TRANSFORMS),
    st.sampled_from(KEEPERS),
    st.sampled_from(REFINED),
    st.sampled_from(["", "IDMap,", "IDMap2,"]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 30]),
)
def test_rows_come_back_under_their_ids_or_the_file_is_refused(
    transform: str, keeper: str, refined: str, id_map: str, named: bool, seed: int, gone: int
) -> None:
    rng = np.random.default_rng(seed)
    ids = rng.permutation(5 * N)[:N] if named or id_map else None
    removed = rng.permutation(np.arange(N) if ids is None else ids)[:gone]
    try:
        index = made(id_map + transform + keeper + refined, ids, removed)
    except RuntimeError:  # FAISS makes no such index
        assume(False)
    refused: Unreadable | None = None
    try:
        found, told, about = read(index)
    except Unreadable as error:
        refused = error
    if refused is not None:
        assert refused.code == "unsupported-format"
        moved = gone and id_map and "IVF" in keeper  # ids of the map stand beside those of the file
        by_refining = refined and not any(one in transform for one in REFUSED)
        assert moved or (any(one in transform + keeper for one in REFUSED) and not by_refining)
        return
    names = np.arange(N) if ids is None else ids
    stays = ~np.isin(names, removed)
    order = np.flatnonzero(stays)
    if "IVF" in keeper and not refined and not id_map:
        order = order[np.argsort(names[order])]
    expected = rows()[order]
    if told is None:  # numbered: nothing but an inverted file remembers what was taken out
        assert ids is None
    else:
        assert told == [str(name) for name in names[order]]
    assert found.shape == expected.shape
    exact = refined == ",RFlat" or (
        not refined and keeper in ("Flat", "IVF4,Flat", "HNSW8", "NSG8,Flat")
    )
    if not refined:
        expected = kept_by(transform, rows())[order]
    if exact:
        np.testing.assert_allclose(found, expected, atol=2e-5)
        assert about.lossy is bool(transform and not refined)
    else:
        error = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
        assert np.sqrt((error**2).mean()) < 0.4
        assert about.lossy is True
    assert about.normalises is (True if transform == "L2norm," and not refined else None)


@pytest.mark.parametrize("name", ["OPQ8,IVF8,PQ8x4", "PCA16,IVF4,Flat", "L2norm,IVF4,Flat"])
def test_a_transform_over_an_inverted_file_keeps_its_ids(name: str) -> None:
    ids = np.random.default_rng(5).permutation(3 * N)[:N] + 100
    found, told, about = read(made(name, ids, ids[10:20]))
    stays = np.sort(np.delete(ids, np.arange(10, 20)))
    assert told == [str(one) for one in stays]
    places = [int(np.flatnonzero(ids == one)[0]) for one in stays]
    expected = rows()[places]
    if name.startswith("L2norm"):
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    error = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert error.max() < 0.1
    assert about.lossy


def test_a_row_that_is_listed_and_cannot_be_found_is_not_made_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = made("IVF4,Flat", np.arange(N) + 7, np.empty(0, np.int64))
    monkeypatch.setattr(faiss.IndexIVFFlat, "reconstruct_batch", lambda self, keys, x: x)
    with pytest.raises(Unreadable, match=f"{N} rows of the index cannot be found"):
        read(index)


def test_an_inverted_file_with_more_rows_than_it_lists_is_refused() -> None:
    index = made("IVF4,Flat", None, np.empty(0, np.int64))
    index.ntotal = N + 1
    with pytest.raises(Unreadable, match="ids") as caught:
        read(index)
    assert caught.value.code == "malformed-payload"
