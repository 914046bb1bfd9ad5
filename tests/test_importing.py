"""Imports: every row once, or an error with the numbers; nothing half visible."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.allowance import Quotas
from service.errors import (
    DatasetInUse,
    DuplicateIds,
    InvalidRequest,
    SourceDenied,
    SourceInconsistent,
    SourceUnreachable,
)
from service.formats import PageWriter
from service.importing import fetch, refuse_gaps
from service.job import FETCH, Job, State, now, steps
from service.operations import (
    Services,
    cancel,
    import_dataset,
    perform,
    remove_dataset,
    report_of,
    submit,
)
from service.ports import Opened
from service.references import SourceRef
from service.report import ReportBase
from service.request import parse_request
from service.source_page import SourcePage
from service.source_reference import Provenance
from service.storage.objects import ObjectDatasets
from tests.given_store import SOURCE, Store


@pytest.fixture
def read(services: Services) -> Callable[[Store], tuple[Services, Job]]:
    """Import a store; the services it was read with, and the job as it ended."""

    def run(store: Store, on: Services = services) -> tuple[Services, Job]:
        on = replace(on, sources=store)
        job = import_dataset(on, "default", SourceRef.model_validate({"source": SOURCE}), "docs")
        fetch(on, job.id)
        return on, on.jobs.get("default", job.id)

    return run


def test_pages_become_one_dataset_with_what_was_read(read: Any) -> None:
    services, job = read(Store([[3, 1], [2], [], [9]], [5, 5], missing=["77"]))
    assert job.state is State.succeeded, job.problem
    dataset = job.inputs["dataset"].dataset
    data = services.datasets.load("default", dataset)
    assert data.ids == ("3", "1", "2", "9")
    assert data.rows.tolist() == [[3, 10], [1, 2], [2, 5], [9, 82]]
    assert data.columns["parity"].codes.tolist() == [0, 0, 1, 0]
    record = services.datasets.record("default", dataset)
    assert record.name == "docs"
    about = record.spec.source
    assert about.model_dump(include={"rows", "missing_vectors", "missing_ids", "count_before"}) == {
        "rows": 4, "missing_vectors": 1, "missing_ids": ["77"], "count_before": 5,
    }  # fmt: skip


def test_pages_that_repeat_and_skip_fail_with_the_numbers(read: Any) -> None:
    """A count of the rows that came would agree."""
    services, job = read(Store([[1, 2, 3], [3, 4, 5], [7]], [7, 7]))
    assert job.state is State.failed
    assert job.problem.code == SourceInconsistent.code
    assert "fetched 7, distinct 6, repeated 1, short by 1" in job.problem.detail
    assert job.problem.errors[0].rows == ["3"]
    assert services.datasets.page("default", 10, None).items == []


@pytest.mark.parametrize(
    ("store", "code", "told"),
    [
        (Store([[1, 2]], [3, 3]), SourceInconsistent.code, "short by 1"),
        (Store([[1, 2, 3]], [2, 3]), SourceInconsistent.code, "beyond the count by 1"),
        (Store([[1, 2]], [2, 3]), SourceInconsistent.code, "counted 2 before and 3 after"),
        (Store([[1, 2, 2]], [2, 2]), DuplicateIds.code, "distinct 2, repeated 1"),
        (Store([[1, 1]], [None, None]), DuplicateIds.code, "repeated 1"),
        (Store([[1, 2], [2]], [3, 3], snapshot=True), DuplicateIds.code, "distinct 2, repeated 1"),
        (Store([[1, 2, 2]], [4, 4], snapshot=True), SourceInconsistent.code, "short by 2"),
        (Store([[1, 2, 2]], [3, 3]), SourceInconsistent.code, "short by 1"),
        (Store([[]], [0, 0]), "shape-mismatch", "no rows"),
        (Store([[1], [2]], [2, 2], gone_after=1), SourceUnreachable.code, "broke"),
    ],
)
def test_a_source_that_does_not_give_each_row_once_leaves_nothing(
    store: Store, code: str, told: str, read: Any
) -> None:
    services, job = read(store)
    assert job.state is State.failed
    assert job.problem.code == code
    assert told in job.problem.detail
    assert services.datasets.page("default", 10, None).items == []


def test_a_store_that_repeats_itself_for_ever_is_not_read_for_ever(services: Services) -> None:
    given = [0]

    def pages() -> Iterator[SourcePage]:
        while given[0] < 1000:
            given[0] += 2
            yield SourcePage(["a", "b"], np.ones((2, 2), np.float32))

    about = Provenance(kind="milvus", connection="prod", location="docs")

    class Endless(Store):
        @contextmanager
        def open(self, project: str, reference: Any, tell: Any) -> Iterator[Opened]:
            yield Opened(5, about, pages(), lambda: 5)

    on = replace(services, sources=Endless([], []))
    job = import_dataset(on, "default", SourceRef.model_validate({"source": SOURCE}), "docs")
    fetch(on, job.id)
    problem = on.jobs.get("default", job.id).problem
    assert problem is not None
    assert problem.code == SourceInconsistent.code
    assert "fetched 6, distinct 2, repeated 4" in problem.detail
    assert given[0] <= 8


@pytest.mark.parametrize(
    ("pages", "missing", "told"),
    [
        ([["a", "b"], []], [["m"], ["m"]], "distinct 3, repeated 1, short by 1"),
        ([["a", "b"], []], [["a"], []], "distinct 2, repeated 1"),
    ],
)
def test_rows_without_a_vector_count_once_too(
    pages: list[list[str]], missing: list[list[str]], told: str, services: Services
) -> None:
    """P28: a row of the store that never came must not hide behind one that came twice."""
    writer = PageWriter(services.datasets.draft("default"), services.limits)
    for ids, without in zip(pages, missing, strict=True):
        writer.add(SourcePage(ids, np.ones((len(ids), 2), np.float32), {}, without))
    about = Provenance(kind="qdrant", connection="prod", location="docs", stored_as="float32")
    opened = Opened(4, about, iter(()), lambda: 4)
    with pytest.raises((SourceInconsistent, DuplicateIds), match=told):
        refuse_gaps(opened, writer, 4)


def test_an_import_stops_where_the_room_of_its_project_ends(services: Services, read: Any) -> None:
    """Five rows of 8 bytes each, and room for two."""
    on = replace(services, quotas=Quotas(project_bytes=16))
    _, job = read(Store([[1], [2], [3], [4], [5]], [5, 5]), on)
    assert job.problem.code == "payload-too-large"
    assert "the 16 bytes that the project may still store" in job.problem.detail


def test_ids_of_rows_without_a_vector_are_as_short_as_others(services: Services) -> None:
    writer = PageWriter(services.datasets.draft("default"), services.limits)
    with pytest.raises(InvalidRequest, match="512 characters"):
        writer.add(SourcePage([], np.ones((0, 2), np.float32), {}, ["x" * 513]))


def test_a_store_that_is_gone_in_the_middle_leaves_no_file(
    services: Services, read: Any, tmp_path: Path
) -> None:
    on = replace(services, datasets=ObjectDatasets(tmp_path))
    _, job = read(Store([[1], [2]], gone_after=1), on)
    assert job.state is State.failed
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_rows_of_an_unknown_number_are_stored_as_numpy_reads_them(
    services: Services, read: Any, tmp_path: Path
) -> None:
    on = replace(services, datasets=ObjectDatasets(tmp_path))
    on, job = read(Store([[i] for i in range(30)]), on)
    dataset = job.inputs["dataset"].dataset
    with on.datasets.open_vectors("default", dataset) as file:
        rows = np.load(io.BytesIO(file.read()), allow_pickle=False)
    assert rows.tolist() == [[i, i * i + 1] for i in range(30)]


def test_rows_nobody_named_go_by_where_they_were_read(services: Services) -> None:
    on = replace(services, sources=Store([[1, 2]], [2, 2]))
    job = import_dataset(on, "default", SourceRef.model_validate({"source": SOURCE}))
    fetch(on, job.id)
    (record,) = on.datasets.page("default", 10, None).items
    assert record.name == "docs"


def test_the_same_rows_read_twice_are_one_dataset(services: Services, read: Any) -> None:
    _, first = read(Store([[1, 2]], [2, 2]))
    _, second = read(Store([[1, 2]], [2, 2]))
    assert first.inputs == second.inputs


def test_a_check_runs_on_a_source_as_on_its_rows(
    services: Services, store: Any, ended: Any
) -> None:
    pages = [[i for i in range(40) if i % 4 == k] for k in range(4)]
    on = replace(services, sources=Store(pages, [40, 40]))
    body = {"kind": "geometry", "inputs": {"vectors": {"source": SOURCE}}}
    job = submit(on, "default", parse_request(body))
    assert job.awaiting is not None
    assert steps(job) == [FETCH]
    perform(on, job.id)  # too early: nothing happens
    assert on.jobs.get("default", job.id).state is State.queued
    fetch(on, job.id)
    fetch(on, job.id)  # a second delivery changes nothing
    assert on.sources.opened == 1
    perform(on, job.id)
    done = on.jobs.get("default", job.id)
    assert done.state is State.succeeded, done.problem
    order = [i for page in pages for i in page]
    rows = np.array([[i, i * i + 1] for i in order], dtype=np.float32)
    direct = ended({"kind": "geometry", "inputs": {"vectors": {"dataset": store(rows).id}}})
    ours, theirs = report_of(on, done), report_of(services, direct)
    assert isinstance(ours, ReportBase)
    assert isinstance(theirs, ReportBase)
    assert ours.results == theirs.results
    assert ours.inputs["vectors"].spec.source.location == "docs"


@pytest.mark.parametrize(
    ("store", "warned"),
    [
        (
            Store([list(range(40))], [41, 41], missing=["77"]),
            {
                "missing_vectors": "1 of 41 rows of `docs` (qdrant) has no vector and was left out, "
                "first: 77."
            },
        ),
        (
            Store([list(range(40))], [42, 42], missing=["x", "y"], lossy=True),
            {
                "missing_vectors": "2 of 42 rows of `docs` (qdrant) have no vector and were left out, "
                "first: x, y.",
                "lossy_storage": "The rows of `docs` (qdrant) were read back from codes (float32): "
                "they are what the store has kept, not what was written to it.",
            },
        ),
        (Store([list(range(40))], [40, 40], lossy=False), {}),
    ],
)
def test_every_report_says_what_of_its_rows_the_store_has_not_given(
    store: Store, warned: dict[str, str], services: Services
) -> None:
    """Once for each dataset, whatever roles it is given."""
    on = replace(services, sources=store)
    models = [{"source": SOURCE, "name": "a"}, {"source": SOURCE, "name": "b"}]
    for body in (
        {"kind": "geometry", "inputs": {"vectors": {"source": SOURCE}}},
        {
            "kind": "group_structure",
            "inputs": {"models": models, "groups": {"column": "parity"}},
            "params": {"permutations": 99},
        },
    ):
        job = submit(on, "default", parse_request(body))
        fetch(on, job.id)
        perform(on, job.id)
        done = on.jobs.get("default", job.id)
        assert done.state is State.succeeded, done.problem
        report = report_of(on, done)
        assert isinstance(report, ReportBase)
        told = [one for one in report.warnings if one.code in ("missing_vectors", "lossy_storage")]
        assert {one.code: one.message for one in told} == warned
        assert len(told) == len(warned)
        where = ", ".join(f"inputs/{role}" for role in body["inputs"])  # type: ignore[attr-defined]
        assert all(one.where == where for one in told)


def test_models_by_source_and_columns_of_a_source(services: Services) -> None:
    on = replace(services, sources=Store([list(range(40))], [40, 40]))
    body = {
        "kind": "group_structure",
        "inputs": {
            "models": [
                {"source": SOURCE, "name": "a"},
                {"source": {**SOURCE, "collection": "docs"}, "name": "b"},
            ],
            "groups": {"column": "parity"},
        },
        "params": {"permutations": 99},
    }
    job = submit(on, "default", parse_request(body))
    fetch(on, job.id)
    assert on.sources.opened == 1, "one source is read once"
    perform(on, job.id)
    done = on.jobs.get("default", job.id)
    assert done.state is State.succeeded, done.problem
    assert [one.name for one in done.inputs["models"]] == ["a", "b"]


def test_what_a_check_forbids_fails_the_job_after_the_import(services: Services) -> None:
    on = replace(services, sources=Store([[1, 2]], [2, 2]))
    body = {
        "kind": "group_structure",
        "inputs": {"models": [{"source": SOURCE}], "groups": {"column": "none"}},
    }
    job = submit(on, "default", parse_request(body))
    fetch(on, job.id)
    assert on.jobs.get("default", job.id).problem.code == "invalid-request"


def test_an_unknown_connection_is_refused_at_once(services: Services) -> None:
    on = replace(services, sources=Store([[1]]))
    body = {
        "kind": "geometry",
        "inputs": {"vectors": {"source": {**SOURCE, "connection": "other"}}},
    }
    with pytest.raises(SourceDenied):
        submit(on, "default", parse_request(body))
    with pytest.raises(SourceDenied):
        submit(
            services, "default", parse_request({**body, "inputs": {"vectors": {"source": SOURCE}}})
        )


def test_an_import_that_is_cancelled_stays_cancelled(services: Services) -> None:
    on = replace(services, sources=Store([[1], [2]]))
    job = import_dataset(on, "default", SourceRef.model_validate({"source": SOURCE}))
    on.sources.before_page = lambda place: cancel(on, "default", job.id) and None
    fetch(on, job.id)
    assert on.jobs.get("default", job.id).state is State.cancelled


def test_processes_that_die_on_an_import_end_it_after_three(services: Services) -> None:
    def die(place: int) -> None:
        raise KeyboardInterrupt

    on = replace(services, sources=Store([[1]], before_page=die))
    job = import_dataset(on, "default", SourceRef.model_validate({"source": SOURCE}))
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            fetch(on, job.id)
    fetch(on, job.id)
    assert on.jobs.get("default", job.id).problem.code == "worker-lost"


def test_a_dataset_is_kept_while_a_job_or_a_baseline_needs_it(
    services: Services, store: Any
) -> None:
    dataset = store(np.ones((20, 3), np.float32)).id
    job = submit(
        services,
        "default",
        parse_request({"kind": "geometry", "inputs": {"vectors": {"dataset": dataset}}}),
    )
    with pytest.raises(Exception, match=job.id):
        remove_dataset(services, "default", dataset)
    cancel(services, "default", job.id)
    services.baselines.set("default", "main", dataset, None)
    with pytest.raises(Exception, match="Baseline `main`"):
        remove_dataset(services, "default", dataset)


def two_sources(on: Services) -> Job:
    """A job that reads two sources, one after the other."""
    sources = [{"source": {**SOURCE, "collection": name}} for name in ("old", "new")]
    roles = dict(zip(("baseline", "batch"), sources, strict=True))
    return submit(on, "default", parse_request({"kind": "drift", "inputs": roles}))


def test_what_a_job_has_imported_is_kept_while_it_reads_the_next(services: Services) -> None:
    """Also where the same rows had been uploaded before by somebody else."""
    refused = []

    def delete(place: int) -> None:
        for record in on.datasets.page("default", 10, None).items:
            with pytest.raises(DatasetInUse, match=job.id):
                remove_dataset(on, "default", record.id)
            refused.append(record.id)

    on = replace(services, sources=Store([list(range(30))], before_page=delete))
    job = two_sources(on)
    fetch(on, job.id)
    perform(on, job.id)
    assert len(refused) == 1
    assert on.jobs.get("default", job.id).state is State.succeeded


def test_what_a_job_has_imported_is_not_read_again(services: Services) -> None:
    """A process died in the second source: the next one goes on there."""

    def die(place: int) -> None:
        if on.sources.opened == 2:
            raise KeyboardInterrupt

    on = replace(services, sources=Store([list(range(30))], before_page=die))
    job = two_sources(on)
    with pytest.raises(KeyboardInterrupt):
        fetch(on, job.id)
    fetch(on, job.id)
    perform(on, job.id)
    assert on.sources.opened == 3
    assert on.jobs.get("default", job.id).state is State.succeeded


def test_a_draft_of_an_attempt_that_was_killed_goes_with_the_next(
    services: Services, tmp_path: Path
) -> None:
    on = replace(services, sources=Store([[1]]), datasets=ObjectDatasets(tmp_path))
    job = import_dataset(on, "default", SourceRef.model_validate({"source": SOURCE}))
    left = on.datasets.draft("default", job.id)
    left.spool().close()
    fetch(on, job.id)
    made = on.jobs.get("default", job.id).inputs["dataset"].dataset
    assert [path.name for path in (tmp_path / "default" / "datasets").iterdir()] == [made]
    assert on.datasets.drafting() == []


def test_a_dataset_that_was_used_since_stays(services: Services, store: Any) -> None:
    """It was listed as unused a moment before."""
    dataset = store(np.ones((20, 3), np.float32)).id
    since = now()
    assert services.datasets.unused(since) == [("default", dataset)]
    services.datasets.usable("default", dataset)
    with pytest.raises(DatasetInUse):
        remove_dataset(services, "default", dataset, since)
    remove_dataset(services, "default", dataset, now() + timedelta(seconds=1))
