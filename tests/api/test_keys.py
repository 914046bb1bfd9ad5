"""The keys file: changed whole or not at all, and heeded by a running service at once."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.commands import keys as keys_command
from api.keys import Keys, Scope, create_key, read_keys, revoke_key, rotate_key
from service.errors import InvalidRequest

NEVER = timedelta()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def command(file: Path) -> Callable[..., Any]:
    """Run `assay keys ...` on the file."""

    def run(word: str, *words: str) -> Any:
        return CliRunner().invoke(keys_command, [word, "--file", str(file), *words])

    return run


@pytest.fixture
def status(knock: Any, file: Path) -> Callable[[str], int]:
    """What a service that was started before any change answers to a key."""
    door: list[Any] = []

    def ask(key: str) -> int:
        if not door:
            door.append(knock(keys=Keys(file)))
        return int(door[0].get("/v1/jobs", headers={"Authorization": f"Bearer {key}"}).status_code)

    return ask


def id_of(key: str) -> str:
    return key.split("_")[1]


def test_a_revoked_key_stops_to_count_and_the_others_do_not(file: Path, status: Any) -> None:
    """At the next request, without a restart."""
    first, second = (create_key(file, "p", [Scope.read]) for _ in range(2))
    assert (status(first), status(second)) == (200, 200)
    revoke_key(file, id_of(first))
    assert (status(first), status(second)) == (401, 200)
    assert id_of(first) not in file.read_text()


def test_a_rotated_key_has_the_same_rights(file: Path, status: Any) -> None:
    """The old one is worthless at once, if nothing else is asked for."""
    old = create_key(file, "search", [Scope.submit, Scope.read])
    assert status(old) == 200
    new = rotate_key(file, id_of(old), NEVER)
    assert (status(old), status(new)) == (401, 200)
    (record,) = read_keys(file)
    assert (record.project, record.scopes) == ("search", [Scope.read, Scope.submit])
    assert new.split("_", 2)[2] not in file.read_text()


def test_the_old_key_may_be_kept_for_a_while(
    file: Path, status: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that clients can change over; then it stops by itself, and the next change drops it."""
    old = create_key(file, "p", [Scope.read])
    new = rotate_key(file, id_of(old), timedelta(seconds=60))
    assert (status(old), status(new)) == (200, 200)

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(UTC) + timedelta(seconds=61)

    monkeypatch.setattr("api.auth.datetime", Later)
    assert (status(old), status(new)) == (401, 200)
    monkeypatch.setattr("api.keys.datetime", Later)
    create_key(file, "p", [Scope.read])
    assert id_of(old) not in file.read_text()
    assert len(read_keys(file)) == 2


def test_an_unknown_key_cannot_be_changed(file: Path) -> None:
    """Nothing is written, and a mistyped file is not made."""
    with pytest.raises(FileNotFoundError):
        revoke_key(file, "x")
    assert list(file.parent.iterdir()) == []
    create_key(file, "p", [Scope.read])
    before = file.read_bytes()
    for change in (lambda: revoke_key(file, "x"), lambda: rotate_key(file, "x", NEVER)):
        with pytest.raises(InvalidRequest, match="assay keys list"):
            change()
    assert file.read_bytes() == before


def test_a_damaged_file_is_not_rewritten(file: Path, status: Any) -> None:
    """What cannot be read would be lost; the service goes on with what it knows."""
    key = create_key(file, "p", [Scope.read])
    assert status(key) == 200
    with file.open("a") as lines:
        lines.write("half a li")
    for change in (
        lambda: create_key(file, "p", [Scope.read]),
        lambda: revoke_key(file, id_of(key)),
    ):
        with pytest.raises(InvalidRequest, match="repair"):
            change()
    assert file.read_text().endswith("half a li")
    assert status(key) == 200


def test_nobody_sees_a_part_of_a_file(file: Path) -> None:
    """Eight writers at once, a reader all the while: every look finds whole keys, none is lost."""
    create_key(file, "p", [Scope.read])
    stop, seen = threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            seen.append(len(read_keys(file)))

    reader = threading.Thread(target=look)
    writers = [
        threading.Thread(target=lambda: [create_key(file, "p", [Scope.read]) for _ in range(10)])
        for _ in range(8)
    ]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert len(read_keys(file)) == 81
    assert seen == sorted(seen)
    assert seen[0] >= 1
    assert sorted(path.name for path in file.parent.iterdir()) == ["keys", "keys.lock"]


