"""What is wrong with a value of a request, in words that say what would be right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Tag
from pydantic_core import ErrorDetails

from service.errors import did_you_mean

KINDS = {
    "string": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
    "model": "an object",
    "model_attributes": "an object",
}
"""What a value should be, by how the type of an error begins."""
WRONG_KINDS = ("_type", "_parsing", "_parsing_size", "_from_float")
"""How it ends then."""
LIKE = 0.6
"""How alike two keys are where one may be the other misspelled."""
SAID = {
    "missing": "is required",
    "greater_than": "takes more than {gt:g}",
    "greater_than_equal": "takes {ge:g} or more",
    "less_than": "takes less than {lt:g}",
    "less_than_equal": "takes {le:g} or less",
    "too_short": "takes at least {min_length}, not {actual_length}",
    "too_long": "takes at most {max_length}",
    "string_too_short": "takes at least {min_length} characters",
    "string_too_long": "takes at most {max_length} characters",
    "string_pattern_mismatch": "takes text of the form `{pattern}`",
    "string_unicode": "takes text in UTF-8",
    "literal_error": "takes {expected}",
    "enum": "takes {expected}",
    "union_tag_invalid": "`kind` is one of {expected_tags}",
    "union_tag_not_found": "is told apart by {discriminator}, which is required",
    "finite_number": "takes a finite number",
    "value_error": "{error}",
}
"""By type of an error, with what its context holds."""


def said(error: ErrorDetails, kind: Any = None) -> str:
    """
    A fault that validation has found, in one sentence.

    `kind` is the type of the whole value: of keys that are missing or unknown it says more.
    """
    found, key = error["type"], error["loc"][-1] if error["loc"] else ""
    if found in ("missing", "extra_forbidden") and kind is not None:
        models = list(_models(kind, error["loc"][:-1]))
        if len(models) == 1:
            return _of_key(models[0], str(key))
    for ending in WRONG_KINDS:
        wanted = KINDS.get(found.removesuffix(ending))
        if found.endswith(ending) and wanted is not None:
            return f"takes {wanted}{_not_what(error['input'], wanted)}"
    if found == "extra_forbidden":
        return f"there is no `{key}` here"
    return SAID[found].format(**error.get("ctx", {})) if found in SAID else error["msg"]


def _of_key(model: type[BaseModel], key: str) -> str:
    if key not in model.model_fields:
        return f"there is no `{key}` here; {did_you_mean(key, model.model_fields, LIKE)}"
    told = " ".join((model.model_fields[key].description or "").split()).partition(". ")[0]
    return f"is required: {told.rstrip('.')}" if told else "is required"


def _not_what(value: Any, wanted: str) -> str:
    """The kind of value that was given instead, where it helps; never the value itself."""
    if value is None or isinstance(value, bool):
        return f", not {'null' if value is None else 'true or false'}"
    if isinstance(value, float) and wanted == KINDS["int"]:
        return ", not a fraction"
    for given, name in (
        ((int, float), "a number"),
        (Mapping, "an object"),
        ((list, tuple), "a list"),
    ):
        if isinstance(value, given):
            return f", not {name}"
    return ""


def _models(kind: Any, location: Sequence[int | str]) -> Iterator[type[BaseModel]]:
    """Models that may stand at a place of a value of this type."""
    kinds = list(_alternatives(kind))
    for step in location:
        inner = [found for one in kinds for found in _inside(one, step)]
        chosen = [one for one in kinds if step in _tags(one)]  # a branch of a union, no key
        kinds = [one for found in inner or chosen or kinds for one in _alternatives(found)]
    for one in kinds:
        plain = _untagged(one)
        if isinstance(plain, type) and issubclass(plain, BaseModel):
            yield plain


def _alternatives(kind: Any) -> Iterator[Any]:
    """The members of a union, each with its tag."""
    plain = _untagged(kind)
    if get_origin(plain) in (Union, UnionType):
        for member in get_args(plain):
            yield from _alternatives(member)
    else:
        yield kind


def _untagged(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _tags(kind: Any) -> list[Any]:
    """What the location of an error may call this member of a union by."""
    plain = _untagged(kind)
    found: list[Any] = [one.tag for one in get_args(kind)[1:] if isinstance(one, Tag)]
    if isinstance(plain, type) and issubclass(plain, BaseModel) and "kind" in plain.model_fields:
        told = plain.model_fields["kind"].annotation
        found += get_args(told) if get_origin(told) is Literal else []
    return found


def _inside(kind: Any, step: int | str) -> list[Any]:
    """What stands under a key or an index of a value of this type."""
    plain = _untagged(kind)
    if isinstance(plain, type) and issubclass(plain, BaseModel):
        return [plain.model_fields[step].annotation] if step in plain.model_fields else []
    origin, inner = get_origin(plain), get_args(plain)
    if origin is dict and isinstance(step, str):
        return [inner[1]]
    return [inner[0]] if origin in (list, tuple) and isinstance(step, int) else []
