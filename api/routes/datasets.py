"""Datasets: immutable embedding sets."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from api.deps import (
    Reader,
    Submitter,
    Uploader,
    Use,
    applied,
    chunks,
    conditional,
    unchanged,
    wait_for,
    wanted_wait,
)
from api.problems import guarded
from api.routes.jobs import JobView, ended, progress_headers, view
from service.dataset_record import DatasetRecord
from service.formats import ImportBody, Options
from service.operations import Services, Upload, import_dataset, remove_dataset, vectors_file
from service.redaction import Plain
from service.references import Model, Spec
from service.uploads import body_key

PIECE_BYTES = 1 << 20
router = APIRouter(prefix="/v1/datasets", tags=["datasets"])
DatasetId = Annotated[str, Path(description="Id returned by `POST /v1/datasets`.")]


Sha256 = Annotated[
    str | None,
    Query(pattern="^[0-9a-f]{64}$", description="Only the dataset a body of this SHA-256 became."),
]
Name = Annotated[Plain | None, Query(max_length=200, description="A name for people.")]
Encoder = Annotated[Plain | None, Query(max_length=200, description="Name of the encoder.")]
Revision = Annotated[Plain | None, Query(max_length=200, description="Its version.")]
Dtype = Annotated[
    Literal["bf16"] | None, Query(description="Read 2-byte words of a .npy as bfloat16.")
]
IdColumn = Annotated[
    str | None, Query(max_length=200, description="Column of a table or CSV that holds ids.")
]
VectorColumn = Annotated[
    str | None,
    Query(max_length=200, description="Column of a table that holds vectors, if several can."),
]
DIGEST = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/]{43}=):")


class DatasetPage(Model):
    """Some datasets, newest first."""

    items: list[DatasetRecord]
    next_cursor: str | None
    """Pass it as `cursor` for the next page; null on the last."""


@router.post(
    "",
    status_code=201,
    response_model=DatasetRecord,
    responses={
        200: {"model": DatasetRecord, "description": "This project has the same content already."},
        202: {"model": JobView, "description": "A job imports the rows; its result is the dataset."},
        **guarded(
            "invalid-request", "malformed-payload", "shape-mismatch", "duplicate-ids",
            "payload-too-large", "body-stalled", "unsupported-format", "queue-full", "source-denied"),
    },
)  # fmt: skip
async def add_dataset(
    request: Request,
    services: Use,
    caller: Uploader,
    name: Name = None,
    model: Encoder = None,
    revision: Revision = None,
    dtype: Dtype = None,
    id_column: IdColumn = None,
    vector_column: VectorColumn = None,
    content_digest: Annotated[
        str | None, Header(description="RFC 9530, `sha-256=:<base64>:`; checked, and remembered.")
    ] = None,
) -> Response:
    """
    Store an embedding set, or columns to go with one. The body is streamed.

    `application/x-npy` for rows, `application/vnd.apache.parquet` and `.arrow.stream` for tables with a
    column of vectors, `text/csv` for columns, `application/json` for small sets of both, or, with
    `source`, for where the rows live: a job imports them.
    Non-finite and zero rows are accepted and counted in `facts`. The same content again answers with
    the dataset there is, under the name it was first given. What was sent with a
    `Content-Digest` can be found by it, so that it need not be sent again.
    """
    digest = DIGEST.search(content_digest or "")
    upload = await asyncio.to_thread(
        Upload,
        services,
        caller.project,
        request.headers.get("content-type", ""),
        Options(dtype, id_column, vector_column),
        name,
        Spec(model=model, revision=revision),
        base64.b64decode(digest[1]).hex() if digest else None,
    )
    try:
        await _take(request, upload, services.limits.body_bytes)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(upload.abort))
        raise
    if (body := await asyncio.to_thread(_reference, upload)) is not None:
        return await _import(request, services, caller.project, body)
    record, created = await asyncio.shield(asyncio.to_thread(upload.finish))
    return conditional(
        request,
        record,
        status=201 if created else 200,
        headers={"Location": f"{router.prefix}/{record.id}"},
    )


async def _take(request: Request, upload: Upload, limit: int) -> None:
    """The whole body: a piece is taken in while the next one arrives, and refused without it."""
    pieces = chunks(request, limit, PIECE_BYTES)
    taking: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    taking.set_result(None)
    following: asyncio.Future[Any] = asyncio.ensure_future(anext(pieces, b""))
    try:
        while True:
            await asyncio.wait({taking, following}, return_when=asyncio.FIRST_EXCEPTION)
            if taking.done():
                taking.result()
            if not (piece := following.result()):
                return
            taking = asyncio.ensure_future(asyncio.to_thread(upload.feed, piece))
            following = asyncio.ensure_future(anext(pieces, b""))
            request.app.state.metrics.bytes_in.inc(len(piece))
    finally:
        following.cancel()
        await asyncio.wait({taking, following})


def _reference(upload: Upload) -> ImportBody | None:
    try:
        body = upload.reference()
    except BaseException:
        upload.abort()
        raise
    if body is not None:
        upload.abort()
    return body


async def _import(request: Request, services: Services, project: str, body: ImportBody) -> Response:
    wait = wanted_wait(request)

    def accept() -> JobView:
        return view(services, import_dataset(services, project, body, body.name))

    job = await asyncio.to_thread(accept)
    if wait:
        job = await wait_for(
            lambda: view(services, services.jobs.get(project, job.id)), ended, wait
        )
    return conditional(
        request,
        job,
        status=200 if ended(job) else 202,
        headers={"Location": job.links.self, **progress_headers(job), **applied(wait)},
    )


@router.get("", responses=guarded("invalid-request"))
def list_datasets(
    services: Use,
    caller: Reader,
    body_sha256: Sha256 = None,
    content_type: Annotated[
        str, Query(max_length=200, description="With `body_sha256`: how the body was sent.")
    ] = "application/x-npy",
    model: Encoder = None,
    revision: Revision = None,
    dtype: Dtype = None,
    id_column: IdColumn = None,
    vector_column: VectorColumn = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Most datasets to list.")] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
) -> DatasetPage:
    """
    Datasets of this project, newest first.

    With `body_sha256` at most one: what an upload of that body with the same query has become.
    """
    if body_sha256 is None:
        page = services.datasets.page(caller.project, limit, cursor)
        return DatasetPage(items=page.items, next_cursor=page.next_cursor)
    spec, options = Spec(model=model, revision=revision), Options(dtype, id_column, vector_column)
    body = body_key(content_type, options, spec, body_sha256)
    found = services.datasets.of_body(caller.project, body)
    return DatasetPage(items=[] if found is None else [found], next_cursor=None)


@router.get(
    "/{dataset_id}",
    response_model=DatasetRecord,
    responses=guarded("unknown-dataset", "damaged-dataset"),
)
def get_dataset(request: Request, dataset_id: DatasetId, services: Use, caller: Reader) -> Response:
    """Metadata of a dataset."""
    return conditional(request, services.datasets.record(caller.project, dataset_id))


@router.get(
    "/{dataset_id}/vectors",
    response_class=Response,
    responses={
        200: {"content": {"application/x-npy": {"schema": {"type": "string", "format": "binary"}}}},
        304: {"description": "The rows have this ETag."},
        **guarded("invalid-request", "unknown-dataset", "damaged-dataset"),
    },
)
def get_vectors(request: Request, dataset_id: DatasetId, services: Use, caller: Reader) -> Response:
    """The rows as canonical .npy (C order, little-endian), streamed."""
    file, size, digest = vectors_file(services, caller.project, dataset_id)
    headers = {"ETag": f'"{digest}"', "Cache-Control": "no-cache", "Content-Length": str(size)}
    if unchanged(request, headers["ETag"]):
        file.close()
        return Response(status_code=304, headers={"ETag": headers["ETag"]})

    def pieces() -> Iterator[bytes]:
        with file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    return StreamingResponse(pieces(), headers=headers, media_type="application/x-npy")


@router.delete(
    "/{dataset_id}",
    status_code=204,
    response_class=Response,
    responses=guarded("unknown-dataset", "dataset-in-use"),
)
def delete_dataset(dataset_id: DatasetId, services: Use, caller: Submitter) -> Response:
    """Delete a dataset no unfinished job needs and no baseline stands for; reports on it stay."""
    remove_dataset(services, caller.project, dataset_id)
    return Response(status_code=204)
