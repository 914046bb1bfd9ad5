"""How a request names its data: vectors in a role, labels in a column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Strict, Tag

from service.model import Label as Label
from service.model import Model as Model
from service.redaction import KEPT, Plain
from service.source_reference import Provenance, SourceReference


class Spec(Model):
    """Where vectors come from. Every field is free text and optional."""

    model: Plain | None = None
    """Name of the encoder."""
    revision: Plain | None = None
    """Version, commit or checksum of the encoder."""
    prompt: Plain | None = None
    """Instruction put in front of every text."""
    pooling: Plain | None = None
    """How token vectors became one vector."""
    normalised: bool | None = None
    """Whether the encoder normalises its output."""
    source: Plain | Provenance | None = None
    """Where the rows were read from; of an import, what was read and how."""


class Encoded(Model):
    """Vectors as base64 of a C-ordered buffer."""

    encoding: Literal["base64"]
    dtype: Literal["<f2", "<f4", "<f8", "|i1"]
    """NumPy type string of the buffer."""
    shape: tuple[int, int]
    """(rows, dimensions)."""
    data: str
    """Standard base64 (not the URL-safe alphabet)."""


class DatasetRef(Model):
    """A dataset that is already stored."""

    dataset: str
    """Id returned by `POST /v1/datasets`."""


class BaselineRef(Model):
    """The dataset a baseline names when the request is accepted."""

    baseline: str
    """Name given by `PUT /v1/baselines/{name}`."""


class InlineVectors(Model):
    """Vectors inside the request; they become a dataset before the job is queued."""

    vectors: list[list[Annotated[float, Strict()]]] | Encoded
    """Rows of numbers, or a base64 buffer."""
    ids: list[str] | None = None
    """One unique id per row."""
    spec: Spec = Spec()


class SourceRef(Model):
    """Rows that live elsewhere; they become a dataset before the check runs."""

    source: SourceReference
    """Where they are."""
    spec: Spec = Spec()


ModelName = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,32}$"), KEPT]


class NamedDataset(DatasetRef):
    """One of several models: its vectors and the name its results go by."""

    name: ModelName | None = None
    """Default `model_1`, `model_2`, ... in request order."""


class NamedBaseline(BaselineRef):
    """The same by the name of a baseline."""

    name: ModelName | None = None
    """Default `model_1`, `model_2`, ... in request order."""


class NamedVectors(InlineVectors):
    """The same with vectors inside the request."""

    name: ModelName | None = None
    """Default `model_1`, `model_2`, ... in request order."""


class NamedSource(SourceRef):
    """The same with vectors that live elsewhere."""

    name: ModelName | None = None
    """Default `model_1`, `model_2`, ... in request order."""


class NamedParts(Model):
    """One of several models of several matrices, each stored, and the name its results go by."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, DatasetRef]

    name: ModelName | None = None
    """Default `model_1`, `model_2`, ... in request order."""

    @property
    def parts(self) -> dict[str, DatasetRef]:
        """Its matrices by name."""
        return dict(self.__pydantic_extra__)


class ColumnRef(Model):
    """A column of a dataset; without `dataset`, of the role the check names."""

    column: str
    dataset: str | None = None


class BaselineColumn(Model):
    """A column of the dataset a baseline names when the request is accepted."""

    column: str
    baseline: str


class InlineColumn(Model):
    """A column inside the request, one value per row, null where it is missing."""

    values: list[Label | None]


class InlineTable(Model):
    """Columns inside the request, each with one value per row, null where it is missing."""

    columns: dict[Annotated[str, KEPT], list[Label | None]] = Field(min_length=1)
    """Values by name of the column."""
    ids: list[str] | None = None
    """One unique id per row."""


DocumentId = Annotated[str, Strict()] | Annotated[int, Strict(), Field(ge=0)]
Judgement = DocumentId | tuple[DocumentId, Annotated[float, Field(ge=0)]]


class InlineRelevance(Model):
    """Relevant documents inside the request: for each query a list of ids or of `[id, grade]`."""

    values: list[list[Judgement] | None]
    """An id without a grade has grade 1; a document of grade 0 is not relevant."""


def _kind_of_vectors(value: Any) -> str | None:
    if isinstance(value, InlineVectors) or (isinstance(value, dict) and "vectors" in value):
        return "<inline>"
    if isinstance(value, SourceRef) or (isinstance(value, dict) and "source" in value):
        return "<source>"
    return _of_baseline(value, BaselineRef) or _otherwise(value, "<dataset>")


def _kind_of_column(value: Any) -> str | None:
    if isinstance(value, (InlineColumn, InlineRelevance)) or (
        isinstance(value, dict) and "values" in value
    ):
        return "<inline>"
    return _of_baseline(value, BaselineColumn) or _otherwise(value, "<column>")


def _kind_of_table(value: Any) -> str | None:
    if isinstance(value, InlineTable) or (isinstance(value, dict) and "columns" in value):
        return "<inline>"
    return _of_baseline(value, BaselineRef) or _otherwise(value, "<dataset>")


def _of_baseline(value: Any, kind: type[Model]) -> str | None:
    named = isinstance(value, kind) or (isinstance(value, dict) and "baseline" in value)
    return "<baseline>" if named else None


def _otherwise(value: Any, tag: str) -> str | None:
    """The form of an object that is none of the others; of what is no object there is none."""
    return tag if isinstance(value, (dict, Model)) else None


def _form(kind_of: Callable[[Any], str | None], takes: str) -> Discriminator:
    """Tells the forms of a value apart, and says which there are where it has none of them."""
    return Discriminator(
        kind_of, custom_error_type="form", custom_error_message=f"takes an object: {takes}"
    )


_VECTORS = _form(
    _kind_of_vectors,
    '`{"dataset": ID}`, `{"baseline": NAME}`, `{"vectors": ROWS}` or `{"source": {...}}`',
)
_COLUMN = _form(
    _kind_of_column,
    '`{"column": NAME}`, `{"dataset": ID, "column": NAME}`, `{"baseline": NAME, "column": NAME}` or '
    '`{"values": [...]}`',
)
_TABLE = _form(
    _kind_of_table, '`{"dataset": ID}`, `{"baseline": NAME}` or `{"columns": {NAME: [...]}}`'
)

VectorsValue = Annotated[
    Annotated[DatasetRef, Tag("<dataset>")]
    | Annotated[BaselineRef, Tag("<baseline>")]
    | Annotated[InlineVectors, Tag("<inline>")]
    | Annotated[SourceRef, Tag("<source>")],
    _VECTORS,
]
ColumnValue = Annotated[
    Annotated[ColumnRef, Tag("<column>")]
    | Annotated[BaselineColumn, Tag("<baseline>")]
    | Annotated[InlineColumn, Tag("<inline>")],
    _COLUMN,
]
RelevanceValue = Annotated[
    Annotated[ColumnRef, Tag("<column>")]
    | Annotated[BaselineColumn, Tag("<baseline>")]
    | Annotated[InlineRelevance, Tag("<inline>")],
    _COLUMN,
]
TableValue = Annotated[
    Annotated[DatasetRef, Tag("<dataset>")]
    | Annotated[BaselineRef, Tag("<baseline>")]
    | Annotated[InlineTable, Tag("<inline>")],
    _TABLE,
]
NamedValue = Annotated[
    Annotated[NamedDataset, Tag("<dataset>")]
    | Annotated[NamedBaseline, Tag("<baseline>")]
    | Annotated[NamedVectors, Tag("<inline>")]
    | Annotated[NamedSource, Tag("<source>")],
    _VECTORS,
]
