"""Gate runs as people, and continuous integration, read them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.text import Text

from assay_client.listing import listing, print_list
from assay_client.located import Json
from assay_client.problems import AssayError
from assay_client.progress import how_far
from assay_client.render import hang
from assay_client.values import number, plain, printable

STYLES = {"pass": "green", "fail": "red", "inconclusive": "yellow", "invalid": "magenta"}
COMPARISONS = ("at_least", "at_most", "within", "not_worse_by", "unchanged_within")


def show_gate(run: Json, console: Console) -> None:
    """Print every rule against what was observed, what to know, and the verdict."""
    for line in _gate(run, console):
        console.print(line)


def _gate(run: Json, console: Console) -> Iterator[Text]:
    for check, one in (run.get("unfinished") or {}).items():
        far = how_far(one["progress"]) if one["progress"] else ""
        yield Text(f"  {printable(check):<12}  {one['state']:<8}  {printable(far)}".rstrip())
    if run.get("rules"):
        yield _columns(Text("verdict"), Text("observed"), "interval", "rule", style="dim")
    for one in run.get("rules", []):
        warns = "" if _blocks(one) else "  (warns only)"
        yield Text.assemble((printable(one["rule"]["measure"]), "bold"), (warns, "dim"))
        if measured := one.get("measured"):
            yield from hang(console, "  ", " ".join(measured.split()), "dim")
        yield _columns(
            _verdict(one["verdict"]), _observed(one), _interval(one), condition(one["rule"])
        )
        yield from hang(console, "  ", reason(one), "dim")
    for warned in run.get("warnings", []):
        yield Text()
        yield from hang(console, f"{_of(warned)}  ", warned["message"], "yellow")
    yield Text()
    yield Text.assemble("verdict  ", _verdict(outcome(run), bold=True))
    if run.get("policy"):
        yield Text(f"policy   {printable(run['policy'])}", style="dim")
    for name, value in (run.get("inputs") or {}).items():
        yield Text(f"input    {printable(_bound(run, name, value))}", style="dim")
    if run.get("digest"):
        yield Text(f"digest   {run['digest']}", style="dim")


def _bound(run: Json, name: str, value: Json) -> str:
    """An input with its dataset, column and baseline."""
    baseline = (run.get("baselines") or {}).get(name)
    column = f":{value['column']}" if value.get("column") else ""
    return f"{name} = {value.get('dataset')}{column}" + (
        f" (baseline {baseline})" if baseline else ""
    )


def _columns(verdict: Text, observed: Text, interval: str, rule: str, style: str = "") -> Text:
    verdict.pad_right(12 - verdict.cell_len)
    observed.pad_left(max(0, 9 - observed.cell_len))
    return Text.assemble("  ", verdict, "  ", observed, f"  {interval:<20}  {rule}", style=style)


def show_gates(runs: Sequence[Json], console: Console) -> None:
    """Print gate runs, one to a line."""
    if not runs:
        console.print(Text("no gate runs", style="dim"))
        return
    table = listing(
        "gate", "policy", "verdict", "created", "passed", whole=["gate", "verdict", "created"]
    )
    for run in runs:
        blocking = [one for one in run.get("rules", []) if _blocks(one)]
        passed = len(blocking) - sum(map(_decides, blocking))
        table.add_row(
            Text(run["id"]),
            Text(printable(run["policy"])),
            _verdict(outcome(run)),
            Text(run["created_at"][5:16].replace("T", " ")),
            Text(f"{passed} of {len(blocking)}" if blocking else ""),
        )
    print_list(table, console)


def junit(run: Json) -> bytes:
    """
    JUnit XML: a test case for each rule.

    What is not passed is a failure, an invalid check an error; a rule that only warns never fails.
    Warnings stand in the output of the suite.
    """
    suite = ElementTree.Element("testsuite", name=_xml(str(run.get("policy", "gate"))))
    for one in run.get("rules", []):
        rule = one["rule"]
        name = f"{rule['measure']} {condition(rule)}"
        case = ElementTree.SubElement(
            suite, "testcase", classname=suite.get("name", ""), name=_xml(name)
        )
        text = _xml(f"{one['verdict']}: {_seen(one)}; {reason(one)}")
        if _decides(one):
            tag = "error" if one["verdict"] == "invalid" else "failure"
            ElementTree.SubElement(case, tag, type=one["verdict"], message=text).text = text
        else:
            ElementTree.SubElement(case, "system-out").text = text
    if not run.get("rules"):
        _error(suite, outcome(run), f"the gate is {outcome(run)}")
    if warnings := run.get("warnings"):
        said = [_xml(f"{_of(one)}: {one['message']}") for one in warnings]
        ElementTree.SubElement(suite, "system-out").text = "\n".join(said)
    return _document(suite)


def junit_of_error(policy: str, error: AssayError) -> bytes:
    """JUnit XML of a gate that was not judged: one test case, an error."""
    suite = ElementTree.Element("testsuite", name=_xml(policy))
    _error(suite, error.code, _xml(str(error)))
    return _document(suite)


def _error(suite: ElementTree.Element, kind: str, text: str) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=suite.get("name", ""), name="gate")
    ElementTree.SubElement(case, "error", type=kind, message=text).text = text


def _document(suite: ElementTree.Element) -> bytes:
    for attribute, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
        suite.set(attribute, str(len(list(suite.iter(tag)))))
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return bytes(ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)) + b"\n"


def markdown_of_error(policy: str, error: AssayError) -> bytes:
    """A comment for a pull request about a gate that was not judged."""
    lines = [
        f"## \N{WARNING SIGN}\N{VARIATION SELECTOR-16} {_xml(policy)}: not judged",
        "",
        *(f"    {printable(line)}" for line in str(error).splitlines()),
        *(["", f"Next: {error.next_step}."] if error.next_step else []),
        "",
    ]
    return "\n".join(lines).encode()


def outcome(run: Json) -> str:
    """The verdict, or the state of a run without one."""
    return str(run.get("verdict") or run["state"])


def condition(rule: Json) -> str:
    """`at_most 0.3`."""
    found = next(name for name in COMPARISONS if rule.get(name) is not None)
    return f"{found} {json.dumps(rule[found])}"


def reason(one: Json) -> str:
    """Why, and what would decide."""
    needed = one.get("needed")
    if not needed:
        return str(one["reason"])
    units = f"{needed['drawn']} {needed['unit']}" if needed.get("drawn") else needed["unit"]
    return f"{one['reason']}; about {plain(needed['count'])} {units} would decide"


def _of(warned: Json) -> str:
    """The code of a warning, after the check whose report says it."""
    of = f"{warned['check']} " if warned.get("check") else ""
    return printable(f"{of}{warned['code']}")


def _blocks(one: Json) -> bool:
    return bool(one["rule"].get("level", "block") == "block")


def _decides(one: Json) -> bool:
    return _blocks(one) and one["verdict"] != "pass"


def _seen(one: Json) -> str:
    return f"{_observed(one)} {_interval(one)}".strip()


def _observed(one: Json) -> Text:
    value = one.get("observed")
    return Text("undefined", style="yellow") if value is None else Text(number(value))


def _interval(one: Json) -> str:
    bounds = one.get("interval")
    if bounds is None:
        return ""
    return f"[{number(bounds['low'])}, {number(bounds['high'])}]"


def _verdict(word: Any, *, bold: bool = False) -> Text:
    style = STYLES.get(str(word), "")
    return Text(str(word), style=f"bold {style}" if bold else style)


def _xml(text: str) -> str:
    """Without characters that XML has not."""
    return " ".join(printable(text).split())
