"""One set of tests that every implementation of a port passes, so that one stands for another."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis import Redis

from api.keys import PROJECT
from service.blocks import Plan
from service.dataset import Labels
from service.dataset_record import ColumnFacts, DatasetRecord, hash_dataset, hash_ids
from service.errors import (
    Fault,
    InvalidRequest,
    NonFiniteRows,
    UnknownBaseline,
    UnknownDataset,
    UnknownGate,
    UnknownJob,
)
from service.formats import Limits
from service.formats.reader import RowWriter
from service.gate import Policy
from service.job import (
    COMBINE,
    IMPORT,
    Failure,
    GateRun,
    Job,
    Pool,
    Progress,
    State,
    Step,
    Wanted,
    job_of,
    new_id,
    now,
    steps,
)
from service.references import ColumnRef, DatasetRef, NamedDataset, Spec
from service.storage import objects
from service.storage.object_baselines import ObjectBaselines
from service.storage.object_reports import PARTS, ObjectParts, ObjectReports
from service.storage.objects import ObjectDatasets
from service.storage.redis import RedisJobs

THREADS = 8
DIGEST = "ab" * 32
START = datetime(2026, 11, 29, 12, tzinfo=UTC)


def at_once(work: Callable[[int], Any]) -> list[Any]:
    """What eight threads got that began together."""
    ready = threading.Barrier(THREADS)
    results: list[Any] = [None] * THREADS

    def run(i: int) -> None:
        ready.wait(10)
        results[i] = work(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def keep(
    datasets: Any, rows: Any = None, ids: Any = None, columns: Any = None, project: str = "p",
    name: str | None = None,
) -> tuple[DatasetRecord, bool]:  # fmt: skip
    """Write rows to a draft and commit it."""
    return commit_draft(datasets, datasets.draft(project), rows, ids, columns, name)


def commit_rows(datasets: Any, draft: Any, rows: Any) -> DatasetRecord:
    """The record of rows written to a draft."""
    return commit_draft(datasets, draft, rows)[0]


def commit_draft(
    datasets: Any, draft: Any, rows: Any, ids: Any = None, columns: Any = None,
    name: str | None = None,
) -> tuple[DatasetRecord, bool]:  # fmt: skip
    labels = {key: Labels.of(values) for key, values in (columns or {}).items()}
    n = len(next(iter(labels.values()))) if rows is None else len(rows)
    if rows is not None:
        for piece in pieces(rows):
            draft.write(piece)
    vectors = None if rows is None else f"{rows.dtype}{rows.shape}{rows.tobytes().hex()[:80]}"
    record = DatasetRecord(
        id=draft.id, name=name, n=n, d=None if rows is None else rows.shape[1],
        dtype=None if rows is None else rows.dtype.name, bytes=0 if rows is None else rows.nbytes,
        sha256=hash_dataset(n, vectors, hash_ids(ids), labels, Spec(model="m")),
        vectors_sha256=vectors, ids_sha256=hash_ids(ids),
        columns={key: ColumnFacts.of(column) for key, column in labels.items()},
        spec=Spec(model="m"), facts=None, created_at=now(),
    )  # fmt: skip
    return datasets.commit(draft, record, ids, labels)


def pieces(rows: Any) -> list[bytes]:
    """The .npy file in pieces of 100,000 bytes."""
    import io

    file = io.BytesIO()
    np.save(file, rows)
    data = file.getvalue()
    return [data[i : i + 100_000] for i in range(0, len(data), 100_000)]


# datasets


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", "|i1"])
def test_a_dataset_comes_back_as_it_was_kept(dtype: str, datasets: Any) -> None:
    """Rows bit for bit, ids in order, columns with their types, spec and record."""
    rows = np.arange(-6, 6).reshape(4, 3).astype(dtype)
    ids = ("z", "ä/ö", "", "4")
    columns = {"g": ["x", None, "x", "ü"], "mixed": [1, True, "1", 1.0], "empty": [None] * 4}
    record, new = keep(datasets, rows, ids, columns, name="n")

    assert new
    assert datasets.record("p", record.id) == record
    found = datasets.load("p", record.id)
    assert found.vectors.dtype == np.dtype(dtype)
    assert found.vectors.tobytes() == rows.tobytes()
    assert (found.ids, found.spec) == (ids, Spec(model="m"))
    assert datasets.ids("p", record.id) == ids
    for name, values in columns.items():
        expected = Labels.of(values)
        for column in (found.columns[name], datasets.column("p", record.id, name)):
            assert [(type(one), one) for one in column.levels] == [
                (type(one), one) for one in expected.levels
            ]
            assert column.codes.tolist() == expected.codes.tolist()
            assert column.sha256 == expected.sha256


def test_columns_alone_are_a_dataset(datasets: Any) -> None:
    """Without rows and ids."""
    record, _ = keep(datasets, columns={"g": ["a", None]})
    found = datasets.load("p", record.id)
    assert (found.rows, found.ids, found.n) == (None, None, 2)
    assert datasets.ids("p", record.id) is None


def test_many_pieces_make_one_matrix(datasets: Any) -> None:
    """Nine megabytes."""
    rows = np.random.default_rng(1).normal(size=(3000, 400))
    record, _ = keep(datasets, rows)
    assert np.array_equal(datasets.load("p", record.id).vectors, rows)


def test_the_size_of_a_project_is_that_of_its_datasets(datasets: Any) -> None:
    """Rows, ids and labels, each content once; what is not committed or not ours does not count."""
    assert datasets.stored_bytes("p") == 0
    rows = np.zeros((1000, 50))
    keep(datasets, rows)
    first = datasets.stored_bytes("p")
    assert rows.nbytes <= first < rows.nbytes + 3000
    keep(datasets, rows, name="again")
    keep(datasets, rows, project="q")
    draft = datasets.draft("p")
    draft.write(pieces(rows)[0])
    assert datasets.stored_bytes("p") == first
    keep(datasets, ids=("a" * 500, "b" * 500), columns={"g": ["x", "y"]})
    assert first + 1008 <= datasets.stored_bytes("p") < first + 5000


def test_what_another_process_stores_is_counted_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this one stores at once; so a quota is passed by what comes in within seconds at most."""
    ours, theirs = ObjectDatasets(tmp_path), ObjectDatasets(tmp_path)
    assert (ours.stored_bytes("p"), theirs.stored_bytes("p")) == (0, 0)
    keep(ours, np.zeros((100, 10)))
    mine = ours.stored_bytes("p")
    assert mine >= 8000
    monkeypatch.setattr("service.storage.objects.COUNTED_S", 0.0)
    assert theirs.stored_bytes("p") == mine
    keep(theirs, np.ones((100, 10)))
    assert ours.stored_bytes("p") == theirs.stored_bytes("p") >= 2 * 8000


