"""Pages of the sample reports hold all that the reports hold, and nothing a label brings along."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from service.checks import CATALOGUE
from service.rendering import CONTENT_SECURITY_POLICY, report_page
from service.report import load_report

from .reading import Page, numbers, reasons, strings, ways

FOLDER = Path(__file__).parent.parent / "data" / "reports" / "1.0"
FILES = sorted(FOLDER.glob("*.json"))
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'--><svg/onload=alert(1)>",
    "</bdi></style></title><b>bold</b>",
    "{{ 7 * 7 }}{% for x in y %}",
    "&lt;b&gt; &amp;",
    "\N{RIGHT-TO-LEFT OVERRIDE}drowssap",
    "\N{HEBREW LETTER ALEF}\N{HEBREW LETTER BET} 12",
    "new\nline\ttab\x00nul\x1b[31m",
    "javascript:alert(1)",
]


def of(report: Any) -> Page:
    return Page(report_page(load_report(json.dumps(report).encode())))


def test_every_check_of_the_catalogue_has_a_sample() -> None:
    kinds = {json.loads(file.read_text())["kind"] for file in FILES}
    assert kinds == {check.kind for check in CATALOGUE}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_number_text_and_reason_of_a_report_is_on_its_page(file: Path) -> None:
    """Counted: a number that is there twice is shown twice, with all its digits."""
    report = json.loads(file.read_text())
    page = of(report)
    missing = numbers(report) - page.numbers
    assert not missing, missing
    assert ways(report) <= page.numbers.keys()
    seen = " ".join(page.text.split())
    for text in (*strings({**report, "created_at": ""}), *reasons(report)):
        assert " ".join(text.split()) in seen, text


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_field_has_its_sentence(file: Path) -> None:
    """Read from the JSON Schema of the report, which the page is not made from."""
    report = json.loads(file.read_text())
    schema = json.loads(
        (FOLDER.parents[3] / f"openapi/reports/{report['kind']}.schema.json").read_text()
    )
    seen = " ".join(of(report).text.split())
    told = list(sentences(report["results"], schema["$defs"][results_of(schema)], schema["$defs"]))
    assert told
    for sentence in told:
        assert " ".join(sentence.split()) in seen, sentence


def results_of(schema: dict[str, Any]) -> str:
    return str(schema["properties"]["results"]["$ref"]).rpartition("/")[2]


def sentences(value: Any, schema: dict[str, Any], defined: dict[str, Any]) -> Any:
    """Descriptions of the fields that are there, down to estimates."""
    for key, one in value.items():
        if key == "undefined":
            continue
        patterns = schema.get("patternProperties", {})
        declared = schema["properties"].get(key) or next(
            found for pattern, found in patterns.items() if re.search(pattern, key)
        )
        if "description" in declared:
            yield declared["description"]
        if isinstance(one, dict) and "interval" not in one and "$ref" in declared:
            yield from sentences(one, defined[declared["$ref"].rpartition("/")[2]], defined)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_page_loads_nothing_and_runs_nothing(file: Path) -> None:
    """No script, image, frame, form or address; the one style is the one the policy allows."""
    html = report_page(load_report(file.read_bytes()))
    page = Page(html)
    assert not page.tags.keys() & {"script", "img", "link", "iframe", "form", "object", "svg"}
    assert page.tags["style"] == 1
    addresses = {value for _, name, value in page.attributes if name in ("href", "src", "action")}
    assert all(str(address).startswith("#") for address in addresses)
    assert {name for _, name, _ in page.attributes} <= {
        "lang", "charset", "name", "content", "class", "id", "href", "scope", "value",
    }  # fmt: skip
    style = re.findall(r"<style>(.*)</style>", html, re.DOTALL)[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in CONTENT_SECURITY_POLICY
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none'")
    assert "url(" not in style
    assert "@import" not in style


@pytest.mark.parametrize("label", HOSTILE)
def test_what_a_user_wrote_stays_text(label: str) -> None:
    """In readings, labels, names of models and parameters; the elements are those of a tame one."""
    report = json.loads((FOLDER / "label_neighbours.json").read_text())

    def named(text: str) -> Page:
        report["readings"][0] = text
        report["warnings"] = [{"code": "c", "message": text, "where": text}]
        report["results"]["classes"][0]["label"] = text
        report["inputs"]["vectors"]["spec"]["model"] = text
        report["inputs"]["labels"]["column"] = text
        report["scope"] = [text]
        return of(report)

    tame, wild = named("tame"), named(label)
    assert wild.tags == tame.tags
    assert wild.attributes == tame.attributes
    shown = "".join(
        f"[U+{ord(c):04X}]" if c in "\n\t\x00\x1b\N{RIGHT-TO-LEFT OVERRIDE}" else c for c in label
    )
    assert wild.text.count(shown) == tame.text.count("tame") == 7
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", wild.text)


def test_users_text_is_kept_apart_from_the_direction_of_the_page() -> None:
    """Right-to-left labels turn nothing but themselves: each stands in a `<bdi>`."""
    report = json.loads((FOLDER / "label_neighbours.json").read_text())
    label = "\N{HEBREW LETTER ALEF} 12"
    report["results"]["classes"][0]["label"] = label
    assert f"<bdi>{label}</bdi>" in report_page(load_report(json.dumps(report).encode()))
