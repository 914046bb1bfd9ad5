"""Warnings of reports: what a reader of a verdict hears, and what a rule may count."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from service.check import Check, Measure, Warned
from service.report import ReportBase

SENTENCE = re.compile(r"\A[A-Z](?=[a-z]*\b)")
"""The first letter of a message that begins with a word."""
PLACE = "warnings."
"""What the path of a measure begins with that counts the warnings of one code."""


class VerdictWarning(Warned):
    """Something a reader of the verdict should know."""

    check: str | None = None
    """The check of the policy whose report says it; null where it is about the policy."""


def heard(reports: Mapping[str, ReportBase | str]) -> Iterator[VerdictWarning]:
    """What the reports of a policy's checks warn of, each code once: of many the first speaks."""
    for name, report in reports.items():
        if not isinstance(report, str):
            for first, *more in _by_code(report).values():
                yield VerdictWarning(
                    code=first.code, message=_said(first, more), where=first.where, check=name
                )


def counts(check: Check) -> dict[str, Measure]:
    """By path, how often a report of this check warns of each thing it may warn of."""
    return {
        f"{PLACE}{code}": Measure(
            path=f"{PLACE}{code}",
            description=f"Warnings `{code}` of the report. {told}",
            unit="warnings",
            low=0,
            high=None,
            better="lower",
            invariance=[],
            needs=[],
            shape="scalar",
        )
        for code, told in check.codes.items()
    }


def counted(report: ReportBase, path: str) -> tuple[int, str]:
    """How many warnings of a report have the code a path ends with, and what they say."""
    found = _by_code(report).get(path.removeprefix(PLACE))
    if found is None:
        return 0, "the report has no such warning"
    return len(found), _said(found[0], found[1:])


def going_on(message: str) -> str:
    """A message behind a semicolon: its first word small, unless it is an abbreviation."""
    return SENTENCE.sub(lambda first: first[0].lower(), message)


def _by_code(report: ReportBase) -> dict[str, list[Warned]]:
    found: dict[str, list[Warned]] = {}
    for warned in report.warnings:
        found.setdefault(warned.code, []).append(warned)
    return found


def _said(first: Warned, more: Sequence[Warned]) -> str:
    if not more:
        return first.message
    return f"{first.message} Warnings like it in the report: {len(more)} more."
