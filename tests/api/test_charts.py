"""Charts over HTTP: which there are, each in three forms, on the page, and when there is none."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest

from service.charts import Painter, Picture
from service.errors import AssayError, Internal, Unavailable

HTML = {"Accept": "text/html"}
FORMS = {"svg": "image/svg+xml", "png": "image/png", "vl.json": "application/json"}


@pytest.fixture
def labelled(upload: Any) -> dict[str, Any]:
    """Rows of two labels, one of which would be markup."""
    rows = np.random.default_rng(7).normal(size=(40, 6)).tolist()
    found = upload({"vectors": rows, "columns": {"label": ["<b>a</b>", "b"] * 20}})
    return {"vectors": {"dataset": found["id"]}, "labels": {"column": "label"}}


@pytest.fixture
def job(ask: Any, work: Any, labelled: dict[str, Any]) -> str:
    """A job that has succeeded: where it is."""
    asked = ask("label_neighbours", labelled, {"k": 3})
    assert asked.status_code in (200, 202), asked.text
    work()
    return str(asked.json()["links"]["self"])


def test_the_charts_of_a_report_are_listed(door: Any, job: str) -> None:
    """By name, with the question each answers, what it says in words, and where it is."""
    found = door.get(f"{job}/charts").json()
    assert found["drawn"] is True
    assert [one["name"] for one in found["items"]] == ["precision", "labels"]
    for one in found["items"]:
        assert one["title"].endswith("?")
        assert one["text"].startswith(one["title"])
        assert list(one["links"]) == ["svg", "png", "vega_lite"]
        for link in one["links"].values():
            assert door.get(link).status_code == 200


@pytest.mark.parametrize("form", FORMS)
def test_a_chart_comes_in_its_form_and_stays_the_same(form: str, door: Any, job: str) -> None:
    """Its media type, a strong ETag, 304 where it is known, the same bytes again."""
    first = door.get(f"{job}/charts/labels.{form}")
    assert first.status_code == 200, first.text
    assert first.headers["content-type"].partition(";")[0] == FORMS[form]
    tag = first.headers["etag"]
    assert tag.startswith('"')
    again = door.get(f"{job}/charts/labels.{form}", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert door.get(f"{job}/charts/labels.{form}").content == first.content


def test_a_chart_holds_the_numbers_of_its_report(door: Any, job: str) -> None:
    report = door.get(f"{job}/report").json()
    spec = door.get(f"{job}/charts/labels.vl.json").json()
    assert spec["$schema"] == "https://vega.github.io/schema/vega-lite/v6.json"
    rows = {
        row["row"]: row["value"]
        for layer in spec["layer"]
        if layer["mark"]["type"] == "point"
        for row in layer["data"]["values"]
    }
    assert rows == {one["label"]: one["precision"] for one in report["results"]["classes"]}
    svg = ElementTree.fromstring(door.get(f"{job}/charts/labels.svg").content)
    texts = ["".join(one.itertext()) for one in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "<b>a</b>" in texts


def test_an_svg_may_load_and_run_nothing(door: Any, job: str) -> None:
    answer = door.get(f"{job}/charts/labels.svg")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert b"<script" not in answer.content


def test_the_page_of_a_report_shows_its_charts(door: Any, job: str) -> None:
    """The very drawings, with what they say in words; no script and no address."""
    page = door.get(f"{job}/report", headers=HTML)
    assert page.status_code == 200
    for name in ("precision", "labels"):
        svg = door.get(f"{job}/charts/{name}.svg").text
        assert f'<figure id="chart-{name}">\n{svg}\n</figure>' in page.text
    listed = door.get(f"{job}/charts").json()["items"]
    assert page.text.count('<svg role="img" aria-label="') == len(listed)
    assert "<script" not in page.text
    assert "<b>a</b>" not in page.text
    known = door.get(f"{job}/report", headers={**HTML, "If-None-Match": page.headers["etag"]})
    assert known.status_code == 304


def test_markdown_and_json_have_no_pictures(door: Any, job: str) -> None:
    for media in ("text/markdown", "application/json"):
        assert "<svg" not in door.get(f"{job}/report", headers={"Accept": media}).text


@pytest.mark.parametrize("form", FORMS)
def test_an_unknown_chart_is_404_and_what_it_may_have_been(
    form: str, door: Any, job: str, refusal: Any
) -> None:
    found = refusal(door.get(f"{job}/charts/label.{form}"), 404, "unknown-chart")
    assert "did you mean `labels`?" in found["detail"]
    refusal(door.get(f"{job}/charts/<script>.{form}"), 404, "unknown-chart")


def test_an_unknown_form_is_404(door: Any, job: str, refusal: Any) -> None:
    refusal(door.get(f"{job}/charts/labels.pdf"), 404, "unknown-path")
    refusal(door.get(f"{job}/charts/labels"), 404, "unknown-path")


def test_charts_wait_for_their_report(door: Any, ask: Any, labelled: Any, refusal: Any) -> None:
    """409 while the job is queued, as for the report."""
    here = ask("label_neighbours", labelled, {"k": 3}).json()["links"]["self"]
    for path in ("charts", *(f"charts/labels.{form}" for form in FORMS)):
        answer = door.get(f"{here}/{path}")
        refusal(answer, 409, "report-not-ready")
        assert int(answer.headers["retry-after"]) > 0
    door.delete(here)
    refusal(door.get(f"{here}/charts/labels.svg"), 409, "cancelled")


def test_an_unknown_job_has_no_charts(door: Any, refusal: Any) -> None:
    for path in ("charts", *(f"charts/labels.{form}" for form in FORMS)):
        refusal(door.get(f"/v1/jobs/job_x/{path}"), 404, "unknown-job")


def test_without_the_library_there_are_specifications_and_a_page_without_pictures(
    door: Any, job: str, refusal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """501 says what to install; nothing else changes."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    for form in ("svg", "png"):
        found = refusal(door.get(f"{job}/charts/labels.{form}"), 501, "charts-not-installed")
        assert "pip install 'embedding-assay[charts]'" in found["detail"]
    assert door.get(f"{job}/charts/labels.vl.json").status_code == 200
    listed = door.get(f"{job}/charts").json()
    assert listed["drawn"] is False
    assert len(listed["items"]) == 2
    page = door.get(f"{job}/report", headers=HTML)
    assert page.status_code == 200
    assert "<svg" not in page.text
    assert "<figure" not in page.text


@pytest.mark.parametrize(
    "failure",
    [Unavailable("The process that draws has ended; try again."), Internal("It has no bars.")],
)
def test_a_page_says_which_chart_fails_and_shows_the_others(
    failure: AssayError, door: Any, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = Painter.draw

    def fail(painter: Painter, picture: Picture, wanted: Any) -> bytes:
        if picture.name == "precision":
            raise failure
        return draw(painter, picture, wanted)

    monkeypatch.setattr(Painter, "draw", fail)
    page = door.get(f"{job}/report", headers=HTML)
    assert page.status_code == 200
    assert "The chart <code>precision</code> could not be drawn just now" in page.text
    assert page.text.count("could not be drawn") == page.text.count('<figure id="') == 1
    svg = door.get(f"{job}/charts/labels.svg").text
    assert f'<figure id="chart-labels">\n{svg}\n</figure>' in page.text


def test_a_chart_that_fails_just_now_says_to_come_back(
    door: Any, job: str, refusal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> bytes:
        raise Unavailable("The process that draws has ended; try again.")

    monkeypatch.setattr(Painter, "draw", fail)
    answer = door.get(f"{job}/charts/labels.svg")
    refusal(answer, 503, "unavailable")
    assert int(answer.headers["retry-after"]) > 0
