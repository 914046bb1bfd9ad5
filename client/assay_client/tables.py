"""Jobs, checks and datasets as people read them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from assay_client.listing import listing, print_list
from assay_client.located import Json
from assay_client.problems import AssayError
from assay_client.progress import duration, size
from assay_client.records import ReportPoint
from assay_client.render import hang
from assay_client.values import is_table, plain, printable

STYLES = {
    "succeeded": "green",
    "failed": "red",
}


def show_jobs(jobs: Sequence[Json], console: Console) -> None:
    """Print jobs, one to a line."""
    table = listing("job", "check", "state", "created", "took", whole=["job"])
    for job in jobs:
        table.add_row(
            Text(job["id"]),
            Text(job["kind"]),
            Text(_state(job), style=_style(job["state"])),
            Text(_minute(job["created_at"])),
            Text("cached" if job.get("cached") else _took(job)),
        )
    _print(table, console, "no jobs")


def show_job(job: Json, console: Console) -> None:
    """Print one job, and its problem if it has one."""
    pairs: dict[str, Any] = {"check": job["kind"], "state": _state(job)}
    pairs |= {
        key: job.get(key)
        for key in ("created_at", "started_at", "finished_at", "attempts", "cached")
    }
    pairs |= {f"input {role}": value for role, value in job.get("inputs", {}).items()}
    pairs |= {key: job.get(key) for key in ("params", "seed", "tags", "result")}
    _pairs(job["id"], pairs, console)
    if job.get("problem"):
        console.print()
        for line in str(AssayError.of(job["problem"])).splitlines():
            console.print(Text(printable(line), style="red"))


def show_history(reports: Sequence[ReportPoint], console: Console) -> None:
    """Print reports, each with its measures below, one to a line."""
    for report in reports:
        at = f"{_minute(report['created_at'])}  {report['job']}  "
        repeats = "  cached" if report["cached"] else ""
        console.print(Text.assemble(at, (report["kind"], "bold"), (repeats, "dim")))
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(overflow="fold")
        table.add_column(justify="right")
        for one in report["measures"]:
            interval = one["interval"]
            ends = [plain(interval[end]) for end in ("low", "high")] if interval else []
            table.add_row(
                Text(f"  {printable(one['measure'])}"),
                Text(plain(one["estimate"])),
                Text(f"[{', '.join(ends)}]" if ends else "", style="dim"),
            )
        if report["digest"] is None:
            console.print(Text("  its report has been deleted", style="dim"))
        console.print(table)
    if not reports:
        console.print(Text("no reports", style="dim"))


def show_datasets(datasets: Sequence[Json], console: Console) -> None:
    """Print datasets, one to a line."""
    table = listing("dataset", "name", "rows", "dimensions", "size", "created", whole=["dataset"])
    for dataset in datasets:
        d = dataset.get("d")
        table.add_row(
            Text(dataset["id"]),
            Text(printable(dataset.get("name") or "")),
            Text(plain(dataset["n"])),
            Text("columns" if d is None else plain(d)),
            Text(_size(dataset)),
            Text(_minute(dataset["created_at"])),
        )
    _print(table, console, "no datasets")


def show_baselines(baselines: Sequence[Json], console: Console, none: str) -> None:
    """Print baselines, one to a line."""
    table = listing("baseline", "version", "dataset", "set", "by", whole=["dataset", "by"])
    for one in baselines:
        table.add_row(
            Text(one["name"]),
            Text(plain(one["version"])),
            Text(one["dataset"]),
            Text(_minute(one["set_at"])),
            Text(one["gate"] or "hand"),
        )
    _print(table, console, none)


def show_dataset(dataset: Json, console: Console) -> None:
    """Print what is known of a dataset."""
    facts = dataset.get("facts") or {}
    pairs: dict[str, Any] = {key: dataset.get(key) for key in ("name", "n", "d", "dtype")}
    pairs["size"] = _size(dataset) or None
    pairs |= {
        f"column {name}": f"{plain(column['distinct'])} {column['type']} labels, "
        f"{plain(column['missing'])} missing"
        for name, column in dataset.get("columns", {}).items()
    }
    pairs |= {key.replace("_", " "): _fact(value) for key, value in facts.items()}
    pairs |= {key: value for key, value in dataset.get("spec", {}).items() if value is not None}
    pairs |= {key: dataset.get(key) for key in ("sha256", "vectors_sha256", "created_at")}
    _pairs(dataset["id"], pairs, console)


def _size(dataset: Json) -> str:
    """That of the vectors; a table without any has none."""
    return size(dataset["bytes"]) if dataset["bytes"] else ""


def _fact(value: Any) -> str:
    """A number, or a count with the first rows it counts."""
    if not isinstance(value, dict):
        return plain(value)
    rows = f" (rows {', '.join(map(str, value['rows']))})" if value["rows"] else ""
    return plain(value["count"]) + rows


def show_checks(checks: Iterable[Json], console: Console) -> None:
    """Print the catalogue, one check to a line; what each is given stands on its own page."""
    table = listing("check", "title", whole=["check"])
    for check in checks:
        table.add_row(Text(check["kind"], style="bold"), Text(check["title"]))
    print_list(table, console)
    if console.is_terminal:
        console.print(Text("`assay checks KIND` shows its roles, params and measures", style="dim"))


def show_check(check: Json, console: Console) -> None:
    """Print one check: what it takes, what it measures, what it rests on."""
    console.print(Text.assemble((check["kind"], "bold"), f"  version {check['version']}"))
    asked = [check["question"]] if check.get("question") else []
    for paragraph in (check["title"], *asked, *str(check["description"]).split("\n\n")):
        _lines(hang(console, "", " ".join(paragraph.split())), console)
        console.print()
    for title, entries in (
        ("Roles", _roles(check.get("roles", []))),
        ("Params", _params(check.get("params_schema", {}).get("properties", {}))),
        ("Measures", _measures(check.get("measures", []))),
        ("Warnings", _warnings(check.get("warnings", {}))),
    ):
        console.print(Text(title, style="bold"))
        for name, about, told in entries:
            console.print(Text.assemble("  ", name, ("  " + about, "dim")))
            _lines(hang(console, "      ", " ".join(told.split()), "dim"), console)
        console.print()
    for title in ("scope", "sources"):
        console.print(Text(title.title(), style="bold"))
        for line in check.get(title, []):
            _lines(hang(console, "• ", line, "dim"), console)


def _lines(lines: Iterable[Text], console: Console) -> None:
    for line in lines:
        console.print(line)


def _roles(slots: Iterable[Json]) -> Iterator[tuple[str, str, str]]:
    for slot in slots:
        about = f"{slot['kind']}, {'required' if slot['required'] else 'optional'}"
        if slot.get("paired_with"):
            about += f", paired with {', '.join(slot['paired_with'])}"
        yield slot["name"], about, slot["description"]


def _params(properties: Mapping[str, Json]) -> Iterator[tuple[str, str, str]]:
    for name, schema in properties.items():
        about = f"{_type(schema)}, default {json.dumps(schema.get('default'))}"
        yield name, about, schema.get("description", "")


def _warnings(codes: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for code, told in codes.items():
        yield code, f"in a rule warnings.{code}", told


def _measures(measures: Iterable[Json]) -> Iterator[tuple[str, str, str]]:
    for one in measures:
        low, high = ("" if one.get(end) is None else f"{one[end]:g}" for end in ("low", "high"))
        extent = f"{low}..{high}" if low or high else ""
        better = f"{one['better']} is better" if one.get("better") else ""
        yield one["path"], ", ".join(filter(None, (extent, better))), one.get("description", "")


def _type(schema: Json) -> str:
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    if "const" in schema:
        return json.dumps(schema["const"])
    if "anyOf" in schema:
        return " | ".join(_type(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type") or "value")


def _state(job: Json) -> str:
    progress = job.get("progress")
    if job["state"] == "running" and progress:
        return f"running {progress['stage']} {progress['done']}/{progress['total']}"
    return str(job["state"])


def _took(job: Json) -> str:
    started, finished = job.get("started_at"), job.get("finished_at")
    if not started or not finished:
        return ""
    took = datetime.fromisoformat(finished) - datetime.fromisoformat(started)
    return duration(took.total_seconds())


def _minute(time: str) -> str:
    return time[5:16].replace("T", " ")


def _pairs(title: str, pairs: Mapping[str, Any], console: Console) -> None:
    console.print(Text(title, style="bold"))
    table = listing("name", "value", whole=["name"], header=False)
    table.columns[0].style = "dim"
    for name, value in pairs.items():
        if value not in (None, {}, []):
            as_json = isinstance(value, dict) or is_table(value)
            text = json.dumps(value, ensure_ascii=False) if as_json else plain(value)
            table.add_row(Text(printable(name)), Text(printable(text)))
    print_list(table, console)


def _print(table: Table, console: Console, none: str) -> None:
    if table.rows:
        print_list(table, console)
    else:
        console.print(Text(none, style="dim"))


def _style(word: str) -> str:
    return STYLES.get(str(word), "")
