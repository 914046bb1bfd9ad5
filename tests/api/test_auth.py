"""Who may do what: keys, projects and scopes; without keys, nothing that is not this machine."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from api.commands import keys as keys_command
from api.keys import Keys, Scope, create_key
from service.errors import InvalidRequest
from service.operations import Services, perform

NPY = {"Content-Type": "application/x-npy"}
ALL = [Scope.read, Scope.submit]
JOB = "/v1/jobs/job_" + "0" * 24
READS = ["/v1/checks", "/v1/checks/geometry", "/v1/jobs", "/v1/limits", "/metrics", JOB]
WRITES = [("POST", "/v1/datasets"), ("POST", "/v1/jobs"), ("POST", "/v1/gates"), ("DELETE", JOB)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the keys are kept."""
    return tmp_path / "assay" / "keys"


@pytest.fixture
def door_of(knock: Any, file: Path) -> Any:
    """A door opened with a new key of this project and these scopes."""

    def open_with(project: str, scopes: list[Scope]) -> Any:
        key = create_key(file, project, scopes)
        return knock(keys=Keys(file), key=key)

    return open_with


def test_only_the_hash_of_a_key_is_kept(file: Path) -> None:
    """The secret is nowhere in the file, which only its owner can read; each key has a line."""
    keys = [create_key(file, "search", ALL), create_key(file, "ads", [Scope.admin])]
    text = file.read_text()

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for key in keys:
        prefix, key_id, secret = key.split("_", 2)
        assert prefix == "assay"
        assert len(secret) >= 43, "256 bits"
        assert secret not in text
        assert key_id in text
    records = [json.loads(line) for line in text.splitlines()]
    assert [(one["project"], one["scopes"]) for one in records] == [
        ("search", ["read", "submit"]),
        ("ads", ["admin"]),
    ]
    assert records[0]["sha256"] != records[1]["sha256"]


@pytest.mark.parametrize("project", ["", "A", "a/b", "..", "a b", "-a", "a" * 64, "a\n"])
def test_a_project_is_a_plain_name(project: str, file: Path) -> None:
    """It becomes a folder of the store."""
    with pytest.raises(InvalidRequest, match="project"):
        create_key(file, project, ALL)
    assert not file.exists()


def test_keys_are_created_on_the_command_line(file: Path) -> None:
    """The key on standard output, once; an unknown scope or project is a usage error."""

    def run(*words: str) -> Any:
        return CliRunner().invoke(keys_command, ["create", "--file", str(file), *words])

    made = run("--project", "search", "--scope", "read", "--scope", "submit")
    assert made.exit_code == 0
    assert made.stdout.strip().startswith("assay_")
    assert made.stdout.strip().split("_", 2)[2] not in file.read_text()
    assert run("--project", "search", "--scope", "write").exit_code == 2
    assert run("--project", "No", "--scope", "read").exit_code == 2
    assert len(file.read_text().splitlines()) == 1


@pytest.mark.parametrize("path", READS)
def test_nothing_is_read_without_a_key(path: str, knock: Any, file: Path, refusal: Any) -> None:
    """401 with the scheme to use, for no key and for wrong ones."""
    key = create_key(file, "search", ALL)
    door = knock(keys=Keys(file))
    _, key_id, secret = key.split("_", 2)
    for sent in (
        None, "", "Bearer", "Bearer ", f"Basic {key}", key, f"Bearer x{key}", f"Bearer {key}x",
        f"Bearer assay_{key_id}_", f"Bearer assay_{key_id}", f"Bearer assay_000000000000_{secret}",
        f"Bearer other_{key_id}_{secret}", f"Bearer {key[:-1]}",
    ):  # fmt: skip
        answer = door.get(path, headers={} if sent is None else {"Authorization": sent})
        refusal(answer, 401, "unauthorised")
        assert answer.headers["www-authenticate"] == "Bearer"
    found = door.get(path, headers={"Authorization": f"bearer  {key}"})
    assert found.status_code == (404 if path == JOB else 200)


@pytest.mark.parametrize(("method", "path"), WRITES)
def test_nothing_is_written_without_a_key(
    method: str, path: str, knock: Any, file: Path, refusal: Any
) -> None:
    """401 before the body is looked at."""
    create_key(file, "search", ALL)
    refusal(knock(keys=Keys(file)).send(method, path, content=b"x"), 401, "unauthorised")


