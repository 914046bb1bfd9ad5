"""The door as a client sees it: real HTTP messages to the application, everything else in memory."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from api.keys import Keys
from api.main import create_app
from service.operations import Services, perform
from service.request import BY_KIND
from service.storage.memory import MemoryQueue

PROBLEM = {"type", "title", "status", "detail", "code", "errors"}
WITHIN_S = 30.0


class Door:
    """A client whose requests run on an event loop of their own, as they do behind a server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, app: Any, headers: dict[str, str]) -> None:
        self._loop = loop
        self.app = app
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app, raise_app_exceptions=False),
            base_url="http://localhost",
            headers=headers,
        )

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WITHIN_S)

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._wait(self._client.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.send("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.send("POST", path, **options)

    def delete(self, path: str, **options: Any) -> httpx.Response:
        return self.send("DELETE", path, **options)

    def close(self) -> None:
        self._wait(self._client.aclose())


@pytest.fixture(autouse=True)
def unlogged(quiet: None) -> None:
    """Thousands of requests without a log."""


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own."""
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    yield running
    asyncio.run_coroutine_threadsafe(running.shutdown_default_executor(), running).result(WITHIN_S)
    running.call_soon_threadsafe(running.stop)
    thread.join()
    running.close()


@pytest.fixture
def knock(loop: asyncio.AbstractEventLoop, services: Services) -> Iterator[Callable[..., Door]]:
    """Open the door of these, or other, services, with or without keys."""
    opened: list[Door] = []

    def open_door(
        on: Services = services, keys: Keys | None = None, key: str | None = None
    ) -> Door:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        opened.append(Door(loop, create_app(on, keys), headers))
        return opened[-1]

    yield open_door
    for door in opened:
        door.close()


@pytest.fixture
def door(knock: Callable[..., Door]) -> Door:
    """The door of the in-memory service, without keys."""
    return knock()


@pytest.fixture
def waiting(services: Services) -> list[str]:
    """Ids of the jobs in the queue."""
    assert isinstance(services.queue, MemoryQueue)
    return services.queue.waiting


@pytest.fixture
def work(services: Services, waiting: list[str]) -> Callable[[], None]:
    """Run every job that waits, here and now."""

    def drain() -> None:
        while waiting:
            perform(services, waiting.pop(0))

    return drain


@pytest.fixture
def hands(services: Services, waiting: list[str]) -> Iterator[None]:
    """A worker beside the test: it takes jobs from the queue and runs them."""
    stop = threading.Event()

    def toil() -> None:
        while not stop.wait(0.005):
            while waiting:
                perform(services, waiting.pop(0))

    thread = threading.Thread(target=toil)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.fixture
def upload(door: Door, npy: Callable[[Any], bytes]) -> Callable[..., dict[str, Any]]:
    """Upload an array, a JSON body (a dict) or CSV text; the dataset."""

    def send(body: Any, at: Door = door, **query: str) -> dict[str, Any]:
        if isinstance(body, dict):
            kind, data = "application/json", json.dumps(body).encode()
        elif isinstance(body, str):
            kind, data = "text/csv", body.encode()
        else:
            kind, data = "application/x-npy", npy(np.asarray(body))
        answer = at.post("/v1/datasets", content=data, params=query, headers={"Content-Type": kind})
        assert answer.status_code in (200, 201), answer.text
        return dict(answer.json())

    return send


@pytest.fixture
def ask(door: Door) -> Callable[..., httpx.Response]:
    """Submit a job; roles may be given as dataset ids."""

    def submit(
        kind: str,
        inputs: dict[str, Any],
        params: dict[str, Any] | None = None,
        at: Door = door,
        headers: dict[str, str] | None = None,
        **rest: Any,
    ) -> httpx.Response:
        roles = {
            role: {"dataset": value} if isinstance(value, str) else value
            for role, value in inputs.items()
        }
        body = {"kind": kind, "inputs": roles, "params": params or {}, **rest}
        return at.post("/v1/jobs", json=body, headers=headers or {})

    return submit


@pytest.fixture
def report(
    door: Door,
    ask: Callable[..., httpx.Response],
    work: Callable[[], None],
    strict: Callable[[bytes], Any],
) -> Callable[..., dict[str, Any]]:
    """Submit a job, run it, and read its report."""

    def run(kind: str, inputs: dict[str, Any], *rest: Any, **more: Any) -> dict[str, Any]:
        job = ask(kind, inputs, *rest, **more)
        assert job.status_code in (200, 202), job.text
        work()
        answer = door.get(job.json()["links"]["report"])
        assert answer.status_code == 200, answer.text
        return dict(strict(answer.content))

    return run


@pytest.fixture(scope="session")
def roles() -> Callable[..., dict[str, Any]]:
    """The required inputs of any check: these datasets of n rows in turn, six labels in turn."""

    def fill(kind: str, n: int, *datasets: str) -> dict[str, Any]:
        turns = itertools.cycle(datasets)
        return {
            slot.name: {"values": [f"g{i % 6}" for i in range(n)]}
            if slot.kind == "column"
            else {"values": [[str(i)] for i in range(n)]}
            if slot.kind == "relevance"
            else {"columns": {"condition": [*"aabb"], "seed": [0, 1] * 2, "score": [4, 1, 2, 2]}}
            if slot.kind == "table"
            else [{part: {"dataset": one} for part in slot.needed} for one in datasets]
            if slot.several
            else [{"dataset": one} for one in (datasets * slot.few)[: max(slot.few, len(datasets))]]
            if slot.most is not None
            else {"dataset": next(turns)}
            for slot in BY_KIND[kind].slots
            if slot.required
        }

    return fill


@pytest.fixture(scope="session")
def small() -> Callable[[str, int], dict[str, Any]]:
    """Parameters of any check that suit n rows."""

    def fill(kind: str, n: int) -> dict[str, Any]:
        fits: dict[str, Any] = {"ks": [k for k in (1, 2, 10) if k <= n], "dims": [3]}
        fits |= {"severities": [0.5]}
        fits |= {"contrasts": [{"a": "a", "b": "b"}], "metrics": ["score"], "correlation": 0.3}
        return {name: fits[name] for name in fits if name in BY_KIND[kind].params.model_fields}

    return fill


@pytest.fixture
def refusal(strict: Callable[[bytes], Any]) -> Callable[..., dict[str, Any]]:
    """Check that an answer is a problem of this status and code; the problem."""

    def check(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
        assert (answer.status_code, answer.headers["content-type"]) == (
            status,
            "application/problem+json",
        ), answer.text[:1000]
        found: dict[str, Any] = strict(answer.content)
        assert found.keys() == PROBLEM
        assert (found["code"], found["status"]) == (code, status), found
        assert found["type"] == f"/problems/{code}"
        assert found["title"]
        assert found["detail"]
        return found

    return check


@pytest.fixture
def some_rows() -> NDArray[np.float32]:
    """Forty rows of eight normal numbers."""
    return np.random.default_rng(40).normal(size=(40, 8)).astype(np.float32)
