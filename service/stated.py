"""What a model states: each value under its key in JSON, with its sentence and its declaration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from service.results import at_k


@dataclass(frozen=True)
class Stated:
    """One value of a model."""

    key: str
    """Its key in the dumped object."""
    name: str
    """The field it belongs to."""
    value: Any
    info: FieldInfo | None
    """None of what a model takes beside its fields."""

    @property
    def description(self) -> str:
        """The sentence under the field."""
        return "" if self.info is None else self.info.description or ""

    @property
    def declared(self) -> Mapping[str, Any]:
        """What `measure(...)` and its like say of the field."""
        extra = None if self.info is None else self.info.json_schema_extra
        return extra if isinstance(extra, dict) else {}


def stated(model: BaseModel) -> Iterator[Stated]:
    """Every value of a model in reading order, but the reasons for its nulls."""
    for name, info in type(model).model_fields.items():
        if name == "undefined":
            continue
        value = getattr(model, name)
        if at_k(info.annotation):
            for k, one in value.items():
                yield Stated(f"{name}@{k}", name, one, info)
        else:
            yield Stated(name, name, value, info)
    for name, value in (model.model_extra or {}).items():
        yield Stated(name, name, value, None)
