"""The .npy reader: any byte order, layout and cut, the same rows; nothing is believed unseen."""

from __future__ import annotations

import gc
import io
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from service.errors import (
    AssayError,
    InvalidRequest,
    MalformedPayload,
    PayloadTooLarge,
    ShapeMismatch,
    UnsupportedFormat,
)
from service.formats import Limits, Options, reader_for

NPY = "application/x-npy"
DTYPES = ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "|i1"]


def header(text: str) -> bytes:
    """A version 1.0 header with any text."""
    data = text.encode("latin-1")
    data += b" " * (63 - (10 + len(data)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(data)) + data


def plain(shape: Any, descr: str = "<f4", fortran: bool = False) -> bytes:
    """The header numpy would write."""
    return header(f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}")


matrices = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(
        np.dtype(dtype),
        st.tuples(st.integers(1, 6), st.integers(1, 6)),
        elements={"allow_nan": True, "allow_infinity": True} if dtype[1] == "f" else None,
    )
)


@given(matrices, st.booleans(), st.lists(st.integers(0, 10_000), max_size=8))
def test_any_matrix_in_any_pieces_comes_out_as_numpy_reads_it(
    read: Any, npy: Any, rows: Any, fortran: bool, cuts: list[int]
) -> None:
    """Against `np.load`, bit for bit, NaN payloads included."""
    body = npy(np.asfortranarray(rows) if fortran else rows)
    parsed, got = read(NPY, body, cuts)
    expected = np.load(io.BytesIO(body)).astype(rows.dtype.newbyteorder("<"), order="C")

    assert got.dtype.str.lstrip("<|=") == rows.dtype.str[1:]
    assert got.flags.c_contiguous
    assert got.tobytes() == expected.tobytes()
    assert (parsed.n, parsed.d, parsed.bytes) == (*rows.shape, rows.nbytes)
    whole, _ = read(NPY, npy(expected))
    assert parsed.vectors_sha256 == whole.vectors_sha256


@given(matrices)
def test_facts_are_those_of_the_rows(read: Any, npy: Any, rows: Any) -> None:
    """Counted the plain way, in extended precision."""
    parsed, _ = read(NPY, npy(rows))
    wide = rows.astype(np.longdouble)
    finite = np.isfinite(wide).all(axis=1)
    lengths = np.sqrt((wide[finite] ** 2).sum(axis=1))

    facts = parsed.facts
    representable = lengths <= np.finfo(np.float64).max
    if representable.all():
        assert facts.non_finite_rows.rows == np.flatnonzero(~finite).tolist()
    assert facts.zero_rows.rows == [i for i in range(len(rows)) if not rows[i].any()]
    if len(lengths) and representable.all():
        assert facts.norm_min == pytest.approx(float(lengths.min()), rel=1e-12)
        assert facts.norm_max == pytest.approx(float(lengths.max()), rel=1e-12)
        assert facts.unit_rows == int((abs(lengths - 1) <= 1e-3).sum())


