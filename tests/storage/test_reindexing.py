"""The index of the object store, made again from datasets alone."""

from __future__ import annotations

import hashlib
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.operations import Upload
from service.storage.memory import memory_services
from service.storage.object_baselines import ObjectBaselines
from service.storage.object_reports import ObjectReports
from service.storage.objects import ObjectDatasets
from service.storage.reindexing import Reindexed, reindex

NOTHING: dict[str, Any] = {
    "datasets": 0, "baselines": 0, "reports": 0, "restored": 0, "repeated": 0, "dropped": 0,
}  # fmt: skip


@pytest.fixture
def put(tmp_path: Path) -> Any:
    """Store rows of a project; the id of the dataset."""
    services = memory_services(datasets=ObjectDatasets(tmp_path))

    def store(project: str, rows: Any) -> str:
        body = io.BytesIO()
        np.save(body, np.asarray(rows, np.float32))
        sha256 = hashlib.sha256(body.getvalue()).hexdigest()
        upload = Upload(services, project, "application/x-npy", sha256=sha256)
        upload.feed(body.getvalue())
        return upload.finish()[0].id

    return store


def told(project: str, **counts: int) -> Reindexed:
    return Reindexed(project, **{**NOTHING, **counts})


def test_what_is_whole_stays_as_it_is(put: Any, tmp_path: Path) -> None:
    """Every project, and not the parts of jobs; a draft is no dataset."""
    put("one", [[1, 2], [3, 4]])
    dataset = put("other", [[1, 2], [3, 4]])
    ObjectBaselines(tmp_path).set("other", "prod", dataset, None)
    ObjectReports(tmp_path).put("other", "a" * 64, b"{}")
    (tmp_path / "_parts/job_1").mkdir(parents=True)
    (tmp_path / "one/datasets" / ("ds_" + "0" * 24)).mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert list(reindex(tmp_path)) == [
        told("one", datasets=1),
        told("other", datasets=1, baselines=1, reports=1),
    ]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("loss", ["gone", "wrong"])
def test_contents_lead_to_their_datasets_again(loss: str, put: Any, tmp_path: Path) -> None:
    """Lost, or leading to a dataset that is not there; the second time nothing is left to do."""
    ids = [put("p", [[i, 1]]) for i in range(3)]
    for path in (tmp_path / "p/contents").iterdir():
        path.unlink() if loss == "gone" else path.write_text("ds_" + "f" * 24)
    assert list(reindex(tmp_path)) == [told("p", datasets=3, restored=3)]
    assert list(reindex(tmp_path)) == [told("p", datasets=3)]
    assert [put("p", [[i, 1]]) for i in range(3)] == ids


def test_the_older_of_two_datasets_of_one_content_is_found(put: Any, tmp_path: Path) -> None:
    """Both stay: something may need either."""
    older = put("p", [[1, 2]])
    shutil.rmtree(tmp_path / "p/contents")
    newer = put("p", [[1, 2]])
    assert newer != older
    shutil.rmtree(tmp_path / "p/contents")
    assert list(reindex(tmp_path)) == [told("p", datasets=2, restored=1, repeated=1)]
    assert put("p", [[1, 2]]) == older


def test_bodies_of_datasets_that_are_gone_are_forgotten(put: Any, tmp_path: Path) -> None:
    kept, gone = put("p", [[1, 2]]), put("p", [[3, 4]])
    assert ObjectDatasets(tmp_path).remove("p", gone, keep=lambda: False)
    assert len(list((tmp_path / "p/bodies").iterdir())) == 2
    assert list(reindex(tmp_path)) == [told("p", datasets=1, dropped=1)]
    assert [path.read_text() for path in (tmp_path / "p/bodies").iterdir()] == [kept]
