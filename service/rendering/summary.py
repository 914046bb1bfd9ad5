"""A report as Markdown, for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from service.measured import Measured, measured, reasons
from service.rendering.numbers import shown
from service.report import ReportBase
from service.request import check_of
from service.user_text import in_markdown

MOST_ROWS = 40
MOST_REASONS = 20


def report_summary(report: ReportBase) -> str:
    """What it found, how surely, what it could not say and does not establish."""
    check = check_of(report.kind)
    values = [one for one in measured(report) if one.estimate is not None]
    main = [one for one in values if _is_main(one)] or values
    lines = [
        f"## {in_markdown(check.title)}",
        *(["", in_markdown(check.question)] if check.question else []),
        "",
        *(f"- {in_markdown(line)}" for line in report.readings),
        *_table(main[:MOST_ROWS], len(values)),
        *_section("Undefined", _reasons(report)),
        *_section(
            "Warnings",
            [
                f"`{one.code}`, {in_markdown(one.where)}: {in_markdown(one.message)}"
                for one in report.warnings
            ],
        ),
        *_section("Not established", [in_markdown(line) for line in report.scope]),
        "",
        f"<sub>`{report.kind}` version {report.kind_version}, {report.created_at:%Y-%m-%d %H:%M} UTC; "
        f"digest `{report.digest}`</sub>",
        "",
    ]
    return "\n".join(lines)


def _is_main(one: Measured) -> bool:
    """A measure with a direction or an uncertainty is what a reader decides by."""
    return one.measure.better is not None or one.measure.shape != "scalar"


def _table(main: Sequence[Measured], values: int) -> Iterator[str]:
    if not main:
        return
    yield from ("", "| measure | value | interval |", "|---|--:|---|")
    for one in main:
        unit = "" if one.measure.unit in ("1", "p") else f" {in_markdown(one.measure.unit)}"
        told = in_markdown(one.measure.description)
        yield f"| `{one.path}`<br>{told} | {shown(one.estimate)}{unit} | {_interval(one)} |"
    if values > len(main):
        yield from ("", f"{values - len(main)} more measures are in the report.")


def _interval(one: Measured) -> str:
    if one.interval is None:
        return ""
    return f"[{shown(one.interval.low)}, {shown(one.interval.high)}] at {one.interval.level:g}"


def _reasons(report: ReportBase) -> list[str]:
    """Each reason once, with the places it keeps from having a value."""
    places: dict[tuple[str, str], list[str]] = {}
    for path, why in reasons(report):
        places.setdefault((why.code, why.message), []).append(f"`{path.removesuffix('.estimate')}`")
    lines = [
        f"{', '.join(paths[:MOST_REASONS])}{_more(len(paths))}: {in_markdown(message)} (`{code}`)"
        for (code, message), paths in places.items()
    ]
    return [*lines[:MOST_REASONS], *([_more(len(lines)).strip()] if _more(len(lines)) else [])]


def _more(count: int) -> str:
    return f" and {count - MOST_REASONS} more" if count > MOST_REASONS else ""


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"**{title}**", "", *(f"- {line}" for line in lines)] if lines else []