@pytest.mark.parametrize(("method", "path"), WRITES)
def test_a_reading_key_writes_nothing(method: str, path: str, door_of: Any, refusal: Any) -> None:
    """403 that names the scope."""
    found = refusal(
        door_of("search", [Scope.read]).send(method, path, content=b"x"), 403, "forbidden"
    )
    assert "`submit`" in found["detail"]


@pytest.mark.parametrize("path", READS)
def test_a_submitting_key_reads_nothing(path: str, door_of: Any, refusal: Any) -> None:
    """Scopes are granted one by one."""
    found = refusal(door_of("search", [Scope.submit]).get(path), 403, "forbidden")
    assert "`read`" in found["detail"]


def test_an_admin_key_does_everything(door_of: Any, npy: Any) -> None:
    """`admin` includes the others."""
    door = door_of("search", [Scope.admin])
    assert door.post("/v1/datasets", content=npy(np.eye(2)), headers=NPY).status_code == 201
    assert door.get("/v1/jobs").status_code == 200


def test_a_key_added_or_removed_counts_at_once(knock: Any, file: Path, refusal: Any) -> None:
    """The file is read again when it changes."""
    first = create_key(file, "search", ALL)
    door = knock(keys=Keys(file))
    auth = {"Authorization": f"Bearer {first}"}
    assert door.get("/v1/jobs", headers=auth).status_code == 200
    second = create_key(file, "search", ALL)
    assert door.get("/v1/jobs", headers={"Authorization": f"Bearer {second}"}).status_code == 200

    kept = [line for line in file.read_text().splitlines() if first.split("_")[1] not in line]
    file.write_text("\n".join(kept) + "\n")
    os.utime(file, ns=(1, 1))
    refusal(door.get("/v1/jobs", headers=auth), 401, "unauthorised")
    assert door.get("/v1/jobs", headers={"Authorization": f"Bearer {second}"}).status_code == 200


def test_another_project_finds_nothing_of_this_one(
    door_of: Any, npy: Any, services: Services, refusal: Any, waiting: list[str]
) -> None:
    """404 on dataset, job, report and gate, by reading, using, cancelling and listing."""
    ours, theirs = door_of("search", ALL), door_of("ads", ALL)
    rows = np.random.default_rng(1).normal(size=(9, 3))
    dataset = ours.post("/v1/datasets", content=npy(rows), headers=NPY).json()["id"]
    request = {"kind": "geometry", "inputs": {"vectors": {"dataset": dataset}}}
    policy = {
        "version": 1, "name": "x", "inputs": {"rows": "vectors"},
        "checks": {"shape": {"kind": "geometry", "inputs": {"vectors": "rows"}}},
        "rules": [{"measure": "shape.rankme", "at_least": 1.01}],
    }  # fmt: skip
    gate = {"policy": policy, "inputs": {"rows": {"dataset": dataset}}}
    job = ours.post("/v1/jobs", json=request).json()
    run = ours.post("/v1/gates", json=gate).json()
    queued = ours.post("/v1/jobs", json={**request, "seed": 9}).json()
    for job_id in waiting[:2]:
        perform(services, job_id)
    assert ours.get(job["links"]["report"]).status_code == 200
    assert ours.get(run["links"]["self"]).json()["verdict"] == "pass"

    refusal(theirs.get(f"/v1/datasets/{dataset}"), 404, "unknown-dataset")
    refusal(theirs.post("/v1/jobs", json=request), 404, "unknown-dataset")
    refusal(theirs.post("/v1/gates", json=gate), 404, "unknown-dataset")
    for one in (job, queued):
        refusal(theirs.get(one["links"]["self"]), 404, "unknown-job")
        refusal(theirs.get(one["links"]["report"]), 404, "unknown-job")
        refusal(theirs.delete(one["links"]["self"]), 404, "unknown-job")
    refusal(theirs.get(run["links"]["self"]), 404, "unknown-gate")
    refusal(theirs.delete(run["links"]["self"]), 404, "unknown-gate")
    assert theirs.get("/v1/jobs").json()["items"] == []
    assert ours.get(queued["links"]["self"]).json()["state"] == "queued"
    assert {one["project"] for one in ours.get("/v1/jobs").json()["items"]} == {"search"}


