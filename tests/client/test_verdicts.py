"""A verdict on the terminal and as JUnit XML."""

from __future__ import annotations

import io
from typing import Any
from xml.etree import ElementTree

import pytest
from assay_client.verdicts import condition, junit, show_gate
from rich.console import Console


def one(verdict: str, level: str = "block", **changes: Any) -> dict[str, Any]:
    return {
        "rule": {"measure": "floor.raw.gap_all", "within": [0.1, 0.3], "level": level},
        "measured": "matched - floor_all.", "observed": 0.25,
        "interval": {"low": 0.2, "high": 0.31, "level": 0.95}, "threshold": [0.1, 0.3],
        "verdict": verdict, "reason": "the interval lies on both sides of the threshold",
        "needed": {"unit": "groups", "count": 2400}, **changes,
    }  # fmt: skip


def run(*rules: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "id": "gate_1", "policy": "release", "state": "done", "verdict": "fail",
        "rules": list(rules), "warnings": [], "digest": "d" * 64, **changes,
    }  # fmt: skip


def shown(what: dict[str, Any], width: int = 80) -> str:
    out = io.StringIO()
    show_gate(what, Console(file=out, width=width, highlight=False, markup=False, emoji=False))
    return out.getvalue()


def test_a_rule_is_shown_with_what_was_measured_and_what_would_decide() -> None:
    """Measure, sentence, numbers, rule, reason, advice; then warnings and the verdict."""
    warned = {"code": "one_look", "message": "Judge on new groups.", "where": "policy/look"}
    heard = {"code": "same_rows", "message": "All 400.", "where": "results", "check": "drift"}
    text = shown(run(one("inconclusive"), warnings=[heard, warned], verdict="inconclusive"))
    assert [" ".join(line.split()) for line in text.splitlines()] == [
        "verdict observed interval rule",
        "floor.raw.gap_all",
        "matched - floor_all.",
        "inconclusive 0.2500 [0.2000, 0.3100] within [0.1, 0.3]",
        "the interval lies on both sides of the threshold; about 2,400 groups would",
        "decide",
        "",
        "drift same_rows All 400.",
        "",
        "one_look Judge on new groups.",
        "",
        "verdict inconclusive",
        "policy release",
        f"digest {'d' * 64}",
    ]
    assert max(map(len, text.splitlines())) <= 80


def test_warnings_and_nulls_are_said() -> None:
    """A rule that only warns says so; what is undefined is not 0."""
    text = shown(run(one("fail", "warn", observed=None, interval=None, needed=None)))
    assert "(warns only)" in text
    assert "undefined" in text


def test_what_was_measured_is_wrapped_anew() -> None:
    """Lines of a description end where the terminal does, not where its source did."""
    text = shown(run(one("fail", measured="ties\nhalf: .5 is\n  chance.")))
    assert "  ties half: .5 is chance.\n" in text


def test_text_from_outside_cannot_steer_the_terminal() -> None:
    text = shown(run(one("fail", reason="\x1b[2Jgone", measured="\x1b]0;x\x07")))
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"at_most": 0.3}, "at_most 0.3"), ({"at_least": 0}, "at_least 0"),
        ({"within": [0, 1]}, "within [0, 1]"), ({"not_worse_by": 0.01}, "not_worse_by 0.01"),
        ({"unchanged_within": 2}, "unchanged_within 2"),
    ],
)  # fmt: skip
def test_every_comparison_is_named(rule: dict[str, Any], said: str) -> None:
    assert condition({"measure": "a.b", **rule, "level": "block"}) == said


def test_each_rule_is_a_test_case_whose_failure_blocks() -> None:
    """Read by the parser of the standard library: fail and inconclusive fail, invalid is an error,
    pass and warnings are not."""
    what = run(
        one("pass", needed=None), one("fail"), one("inconclusive"), one("invalid"),
        one("fail", "warn"),
    )  # fmt: skip
    suite = ElementTree.fromstring(junit(what))[0]
    assert suite.attrib == {"name": "release", "tests": "5", "failures": "2", "errors": "1"}
    cases = list(suite)
    assert {case.get("name") for case in cases} == {"floor.raw.gap_all within [0.1, 0.3]"}
    assert [[part.tag for part in case] for case in cases] == [
        ["system-out"], ["failure"], ["failure"], ["error"], ["system-out"],
    ]  # fmt: skip
    failure = cases[2][0]
    assert failure.get("type") == "inconclusive"
    assert "0.2500 [0.2000, 0.3100]" in failure.get("message", "")
    assert "about 2,400 groups would decide" in failure.get("message", "")


def test_a_run_without_a_verdict_is_an_error_in_ci() -> None:
    """A cancelled gate must not look like a suite of no tests that passed."""
    suite = ElementTree.fromstring(junit(run(state="cancelled", verdict=None)))[0]
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
    assert suite[0][0].get("message") == "the gate is cancelled"


def test_xml_holds_any_text() -> None:
    """Control characters have no place in XML at all; markup is escaped."""
    what = run(one("fail", reason='a\x00\x0b<b>&"é'), policy="x\x00<y>")
    suite = ElementTree.fromstring(junit(what))[0]
    assert suite.get("name") == "x\ufffd<y>"
    assert '<b>&"é' in suite[0][0].get("message", "")


def test_a_running_gate_shows_what_it_waits_for_and_on_what() -> None:
    """No empty table of rules."""
    stage = {"stage": "neighbours", "done": 400, "total": 500, "eta_s": 7.0}
    what = run(
        state="running", verdict=None, digest=None,
        unfinished={
            "s": {"state": "running", "progress": stage}, "floor": {"state": "queued", "progress": None}
        },
        inputs={"rows": {"dataset": "ds_1"}, "topics": {"dataset": "ds_1", "column": "t"}},
        baselines={"rows": "prod"},
    )  # fmt: skip
    assert shown(what).splitlines() == [
        "  s             running   neighbours 400/500, 7 s left",
        "  floor         queued",
        "",
        "verdict  running",
        "policy   release",
        "input    rows = ds_1 (baseline prod)",
        "input    topics = ds_1:t",
    ]


def test_warnings_are_in_the_output_of_the_suite() -> None:
    """One a line, with the check; they are no test case, and a run without any has no output."""
    warnings = [
        {"code": "same_rows", "message": "All  400\nrows.", "where": "results", "check": "drift"},
        {"code": "one_look", "message": "Once.", "where": "policy/look", "check": None},
    ]
    (suite,) = ElementTree.fromstring(junit(run(one("pass"), warnings=warnings)))
    assert suite.findtext("system-out") == "drift same_rows: All 400 rows.\none_look: Once."
    assert suite.get("tests") == "1"
    (silent,) = ElementTree.fromstring(junit(run(one("pass"))))
    assert silent.find("system-out") is None


def test_what_would_decide_says_of_which_rows() -> None:
    """Test groups are not all groups."""
    some = one("inconclusive", needed={"unit": "groups", "count": 496, "drawn": "test"})
    assert "about 496 test groups would decide" in " ".join(shown(run(some)).split())
