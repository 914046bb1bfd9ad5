"""Index files of FAISS: the rows they keep, by id."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import faiss
import numpy as np
from numpy.typing import NDArray

from service.confined.frames import Found, Rows, Unreadable, rows_per_page

EXACT = (
    faiss.IndexFlat, faiss.IndexFlatL2, faiss.IndexFlatIP, faiss.IndexFlat1D, faiss.IndexIVFFlat,
)  # fmt: skip
"""Indexes that keep float32 rows as they were given."""
CODED = (
    faiss.IndexScalarQuantizer, faiss.IndexIVFScalarQuantizer, faiss.IndexPQ, faiss.IndexIVFPQ,
    faiss.IndexPQFastScan, faiss.IndexResidualQuantizer, faiss.IndexIVFResidualQuantizer,
    faiss.IndexLocalSearchQuantizer, faiss.IndexIVFLocalSearchQuantizer,
    faiss.IndexProductResidualQuantizer, faiss.IndexIVFProductResidualQuantizer, faiss.Index2Layer,
)  # fmt: skip
"""Indexes that keep codes which rows are restored from. Others keep signs alone, or end the process."""
ID_MAPS = (faiss.IndexIDMap, faiss.IndexIDMap2)
GRAPHS = (faiss.IndexHNSW, faiss.IndexNSG, faiss.IndexNNDescent)
UNIT = faiss.NormalizationTransform
ORTHONORMAL = 1e-3
"""How far the products of a rotation's directions may be from 0 and 1."""
UNWRITTEN = np.uint32(0x7FC0_A55A)
"""A NaN nobody computes: FAISS leaves the place of a row it does not find as it was."""


@dataclass(frozen=True)
class Layers:
    """An index taken apart."""

    whole: Any
    """Owns all others."""
    keeper: Any
    """The innermost, which keeps the rows."""
    transforms: list[Any]
    """What a row went through before it was kept, in this order."""
    ids: NDArray[np.int64] | None
    names: list[str]


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
    layers = _taken_apart(index)
    keeper, ids = layers.keeper, layers.ids
    n = int(keeper.ntotal)
    keys = _listed_ids(keeper) if isinstance(keeper, faiss.IndexIVF) else None
    if keys is not None and not np.array_equal(keys, np.arange(len(keys))):
        if ids is not None:
            raise Unreadable(
                "unsupported-format",
                f"An id map over a {type(keeper).__name__} with ids of its own.",
            )
        ids = keys
    for named in (keys, ids):
        if named is not None and len(named) != n:
            raise Unreadable("malformed-payload", f"The index has {n} rows and {len(named)} ids.")
    found = Found(
        n,
        ", ".join(layers.names),
        lossy=type(keeper) not in EXACT or bool(layers.transforms),
        normalises=any(isinstance(one, UNIT) for one in layers.transforms) or None,
    )
    return found, _pages(layers, keys, ids, n)


def _taken_apart(whole: Any) -> Layers:
    """
    The index that keeps the rows, below all that only search it or name its rows.

    Each of these would read its inner rows under the wrong names, or abort.
    """
    index: Any = whole
    ids: NDArray[np.int64] | None = None
    transforms, names = list[Any](), list[str]()
    while True:
        if isinstance(index, ID_MAPS):
            if ids is not None:
                raise Unreadable("unsupported-format", "An id map over an id map.")
            ids = faiss.vector_to_array(index.id_map)
            index = faiss.downcast_index(index.index)
            continue
        names.append(type(index).__name__)
        if isinstance(index, faiss.IndexPreTransform):
            chain: Any = index.chain
            some = [_undoable(chain.at(place)) for place in range(chain.size())]
            transforms += some
            names += [type(one).__name__ for one in some]
            index = faiss.downcast_index(index.index)
        elif isinstance(index, faiss.IndexRefine):
            index = faiss.downcast_index(index.refine_index)
        elif isinstance(index, GRAPHS):
            index = faiss.downcast_index(index.storage)  # type: ignore[union-attr]
        else:
            break
    if type(index) not in (*EXACT, *CODED):
        raise Unreadable(
            "unsupported-format",
            f"A {type(index).__name__} keeps no rows that can be read back; export the vectors "
            "themselves, or an index of another type.",
        )
    widths = [int(whole.d), *(int(one.d_out) for one in transforms)]
    if [int(one.d_in) for one in transforms] != widths[:-1] or int(index.d) != widths[-1]:
        raise Unreadable("malformed-payload", "The parts of the index differ in their dimensions.")
    return Layers(whole, index, transforms, ids, names)


def _undoable(transform: Any) -> Any:
    """A step whose result says what went in; FAISS takes every matrix for a rotation."""
    one = faiss.downcast_VectorTransform(transform)
    if isinstance(one, faiss.LinearTransform):
        matrix = faiss.vector_to_array(one.A).reshape(one.d_out, one.d_in).astype(np.float64)
        short = matrix if one.d_out <= one.d_in else matrix.T
        undone = np.abs(short @ short.T - np.eye(len(short))).max() < ORTHONORMAL
    else:
        undone = isinstance(one, (UNIT, faiss.RemapDimensionsTransform, faiss.CenteringTransform))
    if not undone:
        raise Unreadable(
            "unsupported-format",
            f"Rows went through a {type(one).__name__} that cannot be undone; export the vectors "
            "themselves.",
        )
    return one


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
    layers: Layers,
    keys: NDArray[np.int64] | None,
    ids: NDArray[np.int64] | None,
    n: int,
) -> Iterator[Rows]:
    keeper = layers.keeper
    step = rows_per_page(max(layers.whole.d, keeper.d), 4)
    for start in range(0, n, step):
        stop = min(start + step, n)
        bits = np.full((stop - start, keeper.d), UNWRITTEN)
        kept = bits.view(np.float32)
        try:
            if keys is None:
                keeper.reconstruct_n(start, stop - start, x=kept)
            else:
                keeper.reconstruct_batch(keys[start:stop], x=kept)
        except RuntimeError:
            raise Unreadable(
                "unsupported-format", f"A {layers.names[-1]} keeps no rows that can be read back."
            ) from None
        if lost := int((bits == UNWRITTEN).any(axis=1).sum()):
            raise Unreadable(
                "malformed-payload", f"{lost} rows of the index cannot be found in it."
            )
        names = None if ids is None else [str(one) for one in ids[start:stop]]
        yield Rows(_reversed(kept, layers.transforms), names)


def _reversed(rows: NDArray[np.float32], transforms: list[Any]) -> NDArray[np.float32]:
    """Rows as they were given, as far as what they went through lets them be known."""
    for transform in reversed(transforms):
        rows = transform.reverse_transform(rows)
    return rows
