"""What is told of jobs, in memory and in Redis: the same, in order, once, and never too much of it."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from service.context import Warned
from service.events import MOST, START, Event, EventId, Kind, first_of, last_of
from service.job import Job, Progress, State, new_id
from service.references import DatasetRef
from service.storage.memory import MemoryJobs
from service.storage.redis import RedisJobs

THREADS = 8
DAY_S = 86_400
FEW = 6
fixtures_are_shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def job(**changes: Any) -> Job:
    """A queued job."""
    fields: dict[str, Any] = {
        "id": new_id("job"), "project": "p", "kind": "geometry", "kind_version": 1,
        "state": State.queued, "inputs": {"vectors": DatasetRef(dataset="ds_1")}, "params": {},
        "seed": 0, "cache": True, "tags": {}, "request_digest": "ab" * 32, "deadline_s": 60,
        "memory_bytes": 1, "created_at": datetime(2026, 11, 29, 12, tzinfo=UTC), **changes,
    }  # fmt: skip
    return Job(**fields)


def created(jobs: Any, **changes: Any) -> str:
    """Id of a new job."""
    one = job(**changes)
    assert jobs.create(one)
    return one.id


def told(jobs: Any, job_id: str, after: EventId = START) -> list[Event]:
    """Everything that was told of a job after that."""
    return list(jobs.events({job_id: after}).get(job_id, []))


def progress(done: int, stage: str = "s") -> Progress:
    return Progress(stage=stage, done=done, total=1000, eta_s=None)


def warned(i: int) -> Warned:
    return Warned(code="c", message=f"ü {i}", where="inputs/vectors")


class Story:
    """A job that is acted on, and what a listener to it should have heard, by hand."""

    def __init__(self, jobs: Any) -> None:
        self.jobs, self.id = jobs, created(jobs)
        self.attempts, self.count = 0, 0
        self.expected: list[tuple[str, dict[str, Any]]] = [("state", self.state("queued"))]

    def state(self, name: str) -> dict[str, Any]:
        return {"state": name, "attempts": self.attempts}

    def act(self, what: str) -> None:
        self.count += 1
        if what == "begin":
            self.attempts += 1
            attempts = self.attempts
            self.jobs.change(self.id, lambda old: old.moved(State.running, attempts=attempts))
            self.expected.append(("state", self.state("running")))
        elif what == "note":
            self.jobs.change(self.id, lambda old: old.model_copy(update={"tags": {"a": "b"}}))
        elif what == "progress":
            self.jobs.report_progress(self.id, progress(self.count))
            self.expected.append(("progress", progress(self.count).model_dump()))
        else:
            self.jobs.report_warning(self.id, warned(self.count))
            self.expected.append(("warning", warned(self.count).model_dump()))

    def end(self, state: State) -> None:
        self.jobs.change(self.id, lambda old: old.moved(state))
        self.expected.append(("state", self.state(state.value)))


def as_heard(events: list[Event]) -> list[tuple[str, dict[str, Any]]]:
    """Kinds and data, without the times of states."""
    found = [(event.kind.value, json.loads(event.data)) for event in events]
    for kind, data in found:
        if kind == "state":
            datetime.fromisoformat(data.pop("at"))
    return found


acts = st.lists(
    st.tuples(st.sampled_from(["begin", "note", "progress", "warning"]), st.booleans()), max_size=30
)


@fixtures_are_shared
@given(acts=acts, ends=st.sampled_from([None, State.failed, State.cancelled]))
def test_what_is_heard_live_is_what_is_replayed_from_any_place(
    jobs: Any, acts: list[tuple[str, bool]], ends: State | None
) -> None:
    """A listener that looks now and then has heard all, once, in order; so has one that comes later."""
    story = Story(jobs)
    live: list[Event] = []
    for what, look in acts:
        story.act(what)
        if look:
            live += told(jobs, story.id, live[-1].id if live else START)
    if ends is not None:
        story.end(ends)
    live += told(jobs, story.id, live[-1].id if live else START)

    assert as_heard(live) == story.expected
    ids = [event.id for event in live]
    assert ids == sorted(set(ids))
    for i, event in enumerate(live):
        assert told(jobs, story.id, event.id) == live[i + 1 :]
    if ends is not None:
        record = jobs.get("p", story.id)
        assert live[-1].id == first_of(record) < last_of(record), "the record knows the last id"


@pytest.fixture(params=["memory", "redis"])
def few(request: pytest.FixtureRequest) -> Any:
    """Job records with a handful of events each."""
    if request.param == "memory":
        return MemoryJobs(FEW)
    return RedisJobs(request.getfixturevalue("redis"), 3600, FEW)


@fixtures_are_shared
@given(acts=st.lists(st.sampled_from(["begin", "note", "warning", *["progress"] * 6]), max_size=30))
def test_of_too_much_the_oldest_progress_goes_first(few: Any, acts: list[str]) -> None:
    """What is left is in order, has the newest of all, and every state while there is progress."""
    story = Story(few)
    for what in [*acts, "progress"]:
        story.act(what)

    found = as_heard(told(few, story.id))
    assert len(found) <= FEW
    places = [story.expected.index(one) for one in found]
    assert places == sorted(places)
    assert found[-1] == story.expected[-1]
    pinned = [one for one in story.expected if one[0] != "progress"]
    if len(pinned) < FEW:
        assert [one for one in found if one[0] != "progress"] == pinned
        newest = [one for one in story.expected if one[0] == "progress"][len(pinned) - FEW :]
        assert [one for one in found if one[0] == "progress"] == newest


def test_a_long_job_is_told_in_bounded_room(redis: Redis) -> None:
    """Eighteen minutes of progress, twice a second: 64 KiB, with the first state still there."""
    jobs = RedisJobs(redis, 3600)
    story = Story(jobs)
    story.act("begin")
    for i in range(18 * 60 * 2):
        jobs.report_progress(story.id, progress(i, "stage of the work"))
    assert redis.memory_usage(f"assay:events:{story.id}", samples=0) < 64 << 10
    found = told(jobs, story.id)
    assert len(found) == MOST
    assert as_heard(found)[:2] == story.expected


def test_nothing_is_told_of_a_job_that_has_ended_or_is_not_there(jobs: Any) -> None:
    """A process that has not heard of the end yet adds nothing behind it."""
    story = Story(jobs)
    story.end(State.cancelled)
    jobs.report_progress(story.id, progress(1))
    jobs.report_warning(story.id, warned(1))
    jobs.report_warning("job_x", warned(1))
    assert as_heard(told(jobs, story.id)) == story.expected
    assert jobs.events({"job_x": START, story.id: told(jobs, story.id)[-1].id}) == {}
    assert jobs.events({}) == {}


def test_a_job_that_is_born_ended_tells_so(jobs: Any) -> None:
    """It was answered from a stored report."""
    one = created(jobs, state=State.succeeded, cached=True)
    assert as_heard(told(jobs, one)) == [("state", {"state": "succeeded", "attempts": 0})]


def test_jobs_are_told_apart(jobs: Any) -> None:
    """One question, many answers, each after its own place."""
    stories = [Story(jobs) for _ in range(3)]
    for i, story in enumerate(stories):
        for _ in range(i):
            story.act("progress")
    after = {story.id: EventId(1, 1) for story in stories}
    found = jobs.events(after)
    assert {job_id: len(events) for job_id, events in found.items()} == {stories[2].id: 1}


def test_eight_threads_are_told_in_one_order(jobs: Any) -> None:
    """A listener beside them hears each event once, never one that comes before what it knows."""
    story = Story(jobs)
    story.act("begin")
    live: list[Event] = []
    busy = threading.Event()

    def listen() -> None:
        while True:
            last_look = busy.is_set()
            live.extend(told(jobs, story.id, live[-1].id if live else START))
            if last_look:
                return

    def tell(i: int) -> None:
        for k in range(25):
            jobs.report_warning(story.id, warned(100 * i + k))
            if k % 10 == 0:
                jobs.change(story.id, lambda old: old.model_copy(update={"seed": old.seed + 1}))

    listener = threading.Thread(target=listen)
    tellers = [threading.Thread(target=tell, args=(i,)) for i in range(THREADS)]
    for thread in (listener, *tellers):
        thread.start()
    for thread in tellers:
        thread.join()
    busy.set()
    listener.join()

    said = [json.loads(event.data)["message"] for event in live if event.kind is Kind.warning]
    assert sorted(said) == sorted(warned(100 * i + k).message for i in range(8) for k in range(25))
    for i in range(THREADS):
        own = [one for one in said if int(one.split()[1]) // 100 == i]
        assert own == sorted(own, key=lambda one: int(one.split()[1]))
    assert [event.id for event in live] == sorted({event.id for event in live})
    assert told(jobs, story.id) == live


def test_no_line_of_data_can_be_cut(jobs: Any) -> None:
    """Some readers take U+2028 or U+0085 for the end of a line."""
    one = created(jobs)
    stage = "a\u2028b\x85c\nd\re"
    jobs.report_progress(one, progress(1, stage))
    data = told(jobs, one)[-1].data
    assert data.isascii()
    assert data.splitlines() == [data]
    assert json.loads(data)["stage"] == stage


def test_events_expire_with_their_job(redis: Redis) -> None:
    """A day after it has ended; those of a job that goes on stay."""
    jobs = RedisJobs(redis, 3600)
    story = Story(jobs)
    story.act("progress")
    key = f"assay:events:{story.id}"
    assert redis.ttl(key) == -1
    story.end(State.failed)
    assert DAY_S - 60 < redis.ttl(key) <= DAY_S
    jobs.report_progress(story.id, progress(1))
    assert redis.ttl(key) <= DAY_S
    born = created(jobs, state=State.succeeded)
    assert DAY_S - 60 < redis.ttl(f"assay:events:{born}") <= DAY_S


def test_a_change_and_what_it_tells_are_one_step(redis: Redis) -> None:
    """A record that is not the newest changes nothing and tells nothing; each success is told."""
    jobs = RedisJobs(redis, 3600)
    story = Story(jobs)
    won: list[Job] = []

    def begin() -> None:
        won.extend(
            jobs.change(story.id, lambda old: old.moved(State.running, attempts=old.attempts + 1))
            for _ in range(20)
        )

    threads = [threading.Thread(target=begin) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = told(jobs, story.id)
    assert [json.loads(one.data)["attempts"] for one in found] == list(range(len(won) + 1))
    assert [one.id for one in found] == [EventId(i + 1, 0) for i in range(len(won) + 1)]
