"""What a check is: typed inputs, parameters and results around one function."""

from __future__ import annotations

import inspect
import time
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import (
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from threadpoolctl import threadpool_limits

from service.dataset import Dataset, Labels
from service.numerics.resampling import FEWEST_UNITS, Interval, Unit, jackknife_t, share_interval
from service.numerics.rows import Floats
from service.references import Model

Invariance = Literal[
    "row_scale", "uniform_scale", "orthogonal", "isometry", "similarity", "monotone"
]
Role = Dataset | Labels
MIB = 1 << 20


class Undefined(Model):
    """Why a value is null."""

    code: str
    """Stable, for programs."""
    message: str
    """One sentence, for people."""


class Results(Model):
    """Typed results. A value that is undefined is null and says why under `undefined`."""

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

    level: float = Field(default=0.95, ge=0.5, lt=1)
    """Coverage of every interval, two-sided."""
    on_bad_rows: Literal["error", "drop"] = "error"
    """Refuse non-finite rows, zero rows and missing labels, or drop and count them."""
    align_by_ids: bool = False
    """Match paired inputs by equal ids in any order, not by position."""
    census: bool = False
    """The rows are the whole population: no intervals."""


def estimate_of(
    value: float | Undefined,
    deleted: Floats,
    params: Params,
    unit: Unit,
    share: float | None = None,
) -> Estimate:
    """
    An estimate with the interval its leave-one-out values allow.

    Parameters
    ----------
    value : float or the reason why there is none
    deleted : (G,) the statistic without each unit; NaN where it is undefined
    params : for `level` and `census`
    unit : what `deleted` leaves out
    share : mean over units of each unit's share, where the value is a share in [0, 1]
    """
    if isinstance(value, Undefined):
        return cast(Estimate, Estimate.build(estimate=value, interval=value))
    interval: Interval | Undefined
    if params.census:
        interval = Undefined(code="census", message="The rows are the whole population.")
    elif len(deleted) < FEWEST_UNITS:
        interval = Undefined(
            code=f"too_few_{unit}s",
            message=f"{len(deleted)} {unit}s; an interval needs at least {FEWEST_UNITS}.",
        )
    elif not np.isfinite(deleted).all():
        interval = Undefined(
            code="undefined_without_a_unit",
            message=f"The value is undefined when some {unit} is left out.",
        )
    elif share is not None:
        interval = share_interval(value, deleted, share, params.level, unit)
    else:
        interval = jackknife_t(value, deleted, params.level, unit)
    return cast(Estimate, Estimate.build(estimate=value, interval=interval))


def vectors(*, rows: str, least: int = 1, default: Any = ...) -> Any:
    """
    Declare a role that takes vectors.

    Roles and columns with the same `rows` are paired: row i of one belongs to row i of the other.
    """
    return Field(default=default, json_schema_extra={"rows": rows, "least": least})


def models(*, rows: str, least: int = 1, most: int = 8) -> Any:
    """Declare a role that takes one to `most` models over the same rows, by name."""
    return Field(json_schema_extra={"rows": rows, "least": least, "most": most})


def labels(*, of: str, least: int = 1, numeric: bool = False, default: Any = None) -> Any:
    """
    Declare a column, by default read from the dataset in role `of` and paired with its rows.

    It needs `least` different labels; `numeric` ones are numbers, or strings that are.
    """
    extra: dict[str, Any] = {"of": of, "least": least, "numeric": numeric}
    return Field(default=default, json_schema_extra=extra)


def measure(
    *,
    unit: str = "1",
    low: float | None = None,
    high: float | None = None,
    better: Literal["higher", "lower"] | None = None,
    invariance: tuple[Invariance, ...] = (),
) -> Any:
    """
    Declare a number that gates, dashboards and the catalogue know.

    `invariance` names the maps of the rows it finally uses that leave it unchanged.
    """
    declared: dict[str, Any] = {
        "unit": unit,
        "low": low,
        "high": high,
        "better": better,
        "invariance": list(invariance),
    }
    return Field(json_schema_extra={"measure": declared})


class Measure(Model):
    """A measure as the catalogue shows it."""

    path: str
    """Where it stands in `results`, keys joined by dots."""
    description: str
    unit: str
    low: float | None
    """Smallest possible value."""
    high: float | None
    """Largest possible value."""
    better: Literal["higher", "lower"] | None
    """Direction, where there is one."""
    invariance: list[Invariance]
    """Maps of the rows it finally uses that leave it unchanged; empty for none."""
    shape: Literal["scalar", "estimated", "p_value"]


class Inputs(BaseModel):
    """Base of a check's inputs: `Dataset` (vectors), `dict[str, Dataset]` (models) or `Labels`."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True
    )


@dataclass(frozen=True)
class Slot:
    """One declared input of a check."""

    name: str
    kind: Literal["vectors", "column"]
    required: bool
    description: str
    rows: str
    """Name of the row set it belongs to."""
    of: str | None = None
    least: int = 1
    """Rows it needs, or different labels of a column."""
    numeric: bool = False
    most: int | None = None
    """How many models it takes; None for a role of one."""


class Warned(Model):
    """Something a reader of the report should know."""

    code: str
    message: str
    where: str
    """Input or result it is about."""


@dataclass
class Context:
    """What a check may use besides its inputs: a seed, threads, and ways to say how far it is."""

    seed: int = 0
    threads: int = 1
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None
    warnings: list[Warned] = field(default_factory=list)
    scope: list[str] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)

    def warn(self, code: str, message: str, where: str) -> None:
        self.warnings.append(Warned(code=code, message=message, where=where))

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """Time a part of the work; the yielded function reports how much of it is done."""
        started = time.perf_counter()
        self.progress(name, 0, 1)
        yield lambda done, total: self.progress(name, done, total)
        self.stages[name] = self.stages.get(name, 0.0) + time.perf_counter() - started


Run = Callable[[Context, Any, Any], Results]


@dataclass(frozen=True)
class Check:
    """A check: a function with its declared types, and everything that follows from them."""

    kind: str
    version: int
    title: str
    description: str
    function: Run
    inputs: type[Inputs]
    params: type[Params]
    results: type[Results]
    scope: tuple[str, ...]
    sources: tuple[str, ...]
    row_limit: int | None = None
    memory_factor: float = 1.0
    """Memory beside the mapped inputs, in inputs; half a GiB is added."""

    def run(self, context: Context, inputs: Inputs, params: Params) -> Results:
        """Run with single-threaded BLAS: parallelism is over blocks, so that sums never vary."""
        with threadpool_limits(limits=1):
            return self.function(context, inputs, params)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Inputs in declared order."""
        found: dict[str, Slot] = {}
        for name, info in self.inputs.model_fields.items():
            extra = info.json_schema_extra
            declared: Mapping[str, Any] = extra if isinstance(extra, dict) else {}
            of = declared.get("of")
            found[name] = Slot(
                name=name,
                kind="vectors" if of is None else "column",
                required=info.is_required(),
                description=info.description or "",
                rows=declared["rows"] if of is None else found[of].rows,
                of=of,
                least=declared.get("least", 1),
                numeric=declared.get("numeric", False),
                most=declared.get("most"),
            )
        return tuple(found.values())

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Every measure of the results, in reading order."""
        return tuple(_measures(self.results, ""))

    def memory_bytes(self, input_bytes: int) -> int:
        """Memory the check may use beside its mapped inputs."""
        return int(self.memory_factor * input_bytes) + 512 * MIB


SHAPES: dict[type, str] = {Estimate: "estimated", PValue: "p_value"}


def _measures(model: type[BaseModel], prefix: str) -> Iterator[Measure]:
    for name, info in model.model_fields.items():
        declared = info.json_schema_extra
        kind, names = _by_name(info.annotation)
        if isinstance(declared, dict) and isinstance(declared.get("measure"), dict):
            yield Measure.model_validate(
                {
                    **declared["measure"],  # type: ignore[dict-item]
                    "path": prefix + name,
                    "description": info.description or "",
                    "shape": SHAPES.get(kind, "scalar"),
                }
            )
        elif isinstance(kind, type) and issubclass(kind, Results):
            yield from _measures(kind, f"{prefix}{name}{names}.")


def _by_name(annotation: Any) -> tuple[Any, str]:
    """The type of a field, and the names that stand between it and what maps of models hold."""
    keys = 0
    kind = _alternatives(annotation)[0]
    while get_origin(kind) is dict:
        kind, keys = get_args(kind)[1], keys + 1
    return kind, ("", ".{model}", ".{later}.{earlier}")[keys]


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(a for a in get_args(annotation) if a is not type(None))
    return (annotation,)


F = TypeVar("F", bound=Callable[..., Results])


class check:
    """
    Declare a check: `@check(version=1, title=..., scope=..., sources=...)` over
    `def kind(context: Context, inputs: KindInputs, params: KindParams) -> Kind`.

    Kind, description and types are read from the function, so they cannot drift apart.
    """

    required: ClassVar[tuple[str, ...]] = ("context", "inputs", "params")

    def __init__(
        self,
        *,
        version: int,
        title: str,
        scope: tuple[str, ...],
        sources: tuple[str, ...] = (),
        row_limit: int | None = None,
        memory_factor: float = 1.0,
    ) -> None:
        self.version = version
        self.title = title
        self.scope = scope
        self.sources = sources
        self.row_limit = row_limit
        self.memory_factor = memory_factor

    def __call__(self, function: F) -> Check:
        hints = get_type_hints(function)
        if tuple(inspect.signature(function).parameters) != self.required:
            raise TypeError(f"`{function.__name__}` must take {', '.join(self.required)}")
        return Check(
            kind=function.__name__,
            version=self.version,
            title=self.title,
            description=inspect.getdoc(function) or "",
            function=function,
            inputs=hints["inputs"],
            params=hints["params"],
            results=hints["return"],
            scope=self.scope,
            sources=self.sources,
            row_limit=self.row_limit,
            memory_factor=self.memory_factor,
        )
