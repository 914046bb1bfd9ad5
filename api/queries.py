"""Query parameters that a route does not declare are refused, by their names."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import ParamTypes

from service.errors import Fault, InvalidRequest, did_you_mean, pointer_to
from service.request import SHOWN_FAULTS

LONGEST_NAME = 100


def refuse_unknown(request: Request) -> None:
    """Refuse what would be ignored: `?stat=failed` would list everything."""
    known = [
        field.alias
        for field in get_flat_params(request.scope["route"].dependant)
        if getattr(field.field_info, "in_", None) == ParamTypes.query
    ]
    if unknown := [name for name in dict.fromkeys(request.query_params) if name not in known]:
        raise InvalidRequest(
            f"{request.method} {request.url.path} has no such query parameter.",
            list(_faults(unknown, known))[:SHOWN_FAULTS],
        )


def _faults(unknown: Iterable[str], known: list[str]) -> Iterable[Fault]:
    for name in unknown:
        shown = name[:LONGEST_NAME]
        yield Fault(pointer=pointer_to("query", shown), message=did_you_mean(shown, known))
