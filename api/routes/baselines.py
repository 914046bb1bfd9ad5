"""Baselines: names of approved datasets."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import ValidationError

from api.deps import Reader, Submitter, Use, conditional, json_body
from api.problems import guarded
from service.baseline import BASELINE_NAME, Baseline
from service.errors import InvalidRequest
from service.redaction import KEPT
from service.references import DatasetRef, Model
from service.request import invalid

BODY_BYTES = 1 << 16
router = APIRouter(prefix="/v1/baselines", tags=["baselines"])
Name = Annotated[
    str, Path(description="Lower-case letters, digits, `_` and `-`.", pattern=BASELINE_NAME), KEPT
]


class BaselineView(Baseline):
    """What a baseline names, and what it named before."""

    history: list[Baseline]
    """Newest first, the present one included."""


class BaselinePage(Model):
    """Some baselines, by name."""

    items: list[Baseline]
    next_cursor: str | None
    """Pass it as `cursor` for the next page; null on the last."""


@router.put(
    "/{name}",
    response_model=Baseline,
    responses=guarded(
        "invalid-request",
        "malformed-payload",
        "unknown-dataset",
        "damaged-dataset",
        "payload-too-large",
        "body-stalled",
        "unsupported-format",
    ),
)
async def set_baseline(request: Request, name: Name, services: Use, caller: Submitter) -> Response:
    """Let a name stand for a dataset from now on: `{"dataset": id}`. What it stood for is kept."""
    body = await json_body(request, BODY_BYTES)
    try:
        wanted = DatasetRef.model_validate(body)
    except ValidationError as error:
        raise invalid(error, body, kind=DatasetRef) from None

    def keep() -> Baseline:
        record = services.datasets.usable(caller.project, wanted.dataset)
        if record.d is None:
            raise InvalidRequest(
                f"Dataset {wanted.dataset} has columns only; name one with vectors."
            )
        return services.baselines.set(caller.project, name, wanted.dataset, None)

    return conditional(request, await asyncio.to_thread(keep))


@router.get(
    "/{name}",
    response_model=BaselineView,
    responses=guarded("invalid-request", "unknown-baseline"),
)
def get_baseline(
    request: Request,
    name: Name,
    services: Use,
    caller: Reader,
    limit: Annotated[int, Query(ge=1, le=200, description="Most past entries to list.")] = 50,
) -> Response:
    """What a baseline names, and its history."""
    past = services.baselines.history(caller.project, name, limit)
    return conditional(request, BaselineView(**past[0].model_dump(), history=past))


@router.get("", responses=guarded("invalid-request"))
def list_baselines(
    services: Use,
    caller: Reader,
    limit: Annotated[int, Query(ge=1, le=200, description="Most baselines to list.")] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
) -> BaselinePage:
    """Baselines of this project, by name."""
    names = [one for one in services.baselines.names(caller.project) if one > (cursor or "")]
    shown = names[:limit]
    return BaselinePage(
        items=[services.baselines.get(caller.project, name) for name in shown],
        next_cursor=shown[-1] if len(names) > limit else None,
    )
