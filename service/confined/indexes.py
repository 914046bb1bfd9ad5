"""Index files of FAISS: the rows they keep, by id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import faiss
import numpy as np
from numpy.typing import NDArray

from service.confined.frames import Found, Rows, Unreadable, rows_per_page

EXACT = (faiss.IndexFlat, faiss.IndexIVFFlat, faiss.IndexNSGFlat, faiss.IndexRefineFlat)
"""Indexes that keep float32 rows as they were given; all others keep codes."""


def read_index(file: IO[bytes]) -> tuple[Found, Iterator[Rows]]:
    """Rows in stored order; of an inverted file, which has none, by ascending id."""
    faiss.omp_set_num_threads(1)
    try:
        index = faiss.read_index(faiss.PyCallbackIOReader(file.read))  # type: ignore[attr-defined]
    except RuntimeError:
        raise Unreadable(
            "malformed-payload",
            "The file is not a whole FAISS index, or keeps its lists in another file.",
        ) from None
    owners = [index]
    ids: NDArray[np.int64] | None = None
    if isinstance(index, (faiss.IndexIDMap, faiss.IndexIDMap2)):
        # an id map reads its inner rows under the wrong names, or aborts: it is taken apart
        ids = faiss.vector_to_array(index.id_map)
        index = faiss.downcast_index(index.index)
    kind = type(index).__name__
    inner, chain = index, kind
    if isinstance(index, faiss.IndexHNSW):
        inner = faiss.downcast_index(index.storage)
        chain = f"{kind}, {type(inner).__name__}"
    keys = _listed_ids(inner) if isinstance(inner, faiss.IndexIVF) else None
    if keys is not None and not np.array_equal(keys, np.arange(len(keys))):
        if ids is not None:
            raise Unreadable("unsupported-format", f"An id map over a {kind} with ids of its own.")
        ids = keys
    n = int(inner.ntotal)
    if ids is not None and len(ids) != n:
        raise Unreadable("malformed-payload", f"The index has {n} rows and {len(ids)} ids.")
    found = Found(n, chain, lossy=not isinstance(inner, EXACT))
    return found, _pages(inner, keys, ids, n, owners)


def _listed_ids(index: Any) -> NDArray[np.int64]:
    """Ids of an inverted file, in order."""
    lists = index.invlists
    found = [np.empty(0, np.int64)]
    for place in range(lists.nlist):
        if size := lists.list_size(place):
            ids = lists.get_ids(place)
            found.append(faiss.rev_swig_ptr(ids, size).copy())
            lists.release_ids(place, ids)
    keys = np.sort(np.concatenate(found))
    repeated = keys[1:][keys[1:] == keys[:-1]]
    if len(repeated):
        names = tuple(str(one) for one in dict.fromkeys(repeated.tolist()))[:10]
        raise Unreadable("duplicate-ids", f"{len(repeated)} rows repeat an id.", names)
    index.set_direct_map_type(faiss.DirectMap.Hashtable)  # type: ignore[attr-defined]
    return keys


def _pages(
    index: Any,
    keys: NDArray[np.int64] | None,
    ids: NDArray[np.int64] | None,
    n: int,
    owners: list[Any],
) -> Iterator[Rows]:
    """`owners` hold what they own: an index inside another is freed with it."""
    step = rows_per_page(index.d, 4)
    for start in range(0, n, step):
        stop = min(start + step, n)
        try:
            if keys is None:
                rows = index.reconstruct_n(start, stop - start)
            else:
                rows = index.reconstruct_batch(keys[start:stop])
        except RuntimeError:
            raise Unreadable(
                "unsupported-format",
                f"A {type(owners[0]).__name__} keeps no rows that can be read back.",
            ) from None
        yield Rows(rows, None if ids is None else [str(one) for one in ids[start:stop]])
