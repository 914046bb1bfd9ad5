"""The typed job request: a union over the catalogue, and the digest that names its answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, Union

import rfc8785
from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)

from service.check import Check, Params, Slot
from service.checks import CATALOGUE
from service.errors import (
    AssayError,
    Fault,
    InvalidRequest,
    UnknownCheck,
    did_you_mean,
    pointer_to,
)
from service.redaction import KEPT
from service.references import (
    ColumnValue,
    Model,
    ModelName,
    NamedValue,
    RelevanceValue,
    TableValue,
    VectorsValue,
)
from service.wording import said

LARGEST_INTEGER = 2**53 - 1
SHOWN_FAULTS = 10
TagText = Annotated[str, Field(min_length=1, max_length=200), KEPT]
Tags = Annotated[dict[TagText, TagText], Field(max_length=20)]


class RequestBase(Model):
    """What every request holds beside its typed kind, inputs and params."""

    kind: str
    inputs: Model
    params: Params
    seed: int = Field(default=0, ge=0, le=LARGEST_INTEGER)
    """Seed of every random draw; part of the answer's identity."""
    cache: bool = True
    """Answer from a stored report of the same request; false recomputes."""
    tags: Tags = Field(default_factory=dict)
    """Free labels to find the job and its report by."""


def one_of(kind: str) -> Any:
    """The type whose only value is this kind."""
    return Literal[kind]


def either(models: Iterable[type[Model]]) -> Any:
    """A union told apart by `kind`; one model alone is itself."""
    found = tuple(models)
    return Annotated[Union[found], Discriminator("kind")] if len(found) > 1 else found[0]  # noqa: UP007


def camel(kind: str) -> str:
    """The kind as the name of a type."""
    return "".join(part.title() for part in kind.split("_"))


def _optional(inputs: type[Model], check: Check) -> dict[str, Any]:
    """A check that needs no data can be asked without `inputs`."""
    return {} if any(slot.required for slot in check.slots) else {"default_factory": inputs}


