"""What adapters share: pages of one dimension, labels, conditions, errors without secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import compress
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.errors import (
    AssayError,
    DimensionMismatch,
    Fault,
    InvalidRequest,
    MalformedPayload,
    SourceUnreachable,
    first,
)
from service.model import Label
from service.source_page import SourcePage
from service.source_reference import Where
from service.sources.connection import Connection

PAGE_BYTES = 1 << 26


class Paging:
    """
    Makes pages of rows that arrive as Python values, all of one dimension.

    Parameters
    ----------
    dtype : stored type of a component, little-endian
    columns : names of the labels of each row
    dimensions : of a vector, None to take them from the first
    remedy : what a caller may do where vectors are not alike
    """

    def __init__(
        self,
        dtype: str,
        columns: Sequence[str] = (),
        dimensions: int | None = None,
        remedy: str = "choose rows with `where`",
    ) -> None:
        self._dtype = np.dtype(dtype)
        self._columns = tuple(columns)
        self.dimensions = dimensions
        self._remedy = remedy

    def rows(self, most: int) -> int:
        """How many rows a page may have, so that its vectors stay under PAGE_BYTES."""
        width = (self.dimensions or 1) * self._dtype.itemsize
        return max(1, min(most, PAGE_BYTES // width))

    def page(
        self,
        ids: Sequence[object],
        vectors: Sequence[Any],
        cells: Mapping[str, Sequence[object]],
    ) -> SourcePage:
        """A page of rows; those whose vector is None, or empty, are its missing ones."""
        present = [vector is not None and len(vector) > 0 for vector in vectors]
        kept = list(compress(vectors, present))
        self.expect([len(vector) for vector in kept], list(compress(ids, present)))
        block = np.array(kept, dtype=self._dtype).reshape(len(kept), self.dimensions or 0)
        return self.assembled(ids, present, block, [cells[name] for name in self._columns])

    def assembled(
        self,
        ids: Sequence[object],
        present: Sequence[bool],
        block: NDArray[np.generic],
        cells: Sequence[Sequence[object]],
    ) -> SourcePage:
        """The same where the vectors of the present rows are an array, and cells in order."""
        names = named(ids)
        return SourcePage(
            ids=list(compress(names, present)),
            vectors=np.ascontiguousarray(block),
            columns={
                name: [label(value, name) for value in compress(values, present)]
                for name, values in zip(self._columns, cells, strict=True)
            },
            missing=[name for name, there in zip(names, present, strict=True) if not there],
        )

    def expect(self, lengths: Sequence[int], ids: Iterable[object]) -> None:
        """DimensionMismatch unless all of these are the dimensions of what came before."""
        if self.dimensions is None and lengths:
            self.dimensions = lengths[0]
        if all(d == self.dimensions for d in lengths):
            return
        odd = [str(name) for name, d in zip(ids, lengths, strict=True) if d != self.dimensions]
        found = sorted({self.dimensions or 0, *lengths})
        raise DimensionMismatch(
            f"The source holds vectors of {' and '.join(map(str, found))} dimensions.",
            [
                Fault(
                    pointer="/source/vector",
                    message=f"not of {self.dimensions} dimensions; {self._remedy}",
                    count=len(odd),
                    rows=first(odd),
                )
            ],
        )


def named(ids: Sequence[object]) -> list[str]:
    """Ids as strings; whole numbers are written out."""
    if gone := sum(value is None for value in ids):
        raise MalformedPayload(f"{gone} rows of the source have no id; choose rows with `where`.")
    return [value if isinstance(value, str) else str(value) for value in ids]


def label(value: object, column: str) -> Label | None:
    """A cell as a label: NaN is missing, and what JSON has no scalar for is refused."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if isnan(value):
            return None
        if isfinite(value):
            return value
        raise InvalidRequest(f"Column `{column}` holds a number that is not finite.")
    raise InvalidRequest(
        f"Column `{column}` holds {type(value).__name__} values; a label is a string, a number or "
        "true or false."
    )


def conditions(where: Sequence[Where]) -> Iterator[tuple[str, str, list[Label]]]:
    """Each condition as column, operator and values."""
    for one in where:
        yield one.column, one.op, one.value if isinstance(one.value, list) else [one.value]


def unknown(what: str, name: str, known: Sequence[str]) -> InvalidRequest:
    """The error about a name that is not in the store."""
    listed = ", ".join(f"`{item}`" for item in first(sorted(known))) or "none"
    return InvalidRequest(f"There is no {what} `{name}` in the source; there is {listed}.")


def local(connection: Connection) -> str | None:
    """The path of an address `file:///path`, where something has to be; None for another address."""
    if connection.parts.scheme != "file":
        return None
    if not Path(connection.parts.path).exists():
        raise SourceUnreachable(f"There is nothing at the address of `{connection.name}`.")
    return connection.parts.path


@contextmanager
def retold(tell: Callable[[Exception], AssayError], *kinds: type[Exception]) -> Iterator[None]:
    """Say a driver's error in our words: its own may hold an address or a password."""
    try:
        yield
    except kinds as error:
        raise tell(error) from None
