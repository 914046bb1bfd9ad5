"""Datasets and labels: what they hold, what they refuse, what they are called."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.dataset import Dataset, Labels
from service.errors import DuplicateIds, InvalidRequest, ShapeMismatch
from service.references import Spec

cells = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.0, 1.0, 2.5]),
    st.sampled_from(["", "1", "true", "a", "ä", "null"]),
)


@given(st.lists(cells, max_size=30))
def test_labels_give_back_the_values_they_were_made_of(values: list[Any]) -> None:
    """Compared with the values as JSON, where 1, 1.0, true and "1" are four things."""
    labels = Labels.of(values)
    back = [None if code < 0 else labels.levels[code] for code in labels.codes]
    assert [json.dumps(value) for value in back] == [json.dumps(value) for value in values]
    assert len(labels) == len(values)
    assert labels.missing == sum(value is None for value in values)


@given(st.lists(cells, max_size=30))
def test_levels_stand_once_each_in_order_of_first_appearance(values: list[Any]) -> None:
    """Compared with a dictionary of JSON texts, which keeps the order of insertion."""
    expected = list(dict.fromkeys(json.dumps(value) for value in values if value is not None))
    assert [json.dumps(level) for level in Labels.of(values).levels] == expected


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", "1"], "string"),
        ([1, 2, None], "integer"),
        ([0.5], "number"),
        ([1, 0.5], "number"),
        ([True, False], "boolean"),
        ([True, 1], "mixed"),
        ([1, "1"], "mixed"),
        ([1, 0.5, "x"], "mixed"),
        ([None, None], "string"),
        ([], "string"),
    ],
)
def test_a_column_knows_its_json_type(values: list[Any], kind: str) -> None:
    """Closed form."""
    assert Labels.of(values).type == kind


def test_equal_values_in_another_order_are_another_column() -> None:
    """Compared pairwise: the hash follows the values in row order and their types, nothing else."""
    columns = [
        ["a", "b"], ["b", "a"], ["a", "a"], ["a", None], ["a"], ["1", "2"], [1, 2], [1.0, 2.0],
        [True, False], [False, True], [None, None], [], ["ab", ""], ["", "ab"],
    ]  # fmt: skip
    hashes = [Labels.of(column).sha256 for column in columns]
    assert len(set(hashes)) == len(columns)
    assert hashes == [Labels.of(list(column)).sha256 for column in columns]


@given(st.lists(cells, min_size=1, max_size=20), st.data())
def test_kept_labels_are_the_labels_of_the_kept_values(
    values: list[Any], data: st.DataObject
) -> None:
    """Compared with labels made of the kept values alone: levels, codes, type and hash."""
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    kept = Labels.of(values).keep(keep)
    fresh = Labels.of([value for value, chosen in zip(values, keep, strict=True) if chosen])
    assert [json.dumps(level) for level in kept.levels] == [
        json.dumps(level) for level in fresh.levels
    ]
    assert kept.codes.tolist() == fresh.codes.tolist()
    assert (kept.type, kept.missing, kept.sha256) == (fresh.type, fresh.missing, fresh.sha256)


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=20), st.data())
def test_dense_codes_number_the_labels_in_use_in_row_order(
    values: list[str], data: st.DataObject
) -> None:
    """Compared with a dictionary of the kept values, which keeps the order of insertion."""
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    kept = [value for value, chosen in zip(values, keep, strict=True) if chosen]
    labels = Labels.of(values).keep(keep)
    places = {value: place for place, value in enumerate(dict.fromkeys(kept))}
    assert labels.dense.tolist() == [places[value] for value in kept]
    assert labels.levels == tuple(places)


def test_numbers_are_read_as_numbers_and_words_are_refused() -> None:
    """Closed form: true is 1, a missing one is NaN, the cells of a CSV are numbers in words."""
    got = Labels.of([1, 0.5, True, None, False, -3]).numbers
    assert got.tolist()[:3] == [1, 0.5, 1]
    assert np.isnan(got[3])
    assert got.tolist()[4:] == [0, -3]
    assert Labels.of([1, "2", "-1e3", ".5"]).numbers.tolist() == [1, 2, -1000, 0.5]
    for word in ("high", "", "nan", "inf", "0x1", "1_000", " 1"):
        with pytest.raises(InvalidRequest, match="needs numbers"):
            _ = Labels.of([1, word]).numbers


def test_a_dataset_knows_its_shape_and_names_its_rows() -> None:
    """Closed form."""
    data = Dataset(np.zeros((3, 2), dtype=np.float32), ids=("x", "y", "z"))
    assert (data.n, data.d) == (3, 2)
    assert data.vectors is data.rows
    assert data.name_rows([2, 0]) == ["z", "x"]
    assert Dataset(np.zeros((3, 2))).name_rows(np.array([1])) == ["1"]
    many = Dataset(np.zeros((30, 2)))
    assert many.name_rows(np.arange(30)) == [str(i) for i in range(10)]


def test_columns_alone_make_a_dataset_without_dimensions() -> None:
    """Closed form."""
    data = Dataset(None, columns={"intent": Labels.of(["a", "b"])})
    assert (data.n, data.d) == (2, None)
    with pytest.raises(InvalidRequest, match="no vectors"):
        _ = data.vectors


def test_a_dataset_of_nothing_is_refused() -> None:
    """Closed form."""
    with pytest.raises(InvalidRequest, match="at least one column"):
        Dataset(None)


@pytest.mark.parametrize("shape", [(3,), (0, 2), (2, 0), (1, 2, 3), ()])
def test_rows_of_a_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    """Closed form."""
    with pytest.raises(ShapeMismatch, match="`vectors` must have shape"):
        Dataset(np.zeros(shape))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_the_four_storage_types_are_accepted(dtype: str) -> None:
    """Closed form."""
    assert Dataset(np.ones((2, 2), dtype=dtype)).n == 2


@pytest.mark.parametrize("dtype", ["int16", "int64", "uint8", "bool", "complex64", "U1", "object"])
def test_any_other_type_is_refused_by_name(dtype: str) -> None:
    """Closed form: the message says what may be sent."""
    with pytest.raises(InvalidRequest, match="float16, float32, float64, int8"):
        Dataset(np.zeros((2, 2), dtype=dtype))


def test_everything_of_a_wrong_length_is_named_at_once() -> None:
    """Closed form."""
    with pytest.raises(ShapeMismatch, match="3 rows") as caught:
        Dataset(
            np.zeros((3, 1)),
            ids=("a", "b"),
            columns={"good": Labels.of([1, 2, 3]), "bad": Labels.of([1])},
        )
    assert {(f.pointer, f.message) for f in caught.value.faults} == {
        ("/ids", "has 2 values, not 3"),
        ("/columns/bad", "has 1 values, not 3"),
    }


def test_repeated_ids_are_refused_and_counted() -> None:
    """Closed form: of a b a c a b, two ids repeat and three rows are too many."""
    with pytest.raises(DuplicateIds, match="2 ids") as caught:
        Dataset(np.zeros((6, 1)), ids=tuple("abacab"))
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.count, fault.rows) == ("/ids", 3, ["a", "b"])


def test_many_repeated_ids_are_shown_ten_at_most() -> None:
    """Closed form."""
    with pytest.raises(DuplicateIds) as caught:
        Dataset(np.zeros((40, 1)), ids=tuple(str(i % 20) for i in range(40)))
    (fault,) = caught.value.faults
    assert (fault.count, fault.rows) == (20, [str(i) for i in range(10)])


def test_kept_rows_keep_their_ids_columns_and_origin() -> None:
    """Compared with the rows picked by hand; the source stays as it was."""
    data = Dataset(
        np.arange(8.0).reshape(4, 2),
        ids=tuple("abcd"),
        columns={"kind": Labels.of([1, None, 1, 2])},
        spec=Spec(model="m"),
    )
    kept = data.keep(np.array([True, False, False, True]))
    assert kept.vectors.tolist() == [[0, 1], [6, 7]]
    assert kept.ids == ("a", "d")
    assert [kept.columns["kind"].levels[code] for code in kept.columns["kind"].codes] == [1, 2]
    assert kept.spec == Spec(model="m")
    kept.vectors[:] = -1
    assert data.vectors.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]

    columns = Dataset(None, columns={"kind": Labels.of([1, 2])}).keep(np.array([False, True]))
    assert (columns.rows, columns.ids, columns.n) == (None, None, 1)


def test_a_dataset_cannot_be_changed() -> None:
    """Closed form."""
    data = Dataset(np.zeros((1, 1)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.rows = None  # type: ignore[misc]
