"""Streams of events from a real server on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import resource
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import ConnectionError as NoConnection

from api.keys import Keys, Scope, create_key, revoke_key
from api.main import create_app
from api.streams import Pace
from service.context import Warned
from service.events import MOST, last_of
from service.job import Job, Progress, State, new_id, now
from service.operations import Services, cancel
from service.references import DatasetRef
from service.storage.memory import memory_services
from service.storage.redis import RedisJobs

QUICK = Pace(look_s=0.02, check_s=0.1, heartbeat_s=0.2, send_s=0.5)
MANY = 200
AT_ONCE_S = 5.0


@dataclass
class Live:
    """A server in a thread, and its application."""

    app: Any
    url: str
    services: Services

    def of(self, job_id: str) -> str:
        return f"{self.url}/v1/jobs/{job_id}/events"

    def heard(self, job_id: str, known: str | None = None) -> list[dict[str, Any]]:
        """Everything a listener hears until the stream ends."""
        headers = {} if known is None else {"Last-Event-ID": known}
        answer = httpx.get(self.of(job_id), headers=headers, timeout=30)
        assert answer.status_code == 200, answer.text
        return parsed(answer.text)


def parsed(text: str) -> list[dict[str, Any]]:
    """Events of a whole stream, by the rules of the HTML standard; comments are left out."""
    found = []
    assert text.endswith("\n\n")
    for block in text.removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line[0] != ":")
        if fields:
            assert fields.keys() == {"id", "event", "data"}
            found.append({**fields, "data": json.loads(fields["data"])})
    return found


def told(events: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """What a person would note of them."""
    short = {
        "state": lambda data: data["state"],
        "progress": lambda data: data["done"],
        "warning": lambda data: data["message"],
        "done": lambda data: data["state"],
    }
    return [(one["event"], short[one["event"]](one["data"])) for one in events]


def within(look: Callable[[], Any], seconds: float = AT_ONCE_S) -> Any:
    """The first true answer."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
    return found


@pytest.fixture
def serve() -> Iterator[Callable[..., Live]]:
    """Serve an application over any services."""
    stops: list[Callable[[], None]] = []

    def start(services: Services, keys: Keys | None = None, pace: Pace = QUICK) -> Live:
        app = create_app(services, keys, pace)
        server = uvicorn.Server(
            uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=2)
        )
        thread = threading.Thread(target=server.run)
        thread.start()
        within(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]

        def stop() -> None:
            app.state.streams.close()
            server.should_exit = True
            thread.join()

        stops.append(stop)
        return Live(app, f"http://127.0.0.1:{port}", services)

    yield start
    for stop in stops:
        stop()


@pytest.fixture(params=["memory", "redis"])
def live(request: pytest.FixtureRequest, serve: Callable[..., Live]) -> Live:
    """A server on memory, and one on Redis."""
    if request.param == "memory":
        return serve(memory_services())
    return serve(memory_services(jobs=RedisJobs(request.getfixturevalue("redis"), 3600)))


def job(services: Services, project: str = "default", **changes: Any) -> str:
    """Id of a new job."""
    one = Job(
        id=new_id("job"), project=project, kind="geometry", kind_version=1, state=State.queued,
        inputs={"vectors": DatasetRef(dataset="ds_1")}, params={}, seed=0, cache=True, tags={},
        request_digest="ab" * 32, deadline_s=60, memory_bytes=1, created_at=now(),
    )  # fmt: skip
    services.jobs.create(one.model_copy(update=changes))
    return one.id


def begin(services: Services, job_id: str) -> None:
    services.jobs.change(
        job_id, lambda old: old.moved(State.running, attempts=old.attempts + 1, started_at=now())
    )


def step(services: Services, job_id: str, done: int) -> None:
    services.jobs.report_progress(job_id, Progress(stage="s", done=done, total=9, eta_s=None))


def warn(services: Services, job_id: str, message: str) -> None:
    services.jobs.report_warning(job_id, Warned(code="c", message=message, where="x"))


def end(services: Services, job_id: str, state: State = State.succeeded) -> None:
    assert services.jobs.change(job_id, lambda old: old.moved(state))


STORY: list[tuple[str, Any]] = [
    ("state", "queued"), ("state", "running"), ("progress", 1), ("warning", "ü"), ("progress", 2),
    ("state", "running"), ("progress", 3), ("state", "succeeded"), ("done", "succeeded"),
]  # fmt: skip


