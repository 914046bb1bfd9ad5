"""Every check has a request that runs, and the catalogue's page shows what it answers."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from api.catalogue_page import ANSWERS, REQUESTS, catalogue_page
from service.charts import chart_of, pictures
from service.check import Check
from service.checks import CATALOGUE
from service.report import load_report
from workers.local import charts, run

from .record_examples import PICTURE, PICTURED

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "openapi/catalogue.md"
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
SLOW_S = 20.0

checks = pytest.mark.parametrize("check", CATALOGUE, ids=[check.kind for check in CATALOGUE])


@cache
def answer(kind: str) -> bytes:
    """The report of the request of a check."""
    file = ROOT / command(kind)[4]
    return run(json.loads(file.read_text(encoding="utf-8")), file.parent, lambda *_: None)


def section(kind: str) -> str:
    """The part of the page about a check."""
    _, found, rest = PAGE.read_text(encoding="utf-8").partition(f"## `{kind}` - ")
    assert found, f"openapi/catalogue.md has no `{kind}`: run `make contracts`"
    return rest.partition("\n## ")[0]


def command(kind: str) -> list[str]:
    """The command of that part."""
    (line,) = re.findall(r"^\$ (assay .*)$", section(kind), re.MULTILINE)
    return shlex.split(line)


@checks
def test_a_check_has_a_question_a_request_and_a_command_on_the_page(check: Check) -> None:
    """A check of the catalogue without one of them fails here."""
    assert re.fullmatch(r"[A-Z].*\?", check.question)
    file = REQUESTS / f"{check.kind}.json"
    assert (ROOT / file).is_file(), f"write {file}, then `make contracts`"
    words = ["assay", "check", check.kind, "--request", str(file), "--local"]
    assert command(check.kind) == words


def test_every_request_and_answer_is_of_a_check() -> None:
    """None is left behind by a check that has gone."""
    kinds = sorted(check.kind for check in CATALOGUE)
    for folder, suffix in ((REQUESTS, ".json"), (ANSWERS, ".txt")):
        assert sorted(path.name for path in (ROOT / folder).iterdir()) == [
            f"{kind}{suffix}" for kind in kinds
        ]


@checks
def test_the_request_of_a_check_gives_the_answer_on_the_page(check: Check) -> None:
    """Word for word, numbers to their last digit or two of another processor; in seconds."""
    report: dict[str, Any] = json.loads(answer(check.kind))
    assert report["kind"] == check.kind
    assert report["timing"]["run_s"] < SLOW_S
    answered = section(check.kind).splitlines()
    start = next(i for i, line in enumerate(answered) if line.startswith("The readings")) + 2
    shown = answered[start : start + len(report["readings"]) + 1]
    assert shown.pop() == ""
    assert report["readings"]
    for line, reading in zip(shown, report["readings"], strict=True):
        assert NUMBER.sub("#", line) == NUMBER.sub("#", f"- {reading}")
        told, found = ([float(n) for n in NUMBER.findall(text)] for text in (line, f"- {reading}"))
        assert told == pytest.approx(found, rel=0.01, abs=2e-4)


@checks
def test_the_answer_of_a_check_has_charts(check: Check) -> None:
    """Each of them says a number of it and can be drawn."""
    report = load_report(answer(check.kind))
    drawn = {name: draw() for name, draw in charts()(answer(check.kind)).items()}
    told = {picture.name: picture.told for picture in pictures(report)}
    assert drawn.keys() == told.keys()
    assert drawn
    for name, svg in drawn.items():
        root = ElementTree.fromstring(svg)
        assert root.get("aria-label") == told[name]
        assert NUMBER.search(told[name].partition("?")[2])


def test_the_picture_of_the_readme_is_that_of_the_request() -> None:
    """The same words, and numbers to their last digit or two of another processor."""
    assert f"({PICTURE.relative_to(ROOT)})" in (ROOT / "README.md").read_text()
    shown = str(ElementTree.parse(PICTURE).getroot().get("aria-label"))
    kind, name = PICTURED
    found = chart_of(load_report(answer(kind)), name).told
    assert NUMBER.sub("#", shown) == NUMBER.sub("#", found)
    pairs = [[float(n) for n in NUMBER.findall(text)] for text in (shown, found)]
    assert pairs[0] == pytest.approx(pairs[1], rel=0.01, abs=2e-4)
    assert PICTURE.stat().st_size < 20_000


def test_a_command_of_the_page_runs_as_it_stands() -> None:
    """From the root of the checkout, by the installed program: the same readings."""
    _, *words = command("seed_contrasts")
    done = subprocess.run(
        [sys.executable, "-m", "assay_client.cli", *words, "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    lines = (ROOT / ANSWERS / "seed_contrasts.txt").read_text(encoding="utf-8").splitlines()
    assert json.loads(done.stdout)["readings"] == lines


def test_the_page_is_the_generated_one() -> None:
    """`make contracts` was run."""
    assert PAGE.read_text(encoding="utf-8") == catalogue_page()


def test_the_readme_asks_the_questions_of_the_catalogue() -> None:
    """The same words in the same order."""
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert rows == [(check.kind, check.question) for check in CATALOGUE]


def test_the_readme_shows_jobs_of_the_versions_there_are() -> None:
    """Each answer that names a check and its version."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r'"kind":"(\w+)","kind_version":(\d+)', page)
    versions = {check.kind: check.version for check in CATALOGUE}
    assert len(shown) > 1
    assert shown == [(kind, str(versions[kind])) for kind, _ in shown]


@checks
def test_a_part_of_the_page_names_everything_declared(check: Check) -> None:
    """Roles, own parameters with defaults, measures with their range, warnings, scope and sources."""
    text = section(check.kind)
    for slot in check.slots:
        assert f"| `{slot.name}` | " in text
    for name, field in check.params.model_fields.items():
        line = f"| `{name}` | `{json.dumps(field.default)}` | "
        assert line in text or line in PAGE.read_text(encoding="utf-8").partition("## ")[0]
    for measure in check.measures:
        (line,) = [one for one in text.splitlines() if one.startswith(f"| `{measure.path}` |")]
        assert (measure.better or "") in line
        assert all(map_ in line for map_ in measure.invariance)
    for code, told in check.codes.items():
        assert f"| `warnings.{code}` | {told} |" in text
    for line in (*check.scope, *check.sources):
        assert line in text
