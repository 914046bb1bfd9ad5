"""Parquet and Arrow bodies: kept on disk until they are whole, then read by a confined process."""

from __future__ import annotations

from service.errors import DuplicateIds, Fault, InvalidRequest, PayloadTooLarge, counted
from service.formats.confined import FileKind, confined
from service.formats.pages import PageWriter
from service.formats.reader import Limits, Options, Parsed, Sink, spool


class TableReader:
    """Reads one table; its footer comes last, so nothing can be read before."""

    takes = frozenset({"id_column", "vector_column"})

    kind: FileKind

    def __init__(self, sink: Sink, limits: Limits, options: Options) -> None:
        self._sink, self._limits, self._options = sink, limits, options
        self._spool = sink.spool()
        self._received = 0

    def feed(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > self._limits.body_bytes:
            raise PayloadTooLarge(f"The body is over {self._limits.body_bytes} bytes.")
        spool(self._spool, data)

    def close(self) -> None:
        self._spool.close()

    def finish(self) -> Parsed:
        writer = PageWriter(self._sink, self._limits)
        options = {"vector": self._options.vector_column, "id": self._options.id_column}
        with self._spool, confined(self._spool, self.kind, options) as (_, pages):
            for page in pages:
                writer.add(page)
        if writer.missing:
            raise InvalidRequest(
                f"There is no vector in {counted(writer.missing, 'row')}.",
                [
                    Fault(
                        pointer="/vectors",
                        message="leave these rows out, or give them a vector",
                        count=writer.missing,
                        rows=writer.missing_ids,
                    )
                ],
            )
        if (repeats := writer.repeats()).count:
            raise DuplicateIds(
                f"An id comes again in {counted(repeats.count, 'row')}.",
                [
                    Fault(
                        pointer="/ids",
                        message="every row needs an id of its own",
                        count=repeats.count,
                        rows=repeats.ids,
                    )
                ],
            )
        return writer.finish()


class ParquetReader(TableReader):
    kind = "parquet"


class ArrowReader(TableReader):
    kind = "arrow"