def test_equal_content_is_not_shared_between_projects(
    door_of: Any, npy: Any, work: Any, refusal: Any
) -> None:
    """The same rows and question: another dataset, another run; a cursor shows nothing either."""
    ours, theirs = door_of("search", ALL), door_of("ads", ALL)
    body = npy(np.random.default_rng(1).normal(size=(9, 3)))
    sent = [one.post("/v1/datasets", content=body, headers=NPY) for one in (ours, theirs)]
    assert [answer.status_code for answer in sent] == [201, 201]
    ids = [answer.json()["id"] for answer in sent]
    assert ids[0] != ids[1]

    first, second = ({"kind": "geometry", "inputs": {"vectors": {"dataset": one}}} for one in ids)
    ours.post("/v1/jobs", json=first)
    work()
    assert theirs.post("/v1/jobs", json=second).status_code == 202
    ours.post("/v1/jobs", json={**first, "seed": 1})
    cursor = ours.get("/v1/jobs?limit=1").json()["next_cursor"]
    shown = theirs.get("/v1/jobs", params={"cursor": cursor}).json()["items"]
    assert {job["project"] for job in shown} <= {"ads"}


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8000",
        "127.0.0.1",
        "127.0.0.1:8000",
        "[::1]",
        "[::1]:8000",
        "LocalHost",
    ],
)
def test_without_keys_this_machine_is_served(host: str, door: Any) -> None:
    """By every name of loopback."""
    assert door.get("/v1/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.2", "0.0.0.0",
        "[::2]", "[::1", "::1", "localhost:80:evil.example", "", "evil.example:80", "192.168.0.9",
        "localhost@evil.example", "evil.example[::1]", "x[::1]",
    ],
)  # fmt: skip
def test_without_keys_no_other_host_is_served(host: str, door: Any, refusal: Any) -> None:
    """A page whose name resolves to 127.0.0.1 would send its own name."""
    refusal(door.get("/v1/jobs", headers={"Host": host}), 403, "forbidden")
    refusal(door.post("/v1/jobs", content=b"{}", headers={"Host": host}), 403, "forbidden")


@pytest.mark.parametrize(
    "header",
    [
        {"Origin": "http://localhost:8000"}, {"Origin": "null"}, {"Origin": "https://evil.example"},
        {"Forwarded": "for=10.0.0.1"}, {"X-Forwarded-For": "127.0.0.1"}, {"x-forwarded-for": ""},
    ],
    ids=str,
)  # fmt: skip
def test_without_keys_web_pages_and_proxies_are_refused(
    header: dict[str, str], door: Any, refusal: Any
) -> None:
    """Whatever they claim, on every route that reads or writes."""
    for path in (*READS, "/v1/datasets/ds_x", "/v1/gates/x"):
        refusal(door.get(path, headers=header), 403, "forbidden")
    for method, path in WRITES:
        refusal(door.send(method, path, headers=header), 403, "forbidden")


def test_no_answer_allows_another_origin(door: Any, door_of: Any) -> None:
    """No CORS, with keys and without, not even for a preflight."""
    for one in (door, door_of("search", ALL)):
        for method in ("GET", "OPTIONS"):
            answer = one.send(
                method,
                "/v1/jobs",
                headers={"Origin": "https://x.example", "Access-Control-Request-Method": "POST"},
            )
            assert not [name for name in answer.headers if name.startswith("access-control")]
            assert answer.status_code != 204


def test_with_keys_proxies_and_other_hosts_are_welcome(door_of: Any) -> None:
    """The key decides."""
    headers = {"Host": "assay.example", "X-Forwarded-For": "10.0.0.1", "Forwarded": "for=x"}
    assert door_of("search", ALL).get("/v1/jobs", headers=headers).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.9", "assay.example"])
def test_without_keys_no_other_address_is_bound(host: str, tmp_path: Path) -> None:
    """Refused before anything is started, with the way out."""
    from service.settings import Settings
    from workers.stack import assemble

    settings = Settings.read({"ASSAY_HOME": str(tmp_path / "home")})
    with pytest.raises(InvalidRequest, match="assay keys create"):
        assemble(settings, workers=1, api=(host, 8000))
    assert not (tmp_path / "home").exists()


def test_alive_and_ready_need_no_key(knock: Any, file: Path) -> None:
    """An orchestrator has none; they tell nothing of any project."""
    create_key(file, "search", ALL)
    door = knock(keys=Keys(file))
    assert door.get("/healthz").status_code == 200
    assert door.get("/readyz").status_code == 200
