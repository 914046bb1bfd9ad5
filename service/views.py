"""How a check looks from outside."""

from __future__ import annotations

from typing import Any, Literal

from service.check import Check, Measure
from service.references import Model
from service.request import REQUESTS


class RoleView(Model):
    """One input of a check."""

    name: str
    kind: Literal["vectors", "column", "relevance", "table"]
    required: bool
    description: str
    parts: list[str]
    """Matrices of each model, where it has several; one model may be given by these names alone."""
    needed: list[str]
    """Those of them that each model must have."""
    paired_with: list[str]
    """Inputs whose rows belong to the rows of this one, position by position."""


class CheckView(Model):
    """A check of the catalogue."""

    kind: str
    title: str
    question: str
    """What a person would ask, and it answers."""
    description: str
    version: int
    roles: list[RoleView]
    row_limit: int | None
    params_schema: dict[str, Any]
    """JSON Schema of `params`."""
    request_schema: dict[str, Any]
    """JSON Schema of the body of `POST /v1/jobs`."""
    results_schema: dict[str, Any]
    """JSON Schema of `results`."""
    measures: list[Measure]
    """What a gate may judge and a dashboard may draw."""
    warnings: dict[str, str]
    """What its reports may warn of, by code; a rule of a policy may count them: `warnings.CODE`."""
    scope: list[str]
    """What its reports do not establish."""
    sources: list[str]
    """DOI and arXiv ids of the definitions."""


def check_view(check: Check) -> CheckView:
    """The public description of a check, all of it derived from its declaration."""
    slots = check.slots
    return CheckView(
        kind=check.kind,
        title=check.title,
        question=check.question,
        description=check.description,
        version=check.version,
        roles=[
            RoleView(
                name=slot.name,
                kind=slot.kind,
                required=slot.required,
                description=slot.description,
                parts=list(slot.parts) if slot.several else [],
                needed=list(slot.needed) if slot.several else [],
                paired_with=[
                    other.name
                    for other in slots
                    if other.rows == slot.rows and other.name != slot.name
                ],
            )
            for slot in slots
        ],
        row_limit=check.row_limit,
        params_schema=check.params.model_json_schema(),
        request_schema=REQUESTS[check.kind].model_json_schema(),
        results_schema=check.results.model_json_schema(mode="serialization"),
        measures=list(check.measures),
        warnings=dict(check.codes),
        scope=list(check.scope),
        sources=list(check.sources),
    )
