"""Summaries of the sample reports, taken apart by a Markdown parser, against the JSON."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from service.rendering import report_summary
from service.rendering.numbers import shown
from service.report import load_report

from .reading import reasons
from .test_page import FILES, FOLDER, HOSTILE

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def summary(report: Any) -> str:
    return report_summary(load_report(json.dumps(report).encode()))


def at(node: Any, path: str) -> Any:
    """The value at a path of the JSON results."""
    for key in path.split("."):
        node = node[key]
    return node


def rows(text: str) -> list[list[str]]:
    """Cells of the table, as a parser finds them."""
    tokens = PARSER.parse(text)
    cells = [
        tokens[i + 1].content
        for i, token in enumerate(tokens)
        if token.type in ("td_open", "th_open")
    ]
    return [cells[i : i + 3] for i in range(3, len(cells), 3)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_row_of_the_table_is_what_the_report_says_there(file: Path) -> None:
    """Path, value to four digits, and both ends of the interval."""
    report = json.loads(file.read_text())
    found = rows(summary(report))
    assert found
    for name, value, interval in found:
        stored = at(report["results"], name.split("`")[1])
        estimate = stored["estimate"] if isinstance(stored, dict) else stored
        number = float(value.split(" ")[0].replace(",", ""))
        assert number == pytest.approx(estimate, rel=6e-4, abs=1e-12)
        bounds = stored["interval"] if isinstance(stored, dict) else None
        if bounds is None:
            assert interval == ""
        else:
            low, high = interval.split("]")[0].removeprefix("[").split(", ")
            assert float(low) == pytest.approx(bounds["low"], rel=6e-4, abs=1e-12)
            assert float(high) == pytest.approx(bounds["high"], rel=6e-4, abs=1e-12)
            assert interval.endswith(f"at {bounds['level']:g}")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_readings_reasons_scope_and_digest_are_all_there(file: Path) -> None:
    """As a reader sees them; each reason once."""
    report = json.loads(file.read_text())
    html = PARSER.render(summary(report))
    for line in (*report["readings"], *report["scope"], *set(reasons(report["results"]))):
        escaped = PARSER.render(f"`` {line} ``").removeprefix("<p><code>").rpartition("</code>")[0]
        assert " ".join(escaped.split()) in html, line
    assert report["digest"] in html
    assert html.startswith("<h2>")


@pytest.mark.parametrize("label", HOSTILE)
def test_words_of_users_stay_words(label: str) -> None:
    """The same elements as with a tame one; no raw HTML but ours; nobody is mentioned."""
    report = json.loads((FOLDER / "label_neighbours.json").read_text())

    def kinds(text: str) -> Counter[str]:
        report["readings"][0] = text
        report["warnings"] = [{"code": "c", "message": text, "where": text}]
        report["scope"] = [text]
        tokens = PARSER.parse(summary(report))
        inner = [one for token in tokens for one in (token.children or [])]
        html = [one.content for one in inner if one.type == "html_inline"]
        assert set(html) <= {"<br>", "<sub>", "</sub>"}
        return Counter(one.type for one in (*tokens, *inner) if not one.type.startswith("text"))

    assert kinds(f"{label} | ~~b~~ @team #12") == kinds("tame")
    assert "@team" not in summary(report | {"readings": ["@team"]})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (12_345, "12,345"), (0.123456, "0.1235"), (-0.5, "-0.5"), (1.0, "1"),
        (123_456.7, "123,457"), (1e-9, "1e-09"), (1e300, "1e+300"), (9999.6, "1e+04"), (None, ""),
    ],
)  # fmt: skip
def test_numbers_are_shown_to_four_digits(value: float | None, text: str) -> None:
    assert shown(value) == text
