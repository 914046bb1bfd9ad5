"""The report envelope, typed over the catalogue; its canonical bytes and digest."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from datetime import datetime
from typing import Any

import numpy as np
import rfc8785
from pydantic import ConfigDict, Field, TypeAdapter, create_model
from threadpoolctl import threadpool_info

from service.check import Check, Params, Results, Warned
from service.checks import CATALOGUE
from service.references import Model, Spec
from service.request import camel, either, one_of

REPORT_VERSION = "1.0"


class ReportedVectors(Model):
    """Vectors a report is about."""

    dataset: str
    """Id of the dataset when the report was made."""
    sha256: str
    vectors_sha256: str
    n: int
    d: int
    dtype: str
    spec: Spec


class ReportedModel(ReportedVectors):
    """Vectors of one of several models."""

    name: str
    """The name its results go by."""

    @property
    def hashes(self) -> tuple[str, ...]:
        """Identity of its rows."""
        return (self.vectors_sha256,)


class ReportedParts(Model):
    """Matrices of one of several models, by name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, ReportedVectors]

    name: str
    """The name its results go by."""

    @property
    def hashes(self) -> tuple[str, ...]:
        """Identity of the rows of each, by name."""
        return tuple(one.vectors_sha256 for _, one in sorted(self.__pydantic_extra__.items()))


class ReportedColumn(Model):
    """A column a report is about."""

    dataset: str
    column: str
    sha256: str
    """Hash of its values in row order."""
    ids_sha256: str | None
    """Hash of the ids it may be aligned by; null where its rows are numbered."""
    n: int


class ReportedTable(Model):
    """A table a report is about."""

    dataset: str
    sha256: str
    n: int
    columns: list[str]
    """Names of all its columns."""


ReportedInputs = dict[
    str, ReportedVectors | ReportedColumn | ReportedTable | list[ReportedModel | ReportedParts]
]


class Environment(Model):
    """What the numbers were computed with."""

    service: str
    numpy: str
    scipy: str
    faiss: str
    numba: str
    blas: str
    cpu: str
    """Machine type, and the kernels its linear algebra has chosen: one digest holds within these."""


class Timing(Model):
    run_s: float
    """Seconds from loaded inputs to results, those of all shards together."""
    stages: dict[str, float]
    """Seconds by stage."""
    effort: dict[str, int] = Field(default_factory=dict)
    """Counts of what it took; they may differ where digests do not."""
    shards: int = 1
    """Shares the work was cut into, to be computed side by side."""


class ReportBase(Model):
    """A versioned answer; within a major version fields are only added."""

    report_version: str
    kind: str
    kind_version: int
    request_digest: str
    """Hash of kind, version, input hashes, params and seed: equal everywhere."""
    digest: str
    """Hash that adds the results: equal for any thread count on one image and CPU type."""
    created_at: datetime
    inputs: ReportedInputs
    """Data by role."""
    params: Params
    """Every parameter, defaults filled in."""
    seed: int
    results: Results
    readings: list[str]
    """What the numbers say, one sentence each."""
    warnings: list[Warned]
    scope: list[str]
    """What this report does not establish."""
    environment: Environment
    timing: Timing


def report_model(check: Check) -> type[ReportBase]:
    """The report type of one check."""
    return create_model(
        f"{camel(check.kind)}Report",
        __base__=ReportBase,
        __doc__=f"Report: {check.title.lower()}.",
        kind=(one_of(check.kind), Field()),
        params=(check.params, Field()),
        results=(check.results, Field()),
    )


REPORTS: dict[str, type[ReportBase]] = {check.kind: report_model(check) for check in CATALOGUE}
AnyReport: Any = either(REPORTS.values())
_ADAPTER: TypeAdapter[ReportBase] = TypeAdapter(AnyReport)


def load_report(data: bytes) -> ReportBase:
    """A typed report from stored bytes."""
    return _ADAPTER.validate_json(data)


def canonical(content: Any) -> bytes:
    """RFC 8785 bytes of JSON content."""
    return rfc8785.dumps(content)


def result_digest(request_digest: str, results: Results) -> str:
    """Hash of a request and its results."""
    content = {"request_digest": request_digest, "results": results.model_dump(mode="json")}
    return hashlib.sha256(canonical(content)).hexdigest()


def environment() -> Environment:
    """Versions and machine type of this process."""
    blas: Any = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    found = importlib.metadata.version
    kernels = sorted({str(one.get("architecture")) for one in threadpool_info()} - {"None"})
    return Environment(
        service=found("embedding-assay"),
        numpy=np.__version__,
        scipy=found("scipy"),
        faiss=found("faiss-cpu"),
        numba=found("numba"),
        blas=f"{blas.get('name')} {blas.get('version')}",
        cpu=f"{platform.machine()} {' '.join(kernels)}",
    )
