"""Files of requests, and the datasets they become."""

from __future__ import annotations

from pathlib import Path

from assay_client import located


def test_files_are_relative_to_the_request_and_told_once(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    inputs = {
        "a": {"path": "one.npy"},
        "b": {"path": "../requests/one.npy"},
        "models": [{"path": "two.npy", "name": "later"}],
    }

    files = located.files(inputs, folder)

    one, two = located.File(folder / "one.npy"), located.File(folder / "two.npy")
    assert files == {one: "a", two: "models"}
    stored = located.resolve(inputs, folder, {one: "ds_1", two: "ds_2"})
    assert stored == {
        "a": {"dataset": "ds_1"},
        "b": {"dataset": "ds_1"},
        "models": [{"dataset": "ds_2", "name": "later"}],
    }


def test_a_column_of_a_table_is_of_the_rows_that_are_read_from_it() -> None:
    """Once for both; a table of two models is two uploads, and its columns are of the first."""
    inputs = {
        "topics": {"path": "rows.parquet", "column": "topic"},
        "models": [
            {"path": "rows.parquet", "vector_column": "old", "id_column": "doc", "name": "old"},
            {"path": "rows.parquet", "vector_column": "new", "name": "new"},
        ],
        "groups": {"path": "other.parquet", "column": "g"},
        "dose": {"path": "rows.parquet", "column": "d", "vector_column": "new"},
    }
    told = located.spelled_out(inputs, Path())
    files = located.files(told, Path())
    old, new, other, mixed = (
        located.File(Path(name).resolve(), *columns)
        for name, *columns in (
            ("rows.parquet", "old", "doc"), ("rows.parquet", "new"), ("other.parquet",),
            ("rows.parquet", "new", "doc"),
        )
    )  # fmt: skip
    assert set(files) == {old, new, other, mixed}
    stored = located.resolve(told, Path(), {old: "ds_1", new: "ds_2", other: "ds_3", mixed: "ds_4"})
    assert stored["topics"] == {"dataset": "ds_1", "column": "topic"}
    assert stored["models"] == [
        {"dataset": "ds_1", "name": "old"},
        {"dataset": "ds_2", "name": "new"},
    ]
    assert stored["groups"] == {"dataset": "ds_3", "column": "g"}


def test_a_path_of_a_store_is_no_file_here() -> None:
    """It is below the address of a connection."""
    inputs = {"vectors": {"source": {"kind": "npy", "connection": "lake", "path": "a.npy"}}}
    assert located.files(inputs, Path()) == {}
    assert located.resolve(located.spelled_out(inputs, Path()), Path(), {}) == inputs
