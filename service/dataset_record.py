"""What is known of a stored dataset without opening it."""

from __future__ import annotations

import hashlib
from datetime import datetime
from itertools import islice
from typing import Literal

import numpy as np
import rfc8785
from numpy.typing import NDArray
from pydantic import Field

from service.dataset import Labels
from service.errors import SHOWN_ROWS
from service.numerics.rows import RowFacts
from service.references import Model, Spec

IDS_AT_ONCE = 4096


class ColumnFacts(Model):
    type: Literal["string", "integer", "number", "boolean", "mixed"]
    """JSON type of the labels."""
    distinct: int
    """Number of different labels."""
    missing: int
    """Rows without a label."""
    sha256: str
    """Hash of the values in row order."""

    @classmethod
    def of(cls, column: Labels) -> ColumnFacts:
        return cls.model_validate(
            {
                "type": column.type,
                "distinct": len(column.levels),
                "missing": column.missing,
                "sha256": column.sha256,
            }
        )


class Found(Model):
    """Rows with something wrong."""

    count: int
    rows: list[int] = Field(max_length=SHOWN_ROWS)
    """Numbers of the first ten."""

    @classmethod
    def of(cls, rows: NDArray[np.int64]) -> Found:
        return cls(count=len(rows), rows=rows[:SHOWN_ROWS].tolist())

    def __add__(self, later: Found) -> Found:
        """The same of two blocks of rows, the second behind the first."""
        rows = (self.rows + later.rows)[:SHOWN_ROWS]
        return Found(count=self.count + later.count, rows=rows)


class Facts(Model):
    """Hygiene of the rows, counted on arrival."""

    unit_rows: int
    """Rows whose length is within .001 of 1."""
    non_finite_rows: Found
    zero_rows: Found
    norm_min: float | None
    """Shortest finite row; null if there is none."""
    norm_max: float | None
    """Longest finite row."""

    @classmethod
    def of(cls, facts: RowFacts) -> Facts:
        some = len(facts.non_finite) < facts.n

        return cls(
            unit_rows=facts.unit_rows,
            non_finite_rows=Found.of(facts.non_finite),
            zero_rows=Found.of(facts.zero),
            norm_min=facts.norm_min if some else None,
            norm_max=facts.norm_max if some else None,
        )

    def __add__(self, later: Facts) -> Facts:
        """The same of two blocks of rows, the second behind the first."""
        shortest = [v for v in (self.norm_min, later.norm_min) if v is not None]
        longest = [v for v in (self.norm_max, later.norm_max) if v is not None]
        return Facts(
            unit_rows=self.unit_rows + later.unit_rows,
            non_finite_rows=self.non_finite_rows + later.non_finite_rows,
            zero_rows=self.zero_rows + later.zero_rows,
            norm_min=min(shortest, default=None),
            norm_max=max(longest, default=None),
        )


class DatasetRecord(Model):
    """An immutable embedding set."""

    id: str
    name: str | None
    """Name given on upload."""
    n: int
    """Rows."""
    d: int | None
    """Dimensions; null for columns alone."""
    dtype: str | None
    """Storage type of the rows; null for columns alone."""
    bytes: int
    """Size of the rows."""
    sha256: str
    """Hash of everything but the name: rows, ids, columns, spec."""
    vectors_sha256: str | None
    """Hash of dtype, shape and little-endian, C-ordered bytes."""
    ids_sha256: str | None
    """Hash of the ids in row order; null where rows are numbered."""
    columns: dict[str, ColumnFacts]
    skipped_columns: dict[str, str] = Field(default_factory=dict)
    """Columns of a table that nobody asked for and that hold no labels: not kept, and why."""
    spec: Spec
    facts: Facts | None
    """Null for columns alone."""
    created_at: datetime


def hash_ids(ids: tuple[str, ...] | None) -> str | None:
    """Hash of ids in order, None for none."""
    if ids is None:
        return None
    digest = hashlib.sha256()
    encoded = map(str.encode, ids)
    while some := list(islice(encoded, IDS_AT_ONCE)):
        digest.update(b"".join(len(data).to_bytes(4, "little") + data for data in some))
    return digest.hexdigest()


def hash_dataset(
    n: int,
    vectors_sha256: str | None,
    ids_sha256: str | None,
    columns: dict[str, Labels],
    spec: Spec,
) -> str:
    """Hash of what a dataset holds, whatever it is called and however it was sent."""
    content = {
        "n": n,
        "vectors": vectors_sha256,
        "ids": ids_sha256,
        "columns": {name: column.sha256 for name, column in columns.items()},
        "spec": spec.model_dump(mode="json", exclude_none=True),
    }
    return hashlib.sha256(rfc8785.dumps(content)).hexdigest()
