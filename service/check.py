"""What a check is: typed inputs, parameters and results around one function."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import (
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, ConfigDict, Field
from threadpoolctl import threadpool_limits

from service.blocks import Arrays, plain
from service.context import Context, Warned
from service.dataset import Dataset, Labels
from service.references import Model
from service.relevance import Relevance
from service.results import (
    Estimate,
    Params,
    PValue,
    Results,
    ResultsAtK,
    Scale,
    Undefined,
    at_k,
    estimate_of,
    mean_of,
    mean_of_means,
    p_value,
    unpaired_estimate,
)

__all__ = [
    "Arrays",
    "Check",
    "Context",
    "Estimate",
    "Inputs",
    "Invariance",
    "Measure",
    "PValue",
    "Params",
    "Parts",
    "Results",
    "ResultsAtK",
    "Role",
    "Scale",
    "Shapes",
    "Slot",
    "Undefined",
    "Warned",
    "check",
    "estimate_of",
    "labels",
    "mean_of",
    "mean_of_means",
    "measure",
    "models",
    "named",
    "optional",
    "p_value",
    "relevance",
    "table",
    "unpaired_estimate",
    "vectors",
]

Invariance = Literal[
    "row_scale", "uniform_scale", "orthogonal", "isometry", "similarity", "monotone"
]
Role = Dataset | Labels | Relevance
BARE = "model_1"
"""The name of a model that is given by bare roles."""
MIB = 1 << 20


def vectors(
    *,
    rows: str,
    least: int = 1,
    more_than: str | None = None,
    wider_than: str | None = None,
    default: Any = ...,
) -> Any:
    """
    Declare a role that takes vectors.

    Roles and columns with the same `rows` are paired: row i of one belongs to row i of the other. It
    needs `least` rows, more than the parameter named `more_than` says, and more dimensions than the
    smallest number of the list named `wider_than`.
    """
    extra: dict[str, Any] = {
        "rows": rows,
        "least": least,
        "more_than": more_than,
        "wider_than": wider_than,
    }
    return Field(default=default, json_schema_extra=extra)


def models(
    *,
    rows: str = "",
    least: int = 1,
    few: int = 1,
    most: int = 8,
    more_than: str | None = None,
    parts: Mapping[str, str] | None = None,
    spare: tuple[str, ...] = (),
    as_many_as: Mapping[str, str] | None = None,
) -> Any:
    """
    Declare a role that takes `few` to `most` models over the same rows, by name.

    `least` and `more_than` are about their rows, as for `vectors`. A model of several matrices names
    them in `parts`, each with a sentence on what it holds; each is a row set of its own. Those in
    `spare` may be left out, by all models or none. A part in `as_many_as` needs as many rows as that
    parameter says.
    """
    several: Any = dict(parts or {})
    deep: Any = dict(as_many_as or {})
    rows = rows or next(iter(several))
    extra: dict[str, Any] = {
        "rows": rows,
        "least": least,
        "few": few,
        "most": most,
        "more_than": more_than,
    }
    left_out: Any = list(spare)
    return Field(
        json_schema_extra={**extra, "parts": several, "spare": left_out, "as_many_as": deep}
    )


def relevance(*, of: str, among: str, always: bool = False, default: Any = ...) -> Any:
    """
    Declare which rows of role `among` are right for each row of role `of`, paired with these.

    `always` is as for `labels`.
    """
    extra: dict[str, Any] = {"of": of, "among": among, "always": always}
    return Field(default=default, json_schema_extra=extra)


def labels(
    *,
    of: str,
    otherwise: str | None = None,
    least: int = 1,
    numeric: bool = False,
    always: bool = False,
    default: Any = None,
) -> Any:
    """
    Declare a column, by default read from the dataset in role `of` and paired with its rows.

    Where role `of` is left out, it is a column of the rows in role `otherwise`. One that is `always`
    needed may be left out only where its rows are.

    It needs `least` different labels; `numeric` ones are numbers, or strings that are.
    """
    extra: dict[str, Any] = {
        "of": of,
        "otherwise": otherwise,
        "least": least,
        "numeric": numeric,
        "always": always,
    }
    return Field(default=default, json_schema_extra=extra)


def table(*, least: int = 1) -> Any:
    """
    Declare a role that takes the columns of a dataset, with or without vectors, `least` rows of them.

    Which columns, params say; the check's `examine` looks at them on submission.
    """
    return Field(json_schema_extra={"table": True, "least": least})


def measure(
    *,
    unit: str = "1",
    low: float | None = None,
    high: float | None = None,
    better: Literal["higher", "lower"] | None = None,
    invariance: tuple[Invariance, ...] = (),
    needs: tuple[str, ...] = (),
) -> Any:
    """
    Declare a number that gates, dashboards and the catalogue know.

    `invariance` names the maps of the rows it finally uses that leave it unchanged; `needs`, the
    roles and params without which it is null; a p-value that is a bare number has unit "p".
    """
    declared: dict[str, Any] = {
        "unit": unit,
        "low": low,
        "high": high,
        "better": better,
        "invariance": list(invariance),
        "needs": list(needs),
    }
    return Field(json_schema_extra={"measure": declared})


def optional(*, needs: tuple[str, ...], default: Any = ...) -> Any:
    """Declare results that are null without these roles and params; `default` is for old reports."""
    return Field(default=default, json_schema_extra={"needs": list(needs)})


def named(place: str) -> Any:
    """Declare results by name; `place` stands for the name in measure paths, see `Params.names`."""
    return Field(json_schema_extra={"named": place})


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
    needs: list[str]
    """Roles and params without which it is null."""
    shape: Literal["scalar", "estimated", "p_value"]

    @property
    def is_p_value(self) -> bool:
        return self.shape == "p_value" or self.unit == "p"


class Inputs(BaseModel):
    """
    Base of a check's inputs: `Dataset` (vectors, a table), `dict[str, Dataset]` (models) or, of several
    matrices, `dict[str, dict[str, Dataset]]`; `Labels`; `Relevance`.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True
    )


