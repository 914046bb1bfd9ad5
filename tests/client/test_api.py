"""The client against a real socket."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import inspect
import io
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import assay_client
import httpx
import numpy as np
import pytest
from assay_client import Assay, AssayError, AsyncAssay
from assay_client.problems import Fault, Mistake

from .conftest import Answer, FakeServer, job, problem, report


class Awaited:
    """An AsyncAssay whose methods are awaited here, so that it passes the same tests."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self._client = AsyncAssay(*given, **more)
        self._loop = asyncio.new_event_loop()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return lambda *given, **more: self._loop.run_until_complete(method(*given, **more))

    def __enter__(self) -> Awaited:
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


@pytest.fixture(params=[Assay, Awaited])
def connect(request: pytest.FixtureRequest) -> Any:
    """Both clients: the same tests, because they are the same flows."""
    return request.param


@pytest.fixture
def client(server: FakeServer, connect: Any) -> Any:
    with connect(server.url, "secret") as one:
        yield one


def test_an_upload_streams_the_file_with_its_length_and_tells_how_far_it_is(
    client: Any, server: FakeServer, vectors: Path
) -> None:
    told: list[tuple[str, int, int]] = []

    dataset = client.upload(vectors, progress=lambda *now: told.append(now))

    (asked,) = server.calls("POST /v1/datasets")
    size = vectors.stat().st_size
    assert dataset["id"] == "ds_1"
    assert asked.body == vectors.read_bytes()
    assert asked.headers["content-type"] == "application/x-npy"
    assert asked.headers["content-length"] == str(size)
    assert "transfer-encoding" not in asked.headers
    assert asked.headers["authorization"] == "Bearer secret"
    assert asked.query == {"name": "rows.npy"}
    assert told == [("rows.npy", min(i << 20, size), size) for i in (1, 2, 3)]


def test_an_upload_asks_first_and_says_what_it_sends(
    client: Any, server: FakeServer, vectors: Path
) -> None:
    """The digest of the very bytes, by which the server can say that they are there."""
    client.upload(vectors, model="e5", revision="2")

    digest = hashlib.sha256(vectors.read_bytes()).digest()
    asked, sent = server.asked
    encoder = {"model": "e5", "revision": "2"}
    assert (asked.method, asked.path) == ("GET", "/v1/datasets")
    assert asked.query == {
        "body_sha256": digest.hex(), "content_type": "application/x-npy", **encoder,
    }  # fmt: skip
    assert sent.headers["content-digest"] == f"sha-256=:{base64.b64encode(digest).decode()}:"
    assert sent.query == {"name": "rows.npy", **encoder}


def test_what_the_project_has_already_is_not_sent(
    server: FakeServer, vectors: Path, connect: Any
) -> None:
    known = {"id": "ds_7", "n": 1}
    server.on("GET /v1/datasets", Answer(200, {"items": [known], "next_cursor": None}))
    told: list[str] = []
    with connect(server.url, tell=told.append) as client:
        assert client.upload(vectors) == known
        assert client.upload_files({"a": {"path": str(vectors)}}) == {"a": {"dataset": "ds_7"}}

    assert server.calls("POST /v1/datasets") == []
    assert told == ["rows.npy is there already"] * 2


@pytest.mark.parametrize(
    ("status", "code"), [(403, "forbidden"), (404, "unknown-path"), (405, "method-not-allowed")]
)
def test_an_upload_needs_no_leave_to_look(
    client: Any, server: FakeServer, vectors: Path, status: int, code: str
) -> None:
    """A key with `submit` alone, and a server that keeps no list, take the upload as it is."""
    server.on("GET /v1/datasets", problem(status, code, "no"))

    assert client.upload(vectors)["id"] == "ds_1"


def test_an_unknown_key_is_said_before_anything_is_sent(
    client: Any, server: FakeServer, vectors: Path
) -> None:
    server.on("GET /v1/datasets", problem(401, "unauthorised", "no"))

    with pytest.raises(AssayError, match="unauthorised"):
        client.upload(vectors)
    assert server.uploads == 0


