"""Rows with fewer dimensions, and the storage schemes on top of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from service.check import Undefined
from service.checks.compression.declared import CompressionInputs, CompressionParams
from service.dataset import Dataset
from service.errors import Fault, ZeroRows
from service.numerics.coded import Coded, as_given
from service.numerics.rows import Directions, Floats, Rows, blocks, ordered_map
from service.numerics.spectrum import Components, components
from service.numerics.storage_schemes import SchemeName, Stored, TooFewToTrain, fit, store

UNTRAINED = Undefined(
    code="too_few_rows", message="256 centroids need as many train rows to be trained on."
)


@dataclass(frozen=True)
class Kept:
    """
    What is kept of the rows.

    Attributes
    ----------
    name : str
    dimensions : int
    rows : Coded
    bytes_per_vector : float
    like : callable
        Keeps as little of other rows.
    explained : float or None
        Share of the train rows' variance on the components.
    """

    name: str
    dimensions: int
    rows: Coded
    bytes_per_vector: float
    like: Callable[[Rows], Coded]
    explained: float | None = None


@dataclass(frozen=True)
class Nothing:
    """Why there is nothing to compare."""

    name: str
    dimensions: int
    why: Undefined


@dataclass
class Reductions:
    """Every way to keep less of the rows that was asked for."""

    inputs: CompressionInputs
    params: CompressionParams
    threads: int

    def __post_init__(self) -> None:
        self.rows = self.inputs.vectors.vectors
        self.n, self.d = self.rows.shape
        self.train = self.rows if self.inputs.train is None else self.inputs.train.vectors

    def native(self) -> Kept:
        """The rows as given."""
        size = self.d * self.rows.dtype.itemsize
        return Kept("native", self.d, self._given(self.rows), size, self._given)

    def _given(self, rows: Rows) -> Coded:
        return as_given(np.ascontiguousarray(rows), cosine=True, threads=self.threads)

    def components(self, step: Callable[[int, int], None]) -> Components:
        """Principal directions of the train rows, brought to length one."""
        return components(Directions(self.train), self.threads, step)

    def all(self, found: Components) -> Iterator[Kept | Nothing]:
        """Storage of all dimensions, then each reduction and its storage."""
        native = self.native()
        yield from self._stored(native, native.rows, self._of_train(native.rows, self.train))
        for m in self.params.kept:
            if m >= self.d:
                for name in (f"prefix_{m}", f"pca_{m}"):
                    yield from self._nothing(name, m, _not_fewer(self.d))
                continue
            yield from self._prefix(m)
            yield from self._pca(m, found)

    def _prefix(self, m: int) -> Iterator[Kept | Nothing]:
        self._refuse_zero_prefixes("vectors", self.inputs.vectors, m)
        if self.inputs.queries is not None:
            self._refuse_zero_prefixes("queries", self.inputs.queries, m)
        rows, size = self._given(self.rows[:, :m]), m * self.rows.dtype.itemsize
        prefix = Kept(f"prefix_{m}", m, rows, size, lambda rows: self._given(rows[:, :m]))
        yield prefix
        yield from self._stored(prefix, rows, self._of_train(rows, self.train[:, :m]))

    def _refuse_zero_prefixes(self, role: str, data: Dataset, m: int) -> None:
        grid = blocks(data.n, m)
        zero = np.flatnonzero(
            np.concatenate([~(data.vectors[which, :m] != 0).any(axis=1) for which in grid])
        )
        if len(zero):
            raise ZeroRows(
                f"{len(zero)} rows of `{role}` are zero in their first {m} coordinates and have no "
                "direction there.",
                [
                    Fault(
                        pointer=f"/inputs/{role}",
                        message=f"drop these rows, or leave {m} out of `dims`",
                        count=len(zero),
                        rows=data.name_rows(zero),
                    )
                ],
            )

    def _pca(self, m: int, found: Components) -> Iterator[Kept | Nothing]:
        name, rank = f"pca_{m}", len(found.singular_values)
        if rank < m:
            why = Undefined(
                code="too_few_components",
                message=f"The {len(self.train)} train rows vary in {rank} directions, not {m}.",
            )
            yield from self._nothing(name, m, why)
            return
        rows = self._projected(self.rows, found, m)
        kept = Kept(
            name,
            m,
            rows,
            m * rows.codes.dtype.itemsize,
            lambda rows: self._projected(rows, found, m),
            float(found.shares()[m - 1]),
        )
        yield kept
        if not self.params.stored:
            return
        train = rows if self.inputs.train is None else self._projected(self.train, found, m)
        yield from self._stored(kept, rows, train)

    def _projected(self, rows: Rows, found: Components, m: int) -> Coded:
        """Leading components of unit rows minus the train mean."""
        dtype = np.float64 if rows.dtype == np.float64 else np.float32
        source, turn = Directions(rows), found.directions[:m].T
        out = np.empty((len(rows), m), dtype)

        def project(which: slice) -> None:
            out[which] = (source.take(which) - found.mean) @ turn

        for _ in ordered_map(project, blocks(*rows.shape), self.threads):
            pass
        return as_given(out, cosine=True, threads=self.threads)

    def _of_train(self, rows: Coded, train: Rows) -> Coded:
        """What storage is fitted on; zero train rows set no range."""
        if self.inputs.train is None or not self.params.stored:
            return rows
        return self._given(train)

    def _stored(self, kept: Kept, rows: Coded, train: Coded) -> Iterator[Kept | Nothing]:
        for scheme in self.params.stored:
            yield self._in_scheme(f"{kept.name}_{scheme}", scheme, kept, rows, train)

    def _in_scheme(
        self, name: str, scheme: SchemeName, kept: Kept, rows: Coded, train: Coded
    ) -> Kept | Nothing:
        m = kept.dimensions
        try:
            fitted = fit(scheme, train.points, train.n, m, self.threads)
        except TooFewToTrain:
            return Nothing(name, m, UNTRAINED)

        def kept_of(rows: Coded) -> Stored:
            points: Callable[[slice], Floats] = rows.points
            return store(fitted, points, rows.n, m, cosine=True, threads=self.threads)

        stored = kept_of(rows)
        if len(stored.overflow):
            why = Undefined(
                code="not_representable",
                message=f"{stored.overflow_coordinates} coordinates are beyond the format.",
            )
            return Nothing(name, m, why)
        return Kept(
            name,
            m,
            stored.rows,
            fitted.bytes_per_vector,
            lambda rows: kept_of(kept.like(rows)).rows,
            kept.explained,
        )

    def _nothing(self, name: str, m: int, why: Undefined) -> Iterator[Nothing]:
        yield Nothing(name, m, why)
        for scheme in self.params.stored:
            yield Nothing(f"{name}_{scheme}", m, why)


def _not_fewer(d: int) -> Undefined:
    return Undefined(code="not_fewer", message=f"The rows have only {d} dimensions.")
