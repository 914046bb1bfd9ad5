"""
Qdrant: `scroll` in the order of point ids.

The password of a connection is the API key; option `verify` is a file of certificates. An address
`file:///path` is a local store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ApiException, UnexpectedResponse

from service.errors import AssayError, InvalidRequest, SourceDenied, SourceUnreachable, first
from service.model import Label
from service.ports import Opened
from service.source_page import SourcePage
from service.source_reference import Provenance, QdrantReference
from service.sources.connection import Connection
from service.sources.dialling import Checked
from service.sources.rows import Paging, conditions, local, retold, unknown

PORT = 6333
EXACT = 2**53
PLAIN = re.compile(r"[A-Za-z0-9_-]+")
FAILURES = (ApiException, httpx.HTTPError, OSError)


@contextmanager
def open_source(reference: QdrantReference, connection: Connection) -> Iterator[Opened]:
    """Read a collection in the order of its point ids."""
    told = _problem(connection)
    chosen = _filter(reference)
    with retold(told, *FAILURES):
        store = _connect(connection)
    try:
        with retold(told, *FAILURES):
            params = _params(store, reference)
            count = _count(store, reference, chosen)
        yield Opened(
            count=count,
            about=Provenance(
                kind="qdrant",
                connection=reference.connection,
                location=reference.collection,
                vector=reference.vector,
                where=reference.where,
                stored_as=_stored_as(params),
                normalises_on_write=_normalises(params, connection),
                lossy=False,
            ),
            pages=_pages(store, reference, chosen, params, told),
            recount=retold(told, *FAILURES)(lambda: _count(store, reference, chosen)),
        )
    finally:
        store.close()


def _connect(connection: Connection) -> QdrantClient:
    if path := local(connection):
        return _local(connection, path)
    if connection.password is not None and not connection.password.isascii():
        raise SourceDenied(f"The key of connection `{connection.name}` does not fit into a header.")
    return QdrantClient(
        host=f"[{connection.host}]" if ":" in connection.host else connection.host,
        port=connection.port(PORT),
        https=connection.parts.scheme == "https",
        prefix=connection.parts.path.strip("/") or None,
        headers={"api-key": connection.password} if connection.password else None,
        timeout=max(1, int(connection.timeout_s)),
        check_compatibility=False,
        transport=Checked(connection, PORT),
    )


def _local(connection: Connection, path: str) -> QdrantClient:
    """A store that is there: the library would make one of any folder."""
    if not (Path(path) / "meta.json").is_file():
        raise SourceUnreachable(
            f"There is no local store of Qdrant at the address of `{connection.name}`: its folder has "
            "no meta.json."
        )
    try:
        return QdrantClient(path=path)
    except RuntimeError:
        raise SourceUnreachable(
            f"The local store of connection `{connection.name}` is in use, by another import perhaps; "
            "import again when that has ended, or serve it with a Qdrant server."
        ) from None


def _params(store: QdrantClient, reference: QdrantReference) -> models.VectorParams:
    """What the collection says of the vectors that are read."""
    if not store.collection_exists(reference.collection):
        known = [one.name for one in store.get_collections().collections]
        raise unknown("collection", reference.collection, known)
    config = store.get_collection(reference.collection).config.params
    vectors = config.vectors or {}
    if reference.vector in (config.sparse_vectors or {}):
        raise InvalidRequest(f"`{reference.vector}` holds sparse vectors, which are not read.")
    if isinstance(vectors, models.VectorParams):
        if reference.vector is not None:
            raise InvalidRequest("The vectors of this collection have no name; leave `vector` out.")
        params = vectors
    elif reference.vector is None:
        listed = ", ".join(f"`{name}`" for name in first(sorted(vectors))) or "none"
        raise InvalidRequest(
            f"The vectors of this collection have names; set `vector` to one: {listed}."
        )
    elif reference.vector not in vectors:
        raise unknown("vector", reference.vector, list(vectors))
    else:
        params = vectors[reference.vector]
    if params.multivector_config is not None:
        raise InvalidRequest("Its points have several vectors each, which are not read.")
    return params


def _stored_as(params: models.VectorParams) -> str:
    return "float32" if params.datatype is None else str(params.datatype.value)


def _normalises(params: models.VectorParams, connection: Connection) -> bool:
    """A server keeps unit rows of a cosine collection; a local store keeps what was written."""
    return bool(params.distance == models.Distance.COSINE) and connection.parts.scheme != "file"


def _count(store: QdrantClient, reference: QdrantReference, chosen: models.Filter) -> int:
    return int(store.count(reference.collection, count_filter=chosen, exact=True).count)


def _pages(
    store: QdrantClient,
    reference: QdrantReference,
    chosen: models.Filter,
    params: models.VectorParams,
    told: Callable[[Exception], AssayError],
) -> Iterator[SourcePage]:
    half = params.datatype == models.Datatype.FLOAT16
    paging = Paging("<f2" if half else "<f4", reference.columns, params.size)
    keys = [_key(column) for column in reference.columns]
    after: models.ExtendedPointId | None = None
    while True:
        with retold(told, *FAILURES):
            points, after = store.scroll(
                reference.collection,
                scroll_filter=chosen,
                limit=paging.rows(reference.page_rows),
                offset=after,
                with_payload=keys or False,
                with_vectors=True if reference.vector is None else [reference.vector],
            )
        if points:
            yield paging.page(
                [point.id for point in points],
                [
                    point.vector.get(reference.vector or "")
                    if isinstance(point.vector, dict)
                    else point.vector
                    for point in points
                ],
                {
                    column: [(point.payload or {}).get(column) for point in points]
                    for column in reference.columns
                },
            )
        if after is None:
            return


def _filter(reference: QdrantReference) -> models.Filter:
    """All conditions together; as in SQL, a point without the key satisfies none of them."""
    must: list[models.Condition] = []
    must_not: list[models.Condition] = []
    for column, op, values in conditions(reference.where):
        key = _key(column)
        if op in ("=", "in"):
            same = [_equal(key, value) for value in values]
            must.append(models.Filter(should=same) if same else models.HasIdCondition(has_id=[]))
        elif op == "!=":
            empty = models.IsEmptyCondition(is_empty=models.PayloadField(key=key))
            must_not += [_equal(key, values[0]), empty]
        else:
            bound = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}[op]
            must.append(_between(key, **{bound: values[0]}))
    return models.Filter(must=must, must_not=must_not)


def _equal(key: str, value: Label) -> models.FieldCondition:
    """A range finds 1 and 1.0; it is told in float64, so larger integers are matched as written."""
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < EXACT
    if whole or isinstance(value, float):
        return _between(key, gte=value, lte=value)
    return models.FieldCondition(key=key, match=models.MatchValue(value=value))


def _between(key: str, **bounds: Label) -> models.FieldCondition:
    if any(isinstance(value, bool | str) for value in bounds.values()):
        raise InvalidRequest(f"Qdrant orders numbers alone; {key} is compared with another value.")
    return models.FieldCondition(key=key, range=models.Range.model_validate(bounds))


def _key(column: str) -> str:
    """A name as a path of one step."""
    if PLAIN.fullmatch(column):
        return column
    if '"' in column:
        raise InvalidRequest(f"Qdrant cannot name the key `{column}`: it holds a quotation mark.")
    return f'"{column}"'


def _problem(connection: Connection) -> Callable[[Exception], AssayError]:
    def tell(error: Exception) -> AssayError:
        status = error.status_code if isinstance(error, UnexpectedResponse) else None
        if status in (401, 403):
            return SourceDenied(f"Qdrant refuses the key of connection `{connection.name}`.")
        if status in (400, 422):
            return InvalidRequest("Qdrant does not accept `where`: a value does not fit its key.")
        return SourceUnreachable(
            f"Qdrant at connection `{connection.name}` does not answer or broke off."
        )

    return tell
