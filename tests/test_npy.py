"""Headers of .npy beside numpy's reader, which goes through Python's parser; ours never does."""

from __future__ import annotations

import ast
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service import npy
from service.npy import CompoundNpy, UnreadableNpy

TYPES = ["<f2", "<f4", ">f4", "<f8", "|i1", "<i4", "|b1", "<c16", "<U3", "|S2", "|V2", "<M8[ns]"]
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def saved(array: NDArray[Any], version: tuple[int, int] = (1, 0)) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


@given(shapes, st.sampled_from(TYPES), st.booleans(), st.sampled_from([(1, 0), (2, 0)]))
def test_an_array_is_read_as_numpy_reads_it(
    shape: tuple[int, ...], dtype: str, fortran: bool, version: tuple[int, int]
) -> None:
    array = np.arange(int(np.prod(shape))).astype("u1").astype(dtype).reshape(shape)
    data = saved(np.asfortranarray(array) if fortran else array, version)
    ours, theirs = npy.read(io.BytesIO(data)), np.load(io.BytesIO(data))
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert ours.tobytes() == theirs.tobytes()
    assert not ours.flags.writeable


@pytest.mark.parametrize("fortran", [False, True])
def test_a_file_is_mapped_as_numpy_maps_it(fortran: bool, tmp_path: Path) -> None:
    array = np.arange(12.0).reshape(3, 4)
    np.save(tmp_path / "a.npy", np.asfortranarray(array) if fortran else array)
    ours = npy.mapped(tmp_path / "a.npy")
    assert np.array_equal(ours, np.load(tmp_path / "a.npy", mmap_mode="r"))
    assert (ours.flags.writeable, ours.flags.f_contiguous) == (False, fortran)


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }",
        "{'shape': (3, 2), 'descr': '<f4', 'fortran_order': False}",
        '{"fortran_order":False,"descr":"<f4","shape":(3,2,)}\n',
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3L, 2L), }   \n",
        " {\n'descr' : '<f4' ,\t'fortran_order' : False , 'shape' : ( 3 , 2 ) } ",
    ],
    ids=range(5),
)
def test_a_header_may_be_written_by_another_hand(text: str) -> None:
    """Whatever order, quotes and blanks numpy takes, with Python 2's long integers."""
    header = npy.parsed(text)
    assert (header.shape, header.fortran, header.dtype) == ((3, 2), False, np.dtype("<f4"))
    size = len(text.strip()).to_bytes(2, "little")
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        theirs = np.lib.format.read_array_header_1_0(io.BytesIO(size + text.strip().encode()))
    assert theirs == (header.shape, header.fortran, header.dtype)


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), 'more': 1}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3, 2)}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (3, 2)}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (3, 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3.5, 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-3, 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [3, 2]}",
        "{'descr': 'f4,f4', 'fortran_order': False, 'shape': (3, 2)}",
        "{'descr': '<q9', 'fortran_order': False, 'shape': (3, 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 5000 + ", 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 31 + ", 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 4000 + "x)}",
        "{" * 9000,
        "",
        "{" + " " * 9900 + "}",
        "{'descr'" + " " * 9900 + "}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + " " * 9900 + "}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1 ," * 3000 + " " * 900 + "}",
    ],
    ids=range(20),
)
def test_other_text_is_no_header(text: str) -> None:
    with pytest.raises(UnreadableNpy):
        npy.parsed(text)


@pytest.mark.parametrize("descr", ["[('x', '<f4')]", "('<f4', (2,))", "{'names': ['x']}"])
def test_records_are_told_apart(descr: str) -> None:
    with pytest.raises(CompoundNpy):
        npy.parsed(f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1, 2), }}")


@pytest.mark.parametrize("cut", [0, 5, 8, 9, 40, 127, 128, 150])
def test_a_torn_file_is_unreadable(cut: int, tmp_path: Path) -> None:
    data = saved(np.arange(12.0).reshape(3, 4))[:cut]
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(UnreadableNpy):
        npy.read(io.BytesIO(data))
    with pytest.raises(UnreadableNpy):
        npy.mapped(tmp_path / "a.npy")


def test_objects_are_never_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[{}]], object), allow_pickle=True)
    with pytest.raises(UnreadableNpy):
        npy.mapped(tmp_path / "a.npy")
    with (tmp_path / "a.npy").open("rb") as file, pytest.raises(UnreadableNpy):
        npy.read(file)


def test_no_header_goes_through_pythons_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads in it at once may fail: python/cpython#106905."""

    def parse(*_: Any, **__: Any) -> None:
        raise SystemError("AST constructor recursion depth mismatch")

    monkeypatch.setattr(ast, "parse", parse)
    data = saved(np.eye(3))
    with pytest.raises(SystemError):
        np.load(io.BytesIO(data))
    assert np.array_equal(npy.read(io.BytesIO(data)), np.eye(3))