def tell_story(services: Services, job_id: str, pause: Callable[[], None]) -> None:
    """All of it but the first; a process is lost on the way."""
    acts: list[Callable[[], None]] = [
        lambda: begin(services, job_id),
        lambda: step(services, job_id, 1),
        lambda: warn(services, job_id, "ü"),
        lambda: step(services, job_id, 2),
        lambda: begin(services, job_id),
        lambda: step(services, job_id, 3),
        lambda: end(services, job_id),
    ]
    for act in acts:
        pause()
        act()


def test_a_job_is_heard_while_it_goes_on_and_ends_with_the_job_as_it_is(live: Live) -> None:
    """Each event at once, in order; what `done` says is what a poll says; the stream then ends."""
    one = job(live.services)
    at: dict[str, float] = {}
    with httpx.stream("GET", live.of(one), timeout=30) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-accel-buffering"] == "no"
        assert "content-length" not in answer.headers
        story = threading.Thread(
            target=tell_story, args=(live.services, one, lambda: time.sleep(0.1))
        )
        story.start()
        text = ""
        for piece in answer.iter_text():
            text += piece
            for event in parsed(text):
                at.setdefault(event["id"], time.monotonic())
        story.join()
    found = parsed(text)
    assert told(found) == STORY
    assert at[found[-3]["id"]] - at[found[1]["id"]] > 0.3, "it was told step by step"
    assert found[-1]["data"] == httpx.get(f"{live.url}/v1/jobs/{one}").json()
    assert found[-1]["data"]["links"]["report"] == f"/v1/jobs/{one}/report"


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(1, len(STORY) - 1), late=st.booleans())
def test_a_listener_that_comes_back_hears_the_rest(live: Live, cut: int, late: bool) -> None:
    """Cut off anywhere, while the job goes on or long after: live and replay are one sequence."""
    one = job(live.services)
    first: list[dict[str, Any]] = []
    with httpx.stream("GET", live.of(one), timeout=30) as answer:
        pause = (lambda: None) if late else (lambda: time.sleep(0.01))
        story = threading.Thread(target=tell_story, args=(live.services, one, pause))
        story.start()
        text = ""
        for piece in answer.iter_text():
            text += piece
            if len(first := parsed(text)) >= cut:
                break
    first = first[:cut]
    if late:
        story.join()
    rest = live.heard(one, first[-1]["id"])
    story.join()
    assert told(first + rest) == STORY
    assert first + rest == live.heard(one)
    assert live.heard(one, first[-1]["id"]) == rest


def test_a_job_that_is_over_is_told_at_once_and_a_listener_that_knows_is_sent_away(
    live: Live,
) -> None:
    """Browsers come back whenever a stream has ended, until they get 204."""
    one = job(live.services)
    tell_story(live.services, one, lambda: None)
    started = time.monotonic()
    found = live.heard(one)
    assert time.monotonic() - started < 1
    assert told(found) == STORY
    last = found[-1]["id"]
    for ways in ({"headers": {"Last-Event-ID": last}}, {"params": {"last_event_id": last}}):
        answer = httpx.get(live.of(one), **ways)
        assert (answer.status_code, answer.content) == (204, b"")
    assert told(live.heard(one, found[-2]["id"])) == STORY[-1:]
    query = httpx.get(live.of(one), params={"last_event_id": found[-3]["id"]})
    assert told(parsed(query.text)) == STORY[-2:]


def test_what_the_store_has_forgotten_of_the_end_stands_in_the_record(
    serve: Callable[..., Live], redis: Redis
) -> None:
    """A day later, or after a loss beside an open stream: the end has the same ids."""
    live = serve(memory_services(jobs=RedisJobs(redis, 3600)))
    one = job(live.services)
    begin(live.services, one)
    end(live.services, one, State.failed)
    ids = [event["id"] for event in live.heard(one)[-2:]]
    redis.delete(f"assay:events:{one}")
    found = live.heard(one)
    assert told(found) == [("state", "failed"), ("done", "failed")]
    assert [event["id"] for event in found] == ids
    assert httpx.get(live.of(one), headers={"Last-Event-ID": ids[-1]}).status_code == 204

    other = job(live.services)
    with httpx.stream("GET", live.of(other), timeout=30) as answer:
        pieces = answer.iter_text()
        text = next(pieces)
        record = redis.hgetall(f"assay:job:{other}")
        end(live.services, other, State.cancelled)
        redis.delete(f"assay:events:{other}")
        text += "".join(pieces)
    assert record
    assert told(parsed(text)) == [
        ("state", "queued"),
        ("state", "cancelled"),
        ("done", "cancelled"),
    ]