def pages(datasets: Any, limit: int) -> list[str]:
    """Ids over all pages, newest first."""
    found, cursor = [], None
    while True:
        page = datasets.page("p", limit, cursor)
        found += [one.id for one in page.items]
        if (cursor := page.next_cursor) is None:
            return found
        assert len(page.items) == limit


@pytest.mark.parametrize("limit", [1, 3, 7, 8])
def test_datasets_are_listed_newest_first_each_once(limit: int, datasets: Any) -> None:
    """Over pages of any size; other projects and drafts are not shown."""
    kept = [keep(datasets, np.full((1, 2), float(i)))[0].id for i in range(7)]
    keep(datasets, np.eye(2), project="q")
    draft = datasets.draft("p")
    for piece in pieces(np.eye(3)):
        draft.write(piece)
    assert pages(datasets, limit) == kept[::-1]
    assert datasets.page("r", limit, None).items == []


def test_a_listing_is_stable_while_datasets_arrive(datasets: Any) -> None:
    """What is new stands before the cursor, so nothing is shown twice or left out."""
    old = [keep(datasets, np.full((1, 2), float(i)))[0].id for i in range(4)]
    first = datasets.page("p", 2, None)
    keep(datasets, np.full((1, 2), 9.0))
    rest = datasets.page("p", 9, first.next_cursor)
    assert [one.id for one in first.items + rest.items] == old[::-1]
    with pytest.raises(InvalidRequest, match="cursor"):
        datasets.page("p", 2, "x")


def test_a_body_leads_to_the_dataset_it_became(datasets: Any) -> None:
    """In its own project; an unknown body, and one whose dataset is gone, lead nowhere."""
    record, _ = keep(datasets, np.eye(3))
    body, other = "ab" * 32, "cd" * 32
    assert datasets.of_body("p", body) is None
    datasets.remember_body("p", body, record.id)
    datasets.remember_body("p", other, new_id("ds"))
    assert datasets.of_body("p", body) == record
    assert datasets.of_body("q", body) is None
    assert datasets.of_body("p", other) is None


def test_equal_content_is_kept_once_in_a_project(datasets: Any) -> None:
    """The first record stays, whatever the second is called; another project has its own."""
    rows = np.eye(3)
    first, _ = keep(datasets, rows, name="one")
    again, new = keep(datasets, rows, name="two")
    other, fresh = keep(datasets, rows, project="q")

    assert (again, new) == (first, False)
    assert fresh
    assert other.id != first.id
    assert np.array_equal(datasets.load("p", first.id).vectors, rows)


def test_equal_content_from_eight_uploads_is_kept_once(datasets: Any) -> None:
    """Committed at the same time: one is new, and all get its record."""
    rows = np.eye(4)
    got = at_once(lambda i: keep(datasets, rows, ids=tuple("abcd"), columns={"g": [1, 2, 3, 4]}))
    assert [new for _, new in got].count(True) == 1
    assert len({record.id for record, _ in got}) == 1
    assert np.array_equal(datasets.load("p", got[0][0].id).vectors, rows)


def test_a_draft_is_not_a_dataset(datasets: Any) -> None:
    """Not while it is written, not after it was discarded, and not twice."""
    draft = datasets.draft("p")
    draft.write(b"x" * 100)
    with pytest.raises(UnknownDataset):
        datasets.record("p", draft.id)
    datasets.discard(draft)
    datasets.discard(draft)
    with pytest.raises(UnknownDataset):
        datasets.load("p", draft.id)
    datasets.discard(datasets.draft("p"))


@pytest.mark.parametrize("dtype", ["<f4", "|i1"])
def test_the_rows_of_a_dataset_are_one_npy_file(dtype: str, datasets: Any) -> None:
    rows = np.arange(12).reshape(4, 3).astype(dtype)
    record, _ = keep(datasets, rows)
    with datasets.open_vectors("p", record.id) as file:
        assert file.read() == b"".join(pieces(rows))


def test_a_header_is_written_again_once_the_rows_are_counted(datasets: Any) -> None:
    rows = np.arange(12, dtype="<f4").reshape(4, 3)
    draft = datasets.draft("p")
    writer = RowWriter(draft, None, 3, rows.dtype, Limits())
    writer.write(rows[:3])
    writer.write(rows[3:])
    parsed = writer.finish()
    assert parsed.n == 4
    record = DatasetRecord(
        id=draft.id, name=None, n=4, d=3, dtype="float32", bytes=48, sha256="0" * 64,
        vectors_sha256=parsed.vectors_sha256, ids_sha256=None, columns={}, spec=Spec(), facts=None,
        created_at=now(),
    )  # fmt: skip
    datasets.commit(draft, record, None, {})
    np.testing.assert_array_equal(datasets.load("p", draft.id).rows, rows)


def test_nothing_new_uses_a_dataset_while_it_is_asked_for_and_it_is_gone_after(
    datasets: Any,
) -> None:
    """A job that has begun reads on until it is known that there is none."""
    rows = np.ones((2, 2), "<f4")
    record, _ = keep(datasets, rows)
    seen = []

    def look() -> bool:
        with pytest.raises(UnknownDataset, match="deleted"):
            datasets.usable("p", record.id)
        with pytest.raises(UnknownDataset):
            datasets.remove("p", record.id, lambda: False)
        assert datasets.record("p", record.id) == record
        np.testing.assert_array_equal(datasets.load("p", record.id).rows, rows)
        seen.append("asked")
        return len(seen) == 1

    assert datasets.remove("p", record.id, look) is False
    assert datasets.usable("p", record.id) == record
    assert datasets.remove("p", record.id, look) is True
    assert seen == ["asked", "asked"]
    for lost in (datasets.record, datasets.usable, datasets.load, datasets.open_vectors):
        with pytest.raises(UnknownDataset):
            lost("p", record.id)
    with pytest.raises(UnknownDataset):
        datasets.remove("p", record.id, look)
    assert datasets.page("p", 10, None).items == []
    again, new = keep(datasets, rows)
    assert new
    assert again.id != record.id


