"""The `assay` command against a real socket: what it prints where, and how it exits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from assay_client.terminal import refuse_unwritable

from .conftest import Answer, FakeServer, Ran, job, problem, report

Assay = Callable[..., Ran]
STORED = json.dumps(report(), separators=(",", ":")).encode()


@pytest.fixture
def ready(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A server on which job_1 succeeds after two stages."""
    monkeypatch.setenv("ASSAY_SERVER", server.url)
    stage = {"done": 0, "total": 4, "eta_s": 1.5}
    server.on("GET /v1/checks/geometry", Answer(200, {"kind": "geometry"}))
    server.on("POST /v1/jobs", Answer(202, job("queued")))
    server.on(
        "GET /v1/jobs/job_1",
        Answer(200, job("running", progress={"stage": "pairs", **stage})),
        Answer(200, job("running", progress={"stage": "spectrum", **stage})),
        Answer(200, job()),
    )
    server.on("GET /v1/jobs/job_1/report", Answer(200, STORED))
    return server


def test_json_is_the_report_and_nothing_else(
    ready: FakeServer, vectors: Path, assay: Assay
) -> None:
    ran = assay("check", "geometry", "--vectors", "rows.npy", "--json")

    assert ran.code == 0
    assert ran.out.encode() == STORED
    assert ran.err.splitlines() == [
        "uploading rows.npy (3.0 MB)",
        "job job_1",
        "pairs",
        "spectrum",
    ]


def test_without_json_the_report_is_a_table(ready: FakeServer, vectors: Path, assay: Assay) -> None:
    ran = assay("check", "geometry", "--vectors", "rows.npy", "--param", "level=0.9", "--seed", 5)

    assert ran.code == 0
    assert "anisotropy     0.2500" in ran.out
    assert "• Two different rows have a mean cosine of 0.25." in ran.out
    (asked,) = ready.calls("POST /v1/jobs")
    assert asked.json == {
        "kind": "geometry",
        "inputs": {"vectors": {"dataset": "ds_1"}},
        "params": {"level": 0.9},
        "seed": 5,
    }


