"""
How a request names rows that live elsewhere, and what a dataset keeps of where it was read.

One model per kind, told apart by `kind`. `connection` is a name the operator has given to an address
and its credentials: neither ever stands in a request.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from service.model import Model
from service.redaction import KEPT, Plain

Text = Annotated[str, Field(min_length=1, max_length=500), KEPT]


class Where(Model):
    """One condition on a column; several hold together."""

    column: Text
    op: Literal["=", "!=", "<", "<=", ">", ">=", "in"]
    value: bool | int | float | Plain | list[bool | int | float | Plain]
    """A list for `in`, one value otherwise."""

    @field_validator("value")
    @classmethod
    def _a_list_for_in(cls, value: Any, info: ValidationInfo) -> Any:
        op = info.data.get("op")
        if op is not None and isinstance(value, list) != (op == "in"):
            takes = "a list of values" if op == "in" else "one value; `in` takes a list"
            raise ValueError(f"`{op}` takes {takes}")
        return value


class Reference(Model):
    """What every kind has."""

    connection: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
    """Name of a connection in the settings of the service."""
    columns: list[Text] = Field(default_factory=list, max_length=100)
    """Columns (payload, metadata) kept as labels."""
    page_rows: int = Field(default=4096, ge=1, le=100_000)
    """Rows read at a time."""


class Filtered(Reference):
    """A kind whose rows can be chosen."""

    where: list[Where] = Field(default_factory=list, max_length=20)
    """Only rows that satisfy all of these."""


class PgvectorReference(Filtered):
    """A table or view of PostgreSQL with a pgvector column."""

    kind: Literal["pgvector"]
    namespace: Text = "public"
    """Schema of the table."""
    table: Text
    vector: Text
    """Column that holds vectors."""
    id: Text
    """Column that holds unique ids; pages are read in its order."""


class QdrantReference(Filtered):
    """A collection of Qdrant; ids are those of its points."""

    kind: Literal["qdrant"]
    collection: Text
    vector: Text | None = None
    """Name of the vector, where points have several."""


class ChromaReference(Filtered):
    """A collection of Chroma; ids are its own."""

    kind: Literal["chroma"]
    collection: Text


class MilvusReference(Filtered):
    """A collection of Milvus; ids are its primary keys."""

    kind: Literal["milvus"]
    collection: Text
    vector: Text
    """Field that holds vectors."""


class LancedbReference(Filtered):
    """A table of LanceDB."""

    kind: Literal["lancedb"]
    table: Text
    vector: Text
    """Column that holds vectors."""
    id: Text
    """Column that holds unique ids."""
    version: int | None = Field(default=None, ge=1)
    """Version of the table; null for the newest, which is recorded."""


class RedisReference(Reference):
    """Hashes of Redis under one prefix, each with its vector as bytes; ids are the rest of the key."""

    kind: Literal["redis"]
    prefix: Text
    """What the keys start with, `doc:` say."""
    vector: Text
    """Field that holds the bytes of a vector."""
    dtype: Literal["float16", "float32", "float64", "int8"] = "float32"
    """Type of these bytes, little-endian."""


class FileReference(Reference):
    """A file below the address of a connection (`file://`, `s3://`, `https://`)."""

    path: Text
    """Where it is, from the address of the connection."""


class TableFileReference(FileReference):
    vector: Text | None = None
    """Column that holds vectors; null where one column can."""
    id: Text | None = None
    """Column that holds unique ids; null to number the rows."""
    columns: list[Text] | None = None  # type: ignore[assignment]
    """Columns kept as labels; null for all that can be."""


class ParquetReference(TableFileReference):
    """A Parquet file."""

    kind: Literal["parquet"]


class ArrowReference(TableFileReference):
    """An Arrow IPC stream or file."""

    kind: Literal["arrow"]


class NpyReference(FileReference):
    """A NumPy .npy file."""

    kind: Literal["npy"]
    dtype: Literal["bf16"] | None = None
    """Read 2-byte words as bfloat16."""


class FaissReference(FileReference):
    """An index file of FAISS; ids are those of its id map, where it has one."""

    kind: Literal["faiss"]


SourceReference = Annotated[
    PgvectorReference
    | QdrantReference
    | ChromaReference
    | MilvusReference
    | LancedbReference
    | RedisReference
    | ParquetReference
    | ArrowReference
    | NpyReference
    | FaissReference,
    Field(discriminator="kind"),
]


class Provenance(Model):
    """What was read, and how: part of a dataset's identity, so it holds no time of reading."""

    kind: str
    connection: str
    """Name of the connection."""
    location: str
    """Table, collection, prefix or path."""
    vector: str | None = None
    """Column, field or name of the vectors."""
    id: str | None = None
    """Column of the ids."""
    where: list[Where] = Field(default_factory=list)
    version: str | None = None
    """Snapshot, version, ETag or checksum of what was read, where the store has one."""
    stored_as: str | None = None
    """How the store keeps a vector: float32, float16, SQ8, ..."""
    normalises_on_write: bool | None = None
    """Whether the store had brought rows to length one, so that their lengths are lost."""
    lossy: bool | None = None
    """Whether rows are read back from codes."""
    rows: int = 0
    """Rows read."""
    missing_vectors: int = 0
    """Rows of the store without a vector, left out."""
    missing_ids: list[str] = Field(default_factory=list, max_length=10)
    """The first ten of them."""
    count_before: int | None = None
    """The store's own count before reading; null where it has none."""
    count_after: int | None = None
    """The same after reading."""
