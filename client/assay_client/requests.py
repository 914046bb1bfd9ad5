"""Requests as people write them: files with `{"path": ...}`, and the shorthand of the command line."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from assay_client.problems import Mistake

Json = dict[str, Any]

EXAMPLES = {
    "vectors": "FILE.npy",
    "table": "FILE.csv",
    "column": "FILE.csv:COLUMN",
    "relevance": "FILE.csv:COLUMN",
}
"""How a role of each kind is given."""
COLUMN = re.compile(r"(?P<file>.+\.(?:csv|parquet|arrows?)):(?P<column>.+)", re.DOTALL)
TABLE = re.compile(r"(?P<file>.+\.(?:parquet|arrows?))\?(?P<options>.+)", re.DOTALL)
TABLE_OPTIONS = ("vector_column", "id_column")
ELSEWHERE = re.compile(r"(?P<kind>[a-z]+):(?P<options>(?:[^,]+,)*connection=.+)", re.DOTALL)
NAMED = re.compile(r"(?P<name>[a-z0-9_]{1,32})=(?P<value>.+)", re.DOTALL)
STORED = re.compile(r"(?P<dataset>ds_[A-Za-z0-9_-]+)(?::(?P<column>.+))?", re.DOTALL)

BASELINE = re.compile(
    r"baseline:(?P<baseline>[a-z0-9][a-z0-9_-]{0,63})(?::(?P<column>.+))?", re.DOTALL
)


@dataclass(frozen=True)
class File:
    """A file to upload, and the columns its reader has to be told."""

    path: Path
    vector_column: str | None = None
    id_column: str | None = None

    @property
    def options(self) -> dict[str, str]:
        """The columns that are told."""
        named = {key: getattr(self, key) for key in TABLE_OPTIONS}
        return {key: value for key, value in named.items() if value is not None}


def read_json(file: Path) -> Json:
    """A JSON object from a file."""
    try:
        body = json.loads(_text(file), parse_constant=_refuse_constant)
    except ValueError as error:
        raise Mistake(f"`{file}` is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Mistake(f"`{file}` must hold a JSON object")
    return body


def read_policy(file: Path) -> Json:
    """A policy from YAML or JSON."""
    if file.suffix.lower() == ".json":
        return read_json(file)
    import yaml

    try:
        body = yaml.safe_load(_text(file))
        json.dumps(body, allow_nan=False)
    except yaml.YAMLError as error:
        raise Mistake(f"`{file}` is not YAML: {' '.join(str(error).split())}") from None
    except (TypeError, ValueError) as error:
        raise Mistake(f"`{file}` holds a value JSON has not: {error}") from None
    if not isinstance(body, dict):
        raise Mistake(f"`{file}` must hold a mapping: version, name, inputs, checks, rules")
    return body


def build(
    words: Sequence[str],
    *,
    request: Path | None = None,
    params: Sequence[str] = (),
    seed: int | None = None,
    options: Sequence[str] = (),
) -> tuple[Json, Path]:
    """
    A request, and the folder its paths are relative to.

    `words` are the kind and `--role value` pairs; `options` are what a mistyped role may have been.
    What the words say wins over the request file.
    """
    body: Json = {} if request is None else read_json(request)
    base = Path() if request is None else request.parent
    kind, roles = _split(words, options)
    if kind is None:
        kind = body.get("kind")
    if not isinstance(kind, str):
        raise Mistake("name the check to run: `assay check KIND ...`; `assay checks` lists them")
    if body.get("kind", kind) != kind:
        raise Mistake(f"`{request}` asks for `{body['kind']}`, the command for `{kind}`")
    inputs = {name: _role(name, values, base) for name, values in roles.items()}
    body["kind"] = kind
    body["inputs"] = spelled_out(_section(body, "inputs") | inputs, base)
    if params:
        body["params"] = _section(body, "params") | dict(map(parameter, params))
    if seed is not None:
        body["seed"] = seed
    return body, base


def refuse_unknown(body: Json, check: Json) -> None:
    """Refuse roles and params the check has not, before anything is uploaded."""
    sections = (
        ("role", _section(body, "inputs"), _roles(check)),
        ("param", _section(body, "params"), list(_params(check))),
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
        listed: Any = _section(body, "inputs").get(role["name"])
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
        given = {role["name"], *role.get("parts", [])} & set(_section(body, "inputs"))
        if role.get("required") and not given:
            name, example = (role.get("parts") or [role["name"]])[0], EXAMPLES[role["kind"]]
            raise Mistake(f"`{body['kind']}` needs `{role['name']}`: --{name} {example}")


def whole_tables(inputs: Any, base: Path) -> dict[str, Path]:
    """The .csv files that are named without a column, by the role they are given to."""
    found: dict[str, Path] = {}
    for role, value in inputs.items():

        def note(one: Json, role: str = role) -> Json:
            file = _located(one, base).path
            if "column" not in one and file.suffix.lower() == ".csv":
                found.setdefault(role, file)
            return one

        _replaced(value, note)
    return found


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


def bindings(pairs: Sequence[str]) -> Json:
    """The inputs of a gate, from `name=value` pairs."""
    bound: Json = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name or not value:
            raise Mistake(f"`--input {pair}`: give name=file.npy or name=rows.csv:COLUMN")
        if name in bound:
            raise Mistake(f"`--input {name}` is given twice")
        bound[name] = source(value, Path(), f"--input {name}")
    return dict(spelled_out(bound, Path()))


def parameter(pair: str) -> tuple[str, Any]:
    """Name and value of `name=value`; the value is JSON if it can be read so, else a string."""
    name, equals, text = pair.partition("=")
    if not equals or not name:
        raise Mistake(f"`{pair}`: give name=value")
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        value = text
    return name.replace("-", "_"), value


def source(value: str, base: Path, option: str) -> Json:
    """
    What the value of a role names.

    A file, a column of one, a stored dataset, a baseline, rows of a store its server reads, or JSON.
    """
    if value.startswith("{"):
        return _object(value, option)
    if elsewhere := ELSEWHERE.fullmatch(value):
        named = dict(map(parameter, elsewhere["options"].split(",")))
        return {"source": {"kind": elsewhere["kind"], **named}}
    if stored := STORED.fullmatch(value) or BASELINE.fullmatch(value):
        return {key: found for key, found in stored.groupdict().items() if found is not None}
    if column := COLUMN.fullmatch(value):
        file = _file(column["file"], option)
        return {"path": _named(file, base), "column": column["column"]}
    if table := TABLE.fullmatch(value):
        file = _file(table["file"], option)
        return {"path": _named(file, base), **_table_options(table["options"], option)}
    return {"path": _named(_file(value, option), base)}


def spelled_out(inputs: Any, base: Path) -> Any:
    """The same; a column of a table names the columns its rows are read by, so that both are one."""
    rows: dict[Path, Json] = {}

    def note(value: Json) -> Json:
        if "column" not in value:
            rows.setdefault(_located(value, base).path, _located(value, base).options)
        return value

    def complete(value: Json) -> Json:
        told = rows.get(_located(value, base).path, {}) if "column" in value else {}
        return {**told, **value}

    _replaced(inputs, note)
    return _replaced(inputs, complete)


def files(inputs: Any, base: Path) -> list[File]:
    """Every distinct file the inputs name, in order."""
    found: dict[File, None] = {}

    def note(value: Json) -> Json:
        found[_located(value, base)] = None
        return value

    _replaced(inputs, note)
    return list(found)


def resolve(inputs: Any, base: Path, datasets: Mapping[File, str]) -> Any:
    """The inputs with each file replaced by the dataset it was stored as."""

    def stored(value: Json) -> Json:
        rest = {key: part for key, part in value.items() if key not in ("path", *TABLE_OPTIONS)}
        return {"dataset": datasets[_located(value, base)], **rest}

    return _replaced(inputs, stored)


def _replaced(value: Any, replace: Callable[[Json], Json]) -> Any:
    if isinstance(value, dict):
        if "source" in value:  # a path there is one of the server's
            return value
        if isinstance(value.get("path"), str):
            return replace(value)
        return {key: _replaced(part, replace) for key, part in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_replaced(part, replace) for part in value]
    return value


def _located(value: Json, base: Path) -> File:
    told = [value.get(key) for key in TABLE_OPTIONS]
    return File((base / str(value["path"])).resolve(), *told)


def _split(words: Sequence[str], options: Sequence[str]) -> tuple[str | None, dict[str, list[str]]]:
    """Kind and roles of the words that are no options."""
    kind: str | None = None
    roles: dict[str, list[str]] = {}
    rest: Iterator[str] = iter(words)
    for word in rest:
        if not word.startswith("-"):
            if kind is not None:
                raise Mistake(f"unexpected `{word}`: a file needs its role, `--ROLE {word}`")
            kind = word
            continue
        option, equals, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if not option.startswith("--") or not name:
            raise Mistake(f"`{word}` is neither an option nor a role: roles are `--ROLE FILE`")
        if not equals:
            value = next(rest, "")
        if not value or (not equals and value.startswith("--")):
            raise Mistake(f"`{option}` needs a value.{_perhaps(option, options)}")
        roles.setdefault(name, []).append(value)
    return kind, roles


def _role(role: str, values: Sequence[str], base: Path) -> Json | list[Json]:
    """One value, or, of a role that takes several models, a list of `name=value`."""
    option = f"--{role}"
    named = [None if Path(value).is_file() else NAMED.fullmatch(value) for value in values]
    if named == [None]:
        return source(values[0], base, option)
    models = []
    for value, found in zip(values, named, strict=True):
        if found is None:
            raise Mistake(
                f"`{option} {value}`: `{option}` is given twice; name each model, {option} NAME={value}"
            )
        models.append({**source(found["value"], base, option), "name": found["name"]})
    return models


def _named(file: Path, base: Path) -> str:
    return str(file if base == Path() else file.resolve())


def _file(value: str, option: str) -> Path:
    file = Path(value)
    if file.is_file():
        return file
    if file.is_dir():
        raise Mistake(f"`{option} {value}` is a directory; name a file")
    hint = ""
    if value in ("true", "false") or value.replace(".", "", 1).isdigit():
        hint = f"; a parameter is given as `--param {option.removeprefix('--')}={value}`"
    raise Mistake(f"`{option} {value}`: there is no such file{hint}")


def _object(text: str, option: str) -> Json:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise Mistake(f"`{option} {text}` is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Mistake(f"`{option} {text}` must be an object")
    return value


def _table_options(text: str, option: str) -> dict[str, str]:
    named = dict(parse_qsl(text, keep_blank_values=True))
    if not named or not set(named) <= set(TABLE_OPTIONS):
        raise Mistake(
            f"`{option} ...?{text}`: a table takes vector_column=NAME and id_column=NAME, joined by &"
        )
    return named


def _columns(file: Path) -> str:
    if not file.is_file():
        return ""
    with file.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
        header = next(csv.reader(lines), [])
    return f" (it has {', '.join(header[:20])})" if header else ""


def _perhaps(option: str, options: Sequence[str]) -> str:
    close = get_close_matches(option, options, n=1)
    return f" Did you mean `{close[0]}`?" if close else ""


def _section(body: Json, key: str) -> Json:
    section = body.get(key, {})
    if not isinstance(section, dict):
        raise Mistake(f"`{key}` must be an object")
    return section


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise Mistake(f"`{file}` cannot be read: {why}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
