"""Charts of reports: which there are, and each as a picture or as a specification to draw."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Path, Request, Response

from api.deps import Reader, Use, conditional
from api.drawing import Draw
from api.problems import guarded
from api.routes.jobs import SAFE_PAGE, JobId
from service import operations
from service.charts import Format, Picture, chart_of, pictures
from service.operations import Services
from service.references import Model
from service.report import load_report

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
MEDIA: dict[Format, str] = {"svg": "image/svg+xml", "png": "image/png"}
MISSING = ("unknown-job", "unknown-chart", "report-not-ready")
DRAWN = (*MISSING, "charts-not-installed", "unavailable")
UNCHANGED: dict[int | str, dict[str, Any]] = {
    304: {"description": "This representation has this ETag."}
}
Name = Annotated[str, Path(description="One of `GET /v1/jobs/{job_id}/charts`.")]


class ChartLinks(Model):
    """Where a chart is."""

    svg: str
    png: str
    vega_lite: str
    """Its Vega-Lite specification, complete with its numbers."""


class ChartView(Model):
    """A chart of a report."""

    name: str
    title: str
    """The question it answers."""
    text: str
    """What it shows, in words and numbers."""
    links: ChartLinks


class ChartList(Model):
    """The charts of a report that have a number to show, in reading order."""

    items: list[ChartView]
    drawn: bool
    """Whether this service can draw them; it has their specifications in any case."""


def _content(media_type: str, schema: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {media_type: {"schema": schema}}}, **UNCHANGED}


@router.get(
    "/{job_id}/charts",
    response_model=ChartList,
    responses={**UNCHANGED, **guarded("unknown-job", "report-not-ready")},
)
def list_charts(
    request: Request, job_id: JobId, services: Use, draw: Draw, caller: Reader
) -> Response:
    """The charts of a report; 409 while there is none, in the job's own code if it failed."""
    report = load_report(operations.report_bytes(services, caller.project, job_id))
    here = f"{router.prefix}/{job_id}/charts"
    items = [
        ChartView(
            name=one.name,
            title=one.question,
            text=one.told,
            links=ChartLinks(
                svg=f"{here}/{one.name}.svg",
                png=f"{here}/{one.name}.png",
                vega_lite=f"{here}/{one.name}.vl.json",
            ),
        )
        for one in pictures(report)
    ]
    return conditional(request, ChartList(items=items, drawn=draw.installed))


@router.get(
    "/{job_id}/charts/{chart}.vl.json",
    response_class=Response,
    responses={**_content("application/json", {"type": "object"}), **guarded(*MISSING)},
)
def get_specification(
    request: Request, job_id: JobId, chart: Name, services: Use, caller: Reader
) -> Response:
    """A chart as a Vega-Lite specification, which holds its own numbers: any Vega-Lite draws it."""
    return conditional(
        request, orjson.dumps(_picture(services, caller.project, job_id, chart).spec)
    )


@router.get(
    "/{job_id}/charts/{chart}.svg",
    response_class=Response,
    responses={**_content(MEDIA["svg"], {"type": "string"}), **guarded(*DRAWN)},
)
def get_svg(
    request: Request, job_id: JobId, chart: Name, services: Use, draw: Draw, caller: Reader
) -> Response:
    """A chart as SVG, which says in words what it shows and loads nothing."""
    return _drawn(request, draw, _picture(services, caller.project, job_id, chart), "svg")


@router.get(
    "/{job_id}/charts/{chart}.png",
    response_class=Response,
    responses={
        **_content(MEDIA["png"], {"type": "string", "format": "binary"}), **guarded(*DRAWN),
    },
)  # fmt: skip
def get_png(
    request: Request, job_id: JobId, chart: Name, services: Use, draw: Draw, caller: Reader
) -> Response:
    """A chart as PNG, with two pixels for each of the SVG."""
    return _drawn(request, draw, _picture(services, caller.project, job_id, chart), "png")


def _picture(services: Services, project: str, job_id: str, name: str) -> Picture:
    return chart_of(load_report(operations.report_bytes(services, project, job_id)), name)


def _drawn(
    request: Request, draw: Draw, picture: Picture, wanted: Literal["svg", "png"]
) -> Response:
    drawing = draw.draw(picture, wanted)
    return conditional(request, drawing, headers=SAFE_PAGE, media_type=MEDIA[wanted])
