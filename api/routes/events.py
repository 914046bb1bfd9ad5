"""What happens to a job, as it happens, and what has happened before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from api.auth import Identity
from api.deps import Reader, Use, still_is
from api.event_stream import HEARTBEAT, MEDIA_TYPE, EventStream, encoded
from api.problems import guarded
from api.routes.jobs import JobId, JobView, view
from api.streams import Streams
from service.context import Warned
from service.errors import Fault, InvalidRequest
from service.events import START, EventId, Kind, StateTold, last_of, written
from service.job import Job, Progress
from service.operations import Services
from service.references import Model

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
DATA: dict[Kind, type[Model]] = {
    Kind.state: StateTold,
    Kind.progress: Progress,
    Kind.warning: Warned,
    Kind.done: JobView,
}
"""What is told with each kind of event."""
EVENT = {"$ref": "#/components/schemas/JobEvent"}
STREAM = {"schema": {"type": "array", "items": EVENT}, "itemSchema": EVENT}
"""A stream and each of its items, as OpenAPI 3.2 has it."""
KNOWN = "Id of the last event that has arrived; what came after it is sent."


def event_schema() -> dict[str, Any]:
    """One event as its fields."""
    kinds = [
        {
            "type": "object",
            "required": ["id", "event", "data"],
            "properties": {
                "id": {"type": "string"},
                "event": {"const": kind.value},
                "data": {
                    "type": "string",
                    "contentMediaType": "application/json",
                    "contentSchema": {"$ref": f"#/components/schemas/{model.__name__}"},
                },
            },
        }
        for kind, model in DATA.items()
    ]
    return {"oneOf": kinds}


@router.get(
    "/{job_id}/events",
    status_code=200,
    response_class=EventStream,
    responses={
        200: {
            "description": "Events, until the job has ended.",
            "content": {MEDIA_TYPE: STREAM},
        },
        204: {"description": "`Last-Event-ID` is the end of the job: nothing follows."},
        **guarded("unknown-job", "invalid-request", "unavailable"),
    },
)
async def get_events(
    request: Request,
    job_id: JobId,
    services: Use,
    caller: Reader,
    last_event_id: Annotated[str | None, Header(description=KNOWN)] = None,
    query: Annotated[
        str | None,
        Query(alias="last_event_id", description=f"{KNOWN} For who cannot set the header."),
    ] = None,
) -> Response:
    """
    States, progress and warnings of a job as Server-Sent Events; the last is `done`, with the job.

    What has happened already comes first, as far as it is kept: every state and warning, the newest
    progress. Ids order events, across restarts and for every process of the service; send the last one
    as `Last-Event-ID` to go on where you stopped, as browsers do by themselves. A comment is sent in
    15 s of silence. A stream may end before `done`: ask again.
    """
    known = _known(last_event_id, query)
    streams: Streams = request.app.state.streams
    job = await asyncio.to_thread(services.jobs.get, caller.project, job_id)
    if job.state.terminal and known == last_of(job):
        return Response(status_code=204)
    streams.refuse_more()
    if known.change > last_of(job).change:  # of a record the store has lost
        known = START
    events = _events(request, services, caller, streams, job_id, known)
    return EventStream(events, streams.pace.send_s)


def _known(header: str | None, query: str | None) -> EventId:
    """The event somebody names as the last that has arrived."""
    given = header or query
    if not given:
        return START
    if (known := EventId.parse(given)) is not None:
        return known
    place = "/header/last-event-id" if header else "/query/last_event_id"
    raise InvalidRequest(
        "The last event id is none of this service; leave it out to hear everything.",
        [Fault(pointer=place, message="an id of an event, `3-17` say")],
    )


async def _events(
    request: Request,
    services: Services,
    caller: Identity,
    streams: Streams,
    job_id: str,
    known: EventId,
) -> AsyncGenerator[bytes, None]:
    """The stream of one listener, as long as the key is good."""
    looked_at = time.monotonic()
    async with aclosing(streams.follow(job_id, known)) as told:
        async for news in told:
            if isinstance(news, Job):
                yield encoded(str(last_of(news)), Kind.done, written(view(services, news)))
                return
            yield b"".join(encoded(str(one.id), one.kind, one.data) for one in news) or HEARTBEAT
            if time.monotonic() - looked_at >= streams.pace.heartbeat_s:
                looked_at = time.monotonic()
                if not still_is(request, caller):
                    return
