"""How requests name data: told apart by what they hold, strict about everything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from service.references import (
    ColumnRef,
    ColumnValue,
    DatasetRef,
    Encoded,
    InlineColumn,
    InlineVectors,
    NamedDataset,
    NamedValue,
    NamedVectors,
    VectorsValue,
)

VECTORS: TypeAdapter[Any] = TypeAdapter(VectorsValue)
COLUMN: TypeAdapter[Any] = TypeAdapter(ColumnValue)
NAMED: TypeAdapter[Any] = TypeAdapter(NamedValue)
PACKED = {"encoding": "base64", "dtype": "<f4", "shape": [1, 1], "data": "AACAPw=="}


@pytest.mark.parametrize(
    ("adapter", "value", "kind"),
    [
        (VECTORS, {"dataset": "ds_1"}, DatasetRef),
        (VECTORS, {"vectors": [[1.0, 2]]}, InlineVectors),
        (VECTORS, {"vectors": PACKED, "ids": ["a"], "spec": {"model": "m"}}, InlineVectors),
        (COLUMN, {"column": "g"}, ColumnRef),
        (COLUMN, {"column": "g", "dataset": "ds_1"}, ColumnRef),
        (COLUMN, {"values": [1, True, "1", None, 0.5]}, InlineColumn),
        (NAMED, {"dataset": "ds_1"}, NamedDataset),
        (NAMED, {"dataset": "ds_1", "name": "e5"}, NamedDataset),
        (NAMED, {"vectors": [[1.0]], "name": "e5"}, NamedVectors),
    ],
    ids=str,
)
def test_a_value_is_what_it_holds(adapter: Any, value: Any, kind: type) -> None:
    """And it survives JSON unchanged."""
    found = adapter.validate_python(value)
    assert type(found) is kind
    assert adapter.validate_json(json.dumps(value)) == found
    assert adapter.validate_python(found.model_dump()) == found


@pytest.mark.parametrize(
    ("adapter", "value"),
    [
        (VECTORS, {}), (VECTORS, {"dataset": 5}), (VECTORS, {"dataset": "a", "vectors": [[1.0]]}),
        (VECTORS, {"dataset": "a", "name": "x"}), (VECTORS, "ds_1"), (VECTORS, [[1.0]]),
        (VECTORS, {"vectors": [["1"]]}), (VECTORS, {"vectors": [[True]]}),
        (VECTORS, {"vectors": [[float("nan")]]}), (VECTORS, {"vectors": [[float("inf")]]}),
        (VECTORS, {"vectors": [[1.0]], "ids": "ab"}), (VECTORS, {"vectors": {**PACKED, "x": 1}}),
        (VECTORS, {"vectors": {**PACKED, "dtype": ">f4"}}), (VECTORS, {"vectors": [1.0]}),
        (VECTORS, {"vectors": [[1.0]], "spec": {"modell": "m"}}),
        (COLUMN, {}), (COLUMN, {"values": "abc"}), (COLUMN, {"values": [[1]]}),
        (COLUMN, {"values": [float("nan")]}), (COLUMN, {"column": 5}), (COLUMN, "g"),
        (COLUMN, {"column": "g", "values": [1]}), (COLUMN, {"dataset": "ds_1"}),
        (NAMED, {"dataset": "a", "name": ""}), (NAMED, {"dataset": "a", "name": "A"}),
        (NAMED, {"dataset": "a", "name": "a.b"}), (NAMED, {"dataset": "a", "name": "a" * 33}),
        (NAMED, {"dataset": "a", "name": "a\n"}),
    ],
    ids=str,
)  # fmt: skip
def test_anything_else_is_refused(adapter: Any, value: Any) -> None:
    """Half values, mixed values, wrong types, unknown fields."""
    with pytest.raises(ValidationError):
        adapter.validate_python(value)


def test_labels_keep_their_types_through_validation() -> None:
    """1, true, "1" and 1.5 stay what they are, also through JSON."""
    values = [1, True, "1", 1.5, False, 0, "", None, 2**60]
    for found in (
        COLUMN.validate_python({"values": values}),
        COLUMN.validate_json(json.dumps({"values": values})),
    ):
        assert [(type(one), one) for one in found.values] == [(type(one), one) for one in values]


def test_references_are_frozen() -> None:
    """They stand in job records."""
    with pytest.raises(ValidationError, match="frozen"):
        DatasetRef(dataset="a").dataset = "b"
    with pytest.raises(ValidationError, match="frozen"):
        Encoded.model_validate(PACKED).data = ""
