"""What a check answers with: numbers that carry their uncertainty, or the reason why there is none."""

from __future__ import annotations

from typing import (
    Any,
    ClassVar,
    Literal,
    cast,
    get_args,
    get_origin,
)

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from service.chart import Chart
from service.numerics.resampling import (
    Interval,
)
from service.references import Model


class Undefined(Model):
    """Why a value is null."""

    code: str
    """Stable, for programs."""
    message: str
    """One sentence, for people."""


class Results(Model):
    """Typed results. A value that is undefined is null and says why under `undefined`."""

    charts: ClassVar[tuple[Chart, ...]] = ()
    """Pictures of them, where they are those of a check."""

    undefined: dict[str, Undefined] = Field(
        default_factory=dict, exclude_if=lambda reasons: not reasons
    )
    """Reasons for the nulls of this object; absent when nothing is null."""

    @classmethod
    def build(cls, **values: object) -> Any:
        """Make results; an `Undefined` in place of a value becomes null with that reason."""
        reasons = {key: value for key, value in values.items() if isinstance(value, Undefined)}
        return cls.model_validate(
            {**values, **dict.fromkeys(reasons), "undefined": reasons} if reasons else values
        )

    def readings(self) -> list[str]:
        """One sentence for each thing worth reading, with what gives the number its meaning."""
        return []

    def value(self, key: str) -> Any:
        """What stands under a key of the dumped object."""
        return getattr(self, key)


class ResultsAtK(Results):
    """
    Results whose fields of type `dict[int, ...]` are written with k in the key: `overlap@10`.

    The objects of a report keep one flat level of keys, and each measure a path of its own.
    """

    spelled: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        cls.spelled = tuple(
            name for name, info in cls.model_fields.items() if at_k(info.annotation)
        )

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        gathered: dict[str, Any] = {}
        for key, value in values.items():
            name, at, k = key.partition("@")
            if at and name in cls.spelled:
                gathered.setdefault(name, {})[k] = value
            else:
                gathered[key] = value
        return gathered

    @model_serializer(mode="wrap")
    def _spell(self, write: SerializerFunctionWrapHandler) -> Any:
        return {
            spelled: value
            for key, found in write(self).items()
            for spelled, value in (
                [(f"{key}@{k}", one) for k, one in found.items()]
                if key in self.spelled
                else [(key, found)]
            )
        }

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        plain = {key: value for key, value in core.items() if key != "serialization"}
        schema = handler.resolve_ref_schema(handler(cast(CoreSchema, plain)))
        for name in cls.spelled:
            declared = schema["properties"].pop(name)
            of_each = declared.pop("additionalProperties")
            described = {
                key: declared[key] for key in ("description", "measure") if key in declared
            }
            patterns = schema.setdefault("patternProperties", {})
            patterns[f"^{name}@[0-9]+$"] = {"allOf": [of_each], **described}
            schema["required"] = [one for one in schema["required"] if one != name]
        return schema

    def value(self, key: str) -> Any:
        name, at, k = key.partition("@")
        return getattr(self, name)[int(k)] if at else super().value(key)


def at_k(annotation: Any) -> bool:
    """Whether a field holds one value for each k."""
    return get_origin(annotation) is dict and get_args(annotation)[0] is int


class Estimate(Results):
    """An estimate with its uncertainty."""

    def __neg__(self) -> Estimate:
        """The estimate of the difference taken the other way round."""
        if self.estimate is None:
            return self
        turned = None
        if self.interval is not None:
            ends = {"low": -self.interval.high, "high": -self.interval.low}
            turned = self.interval.model_copy(update=ends)
        return self.model_copy(update={"estimate": -self.estimate, "interval": turned})

    estimate: float | None
    """The value on the rows given."""
    interval: Interval | None
    """Where the value of the population may lie, or null with a reason."""

    def __format__(self, spec: str) -> str:
        if self.estimate is None:
            return "undefined"
        text = format(self.estimate, spec)
        if self.interval is None:
            return text
        return f"{text} [{self.interval.low:{spec}}, {self.interval.high:{spec}}]"


class PValue(Estimate):
    """A permutation p-value; its interval is the Monte Carlo error, and null when it is exact."""

    exceedances: int
    """Arrangements at least as extreme as the data."""
    permutations: int
    """Arrangements looked at."""
    exact: bool
    """Whether those were all there are."""
    p_min: float
    """The smallest value there could have been."""


class Params(Model):
    """Parameters every check understands."""

    level: float = Field(default=0.95, ge=0.5, le=0.999999)
    """Coverage of every interval, two-sided."""
    on_bad_rows: Literal["error", "drop"] = "error"
    """Refuse non-finite rows, zero rows where a direction is needed and missing labels, or drop and
    count them."""
    align_by_ids: bool = False
    """Match paired inputs by equal ids in any order, not by position."""
    census: bool = False
    """The rows are the whole population: no intervals."""

    def names(self) -> dict[str, list[str]]:
        """What the places in braces of this check's measure paths stand for, models excepted."""
        return {}
