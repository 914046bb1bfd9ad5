"""A dataset on its way in."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace

import numpy as np
import orjson

from service.dataset import Dataset
from service.dataset_record import (
    ColumnFacts,
    DatasetRecord,
    hash_dataset,
    hash_ids,
)
from service.errors import AssayError, MalformedPayload, PayloadTooLarge
from service.formats import ImportBody, JsonReader, Options, Parsed, Reader, reader_for
from service.job import now
from service.ports import Draft
from service.references import (
    Spec,
)
from service.services import Services

ENVELOPE_BYTES = 1 << 16
"""What a body may hold beside rows."""


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
        sha256: str | None = None,
    ) -> None:
        """`sha256` of the whole body is checked, and remembered for those who ask `of_body`."""
        options = options or Options()
        self._services, self._project, self._name, self._spec = services, project, name, spec
        self._expected, self._seen = sha256, hashlib.sha256()
        self._binary = content_type.startswith("application/x-npy")
        self._room, self._received = room(services, project), 0
        self._body = body_key(content_type, options, spec, sha256 or "")
        self._draft = services.datasets.draft(project)
        try:
            limits = replace(services.limits, room_bytes=self._room)
            self._reader: Reader = reader_for(content_type, self._draft, limits, options)
        except AssayError:
            services.datasets.discard(self._draft)
            raise

    def feed(self, data: bytes) -> None:
        """Take some bytes of the body."""
        self._reader.feed(data)
        self._received += len(data)
        if self._binary and self._received > self._room + ENVELOPE_BYTES:
            raise over_quota(self._services, self._project, self._received)
        if self._expected is not None:
            self._seen.update(data)

    def reference(self) -> ImportBody | None:
        """Where the rows live, if the body says so instead of holding them."""
        return self._reader.reference() if isinstance(self._reader, JsonReader) else None

    def finish(self) -> tuple[DatasetRecord, bool]:
        """The stored dataset, and whether it is new."""
        try:
            if self._expected not in (None, self._seen.hexdigest()):
                raise MalformedPayload("The body does not have the SHA-256 of its Content-Digest.")
            parsed = self._reader.finish()
            record, new = commit(self._services, self._draft, parsed, self._name, self._spec)
        except BaseException:
            self.abort()
            raise
        if self._expected is not None:
            self._services.datasets.remember_body(self._project, self._body, record.id)
        return record, new

    def abort(self) -> None:
        """Forget it."""
        self._reader.close()
        self._services.datasets.discard(self._draft)


def room(services: Services, project: str) -> int:
    """Bytes a project may still store."""
    return services.quotas.project_bytes - services.datasets.stored_bytes(project)


def over_quota(services: Services, project: str, size: int) -> PayloadTooLarge:
    stored, quota = services.datasets.stored_bytes(project), services.quotas.project_bytes
    return PayloadTooLarge(
        f"Project `{project}` stores {stored} bytes of the {quota} it may; this dataset has {size} "
        "or more."
    )


def body_key(content_type: str, options: Options, spec: Spec | None, sha256: str) -> str:
    """Hash of a body with everything else that decides which dataset it becomes."""
    content = {
        "type": content_type.partition(";")[0].strip().lower(),
        "options": asdict(options),
        "spec": {} if spec is None else spec.model_dump(mode="json", exclude_none=True),
        "sha256": sha256,
    }
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def commit(
    services: Services, draft: Draft, parsed: Parsed, name: str | None, spec: Spec | None
) -> tuple[DatasetRecord, bool]:
    ids_hash = hash_ids(parsed.ids)
    given = {} if spec is None else spec.model_dump(exclude_none=True)
    described = parsed.spec.model_copy(update=given)
    _validate(parsed)
    if parsed.bytes > room(services, draft.project):
        raise over_quota(services, draft.project, parsed.bytes)
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
        skipped_columns=dict(parsed.skipped),
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