def test_a_dataset_whose_users_could_not_be_asked_for_stays(datasets: Any) -> None:
    """Redis does not answer: nobody has said that nothing needs it."""
    rows = np.ones((2, 2), "<f4")
    record, _ = keep(datasets, rows)

    def fail() -> bool:
        raise ConnectionError("no answer")

    with pytest.raises(ConnectionError):
        datasets.remove("p", record.id, fail)
    assert datasets.tidy(datetime.now(UTC) + timedelta(days=2)) == 0
    assert datasets.record("p", record.id) == record
    np.testing.assert_array_equal(datasets.load("p", record.id).rows, rows)
    assert keep(datasets, rows) == (record, False)
    assert datasets.remove("p", record.id, lambda: False) is True


def test_a_dataset_stays_whose_deletion_died(tmp_path: Path) -> None:
    datasets = ObjectDatasets(tmp_path)
    rows = np.ones((2, 2), "<f4")
    record, _ = keep(datasets, rows)
    sign = tmp_path / "p" / "datasets" / record.id / "removing"
    sign.touch()
    with pytest.raises(UnknownDataset):
        datasets.usable("p", record.id)
    os.utime(sign, (past := time.time() - 61, past))
    assert datasets.usable("p", record.id) == record
    assert datasets.tidy(now() + timedelta(days=2)) == 0
    assert keep(datasets, rows) == (record, False)
    assert datasets.remove("p", record.id, lambda: False) is True