@dataclass(frozen=True)
class Slot:
    """One declared input of a check."""

    name: str
    kind: Literal["vectors", "column", "relevance", "table"]
    required: bool
    description: str
    rows: str
    """Name of the row set it belongs to."""
    of: str | None = None
    otherwise: str | None = None
    """The role whose column it is where `of` is left out."""
    least: int = 1
    """Rows it needs, or different labels of a column."""
    numeric: bool = False
    always: bool = False
    """Whether a column is needed wherever its rows are given."""
    few: int = 1
    """How many models it needs."""
    most: int | None = None
    """How many models it takes; None for a role of one."""
    parts: tuple[str, ...] = ("vectors",)
    """The matrices of each of several models."""
    told: tuple[str, ...] = ()
    """What each of them holds, where there are several."""
    spare: tuple[str, ...] = ()
    """Those of them that may be left out."""
    among: str | None = None
    """The role whose rows a relevance names."""
    more_than: str | None = None
    """The parameter it needs more rows than."""
    wider_than: str | None = None
    """The parameter, a list, it needs more dimensions than the smallest of."""
    as_many_as: str | None = None
    """The parameter, a list of numbers, it needs as many rows as."""
    deep: tuple[tuple[str, str], ...] = ()
    """The same by part."""

    @property
    def several(self) -> bool:
        """Whether a model of this role has more than one matrix."""
        return len(self.parts) > 1

    @property
    def needed(self) -> tuple[str, ...]:
        """The matrices no model may leave out."""
        return tuple(part for part in self.parts if part not in self.spare)

    def part(self, name: str) -> Slot:
        """One matrix of each model, as a slot of its own."""
        if not self.several:
            return self
        return replace(
            self,
            rows=name,
            required=self.required and name in self.needed,
            parts=(name,),
            told=(),
            spare=(),
            deep=(),
            as_many_as=dict(self.deep).get(name),
        )

    def fewest(self, params: Params) -> int:
        """Rows it needs under these parameters."""
        if self.as_many_as is not None:
            asked: list[int] = getattr(params, self.as_many_as)
            return max(self.least, *asked)
        return self.least if self.more_than is None else getattr(params, self.more_than) + 1


