"""A dataset on its way in."""

from __future__ import annotations

import numpy as np

from service.dataset import Dataset
from service.dataset_record import (
    ColumnFacts,
    DatasetRecord,
    hash_dataset,
    hash_ids,
)
from service.errors import (
    AssayError,
)
from service.formats import ImportBody, JsonReader, Options, Parsed, Reader, reader_for
from service.job import now
from service.ports import Draft
from service.references import (
    Spec,
)
from service.services import Services


class Upload:
    """A dataset on its way in: feed it the body as it arrives, then finish or abort."""

    def __init__(
        self,
        services: Services,
        project: str,
        content_type: str,
        options: Options | None = None,
        name: str | None = None,
        spec: Spec | None = None,
    ) -> None:
        self._services, self._name, self._spec = services, name, spec
        self._draft = services.datasets.draft(project)
        try:
            self._reader: Reader = reader_for(
                content_type, self._draft, services.limits, options or Options()
            )
        except AssayError:
            services.datasets.discard(self._draft)
            raise

    def feed(self, data: bytes) -> None:
        """Take some bytes of the body."""
        self._reader.feed(data)

    def reference(self) -> ImportBody | None:
        """Where the rows live, if the body says so instead of holding them."""
        return self._reader.reference() if isinstance(self._reader, JsonReader) else None

    def finish(self) -> tuple[DatasetRecord, bool]:
        """The stored dataset, and whether it is new."""
        try:
            parsed = self._reader.finish()
            return commit(self._services, self._draft, parsed, self._name, self._spec)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Forget it."""
        self._reader.close()
        self._services.datasets.discard(self._draft)


def commit(
    services: Services, draft: Draft, parsed: Parsed, name: str | None, spec: Spec | None
) -> tuple[DatasetRecord, bool]:
    ids_hash = hash_ids(parsed.ids)
    given = {} if spec is None else spec.model_dump(exclude_none=True)
    described = parsed.spec.model_copy(update=given)
    _validate(parsed)
    columns = dict(parsed.columns)
    record = DatasetRecord(
        id=draft.id,
        name=name or parsed.name,
        n=parsed.n,
        d=parsed.d,
        dtype=parsed.dtype,
        bytes=parsed.bytes,
        sha256=hash_dataset(parsed.n, parsed.vectors_sha256, ids_hash, columns, described),
        vectors_sha256=parsed.vectors_sha256,
        ids_sha256=ids_hash,
        columns={name: ColumnFacts.of(column) for name, column in columns.items()},
        spec=described,
        facts=parsed.facts,
        created_at=now(),
    )
    return services.datasets.commit(draft, record, parsed.ids, columns)


def _validate(parsed: Parsed) -> None:
    """Lengths and ids, by the one place that knows: a Dataset over rows that take no memory."""
    if parsed.d is not None:
        rows = np.broadcast_to(np.zeros((), np.float32), (parsed.n, parsed.d))
        Dataset(rows, parsed.ids, parsed.columns)
    else:
        Dataset(None, parsed.ids, parsed.columns)