def test_a_csv_and_an_open_file_are_uploaded_as_what_they_are(
    client: Any, server: FakeServer, labels: Path
) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.eye(3, dtype=np.float32))
    buffer.seek(0)

    client.upload(labels, "labels")
    client.upload(buffer)

    csv, npy = server.calls("POST /v1/datasets")
    assert (csv.headers["content-type"], csv.query) == ("text/csv", {"name": "labels"})
    assert (npy.headers["content-type"], npy.query) == ("application/x-npy", {})
    assert npy.body == buffer.getvalue()


PARQUET, ARROW = "application/vnd.apache.parquet", "application/vnd.apache.arrow.stream"


@pytest.mark.parametrize(
    ("name", "first", "kind"),
    [
        ("rows.parquet", b"PAR1", PARQUET),
        ("ROWS.PARQUET", b"PAR1", PARQUET),
        ("rows.arrow", b"ARROW1\0\0", ARROW),
        ("rows.arrows", b"\xff\xff\xff\xff\1\0\0\0", ARROW),
    ],
)
def test_a_table_is_sent_as_it_is_with_the_columns_it_is_read_by(
    client: Any, server: FakeServer, tmp_path: Path, name: str, first: bytes, kind: str
) -> None:
    """From a path and from an open file; asked for under the same names first."""
    (tmp_path / name).write_bytes(first + b"rows")
    columns = {"vector_column": "v", "id_column": "doc"}
    client.upload(tmp_path / name, **columns)
    with (tmp_path / name).open("rb") as file:
        client.upload(file, **columns)
    for asked in server.calls("POST /v1/datasets"):
        assert (asked.headers["content-type"], asked.body) == (kind, first + b"rows")
        assert {key: asked.query[key] for key in columns} == columns
    for asked in server.calls("GET /v1/datasets"):
        assert {key: asked.query[key] for key in columns} == columns


def test_rows_without_columns_have_none_to_name(
    client: Any, server: FakeServer, vectors: Path, labels: Path
) -> None:
    for file, column in (
        (vectors, "vector_column"),
        (vectors, "id_column"),
        (labels, "vector_column"),
    ):
        with pytest.raises(Mistake, match=f"`{column}` is for tables"):
            client.upload(file, **{column: "v"})
    assert server.asked == []


