"""Writes the same rows into each store with its own client, and says how to read them back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import lancedb
import numpy as np
import psycopg
import pyarrow as pa
import redis
from numpy.typing import NDArray
from psycopg import sql
from pydantic import TypeAdapter
from pymilvus import DataType, MilvusClient
from qdrant_client import QdrantClient, models

from service.ports import Opened
from service.source_reference import SourceReference
from service.sources import NamedSources
from service.sources.connection import Connection
from tests.stores import servers

SECRET = "p1anted:s3cret/päss w@rd"
HOSTILE = 'it\'s "x"; DROP TABLE docs; -- \\ {} ü'
DIMENSIONS = 384
Cells = Mapping[str, Sequence[str | int | None]]


@dataclass(frozen=True)
class Table:
    """Rows that are written to a store."""

    vectors: Sequence[NDArray[Any] | None] = field(repr=False)
    cells: Cells = field(default_factory=dict, repr=False)

    def cell(self, row: int) -> dict[str, str | int | None]:
        return {name: values[row] for name, values in self.cells.items()}


class Store(Protocol):
    """A running store."""

    kind: str
    filters: bool
    connection: Connection

    def load(self, name: str, table: Table) -> list[str]:
        """Write rows under a name; their ids as they are read back, in the order of rows."""
        ...

    def reference(self, name: str) -> dict[str, Any]: ...

    def close(self) -> None: ...


class Unheld:
    """Keeps no client."""

    def close(self) -> None:
        return None


def opened(connection: Connection, reference: Mapping[str, Any]) -> Any:
    """What a job does with a reference."""
    parsed = TypeAdapter(SourceReference).validate_python({"connection": "prod", **reference})
    sources = NamedSources({"prod": connection}, Path("/nonexistent"))
    return sources.open("project", parsed, lambda stage, done, total: None)


@dataclass
class Read:
    """Everything an adapter gave."""

    opened: Opened
    ids: list[str] = field(repr=False)
    vectors: NDArray[Any] = field(repr=False)
    columns: dict[str, list[Any]] = field(repr=False)
    missing: list[str]
    pages: list[int]
    recounted: int | None


def read(connection: Connection, reference: Mapping[str, Any]) -> Read:
    with opened(connection, reference) as source:
        pages = list(source.pages)
        recounted = source.recount()
    some = [page.vectors for page in pages if len(page)]
    columns: dict[str, list[Any]] = {name: [] for name in reference.get("columns", ())}
    for page in pages:
        for name, values in page.columns.items():
            columns[name] += values
    return Read(
        opened=source,
        ids=[one for page in pages for one in page.ids or ()],
        vectors=np.concatenate(some) if some else np.empty((0, 0), "f4"),
        columns=columns,
        missing=[one for page in pages for one in page.missing],
        pages=[len(page) + len(page.missing) for page in pages],
        recounted=recounted,
    )


class Pgvector(Unheld):
    kind, filters = "pgvector", True

    def __init__(self, port: int) -> None:
        self.connection = local(f"postgresql://127.0.0.1:{port}/postgres", user="owner")
        with self.client() as client:
            client.execute("CREATE EXTENSION IF NOT EXISTS vector")

    def client(self) -> psycopg.Connection[Any]:
        parts = self.connection.parts
        return psycopg.connect(
            host=parts.hostname, port=parts.port, user="owner", password=SECRET, dbname="postgres"
        )

    def load(self, name: str, table: Table, kind: str = "vector") -> list[str]:
        types = {
            column: "bigint" if any(isinstance(value, int) for value in values) else "text"
            for column, values in table.cells.items()
        }
        declared = [
            sql.SQL("id text PRIMARY KEY"),
            sql.SQL(f"embedding {kind}"),
            *(sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(t)) for n, t in types.items()),
        ]
        ids = [f"{row:06d}" for row in range(len(table.vectors))]
        with self.client() as client, client.cursor() as cursor:
            cursor.execute(
                sql.SQL("CREATE TABLE {} ({})").format(
                    sql.Identifier(name), sql.SQL(", ").join(declared)
                )
            )
            with cursor.copy(sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(name))) as copy:
                for row in reversed(range(len(ids))):
                    vector = table.vectors[row]
                    text = None if vector is None else str(vector.tolist())
                    copy.write_row((ids[row], text, *table.cell(row).values()))
        return ids

    def reference(self, name: str) -> dict[str, Any]:
        return {"kind": "pgvector", "table": name, "vector": "embedding", "id": "id"}


class Qdrant(Unheld):
    kind, filters = "qdrant", True

    def __init__(self, home: Path) -> None:
        self.connection = local(f"file://{home}")
        self.home = home

    def load(self, name: str, table: Table, distance: str = "Dot") -> list[str]:
        client = QdrantClient(path=str(self.home))
        client.create_collection(
            name,
            vectors_config={
                "text": models.VectorParams(size=DIMENSIONS, distance=models.Distance(distance))
            },
        )
        points = [
            models.PointStruct(
                id=row,
                vector={} if vector is None else {"text": vector.tolist()},
                payload={key: value for key, value in table.cell(row).items() if value is not None},
            )
            for row, vector in enumerate(table.vectors)
        ]
        if points:
            client.upsert(name, points[::-1])
        client.close()
        return [str(row) for row in range(len(points))]

    def reference(self, name: str) -> dict[str, Any]:
        return {"kind": "qdrant", "collection": name, "vector": "text"}


class Chroma:
    kind, filters = "chroma", True

    def __init__(self, port: int) -> None:
        self.connection = local(f"http://127.0.0.1:{port}", password=SECRET)
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}/api/v2/tenants/default_tenant/databases/"
            "default_database/",
            timeout=60,
        )

    def load(self, name: str, table: Table, space: str = "l2") -> list[str]:
        made = self.client.post(
            "collections", json={"name": name, "configuration": {"hnsw": {"space": space}}}
        ).raise_for_status()
        ids = [f"{row:06d}" for row in range(len(table.vectors))]
        for at in range(0, len(ids), 250):
            some = range(at, min(at + 250, len(ids)))
            metadata = [
                {key: value for key, value in table.cell(row).items() if value is not None} or None
                for row in some
            ]
            body = {
                "ids": [ids[row] for row in some],
                "embeddings": [np.asarray(table.vectors[row]).tolist() for row in some],
                "metadatas": metadata,
            }
            self.client.post(f"collections/{made.json()['id']}/add", json=body).raise_for_status()
        return ids

    def reference(self, name: str) -> dict[str, Any]:
        return {"kind": "chroma", "collection": name}

    def close(self) -> None:
        self.client.close()


class Milvus(Unheld):
    kind, filters = "milvus", True

    def __init__(self, port: int) -> None:
        self.connection = local(f"http://127.0.0.1:{port}", password=SECRET)

    def load(self, name: str, table: Table) -> list[str]:
        client = MilvusClient(self.connection.url)
        schema = client.create_schema(auto_id=False)
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
        schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=DIMENSIONS)
        for column, values in table.cells.items():
            if any(isinstance(value, int) for value in values):
                schema.add_field(column, DataType.INT64, nullable=True)
            else:
                schema.add_field(column, DataType.VARCHAR, max_length=500, nullable=True)
        index = client.prepare_index_params()
        index.add_index("embedding", index_type="FLAT", metric_type="COSINE")
        client.create_collection(name, schema=schema, index_params=index)
        ids = [f"{row:06d}" for row in range(len(table.vectors))]
        for at in reversed(range(0, len(ids), 250)):
            client.insert(
                name,
                [
                    {
                        "id": ids[row],
                        "embedding": np.asarray(table.vectors[row]).tolist(),
                        **table.cell(row),
                    }
                    for row in range(at, min(at + 250, len(ids)))
                ],
            )
        client.close()
        return ids

    def load_ids(self, name: str, ids: Sequence[str]) -> None:
        """Rows of two numbers, 1 and their place, under these ids."""
        with closing(MilvusClient(self.connection.url)) as client:
            schema = client.create_schema(auto_id=False)
            schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=100)
            schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=2)
            index = client.prepare_index_params()
            index.add_index("embedding", index_type="FLAT", metric_type="COSINE")
            client.create_collection(name, schema=schema, index_params=index)
            rows = [{"id": one, "embedding": [1.0, float(at)]} for at, one in enumerate(ids)]
            client.insert(name, rows)

    def reference(self, name: str) -> dict[str, Any]:
        return {"kind": "milvus", "collection": name, "vector": "embedding"}


class Lancedb(Unheld):
    kind, filters = "lancedb", True

    def __init__(self, home: Path) -> None:
        self.connection = local(f"file://{home}")
        self.store = lancedb.connect(home)

    def load(self, name: str, table: Table) -> list[str]:
        ids = [f"{row:06d}" for row in range(len(table.vectors))]
        rows = pa.table(
            {
                "id": pa.array(ids, pa.string()),
                "embedding": pa.array(
                    [None if vector is None else vector.tolist() for vector in table.vectors],
                    pa.list_(pa.float32(), DIMENSIONS),
                ),
                **{
                    column: pa.array(
                        values,
                        pa.int64() if any(isinstance(v, int) for v in values) else pa.string(),
                    )
                    for column, values in table.cells.items()
                },
            }
        )
        made = self.store.create_table(name, rows.slice(0, 1000), on_bad_vectors="null")
        if len(rows) > 1000:
            made.add(rows.slice(1000))
        return ids

    def reference(self, name: str) -> dict[str, Any]:
        return {"kind": "lancedb", "table": name, "vector": "embedding", "id": "id"}


class Redis:
    kind, filters = "redis", False

    def __init__(self, port: int) -> None:
        self.connection = local(f"redis://127.0.0.1:{port}/0", password=SECRET)
        self.client = redis.Redis(port=port, password=SECRET)

    def load(self, name: str, table: Table) -> list[str]:
        ids = [f"{row:06d}" for row in range(len(table.vectors))]
        pipe = self.client.pipeline(transaction=False)
        for row in reversed(range(len(ids))):
            cells: dict[str, Any] = {
                key: value for key, value in table.cell(row).items() if value is not None
            }
            vector = table.vectors[row]
            if vector is not None:
                cells["embedding"] = vector.tobytes()
            pipe.hset(f"{name}:{ids[row]}", mapping=cells)
        pipe.execute()
        return ids

    def reference(self, name: str) -> dict[str, Any]:
        return {"kind": "redis", "prefix": f"{name}:", "vector": "embedding"}

    def close(self) -> None:
        self.client.close()


def local(url: str, user: str | None = None, password: str | None = SECRET) -> Connection:
    return Connection(
        name="prod", url=url, user=user, password=password, private=True, timeout_s=20
    )


@contextmanager
def every_store() -> Iterator[dict[str, Store]]:
    """All of them, running."""
    with ExitStack() as stack:
        memory = Path("/dev/shm")
        fast = stack.enter_context(servers.folder(memory if memory.is_dir() else None))
        chroma = Chroma(stack.enter_context(servers.chroma()).port)
        redis = Redis(stack.enter_context(servers.valkey(SECRET)).port)
        stack.enter_context(closing(chroma))
        stack.enter_context(closing(redis))
        yield {
            "pgvector": Pgvector(stack.enter_context(servers.postgres(SECRET)).port),
            "qdrant": Qdrant(fast / "store"),
            "chroma": chroma,
            "milvus": Milvus(stack.enter_context(servers.milvus()).port),
            "lancedb": Lancedb(stack.enter_context(servers.folder())),
            "redis": redis,
        }