def test_a_job_that_stays_queued_says_what_the_server_lacks(
    ready: FakeServer, vectors: Path, assay: Assay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, after some seconds, and waiting goes on; a server that is merely busy is not accused."""
    monkeypatch.setattr("assay_client.flows.QUEUED_S", 0.5)
    lacks = problem(
        503, "unavailable", "Not ready: no live worker (start one with `assay worker`)."
    )
    ready.on("GET /readyz", Answer(200, {"status": "ready"}), lacks)
    ready.on("GET /v1/jobs/job_1", *[Answer(200, job("queued"))] * 12, Answer(200, job()))

    ran = assay("check", "geometry", "--vectors", "rows.npy")

    assert ran.code == 0
    assert ran.err.splitlines()[2:] == [
        "queued",
        "still queued; the server says: Not ready: no live worker (start one with `assay worker`).",
    ]
    assert len(ready.calls("GET /readyz")) == 2


def test_a_request_file_is_enough(ready: FakeServer, vectors: Path, assay: Assay) -> None:
    body = {"kind": "geometry", "inputs": {"vectors": {"path": "rows.npy"}}, "tags": {"env": "ci"}}
    Path("request.json").write_text(json.dumps(body), encoding="utf-8")

    assert assay("check", "--request", "request.json", "--json").code == 0
    (asked,) = ready.calls("POST /v1/jobs")
    assert asked.json == {**body, "inputs": {"vectors": {"dataset": "ds_1"}}}


def test_out_keeps_the_report(ready: FakeServer, assay: Assay) -> None:
    ran = assay("check", "geometry", "--vectors", "ds_7", "--out", "deep/folder", "--json")

    assert Path("deep/folder/report.json").read_bytes() == STORED == ran.out.encode()
    assert "report written to deep/folder/report.json" in ran.err.replace(os.sep, "/")


def test_an_unknown_check_is_refused_before_the_upload(
    ready: FakeServer, vectors: Path, assay: Assay
) -> None:
    ready.on(
        "GET /v1/checks/geometri",
        problem(404, "unknown-check", "There is no check `geometri`. Did you mean `geometry`?"),
    )

    ran = assay("check", "geometri", "--vectors", "rows.npy")

    assert (ran.code, ran.out, ready.uploads) == (2, "", 0)
    assert ran.err.splitlines() == [
        "error: unknown-check: There is no check `geometri`. Did you mean `geometry`?",
        "next: `assay checks` lists what there is",
    ]


def test_a_wrong_role_shows_what_the_server_says(
    ready: FakeServer, vectors: Path, assay: Assay
) -> None:
    fault = {"pointer": "/inputs/c", "message": "there is no role `c`", "count": None, "rows": None}
    ready.on("POST /v1/jobs", problem(422, "invalid-request", "One field.", errors=[fault]))

    ran = assay("check", "geometry", "--c", "rows.npy")

    assert ran.code == 2
    assert ran.err.splitlines()[1:] == [
        "error: invalid-request: One field.",
        "  /inputs/c: there is no role `c`",
    ]


def test_tags_are_set_from_the_command_line(ready: FakeServer, assay: Assay) -> None:
    """Of a check and of a gate; nothing keeps them here."""
    tags = ["--tag", "release:7", "--tag", "stage:a:b"]
    assert assay("check", "geometry", "--vectors", "ds_1", *tags, "--json").code == 0
    assert ready.calls("POST /v1/jobs")[0].json["tags"] == {"release": "7", "stage": "a:b"}
    done = {"id": "gate_1", "state": "done", "jobs": {}, "verdict": "pass", "rules": RULES}
    ready.on("POST /v1/gates", Answer(200, done))
    Path("policy.json").write_text("{}", encoding="utf-8")
    assert assay("gate", "policy.json", *tags).code == 0
    assert ready.calls("POST /v1/gates")[0].json["tags"] == {"release": "7", "stage": "a:b"}
    for words in (["check", "geometry", "--vectors", "ds_1"], ["gate", "policy.json"]):
        assert assay(*words, "--tag", "release").code == 2
        assert assay(*words, "--tag", "a:b", "--local").code == 2


def test_a_dataset_is_deleted(ready: FakeServer, assay: Assay) -> None:
    ready.on("DELETE /v1/datasets/ds_2", Answer(204, b""))
    ran = assay("datasets", "ds_2", "--delete")
    assert (ran.code, ran.out, ran.err) == (0, "", "ds_2 is deleted\n")
    ready.on("DELETE /v1/datasets/ds_2", problem(409, "dataset-in-use", "`prod` stands for it."))
    assert assay("datasets", "ds_2", "--delete").code == 4
    assert assay("datasets", "--delete").code == 2
    for method, words in (("DELETE", ["--delete"]), ("GET", [])):
        ready.on(f"{method} /v1/datasets/ds_3", problem(404, "unknown-dataset", "There is none."))
        ran = assay("datasets", "ds_3", *words)
        assert (ran.code, ran.err.splitlines()[-1]) == (
            2, "next: `assay datasets` lists what there is",
        )  # fmt: skip


def test_jobs_are_listed_by_their_tag(ready: FakeServer, assay: Assay) -> None:
    ready.on("GET /v1/jobs", Answer(200, {"items": [job()], "next_cursor": None}))
    ran = assay("jobs", "--tag", "release:7", "--kind", "geometry")
    assert (ran.code, ran.out.splitlines()[1].split()[0]) == (0, "job_1")
    (asked,) = ready.calls("GET /v1/jobs")
    assert asked.query == {"limit": "20", "kind": "geometry", "tag": "release:7"}


def test_datasets_are_listed_newest_first(ready: FakeServer, assay: Assay) -> None:
    rows = {"id": "ds_2", "name": "rows", "n": 1200, "d": 384, "bytes": 1_843_200}
    table = {"id": "ds_1", "name": None, "n": 3, "d": None, "bytes": 0}
    made = {"created_at": "2026-11-29T12:30:00Z"}
    page = {"items": [rows | made, table | made], "next_cursor": None}
    ready.on("GET /v1/datasets", Answer(200, page))

    shown = assay("datasets", "--limit", 5)
    assert [line.split() for line in shown.out.splitlines()[1:]] == [
        ["ds_2", "rows", "1,200", "384", "1.8", "MB", "11-29", "12:30"],
        ["ds_1", "3", "columns", "11-29", "12:30"],
    ]
    assert json.loads(assay("datasets", "--json").out) == page["items"]
    assert [one.query for one in ready.calls("GET /v1/datasets")] == [
        {"limit": "5"},
        {"limit": "20"},
    ]

    ready.on("GET /v1/datasets", Answer(200, {"items": [], "next_cursor": None}))
    assert assay("datasets").out == "no datasets\n"


def test_a_failed_job_exits_with_its_problem(ready: FakeServer, assay: Assay) -> None:
    why = {"code": "timed-out", "title": "Late", "detail": "It ran past 60 s.", "errors": []}
    ready.on("GET /v1/jobs/job_1", Answer(200, job("failed", problem=why)))

    ran = assay("check", "geometry", "--vectors", "ds_1")

    assert (ran.code, ran.out) == (4, "")
    assert "error: timed-out: It ran past 60 s.\n" in ran.err


FAULT = {"pointer": "/inputs/a", "message": "repair it", "count": 2, "rows": ["4", "9"]}


@pytest.mark.parametrize(
    ("words", "answer", "said"),
    [
        (
            ["check", "geometry", "--vectors", "ds_1"],
            problem(422, "zero-rows", "2 rows of `a` are zero.", errors=[FAULT]),
            {
                "code": "zero-rows",
                "title": "zero-rows",
                "detail": "2 rows of `a` are zero.",
                "errors": [FAULT],
                "next_step": "repair the rows",
                "exit_code": 4,
            },
        ),
        (
            ["check", "geometry", "--vectors", "gone.npy"],
            None,
            {"code": "invalid-request", "errors": [], "exit_code": 2},
        ),
        (["jobs", "--limit", "x"], None, {"code": "invalid-request", "exit_code": 2}),
        (["nonsense"], None, {"code": "invalid-request", "exit_code": 2}),
    ],
)
def test_with_json_a_problem_is_the_last_line_of_standard_error(
    words: list[str],
    answer: Answer | None,
    said: dict[str, Any],
    ready: FakeServer,
    assay: Assay,
) -> None:
    """Standard output is for results: what is kept of it is a report, or nothing."""
    if answer is not None:
        ready.on("POST /v1/jobs", answer)
    ran = assay(*words, "--json")
    assert (ran.code, ran.out) == (said["exit_code"], "")
    told = json.loads(ran.err.splitlines()[-1])
    assert {key: told[key] for key in said} == said
    assert told["detail"]
    assert "error:" not in ran.err


def test_the_end_of_a_file_is_no_interruption(
    assay: Assay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typer takes an EOFError for somebody who has left."""

    def end(*args: Any, **named: Any) -> None:
        raise EOFError("No data left in file")

    monkeypatch.setattr("assay_client.requests.build", end)
    ran = assay("check", "geometry")
    assert ran.code == 4
    assert "EOFError: No data left in file" in ran.err
    assert "interrupted" not in ran.err
    ran = assay("check", "geometry", "--json")
    assert json.loads(ran.err.splitlines()[-1])["code"] == "internal"


def test_a_cancelled_job_is_no_success(ready: FakeServer, assay: Assay) -> None:
    ready.on("GET /v1/jobs/job_1", Answer(200, job("cancelled")))

    ran = assay("check", "geometry", "--vectors", "ds_1")

    assert ran.code == 4
    assert "error: cancelled: job job_1 has ended\n" in ran.err


def test_an_unreachable_server_says_what_to_do(assay: Assay) -> None:
    ran = assay("check", "geometry", "--vectors", "ds_1", "--server", "http://127.0.0.1:9")

    assert (ran.code, ran.out) == (4, "")
    assert "error: server-unreachable: no answer from http://127.0.0.1:9" in ran.err
    assert "next: start one with `assay serve`" in ran.err
    assert "--local" in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["check"],
        ["check", "geometry", "--seed", "x"],
        ["check", "geometry", "--vectors", "gone.npy"],
        ["check", "geometry", "--local", "--server", "http://127.0.0.1"],
        ["check", "geometry", "--server", "no-address"],
        ["jobs", "--server", "http://127.0.0.1:9/v1"],
        ["gate"],
        ["gate", "gone.yaml"],
        ["upload", "gone.npy"],
        ["jobs", "--cancel"],
        ["jobs", "--limit", "0"],
        ["reports", "--markdown"],
    ],
)
def test_usage_errors_exit_with_2(words: list[str], assay: Assay) -> None:
    ran = assay(*words)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err