@pytest.mark.parametrize("name", ["rows.jsonl", "rows"])
def test_other_formats_are_refused_before_anything_is_sent(
    client: Any, server: FakeServer, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(b"PAR1")

    with pytest.raises(Mistake, match=r"only \.npy, \.csv, \.parquet") as raised:
        client.upload(tmp_path / name)

    assert raised.value.code == "unsupported-format"
    assert server.asked == []


def test_an_upload_is_sent_again_from_the_start_when_the_server_is_busy(
    client: Any, server: FakeServer, vectors: Path
) -> None:
    busy = problem(503, "queue-full", "later", headers={"Retry-After": "0"})
    server.on("POST /v1/datasets", busy, busy, Answer(201, {"id": "ds_9"}))

    assert client.upload(vectors)["id"] == "ds_9"
    bodies = [asked.body for asked in server.calls("POST /v1/datasets")]
    assert bodies == [vectors.read_bytes()] * 3


def test_each_file_of_a_request_is_uploaded_once(
    client: Any, server: FakeServer, vectors: Path, labels: Path
) -> None:
    server.on("POST /v1/jobs", Answer(202, job("queued")))
    inputs = {
        "a": {"path": "rows.npy"},
        "b": {"path": "./rows.npy"},
        "groups": {"path": "rows.csv", "column": "intent"},
        "parents": {"path": str(labels), "column": "id"},
        "models": [
            {"name": "one", "queries": {"path": "rows.npy"}, "documents": {"dataset": "ds_x"}}
        ],
        "inline": {"vectors": [[1.0, 2.0]]},
    }

    client.submit({"kind": "cosine_floor", "inputs": inputs, "seed": 3})

    assert len(server.calls("POST /v1/datasets")) == 2
    (asked,) = server.calls("POST /v1/jobs")
    assert asked.json == {
        "kind": "cosine_floor",
        "seed": 3,
        "inputs": {
            "a": {"dataset": "ds_1"},
            "b": {"dataset": "ds_1"},
            "groups": {"dataset": "ds_2", "column": "intent"},
            "parents": {"dataset": "ds_2", "column": "id"},
            "models": [
                {"name": "one", "queries": {"dataset": "ds_1"}, "documents": {"dataset": "ds_x"}}
            ],
            "inline": {"vectors": [[1.0, 2.0]]},
        },
    }


def test_a_missing_file_is_noticed_before_the_others_are_uploaded(
    client: Any, server: FakeServer, vectors: Path
) -> None:
    with pytest.raises(Mistake, match=r"no file `.*gone\.npy`"):
        client.upload_files({"a": {"path": "rows.npy"}, "b": {"path": "gone.npy"}})
    assert server.asked == []


def test_waiting_asks_only_for_what_has_changed(client: Any, server: FakeServer) -> None:
    running = job("running", progress={"stage": "pairs", "done": 1, "total": 4, "eta_s": 2.0})
    server.on(
        "GET /v1/jobs/job_1",
        Answer(200, running, {"ETag": '"1"', "Retry-After": "0"}),
        Answer(304, None, {"Retry-After": "0"}),
        Answer(200, job(), {"ETag": '"2"'}),
    )
    seen: list[str] = []

    ended = client.wait(job("queued"), lambda now: seen.append(now["state"]))

    asked = server.calls("GET /v1/jobs/job_1")
    assert ended["state"] == "succeeded"
    assert seen == ["running", "succeeded"]
    assert [one.headers.get("if-none-match") for one in asked] == [None, '"1"', '"1"']
    assert {one.headers["prefer"] for one in asked} == {"wait=2"}


def test_waiting_unwatched_lets_the_server_hold_the_answer(client: Any, server: FakeServer) -> None:
    server.on("GET /v1/jobs/job_1", Answer(200, job("failed")))

    assert client.wait("job_1")["state"] == "failed"
    assert server.asked[0].headers["prefer"] == "wait=30"


def test_waiting_honours_retry_after(client: Any, server: FakeServer) -> None:
    server.on(
        "GET /v1/jobs/job_1",
        Answer(200, job("running"), {"Retry-After": "1"}),
        Answer(200, job()),
    )
    started = time.monotonic()

    client.wait("job_1")

    assert time.monotonic() - started >= 1


def test_a_job_that_has_ended_is_not_asked_for(client: Any, server: FakeServer) -> None:
    assert client.wait(job("cancelled"))["state"] == "cancelled"
    assert server.asked == []


def test_waiting_outlives_a_server_that_is_away_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, connect: Any
) -> None:
    monkeypatch.setattr("assay_client.exchange.FIRST_CONTACT_S", 0.0)
    monkeypatch.setattr("assay_client.exchange.OUTAGE_S", 0.0)
    answers: list[Any] = [
        httpx.Response(200, json=job("running")),
        httpx.ConnectError("refused"),
        httpx.ReadError("reset"),
        httpx.Response(200, json=job()),
    ]

    with connect(transport=_scripted(answers)) as client:
        assert client.wait("job_1")["state"] == "succeeded"


def test_a_report_comes_as_object_and_as_stored_bytes(client: Any, server: FakeServer) -> None:
    stored = b'{"kind":"geometry",  "seed":0}'
    server.on("GET /v1/jobs/job_1/report", Answer(200, stored))

    assert client.report_bytes(job()) == stored
    assert client.report("job_1") == {"kind": "geometry", "seed": 0}


