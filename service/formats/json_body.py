"""JSON bodies: lists of numbers, base64 buffers, columns, and OpenAI-style embedding responses."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from service.dataset import Labels
from service.errors import (
    Fault,
    InvalidRequest,
    MalformedPayload,
    PayloadTooLarge,
    ShapeMismatch,
    pointer_to,
)
from service.formats.reader import Limits, Options, Parsed, RowWriter, Sink
from service.redaction import KEPT
from service.references import (
    Encoded,
    InlineTable,
    InlineVectors,
    Label,
    Model,
    SourceRef,
    Spec,
)
from service.request import invalid

SHOWN = 10
OF_VECTORS = ("vectors", "embedding")
"""Keys of numbers that are floats however they are written."""
COLUMNS = "/columns"
"""Where keys are names of columns."""
SIGNED, UNSIGNED = -(2**63), 2**64
_NUMBERS: TypeAdapter[list[list[float]]] = TypeAdapter(
    list[list[float]], config=ConfigDict(strict=True, allow_inf_nan=False)
)


class DatasetBody(Model):
    """A dataset as JSON; without `vectors`, columns alone."""

    name: Annotated[str, Field(max_length=200), KEPT] | None = None
    spec: Spec = Spec()
    ids: list[str] | None = None
    columns: dict[str, list[Label | None]] = Field(default_factory=dict)
    vectors: list[list[float]] | Encoded | None = None


class ImportBody(SourceRef):
    """A dataset to be read from where its rows live."""

    name: Annotated[str, Field(max_length=200), KEPT] | None = None


class JsonReader:
    """Reads one JSON body, which has to fit the limit for text."""

    takes = frozenset[str]()

    def __init__(self, sink: Sink, limits: Limits, options: Options) -> None:
        self._sink, self._limits = sink, limits
        self._body = bytearray()

    def feed(self, data: bytes) -> None:
        if len(self._body) + len(data) > self._limits.text_bytes:
            raise PayloadTooLarge(
                f"A JSON body may have {self._limits.text_bytes} bytes; send application/x-npy."
            )
        self._body += data

    def close(self) -> None:
        self._body = bytearray()

    def reference(self) -> ImportBody | None:
        """What the body refers to, where it holds no rows but says where they are."""
        if b'"source"' not in self._body:
            return None
        content = decode_json(bytes(self._body))
        if not isinstance(content, dict) or "source" not in content:
            return None
        try:
            return ImportBody.model_validate(content)
        except ValidationError as error:
            raise invalid(error, content, kind=ImportBody) from None

    def finish(self) -> Parsed:
        content = decode_json(bytes(self._body))
        self._body = bytearray()
        if not isinstance(content, dict):
            raise InvalidRequest("A dataset is a JSON object with `vectors` or `columns`.")
        if "data" in content and "vectors" not in content:
            content = _from_openai(content)
        rows = content.pop("vectors", None)
        encoded = isinstance(rows, dict)
        try:
            body = DatasetBody.model_validate({**content, "vectors": rows if encoded else None})
        except ValidationError as error:
            raise invalid(error, content, kind=DatasetBody) from None
        columns = {name: Labels.of(values) for name, values in body.columns.items()}
        ids = None if body.ids is None else tuple(body.ids)
        if rows is None:
            parsed = _columns_alone(columns, self._limits)
        else:
            parsed = write_rows(body.vectors or rows, self._sink, self._limits)
        return Parsed(
            **{**vars(parsed), "ids": ids, "columns": columns, "spec": body.spec, "name": body.name}
        )


def decode_json(data: bytes) -> Any:
    """JSON content; NaN and Infinity are no JSON and are refused, and labels are never rounded."""
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise MalformedPayload(f"The body is not JSON: {error}.") from None
    if next(_large(content), None) is not None:
        _refuse_rounded(data)
    return content


def _refuse_rounded(data: bytes) -> None:
    """Integers beyond 64 bits have become floats, as large ones that were written as floats are."""
    try:
        exact = json.loads(data)
    except RecursionError:
        raise MalformedPayload("The body is nested too deeply.") from None
    wide = [(at, value) for at, value in _large(exact) if isinstance(value, int)]
    if wide:
        raise InvalidRequest(
            f"The integer {str(wide[0][1])[:40]} is beyond 64 bits, where neighbours are merged.",
            [Fault(pointer=at, message="send such labels as strings") for at, _ in wide[:SHOWN]],
        )


def _large(content: Any) -> Iterator[tuple[str, int | float]]:
    """Places and values of floats from 2^63 and integers beyond 64 bits, those of vectors aside."""
    waiting = [("", content)]
    while waiting:
        at, value = waiting.pop()
        if isinstance(value, (dict, list)):
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            inside = [
                (at + pointer_to(key), one)
                for key, one in parts
                if (key not in OF_VECTORS or at.endswith(COLUMNS))
                and (isinstance(one, (dict, list)) or _is_large(one))
            ]
            waiting += reversed(inside)
        elif _is_large(value):
            yield at, value


def _is_large(value: Any) -> bool:
    if isinstance(value, float):
        return abs(value) >= -SIGNED
    return isinstance(value, int) and not SIGNED <= value < UNSIGNED


def write_rows(vectors: Any, sink: Sink, limits: Limits) -> Parsed:
    """Write inline vectors, lists (kept as float64) or base64 (kept in their type), to a sink."""
    rows = _decoded(vectors) if isinstance(vectors, Encoded) else _listed(vectors)
    n, d = rows.shape
    writer = RowWriter(sink, n, d, rows.dtype, limits)
    writer.write(rows)
    return writer.finish()


def inline_rows(inline: InlineVectors, sink: Sink, limits: Limits) -> Parsed:
    """The same for vectors inside a job request."""
    parsed = write_rows(inline.vectors, sink, limits)
    ids = None if inline.ids is None else tuple(inline.ids)
    return Parsed(**{**vars(parsed), "ids": ids, "spec": inline.spec})


def inline_columns(inline: InlineTable, limits: Limits) -> Parsed:
    """The columns of a table inside a job request."""
    columns = {name: Labels.of(values) for name, values in inline.columns.items()}
    parsed = _columns_alone(columns, limits)
    ids = None if inline.ids is None else tuple(inline.ids)
    return Parsed(**{**vars(parsed), "ids": ids})


def _columns_alone(columns: dict[str, Labels], limits: Limits) -> Parsed:
    if not columns:
        raise InvalidRequest("A dataset needs `vectors` or at least one column.")
    n = len(next(iter(columns.values())))
    if n == 0:
        raise InvalidRequest("The columns have no values.")
    limits.refuse_rows(n)
    return Parsed(n, None, None, 0, None, None, columns=columns)


def _listed(vectors: Any) -> NDArray[np.float64]:
    try:
        lists = _NUMBERS.validate_python(vectors)
    except ValidationError as error:
        raise invalid(error, {"vectors": vectors}, ("vectors",)) from None
    if not lists:
        raise ShapeMismatch("`vectors` has no rows.")
    d = len(lists[0])
    ragged = [i for i, row in enumerate(lists) if len(row) != d]
    if ragged:
        raise ShapeMismatch(
            f"Row 0 has {d} numbers and {len(ragged)} rows have another count.",
            [
                Fault(
                    pointer="/vectors",
                    message="every row needs the same number of dimensions",
                    count=len(ragged),
                    rows=[str(i) for i in ragged[:SHOWN]],
                )
            ],
        )
    return np.array(lists, dtype=np.float64).reshape(len(lists), d)


def _decoded(encoded: Encoded) -> NDArray[Any]:
    data = _base64(encoded.data, "/vectors/data")
    dtype, (n, d) = np.dtype(encoded.dtype), encoded.shape
    if n < 1 or d < 1 or n * d * dtype.itemsize != len(data):
        raise MalformedPayload(
            f"`shape` {n} x {d} of {encoded.dtype} needs {n * d * dtype.itemsize} bytes; the buffer "
            f"has {len(data)}."
        )
    return np.frombuffer(data, dtype).reshape(n, d)


def _base64(text: str, pointer: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MalformedPayload(
            "The buffer is not standard base64 (the URL-safe alphabet is not accepted).",
            [Fault(pointer=pointer, message="encode with the alphabet A-Z a-z 0-9 + /")],
        ) from None


def _from_openai(content: dict[str, Any]) -> dict[str, Any]:
    """The rows of an embeddings response in the order of their `index`."""
    items = content["data"]
    if not isinstance(items, list) or not all(
        isinstance(item, dict) and "embedding" in item for item in items
    ):
        raise InvalidRequest("`data` must be a list of objects with an `embedding`.")
    order = [item.get("index", i) for i, item in enumerate(items)]
    if not all(type(i) is int for i in order) or sorted(order) != list(range(len(items))):
        raise InvalidRequest(f"`index` must number the {len(items)} embeddings from 0, once each.")
    rows: list[Any] = [None] * len(items)
    for at, (place, item) in enumerate(zip(order, items, strict=True)):
        value = item["embedding"]
        if isinstance(value, str):
            data = _base64(value, f"/data/{at}/embedding")
            if len(data) % 4:
                raise MalformedPayload(f"`data[{at}]` is not a buffer of float32.")
            value = np.frombuffer(data, "<f4").astype(np.float64).tolist()
        rows[place] = value
    model = content.get("model")
    return {"vectors": rows, "spec": {"model": model} if isinstance(model, str) else {}}
