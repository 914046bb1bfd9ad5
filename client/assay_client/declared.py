"""Results as their check declares them: stored reports sort keys and write 1.0 as 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]


def declared(value: Any, schema: Schema) -> Any:
    """A value in the order and the number types of its JSON Schema, as far as that says."""
    return _declared(value, schema, schema.get("$defs", {}))


def _declared(value: Any, schema: Schema, known: Schema) -> Any:
    options = list(_options(schema, known))
    if isinstance(value, dict):
        properties: dict[str, Schema] = {}
        rest: Schema = {}
        for option in options:
            properties |= option.get("properties", {})
            others = option.get("additionalProperties")
            rest = others if isinstance(others, dict) else rest
        order = [key for key in properties if key in value]
        order += [key for key in value if key not in properties]
        return {key: _declared(value[key], properties.get(key, rest), known) for key in order}
    if isinstance(value, list):
        items: Schema = next((o["items"] for o in options if isinstance(o.get("items"), dict)), {})
        return [_declared(part, items, known) for part in value]
    types = {option.get("type") for option in options}
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value) if "number" in types and "integer" not in types else value
    return value


def _options(schema: Schema, known: Schema) -> list[Schema]:
    """The schemas a value may follow, references resolved."""
    if "$ref" in schema:
        return _options(known.get(str(schema["$ref"]).removeprefix("#/$defs/"), {}), known)
    found = [schema]
    for key in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(key, ()):
            found += _options(part, known)
    return found