def test_a_problem_is_raised_with_code_and_rows(client: Any, server: FakeServer) -> None:
    rows = [str(i) for i in range(10)]
    fault = {"pointer": "/inputs/a", "message": "drop these rows", "count": 12, "rows": rows}
    server.on(
        "POST /v1/jobs", problem(422, "zero-rows", "12 rows of `a` are zero.", errors=[fault])
    )

    with pytest.raises(AssayError) as raised:
        client.submit({"kind": "geometry"})

    error = raised.value
    assert (error.code, error.status, error.errors) == ("zero-rows", 422, [fault])
    assert str(error).splitlines() == [
        "zero-rows: 12 rows of `a` are zero.",
        "  /inputs/a: drop these rows (12 rows: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...)",
    ]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(502, b"<html>Bad Gateway</html>", {"Content-Type": "text/html"}),
        Answer(200, b"<html>Welcome</html>", {"Content-Type": "text/html"}),
        Answer(200, ["not", "a", "job"]),
        Answer(302, None, {"Location": "/elsewhere"}),
    ],
)
def test_an_answer_no_assay_server_gives_is_a_problem(
    client: Any, server: FakeServer, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay_client.exchange.BUSY_S", 0.0)
    server.on("GET /v1/jobs/job_1", answer)

    with pytest.raises(AssayError, match=f"answered {answer.status}") as raised:
        client.job("job_1")

    assert raised.value.code == "unexpected-answer"


def test_a_busy_server_is_asked_again_until_patience_ends(
    client: Any, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay_client.exchange.BUSY_S", 0.5)
    server.on("GET /v1/jobs/job_1", problem(429, "rate-limited", "slow down"))

    with pytest.raises(AssayError) as raised:
        client.job("job_1")

    assert raised.value.code == "rate-limited"
    assert 2 <= len(server.asked) <= 4


def test_a_longer_wait_than_patience_is_told_at_once(client: Any, server: FakeServer) -> None:
    date = {"Retry-After": "Fri, 01 Jan 2100 00:00:00 GMT"}
    server.on("GET /v1/jobs/job_1", problem(503, "queue-full", "full", headers=date))

    with pytest.raises(AssayError) as raised:
        client.job("job_1")

    assert raised.value.retry_after is not None
    assert raised.value.retry_after > 1e6
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "once",
    [
        httpx.ConnectError("refused"), httpx.ReadError("reset"), httpx.ReadTimeout("late"),
        httpx.RemoteProtocolError("closed"), httpx.Response(429, json={"code": "rate-limited"}),
        httpx.Response(502, text="<html>"), httpx.Response(503, json={"code": "unavailable"}),
        httpx.Response(504, text=""), httpx.Response(409, json={"code": "idempotency-in-flight"}),
    ],
    ids=lambda once: str(getattr(once, "status_code", type(once).__name__)),
)  # fmt: skip
def test_a_job_is_sent_again_under_one_key(
    once: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a server that took the first one starts no second."""
    monkeypatch.setattr("assay_client.exchange.FIRST_PAUSE_S", 0.01)
    for path, start in (
        ("/v1/jobs", lambda client: client.submit({"kind": "geometry"})),
        ("/v1/gates", lambda client: client.start_gate({"version": 1}, {})),
    ):
        sent: list[httpx.Request] = []
        answers = [once, httpx.Response(202, json=job("queued"))]
        with connect(transport=_scripted(answers, sent)) as client:
            assert start(client)["id"] == "job_1"
        assert [request.url.path for request in sent] == [path, path]
        (key,) = {request.headers["Idempotency-Key"] for request in sent}
        assert len(key) == 32
        assert sent[0].content == sent[1].content


def test_each_call_has_a_key_of_its_own_or_that_of_the_caller(
    client: Any, server: FakeServer
) -> None:
    server.on("POST /v1/jobs", Answer(202, job("queued")))
    client.submit({"kind": "geometry"})
    client.submit({"kind": "geometry"})
    client.submit({"kind": "geometry"}, key="release-7")

    first, second, mine = (one.headers["idempotency-key"] for one in server.asked)
    assert first != second
    assert mine == "release-7"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500])
def test_what_will_not_change_is_not_asked_again(
    client: Any, server: FakeServer, status: int
) -> None:
    server.on("POST /v1/jobs", problem(status, "some-code", "no"))

    with pytest.raises(AssayError, match="some-code"):
        client.submit({"kind": "geometry"})
    assert len(server.asked) == 1


def test_a_run_is_submit_wait_and_report(client: Any, server: FakeServer) -> None:
    server.on("POST /v1/jobs", Answer(202, job("queued")))
    server.on("GET /v1/jobs/job_1", Answer(200, job()))
    server.on("GET /v1/jobs/job_1/report", Answer(200, report()))
    assert client.run({"kind": "geometry"}) == report()

    why = {"code": "timed-out", "title": "Late", "detail": "It ran past 60 s.", "errors": []}
    server.on("GET /v1/jobs/job_1", Answer(200, job("failed", problem=why)))
    with pytest.raises(AssayError, match="timed-out: It ran past 60 s"):
        client.run({"kind": "geometry"})


def test_an_unreachable_server_is_named_with_the_reason(unused_port: int, connect: Any) -> None:
    url = f"http://127.0.0.1:{unused_port}"

    with connect(url) as client, pytest.raises(AssayError, match=url) as raised:
        client.job("job_1")

    assert raised.value.code == "server-unreachable"


@pytest.fixture
def unused_port(server: FakeServer) -> int:
    """A port nobody listens on any more."""
    other = FakeServer()
    other.close()
    return int(other.url.rsplit(":", 1)[1])


@pytest.mark.parametrize("server_name", ["localhost:8000", "ftp://host", "http://", "http://[::"])
def test_a_server_without_scheme_or_host_is_refused(server_name: str) -> None:
    with pytest.raises(Mistake, match="no address of a server"):
        Assay(server_name)


def test_server_and_key_come_from_the_environment(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_SERVER", f"{server.url}/")
    monkeypatch.setenv("ASSAY_API_KEY", "from-environment")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    server.on("GET /v1/checks", Answer(200, {"items": [{"kind": "geometry"}]}))

    with Assay() as client:
        assert client.checks() == [{"kind": "geometry"}]

    assert server.asked[0].headers["authorization"] == "Bearer from-environment"


def test_jobs_are_read_page_by_page(client: Any, server: FakeServer) -> None:
    server.on(
        "GET /v1/jobs",
        Answer(200, {"items": [{"id": "1"}, {"id": "2"}], "next_cursor": "more"}),
        Answer(200, {"items": [{"id": "3"}, {"id": "4"}], "next_cursor": "yet"}),
    )

    found = client.jobs(state="failed", kind="geometry", limit=3)

    first, second = server.asked
    assert [one["id"] for one in found] == ["1", "2", "3"]
    assert first.query == {"limit": "3", "state": "failed", "kind": "geometry"}
    assert second.query == {**first.query, "cursor": "more"}


def test_cancelling_deletes_the_job(client: Any, server: FakeServer) -> None:
    server.on("DELETE /v1/jobs/job_1", Answer(200, job("cancelled")))

    assert client.cancel(job("running"))["state"] == "cancelled"


def test_ids_cannot_leave_their_place_in_the_path(client: Any, server: FakeServer) -> None:
    with pytest.raises(AssayError):
        client.job("../datasets/ds_1")
    assert server.asked[0].path == "/v1/jobs/..%2Fdatasets%2Fds_1"


def test_a_gate_uploads_waits_and_returns_the_run(
    client: Any, server: FakeServer, vectors: Path
) -> None:
    server.on("POST /v1/gates", Answer(202, {"id": "gate_1", "state": "running", "jobs": {}}))
    server.on("GET /v1/gates/gate_1", Answer(200, {"id": "gate_1", "state": "done"}))
    policy = {"version": 1}

    run = client.gate(policy, {"rows": {"path": "rows.npy"}})

    assert run["state"] == "done"
    (asked,) = server.calls("POST /v1/gates")
    assert asked.json == {"policy": policy, "inputs": {"rows": {"dataset": "ds_1"}}}


def test_gate_runs_are_read_page_by_page(client: Any, server: FakeServer) -> None:
    server.on(
        "GET /v1/gates",
        Answer(200, {"items": [{"id": "1"}, {"id": "2"}], "next_cursor": "more"}),
        Answer(200, {"items": [{"id": "3"}, {"id": "4"}], "next_cursor": "yet"}),
    )

    found = client.gate_runs(tag="env:prod", limit=3)

    first, second = server.asked
    assert [one["id"] for one in found] == ["1", "2", "3"]
    assert first.query == {"limit": "3", "tag": "env:prod"}
    assert second.query == {**first.query, "cursor": "more"}


def test_a_gate_run_is_read_cancelled_and_written_as_markdown(
    client: Any, server: FakeServer
) -> None:
    server.on(
        "GET /v1/gates/gate_1",
        Answer(200, {"id": "gate_1", "state": "running"}),
        Answer(200, b"# pass", {"Content-Type": "text/markdown"}),
    )
    server.on("DELETE /v1/gates/gate_1", Answer(200, {"id": "gate_1", "state": "cancelled"}))

    run = client.gate_run("gate_1")
    assert client.gate_markdown(run) == b"# pass"
    assert client.cancel_gate(run)["state"] == "cancelled"
    assert server.calls("GET /v1/gates/gate_1")[1].headers["accept"] == "text/markdown"


def test_a_policy_is_validated_without_an_idempotency_key(client: Any, server: FakeServer) -> None:
    assert client.validate({"inputs": {"rows": "vectors"}})["inputs"] == {"rows": "vectors"}
    (asked,) = server.calls("POST /v1/gates/validate")
    assert "idempotency-key" not in asked.headers


def test_the_package_exports_its_names_without_loading_http() -> None:
    program = (
        "import sys, assay_client; assert 'httpx' not in sys.modules;"
        "from assay_client import Assay, AssayError; assert 'httpx' in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
    assert sorted(assay_client.__all__) == ["Assay", "AssayError", "AsyncAssay"]
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = assay_client.Other


def test_a_report_read_by_id_is_the_same(client: Any, server: FakeServer) -> None:
    server.on("GET /v1/jobs/job_1/report", Answer(200, report()))
    assert client.report("job_1") == client.report(job()) == report()


def test_a_problem_says_in_types_what_is_wrong_and_what_to_do(
    client: Any, server: FakeServer
) -> None:
    told = 'drop them with `"on_bad_rows": "drop"`'
    fault = {"pointer": "/inputs/a", "message": told, "count": 12, "rows": ["0", "7"]}
    bare = {"pointer": "/params", "message": "no such param", "count": None, "rows": None}
    server.on("POST /v1/jobs", problem(422, "zero-rows", "Some are zero.", errors=[fault, bare]))

    with pytest.raises(AssayError) as raised:
        client.submit({"kind": "geometry"})

    assert raised.value.faults == (
        Fault("/inputs/a", told, 12, ("0", "7")),
        Fault("/params", "no such param"),
    )
    assert raised.value.next_step == "repair the rows, or pass `--param on_bad_rows=drop`"


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    """What one gives in turn, the other gives to `async for`."""

    def told(client: type) -> dict[str, str]:
        public = {name: getattr(client, name) for name in vars(client) if not name.startswith("_")}
        return {
            name: str(inspect.signature(method)).replace("AsyncIterator", "Iterator")
            for name, method in public.items()
        }

    assert told(Assay) == told(AsyncAssay)
    assert len(told(Assay)) > 15


@pytest.mark.parametrize("key", ["secret\n", "se\tcret", "schlüssel", "a\0b"])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(key: str, connect: Any) -> None:
    with pytest.raises(Mistake, match="API key") as raised:
        connect("http://127.0.0.1:1", key)
    assert key not in str(raised.value)


def test_credentials_of_an_address_are_sent_and_not_shown(
    server: FakeServer, connect: Any, unused_port: int
) -> None:
    for at in (server.url, f"http://127.0.0.1:{unused_port}"):
        with (
            connect(at.replace("//", "//user:hunter2@")) as client,
            pytest.raises(AssayError) as raised,
        ):
            client.job("job_1")
        assert "hunter2" not in f"{raised.value}{raised.value!r}"
    assert server.asked[0].headers["authorization"].startswith("Basic ")
    with pytest.raises(Mistake) as mistake:
        connect("ftp://user:hunter2@host")
    assert "hunter2" not in str(mistake.value)


def _scripted(answers: list[Any], sent: list[httpx.Request] | None = None) -> httpx.MockTransport:
    """Gives these answers in turn; exceptions are raised."""

    def handle(request: httpx.Request) -> httpx.Response:
        if sent is not None:
            sent.append(request)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, content=answer.content)

    return httpx.MockTransport(handle)
