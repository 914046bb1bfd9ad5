"""A verdict as Markdown, for a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from service.gate.judging import Bounds, RuleResult, Verdict
from service.gate.needed import Needed
from service.gate.rule import Rule
from service.gate.warned import VerdictWarning
from service.user_text import in_markdown

SIGNS = {
    Verdict.passed: "\N{WHITE HEAVY CHECK MARK}",
    Verdict.failed: "\N{CROSS MARK}",
    Verdict.inconclusive: "\N{BLACK QUESTION MARK ORNAMENT}",
    Verdict.invalid: "\N{WARNING SIGN}\N{VARIATION SELECTOR-16}",
}
MEANINGS = {
    Verdict.passed: "every blocking rule is satisfied on the whole of its interval",
    Verdict.failed: "a blocking rule is broken",
    Verdict.inconclusive: "no blocking rule is broken, and the data do not show that all are satisfied",
    Verdict.invalid: "a check has no report",
}


def verdict_page(
    name: str,
    state: str,
    verdict: Verdict | None,
    rules: Sequence[RuleResult],
    warnings: Sequence[VerdictWarning],
    digest: str | None,
) -> str:
    """One screen: the verdict, each rule with its numbers and reason, and what to know."""
    if verdict is None:
        return f"## {in_markdown(name)}: {state}\n"
    lines = [
        f"## {SIGNS[verdict]} {in_markdown(name)}: {verdict.value}",
        "",
        f"{MEANINGS[verdict].capitalize()}.",
        "",
        "| | measure | observed | interval | rule | reason |",
        "|---|---|--:|---|---|---|",
        *map(_row, rules),
        "",
        *map(_warning, warnings),
        *([""] if warnings else []),
        f"<sub>digest `{digest}`</sub>",
        "",
    ]
    return "\n".join(lines)


def _row(one: RuleResult) -> str:
    sign = SIGNS[one.verdict] if one.rule.blocks or one.verdict is Verdict.passed else "warns"
    reason = one.reason + _advice(one.needed)
    cells = [
        f"{sign} {one.verdict.value}",
        f"`{one.rule.measure}`<br>{in_markdown(one.measured)}",
        "undefined" if one.observed is None else f"{one.observed:.4g}",
        _interval(one.interval),
        _condition(one.rule),
        in_markdown(reason),
    ]
    return f"| {' | '.join(cells)} |"


def _warning(warned: VerdictWarning) -> str:
    of = "" if warned.check is None else f"`{warned.check}` "
    return f"- {of}`{warned.code}`: {in_markdown(warned.message)}"


def _condition(rule: Rule) -> str:
    value = getattr(rule, rule.comparison)
    shown = f"[{value[0]:g}, {value[1]:g}]" if isinstance(value, tuple) else f"{value:g}"
    return f"`{rule.comparison}` {shown}" + ("" if rule.blocks else ", warns only")


def _interval(bounds: Bounds | None) -> str:
    if bounds is None:
        return ""
    return f"[{bounds.low:.4g}, {bounds.high:.4g}] at {bounds.level:g}"


def _advice(needed: Needed | None) -> str:
    return "" if needed is None else f"; about {needed} would decide"
