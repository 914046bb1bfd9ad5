"""What is wrong with a request by the catalogue, told before anything is uploaded."""

from __future__ import annotations

import csv
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from assay_client.located import Json, files, whole_files
from assay_client.payload import content_type_of, refuse_columns
from assay_client.problems import Mistake
from assay_client.requests import section

EXAMPLES = {
    "vectors": "FILE.npy",
    "table": "FILE.csv",
    "column": "FILE.csv:COLUMN",
    "relevance": "FILE.csv:COLUMN",
}
"""How a role of each kind is given."""


def fitted(body: Json, base: Path, check: Json) -> Json:
    """
    A request as the check takes it, or the first mistake in it.

    A model given by its name and one file is that file in the one matrix each model needs.
    """
    body = {**body, "inputs": _with_parts(section(body, "inputs"), check)}
    refuse_unknown(body, check)
    refuse_missing(body, check)
    refuse_misplaced(body, base, check)
    refuse_unreadable(body["inputs"], base)
    return body


def _with_parts(inputs: Json, check: Json) -> Json:
    completed = dict(inputs)
    for role in check.get("roles", []):
        models, needed = inputs.get(role["name"]), role.get("needed") or []
        if isinstance(models, list) and len(needed) == 1:
            completed[role["name"]] = [
                {needed[0]: {key: part for key, part in one.items() if key != "name"}}
                | {key: part for key, part in one.items() if key == "name"}
                if _bare(one, role)
                else one
                for one in models
            ]
    return completed


def _bare(model: Any, role: Json) -> bool:
    """Whether a model of several matrices does not say which of them a file is."""
    return isinstance(model, dict) and not model.keys() & set(role["parts"])


def refuse_unknown(body: Json, check: Json) -> None:
    """Refuse roles and params the check has not, before anything is uploaded."""
    sections = (
        ("role", section(body, "inputs"), _roles(check)),
        ("param", section(body, "params"), list(_params(check))),
    )
    for what, given, known in sections:
        for name in given:
            if known and name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f"did you mean `{close[0]}`?" if close else f"it has {', '.join(known)}"
                if what == "role" and (bare := _of_one_model(check)):
                    hint += f"; one model is given by its parts: {bare}"
                raise Mistake(f"`{body['kind']}` has no {what} `{name}`; {hint}")
    for role in check.get("roles", []):
        listed: Any = section(body, "inputs").get(role["name"])
        for model in listed if role.get("parts") and isinstance(listed, list) else ():
            if _bare(model, role):
                raise Mistake(_listed(body["kind"], role, _of_one_model(check)))


def _of_one_model(check: Json) -> str:
    """The options of a single model's matrices, of a check whose models have several."""
    return ", ".join(
        f"`--{part} FILE`" for role in check.get("roles", []) for part in role.get("parts", [])
    )


def _listed(kind: str, role: Json, bare: str) -> str:
    """How several models of several matrices are given."""
    parts = ", ".join(f'"{part}": {{"path": FILE}}' for part in role["parts"])
    return (
        f"models of `{kind}` are listed in a request, `assay check --request FILE`: "
        f'{{"kind": "{kind}", "inputs": {{"{role["name"]}": [{{"name": NAME, {parts}}}, ...], ...}}}}; '
        f"`assay checks {kind}` says what each is. One model alone is given by its parts: {bare}"
    )


def refuse_missing(body: Json, check: Json) -> None:
    """Refuse a request without a role that its check needs, with an example of how it is given."""
    for role in check.get("roles", []):
        given = {role["name"], *role.get("parts", [])} & set(section(body, "inputs"))
        if role.get("required") and not given:
            name, example = (role.get("parts") or [role["name"]])[0], EXAMPLES[role["kind"]]
            raise Mistake(f"`{body['kind']}` needs `{role['name']}`: --{name} {example}")


def refuse_misplaced(body: Json, base: Path, check: Json) -> None:
    """Refuse a file whose kind its role does not take: a .csv as vectors, a .npy as labels."""
    kinds = {name: role.get("kind") for role in check.get("roles", []) for name in _named(role)}
    for role, file in whole_files(body["inputs"], base):
        kind, suffix = kinds.get(role), file.suffix.lower()
        if kind == "vectors" and suffix == ".csv":
            raise Mistake(f"`{role}` takes vectors, a .npy file, not {file.name}")
        if kind == "table" and suffix == ".npy":
            raise Mistake(
                f"`{role}` takes a table, --{role} FILE.csv, not {file.name}{_as_csv(file)}"
            )
        if kind in ("column", "relevance"):
            where = f"{file.name}:COLUMN{_columns(file)}"
            if suffix == ".npy":
                where = f"FILE.csv:COLUMN, not {file.name}{_as_csv(file)}"
            raise Mistake(f"`{role}` takes one column: --{role} {where}")


def _as_csv(file: Path) -> str:
    """How an array becomes a column."""
    name = file.with_suffix(".csv").name
    return (
        f'; `numpy.savetxt("{name}", values, fmt="%s", header="{file.stem}", comments="")` writes one, '
        f"{name}:{file.stem}"
    )


def refuse_unreadable(inputs: Json, base: Path) -> None:
    """Refuse files that are not there or of a kind nobody reads, here or on a server."""
    for file in files(inputs, base):
        refuse_columns(content_type_of(file.path), file.options)


def refuse_elsewhere(inputs: Any) -> None:
    """Refuse what only a server has: stored datasets, baselines and the rows of its stores."""
    if isinstance(inputs, list):
        for one in inputs:
            refuse_elsewhere(one)
    if not isinstance(inputs, dict):
        return
    if isinstance(name := inputs.get("baseline"), str):
        raise Mistake(f"--local excludes baseline:{name}: baselines are kept by a server")
    if isinstance(name := inputs.get("dataset"), str):
        raise Mistake(f"--local excludes {name}: datasets are kept by a server; name a file")
    if isinstance(source := inputs.get("source"), dict):
        kind, connection = source.get("kind"), source.get("connection")
        raise Mistake(
            f"--local excludes {kind}:connection={connection}: stores are read by a server, through "
            "connections of its own (ASSAY_CONNECTIONS_FILE); `assay serve` starts one"
        )
    for one in inputs.values():
        refuse_elsewhere(one)


def _roles(check: Json) -> list[str]:
    return [name for role in check.get("roles", []) for name in _named(role)]


def _named(role: Json) -> tuple[str, ...]:
    """A role and the matrices of its models."""
    return (role["name"], *role.get("parts", []))


def _params(check: Json) -> Json:
    found: Json = check.get("params_schema", {}).get("properties", {})
    return found


def _columns(file: Path) -> str:
    if not file.is_file():
        return ""
    with file.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
        header = next(csv.reader(lines), [])
    return f" (it has {', '.join(header[:20])})" if header else ""
