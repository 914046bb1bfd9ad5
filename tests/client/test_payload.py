"""What is uploaded: arrays as NumPy itself would save them, never a second time in memory."""

from __future__ import annotations

import io
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from assay_client import Assay
from assay_client.payload import PIECE_BYTES, payload
from assay_client.problems import Mistake
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from packaging.requirements import Requirement

MIB = 1 << 20


def sent(source: Any) -> bytes:
    body = payload(source)
    data = b"".join(bytes(piece) for piece in body.pieces())
    assert len(data) == body.size
    assert data == b"".join(bytes(piece) for piece in body.pieces()), "it can be read again"
    return data


@given(
    arrays.arrays(
        st.sampled_from(["<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "i1"]),
        st.tuples(st.integers(1, 40), st.integers(1, 9)),
        elements=st.floats(-100, 100, width=16).map(int),
    ),
    st.sampled_from(["C", "F", "T", "strided", "reversed", "read-only"]),
)
def test_an_array_arrives_as_numpy_would_save_it(rows: Any, layout: str) -> None:
    """Read back by NumPy, bit for bit, whatever its order in memory; C order byte for byte."""
    turned = {
        "C": lambda: rows, "F": lambda: np.asfortranarray(rows), "T": lambda: rows.T,
        "strided": lambda: rows[::2, ::-1], "reversed": lambda: rows[::-1],
        "read-only": lambda: np.frombuffer(rows.tobytes(), rows.dtype).reshape(rows.shape),
    }[layout]()  # fmt: skip
    data = sent(turned)
    back = np.load(io.BytesIO(data), allow_pickle=False)
    assert (back.dtype, back.shape) == (turned.dtype, turned.shape)
    assert back.tobytes() == turned.tobytes()
    whole = io.BytesIO()
    np.save(whole, np.ascontiguousarray(turned))
    assert data == whole.getvalue()


def test_pieces_are_small_whatever_the_shape() -> None:
    """Of long rows one at a time."""
    for shape in ((5000, 300), (3, 2_000_000), (1_000_000, 1)):
        rows = np.broadcast_to(np.float32(1), shape)
        largest = max(len(piece) for piece in payload(rows).pieces())
        assert largest <= max(PIECE_BYTES, 4 * shape[1])


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_is_not_copied_on_its_way(order: Any) -> None:
    """96 MiB sent, checksum included, in a few MiB of new memory."""
    rows = np.ones((98_304, 256), np.float32, order=order)
    received = 0

    def drain(request: httpx.Request) -> httpx.Response:
        nonlocal received
        if request.method == "GET":
            return httpx.Response(200, json={"items": [], "next_cursor": None})
        raise AssertionError("bodies are streamed")

    class Sink(httpx.MockTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            nonlocal received
            if request.method == "GET":
                return drain(request)
            stream: Iterator[bytes] = iter(request.stream)  # type: ignore[arg-type]
            received = sum(len(piece) for piece in stream)
            return httpx.Response(201, json={"id": "ds_1"})

    with Assay(transport=Sink(drain)) as assay:
        tracemalloc.start()
        assay.upload(rows, "rows")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert received > 96 * MIB
    assert peak < 8 * MIB


@pytest.mark.parametrize(
    "rows",
    [np.ones(3), np.ones((2, 2, 2)), np.ones((0, 4)), np.ones((4, 0)), np.ones((2, 2), np.int64),
     np.ones((2, 2), complex), np.array([["a"]]), np.array([[None]]), np.ones((2, 2), bool)],
    ids=lambda rows: f"{rows.dtype}{rows.shape}",
)  # fmt: skip
def test_an_array_no_dataset_can_hold_is_refused_at_once(rows: Any) -> None:
    """With what it would have to be."""
    with pytest.raises(Mistake, match=r"rows and dimensions|float32"):
        payload(rows)


WITHOUT_NUMPY = """
import importlib, pkgutil, sys
sys.modules["numpy"] = None
import assay_client
for module in pkgutil.iter_modules(assay_client.__path__):
    importlib.import_module(f"assay_client.{module.name}")
from assay_client import Assay
with Assay(sys.argv[1]) as assay:
    print(assay.upload(sys.argv[2])["id"], assay.upload(open(sys.argv[2], "rb"))["id"])
assert sys.modules["numpy"] is None
"""


def test_everything_but_arrays_works_without_numpy(server: Any, vectors: Path) -> None:
    """Every module imports, and files are uploaded, in an interpreter that cannot import it."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_NUMPY, server.url, str(vectors)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["ds_1", "ds_2"]
    assert server.calls("POST /v1/datasets")[0].body == vectors.read_bytes()


def test_nothing_the_client_requires_brings_numpy() -> None:
    """Over all that is installed with it."""
    seen, waiting = set(), ["assay-client"]
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for line in requires(name) or []:
            found = Requirement(line)
            if found.marker is None or found.marker.evaluate({"extra": ""}):
                waiting += [found.name.lower()] if found.name.lower() not in seen else []
    assert "httpx" in seen
    assert "numpy" not in seen
