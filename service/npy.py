"""
Numpy's .npy files, their headers read without Python's parser.

Numpy hands a header to `ast.literal_eval`, and two threads in CPython's parser at once may fail with
`SystemError: AST constructor recursion depth mismatch` (python/cpython#106905, releases before 3.13).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

MAGIC = b"\x93NUMPY"
SIZE_BYTES = {(1, 0): 2, (2, 0): 4}
"""Width of the header's length, by version; 3.0 differs by its names of fields alone."""
LONGEST_HEADER = 10_000
_TYPE = r"[<>|=]?[A-Za-z?]\d{0,9}(?:\[\w{1,9}\])?"
_VALUES = {
    "descr": rf"""'{_TYPE}'|"{_TYPE}\"""",
    "fortran_order": "True|False",
    "shape": r"\(\s*(?:-?\d{1,30}L?\s*,\s*)*(?:-?\d{1,30}L?\s*)?\)",
}
_ENTRY = re.compile(
    "|".join(
        rf"""(?:'{name}'|"{name}")\s*:\s*(?P<{name}>{value})""" for name, value in _VALUES.items()
    ),
    re.ASCII,
)
_BETWEEN = re.compile(r"\s*,\s*", re.ASCII)
_BLANK = " \t\n\r\f\v"
_COMPOUND = re.compile(r"""['"]descr['"]\s*:\s*[\[({]""")


class UnreadableNpy(ValueError):
    """A header that is none, or rows that are not there."""


class CompoundNpy(UnreadableNpy):
    """Rows of records, or of arrays."""


@dataclass(frozen=True)
class Header:
    """What a .npy file says of its array."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def order(self) -> Literal["C", "F"]:
        return "F" if self.fortran else "C"

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def parsed(text: str) -> Header:
    """
    The header from its text, a dictionary of three entries as numpy writes it.

    Raises UnreadableNpy, CompoundNpy.
    """
    text = text.strip(_BLANK)
    whole = text.startswith("{") and text.endswith("}")
    if whole and _COMPOUND.search(text):
        raise CompoundNpy("The array holds records or arrays.")
    found: dict[str, str] = {}
    inside = text[1:-1].strip(_BLANK).removesuffix(",").rstrip(_BLANK) if whole else ""
    at = 0
    while entry := _ENTRY.match(inside, at):
        name = str(entry.lastgroup)
        if name in found:
            break
        found[name] = entry[name]
        between = _BETWEEN.match(inside, entry.end())
        at = entry.end() if between is None else between.end()
        if between is None:
            break
    if at != len(inside) or found.keys() != _VALUES.keys():
        raise UnreadableNpy("The .npy header cannot be read.")
    try:
        shape = tuple(int(size) for size in re.findall(r"-?\d+", found["shape"]))
        dtype = np.dtype(found["descr"][1:-1])
    except (ValueError, TypeError, SyntaxError) as error:
        raise UnreadableNpy("The .npy header cannot be read.") from error
    if any(size < 0 for size in shape):
        raise UnreadableNpy(f"The .npy header claims a shape of {shape}.")
    return Header(shape, found["fortran_order"] == "True", dtype)


def read_header(file: IO[bytes]) -> Header:
    """
    The header of an open file, which then stands at its rows.

    Raises UnreadableNpy.
    """
    start = file.read(len(MAGIC) + 2)
    width = SIZE_BYTES.get(tuple(start[len(MAGIC) :]))  # type: ignore[arg-type]
    if not start.startswith(MAGIC) or width is None:
        raise UnreadableNpy("That is not a .npy file.")
    length = int.from_bytes(file.read(width), "little")
    if length > LONGEST_HEADER:
        raise UnreadableNpy(f"The .npy header is over {LONGEST_HEADER} bytes.")
    return parsed(file.read(length).decode("latin-1"))


def read(file: IO[bytes]) -> NDArray[Any]:
    """
    The array of an open file, in memory and read-only.

    Raises UnreadableNpy.
    """
    header = read_header(file)
    data = file.read(header.bytes)
    if len(data) != header.bytes or header.dtype.hasobject:
        raise UnreadableNpy(f"The .npy file holds {len(data)} bytes of {header.bytes}.")
    return np.frombuffer(data, header.dtype).reshape(header.shape, order=header.order)


def mapped(path: Path) -> NDArray[Any]:
    """
    The array of a file, read-only, its pages read when they are looked at.

    Raises UnreadableNpy, OSError.
    """
    with path.open("rb") as file:
        header = read_header(file)
        if header.dtype.hasobject:
            raise UnreadableNpy("The .npy file holds pickled objects.")
        try:
            return np.memmap(file, header.dtype, "r", file.tell(), header.shape, header.order)
        except ValueError as error:
            raise UnreadableNpy(f"The .npy file lacks some of {header.bytes} bytes.") from error