def test_who_takes_long_to_ask_asks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was accepted once the sign was too old would not be seen otherwise."""
    datasets = ObjectDatasets(tmp_path)
    record, _ = keep(datasets, np.ones((2, 2), "<f4"))
    clock = [0.0]
    monkeypatch.setattr(objects.time, "monotonic", lambda: clock[0])
    asked = []

    def slow() -> bool:
        asked.append(1)
        clock[0] += 31 if len(asked) == 1 else 1
        return False

    assert datasets.remove("p", record.id, slow) is True
    assert len(asked) == 2


def test_a_dataset_is_unused_after_its_last_use(datasets: Any) -> None:
    """To be asked for something new, or sent again, is a use; to be looked at is none."""
    old, _ = keep(datasets, np.ones((2, 2), "<f4"))
    new, _ = keep(datasets, np.ones((3, 2), "<f4"))
    time.sleep(0.02)
    then = now()
    time.sleep(0.02)
    assert set(datasets.unused(then)) == {("p", old.id), ("p", new.id)}
    datasets.record("p", old.id)
    datasets.load("p", old.id)
    datasets.usable("p", new.id)
    assert datasets.unused(then) == [("p", old.id)]
    assert keep(datasets, np.ones((2, 2), "<f4")) == (old, False)
    assert datasets.unused(then) == []
    assert set(datasets.unused(now() + timedelta(seconds=1))) == {("p", old.id), ("p", new.id)}


def test_content_that_is_being_deleted_can_be_sent_again(tmp_path: Path) -> None:
    """At any moment: what led to it may be gone between two looks."""
    datasets = ObjectDatasets(tmp_path)
    rows = np.ones((2, 2), "<f4")
    over = threading.Event()
    failed: list[BaseException] = []

    def again(work: Callable[[], Any]) -> None:
        while not over.is_set():
            try:
                work()
            except UnknownDataset:
                continue
            except BaseException as error:
                failed.append(error)

    def delete() -> None:
        for one in datasets.page("p", 10, None).items:
            datasets.remove("p", one.id, lambda: False)

    threads = [
        threading.Thread(target=again, args=(work,))
        for work in (lambda: keep(datasets, rows), lambda: keep(datasets, rows), delete, delete)
    ]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    over.set()
    for thread in threads:
        thread.join()
    assert failed == []


def test_drafts_of_a_job_can_be_forgotten_when_it_has_died(tmp_path: Path) -> None:
    """What it had finished stays, and so do drafts of others."""
    datasets = ObjectDatasets(tmp_path)
    done, left, other = (datasets.draft("p", job) for job in ("job_1", "job_1", "job_2"))
    upload = datasets.draft("p")
    for draft in (left, other, upload):
        draft.spool().close()
        (tmp_path / "p" / "datasets" / draft.id / "vectors.npy#1").write_bytes(b"half")
    record = commit_rows(datasets, done, np.ones((2, 2), "<f4"))
    assert sorted(datasets.drafting()) == ["job_1", "job_2"]
    (tmp_path / "_drafts" / "job_1" / "p" / record.id).touch()  # it died between two steps
    ObjectDatasets(tmp_path).abandon("job_1")
    assert datasets.drafting() == ["job_2"]
    there = {path.name for path in (tmp_path / "p" / "datasets").iterdir()}
    assert there == {record.id, other.id, upload.id}
    assert datasets.record("p", record.id) == record
    datasets.discard(other)
    assert datasets.drafting() == []
    datasets.abandon("job_3")


def test_only_drafts_that_nobody_writes_any_more_are_removed(tmp_path: Path) -> None:
    datasets = ObjectDatasets(tmp_path)
    record, _ = keep(datasets, np.ones((2, 2), "<f4"))
    old, fresh = datasets.draft("p"), datasets.draft("q")
    for draft in (old, fresh):
        draft.spool().close()
        folder = tmp_path / draft.project / "datasets" / draft.id
        (folder / "vectors.npy#1").write_bytes(b"half")
    past = (now() - timedelta(days=2)).timestamp()
    for path in (tmp_path / "p" / "datasets").rglob("*"):
        os.utime(path, (past, past))
    assert datasets.tidy(now() - timedelta(days=1)) == 1
    assert not (tmp_path / "p" / "datasets" / old.id).exists()
    assert (tmp_path / "q" / "datasets" / fresh.id / "vectors.npy#1").exists()
    assert datasets.record("p", record.id) == record


@pytest.mark.parametrize(
    "name", ["ds_" + "0" * 24, "", "x", "../p", "ds_\0", "ds_" + "g" * 24, "ds_" + "0" * 24 + "\n"]
)
def test_unknown_datasets_are_unknown(name: str, datasets: Any) -> None:
    """By every way of asking, in the own and in another project."""
    record, _ = keep(datasets, np.eye(2), columns={"g": [1, 2]})
    for project, dataset in (("p", name), ("q", record.id)):
        for ask in (
            datasets.record, datasets.load, datasets.ids, lambda *a: datasets.column(*a, "g"),
        ):  # fmt: skip
            with pytest.raises(UnknownDataset):
                ask(project, dataset)


def test_a_store_says_that_it_can_be_written(datasets: Any) -> None:
    """And asking leaves no dataset behind."""
    assert datasets.reachable()
    assert datasets.reachable()


# reports


def test_a_report_is_kept_as_it_is(reports: Any) -> None:
    """Bytes for bytes, by project and digest; anything else is None."""
    assert reports.get("p", DIGEST) is None
    data = b'{"x": 1}\xff\0' * 1000
    assert reports.put("p", DIGEST, data) == data
    assert reports.get("p", DIGEST) == data
    assert reports.get("q", DIGEST) is None
    assert reports.get("p", "cd" * 32) is None
    assert reports.get("p", "../p") is None


def test_the_first_report_stays(reports: Any) -> None:
    """A later one gets the first in return."""
    assert reports.put("p", DIGEST, b"first") == b"first"
    assert reports.put("p", DIGEST, b"second") == b"first"
    assert reports.get("p", DIGEST) == b"first"


def test_eight_writers_agree_on_one_report(reports: Any) -> None:
    """Whoever comes first, all are told what is stored."""
    got = at_once(lambda i: reports.put("p", DIGEST, str(i).encode() * 10_000))
    assert len(set(got)) == 1
    assert got[0] == reports.get("p", DIGEST)
    assert len(got[0]) == 10_000


# jobs


def job(i: int = 0, **changes: Any) -> Job:
    """A queued job, i seconds after the start."""
    fields: dict[str, Any] = {
        "id": new_id("job"), "project": "p", "kind": "geometry", "kind_version": 1,
        "state": State.queued, "inputs": {"vectors": DatasetRef(dataset="ds_1")}, "params": {},
        "seed": 0, "cache": True, "tags": {}, "request_digest": DIGEST, "deadline_s": 60,
        "memory_bytes": 1, "created_at": START + timedelta(seconds=i), **changes,
    }  # fmt: skip
    return Job(**fields)


def listed(jobs: Any, limit: int = 3, **filters: Any) -> list[str]:
    """Ids over all pages, newest first."""
    found, cursor = [], None
    wanted = Wanted(**filters)
    while True:
        page = jobs.page("p", limit, cursor, wanted)
        assert len(page.items) <= limit
        found += [one.id for one in page.items]
        if (cursor := page.next_cursor) is None:
            return found
        assert len(page.items) == limit, "a page with a successor is full"


def test_a_job_comes_back_as_it_was_made(jobs: Any) -> None:
    """Every field, nested ones included."""
    fault = Fault(pointer="/inputs/a", message="m", count=3, rows=["x", "ü"])
    one = job(
        inputs={
            "models": [NamedDataset(dataset="ds_1", name="a")],
            "groups": ColumnRef(dataset="ds_2", column="g/ü"),
        },
        params={"level": 0.95, "ks": [1, 2], "x": None}, tags={"ü": "a:b"}, seed=2**53 - 1,
        started_at=START, finished_at=START, attempts=2, cached=True, state=State.failed,
        problem=Failure.of(NonFiniteRows("d", [fault])), created_at=now(),
    )  # fmt: skip
    jobs.create(one)
    assert jobs.get("p", one.id) == one
    assert jobs.find(one.id) == one


def test_a_job_is_created_once_however_many_try(jobs: Any) -> None:
    """Eight at the same time under one id: one record, listed and counted once."""
    same = job()
    made = at_once(lambda i: jobs.create(same.model_copy(update={"seed": i})))

    assert sorted(made) == [False] * (THREADS - 1) + [True]
    assert jobs.get("p", same.id).seed == made.index(True)
    assert listed(jobs) == [same.id]
    assert jobs.active() == [same.id]
    assert jobs.unfinished("p") == 1


def test_unfinished_jobs_are_counted_by_project(jobs: Any) -> None:
    """Until they end, in whichever way; one that was born ended never counts."""
    ours, theirs = [job(), job(), job()], job(project="q")
    for one in (*ours, theirs, job(state=State.succeeded, cached=True)):
        jobs.create(one)
    assert (jobs.unfinished("p"), jobs.unfinished("q"), jobs.unfinished("r")) == (3, 1, 0)

    jobs.change(ours[0].id, lambda old: old.moved(State.cancelled))
    jobs.change(ours[1].id, lambda old: old.moved(State.running))
    assert (jobs.unfinished("p"), jobs.unfinished("q")) == (2, 1)
    jobs.change(ours[1].id, lambda old: old.moved(State.succeeded))
    assert (jobs.unfinished("p"), jobs.unfinished("q")) == (1, 1)


def test_unknown_jobs_are_unknown(jobs: Any) -> None:
    """Another project's too; a worker may ask without a project."""
    one = job()
    jobs.create(one)
    for project, name in (("q", one.id), ("p", "job_x"), ("p", ""), ("p", "a\0b")):
        with pytest.raises(UnknownJob):
            jobs.get(project, name)
    assert jobs.find("job_x") is None
    assert jobs.change("job_x", lambda one: one) is None