def test_a_stream_ends_where_its_job_vanishes(serve: Callable[..., Live], redis: Redis) -> None:
    """Nobody listens for ever to what is not there; to come back is 404."""
    live = serve(memory_services(jobs=RedisJobs(redis, 3600)))
    one = job(live.services)
    with httpx.stream("GET", live.of(one), timeout=30) as answer:
        pieces = answer.iter_text()
        next(pieces)
        redis.flushall()
        assert all(piece.startswith(":") for piece in pieces)
    assert httpx.get(live.of(one), headers={"Last-Event-ID": "1-0"}).status_code == 404


def test_a_cancelled_job_is_told_to_its_listeners(live: Live) -> None:
    """Whoever cancels it."""
    one = job(live.services)
    begin(live.services, one)
    threading.Timer(0.1, cancel, (live.services, "default", one)).start()
    found = live.heard(one)
    assert told(found)[-2:] == [("state", "cancelled"), ("done", "cancelled")]
    assert found[-1]["data"]["result"] is None


def test_silence_is_broken_by_comments(live: Live) -> None:
    """Five in a second and a half, of .2 s each; they are no events."""
    one = job(live.services)
    beats: list[float] = []
    with httpx.stream("GET", live.of(one), timeout=30) as answer:
        for line in answer.iter_lines():
            if line.startswith(":"):
                beats.append(time.monotonic())
            if len(beats) == 6:
                break
    pauses = [b - a for a, b in itertools.pairwise(beats)]
    assert min(pauses) > 0.15
    assert max(pauses) < 1.0


@pytest.mark.parametrize(
    ("given", "place"),
    [({"headers": {"Last-Event-ID": "x"}}, "/header/last-event-id"),
     ({"params": {"last_event_id": "1-2-3"}}, "/query/last_event_id")],
)  # fmt: skip
def test_a_foreign_id_is_refused_with_its_place(
    given: dict[str, Any], place: str, serve: Callable[..., Live], refusal: Any
) -> None:
    """It would be answered with who knows what."""
    live = serve(memory_services())
    one = job(live.services)
    found = refusal(httpx.get(live.of(one), **given), 422, "invalid-request")
    assert [fault["pointer"] for fault in found["errors"]] == [place]


def test_an_id_of_a_record_that_was_lost_is_answered_with_everything(live: Live) -> None:
    """A store that was killed may have lost its last second."""
    one = job(live.services)
    tell_story(live.services, one, lambda: None)
    assert told(live.heard(one, "99-1")) == STORY


def test_a_stream_is_of_its_project_and_key(
    serve: Callable[..., Live], tmp_path: Path, refusal: Any
) -> None:
    """Others get 404 as for a job that is not; without a key 401; a revoked key loses its stream."""
    file = tmp_path / "keys"
    made = {name: create_key(file, name, [Scope.read]) for name in ("ours", "theirs")}
    live = serve(memory_services(), Keys(file))
    one = job(live.services, "ours")

    def sent(name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {made[name]}"}

    refusal(httpx.get(live.of(one), headers=sent("theirs")), 404, "unknown-job")
    refusal(httpx.get(live.of("job_x"), headers=sent("ours")), 404, "unknown-job")
    refusal(httpx.get(live.of(one)), 401, "unauthorised")
    with httpx.stream("GET", live.of(one), headers=sent("ours"), timeout=30) as answer:
        pieces = answer.iter_text()
        assert "queued" in next(pieces)
        revoke_key(file, made["ours"].split("_")[1])
        started = time.monotonic()
        rest = "".join(pieces)
    assert time.monotonic() - started < 2
    assert "event:" not in rest
    assert live.app.state.streams.open == 0


def test_listeners_that_go_leave_nothing(live: Live) -> None:
    """Fifty come, hear something and go: no log, no reader, no task, while the job goes on."""
    one = job(live.services)
    for _ in range(50):
        with httpx.stream("GET", live.of(one), timeout=30) as answer:
            next(answer.iter_text())
    streams = live.app.state.streams
    within(lambda: streams.open == 0)
    within(lambda: not streams._logs and streams._reader is None)
    end(live.services, one, State.failed)
    assert told(live.heard(one))[-1] == ("done", "failed")


class Counted:
    """Job records that count who asks them for what."""

    def __init__(self, jobs: Any) -> None:
        self._jobs, self.threads, self.asked = jobs, set(), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jobs, name)

    def events(self, after: Any) -> Any:
        self.asked += 1
        self.threads.add(threading.get_ident())
        return self._jobs.events(after)


