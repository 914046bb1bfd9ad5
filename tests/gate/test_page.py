"""A verdict as a comment on a pull request."""

from __future__ import annotations

import re
from typing import Any

import pytest

from service.gate import Needed, RuleResult, Verdict, VerdictWarning, verdict_page

WARNED = VerdictWarning(code="one_look", message="Judge on new groups.", where="policy/look")


def one(rule: dict[str, Any], verdict: str, **changes: Any) -> RuleResult:
    fields: dict[str, Any] = {
        "rule": {"measure": "shape.anisotropy", **rule}, "measured": "Mean cosine.",
        "observed": 0.25, "interval": {"low": 0.2, "high": 0.3, "level": 0.95}, "threshold": 0.3,
        "verdict": verdict, "reason": "all of the interval satisfies the rule", "needed": None,
        **changes,
    }  # fmt: skip
    return RuleResult.model_validate(fields)


def rows(page: str) -> list[list[str]]:
    """Cells of the table, split where Markdown splits them."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_each_rule_is_one_row_with_its_numbers_and_reason() -> None:
    """Observed, interval with its level, rule, reason, advice."""
    page = verdict_page(
        "release", "done", Verdict.inconclusive,
        [
            one({"at_most": 0.3}, "pass"),
            one({"within": [0.1, 0.28]}, "inconclusive", reason="both sides",
                needed=Needed(unit="groups", count=1234)),
            one({"at_most": 0.1, "level": "warn"}, "fail", observed=None, interval=None,
                needed=Needed(unit="rows", count=496, drawn="test")),
        ],
        [WARNED], "ab" * 32,
    )  # fmt: skip
    first, second, third = rows(page)
    assert first[2:] == [
        "0.25", "[0.2, 0.3] at 0.95", "`at_most` 0.3", "all of the interval satisfies the rule",
    ]  # fmt: skip
    assert second[4] == "`within` [0.1, 0.28]"
    assert second[5] == "both sides; about 1,234 groups would decide"
    assert third[0] == "warns fail"
    assert third[2:4] == ["undefined", ""]
    assert "warns only" in third[4]
    assert third[5].endswith("; about 496 test rows would decide")
    assert page.splitlines()[0].endswith("release: inconclusive")
    assert "- `one_look`: Judge on new groups." in page
    assert "ab" * 32 in page


def test_a_warning_of_a_report_stands_with_its_check() -> None:
    """Before those about the policy."""
    heard = VerdictWarning(code="same_rows", message="All|400.", where="results", check="drift")
    page = verdict_page("release", "done", Verdict.passed, [], [heard, WARNED], None)
    assert "- `drift` `same_rows`: All\\|400.\n- `one_look`: Judge on new groups.\n" in page


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_says_what_it_means(verdict: Verdict) -> None:
    """One sentence under the title."""
    page = verdict_page("x", "done", verdict, [one({"at_most": 0.3}, verdict.value)], [], "d")
    assert verdict.value in page.splitlines()[0]
    assert page.splitlines()[2].endswith(".")


@pytest.mark.parametrize("state", ["running", "cancelled"])
def test_a_run_without_a_verdict_says_its_state(state: str) -> None:
    assert verdict_page("x", state, None, [], [], None) == f"## x: {state}\n"


def test_text_of_a_policy_cannot_add_markup() -> None:
    """A name and a reason that hold pipes, lines, links and tags stay in their cell."""
    evil = "a|b\n# c [x](http://e) <img src=x> `d`"
    page = verdict_page(
        evil, "done", Verdict.failed, [one({"at_most": 0.3}, "fail", reason=evil)], [], "d"
    )
    assert len(rows(page)) == 1
    assert len(rows(page)[0]) == 6
    title = page.splitlines()[0]
    for text in (title, rows(page)[0][5]):
        assert "\\[x\\]" in text
        assert "\\<img" in text
        assert "\\`d\\`" in text