def test_a_change_counts_and_may_be_declined(jobs: Any) -> None:
    """The version follows the changes; a declined one leaves everything."""
    one = job()
    jobs.create(one)
    moved = jobs.change(one.id, lambda old: old.moved(State.running, attempts=1))
    assert (moved.version, moved.state) == (1, State.running)
    assert jobs.get("p", one.id) == moved
    assert jobs.change(one.id, lambda old: None) is None
    assert jobs.get("p", one.id) == moved


def test_eight_threads_lose_no_change(jobs: Any) -> None:
    """Forty increments each: compare-and-set, not read-and-write."""
    one = job()
    jobs.create(one)

    def add(i: int) -> None:
        for _ in range(40):
            jobs.change(one.id, lambda old: old.model_copy(update={"attempts": old.attempts + 1}))

    at_once(add)
    found = jobs.get("p", one.id)
    assert (found.attempts, found.version) == (40 * THREADS, 40 * THREADS)


def test_a_job_ends_once(jobs: Any) -> None:
    """Eight threads end it in three ways: one of them did, and it is counted once."""
    one = job()
    jobs.create(one)
    jobs.change(one.id, lambda old: old.moved(State.running))
    ends = [State.succeeded, State.failed, State.cancelled]
    got = at_once(lambda i: jobs.change(one.id, lambda old: old.moved(ends[i % 3])))
    winners = [found for found in got if found is not None]
    assert len(winners) == 1
    assert jobs.get("p", one.id) == winners[0]
    assert jobs.ended() == {("geometry", winners[0].state.value): 1}
    assert jobs.active() == []


def test_active_jobs_are_those_that_have_not_ended(jobs: Any) -> None:
    """Of every project; a job that is born ended is counted as ended."""
    waiting, running, done = job(), job(project="q"), job(kind="cosine_floor")
    for one in (waiting, running, done):
        jobs.create(one)
    jobs.create(job(state=State.succeeded, cached=True))
    jobs.change(running.id, lambda old: old.moved(State.running))
    jobs.change(done.id, lambda old: old.moved(State.failed))
    assert set(jobs.active()) == {waiting.id, running.id}
    assert jobs.ended() == {("geometry", "succeeded"): 1, ("cosine_floor", "failed"): 1}


def test_progress_is_the_last_that_was_told(jobs: Any) -> None:
    """None before the first."""
    one = job()
    jobs.create(one)
    assert jobs.progress(one.id) is None
    for done in (1, 2):
        told = Progress(stage="s", done=done, total=2, eta_s=None if done == 1 else 0.5)
        jobs.report_progress(one.id, told)
        assert jobs.progress(one.id) == told


def test_a_listing_may_be_of_reports_about_one_dataset(jobs: Any) -> None:
    """Roles, columns and models count; imports succeed without a report."""
    other = {"a": [NamedDataset(dataset="ds_2", name="a")], "b": DatasetRef(dataset="ds_3")}
    done = {"state": State.succeeded}
    made = [
        job(0),
        job(1, **done),
        job(2, inputs=other, **done),
        job(3, inputs={"g": ColumnRef(dataset="ds_2", column="c")}, **done),
        job(4, kind=IMPORT, inputs={"dataset": DatasetRef(dataset="ds_2")}, **done),
        job(5, inputs=other, state=State.failed),
    ]
    for one in made:
        jobs.create(one)
    ids = [one.id for one in made]
    assert listed(jobs, 2, reported=True) == [ids[3], ids[2], ids[1]]
    assert listed(jobs, 2, reported=True, dataset="ds_2") == [ids[3], ids[2]]
    assert listed(jobs, 2, dataset="ds_3") == [ids[5], ids[2]]
    assert listed(jobs, 2, dataset="ds_4") == []


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_jobs_are_paged_newest_first(limit: int, jobs: Any) -> None:
    """Made in a mixed order; another project's are not shown."""
    made = [job(i) for i in range(7)]
    for i in (3, 0, 6, 1, 5, 2, 4):
        jobs.create(made[i])
        jobs.create(job(i, project="q"))
    assert listed(jobs, limit) == [one.id for one in reversed(made)]
    empty = jobs.page("nobody", limit, None)
    assert (empty.items, empty.next_cursor) == ([], None)


def test_jobs_of_one_instant_are_all_shown_once(jobs: Any) -> None:
    """Five in the same microsecond, between others, over pages of two."""
    made = [job(0), *(job(1) for _ in range(5)), job(2)]
    for one in made:
        jobs.create(one)
    got = listed(jobs, 2)
    assert sorted(got) == sorted(one.id for one in made)
    assert (got[0], got[-1]) == (made[-1].id, made[0].id)


def test_pages_are_stable_while_jobs_arrive_and_change(jobs: Any) -> None:
    """Between two pages: a new job, an old one that ends, and one that is older than the cursor."""
    made = [job(i) for i in range(6)]
    for one in made:
        jobs.create(one)
    first = jobs.page("p", 3, None)
    jobs.create(job(100))
    jobs.change(made[1].id, lambda old: old.moved(State.cancelled))
    jobs.create(late := job(-5))
    second = jobs.page("p", 9, first.next_cursor)
    shown = [one.id for one in (*first.items, *second.items)]
    assert shown == [one.id for one in [*reversed(made), late]]
    assert second.items[1].state is State.cancelled


def test_filters_find_the_few_among_the_many(jobs: Any) -> None:
    """Every hundredth of 450 jobs matches, so that whole pages of the index hold none."""
    made = [
        job(
            i, kind="cosine_floor" if i % 100 == 7 else "geometry",
            tags={"env": "prod"} if i % 100 == 7 else {"env": "dev"},
            state=State.cancelled if i % 200 == 7 else State.queued,
        )
        for i in range(450)
    ]  # fmt: skip
    for one in made:
        jobs.create(one)
    wanted = [one.id for one in reversed(made) if one.kind == "cosine_floor"]
    assert len(wanted) == 5
    assert listed(jobs, 2, kinds=frozenset({"cosine_floor"})) == wanted
    assert listed(jobs, 2, tag=("env", "prod")) == wanted
    assert listed(jobs, 2, state=State.cancelled) == [wanted[0], wanted[2], wanted[4]]
    assert listed(jobs, 9, kinds=frozenset({"cosine_floor"}), state=State.queued) == [
        wanted[1],
        wanted[3],
    ]
    assert listed(jobs, 9, tag=("env", "x")) == []
    assert listed(jobs, 200) == [one.id for one in reversed(made)]


