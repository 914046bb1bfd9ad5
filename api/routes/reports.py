"""Reports over time: measures of the reports of a project, newest first."""

from __future__ import annotations

import csv
import io
import json
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from api.deps import Reader, Use, conditional, wanted_tag
from api.negotiation import CSV, JSON, VARY, negotiated
from api.problems import guarded
from service.history import MeasureValue, ReportPoint, history
from service.references import Model

router = APIRouter(prefix="/v1/reports", tags=["reports"])
OF_JOB = ("job", "created_at", "kind", "kind_version", "tags", "digest", "cached")
OF_MEASURE = ("measure", "unit", "estimate", "low", "high", "level", "undefined")


class ReportsPage(Model):
    """Some reports, newest first."""

    items: list[ReportPoint]
    next_cursor: str | None
    """Pass it as `cursor` for the next page; null on the last."""


@router.get(
    "",
    response_model=ReportsPage,
    responses={
        200: {
            "content": {CSV: {"schema": {"type": "string"}}},
            "headers": {
                "Link": {
                    "description": "The next page, `rel=next`; absent on the last.",
                    "schema": {"type": "string"},
                }
            },
        },
        304: {"description": "Nothing has changed since this ETag."},
        **guarded("invalid-request", "unknown-check", "not-acceptable"),
    },
)
def list_reports(
    request: Request,
    services: Use,
    caller: Reader,
    kind: Annotated[str | None, Query(description="Only reports of this kind.")] = None,
    tag: Annotated[
        str | None, Query(description="Only of jobs with this tag, `name:value`.")
    ] = None,
    dataset: Annotated[str | None, Query(description="Only about this dataset.")] = None,
    computed: Annotated[
        bool,
        Query(
            description="Only where they were computed: a job that was answered by a report that was "
            "there already (`cached`) repeats its numbers."
        ),
    ] = False,
    measure: Annotated[
        list[str] | None,
        Query(
            max_length=50,
            description="Only these measures: paths of `results`, or of the catalogue with its names "
            "in braces, which stand for every name.",
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Most reports to list.")] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
) -> Response:
    """
    What the measures of reports were over time, as JSON or, with `Accept: text/csv`, a line for each.

    Newest first, by when their jobs were accepted; a page is followed by the same reports however
    many come in meanwhile.
    """
    wanted = negotiated(request, JSON, CSV)
    page = history(
        services,
        caller.project,
        limit,
        cursor,
        kind,
        wanted_tag(tag),
        dataset,
        measure or (),
        computed,
    )
    headers = dict(VARY)
    if page.next_cursor is not None:
        following = request.url.include_query_params(cursor=page.next_cursor)
        headers["Link"] = f'<{following.path}?{following.query}>; rel="next"'
    if wanted == JSON:
        shown = ReportsPage(items=page.items, next_cursor=page.next_cursor)
        return conditional(request, shown, headers=headers)
    return conditional(request, as_csv(page.items), headers=headers, media_type=CSV)


def as_csv(points: list[ReportPoint]) -> bytes:
    """A line for each measure (RFC 4180); a report without any has one line, without a measure."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(OF_JOB + OF_MEASURE)
    for point in points:
        about = (
            point.job,
            point.created_at.isoformat().replace("+00:00", "Z"),
            point.kind,
            point.kind_version,
            json.dumps(point.tags, ensure_ascii=False),
            point.digest,
            json.dumps(point.cached),
        )
        rows = [_measure(one) for one in point.measures] or [(None,) * len(OF_MEASURE)]
        writer.writerows((*about, *row) for row in rows)
    return file.getvalue().encode()


def _measure(one: MeasureValue) -> tuple[object, ...]:
    interval = one.interval
    bounds = (None,) * 3 if interval is None else (interval.low, interval.high, interval.level)
    why = one.undefined.get("estimate")
    return (one.measure, one.unit, one.estimate, *bounds, None if why is None else why.code)
