"""What routes draw with, and the drawings of a page."""

from __future__ import annotations

from typing import Annotated

import structlog
from fastapi import Depends, Request

from service.charts import Painter, Picture, pictures
from service.errors import Internal, Unavailable
from service.rendering import Drawing
from service.report import ReportBase

log = structlog.get_logger()


def _painter(request: Request) -> Painter:
    found: Painter = request.app.state.painter
    return found


Draw = Annotated[Painter, Depends(_painter)]


def drawings(painter: Painter, report: ReportBase) -> list[Drawing]:
    """All charts of a report, none where there is nothing to draw with; one that fails alone."""
    if not painter.installed:
        return []
    return [Drawing(one.name, one.question, _drawn(painter, one)) for one in pictures(report)]


def _drawn(painter: Painter, picture: Picture) -> str | None:
    try:
        return painter.draw(picture, "svg").decode()
    except (Internal, Unavailable) as error:
        log.warning("a chart of a page was not drawn", chart=picture.name, reason=error.detail)
        return None