@pytest.mark.parametrize("cursor", ["", "x", "1-", "-job_x", "²-job_" + "0" * 24, "9" * 5000])
def test_a_foreign_cursor_is_refused(cursor: str, jobs: Any) -> None:
    """With and without jobs."""
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            jobs.page("p", 3, cursor)
        jobs.create(job())


# gates


def gate(**changes: Any) -> GateRun:
    """A running gate."""
    policy = {
        "version": 1, "name": "ü", "inputs": {"a": "vectors"},
        "checks": {"c": {"kind": "geometry", "inputs": {"vectors": "a"}}},
        "rules": [{"measure": "c.rankme", "at_least": 1.5}],
    }  # fmt: skip
    fields: dict[str, Any] = {
        "id": new_id("gate"), "project": "p", "policy": Policy.model_validate(policy),
        "inputs": {"a": DatasetRef(dataset="ds_1")}, "tags": {"k": "v"}, "jobs": {"c": "job_1"},
        "state": "running", "created_at": now(), **changes,
    }  # fmt: skip
    return GateRun(**fields)


def test_a_gate_comes_back_as_it_was_made(gates: Any) -> None:
    """To its own project."""
    run = gate()
    gates.create(run)
    assert gates.get("p", run.id) == run
    for project, name in (("q", run.id), ("p", "gate_x")):
        with pytest.raises(UnknownGate):
            gates.get(project, name)
    assert gates.change("gate_x", lambda one: one) is None


def test_a_gate_is_judged_once(gates: Any) -> None:
    """Eight verdicts at once: one is stored, at version 1."""
    run = gate()
    gates.create(run)

    def judge(i: int) -> Any:
        done = {"state": "done", "digest": str(i)}
        return gates.change(
            run.id, lambda old: old.model_copy(update=done) if old.state == "running" else None
        )

    got = [one for one in at_once(judge) if one is not None]
    assert len(got) == 1
    assert gates.get("p", run.id) == got[0]
    assert got[0].version == 1


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_gates_are_paged_newest_first(limit: int, gates: Any) -> None:
    """Of one project, all or those of a tag; two of one instant are both shown."""
    times = [now() - timedelta(minutes=10 - i) for i in (3, 0, 6, 1, 1, 5)]
    made = [
        gate(created_at=at, tags={"env": "prod" if i % 2 else "dev"}) for i, at in enumerate(times)
    ]
    for one in made:
        gates.create(one)
        gates.create(gate(project="q", created_at=one.created_at))

    def listed(tag: Any) -> list[str]:
        found, cursor = [], None
        while True:
            page = gates.page("p", limit, cursor, tag)
            found += [one.id for one in page.items]
            if page.next_cursor is None:
                return found
            assert len(page.items) == limit
            cursor = page.next_cursor

    newest = sorted(made, key=lambda one: (one.created_at, one.id), reverse=True)
    assert listed(None) == [one.id for one in newest]
    assert listed(("env", "prod")) == [one.id for one in newest if one.tags["env"] == "prod"]
    assert gates.page("nobody", limit, None, None).items == []
    with pytest.raises(InvalidRequest):
        gates.page("p", limit, "x", None)


# baselines


def test_a_baseline_keeps_all_it_has_stood_for(baselines: Any) -> None:
    """Newest first, by whom; naming the same dataset again changes nothing."""
    for dataset, run in (("ds_1", None), ("ds_2", "gate_1"), ("ds_2", None), ("ds_1", None)):
        baselines.set("p", "prod", dataset, run)
    past = baselines.history("p", "prod", 100)
    assert [(one.version, one.dataset, one.gate) for one in past] == [
        (3, "ds_1", None), (2, "ds_2", "gate_1"), (1, "ds_1", None),
    ]  # fmt: skip
    assert baselines.get("p", "prod") == past[0]
    assert baselines.history("p", "prod", 2) == past[:2]
    assert {one.name for one in past} == {"prod"}


def test_more_than_nine_versions_stay_in_order(baselines: Any) -> None:
    """10 comes after 9."""
    for i in range(12):
        baselines.set("p", "prod", f"ds_{i}", None)
    assert baselines.get("p", "prod").dataset == "ds_11"
    assert [one.version for one in baselines.history("p", "prod", 100)] == list(range(12, 0, -1))


def test_a_baseline_belongs_to_its_project(baselines: Any) -> None:
    """A name that is a prefix of another is another; nobody reads the neighbour's."""
    for project, name in (("p", "prod"), ("p", "pro"), ("q", "other")):
        baselines.set(project, name, f"ds_{project}_{name}", None)
    assert baselines.names("p") == ["pro", "prod"]
    assert baselines.names("nobody") == []
    assert baselines.get("p", "pro").dataset == "ds_p_pro"
    for project, name in (("q", "prod"), ("p", "other"), ("p", "x"), ("p", "../q/baselines/other")):
        with pytest.raises(UnknownBaseline):
            baselines.get(project, name)
        with pytest.raises(UnknownBaseline):
            baselines.history(project, name, 3)


def test_baselines_set_at_once_are_all_kept(baselines: Any) -> None:
    """Eight datasets in one moment: eight versions, none written over."""
    at_once(lambda i: baselines.set("p", "prod", f"ds_{i}", None))
    past = baselines.history("p", "prod", 100)
    assert [one.version for one in past] == list(range(THREADS, 0, -1))
    assert {one.dataset for one in past} == {f"ds_{i}" for i in range(THREADS)}


def test_baselines_outlive_the_process(tmp_path: Path) -> None:
    """Another reader of the same folder finds them; Redis holds nothing of them."""
    made = ObjectBaselines(tmp_path / "store").set("p", "prod", "ds_1", "gate_1")
    assert ObjectBaselines(tmp_path / "store").get("p", "prod") == made


# queues