async def listen(url: str, client: httpx.AsyncClient, ready: Callable[[], None]) -> str:
    text = ""
    async with client.stream("GET", url) as answer:
        assert answer.status_code == 200
        async for piece in answer.aiter_text():
            if not text:
                ready()
            text += piece
    return text


@contextlib.asynccontextmanager
async def many_listeners(urls: list[str]) -> AsyncIterator[list[asyncio.Task[str]]]:
    """All of them, each after it has heard something."""
    heard = 0
    all_of_them = asyncio.Event()

    def ready() -> None:
        nonlocal heard
        heard += 1
        if heard == len(urls):
            all_of_them.set()

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        tasks = [asyncio.create_task(listen(url, client, ready)) for url in urls]
        await asyncio.wait_for(all_of_them.wait(), 30)
        yield tasks


def test_two_hundred_streams_on_one_process_do_not_hold_up_polls(
    serve: Callable[..., Live], redis: Redis, record_property: Any
) -> None:
    """Half of one job, half of a hundred: one reader on one thread, and polls are answered."""
    counted = Counted(RedisJobs(redis, 3600))
    live = serve(memory_services(jobs=counted), pace=Pace())
    shared = job(live.services)
    ids = [shared] * (MANY // 2) + [job(live.services) for _ in range(MANY // 2)]
    before = len(redis.client_list())

    async def scenario() -> tuple[list[str], list[float]]:
        async with many_listeners([live.of(one) for one in ids]) as tasks:
            assert live.app.state.streams.open == MANY
            took = []
            async with httpx.AsyncClient(timeout=30) as client:
                for done in range(50):
                    for one in (shared, ids[-1]):
                        await asyncio.to_thread(step, live.services, one, done)
                    started = time.perf_counter()
                    answer = await client.get(f"{live.url}/v1/jobs/{shared}")
                    took.append(time.perf_counter() - started)
                    assert answer.status_code == 200
                metrics = (await client.get(f"{live.url}/metrics")).text
                assert f"assay_event_streams {MANY}.0" in metrics
            for one in set(ids):
                await asyncio.to_thread(tell_story, live.services, one, lambda: None)
            return await asyncio.wait_for(asyncio.gather(*tasks), 60), took

    texts, took = asyncio.run(scenario())
    record_property("poll_median_s", sorted(took)[25])
    assert len(counted.threads) == 1
    assert len(redis.client_list()) - before < 40, "connections of the pool, not one a stream"
    assert sorted(took)[25] < 0.1
    assert max(took) < 1.0
    for text, one in zip(texts, ids, strict=True):
        found = told(parsed(text))
        assert found[-len(STORY) + 1 :] == STORY[1:]
        assert len(found) == len(STORY) + (50 if one in (shared, ids[-1]) else 0)
    within(lambda: live.app.state.streams.open == 0)


def test_more_streams_than_a_process_bears_are_refused_and_polls_go_on(
    serve: Callable[..., Live], refusal: Any
) -> None:
    """503 with a time to try again; a stream that ends makes room."""
    live = serve(memory_services(), pace=Pace(look_s=0.02, most=2))
    one, other = job(live.services), job(live.services)
    with (
        httpx.stream("GET", live.of(one)) as first,
        httpx.stream("GET", live.of(other)) as second,
    ):
        pieces = [first.iter_text(), second.iter_text()]
        assert all("queued" in next(one) for one in pieces)
        answer = httpx.get(live.of(one))
        refusal(answer, 503, "unavailable")
        assert int(answer.headers["retry-after"]) > 0
        assert httpx.get(f"{live.url}/v1/jobs/{one}").status_code == 200
    within(lambda: live.app.state.streams.open == 0)
    end(live.services, one, State.failed)
    assert told(live.heard(one))[-1] == ("done", "failed")


def test_a_listener_that_takes_nothing_is_left_and_comes_back_where_it_was(
    serve: Callable[..., Live],
) -> None:
    """Its buffer is bounded, others hear all at once meanwhile, and nothing is lost to it."""
    live = serve(memory_services())
    streams = live.app.state.streams
    one = job(live.services)
    begin(live.services, one)
    port = int(live.url.rpartition(":")[2])
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", port))
        slow.sendall(f"GET /v1/jobs/{one}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        within(lambda: live.app.state.streams.open == 1)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sent, held = 0, 0
        stage = "x" * 20_000
        started = time.monotonic()
        while live.app.state.streams.open and time.monotonic() - started < 60:
            sent += 1
            live.services.jobs.report_progress(
                one, Progress(stage=stage, done=sent, total=10**6, eta_s=None)
            )
            held = max([held, *(len(one.events) for one in list(streams._logs.values()))])
            time.sleep(0.001)
        assert live.app.state.streams.open == 0, "it was not left"
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - grown
        assert grown < 100 << 10, "KiB"
        assert MOST / 2 < held <= MOST
        slow.settimeout(10)
        read = b""
        with contextlib.suppress(ConnectionError, TimeoutError):
            while piece := slow.recv(1 << 16):
                read += piece
    ids = [line.split()[1].decode() for line in read.split(b"\n") if line.startswith(b"id: ")]
    assert ids
    end(live.services, one)
    rest = live.heard(one, ids[-1])
    assert told(rest)[-2:] == [("state", "succeeded"), ("done", "succeeded")]
    assert rest[0]["id"] != ids[-1]


def test_what_is_told_between_two_reads_is_not_lost(serve: Callable[..., Live]) -> None:
    """The job goes on and ends just after its events were read, before anything else is looked at."""
    one = ""

    class Between(Counted):
        def events(self, after: Any) -> Any:
            found = self._jobs.events(after)
            if self.asked == 0:
                self.asked += 1
                tell_story(live.services, one, lambda: None)
            return found

    live = serve(memory_services(jobs=Between(memory_services().jobs)), pace=Pace(check_s=0.0))
    one = job(live.services)
    assert told(live.heard(one)) == STORY


def test_a_reader_that_cannot_read_ends_no_stream(serve: Callable[..., Live]) -> None:
    """The store is away for a while: comments go on, and then what was told meanwhile."""
    services = memory_services()
    away = threading.Event()

    class Flaky(Counted):
        def events(self, after: Any) -> Any:
            if away.is_set():
                raise NoConnection("away")
            return super().events(after)

    live = serve(memory_services(jobs=Flaky(services.jobs)))
    one = job(live.services)
    with httpx.stream("GET", live.of(one), timeout=30) as answer:
        pieces = answer.iter_text()
        text = next(pieces)
        away.set()
        tell_story(live.services, one, lambda: None)
        beats = [next(pieces) for _ in range(3)]
        assert all(beat.startswith(":") for beat in beats)
        away.clear()
        text += "".join(pieces)
    assert told(parsed(text)) == STORY


def test_a_reader_that_breaks_keeps_nobody_waiting(serve: Callable[..., Live]) -> None:
    """A fault is no reason to hang: streams end, and to come back starts it again."""

    class Broken(Counted):
        broken = True

        def events(self, after: Any) -> Any:
            if self.broken:
                raise RuntimeError("a fault")
            return super().events(after)

    jobs = Broken(memory_services().jobs)
    live = serve(memory_services(jobs=jobs))
    one = job(live.services)
    assert httpx.get(live.of(one), timeout=10).text == ""
    jobs.broken = False
    end(live.services, one, State.failed)
    assert told(live.heard(one))[-1] == ("done", "failed")


def test_no_stream_is_endless(serve: Callable[..., Live]) -> None:
    """After its time a listener has to come again, and misses nothing."""
    live = serve(memory_services(), pace=Pace(look_s=0.02, longest_s=0.3))
    one = job(live.services)
    found = live.heard(one)
    assert told(found) == STORY[:1]
    tell_story(live.services, one, lambda: None)
    assert told(live.heard(one, found[-1]["id"])) == STORY[1:]


def test_a_process_that_is_to_end_ends_its_streams_and_takes_no_more(
    serve: Callable[..., Live], refusal: Any
) -> None:
    """In order, with what was told until then; polls are answered to the last."""
    live = serve(memory_services())
    one = job(live.services)
    with httpx.stream("GET", live.of(one), timeout=30) as answer:
        pieces = answer.iter_text()
        text = next(pieces)
        live.app.state.streams.close()
        text += "".join(pieces)
    assert told(parsed(text)) == STORY[:1]
    refusal(httpx.get(live.of(one)), 503, "unavailable")
    assert httpx.get(f"{live.url}/v1/jobs/{one}").status_code == 200


def test_the_last_id_of_a_stream_is_what_the_record_says(live: Live) -> None:
    one = job(live.services)
    tell_story(live.services, one, lambda: None)
    record = live.services.jobs.get("default", one)
    assert live.heard(one)[-1]["id"] == str(last_of(record))
