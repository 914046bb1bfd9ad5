"""What a check is: typed inputs, parameters and results around one function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, get_type_hints

from threadpoolctl import threadpool_limits

from service.blocks import Arrays, plain
from service.chart import Bars, Chart, Curves, Dots, Shown, Trade
from service.context import Context, Warned
from service.dataset import Dataset, Labels
from service.estimates import (
    Scale,
    change_of,
    estimate_of,
    mean_of,
    mean_of_means,
    p_value,
    rescaled,
    unpaired_estimate,
)
from service.measures import (
    Drawn,
    Invariance,
    Measure,
    by_rounding,
    measure,
    measures,
    named,
    optional,
    pictured,
)
from service.relevance import Relevance
from service.results import (
    Estimate,
    Params,
    PValue,
    Results,
    ResultsAtK,
    Undefined,
)
from service.slots import (
    Inputs,
    Slot,
    labels,
    models,
    relevance,
    slots,
    slots_given,
    table,
    vectors,
)

__all__ = [
    "Arrays",
    "Bars",
    "Chart",
    "Check",
    "Context",
    "Curves",
    "Dots",
    "Drawn",
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
    "Shown",
    "Slot",
    "Trade",
    "Undefined",
    "Warned",
    "by_rounding",
    "change_of",
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
    "rescaled",
    "table",
    "unpaired_estimate",
    "vectors",
]

Role = Dataset | Labels | Relevance
BARE = "model_1"
"""The name of a model that is given by bare roles."""
MIB = 1 << 20
ROWS_WARNINGS = {
    "rows_dropped": "Rows were left out, as `on_bad_rows` asks.",
    "missing_vectors": "Rows of a store had no vector and were left out.",
    "lossy_storage": "Rows of a store were read back from codes: they are not what was written to it.",
}
"""What may be warned of before a check begins."""


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
    warnings: Mapping[str, str] = field(default_factory=dict)
    """What it may warn of, by code: one sentence each."""

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
        return slots(self.inputs)

    def slots_of(self, given: Container[str]) -> tuple[Slot, ...]:
        """The same inputs when only some are given: a column of a role left out is another's."""
        return slots_given(self.inputs, given)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Every measure of the results, in reading order."""
        return measures(self.results)

    @property
    def codes(self) -> Mapping[str, str]:
        """The same with what any check that is given rows may warn of."""
        return {**(ROWS_WARNINGS if self.slots else {}), **self.warnings}

    @property
    def charts(self) -> tuple[Chart, ...]:
        """Pictures of the results: those that are declared, else one for each scale of its measures."""
        return self.results.charts or pictured(self.measures)

    def memory_bytes(self, input_bytes: int) -> int:
        """Memory the check may use beside its mapped inputs."""
        return int(self.memory_factor * input_bytes) + 512 * MIB


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
        warnings: Mapping[str, str] | None = None,
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
        self.warnings = warnings or {}

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
            warnings=self.warnings,
        )
