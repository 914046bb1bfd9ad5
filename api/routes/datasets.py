"""Datasets: immutable embedding sets."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from api.deps import Reader, Submitter, Use, chunks, conditional
from api.problems import answers
from service.dataset_record import DatasetRecord
from service.formats import Options
from service.operations import Upload
from service.references import Spec

PIECE_BYTES = 1 << 20
router = APIRouter(prefix="/v1/datasets", tags=["datasets"])
DatasetId = Annotated[str, Path(description="Id returned by `POST /v1/datasets`.")]


@router.post(
    "",
    status_code=201,
    response_model=DatasetRecord,
    responses={
        200: {"model": DatasetRecord, "description": "This project has the same content already."},
        **answers(
            "invalid-request", "malformed-payload", "shape-mismatch", "duplicate-ids",
            "payload-too-large", "unsupported-format", "unauthorised", "forbidden",
        ),
    },
)  # fmt: skip
async def add_dataset(
    request: Request,
    services: Use,
    caller: Submitter,
    name: Annotated[str | None, Query(max_length=200, description="A name for people.")] = None,
    model: Annotated[str | None, Query(max_length=200, description="Name of the encoder.")] = None,
    revision: Annotated[str | None, Query(max_length=200, description="Its version.")] = None,
    dtype: Annotated[
        Literal["bf16"] | None, Query(description="Read 2-byte words of a .npy as bfloat16.")
    ] = None,
    id_column: Annotated[
        str | None, Query(max_length=200, description="CSV column that holds ids.")
    ] = None,
) -> Response:
    """
    Store an embedding set, or columns to go with one. The body is streamed.

    `application/x-npy` for rows, `text/csv` for columns, `application/json` for small sets of both.
    Non-finite and zero rows are accepted and counted in `facts`.
    """
    upload = await asyncio.to_thread(
        Upload,
        services,
        caller.project,
        request.headers.get("content-type", ""),
        Options(dtype, id_column),
        name,
        Spec(model=model, revision=revision),
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


@router.get(
    "/{dataset_id}",
    response_model=DatasetRecord,
    responses=answers("unknown-dataset", "unauthorised", "forbidden"),
)
def get_dataset(request: Request, dataset_id: DatasetId, services: Use, caller: Reader) -> Response:
    """Metadata of a dataset."""
    return conditional(request, services.datasets.record(caller.project, dataset_id))
