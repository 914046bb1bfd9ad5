"""What routes draw with, and the drawings of a page."""

from __future__ import annotations

from typing import Annotated

import structlog
from fastapi import Depends, Request

from service.charts import Painter, pictures
from service.errors import Unavailable
from service.rendering import Drawing
from service.report import ReportBase

log = structlog.get_logger()


def _painter(request: Request) -> Painter:
    found: Painter = request.app.state.painter
    return found


Draw = Annotated[Painter, Depends(_painter)]


def drawings(painter: Painter, report: ReportBase) -> list[Drawing] | None:
    """All charts of a report, none where there is nothing to draw with; None if it failed just now."""
    if not painter.installed:
        return []
    try:
        return [
            Drawing(one.name, one.question, painter.draw(one, "svg").decode())
            for one in pictures(report)
        ]
    except Unavailable as error:
        log.warning("charts of a page were not drawn", reason=error.detail)
        return None