@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("shape", [(30_000, 50), (50, 4096), (1, 4096), (100_000, 1)])
def test_rows_of_several_pieces_keep_their_order(
    shape: tuple[int, int], fortran: bool, read: Any, npy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of 64 KiB, so that every shape takes many, or a row takes more than one."""
    monkeypatch.setattr("service.formats.npy.PIECE_BYTES", 1 << 16)
    rows = np.arange(shape[0] * shape[1], dtype=np.float64).reshape(shape)
    rows[shape[0] // 2, 0] = np.nan
    body = npy(np.asfortranarray(rows) if fortran else rows)
    parsed, got = read(NPY, body, list(range(0, len(body), 99_991)))

    assert np.array_equal(got, rows, equal_nan=True)
    assert parsed.facts.non_finite_rows.rows == [shape[0] // 2]


def test_every_bfloat16_is_widened_exactly(read: Any) -> None:
    """All 65,536 words, against the definition: the upper half of a float32."""
    words = np.arange(1 << 16, dtype="<u2").reshape(64, 1024)
    expected = np.frombuffer(
        b"".join(b"\0\0" + struct.pack("<H", int(w)) for w in words.flat), "<f4"
    )
    for fortran, data in ((False, words.tobytes()), (True, np.asfortranarray(words).tobytes("A"))):
        for descr in ("<V2", "|V2", "<u2"):
            body = plain("(64, 1024)", descr, fortran) + data
            _, got = read(NPY, body, [5, 1000], dtype="bf16")
            assert got.dtype == np.dtype("<f4")
            assert got.tobytes() == expected.tobytes()


def test_bfloat16_of_a_big_endian_file_is_refused_or_exact(read: Any) -> None:
    """1.0, -2.0, 0.25 with swapped bytes must not become other numbers."""
    body = plain("(1, 3)", ">u2") + struct.pack(">3H", 0x3F80, 0xC000, 0x3E80)
    try:
        _, got = read(NPY, body, dtype="bf16")
    except AssayError:
        return
    assert got.tolist() == [[1.0, -2.0, 0.25]]


@pytest.mark.parametrize("descr", ["<f4", "<f2", "|i1", "<V4", "<c8"])
def test_bfloat16_is_two_byte_words(descr: str, read: Any) -> None:
    """Declared on another type it is refused, float16 included: its bits mean other numbers."""
    with pytest.raises(InvalidRequest, match="bf16"):
        read(NPY, plain("(1, 2)", descr) + b"\0" * 64, dtype="bf16")


def test_two_byte_words_are_never_guessed(read: Any) -> None:
    """Without a declared type they could be float16 or bfloat16."""
    with pytest.raises(UnsupportedFormat, match="bf16"):
        read(NPY, plain("(1, 3)", "<V2") + b"\0" * 6)


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        ("(1048576, 1048576)", PayloadTooLarge),
        ("(4294967296, 4294967296)", PayloadTooLarge),
        ("(18446744073709551616, 1)", PayloadTooLarge),
        ("(100000, 10000)", PayloadTooLarge),
        ("(1000000, 1000)", MalformedPayload),
        ("(100000000, 20)", MalformedPayload),
        ("(100000000, 4096)", PayloadTooLarge),
    ],
)
@pytest.mark.parametrize("fortran", [False, True])
def test_a_claim_allocates_nothing(
    fortran: bool, shape: str, error: type[AssayError], read: Any
) -> None:
    """CASES P09: up to 8 GB claimed, 64 bytes sent, under 1 MB traced."""
    body = plain(shape, fortran=fortran) + b"\0" * 64
    tracemalloc.start()
    with pytest.raises(error):
        read(NPY, body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    gc.collect()
    assert peak < 1 << 20


@pytest.mark.parametrize("extra", [-1, 1, 16, -16])
@pytest.mark.parametrize("fortran", [False, True])
def test_the_body_has_the_size_its_header_says(fortran: bool, extra: int, read: Any) -> None:
    """Whole rows too few or too many are as wrong as single bytes."""
    body = plain("(5, 4)", fortran=fortran) + b"\0" * (80 + extra)
    with pytest.raises(MalformedPayload, match="claims 80 bytes"):
        read(NPY, body, [130, 140])
    gc.collect()


def test_more_than_was_claimed_is_refused_when_it_arrives(read: Any) -> None:
    """Not at the end of a body that never ends."""
    reader = reader_for(NPY, io.BytesIO(), Limits(), Options())
    reader.feed(plain("(1, 4)") + b"\0" * 16)
    with pytest.raises(MalformedPayload):
        reader.feed(b"\0")


def test_a_body_over_the_limit_is_refused_when_it_arrives() -> None:
    """Counted with the header."""
    reader = reader_for(NPY, io.BytesIO(), Limits(body_bytes=200), Options())
    reader.feed(plain("(4, 4)"))
    with pytest.raises(PayloadTooLarge):
        reader.feed(b"\0" * 73)


def test_a_file_that_curl_has_stripped_is_told_from_other_versions(read: Any, npy: Any) -> None:
    """`curl -d @file` takes out zero bytes and ends of lines."""
    body = npy(np.ones((3, 2), np.float32))
    stripped = body.translate(None, b"\0\r\n")
    with pytest.raises(UnsupportedFormat, match="`curl -d` strips them: use `--data-binary`"):
        read(NPY, stripped)
    with pytest.raises(UnsupportedFormat, match=r"format 9\.0 is not supported\.$"):
        read(NPY, body[:6] + b"\x09" + body[7:])


def test_one_number_for_each_row_belongs_in_a_column(read: Any) -> None:
    with pytest.raises(ShapeMismatch, match=r"not \(4,\)\. One value for each row") as caught:
        read(NPY, plain("(4,)") + b"\0" * 32)
    assert "rows" not in caught.value.title


@pytest.mark.parametrize("shape", ["()", "(4,)", "(2, 2, 2)", "(0, 3)", "(3, 0)"])
def test_only_matrices_with_rows_are_read(shape: str, read: Any) -> None:
    """One item per row and one number per dimension."""
    with pytest.raises(ShapeMismatch):
        read(NPY, plain(shape) + b"\0" * 32)


@pytest.mark.parametrize("descr", ["|O", "<U3", "|S2", "|b1", "<u4", "<i2", "<i8", "<c8", "<M8[s]"])
def test_other_types_are_refused(descr: str, read: Any) -> None:
    """Objects above all."""
    with pytest.raises((UnsupportedFormat, InvalidRequest)):
        read(NPY, plain("(1, 2)", descr) + b"\0" * 64)


@pytest.mark.parametrize(
    "descr",
    [
        "[('x', '<f4')]",
        "[('x', '|O')]",
        "('<f4', (2,))",
        "'<f4,<f4'",
        "{'names': [], 'formats': []}",
    ],
)
def test_structured_types_are_refused(descr: str, read: Any) -> None:
    """Records and subarrays have no dimensions of ours."""
    body = header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1, 2), }}") + b"\0" * 64
    with pytest.raises((UnsupportedFormat, MalformedPayload, InvalidRequest)):
        read(NPY, body)
    with pytest.raises((UnsupportedFormat, MalformedPayload, InvalidRequest)):
        read(NPY, body, dtype="bf16")


@given(st.text(st.characters(codec="latin-1"), max_size=120))
def test_any_header_text_is_refused_as_malformed_or_read(read: Any, text: str) -> None:
    """Never another exception."""
    with pytest.raises(AssayError):
        read(NPY, header(text) + b"\0" * 64)


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': (",
        "{'descr': '''",
        "-" * 9000 + "1",
        "(" * 9000,
        "[" * 5000 + "]" * 5000,
        "\0",
        "1_",
    ],
    ids=range(7),
)
def test_headers_that_break_parsers_are_malformed(text: str, read: Any) -> None:
    """Unclosed, and nested thousands deep."""
    with pytest.raises(MalformedPayload):
        read(NPY, header(text))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(read: Any, body: bytes) -> None:
    """Noise alone, and noise behind the magic string."""
    for form in (body, b"\x93NUMPY\x01\x00" + body, b"\x93NUMPY\x02\x00" + body):
        with pytest.raises(AssayError):
            read(NPY, form)


def test_a_claim_of_thousands_of_digits_is_refused(read: Any) -> None:
    """Its bytes cannot even be written out."""
    for size in ("9" * 4299, "9" * 19):
        with pytest.raises((MalformedPayload, PayloadTooLarge)):
            read(NPY, plain(f"({size}, {size})") + b"\0" * 64)


def test_a_long_header_is_refused_by_its_length() -> None:
    """Four gigabytes of header are never waited for."""
    reader = reader_for(NPY, io.BytesIO(), Limits(), Options())
    with pytest.raises(MalformedPayload, match="header"):
        reader.feed(b"\x93NUMPY\x02\x00" + struct.pack("<I", 0xFFFFFFFF))


def test_version_two_headers_are_read_and_later_ones_named(read: Any) -> None:
    """Numpy writes 2.0 for long headers; 3.0 is for names in Unicode, which rows do not have."""
    text = plain("(1, 4)")[10:]
    two = b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text + b"\0" * 16
    assert read(NPY, two)[1].tolist() == [[0.0] * 4]
    with pytest.raises(UnsupportedFormat, match=r"3\.0"):
        read(NPY, two.replace(b"\x02\x00", b"\x03\x00", 1))


def test_a_refused_upload_leaves_no_open_file(services: Any) -> None:
    """Fortran order goes through a temporary file; an abort closes it at once."""
    from service.operations import Upload

    upload = Upload(services, "default", NPY)
    upload.feed(plain("(5, 4)", fortran=True) + b"\0" * 40)
    with pytest.raises(MalformedPayload):
        upload.feed(b"\0" * 41)
    upload.abort()
    del upload
    gc.collect()