def _as_list(slot: Slot) -> Callable[[Any], Any]:
    """One model may be given without a list around it; an object of models by name is none."""
    parts = slot.parts if slot.several else ("dataset", "baseline", "vectors", "source")
    each = [f'"{part}": {{"dataset": ID}}' for part in slot.needed]
    form = ", ".join(each) if slot.several else '"dataset": ID'

    def validate(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        if value and not value.keys() & {"name", *parts} and _objects(value.values()):
            raise ValueError(f'takes a list of models: `[{{"name": NAME, {form}}}, ...]`')
        return [value]

    return validate


def _objects(values: Iterable[Any]) -> bool:
    return all(isinstance(one, Mapping) for one in values)


VALUES: dict[str, Any] = {
    "vectors": VectorsValue,
    "column": ColumnValue,
    "relevance": RelevanceValue,
    "table": TableValue,
}
"""What a role of each kind is given."""


def _of_parts(check: Check, slot: Slot) -> type[Model]:
    """One of several models of several matrices."""
    told = "Default `model_1`, `model_2`, ... in request order."
    parts: dict[str, Any] = {"name": (ModelName | None, Field(default=None, description=told))} | {
        part: (VectorsValue | None, Field(default=None, description=told))
        if part in slot.spare
        else (VectorsValue, Field(description=told))
        for part, told in zip(slot.parts, slot.told, strict=True)
    }
    return create_model(f"{camel(check.kind)}Model", __base__=Model, **parts)


def _one_form(slot: Slot) -> Any:
    """Validates that models of equal parts are listed, or one of them is given by bare roles."""
    bare = " and ".join(f"`{part}`" for part in slot.needed)

    def validate(inputs: Any) -> Any:
        given = [part for part in slot.parts if getattr(inputs, part) is not None]
        listed = getattr(inputs, slot.name)
        if (listed is not None) == bool(given) or (given and not set(slot.needed) <= set(given)):
            raise ValueError(f"give `{slot.name}`, or {bare} of one model")
        for part in slot.spare:
            if len({getattr(one, part) is None for one in listed or ()}) > 1:
                raise ValueError(f"give `{part}` of each of `{slot.name}`, or of none")
        return inputs

    return validate


def request_model(check: Check) -> type[RequestBase]:
    """The request type of one check."""
    fields: dict[str, Any] = {}
    validators: dict[str, Any] = {}
    for slot in check.slots:
        value = VALUES[slot.kind]
        if slot.most is not None:
            one: Any = _of_parts(check, slot) if slot.several else NamedValue
            several = Annotated[list[one], Field(min_length=slot.few, max_length=slot.most)]
            value = Annotated[
                several, BeforeValidator(_as_list(slot), json_schema_input_type=several)
            ]
        if slot.several:
            fields[slot.name] = (value | None, Field(default=None, description=slot.description))
            for part, told in zip(slot.parts, slot.told, strict=True):
                bare = f"{told} For one model alone, in place of `{slot.name}`."
                fields[part] = (VectorsValue | None, Field(default=None, description=bare))
            validators[f"_{slot.name}_in_one_form"] = model_validator(mode="after")(_one_form(slot))
        elif slot.required:
            fields[slot.name] = (value, Field(description=slot.description))
        else:
            fields[slot.name] = (value | None, Field(default=None, description=slot.description))
    name = camel(check.kind)
    inputs = create_model(
        f"{name}RequestInputs", __base__=Model, __validators__=validators, **fields
    )
    return create_model(
        f"{name}Request",
        __base__=RequestBase,
        __doc__=check.title,
        kind=(one_of(check.kind), Field(description="Kind of check.")),
        inputs=(inputs, Field(description="Data by role.", **_optional(inputs, check))),
        params=(check.params, Field(default_factory=check.params)),
    )


BY_KIND: dict[str, Check] = {check.kind: check for check in CATALOGUE}
REQUESTS: dict[str, type[RequestBase]] = {check.kind: request_model(check) for check in CATALOGUE}
AnyRequest: Any = either(REQUESTS.values())
_ADAPTER: TypeAdapter[RequestBase] = TypeAdapter(AnyRequest)


def check_of(kind: str) -> Check:
    """The check of that kind, or an error that says what it may have been."""
    if kind in BY_KIND:
        return BY_KIND[kind]
    raise UnknownCheck(f"There is no check `{kind}`; {did_you_mean(kind, BY_KIND)}")


def parse_request(body: Any) -> RequestBase:
    """A typed request from decoded JSON."""
    if not isinstance(body, Mapping):
        raise InvalidRequest("A job request is a JSON object with `kind` and `inputs`.")
    if isinstance(kind := body.get("kind"), str):
        _refuse_unknown_roles(check_of(kind), body.get("inputs"))
    try:
        return _ADAPTER.validate_python(dict(body))
    except ValidationError as error:
        raise invalid(error, body, kind=AnyRequest) from None


def _refuse_unknown_roles(check: Check, inputs: Any) -> None:
    if not isinstance(inputs, Mapping):
        return
    known = [name for slot in check.slots for name in names_of(slot)]
    faults = [
        Fault(pointer=pointer(inputs, (role,), "/inputs"), message=did_you_mean(role, known))
        for role in inputs
        if role not in known
    ]
    if faults:
        raise InvalidRequest(f"`{check.kind}` has no such role.", faults[:SHOWN_FAULTS])


def names_of(slot: Slot) -> tuple[str, ...]:
    """Names an input may be given by: its own, and those of a single model's matrices."""
    return (slot.name, *slot.parts) if slot.several else (slot.name,)


def invalid(
    error: ValidationError, body: Any, under: tuple[str, ...] = (), kind: Any = None
) -> AssayError:
    """
    The same faults, each with the JSON pointer of its place in the body.

    `under` precedes the place; `kind` is the type that was wanted.
    """
    faults = faults_of(error, body, under, kind)
    shown = faults[:SHOWN_FAULTS]
    more = "" if len(faults) <= SHOWN_FAULTS else f" and {len(faults) - SHOWN_FAULTS} more"
    places = ", ".join(fault.pointer for fault in shown)
    return InvalidRequest(f"{places_of(len(faults))} not valid: {places}{more}.", shown)


def places_of(count: int) -> str:
    """The beginning of a sentence about so many places."""
    return "1 place is" if count == 1 else f"{count} places are"


def faults_of(
    error: ValidationError, body: Any, under: tuple[str, ...] = (), kind: Any = None
) -> list[Fault]:
    """What is wrong, once for each place."""
    faults: dict[str, Fault] = {}
    for item in error.errors(include_url=False):
        place = pointer(body, (*under, *item["loc"]), absent=item["type"] == "missing")
        if place not in faults:
            faults[place] = Fault(pointer=place, message=said(item, kind))
    return list(faults.values())


def pointer(
    body: Any, location: Iterable[int | str], prefix: str = "", *, absent: bool = False
) -> str:
    """
    JSON pointer (RFC 6901) along keys that are there, which the tags of a union's branches are not.

    `absent` says that the last key is missing from the body.
    """
    parts: list[int | str] = []
    steps = list(location)
    for i, step in enumerate(steps):
        missing = absent and i == len(steps) - 1
        if isinstance(body, Mapping) and (step in body or missing):
            body = body.get(step)
        elif isinstance(body, list) and isinstance(step, int) and step < len(body):
            body = body[step]
        else:
            continue
        parts.append(step)
    return prefix + pointer_to(*parts)


def request_digest(
    kind: str, kind_version: int, inputs: Mapping[str, str], params: Params, seed: int
) -> str:
    """Identity of an answer: kind, version, hashes of inputs, all parameters, seed (RFC 8785)."""
    content: dict[str, Any] = {
        "kind": kind,
        "kind_version": kind_version,
        "inputs": dict(inputs),
        "params": params.model_dump(mode="json"),
        "seed": seed,
    }
    return hashlib.sha256(rfc8785.dumps(content)).hexdigest()