def test_a_crash_is_no_verdict(assay: Assay, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*args: Any, **named: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("assay_client.requests.build", crash)

    ran = assay("check", "geometry")

    assert ran.code == 4
    assert "ZeroDivisionError: a bug" in ran.err


@pytest.mark.parametrize("command", ["check", "gate"])
def test_an_interrupt_says_what_goes_on_and_how_to_stop_it(
    server: FakeServer, command: str
) -> None:
    running = Answer(200, {"id": "gate_1", "state": "running", "jobs": {"one": "job_1"}})
    server.on("GET /v1/checks/geometry", Answer(200, {"kind": "geometry"}))
    server.on("POST /v1/jobs", Answer(202, job("queued")))
    server.on("GET /v1/jobs/job_1", Answer(200, job("running"), {"Retry-After": "1"}))
    server.on("POST /v1/gates", running)
    server.on("GET /v1/gates/gate_1", running)
    Path("policy.json").write_text("{}", encoding="utf-8")
    words = {"check": ["geometry", "--vectors", "ds_1"], "gate": ["policy.json"]}[command]
    started = subprocess.Popen(
        [sys.executable, "-m", "assay_client.cli", command, *words, "--server", server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with started:
        _until(lambda: any(asked.path.endswith("_1") for asked in server.asked))
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=20)

    assert (started.returncode, out) == (4, "")
    assert "job job_1 goes on" in err or "gate run gate_1 goes on" in err
    name = {"check": "assay jobs job_1", "gate": "assay gates gate_1"}[command]
    assert f"`{name} --cancel`" in err
    assert not server.calls("DELETE /v1/jobs/job_1")


def _until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


RULES = [
    {
        "rule": {"measure": "rows.anisotropy", "at_least": None, "at_most": 0.3, "level": "block"},
        "observed": 0.25,
        "interval": {"low": 0.2, "high": 0.31},
        "threshold": 0.3,
        "verdict": "inconclusive",
        "reason": "the interval lies on both sides of the threshold",
        "needed": {"unit": "groups", "count": 240},
    },
    {
        "rule": {"measure": "rows.rankme", "at_least": 8, "at_most": None, "level": "warn"},
        "observed": None,
        "interval": None,
        "threshold": 8,
        "verdict": "inconclusive",
        "reason": "the measure is undefined: all rows are equal",
        "needed": None,
    },
]


@pytest.mark.parametrize(
    ("verdict", "code"), [("pass", 0), ("fail", 1), ("inconclusive", 3), ("invalid", 4), (None, 4)]
)
def test_a_gate_exits_by_its_verdict(
    server: FakeServer, assay: Assay, vectors: Path, labels: Path, verdict: str | None, code: int
) -> None:
    run = {"id": "gate_1", "state": "running", "jobs": {"rows": "job_1"}, "verdict": None}
    state = "cancelled" if verdict is None else "done"
    done = {**run, "state": state, "verdict": verdict, "rules": RULES, "digest": "d" * 64}
    server.on("POST /v1/gates", Answer(202, run))
    server.on("GET /v1/gates/gate_1", Answer(200, run), Answer(200, done))
    policy = "version: 1\nname: rows\ninputs: {rows: vectors, labels: column}\n"
    Path("policy.yaml").write_text(policy, encoding="utf-8")
    words = ["gate", "policy.yaml", "--server", server.url, "--input", "rows=rows.npy"]

    ran = assay(*words, "--input", "labels=rows.csv:intent")

    assert ran.code == code
    assert max(map(len, ran.out.splitlines())) <= 80
    assert " ".join(ran.out.split()).startswith(
        "verdict observed interval rule rows.anisotropy "
        "inconclusive 0.2500 [0.2000, 0.3100] at_most 0.3 the interval lies on both sides"
    )
    assert "about 240 groups would decide" in " ".join(ran.out.split())
    assert f"verdict  {verdict or 'cancelled'}" in ran.out
    assert ran.err.splitlines()[-2:] == ["gate run gate_1", "running 1 checks"]
    (asked,) = server.calls("POST /v1/gates")
    assert asked.json == {
        "policy": {
            "version": 1,
            "name": "rows",
            "inputs": {"rows": "vectors", "labels": "column"},
        },
        "inputs": {
            "rows": {"dataset": "ds_1"},
            "labels": {"dataset": "ds_2", "column": "intent"},
        },
    }


def test_everything_as_json_is_one_line(ready: FakeServer, assay: Assay) -> None:
    ready.on("GET /v1/jobs", Answer(200, {"items": [job(), job()], "next_cursor": None}))
    for words in (["jobs"], ["jobs", "job_1"], ["checks", "geometry"], ["reports", "job_1"]):
        assert len(assay(*words, "--json").out.splitlines()) == 1


def test_a_gate_as_json_is_the_run(server: FakeServer, assay: Assay) -> None:
    done = {"id": "gate_1", "state": "done", "jobs": {}, "verdict": "pass", "rules": RULES}
    server.on("POST /v1/gates", Answer(200, done))
    Path("policy.json").write_text("{}", encoding="utf-8")

    ran = assay("gate", "policy.json", "--server", server.url, "--json")

    assert (ran.code, json.loads(ran.out)) == (0, done)


MISFITS = [
    (["--input", "rows=rows.npy"], "wants more data: --input labels=FILE.csv:COLUMN"),
    ([], "--input rows=FILE.npy, --input labels=FILE.csv:COLUMN"),
    (["--input", "row=rows.npy"], "no input `row`; did you mean `rows`"),
    (["--input", "rows=rows.csv:intent", "--input", "labels=rows.csv:intent"], "wants vectors"),
    (["--input", "rows=rows.npy", "--input", "labels=rows.npy"], "wants a column"),
    (["--input", "rows=ds_1", "--input", "labels=ds_1"], "wants a column"),
]


@pytest.mark.parametrize(("words", "said"), MISFITS, ids=str)
def test_inputs_that_do_not_fit_are_named_before_anything_is_uploaded(
    words: list[str], said: str, server: FakeServer, assay: Assay, vectors: Path, labels: Path
) -> None:
    """A usage error, told against what the policy wants."""
    body = {"inputs": {"rows": "vectors", "labels": "column"}}
    Path("policy.json").write_text(json.dumps(body), encoding="utf-8")

    ran = assay("gate", "policy.json", "--server", server.url, *words)

    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert [asked.path for asked in server.asked] == ["/v1/gates/validate"]


def test_relevance_is_a_column(server: FakeServer, assay: Assay, vectors: Path) -> None:
    """Told so where it is missing, and where vectors are given for it."""
    Path("policy.json").write_text(json.dumps({"inputs": {"right": "relevance"}}), encoding="utf-8")
    words = ["gate", "policy.json", "--server", server.url]
    assert "wants more data: --input right=FILE.csv:COLUMN" in assay(*words).err
    assert "wants a column" in assay(*words, "--input", "right=rows.npy").err


def test_faults_of_a_policy_are_shown_before_anything_is_uploaded(
    server: FakeServer, assay: Assay, vectors: Path
) -> None:
    """All of them, by place, as a usage error; a server that is busy is none."""
    fault = {"pointer": "/policy/rules/0/measure", "message": "did you mean `raw.gap`?"}
    server.on(
        "POST /v1/gates/validate", problem(422, "invalid-request", "1 fault.", errors=[fault])
    )
    Path("policy.json").write_text("{}", encoding="utf-8")
    words = ["gate", "policy.json", "--server", server.url, "--input", "rows=rows.npy"]
    ran = assay(*words)
    assert (ran.code, ran.out) == (2, "")
    assert "/policy/rules/0/measure: did you mean `raw.gap`?" in ran.err
    assert server.uploads == 0
    server.on("POST /v1/gates/validate", problem(401, "unauthorised", "No key."))
    assert assay(*words).code == 4


def test_a_gate_is_written_for_pull_requests_and_for_ci(server: FakeServer, assay: Assay) -> None:
    """Beside what is printed, whatever the verdict; the server's own page, folders made."""
    done = {"id": "gate_1", "state": "done", "jobs": {}, "verdict": "inconclusive", "rules": RULES}
    server.on("POST /v1/gates", Answer(200, done))
    server.on("GET /v1/gates/gate_1", Answer(200, b"## page\n", {"Content-Type": "text/markdown"}))
    Path("policy.json").write_text("{}", encoding="utf-8")
    words = ["--markdown", "out/gate.md", "--junit", "out/gate.xml", "--json"]

    ran = assay("gate", "policy.json", "--server", server.url, *words)

    assert (ran.code, json.loads(ran.out)) == (3, done)
    assert Path("out/gate.md").read_text(encoding="utf-8") == "## page\n"
    (asked,) = server.calls("GET /v1/gates/gate_1")
    assert asked.headers["accept"] == "text/markdown"
    assert (
        b'<testsuite name="gate" tests="2" failures="1" errors="0">'
        in Path("out/gate.xml").read_bytes()
    )
    Path("file").write_text("", encoding="utf-8")
    ran = assay("gate", "policy.json", "--server", server.url, "--junit", "file/gate.xml")
    assert (ran.code, ran.out) == (2, "")
    assert "cannot be written" in ran.err


WRITTEN = ["--markdown", "out/gate.md", "--junit", "out/gate.xml"]


@pytest.mark.parametrize(
    ("answer", "words", "code", "said"),
    [
        (problem(422, "shape-mismatch", "1 row|2 rows."), ["--input", "rows=rows.npy"], 4, "1 row"),
        (None, [], 2, "wants more data: --input rows=FILE.npy"),
        (None, ["--server", "http://127.0.0.1:9", "--input", "rows=rows.npy"], 4, "no answer from"),
        (None, ["--input", "rows=missing.npy"], 2, "there is no such file"),
    ],
    ids=["refused", "misfit", "down", "no file"],
)
def test_what_is_not_judged_is_written_too(
    answer: Answer | None, words: list[str], code: int, said: str, server: FakeServer,
    assay: Assay, vectors: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The step that posts the files finds them, and they cannot be taken for a pass."""
    monkeypatch.setenv("ASSAY_SERVER", server.url)
    monkeypatch.setattr("assay_client.exchange.FIRST_CONTACT_S", 0.0)
    Path("rule.json").write_text('{"name": "nightly", "inputs": {"rows": "vectors"}}')
    if answer is not None:
        server.on("POST /v1/gates", answer)

    ran = assay("gate", "rule.json", *words, *WRITTEN)

    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    suite = ElementTree.parse("out/gate.xml").getroot()[0]
    assert suite.attrib == {"name": "nightly", "tests": "1", "failures": "0", "errors": "1"}
    assert said in (suite[0][0].text or "")
    page = Path("out/gate.md").read_text(encoding="utf-8")
    assert page.startswith("## \N{WARNING SIGN}\N{VARIATION SELECTOR-16} nightly: not judged\n")
    assert said in page


def test_a_policy_that_cannot_be_read_is_written_under_the_name_of_its_file(assay: Assay) -> None:
    Path("release.yaml").write_text("- no mapping")
    assert assay("gate", "release.yaml", *WRITTEN).code == 2
    assert ElementTree.parse("out/gate.xml").getroot()[0].get("name") == "release"
    assert "release: not judged" in Path("out/gate.md").read_text(encoding="utf-8")


def test_gate_runs_are_listed_shown_and_cancelled(server: FakeServer, assay: Assay) -> None:
    """Over pages, by tag; one with its rules."""
    done = {
        "id": "gate_1", "policy": "release", "state": "done", "jobs": {}, "verdict": "inconclusive",
        "rules": RULES, "created_at": "2026-01-02T03:04:05Z",
    }  # fmt: skip
    running = {**done, "id": "gate_2", "state": "running", "verdict": None, "rules": []}
    server.on(
        "GET /v1/gates",
        Answer(200, {"items": [running], "next_cursor": "c"}),
        Answer(200, {"items": [done], "next_cursor": None}),
    )
    ran = assay("gates", "--server", server.url, "--tag", "env:ci")
    lines = [line.split() for line in ran.out.splitlines()]
    assert ran.code == 0
    assert lines[1] == ["gate_2", "release", "running", "01-02", "03:04"]
    assert lines[2] == ["gate_1", "release", "inconclusive", "01-02", "03:04", "0", "of", "1"]
    first, second = server.calls("GET /v1/gates")
    assert first.query == {"limit": "20", "tag": "env:ci"}
    assert second.query["cursor"] == "c"
    server.on("GET /v1/gates/gate_1", Answer(200, done))
    assert "rows.anisotropy" in assay("gates", "gate_1", "--server", server.url).out
    server.on("DELETE /v1/gates/gate_1", Answer(200, {**done, "state": "cancelled"}))
    ran = assay("gates", "gate_1", "--cancel", "--server", server.url, "--json")
    assert (json.loads(ran.out)["state"], ran.err) == ("cancelled", "")
    server.on("DELETE /v1/gates/gate_1", Answer(200, done))
    ran = assay("gates", "gate_1", "--cancel", "--server", server.url)
    assert ran.err == "gate run gate_1 has ended already; there was nothing to cancel\n"
    assert assay("gates", "--cancel", "--server", server.url).code == 2
    server.on("GET /v1/gates", Answer(200, {"items": [], "next_cursor": None}))
    assert assay("gates", "--server", server.url).out == "no gate runs\n"
    assert json.loads(assay("gates", "--server", server.url, "--json").out) == []


def test_upload_prints_the_id_alone(ready: FakeServer, vectors: Path, assay: Assay) -> None:
    ran = assay("upload", "rows.npy", "--name", "nightly")

    assert (ran.code, ran.out) == (0, "ds_1\n")
    assert ready.calls("POST /v1/datasets")[0].query == {"name": "nightly"}


def test_a_dataset_is_shown_with_its_facts(ready: FakeServer, assay: Assay) -> None:
    found = {
        "id": "ds_1",
        "name": "nightly",
        "n": 1200,
        "d": None,
        "dtype": None,
        "bytes": 0,
        "columns": {"intent": {"type": "string", "distinct": 150, "missing": 3}},
        "spec": {"model": None},
        "facts": {"zero_rows": {"count": 1, "rows": [7]}},
    }
    ready.on("GET /v1/datasets/ds_1", Answer(200, found))

    ran = assay("datasets", "ds_1")

    assert "column intent  150 string labels, 3 missing" in ran.out
    assert "zero rows      1 (rows 7)" in ran.out
    assert json.loads(assay("datasets", "ds_1", "--json").out) == found


def test_jobs_are_listed_shown_and_cancelled(ready: FakeServer, assay: Assay) -> None:
    why = {"code": "zero-rows", "title": "Zero", "detail": "2 rows are zero.", "errors": []}
    failed = job(
        "failed",
        problem=why,
        started_at="2026-01-01T00:00:00Z",
        finished_at="2026-01-01T00:01:05Z",
    )
    ready.on("GET /v1/jobs", Answer(200, {"items": [failed], "next_cursor": None}))
    ready.on("GET /v1/jobs/job_1", Answer(200, failed))
    ready.on("DELETE /v1/jobs/job_1", Answer(200, job("cancelled")))

    listed = assay("jobs", "--state", "failed", "--kind", "geometry", "--limit", 5)
    assert "job_1  geometry  failed  01-01 00:00  1 min 05 s" in listed.out
    assert ready.calls("GET /v1/jobs")[0].query == {
        "limit": "5",
        "state": "failed",
        "kind": "geometry",
    }
    shown = assay("jobs", "job_1")
    assert (shown.code, "zero-rows: 2 rows are zero." in shown.out) == (0, True)
    assert json.loads(assay("jobs", "job_1", "--cancel", "--json").out)["state"] == "cancelled"
    assert assay("jobs", "job_1", "--cancel").err == ""
    ready.on("DELETE /v1/jobs/job_1", Answer(200, job()))
    late = assay("jobs", "job_1", "--cancel")
    assert (late.code, late.err) == (
        0,
        "job job_1 has ended already; there was nothing to cancel\n",
    )
    ready.on("GET /v1/jobs", Answer(200, {"items": [], "next_cursor": None}))
    assert assay("jobs").out == "no jobs\n"


def test_reports_prints_one_report(ready: FakeServer, assay: Assay) -> None:
    assert assay("reports", "job_1", "--json").out.encode() == STORED
    assert "anisotropy     0.2500" in assay("reports", "job_1").out
    ready.on(
        "GET /v1/jobs/job_1/report",
        problem(409, "report-not-ready", "Running.", headers={"Retry-After": "2"}),
    )
    ran = assay("reports", "job_1")
    assert (ran.code, ran.err.splitlines()[-1]) == (4, "next: `assay jobs ID` shows how far it is")


def test_reports_can_be_a_summary_or_a_page(ready: FakeServer, assay: Assay) -> None:
    """Asked for by media type; a page goes to a file, a summary to standard output."""
    route = "GET /v1/jobs/job_1/report"
    ready.on(route, Answer(200, b"## Title\n", {"Content-Type": "text/markdown; charset=utf-8"}))
    assert assay("reports", "job_1", "--markdown").out == "## Title\n"
    ready.on(route, Answer(200, b"<!doctype html>", {"Content-Type": "text/html"}))
    ran = assay("reports", "job_1", "--html", "pages/report.html")
    assert (ran.code, ran.out) == (0, "")
    assert Path("pages/report.html").read_bytes() == b"<!doctype html>"
    asked = [one.headers["accept"] for one in ready.calls(route)]
    assert asked == ["text/markdown", "text/html"]
    assert assay("reports", "job_1", "--markdown", "--json").code == 2


def test_charts_are_listed_written_and_named_by_their_file(ready: FakeServer, assay: Assay) -> None:
    """Without a name the list; as SVG on standard output, or as the file's name ends."""
    titles = [{"name": "spread", "title": "How far?"}, {"name": "hub", "title": "Which\x1b[31m?"}]
    ready.on("GET /v1/jobs/job_1/charts", Answer(200, {"items": titles, "drawn": True}))
    listed = assay("chart", "job_1")
    assert listed.out.splitlines()[0] == "spread  How far?"
    assert listed.out.splitlines()[1].startswith("hub     Which")
    assert "\x1b" not in listed.out
    assert json.loads(assay("chart", "job_1", "--json").out) == titles
    for ending, media in (
        ("svg", "image/svg+xml"), ("png", "image/png"), ("vl.json", "application/json"),
    ):  # fmt: skip
        route = f"GET /v1/jobs/job_1/charts/spread.{ending}"
        ready.on(route, Answer(200, ending.encode(), {"Content-Type": media}))
        assert assay("chart", "job_1", "spread", "-o", f"deep/x.{ending}").code == 0
        assert Path(f"deep/x.{ending}").read_bytes() == ending.encode()
    assert assay("chart", "job_1", "spread").out == "svg"
    for words in (
        ("spread", "-o", "x.pdf"), ("-o", "x.svg"), ("spread", "--json"),
    ):  # fmt: skip
        assert assay("chart", "job_1", *words).code == 2


def test_a_chart_that_is_not_there_says_where_the_list_is(ready: FakeServer, assay: Assay) -> None:
    route = "GET /v1/jobs/job_1/charts/spred.svg"
    ready.on(route, problem(404, "unknown-chart", "There is none; did you mean `spread`?"))
    ran = assay("chart", "job_1", "spred")
    assert (ran.code, ran.err.splitlines()[-1]) == (
        2, "next: `assay chart JOB_ID` lists what there is",
    )  # fmt: skip
    ready.on(route, Answer(200, b"<html>", {"Content-Type": "text/html"}))
    assert "unexpected-answer" in assay("chart", "job_1", "spred").err


def test_a_check_may_leave_its_charts(ready: FakeServer, vectors: Path, assay: Assay) -> None:
    """One SVG for each, beside the report on standard output."""
    items = [{"name": "spread", "title": "How far?"}, {"name": "rows", "title": "Which?"}]
    ready.on("GET /v1/jobs/job_1/charts", Answer(200, {"items": items, "drawn": True}))
    for one in items:
        ready.on(
            f"GET /v1/jobs/job_1/charts/{one['name']}.svg",
            Answer(200, one["name"].encode(), {"Content-Type": "image/svg+xml"}),
        )
    ran = assay("check", "geometry", "--vectors", "rows.npy", "--charts", "drawn", "--json")
    assert (ran.code, ran.out.encode()) == (0, STORED)
    assert {file.name: file.read_bytes() for file in Path("drawn").iterdir()} == {
        "spread.svg": b"spread", "rows.svg": b"rows",
    }  # fmt: skip


def test_a_report_outlives_a_chart_that_fails_and_so_do_the_other_charts(
    ready: FakeServer, vectors: Path, assay: Assay
) -> None:
    """It is there before any of them, and what failed is named."""
    words = ["check", "geometry", "--vectors", "rows.npy", "--charts", "drawn", "--out", "kept"]
    ready.on("GET /v1/jobs/job_1/charts", problem(404, "unknown-job", "There is no job."))
    ran = assay(*words, "--json")
    assert (ran.code, ran.out.encode()) == (2, STORED)
    items = [{"name": name, "title": f"{name}?"} for name in ("spread", "rows", "hubs")]
    ready.on("GET /v1/jobs/job_1/charts", Answer(200, {"items": items, "drawn": True}))
    for name in ("spread", "hubs"):
        broken = problem(500, "internal", "A chart could not be drawn.")
        ready.on(f"GET /v1/jobs/job_1/charts/{name}.svg", broken)
    drawn = Answer(200, b"rows", {"Content-Type": "image/svg+xml"})
    ready.on("GET /v1/jobs/job_1/charts/rows.svg", drawn)
    ran = assay(*words, "--json")
    assert (ran.code, ran.out.encode()) == (4, STORED)
    assert Path("kept/report.json").read_bytes() == STORED
    assert [file.name for file in Path("drawn").iterdir()] == ["rows.svg"]
    told = [json.loads(line) for line in ran.err.splitlines() if line.startswith("{")]
    assert [one["detail"] for one in told] == [
        f"chart `{name}`: A chart could not be drawn." for name in ("spread", "hubs")
    ]


@pytest.mark.parametrize("folder", ["rows.npy", "rows.npy/deep", "/proc/x"])
@pytest.mark.parametrize("more", [[], ["--local"]])
def test_where_charts_cannot_be_written_is_said_before_anything_is_sent(
    folder: str, more: list[str], ready: FakeServer, vectors: Path, assay: Assay
) -> None:
    ran = assay("check", "geometry", "--vectors", "rows.npy", "--charts", folder, *more)
    assert (ran.code, ran.out) == (2, "")
    assert f"`{folder}/*.svg` cannot be written" in ran.err
    assert ready.asked == []


POINT = {
    "job": "job_1", "kind": "geometry", "kind_version": 1, "created_at": "2026-01-02T03:04:05Z",
    "tags": {}, "inputs": {}, "cached": False, "digest": "b" * 64,
    "measures": [
        {"measure": "rankme", "unit": "1", "estimate": 12.5, "interval": None},
        {
            "measure": "anisotropy", "unit": "1", "estimate": 0.25,
            "interval": {"low": 0.125, "high": 0.375, "level": 0.95},
        },
        {"measure": "gap", "unit": "1", "estimate": None, "interval": None},
    ],
}  # fmt: skip


def test_reports_without_a_job_are_measures_over_time(server: FakeServer, assay: Assay) -> None:
    """Filters go to the server; one line for each measure."""
    server.on("GET /v1/reports", Answer(200, {"items": [POINT], "next_cursor": None}))
    ran = assay(
        "reports", "--kind", "geometry", "--measure", "rankme", "--tag", "a:b", "--dataset", "ds_1",
        "--server", server.url,
    )  # fmt: skip
    assert ran.code == 0
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert lines == [
        "01-02 03:04 job_1 geometry",
        "rankme 12.5000",
        "anisotropy 0.2500 [0.1250, 0.3750]",
        "gap undefined",
    ]
    (asked,) = server.calls("GET /v1/reports")
    assert asked.query == {
        "kind": "geometry", "measure": "rankme", "tag": "a:b", "dataset": "ds_1", "limit": "20",
    }  # fmt: skip
    printed = assay("reports", "--json", "--server", server.url)
    assert json.loads(printed.out) == [POINT]


def test_a_report_that_repeats_another_is_marked_and_can_be_left_out(
    server: FakeServer, assay: Assay
) -> None:
    again = {**POINT, "job": "job_2", "cached": True}
    server.on("GET /v1/reports", Answer(200, {"items": [again, POINT], "next_cursor": None}))
    heads = assay("reports", "--server", server.url).out.splitlines()[::4]
    assert [" ".join(line.split()[2:]) for line in heads] == [
        "job_2 geometry cached",
        "job_1 geometry",
    ]
    assay("reports", "--computed", "--csv", "--server", server.url)
    assert server.calls("GET /v1/reports")[-1].query == {"computed": "true", "limit": "20"}
    assert assay("reports", "job_1", "--computed").code == 2


def test_csv_of_several_pages_has_one_head(server: FakeServer, assay: Assay) -> None:
    """Pages follow the `Link` of the one before, as far as there are to be reports."""
    kind = {"Content-Type": "text/csv; charset=utf-8"}
    link = {"Link": '</v1/reports?limit=200&cursor=9-job_1>; rel="next"'}
    pages = [Answer(200, b"job,x\r\na,1\r\n", kind | link), Answer(200, b"job,x\r\nb,2\r\n", kind)]
    server.on("GET /v1/reports", *pages)
    ran = assay("reports", "--csv", "--limit", 300, "--server", server.url)
    assert (ran.code, ran.out) == (0, "job,x\r\na,1\r\nb,2\r\n")
    first, second = server.calls("GET /v1/reports")
    assert (first.headers["accept"], first.query) == ("text/csv", {"limit": "200"})
    assert second.query == {"limit": "100", "cursor": "9-job_1"}


def test_one_report_and_reports_over_time_are_not_asked_for_at_once(assay: Assay) -> None:
    assert assay("reports", "job_1", "--kind", "geometry").code == 2
    assert assay("reports", "--markdown").code == 2
    assert assay("reports", "--csv", "--json").code == 2


def test_a_server_that_knows_no_summary_is_found_out(ready: FakeServer, assay: Assay) -> None:
    """It answers with JSON whatever is asked for."""
    ran = assay("reports", "job_1", "--markdown")
    assert (ran.code, ran.out) == (4, "")
    assert "not the answer" in ran.err or "unexpected-answer" in ran.err


def test_a_reader_that_leaves_early_changes_no_exit_code(server: FakeServer) -> None:
    done = {"id": "gate_1", "state": "done", "jobs": {}, "verdict": "inconclusive", "rules": RULES}
    server.on("POST /v1/gates", Answer(200, done))
    Path("policy.json").write_text("{}", encoding="utf-8")
    for option in ([], ["--json"]):
        reading, writing = os.pipe()
        os.close(reading)
        words = ["gate", "policy.json", "--server", server.url, *option]
        ran = subprocess.run(
            [sys.executable, "-m", "assay_client.cli", *words],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        os.close(writing)
        assert (ran.returncode, ran.stderr) == (3, "gate run gate_1\n")


def test_the_catalogue_is_listed_and_shown(ready: FakeServer, assay: Assay) -> None:
    roles = [
        {
            "name": name,
            "kind": kind,
            "required": kind == "vectors",
            "description": "Rows to\ndescribe.",
            "paired_with": [],
        }
        for name, kind in (("vectors", "vectors"), ("groups", "column"))
    ]
    level = {"type": "number", "default": 0.95, "description": "Coverage."}
    bad = {"enum": ["error", "drop"], "default": "error"}
    fit = {"anyOf": [{"const": "procrustes"}, {"type": "null"}], "default": None}
    check = {
        "kind": "geometry",
        "title": "How the vectors spread",
        "version": 2,
        "description": "First line\nof it.\n\nSecond paragraph.",
        "roles": roles,
        "params_schema": {"properties": {"level": level, "on_bad_rows": bad, "align": fit}},
        "measures": [
            {
                "path": "anisotropy",
                "description": "Mean cosine.",
                "low": -1,
                "high": 1,
                "better": "lower",
            }
        ],
        "warnings": {"duplicates": "Rows equal an earlier row."},
        "scope": ["Not which labels can be recovered."],
        "sources": ["doi:10.1/x"],
    }
    ready.on("GET /v1/checks", Answer(200, {"items": [check]}))
    ready.on("GET /v1/checks/geometry", Answer(200, check))

    listed, shown = assay("checks").out, assay("checks", "geometry").out

    assert listed.splitlines() == ["check     title", "geometry  How the vectors spread"]
    for line in (
        "First line of it.",
        "  vectors  vectors, required",
        "  level  number, default 0.95",
        '  on_bad_rows  "error" | "drop", default "error"',
        '  align  "procrustes" | null, default null',
        "  anisotropy  -1..1, lower is better",
        "  duplicates  in a rule warnings.duplicates",
        "• Not which labels can be recovered.",
    ):
        assert line in shown.splitlines()
    assert json.loads(assay("checks", "geometry", "--json").out) == check


def test_import_waits_for_the_job_and_prints_the_dataset(ready: FakeServer, assay: Assay) -> None:
    done = {**job(), "kind": "import", "result": {"dataset": "ds_9"}}
    ready.on("POST /v1/datasets", Answer(202, job("queued")))
    ready.on("GET /v1/jobs/job_1", Answer(200, done))
    ready.on("GET /v1/datasets/ds_9", Answer(200, {"id": "ds_9", "n": 3}))
    ran = assay("import", "parquet", "connection=lake", "path=a.parquet", 'columns=["k"]')

    assert (ran.code, ran.out) == (0, "ds_9\n")
    body = ready.calls("POST /v1/datasets")[0].json
    assert body["source"] == {
        "kind": "parquet", "connection": "lake", "path": "a.parquet", "columns": ["k"],
    }  # fmt: skip


def test_an_import_says_which_rows_it_left_out(ready: FakeServer, assay: Assay) -> None:
    """For people; what is printed stays the id alone."""
    done = {**job(), "kind": "import", "result": {"dataset": "ds_9"}}
    source = {"rows": 399, "missing_vectors": 1, "missing_ids": ["77"]}
    ready.on("POST /v1/datasets", Answer(202, done))
    ready.on("GET /v1/datasets/ds_9", Answer(200, {"id": "ds_9", "spec": {"source": source}}))
    ran = assay("import", "parquet", "connection=lake", "path=a.parquet")
    assert (ran.code, ran.out) == (0, "ds_9\n")
    assert "left out of 400 rows, without a vector: 1 (77)" in ran.err
    for told in ({"rows": 400, "missing_vectors": 0}, "a text of the user", None):
        ready.on("GET /v1/datasets/ds_9", Answer(200, {"id": "ds_9", "spec": {"source": told}}))
        assert "left out" not in assay("import", "parquet", "connection=lake", "path=a.parquet").err


def test_an_import_that_fails_says_why(ready: FakeServer, assay: Assay) -> None:
    problem = {"code": "source-denied", "title": "t", "detail": "not this one", "errors": []}
    ready.on("POST /v1/datasets", Answer(202, job("failed", problem=problem)))
    ran = assay("import", "npy", "connection=lake", "path=a.npy")
    assert ran.code == 4
    assert "not this one" in ran.err
    assert assay("import", "npy", "lake").code == 2


BASELINE = {
    "name": "prod", "dataset": "ds_2", "version": 2, "gate": "gate_1",
    "set_at": "2026-01-02T03:04:05Z",
}  # fmt: skip


def test_baselines_are_listed_shown_and_set(
    server: FakeServer, assay: Assay, vectors: Path, labels: Path
) -> None:
    """By a stored dataset, a file, what another name stands for, or rows of a store."""
    before = {**BASELINE, "dataset": "ds_1", "version": 1, "gate": None}
    server.on("GET /v1/baselines", Answer(200, {"items": [BASELINE], "next_cursor": None}))
    server.on("GET /v1/baselines/prod", Answer(200, {**BASELINE, "history": [BASELINE, before]}))
    server.on("PUT /v1/baselines/next", Answer(200, {**BASELINE, "name": "next"}))
    to = ["--server", server.url]
    lines = [line.split() for line in assay("baselines", "list", *to).out.splitlines()]
    assert lines[1] == ["prod", "2", "ds_2", "01-02", "03:04", "gate_1"]
    shown = [line.split() for line in assay("baselines", "show", "prod", *to).out.splitlines()]
    assert [line[1] for line in shown[1:]] == ["2", "1"]
    assert shown[2][-1] == "hand"
    for rows, dataset in (("ds_7", "ds_7"), ("baseline:prod", "ds_2"), ("rows.npy", "ds_1")):
        ran = assay("baselines", "set", "next", rows, *to)
        assert (ran.code, ran.out) == (0, "ds_2\n")
        assert server.calls("PUT /v1/baselines/next")[-1].json == {"dataset": dataset}
    done = {**job(), "kind": "import", "result": {"dataset": "ds_9"}}
    server.routes["POST", "/v1/datasets"] = [Answer(202, done)]
    server.on("GET /v1/datasets/ds_9", Answer(200, {"id": "ds_9"}))
    assert assay("baselines", "set", "next", "npy:connection=lake,path=a.npy", *to).code == 0
    assert server.calls("PUT /v1/baselines/next")[-1].json == {"dataset": "ds_9"}
    ran = assay("baselines", "set", "next", "rows.csv:intent", *to)
    assert (ran.code, ran.out) == (2, "")
    assert json.loads(assay("baselines", "list", "--json", *to).out) == [BASELINE]
    server.on("GET /v1/baselines", Answer(200, {"items": [], "next_cursor": None}))
    assert assay("baselines", "list", *to).out == "no baselines\n"


@pytest.mark.parametrize("verdict", ["pass", "fail", "inconclusive", "invalid"])
def test_what_passed_is_promoted_and_nothing_else(
    verdict: str, server: FakeServer, assay: Assay, vectors: Path
) -> None:
    done = {
        "id": "gate_1", "state": "done", "jobs": {}, "imports": {"rows": "job_3"},
        "verdict": verdict, "rules": RULES,
    }  # fmt: skip
    server.on("POST /v1/gates", Answer(200, done))
    server.on("GET /v1/gates/gate_1", Answer(200, done))
    server.on("POST /v1/gates/gate_1/promote", Answer(200, BASELINE))
    policy = {"inputs": {"rows": "vectors"}}
    Path("policy.json").write_text(json.dumps(policy), encoding="utf-8")
    words = ["gate", "policy.json", "--server", server.url, "--input", "rows=rows.npy"]
    first = assay(*words, "--promote", "rows=prod")
    later = assay("gates", "gate_1", "--server", server.url, "--promote", "rows=prod")
    asked = [one.json for one in server.calls("POST /v1/gates/gate_1/promote")]
    if verdict == "pass":
        assert asked == [{"input": "rows", "baseline": "prod"}] * 2
        assert "baseline prod is ds_2 (version 2)" in first.err
    else:
        assert asked == []
        assert f"nothing is promoted: the verdict is {verdict}" in first.err
        assert "nothing is promoted" in later.err
    assert first.code == {"pass": 0, "fail": 1, "inconclusive": 3, "invalid": 4}[verdict]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--promote", "rows"], "give input=baseline"),
        (["--promote", "rows=Prod"], "a-z, 0-9"),
        (["--promote", "row=prod"], "only vectors become a baseline: rows"),
        (["--promote", "rows=prod", "--local"], "kept by a server"),
    ],
)
def test_what_cannot_be_promoted_is_said_before_anything_is_uploaded(
    words: list[str], said: str, server: FakeServer, assay: Assay, vectors: Path
) -> None:
    Path("policy.json").write_text('{"inputs": {"rows": "vectors"}}', encoding="utf-8")
    to = [] if "--local" in words else ["--server", server.url]
    ran = assay("gate", "policy.json", *to, "--input", "rows=rows.npy", *words)
    assert (ran.code, ran.out) == (2, "")
    assert said in " ".join(ran.err.split())
    assert server.uploads == 0
    assert assay("gates", "--promote", "rows=prod", "--server", server.url).code == 2


def test_a_table_is_uploaded_once_with_the_columns_it_is_read_by(
    ready: FakeServer, assay: Assay
) -> None:
    """For a role and a column of it."""
    Path("rows.parquet").write_bytes(b"PAR1")
    ran = assay(
        "check", "geometry", "--vectors", "rows.parquet?vector_column=v", "--groups",
        "rows.parquet:topic", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    (asked,) = ready.calls("POST /v1/datasets")
    assert asked.query == {"name": "rows.parquet", "vector_column": "v"}
    inputs = ready.calls("POST /v1/jobs")[0].json["inputs"]
    assert inputs == {
        "vectors": {"dataset": "ds_1"},
        "groups": {"dataset": "ds_1", "column": "topic"},
    }
    assert assay("upload", "rows.parquet", "--id-column", "doc").code == 0
    assert ready.calls("POST /v1/datasets")[-1].query["id_column"] == "doc"


def test_rows_of_a_store_are_named_in_one_word(ready: FakeServer, assay: Assay) -> None:
    words = "pgvector:connection=prod,table=docs,vector=embedding,id=doc"
    assert assay("check", "geometry", "--vectors", words, "--json").code == 0
    source = {
        "kind": "pgvector", "connection": "prod", "table": "docs", "vector": "embedding", "id": "doc",
    }  # fmt: skip
    assert ready.calls("POST /v1/jobs")[0].json["inputs"] == {"vectors": {"source": source}}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--input", "a", "baseline:x"], "unexpected `baseline:x`: data are given as `--input NAME="),
        (["a=rows.npy"], "unexpected `a=rows.npy`: data are given as `--input NAME=FILE`"),
        (["--inputs", "a=rows.npy"], "there is no option `--inputs`; did you mean `--input`?"),
        (["--approved", "rows.npy"], "no option `--approved`: data are given as `--input approved="),
        (["--input", "a:rows.npy"], "name=file.npy, name=rows.csv:COLUMN or name=baseline:NAME"),
        (["--input", "a=baseline:"], "give `--input a=baseline:NAME`, a name of a-z, 0-9, _ and -"),
        (["--input", "a=baseline:Up"], "`--input a=baseline:Up`: give `--input a=baseline:NAME`"),
        (["--input", "a=gone.npy"], "`--input a=gone.npy`: there is no such file"),
        (["--input", "a={"], "`--input a={` is not JSON"),
        (["--input", "a=."], "`--input a=.` is a directory; name a file"),
    ],
    ids=str,
)  # fmt: skip
def test_small_mistakes_of_a_gate_are_answered_with_what_is_right(
    words: list[str], says: str, vectors: Path, assay: Assay
) -> None:
    """As they were typed, and nothing is sent: there is no server."""
    vectors.with_name("policy.yaml").write_text("{version: 1, name: release}")
    ran = assay("gate", "policy.yaml", *words)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


def test_an_option_there_is_not_is_no_policy(assay: Assay) -> None:
    """Given first."""
    ran = assay("gate", "--inputs", "a=rows.npy", "policy.yaml")
    assert ran.code == 2
    assert "there is no option `--inputs`; did you mean `--input`?" in ran.err


@pytest.mark.parametrize("option", ["--markdown", "--junit"])
@pytest.mark.parametrize("file", ["rows.npy/x.xml", "/proc/x/m.md", "/proc/m.md", "."])
def test_where_a_gate_cannot_write_is_said_before_anything_is_sent(
    option: str, file: str, server: FakeServer, assay: Assay, vectors: Path
) -> None:
    """The server is not asked at all."""
    Path("policy.json").write_text("{}", encoding="utf-8")
    ran = assay("gate", "policy.json", "--server", server.url, option, file)
    assert (ran.code, ran.out) == (2, "")
    assert f"`{file}` cannot be written" in ran.err
    assert server.asked == []


def test_a_file_that_is_written_over_is_as_it_was_until_then(
    assay: Assay, vectors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking whether it can be written changes nothing, and leaves nothing behind."""
    Path("old.xml").write_text("old")
    Path("new").mkdir()
    for file in (Path("old.xml"), Path("new/er/one.xml")):
        refuse_unwritable(file)
    assert Path("old.xml").read_text() == "old"
    assert list(Path("new").rglob("*")) == [Path("new/er")]


@pytest.mark.parametrize(("verdict", "code"), [("pass", 0), ("fail", 1), ("inconclusive", 3)])
def test_a_verdict_outlives_a_disk_that_fills_up(
    verdict: str, code: int, server: FakeServer, assay: Assay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is printed, the exit code is still its own, and what could not be written is said."""
    done = {
        "id": "gate_1", "state": "done", "verdict": verdict, "policy": "p", "rules": [], "warnings": [],
    }  # fmt: skip
    server.on("POST /v1/gates/validate", Answer(200, {"inputs": {}}))
    server.on("POST /v1/gates", Answer(200, done))
    server.on("GET /v1/gates/gate_1", Answer(200, b"## page\n", {"Content-Type": "text/markdown"}))
    Path("policy.json").write_text("{}", encoding="utf-8")

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    words = ["--markdown", "gate.md", "--junit", "gate.xml", "--json"]
    ran = assay("gate", "policy.json", "--server", server.url, *words)
    assert (ran.code, json.loads(ran.out)) == (code, done)
    told = [json.loads(line) for line in ran.err.splitlines()[-2:]]
    assert [one["exit_code"] for one in told] == [code, code]
    assert [one["detail"] for one in told] == [
        f"`{file}` cannot be written: No space left on device" for file in ("gate.md", "gate.xml")
    ]


@pytest.mark.parametrize("folder", ["rows.npy/deep", "/proc/x", "/proc"])
def test_where_a_report_cannot_be_written_is_said_before_anything_is_sent(
    folder: str, ready: FakeServer, vectors: Path, assay: Assay
) -> None:
    """In words, not by a traceback after the work."""
    ran = assay("check", "geometry", "--vectors", "rows.npy", "--out", folder)
    assert (ran.code, ran.out) == (2, "")
    assert f"`{folder}/report.json` cannot be written" in ran.err
    assert "Traceback" not in ran.err
    assert ready.asked == []


def test_a_report_outlives_a_disk_that_fills_up(
    ready: FakeServer, vectors: Path, assay: Assay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is printed before it is written."""

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    ran = assay("check", "geometry", "--vectors", "rows.npy", "--out", "folder", "--json")
    assert (ran.code, ran.out.encode()) == (2, STORED)
    assert "`folder/report.json` cannot be written: No space left on device" in ran.err


def test_a_verdict_outlives_a_page_that_does_not_come(server: FakeServer, assay: Assay) -> None:
    """The server is gone when it is asked for the page."""
    done = {"id": "gate_1", "state": "done", "verdict": "fail", "policy": "p", "rules": []}
    server.on("POST /v1/gates/validate", Answer(200, {"inputs": {}}))
    server.on("POST /v1/gates", Answer(200, done))
    server.on("GET /v1/gates/gate_1", problem(404, "unknown-gate", "There is no gate `gate_1`."))
    Path("policy.json").write_text("{}", encoding="utf-8")
    words = ["--markdown", "gate.md", "--junit", "gate.xml", "--json"]
    ran = assay("gate", "policy.json", "--server", server.url, *words)
    assert (ran.code, json.loads(ran.out)) == (1, done)
    assert "There is no gate `gate_1`." in ran.err
    assert Path("gate.xml").is_file()
    assert not Path("gate.md").exists()
