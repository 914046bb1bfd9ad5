"""
Every error the service can state, in one tree.

    AssayError
    ├── InvalidRequest         invalid-request
    │   ├── ShapeMismatch      shape-mismatch
    │   ├── DimensionMismatch  dimension-mismatch
    │   ├── IdsMismatch        ids-mismatch
    │   ├── DuplicateIds       duplicate-ids
    │   ├── NonFiniteRows      non-finite-rows
    │   ├── ZeroRows           zero-rows
    │   ├── TooFewRows         too-few-rows
    │   ├── TooFewGroups       too-few-groups
    │   └── MissingLabels      missing-labels
    ├── UnknownCheck           unknown-check
    ├── UnknownDataset         unknown-dataset
    ├── DamagedDataset         damaged-dataset
    ├── UnknownJob             unknown-job
    ├── UnknownChart           unknown-chart
    ├── UnknownGate            unknown-gate
    ├── UnknownBaseline        unknown-baseline
    ├── GateNotPassed          gate-not-passed
    ├── ReportNotReady         report-not-ready
    ├── UnsupportedFormat      unsupported-format
    ├── NotAcceptable          not-acceptable
    ├── ChartsNotInstalled     charts-not-installed
    ├── MalformedPayload       malformed-payload
    ├── PayloadTooLarge        payload-too-large
    ├── BodyStalled            body-stalled
    ├── DatasetInUse           dataset-in-use
    ├── SourceUnreachable      source-unreachable
    ├── SourceDenied           source-denied
    ├── SourceInconsistent     source-inconsistent
    ├── Unauthorised           unauthorised
    ├── Forbidden              forbidden
    ├── QueueFull              queue-full
    ├── RateLimited            rate-limited
    ├── IdempotencyConflict    idempotency-conflict
    ├── IdempotencyInFlight    idempotency-in-flight
    ├── Unavailable            unavailable
    ├── Cancelled              cancelled
    ├── TimedOut               timed-out
    ├── OutOfMemory            out-of-memory
    ├── WorkerLost             worker-lost
    └── Internal               internal

Codes are API: they never change meaning. HTTP statuses live at the door (`api.problems`), exit codes
in the command line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict

SHOWN_ROWS = 10


class Fault(BaseModel):
    """One thing that is wrong, and where."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    pointer: str
    """JSON pointer or input name the fault is about."""

    message: str
    """What is wrong and what to do about it."""

    count: int | None = None
    """How many rows are concerned."""

    rows: list[str] | None = None
    """Ids of the first ten rows concerned (row numbers where there are no ids)."""


