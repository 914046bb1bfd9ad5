"""What a check takes: roles of vectors, models, columns, relevance and tables."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.results import Params


def vectors(
    *,
    rows: str,
    least: int = 1,
    more_than: str | None = None,
    wider_than: str | None = None,
    directed: bool | str = True,
    default: Any = ...,
) -> Any:
    """
    Declare a role that takes vectors.

    Roles and columns with the same `rows` are paired: row i of one belongs to row i of the other. It
    needs `least` rows, more than the parameter named `more_than` says, and more dimensions than the
    smallest number of the list named `wider_than`. Where `directed`, or the parameter of that name, is
    true, every row needs a direction: none may be zero.
    """
    extra: dict[str, Any] = {
        "rows": rows,
        "least": least,
        "more_than": more_than,
        "wider_than": wider_than,
        "directed": directed,
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
    directed: bool | str = True,
) -> Any:
    """
    Declare a role that takes `few` to `most` models over the same rows, by name.

    `least`, `more_than` and `directed` are about their rows, as for `vectors`. A model of several
    matrices names them in `parts`, each with a sentence on what it holds; each is a row set of its own.
    Those in `spare` may be left out, by all models or none. A part in `as_many_as` needs as many rows
    as that parameter says.
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
        "directed": directed,
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
    directed: bool | str = True
    """Whether its rows need a direction, or the parameter that says so."""

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

    def takes_zeros(self, params: Params) -> bool:
        """Whether rows may be zero under these parameters."""
        named = isinstance(self.directed, str)
        return not (getattr(params, str(self.directed)) if named else self.directed)


@cache
def slots(inputs: type[Inputs]) -> tuple[Slot, ...]:
    """The declared inputs, in order."""
    found: dict[str, Slot] = {}
    for name, info in inputs.model_fields.items():
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
            directed=declared.get("directed", True),
        )
    return tuple(found.values())


def slots_given(inputs: type[Inputs], given: Container[str]) -> tuple[Slot, ...]:
    """The same when only some are given: a column of a role left out is another's."""
    declared = {slot.name: slot for slot in slots(inputs)}
    return tuple(
        replace(slot, of=slot.otherwise, rows=declared[slot.otherwise].rows)
        if slot.otherwise is not None and slot.of not in given
        else slot
        for slot in declared.values()
    )


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
