"""Operations: what they write, in which order, and what they leave alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.errors import (
    AssayError,
    DuplicateIds,
    Internal,
    InvalidRequest,
    QueueFull,
    TooFewGroups,
    UnknownDataset,
    UnknownJob,
    UnsupportedFormat,
    WorkerLost,
)
from service.job import Job, Progress, State, now
from service.operations import (
    JobFailed,
    Services,
    Upload,
    cancel,
    fail,
    perform,
    report_bytes,
    report_of,
    submit,
)
from service.references import Spec
from service.request import parse_request
from workers.local import run as run_locally

X = np.random.default_rng(29).normal(size=(12, 4))


def request(vectors: Any, **more: Any) -> Any:
    value = {"dataset": vectors} if isinstance(vectors, str) else {"vectors": vectors}
    return parse_request({"kind": "geometry", "inputs": {"vectors": value}, **more})


@pytest.fixture
def queued(services: Services, store: Any) -> Callable[..., Job]:
    """A job in the queue."""

    def make(**more: Any) -> Job:
        return submit(services, "default", request(store(X).id, **more))

    return make


def test_a_job_is_recorded_before_it_is_queued(
    services: Services, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is quicker than the submitter finds the record."""
    seen: list[State] = []

    def enqueue(job: Job, step: object) -> None:
        seen.append(services.jobs.get("default", job.id).state)

    monkeypatch.setattr(services.queue, "enqueue", enqueue)
    submit(services, "default", request(store(X).id))
    assert seen == [State.queued]


