"""A Dataset: rows, ids and columns that belong together, validated once."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from service.errors import DuplicateIds, Fault, InvalidRequest, ShapeMismatch, first, pointer_to
from service.references import Label, Spec

Rows = NDArray[np.generic]
LONGEST_ID = 512
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
DTYPES = ("float16", "float32", "float64", "int8")


@dataclass(frozen=True, eq=False)
class Labels:
    """
    One label per row: `codes[i]` indexes `levels`, -1 where the label is missing.

    Levels keep their JSON type and stand in order of first appearance.
    """

    levels: tuple[Label, ...]
    codes: NDArray[np.int32]

    @classmethod
    def of(cls, values: Iterable[Label | None]) -> Labels:
        """Encode JSON values; null is missing, every other value is a label of its own type."""
        seen: dict[tuple[type, Label], int] = {}
        codes = [
            -1 if value is None else seen.setdefault((type(value), value), len(seen))
            for value in values
        ]
        return cls(tuple(value for _, value in seen), np.array(codes, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def missing(self) -> int:
        """Number of rows without a label."""
        return int(np.count_nonzero(self.codes < 0))

    @property
    def type(self) -> str:
        """JSON type of the labels: string, integer, number, boolean or mixed."""
        names = {bool: "boolean", int: "integer", float: "number", str: "string"}
        kinds = {names[type(level)] for level in self.levels}
        if kinds == {"integer", "number"}:
            return "number"
        return kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "string"

    @cached_property
    def sha256(self) -> str:
        """Hash of the values in row order; the same however they were sent."""
        digest = hashlib.sha256(json.dumps(self.levels, ensure_ascii=False).encode())
        digest.update(np.ascontiguousarray(self.codes, dtype="<i4").tobytes())
        return digest.hexdigest()

    @property
    def dense(self) -> NDArray[np.int64]:
        """Codes 0..G-1, (n,); needs every label present."""
        return self.codes.astype(np.int64)

    @property
    def numbers(self) -> NDArray[np.float64]:
        """
        Labels as float64, (n,), missing as NaN: true is 1, false is 0, "1e3" (as in a CSV) is 1000.

        Raises InvalidRequest where some label is no number.
        """
        words = [
            level for level in self.levels if isinstance(level, str) and not NUMBER.fullmatch(level)
        ]
        if words:
            raise InvalidRequest(f"The column needs numbers; it holds `{words[0][:40]}`.")
        values = np.array([*map(float, self.levels), np.nan])
        return values[self.codes]

    def keep(self, rows: NDArray[np.bool_] | NDArray[np.integer]) -> Labels:
        """The labels of the chosen rows, in the order of the choice, levels without the unused."""
        codes = self.codes[rows]
        present = codes >= 0
        used, at, found = np.unique(codes[present], return_index=True, return_inverse=True)
        order = np.argsort(at)
        rank = np.empty(len(order), dtype=np.int32)
        rank[order] = np.arange(len(order))
        fresh = np.full(len(codes), -1, dtype=np.int32)
        fresh[present] = rank[found]
        return Labels(tuple(self.levels[code] for code in used[order]), fresh)


@dataclass(frozen=True, eq=False)
class Dataset:
    """
    An immutable embedding set.

    `rows` is (n, d), usually memory-mapped, or None for columns alone. Ids default to row numbers.
    """

    rows: Rows | None
    ids: tuple[str, ...] | None = None
    columns: Mapping[str, Labels] = field(default_factory=dict)
    spec: Spec = Spec()

    def __post_init__(self) -> None:
        if self.rows is None and not self.columns:
            raise InvalidRequest("A dataset needs vectors or at least one column.")
        if self.rows is not None:
            if self.rows.ndim != 2 or self.rows.shape[0] < 1 or self.rows.shape[1] < 1:
                raise ShapeMismatch(
                    f"`vectors` must have shape (rows, dimensions), both at least 1; got "
                    f"{self.rows.shape}."
                )
            if self.rows.dtype.name not in DTYPES:
                raise InvalidRequest(
                    f"`vectors` must be one of {', '.join(DTYPES)}; got {self.rows.dtype.name}."
                )
        lengths = {
            pointer_to("columns", name): len(column) for name, column in self.columns.items()
        }
        if self.ids is not None:
            lengths["/ids"] = len(self.ids)
        if wrong := {place: got for place, got in lengths.items() if got != self.n}:
            raise ShapeMismatch(
                f"There are {self.n} rows.",
                [
                    Fault(pointer=place, message=f"has {got} values, not {self.n}")
                    for place, got in wrong.items()
                ],
            )
        if self.ids is not None and max(map(len, self.ids)) > LONGEST_ID:
            long = sum(len(name) > LONGEST_ID for name in self.ids)
            raise InvalidRequest(
                f"{long} ids are over {LONGEST_ID} characters.",
                [Fault(pointer="/ids", message="use shorter ids", count=long)],
            )
        if self.ids is not None and len(set(self.ids)) != len(self.ids):
            raise duplicate_ids(self.ids)

    @property
    def vectors(self) -> Rows:
        """The rows, where there must be some."""
        if self.rows is None:
            raise InvalidRequest("This dataset has columns but no vectors.")
        return self.rows

    @property
    def n(self) -> int:
        """Number of rows."""
        if self.rows is not None:
            return int(self.rows.shape[0])
        return len(next(iter(self.columns.values())))

    @property
    def d(self) -> int | None:
        """Dimensions, None for columns alone."""
        return None if self.rows is None else int(self.rows.shape[1])

    def name_rows(self, rows: Sequence[int] | NDArray[np.integer]) -> list[str]:
        """Ids of the first few of these row numbers, as an error shows them."""
        return first([str(row) if self.ids is None else self.ids[row] for row in rows[:10]])

    def keep(self, rows: NDArray[np.bool_]) -> Dataset:
        """The chosen rows, copied."""
        return Dataset(
            rows=None if self.rows is None else self.rows[rows],
            ids=None if self.ids is None else tuple(np.array(self.ids, dtype=object)[rows]),
            columns={name: column.keep(rows) for name, column in self.columns.items()},
            spec=self.spec,
        )


def duplicate_ids(ids: Sequence[str]) -> DuplicateIds:
    """The error that names the ids which occur more than once."""
    seen: set[str] = set()
    repeated: dict[str, int] = {}
    for value in ids:
        if value in seen:
            repeated[value] = repeated.get(value, 1) + 1
        seen.add(value)
    extra = sum(repeated.values()) - len(repeated)
    return DuplicateIds(
        f"{len(repeated)} ids occur more than once.",
        [
            Fault(
                pointer="/ids",
                message="every row needs an id of its own",
                count=extra,
                rows=first(list(repeated)),
            )
        ],
    )
