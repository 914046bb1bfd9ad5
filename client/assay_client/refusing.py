"""What is wrong with a request by the catalogue, told before anything is uploaded."""

from __future__ import annotations

import csv
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from assay_client.located import Json, whole_tables
from assay_client.problems import Mistake
from assay_client.requests import section

EXAMPLES = {
    "vectors": "FILE.npy",
    "table": "FILE.csv",
    "column": "FILE.csv:COLUMN",
    "relevance": "FILE.csv:COLUMN",
}
"""How a role of each kind is given."""


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
            if isinstance(model, dict) and not model.keys() & set(role["parts"]):
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


def refuse_tables(body: Json, base: Path, check: Json) -> None:
    """Refuse a .csv without a column where the role takes no table."""
    kinds = {role["name"]: role.get("kind") for role in check.get("roles", [])}
    for role, file in whole_tables(body["inputs"], base).items():
        kind = kinds.get(role, "column")
        if kind == "vectors":
            raise Mistake(f"`{role}` takes vectors, a .npy file, not {file.name}")
        if kind != "table":
            raise Mistake(f"`{role}` takes one column: --{role} {file.name}:COLUMN{_columns(file)}")


def _roles(check: Json) -> list[str]:
    return [
        name for role in check.get("roles", []) for name in (role["name"], *role.get("parts", []))
    ]


def _params(check: Json) -> Json:
    found: Json = check.get("params_schema", {}).get("properties", {})
    return found


def _columns(file: Path) -> str:
    if not file.is_file():
        return ""
    with file.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
        header = next(csv.reader(lines), [])
    return f" (it has {', '.join(header[:20])})" if header else ""