def test_a_report_is_stored_before_its_job_succeeds(
    queued: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that sees `succeeded` finds the report."""
    job = queued()
    states: list[State] = []
    put = services.reports.put

    def watched(*args: Any) -> bytes:
        states.append(services.jobs.get("default", job.id).state)
        return put(*args)

    monkeypatch.setattr(services.reports, "put", watched)
    perform(services, job.id)
    assert states == [State.running]
    assert services.jobs.get("default", job.id).state is State.succeeded


def test_running_a_job_again_changes_nothing(queued: Any, services: Services) -> None:
    """After it succeeded, failed, or was cancelled; an unknown job is no error."""
    jobs = [queued(), queued(seed=1), queued(seed=2)]
    perform(services, jobs[0].id)
    fail(services, jobs[1].id, Internal("x"))
    cancel(services, "default", jobs[2].id)
    before = [services.jobs.get("default", job.id) for job in jobs]
    for job in jobs:
        perform(services, job.id)
    perform(services, "job_" + "0" * 24)
    assert [services.jobs.get("default", job.id) for job in jobs] == before
    assert [job.state.value for job in before] == ["succeeded", "failed", "cancelled"]


def test_a_job_taken_by_two_workers_has_one_report(
    queued: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both run it to the end at once: one put wins, the job succeeds once."""
    job = queued()
    ready = threading.Barrier(2)
    put = services.reports.put
    stored: list[bytes] = []

    def together(*args: Any) -> bytes:
        ready.wait(20)
        stored.append(put(*args))
        return stored[-1]

    monkeypatch.setattr(services.reports, "put", together)
    workers = [threading.Thread(target=perform, args=(services, job.id)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found = services.jobs.get("default", job.id)
    assert (found.state, found.attempts) == (State.succeeded, 2)
    assert stored[0] == stored[1] == services.reports.get("default", job.request_digest)


def test_a_job_lost_too_often_is_given_up(queued: Any, services: Services) -> None:
    """Three starts without an end; the fourth ends it `worker-lost`."""
    job = queued()
    for attempt in range(services.attempts):
        services.jobs.change(
            job.id,
            lambda one, attempt=attempt: one.moved(State.running, attempts=attempt + 1),
        )
    perform(services, job.id)
    found = services.jobs.get("default", job.id)
    assert (found.state, found.problem.code) == (State.failed, "worker-lost")
    with pytest.raises(JobFailed):
        report_bytes(services, "default", job.id)


def test_a_job_started_again_keeps_its_first_start(queued: Any, services: Services) -> None:
    """Deadlines count from there."""
    job = queued()
    first = now() - timedelta(minutes=5)
    services.jobs.change(job.id, lambda one: one.moved(State.running, started_at=first, attempts=1))
    perform(services, job.id)
    found = services.jobs.get("default", job.id)
    assert (found.started_at, found.attempts) == (first, 2)


def test_a_cancellation_during_the_run_wins(
    queued: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report may be there; the job stays cancelled and shows none."""
    job = queued()
    put = services.reports.put

    def interrupted(*args: Any) -> bytes:
        cancel(services, "default", job.id)
        return put(*args)

    monkeypatch.setattr(services.reports, "put", interrupted)
    perform(services, job.id)
    assert services.jobs.get("default", job.id).state is State.cancelled
    assert report_of(services, services.jobs.get("default", job.id)) == "cancelled"


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (ValueError("secret 0.5"), "internal"), (MemoryError(), "out-of-memory"),
        (TooFewGroups("One."), "too-few-groups"), (RecursionError(), "internal"),
        (FloatingPointError(), "internal"), (KeyError("x"), "internal"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
)  # fmt: skip
def test_whatever_a_check_raises_ends_its_job(
    broken: Exception, code: str, queued: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a code of ours, without the words of the exception."""

    def run(*_: Any) -> None:
        raise broken

    monkeypatch.setattr("service.check.Check.run", run)
    job = queued()
    perform(services, job.id)
    found = services.jobs.get("default", job.id)
    assert (found.state, found.problem.code) == (State.failed, code)
    assert "0.5" not in found.problem.detail
    assert report_of(services, found) == code


def test_whatever_the_store_raises_on_the_way_ends_or_leaves_the_job(
    queued: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage is for the queue to retry, and ends the job at last; what is no outage ends it."""
    away = replace(services, outages=(OSError,), pauses_s=(0.0,))
    job = queued()

    def gone(*_: Any) -> None:
        raise OSError("disk")

    monkeypatch.setattr(services.datasets, "load", gone)
    for _ in range(away.attempts - 1):
        with pytest.raises(OSError, match="disk"):
            perform(away, job.id)
        assert services.jobs.get("default", job.id).state is State.running
    perform(away, job.id)
    found = services.jobs.get("default", job.id)
    assert (found.state, found.problem.code) == (State.failed, "unavailable")
    other = queued(seed=7)
    perform(services, other.id)
    assert services.jobs.get("default", other.id).problem.code == "internal"


def test_a_lost_report_is_our_fault(queued: Any, services: Services) -> None:
    """The job says succeeded and the store has nothing: `internal`, not a 404."""
    job = queued()
    perform(services, job.id)
    lost = replace(services, reports=type(services.reports)())
    with pytest.raises(Internal, match="not in the store"):
        report_bytes(lost, "default", job.id)


def test_an_answer_from_cache_makes_a_job_of_its_own(queued: Any, services: Services) -> None:
    """Ended when it was made, no attempt, nothing queued; another project has no cache."""
    first = queued()
    perform(services, services.queue.waiting.pop())
    again = queued(tags={"a": "b"})
    assert (again.state, again.cached, again.attempts) == (State.succeeded, True, 0)
    assert again.finished_at == again.created_at
    assert again.id != first.id
    assert services.queue.depth() == 0
    assert services.reports.get("other", again.request_digest) is None


def test_a_full_queue_refuses_before_it_records(services: Services, store: Any) -> None:
    """Nothing is left of the refused job."""
    full = replace(services, queue_depth=1)
    dataset = store(X).id
    submit(full, "default", request(dataset))
    with pytest.raises(QueueFull):
        submit(full, "default", request(dataset, seed=1))
    assert len(services.jobs.active()) == 1


def test_inline_data_is_stored_once(services: Services) -> None:
    """The same rows twice are one dataset, the same as an upload of them."""
    jobs = [submit(services, "default", request(X.tolist(), seed=seed)) for seed in (0, 1)]
    ids = {job.inputs["vectors"].dataset for job in jobs}
    assert len(ids) == 1
    found = services.datasets.load("default", ids.pop())
    assert np.array_equal(found.vectors, X)


def test_inline_data_is_validated_like_an_upload(services: Services) -> None:
    """Repeated ids; and a refused draft is discarded."""
    body = {"vectors": X.tolist(), "ids": ["a"] * 12}
    wrong = parse_request({"kind": "geometry", "inputs": {"vectors": body}})
    with pytest.raises(DuplicateIds):
        submit(services, "default", wrong)
    none = {"vectors": {"vectors": X.tolist()}, "groups": {"values": []}}
    with pytest.raises(InvalidRequest, match="no values"):
        submit(services, "default", parse_request({"kind": "geometry", "inputs": none}))


def test_a_column_without_a_dataset_needs_the_role_it_belongs_to(
    services: Services, store: Any
) -> None:
    """`groups` of geometry belongs to `vectors`."""
    body = {"vectors": X.tolist(), "columns": {"g": ["a", "b"] * 6}}
    inputs = {"vectors": {"dataset": store(body).id}, "groups": {"column": "g"}}
    job = submit(services, "default", parse_request({"kind": "geometry", "inputs": inputs}))
    assert job.inputs["groups"].dataset == inputs["vectors"]["dataset"]


def test_the_memory_of_a_job_is_counted_from_its_inputs(services: Services, store: Any) -> None:
    """At least input, the check's budget of twice the input and half a gigabyte, and one more."""
    record = store(X)
    job = submit(services, "default", request(record.id))
    assert job.memory_bytes >= 2 * record.bytes + (512 << 20) + (1 << 30)


def test_projects_do_not_meet(services: Services, store: Any) -> None:
    """A dataset or job of one is unknown in another."""
    record = store(X, project="ours")
    with pytest.raises(UnknownDataset):
        submit(services, "theirs", request(record.id))
    job = submit(services, "ours", request(record.id))
    for act in (cancel, report_bytes):
        with pytest.raises(UnknownJob):
            act(services, "theirs", job.id)


def test_progress_is_told_at_most_twice_a_second(
    queued: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred steps in no time: the first is told, with the seconds left at the pace so far."""
    told: list[Progress] = []
    monkeypatch.setattr(services.jobs, "report_progress", lambda _, progress: told.append(progress))
    clock = iter(np.arange(0, 100, 0.1).tolist())
    monkeypatch.setattr("service.progress.time.monotonic", lambda: next(clock))

    def run(check: Any, context: Any, *_: Any) -> None:
        for i in range(21):
            context.progress("pairs", i, 20)
        raise TooFewGroups("Enough.")

    monkeypatch.setattr("service.check.Check.run", run)
    perform(services, queued().id)
    assert [(one.stage, one.done) for one in told] == [("pairs", i) for i in (0, 5, 10, 15, 20)]
    assert told[0].eta_s is None
    assert told[1].eta_s == pytest.approx(0.5 * 15 / 5)
    assert told[-1].eta_s == 0


def test_an_upload_may_be_named_and_described(services: Services, npy: Any) -> None:
    """What the query says adds to what the body says, and wins."""
    body = {"vectors": [[1.0]], "spec": {"model": "body", "prompt": "p"}, "name": "body"}
    upload = Upload(
        services, "default", "application/json; charset=utf-8", name="query",
        spec=Spec(model="query", revision="1"),
    )  # fmt: skip
    upload.feed(json.dumps(body).encode())
    record, new = upload.finish()
    assert new
    assert record.name == "query"
    assert (record.spec.model, record.spec.revision, record.spec.prompt) == ("query", "1", "p")


def test_an_upload_of_an_unknown_format_leaves_no_draft(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before a byte is taken."""
    dropped: list[str] = []
    monkeypatch.setattr(services.datasets, "discard", lambda draft: dropped.append(draft.id))
    with pytest.raises(UnsupportedFormat):
        Upload(services, "default", "application/zip")
    assert len(dropped) == 1


def test_ending_a_job_twice_keeps_the_first_end(queued: Any, services: Services) -> None:
    """A late failure cannot undo a success, nor the other way round."""
    job = queued()
    perform(services, job.id)
    fail(services, job.id, WorkerLost("late"))
    assert services.jobs.get("default", job.id).state is State.succeeded
    other = queued(seed=1)
    fail(services, other.id, WorkerLost("first"))
    assert cancel(services, "default", other.id).state is State.failed


def test_states_move_forward_only() -> None:
    """The table of allowed moves, against the states' own words."""
    from service.job import ALLOWED

    ended = {state for state in State if state.terminal}
    assert ended == {State.succeeded, State.failed, State.cancelled}
    assert ALLOWED.keys() == set(State) - ended
    assert State.succeeded not in ALLOWED[State.queued]
    assert State.queued not in ALLOWED[State.running]
    assert all(ALLOWED[state] >= {State.failed, State.cancelled} for state in ALLOWED)


def test_a_failed_check_in_this_process_ends_in_its_own_code(tmp_path: Path) -> None:
    """Rows that all equal their mean: `zero-rows` with the rows, as over HTTP, not `internal`."""
    np.save(tmp_path / "same.npy", np.ones((12, 4), np.float32))
    same = {"path": "same.npy"}
    request = {"kind": "cosine_floor", "inputs": {"a": same, "b": same}}
    with pytest.raises(AssayError) as caught:
        run_locally(request, tmp_path, lambda stage, done, total: None)
    assert caught.value.code == "zero-rows"
    assert caught.value.faults[0].count == 12
