"""Datasets: immutable embedding sets."""

from __future__ import annotations

import asyncio
import base64
import re
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Path, Query, Request, Response

from api.deps import Reader, Uploader, Use, chunks, conditional
from api.problems import guarded
from service.dataset_record import DatasetRecord
from service.formats import Options
from service.operations import Upload
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
IdColumn = Annotated[str | None, Query(max_length=200, description="CSV column that holds ids.")]
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
        **guarded(
            "invalid-request", "malformed-payload", "shape-mismatch", "duplicate-ids",
            "payload-too-large", "unsupported-format"),
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
    content_digest: Annotated[
        str | None, Header(description="RFC 9530, `sha-256=:<base64>:`; checked, and remembered.")
    ] = None,
) -> Response:
    """
    Store an embedding set, or columns to go with one. The body is streamed.

    `application/x-npy` for rows, `text/csv` for columns, `application/json` for small sets of both.
    Non-finite and zero rows are accepted and counted in `facts`. What was sent with a
    `Content-Digest` can be found by it, so that it need not be sent again.
    """
    digest = DIGEST.search(content_digest or "")
    upload = await asyncio.to_thread(
        Upload,
        services,
        caller.project,
        request.headers.get("content-type", ""),
        Options(dtype, id_column),
        name,
        Spec(model=model, revision=revision),
        base64.b64decode(digest[1]).hex() if digest else None,
    )
    try:
        async for chunk in chunks(request, services.limits.body_bytes, PIECE_BYTES):
            await asyncio.to_thread(upload.feed, chunk)
            request.app.state.metrics.bytes_in.inc(len(chunk))
    except BaseException:
        await asyncio.shield(asyncio.to_thread(upload.abort))
        raise
    record, created = await asyncio.shield(asyncio.to_thread(upload.finish))
    return conditional(
        request,
        record,
        status=201 if created else 200,
        headers={"Location": f"{router.prefix}/{record.id}"},
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
    spec, options = Spec(model=model, revision=revision), Options(dtype, id_column)
    body = body_key(content_type, options, spec, body_sha256)
    found = services.datasets.of_body(caller.project, body)
    return DatasetPage(items=[] if found is None else [found], next_cursor=None)


@router.get(
    "/{dataset_id}",
    response_model=DatasetRecord,
    responses=guarded("unknown-dataset"),
)
def get_dataset(request: Request, dataset_id: DatasetId, services: Use, caller: Reader) -> Response:
    """Metadata of a dataset."""
    return conditional(request, services.datasets.record(caller.project, dataset_id))