def test_a_queue_holds_a_job_once(queue: Any) -> None:
    """Handed over twice it waits once; stopped or forgotten it is gone and may come again."""
    one, other = job(), job()
    assert queue.depth() == 0
    for _ in range(2):
        queue.enqueue(one)
    queue.enqueue(other)
    assert queue.depth() == 2
    assert queue.holds(one.id)

    queue.stop(one.id)
    assert not queue.holds(one.id)
    assert queue.depth() == 1
    queue.enqueue(one)
    queue.forget(one.id)
    assert not queue.holds(one.id)
    queue.enqueue(one)
    assert queue.holds(one.id)
    assert queue.depth() == 2


def test_a_queue_knows_nothing_of_other_jobs(queue: Any) -> None:
    """Stopping and forgetting them is harmless."""
    assert not queue.holds("job_x")
    queue.stop("job_x")
    queue.forget("job_x")
    assert queue.depth() == 0


def test_a_queue_carries_each_step_to_its_pool(queue: Any) -> None:
    """Shards wait apart from jobs; a combination is of the first; each waits once."""
    one, other = job(), job()
    queue.enqueue(other)
    for step in (*(Step("shard", i) for i in range(3)), COMBINE):
        for _ in range(2):
            queue.enqueue(one, step)
    assert (queue.depth(Pool.jobs), queue.depth(Pool.shards)) == (2, 3)
    assert not queue.holds(one.id)
    assert all(queue.holds(step.of(one.id)) for step in (Step("shard", 2), COMBINE))

    queue.stop(Step("shard", 1).of(one.id))
    assert [queue.holds(f"{one.id}-s{i}") for i in range(3)] == [True, False, True]
    queue.forget(COMBINE.of(one.id))
    assert (queue.depth(Pool.jobs), queue.depth(Pool.shards)) == (1, 2)


def test_steps_of_a_job_are_told_apart_and_found_again() -> None:
    """Ids in the queue name the job they belong to."""
    one = job()
    assert steps(one) == [Step()]
    cut = one.model_copy(update={"plan": Plan(blocks=9, shards=3)})
    ids = [step.of(one.id) for step in steps(cut)]
    assert len(set(ids)) == 5
    assert ids[0] == one.id
    assert {job_of(task) for task in ids} == {one.id}


# parts


def test_a_part_is_stored_once(parts: Any) -> None:
    """Eight writers at once: one wins, whole; later ones change nothing."""
    data = [bytes([i]) * 300_000 for i in range(THREADS)]
    at_once(lambda i: parts.put("job_1", 0, memoryview(data[i])))
    with parts.open("job_1", 0) as file:
        stored = file.read()
    assert stored in data
    parts.put("job_1", 0, b"later")
    with parts.open("job_1", 0) as file:
        file.seek(299_990)
        assert file.read() == stored[-10:]


def test_parts_are_removed_by_job(parts: Any) -> None:
    """Not those of a job whose id begins with the same letters; twice is harmless."""
    assert parts.open("job_1", 0) is None
    assert parts.jobs() == []
    for job_id in ("job_1", "job_12"):
        for shard in (0, 1, 10):
            parts.put(job_id, shard, b"x")
    assert sorted(parts.jobs()) == ["job_1", "job_12"]
    assert parts.open("job_1", 2) is None
    for _ in range(2):
        parts.remove("job_1")
    assert parts.jobs() == ["job_12"]
    assert parts.open("job_1", 0) is None
    parts.open("job_12", 10).close()
    parts.put("job_1", 0, b"again")
    assert sorted(parts.jobs()) == ["job_1", "job_12"]


# shards


def test_starts_of_a_step_are_counted(jobs: Any) -> None:
    """Each number once, whoever comes at the same time; steps and jobs apart."""
    step = Step("shard", 1)
    assert sorted(at_once(lambda _: jobs.begin("job_1", step))) == list(range(1, THREADS + 1))
    assert jobs.begin("job_1", COMBINE) == jobs.begin("job_2", step) == 1


def test_what_is_done_of_a_shard_only_grows(jobs: Any) -> None:
    """And one answer tells all that is known."""
    assert jobs.done("job_1") == {}
    assert jobs.report_done("job_1", 3, 0.25) == {3: 0.25}
    assert jobs.report_done("job_1", 11, 1.0) == {3: 0.25, 11: 1.0}
    assert jobs.report_done("job_1", 11, 0.999) == {3: 0.25, 11: 1.0}
    at_once(lambda i: jobs.report_done("job_1", 3, (i + 1) / THREADS))
    assert jobs.done("job_1") == {3: 1.0, 11: 1.0}
    assert jobs.done("job_2") == {}


# what only the durable ones can do


def test_a_folder_of_objects_outlives_the_process(tmp_path: Path) -> None:
    """Opened again it has everything; rows are mapped, not read."""
    record, _ = keep(ObjectDatasets(tmp_path), np.eye(3), ("a", "b", "c"), {"g": [1, "1", None]})
    ObjectReports(tmp_path).put("p", DIGEST, b"x")
    again = ObjectDatasets(tmp_path)
    found = again.load("p", record.id)
    assert isinstance(found.vectors, np.memmap)
    assert (found.ids, found.columns["g"].levels) == (("a", "b", "c"), (1, "1"))
    assert keep(again, np.eye(3), ("a", "b", "c"), {"g": [1, "1", None]}) == (record, False)
    assert ObjectReports(tmp_path).get("p", DIGEST) == b"x"


def test_nothing_is_left_of_drafts_and_duplicates(tmp_path: Path) -> None:
    """After a discarded draft of two megabytes and a second copy: the files of one dataset."""
    datasets = ObjectDatasets(tmp_path)
    keep(datasets, np.eye(3), tuple("abc"), {"g": [1, 2, 3]})
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    draft = datasets.draft("p")
    for _ in range(20):
        draft.write(b"x" * 100_000)
    datasets.discard(draft)
    keep(datasets, np.eye(3), tuple("abc"), {"g": [1, 2, 3]})
    del draft
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    """Its folder became a file."""
    datasets = ObjectDatasets(tmp_path / "store")
    (tmp_path / "store").rmdir()
    (tmp_path / "store").write_text("in the way")
    assert not datasets.reachable()


