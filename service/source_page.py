"""Rows on their way from a store."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from service.model import Label


@dataclass(frozen=True)
class SourcePage:
    """Some rows, in the stable key order of the store."""

    ids: list[str] | None
    """One per row; None where the source has no ids and rows are numbered."""
    vectors: NDArray[np.generic]
    """(m, d) in stored precision: float16, float32, float64 or int8. Rows without one are not here."""
    columns: dict[str, list[Label | None]] = field(default_factory=dict)
    """JSON scalars, None where missing, one per row."""
    missing: list[str] = field(default_factory=list)
    """Ids of rows of this page that have no vector."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Columns that are not kept, what came of them before included, and why."""

    def __len__(self) -> int:
        return len(self.vectors)

    def __post_init__(self) -> None:
        lengths = {len(self.vectors), *map(len, self.columns.values())}
        if self.ids is not None:
            lengths.add(len(self.ids))
        if self.vectors.ndim != 2 or len(lengths) != 1:
            raise ValueError(f"a page has parts of {sorted(lengths)} rows")