@dataclass(frozen=True)
class Parts:
    """
    How a check is cut into blocks that several processes may share.

    The check itself then takes a fourth argument, `parts`: the arrays of all blocks, joined in order.
    """

    plan: Callable[[Any, Any], int]
    """`(inputs, params)`: blocks of a fixed grid, at least one, whoever computes them."""
    part: Callable[[Context, Any, Any, range], Arrays]
    """
    `(context, inputs, params, blocks)`: arrays of these blocks, a row for each of their rows or for
    each of them, which depend on no other block. Progress is that of one stage over the blocks.
    """


Run = Callable[..., Results]
Shapes = Mapping[str, tuple[int, int]]
"""Rows, and dimensions of the widest matrix, of each row set."""
Refuse = Callable[[Mapping[str, Labels], Shapes, Any, int], object]
"""`(columns, shapes, params, seed)`: raises for what labels and shapes forbid. It is asked before a
job is accepted, and the check asks it again."""


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
    parts: Parts | None = None
    question: str = ""
    """What a person would ask, and this check answers."""
    examine: Callable[[Any, Any], object] | None = None
    """`(inputs, params)`: raises for what tables forbid, on submission, where all inputs are tables."""
    refuse: Refuse | None = None

    def run(self, context: Context, inputs: Inputs, params: Params) -> Results:
        """Run with single-threaded BLAS: parallelism is over blocks, so that sums never vary."""
        if self.parts is not None:
            blocks = range(self.blocks(inputs, params))
            return self.combine(context, inputs, params, self.part(context, inputs, params, blocks))
        with threadpool_limits(limits=1):
            return self.function(context, inputs, params)

    def blocks(self, inputs: Inputs, params: Params) -> int:
        """Blocks that may be computed apart; one for a check that cannot be cut."""
        return 1 if self.parts is None else self.parts.plan(inputs, params)

    def part(self, context: Context, inputs: Inputs, params: Params, blocks: range) -> Arrays:
        """What these blocks contribute, in one layout, so that a stored part is no other array."""
        if self.parts is None:
            raise TypeError(f"`{self.kind}` has no parts.")
        with threadpool_limits(limits=1):
            return plain(self.parts.part(context, inputs, params, blocks))

    def combine(self, context: Context, inputs: Inputs, params: Params, parts: Arrays) -> Results:
        """Results from the arrays of all blocks."""
        with threadpool_limits(limits=1):
            return self.function(context, inputs, params, parts)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Inputs in declared order."""
        found: dict[str, Slot] = {}
        for name, info in self.inputs.model_fields.items():
            extra = info.json_schema_extra
            declared: Mapping[str, Any] = extra if isinstance(extra, dict) else {}
            of, among = declared.get("of"), declared.get("among")
            parts: Mapping[str, str] = declared.get("parts") or {"vectors": ""}
            found[name] = Slot(
                name=name,
                kind=_kind(declared),
                required=info.is_required(),
                description=info.description or "",
                rows=declared.get("rows", name) if of is None else _role(found, of).rows,
                parts=tuple(parts),
                told=tuple(parts.values()) if len(parts) > 1 else (),
                spare=tuple(declared.get("spare", ())),
                among=among,
                deep=tuple(declared.get("as_many_as", {}).items()),
                of=of,
                otherwise=declared.get("otherwise"),
                least=declared.get("least", 1),
                numeric=declared.get("numeric", False),
                always=declared.get("always", False),
                few=declared.get("few", 1),
                most=declared.get("most"),
                more_than=declared.get("more_than"),
                wider_than=declared.get("wider_than"),
            )
        return tuple(found.values())

    def slots_of(self, given: Container[str]) -> tuple[Slot, ...]:
        """The same inputs when only some are given: a column of a role left out is another's."""
        slots = {slot.name: slot for slot in self.slots}
        return tuple(
            replace(slot, of=slot.otherwise, rows=slots[slot.otherwise].rows)
            if slot.otherwise is not None and slot.of not in given
            else slot
            for slot in slots.values()
        )

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Every measure of the results, in reading order."""
        return _all_measures(self.results)

    def memory_bytes(self, input_bytes: int) -> int:
        """Memory the check may use beside its mapped inputs."""
        return int(self.memory_factor * input_bytes) + 512 * MIB


def _kind(declared: Mapping[str, Any]) -> Literal["vectors", "column", "relevance", "table"]:
    """What an input takes, by how it was declared."""
    if "table" in declared:
        return "table"
    if declared.get("of") is None:
        return "vectors"
    return "column" if declared.get("among") is None else "relevance"


def _role(slots: Mapping[str, Slot], path: str) -> Slot:
    """The slot of a role, or of one part of a model: `models.queries`."""
    name, _, part = path.partition(".")
    return slots[name].part(part) if part else slots[name]


SHAPES: dict[type, str] = {Estimate: "estimated", PValue: "p_value"}


@cache
def _all_measures(results: type[Results]) -> tuple[Measure, ...]:
    return tuple(_measures(results, ""))


def _measures(
    model: type[BaseModel], prefix: str, needs: tuple[str, ...] = ()
) -> Iterator[Measure]:
    for name, info in model.model_fields.items():
        extra = info.json_schema_extra
        declared: Mapping[str, Any] = extra if isinstance(extra, dict) else {}
        kind, names = _by_name(info.annotation, declared.get("named"))
        if isinstance(found := declared.get("measure"), dict):
            yield Measure.model_validate(
                {
                    **found,
                    "needs": [*needs, *found["needs"]],
                    "path": f"{prefix}{name}{names}",
                    "description": info.description or "",
                    "shape": SHAPES.get(kind, "scalar"),
                }
            )
        elif isinstance(kind, type) and issubclass(kind, Results):
            inner = (*needs, *declared.get("needs", ()))
            yield from _measures(kind, f"{prefix}{name}{names}.", inner)


def _by_name(annotation: Any, named: Any) -> tuple[Any, str]:
    """The type of a field, and what stands after its name for the keys of the maps around that type."""
    if at_k(annotation):
        return get_args(annotation)[1], "@{k}"
    keys = 0
    kind = _alternatives(annotation)[0]
    while get_origin(kind) is dict:
        kind, keys = get_args(kind)[1], keys + 1
    if named is not None:
        return kind, f".{{{named}}}"
    return kind, ("", ".{model}", ".{later}.{earlier}")[keys]


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(a for a in get_args(annotation) if a is not type(None))
    return (annotation,)


F = TypeVar("F", bound=Callable[..., Results])


class check:
    """
    Declare a check: `@check(version=1, title=..., scope=..., sources=...)` over
    `def kind(context: Context, inputs: KindInputs, params: KindParams) -> Kind`; with `parts=...` the
    function takes `parts: Arrays` as well.

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
        parts: Parts | None = None,
        question: str = "",
        examine: Callable[[Any, Any], object] | None = None,
        refuse: Refuse | None = None,
    ) -> None:
        self.version = version
        self.title = title
        self.scope = scope
        self.sources = sources
        self.row_limit = row_limit
        self.memory_factor = memory_factor
        self.parts = parts
        self.question = question
        self.examine = examine
        self.refuse = refuse

    def __call__(self, function: F) -> Check:
        hints = get_type_hints(function)
        required = self.required if self.parts is None else (*self.required, "parts")
        if tuple(inspect.signature(function).parameters) != required:
            raise TypeError(f"`{function.__name__}` must take {', '.join(required)}")
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
            parts=self.parts,
            question=self.question,
            examine=self.examine,
            refuse=self.refuse,
        )