def test_ended_jobs_expire_and_the_listing_goes_on(redis: Redis) -> None:
    """Ten jobs, of which eight ended a second ago and are kept for one: two are listed."""
    jobs = RedisJobs(redis, retention_s=1)
    made = [job(i) for i in range(10)]
    for i, one in enumerate(made):
        jobs.create(one)
        if i not in (2, 7):
            jobs.change(one.id, lambda old: old.moved(State.cancelled))
    born = job(20, state=State.succeeded, cached=True)
    jobs.create(born)
    assert len(listed(jobs)) == 11
    cursor = jobs.page("p", 3, None).next_cursor
    time.sleep(1.1)

    assert [one.id for one in jobs.page("p", 9, cursor).items] == [
        made[7].id, made[2].id,
    ]  # fmt: skip
    assert listed(jobs, 1) == [made[7].id, made[2].id]
    with pytest.raises(UnknownJob):
        jobs.get("p", born.id)
    assert jobs.change(made[0].id, lambda old: old) is None
    assert redis.zcard("assay:jobs:p") == 2, "the index forgets them too"
    assert redis.ttl(f"assay:job:{made[2].id}") == -1, "a job that has not ended never expires"


def test_the_end_of_a_job_and_its_bookkeeping_are_one_step(redis: Redis) -> None:
    """One script call changes, expires and counts: no crash can come in between (commands counted)."""
    jobs = RedisJobs(redis, 100)
    one = job()
    jobs.create(one)
    before = redis.info("commandstats")
    jobs.change(one.id, lambda old: old.moved(State.cancelled))
    after = redis.info("commandstats")
    calls = {
        name: after.get(f"cmdstat_{name}", {}).get("calls", 0)
        - before.get(f"cmdstat_{name}", {}).get("calls", 0)
        for name in ("evalsha", "eval", "expire", "srem", "multi")
    }
    assert calls["evalsha"] + calls["eval"] in (1, 2), "2 where the script was not loaded yet"
    assert calls["multi"] == 0
    assert jobs.active() == []
    assert jobs.ended() == {(one.kind, "cancelled"): 1}
    assert 0 < redis.ttl(f"assay:job:{one.id}") <= 100


def test_records_expire_with_what_belongs_to_them(redis: Redis) -> None:
    """Progress, ended jobs and gates have a time to live."""
    from service.storage.redis import RedisGates

    jobs, gates = RedisJobs(redis, 100), RedisGates(redis, 100)
    one, run = job(), gate()
    jobs.create(one)
    gates.create(run)
    jobs.report_progress(one.id, Progress(stage="s", done=0, total=1, eta_s=None))
    jobs.begin(one.id, COMBINE)
    jobs.report_done(one.id, 0, 0.5)
    assert min(redis.ttl(f"assay:{kind}:{one.id}") for kind in ("starts", "done")) > 0
    jobs.change(one.id, lambda old: old.moved(State.cancelled))
    assert 0 < redis.ttl(f"assay:job:{one.id}") <= 100
    assert redis.ttl(f"assay:progress:{one.id}") > 0
    assert 0 < redis.ttl(f"assay:gate:{run.id}") <= 100


def test_no_value_in_redis_is_large(redis: Redis, tmp_path: Path) -> None:
    """CASES P30: a job on 20 MB of inline rows and 20,000 labels; the largest key stays under 1 MB."""
    from service.operations import submit
    from service.request import parse_request
    from service.storage.memory import memory_services
    from service.storage.queue import RqQueue
    from service.storage.redis import RedisGates

    services = memory_services(
        datasets=ObjectDatasets(tmp_path), reports=ObjectReports(tmp_path),
        jobs=RedisJobs(redis, 60), gates=RedisGates(redis, 60), queue=RqQueue(redis, 3),
        parts=ObjectParts(tmp_path), baselines=ObjectBaselines(tmp_path),
    )  # fmt: skip
    rows = np.random.default_rng(0).normal(size=(20_000, 250)).astype("<f4")
    import base64

    data = base64.b64encode(rows.tobytes()).decode()
    encoded = {"encoding": "base64", "dtype": "<f4", "shape": list(rows.shape), "data": data}
    body = {
        "kind": "geometry",
        "inputs": {
            "vectors": {"vectors": encoded, "ids": [f"row-{i}" for i in range(20_000)]},
            "groups": {"values": [f"group-{i % 5000}" for i in range(20_000)]},
        },
    }
    submit(services, "p", parse_request(body))
    sizes = {key: redis.memory_usage(key, samples=0) for key in redis.scan_iter()}
    assert sizes
    assert max(sizes.values()) < 10_000


def test_a_combination_goes_before_waiting_jobs(redis: Redis) -> None:
    """Its job has waited already."""
    from service.storage.queue import RqQueue, open_queue

    queue, one, other = RqQueue(redis, 3), job(), job()
    queue.enqueue(other)
    queue.enqueue(one, COMBINE)
    assert open_queue(redis).job_ids == [COMBINE.of(one.id), other.id]
    assert open_queue(redis, Pool.shards).job_ids == []


def test_a_removed_job_leaves_no_folder(tmp_path: Path) -> None:
    """Nor what a killed process had staged, which the store does not list."""
    parts = ObjectParts(tmp_path)
    parts.put("job_1", 0, b"x")
    assert (tmp_path / "_parts" / "job_1" / "0").read_bytes() == b"x"
    (tmp_path / "_parts" / "job_1" / "1#1").write_bytes(b"half")
    parts.remove("job_1")
    assert not (tmp_path / "_parts" / "job_1").exists()
    assert parts.jobs() == []


def test_no_project_is_taken_for_parts(tmp_path: Path) -> None:
    """Whatever its name: what is not the part of a job is not removed with them."""
    datasets, parts = ObjectDatasets(tmp_path), ObjectParts(tmp_path)
    for project in ("parts", "job_1"):
        record, _ = keep(datasets, np.eye(3), project=project)
        assert parts.jobs() == []
        assert datasets.load(project, record.id).n == 3
    assert not PROJECT.fullmatch(PARTS)
