"""Commands and local runs that other distributions add."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from assay_client import extensions
from assay_client.problems import AssayError

from .conftest import Ran, report

MODULE = '''
"""Commands for tests."""
import json, typer

keys = typer.Typer(help="Make and list keys.")

@keys.command()
def create(project: str) -> None:
    typer.echo(f"key of {project}")

@keys.command("list")
def list_keys() -> None:
    raise typer.Exit(3)

def greet(name: str = "you") -> None:
    """Say hello.

    More about it.
    """
    print("hello", name)

class Refusal(Exception):
    code, title, detail = "zero-rows", "Some rows are zero", "2 rows of `a` are zero."

    class Fault:
        pointer, message, count, rows = "/inputs/a", "drop them with `on_bad_rows`", 2, ["4", "9"]

    faults = (Fault(),)

def run(request, base, progress):
    print("noise of a library")
    progress("pairs", 0, 4)
    progress("pairs", 2, 4)
    if request["kind"] == "refused":
        raise Refusal
    if request["kind"] == "broken":
        raise RuntimeError("a bug")
    (base / "seen.json").write_text(json.dumps(request))
    return (base / "answer.json").read_bytes()

def kinds():
    return [{"kind": kind, "title": "How the vectors spread", "version": 1,
             "description": "Spread.", "roles": [], "measures": []}
            for kind in ("geometry", "refused", "broken")]
'''

ENTRY_POINTS = """
[assay.commands]
greet = plugin_for_tests:greet
keys = plugin_for_tests:keys
absent = no_such_module_for_tests:command
check = plugin_for_tests:greet

[assay.local]
run = plugin_for_tests:run
kinds = plugin_for_tests:kinds
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with entry points, first on the path."""
    folder = tmp_path / "site"
    info = folder / "plugin_for_tests-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "plugin_for_tests.py").write_text(MODULE, encoding="utf-8")
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: plugin-for-tests\nVersion: 1.0\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "plugin_for_tests", raising=False)
    (tmp_path / "answer.json").write_text(json.dumps(report()), encoding="utf-8")
    return folder


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "entry_points", lambda group: ())


def test_help_lists_added_commands_without_importing_them(
    plugin: Path, assay: Callable[..., Ran]
) -> None:
    ran = assay("--help")

    lines = [line.split(maxsplit=1) for line in ran.out.splitlines()]
    assert ran.code == 0
    assert ["greet", "Say hello."] in lines
    assert ["keys", "Make and list keys."] in lines
    assert ["absent", "(from plugin-for-tests, which is not complete)"] in lines
    assert ["check", "Run one check and print its report."] in lines
    assert "plugin_for_tests" not in sys.modules


def test_help_loads_neither_http_nor_rich() -> None:
    program = (
        "import sys; from assay_client.cli import run; run(['--help']);"
        "print([m for m in ('httpx', 'rich', 'yaml', 'numpy', 'pydantic') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[-1] == "[]"


def test_a_function_becomes_a_command(plugin: Path, assay: Callable[..., Ran]) -> None:
    assert assay("greet", "--name", "us").out == "hello us\n"
    assert "Say hello." in assay("greet", "--help").out


def test_a_typer_app_becomes_a_group(plugin: Path, assay: Callable[..., Ran]) -> None:
    assert assay("keys", "create", "search").out == "key of search\n"
    assert assay("keys", "list").code == 3
    assert "--install-completion" not in assay("keys", "--help").out


def test_a_command_that_cannot_be_loaded_says_why(plugin: Path, assay: Callable[..., Ran]) -> None:
    ran = assay("absent")

    assert ran.code == 4
    assert "`assay absent` cannot be loaded" in ran.err
    assert "No module named 'no_such_module_for_tests'" in ran.err


def test_a_local_run_takes_paths_as_written_and_prints_only_the_report(
    plugin: Path, tmp_path: Path, vectors: Path, assay: Callable[..., Ran]
) -> None:
    ran = assay("check", "geometry", "--local", "--json", "--vectors", "rows.npy")

    assert (ran.code, ran.out) == (0, (tmp_path / "answer.json").read_text())
    assert ran.err.splitlines() == ["noise of a library", "pairs"]
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen == {"kind": "geometry", "inputs": {"vectors": {"path": "rows.npy"}}}


def test_a_local_refusal_is_told_like_one_of_a_server(
    plugin: Path, assay: Callable[..., Ran]
) -> None:
    ran = assay("check", "refused", "--local")

    assert (ran.code, ran.out) == (4, "")
    assert ran.err.splitlines()[-3:] == [
        "error: zero-rows: 2 rows of `a` are zero.",
        "  /inputs/a: drop them with `on_bad_rows` (2 rows: 4, 9)",
        "next: repair the rows, or pass `--param on_bad_rows=drop`",
    ]


def test_a_bug_in_a_local_run_is_no_verdict(plugin: Path, assay: Callable[..., Ran]) -> None:
    ran = assay("check", "broken", "--local")

    assert ran.code == 4
    assert "RuntimeError: a bug" in ran.err


def test_the_local_catalogue(plugin: Path, assay: Callable[..., Ran]) -> None:
    assert "How the vectors spread" in assay("checks", "--local").out
    assert "Spread." in assay("checks", "geometry", "--local").out
    ran = assay("checks", "geometri", "--local")
    assert ran.code == 2
    assert "unknown-check: there is no check `geometri`; did you mean `geometry`?" in ran.err
    assert "; there are geometry, refused, broken" in assay("checks", "zz", "--local").err


@pytest.mark.usefixtures("nothing_installed")
def test_local_without_the_service_says_what_to_install(assay: Callable[..., Ran]) -> None:
    for words in (["check", "geometry", "--local"], ["checks", "--local"]):
        ran = assay(*words)
        assert ran.code == 4
        assert ran.err == "error: unavailable: install embedding-assay for --local\n"


def test_only_stated_problems_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*args: Any) -> bytes:
        raise OSError("disk full")

    entry = SimpleNamespace(load=lambda: run)
    monkeypatch.setattr(extensions, "entries", lambda group: {"run": entry})

    with pytest.raises(OSError, match="disk full"):
        extensions.run_local({}, Path(), lambda *now: None)


def test_a_local_run_that_cannot_be_loaded_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise ImportError("numpy is missing")

    entry = SimpleNamespace(load=load, value="somewhere:run")
    monkeypatch.setattr(extensions, "entries", lambda group: {"run": entry})

    with pytest.raises(AssayError, match="somewhere:run: numpy is missing"):
        extensions.run_local({}, Path(), lambda *now: None)
