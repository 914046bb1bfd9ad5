"""Requests as people write them: files with `{"path": ...}`, and the shorthand of the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from assay_client.located import TABLE_OPTIONS, Json, spelled_out
from assay_client.problems import Mistake

COLUMN = re.compile(r"(?P<file>.+\.(?:csv|parquet|arrows?)):(?P<column>.+)", re.DOTALL)
TABLE = re.compile(r"(?P<file>.+\.(?:parquet|arrows?))\?(?P<options>.+)", re.DOTALL)
ELSEWHERE = re.compile(r"(?P<kind>[a-z]+):(?P<options>(?:[^,]+,)*connection=.+)", re.DOTALL)
JSON_FIELDS = ("columns", "where", "page_rows", "version")
TEXT_FIELDS = (
    "connection", "namespace", "table", "collection", "vector", "id", "prefix", "dtype", "path",
)  # fmt: skip
"""Fields of a source; those of text are taken as they are written, `20240` and `true` too."""
FIELDS = JSON_FIELDS + TEXT_FIELDS
SPLIT = re.compile(f",(?=(?:{'|'.join(FIELDS)})=)")
UNSPLIT = re.compile(r",([a-z_]+)(?:=|$)")
NAMED = re.compile(r"(?P<name>[a-z0-9_]{1,32})=(?P<value>.+)", re.DOTALL)
STORED = re.compile(r"(?P<dataset>ds_[A-Za-z0-9_-]+)(?::(?P<column>.+))?", re.DOTALL)

BASELINE = re.compile(
    r"baseline:(?P<baseline>[a-z0-9][a-z0-9_-]{0,63})(?::(?P<column>.+))?", re.DOTALL
)


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
    tag: Sequence[str] = (),
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
    body["inputs"] = spelled_out(section(body, "inputs") | inputs, base)
    if params:
        body["params"] = section(body, "params") | dict(map(parameter, params))
    if tag:
        body["tags"] = section(body, "tags") | tags(tag)
    if seed is not None:
        body["seed"] = seed
    return body, base


def bindings(pairs: Sequence[str]) -> Json:
    """The inputs of a gate, from `name=value` pairs."""
    bound: Json = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name or not value:
            raise Mistake(
                f"`--input {pair}`: give name=file.npy, name=rows.csv:COLUMN or name=baseline:NAME"
            )
        if name in bound:
            raise Mistake(f"`--input {name}` is given twice")
        bound[name] = source(value, Path(), f"--input {name}=")
    return dict(spelled_out(bound, Path()))


def tags(pairs: Sequence[str]) -> dict[str, str]:
    """Tags, from `name:value` pairs."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, colon, value = pair.partition(":")
        if not colon or not name or not value:
            raise Mistake(f"`--tag {pair}`: give name:value")
        found[name] = value
    return found


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


def source_field(pair: str) -> tuple[str, Any]:
    """Name and value of `name=value` of a source: text as it is, or JSON for what is no text."""
    name, value = parameter(pair)
    text = pair.partition("=")[2]
    for other in UNSPLIT.findall(text):
        if other in FIELDS:
            raise Mistake(f"`{other}`: give name=value")
        if close := get_close_matches(other, FIELDS, n=1, cutoff=0.75):
            raise Mistake(f"`{pair}`: there is no field `{other}`; did you mean `{close[0]}`?")
    return name, value if name in JSON_FIELDS or isinstance(value, str) else text


def source(value: str, base: Path, option: str) -> Json:
    """
    What the value of a role names.

    A file, a column of one, a stored dataset, a baseline, rows of a store its server reads, or JSON.
    """
    if value.startswith("{"):
        return _object(value, option)
    if elsewhere := ELSEWHERE.fullmatch(value):
        named = dict(map(source_field, SPLIT.split(elsewhere["options"])))
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
    for value in values:
        _refuse_misnamed(value, option)
    named = [None if Path(value).is_file() else NAMED.fullmatch(value) for value in values]
    if named == [None]:
        return source(values[0], base, option)
    models = []
    for value, found in zip(values, named, strict=True):
        if found is None:
            raise Mistake(
                f"`{option} {value}`: `{option}` is given twice; that is for roles of several models, "
                f"each by its name: {option} NAME={value}"
            )
        models.append({**source(found["value"], base, option), "name": found["name"]})
    return models


def _is_source(value: str) -> bool:
    try:
        source(value, Path(), "")
    except Mistake:
        return False
    return True


def _refuse_misnamed(value: str, option: str) -> None:
    """Refuse `NAME=` before what is a source of its own, where NAME is none a model may have."""
    name, equals, rest = value.partition("=")
    if not equals or NAMED.fullmatch(value) or _is_source(value) or not _is_source(rest):
        return
    fit = re.sub("[^a-z0-9_]+", "_", name.lower())[:32] or "name"
    raise Mistake(
        f"`{option} {value}`: the name of a model is 1 to 32 of a-z, 0-9 and _: {option} {fit}={rest}"
    )


def _named(file: Path, base: Path) -> str:
    return str(file if base == Path() else file.resolve())


def _file(value: str, option: str) -> Path:
    file, given = Path(value), _given(option, value)
    if file.is_file():
        return file
    if file.is_dir():
        raise Mistake(f"`{given}` is a directory; name a file")
    if value.startswith("baseline:"):
        raise Mistake(
            f"`{given}`: give `{_given(option, 'baseline:NAME')}`, a name of a-z, 0-9, _ and -"
        )
    hint = ""
    if value in ("true", "false") or value.replace(".", "", 1).isdigit():
        hint = f"; a parameter is given as `--param {option.removeprefix('--')}={value}`"
    raise Mistake(f"`{given}`: there is no such file{hint}")


def _given(option: str, value: str) -> str:
    """An option as it was typed: `--a FILE`, or `--input name=FILE`."""
    return f"{option}{value}" if option.endswith("=") else f"{option} {value}"


def _object(text: str, option: str) -> Json:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise Mistake(f"`{_given(option, text)}` is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Mistake(f"`{_given(option, text)}` must be an object")
    return value


def _table_options(text: str, option: str) -> dict[str, str]:
    named = dict(parse_qsl(text, keep_blank_values=True))
    if not named or not set(named) <= set(TABLE_OPTIONS):
        raise Mistake(
            f"`{_given(option, f'...?{text}')}`: a table takes vector_column=NAME and "
            "id_column=NAME, joined by &"
        )
    return named


def _perhaps(option: str, options: Sequence[str]) -> str:
    close = get_close_matches(option, options, n=1)
    return f" Did you mean `{close[0]}`?" if close else ""


def section(body: Json, key: str) -> Json:
    """An object of a request; none is an empty one."""
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