KILLED = """
import os, pathlib, sys
from api import keys
whole = os.fsync
os.fsync = lambda file: os._exit(9)
keys.revoke_key(pathlib.Path(sys.argv[1]), sys.argv[2])
"""


def test_a_change_that_dies_leaves_the_file_as_it_was(file: Path) -> None:
    """Killed when all is written and not yet in place."""
    keys = [create_key(file, "p", [Scope.read]) for _ in range(3)]
    before = file.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(file), id_of(keys[1])], check=False
    )  # fmt: skip
    assert done.returncode == 9
    assert file.read_bytes() == before
    revoke_key(file, id_of(keys[1]))
    assert len(read_keys(file)) == 2


def test_mode_and_link_of_the_file_survive(file: Path) -> None:
    """A file a group may read stays so; a link leads to the file that changes."""
    create_key(file, "p", [Scope.read])
    file.chmod(0o640)
    link = file.with_name("link")
    link.symlink_to(file)
    create_key(link, "p", [Scope.read])
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert len(read_keys(file)) == 2


def test_the_command_lists_revokes_and_rotates(command: Any, file: Path, status: Any) -> None:
    """Ids and rights; a key stands on standard output alone, and only when it is made."""
    made = command("create", "--project", "search", "--scope", "submit", "--scope", "read")
    other = command("create", "--project", "ads", "--scope", "admin")
    key, theirs = made.stdout.strip(), other.stdout.strip()
    listed = command("list")
    header, first, second = listed.stdout.splitlines()
    assert header.split() == ["id", "project", "scopes", "created"]
    assert header.index("project") == second.index("ads")
    assert header.index("scopes") == second.index("admin")
    assert first.split()[:3] == [id_of(key), "search", "read,submit"]
    assert second.split()[:3] == [id_of(theirs), "ads", "admin"]
    assert command("list", "--project", "ads").stdout.splitlines() == [header, second]
    found = json.loads(command("list", "--json").stdout)
    assert [one["id"] for one in found] == [id_of(key), id_of(theirs)]
    assert not {"sha256", "secret"} & found[0].keys()

    new = command("rotate", id_of(key), "--keep-old-for", "60").stdout.strip()
    assert (status(key), status(new)) == (200, 200)
    assert "until" in command("list").stdout
    assert command("revoke", id_of(key)).exit_code == 0
    assert (status(key), status(new), status(theirs)) == (401, 200, 200)
    for text in (listed.output, command("list", "--json").output):
        assert key.split("_", 2)[2] not in text


def test_the_help_says_what_each_scope_allows(command: Any) -> None:
    """As the routes ask for them: nothing needs more than `submit`, `admin` is both."""
    told = " ".join(command("create", "--help").output.replace("│", " ").split())
    assert "read: see data, reports, gates and baselines." in told
    assert "submit: upload, run checks and gates, cancel, delete datasets, name baselines." in told
    assert "admin: all of it." in told


@pytest.mark.parametrize("words", [("list",), ("revoke", "x"), ("rotate", "x")])
def test_a_missing_file_is_said(words: tuple[str, ...], command: Any, file: Path) -> None:
    """With the command that makes one; exit code 2."""
    ran = command(*words)
    assert ran.exit_code == 2
    assert "assay keys create" in ran.output
    assert not file.exists()


@pytest.mark.parametrize("words", [("revoke", "x"), ("rotate", "x")])
def test_an_unknown_id_is_said(words: tuple[str, ...], command: Any, file: Path) -> None:
    """Exit code 2, nothing changed."""
    create_key(file, "p", [Scope.read])
    ran = command(*words)
    assert (ran.exit_code, "no key `x`" in ran.output) == (2, True)
    assert len(read_keys(file)) == 1


def test_a_folder_that_cannot_be_written_is_said(
    command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, with exit code 2."""

    def refuse(*given: Any, **more: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    ran = command("create", "--project", "p", "--scope", "read")
    assert (ran.exit_code, ran.output) == (
        2,
        "the keys file cannot be changed: Permission denied\n",
    )
