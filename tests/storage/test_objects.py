"""Records that a torn disk or a hand has damaged: they harm nobody but themselves."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import structlog
import typer

from service.errors import DamagedDataset, DatasetInUse, UnknownDataset
from service.operations import Services, Upload, remove_dataset
from service.storage.memory import memory_services
from service.storage.objects import ObjectDatasets
from service.storage.reindexing import reindex
from workers import commands

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "no text": lambda data: b"\xff\xfe" + data,
    "of another shape": lambda data: b'{"id": 1}',
}


@pytest.fixture
def services(tmp_path: Path) -> Services:
    """Datasets in a folder, as after a restart: nothing is known by heart."""
    return memory_services(datasets=ObjectDatasets(tmp_path))


@pytest.fixture
def own_log() -> Iterator[None]:
    """Let a command choose how it logs."""
    yield
    structlog.reset_defaults()


def put(services: Services, *row: float) -> str:
    body = io.BytesIO()
    np.save(body, np.asarray([row], np.float32))
    upload = Upload(services, "p", "application/x-npy")
    upload.feed(body.getvalue())
    return upload.finish()[0].id


def damage(root: Path, dataset: str, how: str = "truncated") -> bytes:
    """Spoil a record; what it was."""
    file = root / "p" / "datasets" / dataset / "dataset.json"
    whole = file.read_bytes()
    file.write_bytes(DAMAGES[how](whole))
    return whole


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_record_is_named_and_takes_no_other_with_it(
    how: str, services: Services, tmp_path: Path
) -> None:
    first, second, third = (put(services, i, 1) for i in range(3))
    size = services.datasets.stored_bytes("p")
    whole = damage(tmp_path, second, how)

    fresh = ObjectDatasets(tmp_path)
    with structlog.testing.capture_logs() as logged:
        for _ in range(2):
            assert [one.id for one in fresh.page("p", 10, None).items] == [third, first]
    assert [one["dataset"] for one in logged] == [second]
    assert size - len(whole) <= fresh.stored_bytes("p") <= size + len(whole)
    for ask in (fresh.record, fresh.load, fresh.ids, fresh.open_vectors):
        with pytest.raises(DamagedDataset, match=second):
            ask("p", second)
    assert put(services, 9, 9) in [one.id for one in fresh.page("p", 10, None).items]

    (tmp_path / "p" / "datasets" / second / "dataset.json").write_bytes(whole)
    assert fresh.record("p", second).id == second
    assert second in [one.id for one in fresh.page("p", 10, None).items]


def test_a_record_that_is_damaged_after_it_was_listed_is_left_out(
    services: Services, tmp_path: Path
) -> None:
    first, second = put(services, 1, 1), put(services, 2, 1)
    assert len(services.datasets.page("p", 10, None).items) == 2
    damage(tmp_path, first)
    assert [one.id for one in services.datasets.page("p", 10, None).items] == [second]


def test_what_a_damaged_record_held_can_be_sent_again(services: Services, tmp_path: Path) -> None:
    old = put(services, 1, 2)
    damage(tmp_path, old)
    new = put(services, 1, 2)
    assert new != old
    assert put(services, 1, 2) == new


def test_a_damaged_dataset_can_be_deleted_unless_something_needs_it(
    services: Services, tmp_path: Path
) -> None:
    dataset = put(services, 1, 2)
    services.baselines.set("p", "prod", dataset, None)
    damage(tmp_path, dataset)
    with pytest.raises(DatasetInUse):
        remove_dataset(services, "p", dataset)
    services.baselines.set("p", "prod", put(services, 3, 4), None)
    remove_dataset(services, "p", dataset)
    with pytest.raises(UnknownDataset):
        services.datasets.record("p", dataset)
    assert not (tmp_path / "p" / "datasets" / dataset).exists()


def test_reindexing_names_damaged_datasets_and_goes_on(services: Services, tmp_path: Path) -> None:
    first, second = put(services, 1, 1), put(services, 2, 1)
    damage(tmp_path, first)
    for path in (tmp_path / "p" / "contents").iterdir():
        path.unlink()
    (found,) = reindex(tmp_path)
    assert (found.datasets, found.restored, found.damaged) == (1, 1, (first,))
    assert put(services, 2, 1) == second


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_says_which_datasets_are_damaged_and_fails(
    as_json: bool, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], own_log: None,
) -> None:  # fmt: skip
    whole, broken = put(services, 1, 1), put(services, 2, 1)
    monkeypatch.setenv("ASSAY_STORE", str(tmp_path))
    commands.reindex(as_json=as_json)
    assert whole not in capsys.readouterr().out
    damage(tmp_path, broken)
    with pytest.raises(typer.Exit) as end:
        commands.reindex(as_json=as_json)
    assert end.value.exit_code == 1
    told = capsys.readouterr()
    if as_json:
        assert json.loads(told.out)[0]["damaged"] == [broken]
    else:
        assert "p: 1 datasets" in told.out
        assert broken in told.err
    assert whole not in told.out + told.err


CONTENT: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[:-8],
    "empty": lambda data: b"",
    "of another length": lambda data: b'["a"]',
}


@pytest.mark.parametrize("how", CONTENT)
@pytest.mark.parametrize("file", ["vectors.npy", "ids.json", "columns.json", "codes.npy"])
def test_a_damaged_file_of_a_dataset_is_named(
    file: str, how: str, services: Services, tmp_path: Path
) -> None:
    upload = Upload(services, "p", "application/json")
    body = {"vectors": [[1, 2], [3, 4]], "ids": ["a", "b"], "columns": {"g": ["x", "y"]}}
    upload.feed(json.dumps(body).encode())
    dataset = upload.finish()[0].id
    path = tmp_path / "p" / "datasets" / dataset / file
    whole = path.read_bytes()
    path.write_bytes(CONTENT[how](whole))
    with structlog.testing.capture_logs() as logged:
        for _ in range(2):
            with pytest.raises(DamagedDataset, match=f"{file}.*{dataset}"):
                services.datasets.load("p", dataset)
    assert [(one["dataset"], one["file"]) for one in logged] == [(dataset, file)]
    path.unlink()
    with pytest.raises(DamagedDataset, match=file):
        services.datasets.load("p", dataset)
    path.write_bytes(whole)
    assert services.datasets.load("p", dataset).ids == ("a", "b")


def test_a_dataset_that_is_deleted_while_it_is_read_is_unknown(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = put(services, 1, 2)
    record = services.datasets.record("p", dataset)
    folder = tmp_path / "p" / "datasets" / dataset
    for file in list(folder.iterdir()):
        file.unlink()
    answers = iter([record])
    real = services.datasets.record
    monkeypatch.setattr(services.datasets, "record", lambda *a: next(answers, None) or real(*a))
    with pytest.raises(UnknownDataset):
        services.datasets.load("p", dataset)