class AssayError(Exception):
    """Something the caller, or the operator, can be told in one sentence."""

    code: str = "internal"
    title: str = "Internal error"

    def __init__(self, detail: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.faults = tuple(faults)


class InvalidRequest(AssayError):
    code = "invalid-request"
    title = "The request is not valid"


class ShapeMismatch(InvalidRequest):
    code = "shape-mismatch"
    title = "The data have not the shape that is needed"


class DimensionMismatch(InvalidRequest):
    code = "dimension-mismatch"
    title = "Vectors that are compared have different dimensions"


class IdsMismatch(InvalidRequest):
    code = "ids-mismatch"
    title = "Paired inputs carry different ids"


class DuplicateIds(InvalidRequest):
    code = "duplicate-ids"
    title = "Ids are not unique"


class NonFiniteRows(InvalidRequest):
    code = "non-finite-rows"
    title = "Some rows hold NaN or infinity"


class ZeroRows(InvalidRequest):
    code = "zero-rows"
    title = "Some rows are zero and have no direction"


class TooFewRows(InvalidRequest):
    code = "too-few-rows"
    title = "Too few rows"


class TooFewGroups(InvalidRequest):
    code = "too-few-groups"
    title = "Too few groups"


class MissingLabels(InvalidRequest):
    code = "missing-labels"
    title = "Some labels are missing"


class UnknownCheck(AssayError):
    code = "unknown-check"
    title = "There is no such check"


class UnknownDataset(AssayError):
    code = "unknown-dataset"
    title = "There is no such dataset"


class DamagedDataset(AssayError):
    code = "damaged-dataset"
    title = "This dataset cannot be read"


class UnknownJob(AssayError):
    code = "unknown-job"
    title = "There is no such job"


class UnknownChart(AssayError):
    code = "unknown-chart"
    title = "There is no such chart"


class UnknownGate(AssayError):
    code = "unknown-gate"
    title = "There is no such gate run"


class UnknownBaseline(AssayError):
    code = "unknown-baseline"
    title = "There is no such baseline"


class GateNotPassed(AssayError):
    code = "gate-not-passed"
    title = "The gate has not passed"


class ReportNotReady(AssayError):
    code = "report-not-ready"
    title = "The report is not ready yet"


class UnsupportedFormat(AssayError):
    code = "unsupported-format"
    title = "This format cannot be read"


class NotAcceptable(AssayError):
    code = "not-acceptable"
    title = "There is no representation that would be accepted"


class ChartsNotInstalled(AssayError):
    code = "charts-not-installed"
    title = "This service cannot draw"


class MalformedPayload(AssayError):
    code = "malformed-payload"
    title = "The payload is damaged or does not match its own description"


class PayloadTooLarge(AssayError):
    code = "payload-too-large"
    title = "The payload is over a declared limit"


class BodyStalled(AssayError):
    code = "body-stalled"
    title = "The body stopped arriving"


class DatasetInUse(AssayError):
    code = "dataset-in-use"
    title = "Something still needs this dataset"


class SourceUnreachable(AssayError):
    code = "source-unreachable"
    title = "The source does not answer"


class SourceDenied(AssayError):
    code = "source-denied"
    title = "The service may not read this source"


class SourceInconsistent(AssayError):
    code = "source-inconsistent"
    title = "The source did not give each of its rows once"


class Unauthorised(AssayError):
    code = "unauthorised"
    title = "A valid API key is needed"


class Forbidden(AssayError):
    code = "forbidden"
    title = "This request is not allowed"


class QueueFull(AssayError):
    code = "queue-full"
    title = "The queue is full"


class RateLimited(AssayError):
    code = "rate-limited"
    title = "Too many requests in a short time"

    def __init__(
        self, detail: str, faults: Sequence[Fault] = (), *, retry_after_s: int = 1
    ) -> None:
        super().__init__(detail, faults)
        self.retry_after_s = retry_after_s


class IdempotencyConflict(AssayError):
    code = "idempotency-conflict"
    title = "This Idempotency-Key was sent with another body"


class IdempotencyInFlight(AssayError):
    code = "idempotency-in-flight"
    title = "A request with this Idempotency-Key is being answered"


class Unavailable(AssayError):
    code = "unavailable"
    title = "A part of the service does not answer"


class Cancelled(AssayError):
    code = "cancelled"
    title = "The job was cancelled"


class TimedOut(AssayError):
    code = "timed-out"
    title = "The job ran past its deadline"


class OutOfMemory(AssayError):
    code = "out-of-memory"
    title = "The job needed more memory than it may use"


class WorkerLost(AssayError):
    code = "worker-lost"
    title = "Every process that ran the job died"


class Internal(AssayError):
    """An invariant of ours does not hold."""


def first(ids: Sequence[str]) -> list[str]:
    """The ids a fault shows."""
    return list(ids[:SHOWN_ROWS])


def counted(count: int, what: str) -> str:
    """So many of something: `1 row`, `2 rows`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def pointer_to(*parts: object) -> str:
    """JSON pointer (RFC 6901) of keys and indices, escaped."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.4) -> str:
    """What an unknown name may have been, or what there is."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return f"did you mean `{close[0]}`?" if close else f"known: {', '.join(names) or 'none'}"
