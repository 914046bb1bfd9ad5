"""The catalogue: what can be asked, and what the answers mean."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from api.deps import Reader
from api.problems import guarded
from service.checks import CATALOGUE
from service.references import Model
from service.request import check_of
from service.views import CheckView, check_view

router = APIRouter(prefix="/v1/checks", tags=["checks"])


class Catalogue(Model):
    """Every check, in reading order."""

    items: list[CheckView]


@router.get("", responses=guarded())
def list_checks(caller: Reader) -> Catalogue:
    """All checks."""
    return Catalogue(items=[check_view(check) for check in CATALOGUE])


@router.get("/{kind}", responses=guarded("unknown-check"))
def get_check(
    kind: Annotated[str, Path(description="Kind of check.")], caller: Reader
) -> CheckView:
    """One check: roles, parameters, results, measures, scope and sources."""
    return check_view(check_of(kind))
