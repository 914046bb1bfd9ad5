"""Recompute a report from stored data, and find where it says something else."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from service.dataset_record import DatasetRecord
from service.errors import (
    DamagedDataset,
    InvalidRequest,
    MalformedPayload,
    UnknownDataset,
    pointer_to,
)
from service.operations import perform, report_bytes, submit
from service.report import (
    ReportBase,
    ReportedColumn,
    ReportedParts,
    ReportedTable,
    ReportedVectors,
    canonical,
    load_report,
)
from service.request import check_of, invalid, parse_request
from service.services import Services
from service.stated import stated

RELATIVE = 1e-9
"""How far a float may be from that of another CPU type, relative to the larger of the two."""
NOT_COMPARED = ("created_at", "environment", "timing", "digest")
"""When, where and how fast it was made; the digest is compared by itself."""
PER_PAGE = 200
GONE = object()
"""A value that is not there."""


@dataclass(frozen=True)
class Difference:
    """One place where a report and its recomputation part."""

    pointer: str
    """JSON pointer into the report."""
    reported: Any
    recomputed: Any


@dataclass(frozen=True)
class Verification:
    """What came of recomputing a report."""

    same_place: bool
    """Whether both were made in one environment, so that the digests must be equal."""
    digest: str
    """Of the recomputed report."""
    differences: list[Difference]
    added: list[str]
    """Places the service states today and did not when the report was made."""
    exempt: int
    """Numbers that rounding decides, and which differ, as they may between CPU types."""

    @property
    def equal(self) -> bool:
        return not self.differences


def read_report(data: bytes) -> tuple[Any, ReportBase]:
    """A report as JSON and typed; one this service could not have made is refused."""
    body = _decoded(data)
    if not isinstance(body, dict) or not isinstance(kind := body.get("kind"), str):
        raise InvalidRequest("This is not a report: a report is a JSON object with `kind`.")
    check = check_of(kind)
    if (version := body.get("kind_version")) != check.version:
        made_by = body.get("environment")
        named = made_by.get("service") if isinstance(made_by, dict) else None
        raise InvalidRequest(
            f"The report is of version {json.dumps(version)} of `{kind}` and this service computes "
            f"version {check.version}, whose numbers mean something else. Verify it with the service "
            f"that made it ({named or 'not named'}), or run the check again."
        )
    try:
        return body, load_report(data)
    except ValidationError as error:
        raise invalid(error, body) from None


def _decoded(data: bytes) -> Any:
    """JSON in which no key comes twice: readers differ in which of the two they believe."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a key comes twice in one object")
        return found

    try:
        return json.loads(data, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise MalformedPayload(f"The report is not JSON: {error}.") from None


def stored_inputs(services: Services, project: str, report: ReportBase) -> dict[str, Any]:
    """
    The roles of a report as a request names them: datasets by their ids, or by content.

    UnknownDataset where neither leads to what the report is about.
    """
    return {
        role: [_model(services, project, role, one) for one in value]
        if isinstance(value, list)
        else _reference(services, project, role, value)
        for role, value in report.inputs.items()
    }


def _model(services: Services, project: str, role: str, one: Any) -> dict[str, Any]:
    if isinstance(one, ReportedParts):
        parts = one.model_extra or {}
        found = {part: _reference(services, project, role, value) for part, value in parts.items()}
        return {"name": one.name, **found}
    return {"name": one.name, **_reference(services, project, role, one)}


def _reference(
    services: Services,
    project: str,
    role: str,
    value: ReportedVectors | ReportedColumn | ReportedTable,
) -> dict[str, Any]:
    def holds(record: DatasetRecord) -> bool:
        if not isinstance(value, ReportedColumn):
            return record.sha256 == value.sha256
        column = record.columns.get(value.column)
        same_rows = record.ids_sha256 == value.ids_sha256
        return same_rows and column is not None and column.sha256 == value.sha256

    for record in _candidates(services, project, value.dataset):
        if holds(record):
            named = {"column": value.column} if isinstance(value, ReportedColumn) else {}
            return {"dataset": record.id, **named}
    what = f"a column `{value.column}` of " if isinstance(value, ReportedColumn) else ""
    raise UnknownDataset(
        f"`inputs/{role}` is gone: no dataset {value.dataset}, and none with {what}sha256 "
        f"{value.sha256}."
    )


def _candidates(services: Services, project: str, dataset: str) -> Iterator[DatasetRecord]:
    """The dataset of this id first, then all there are."""
    with suppress(UnknownDataset, DamagedDataset):
        yield services.datasets.record(project, dataset)
    cursor = None
    while True:
        page = services.datasets.page(project, PER_PAGE, cursor)
        yield from page.items
        if (cursor := page.next_cursor) is None:
            return


def verify(services: Services, project: str, data: bytes) -> Verification:
    """
    Compute the report again on the data it names, and compare everything it says.

    `services` keep the datasets and nothing yet of reports: a stored one must not answer.
    """
    body, report = read_report(data)
    request = {
        "kind": report.kind,
        "inputs": stored_inputs(services, project, report),
        "params": body["params"],
        "seed": report.seed,
        "cache": False,
    }
    job = submit(services, project, parse_request(request))
    perform(services, job.id)
    again = report_bytes(services, project, job.id)
    return compare(body, report, json.loads(again), load_report(again))


def compare(
    body: Mapping[str, Any], report: ReportBase, other: Mapping[str, Any], again: ReportBase
) -> Verification:
    """Where two reports of one request part; each is given as JSON and typed."""
    same_place = report.environment == again.environment
    comparison = _Comparison(
        relative=0.0 if same_place else RELATIVE,
        rounding=frozenset() if same_place else frozenset(_rounding(again.results, "/results")),
        defaults=frozenset(_filled_in(body, report.model_dump(mode="json"), "")),
    )
    keys = [key for key in other if key not in NOT_COMPARED]
    if any(at.startswith("/params/") for at in comparison.defaults):
        keys.remove("request_digest")  # it covers every parameter there is today
    comparison.look({key: body[key] for key in keys}, {key: other[key] for key in keys}, "")
    own = _digest_of(body)
    if body["digest"] != own:
        comparison.differ("/digest", body["digest"], own)
    elif same_place and own != again.digest and not (comparison.found or comparison.added):
        comparison.differ("/digest", own, again.digest)
    return Verification(
        same_place, again.digest, comparison.found, comparison.added, comparison.exempt
    )


def _digest_of(body: Mapping[str, Any]) -> str:
    """The digest that belongs to what a report says, whatever it says of its digest."""
    content = {"request_digest": body["request_digest"], "results": body["results"]}
    return hashlib.sha256(canonical(content)).hexdigest()


def _rounding(value: Any, at: str) -> Iterator[str]:
    """Places of all numbers that rounding decides."""
    if isinstance(value, BaseModel):
        for one in stated(value):
            here = at + pointer_to(one.key)
            if one.declared.get("by_rounding"):
                yield here
            else:
                yield from _rounding(one.value, here)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _rounding(one, at + pointer_to(key))
    elif isinstance(value, list):
        for i, one in enumerate(value):
            yield from _rounding(one, at + pointer_to(i))


def _filled_in(body: Any, filled: Any, at: str) -> Iterator[str]:
    """Places a report leaves out, and which a default stands for."""
    if isinstance(body, dict) and isinstance(filled, dict):
        for key, value in filled.items():
            here = at + pointer_to(key)
            if key in body:
                yield from _filled_in(body[key], value, here)
            else:
                yield here
    elif isinstance(body, list) and isinstance(filled, list):
        for i, (one, value) in enumerate(zip(body, filled, strict=True)):
            yield from _filled_in(one, value, at + pointer_to(i))


class _Comparison:
    """Walks two JSON values side by side."""

    def __init__(self, relative: float, rounding: frozenset[str], defaults: frozenset[str]) -> None:
        self._relative, self._rounding = relative, rounding
        self.defaults = defaults
        self.found: list[Difference] = []
        self.added: list[str] = []
        self.exempt = 0

    def differ(self, at: str, reported: Any, recomputed: Any) -> None:
        self.found.append(Difference(at, reported, recomputed))

    def look(self, old: Any, new: Any, at: str) -> None:
        if isinstance(old, dict) and isinstance(new, dict):
            self._objects(old, new, at)
        elif isinstance(old, list) and isinstance(new, list):
            for i in range(max(len(old), len(new))):
                here = at + pointer_to(i)
                if i < min(len(old), len(new)):
                    self.look(old[i], new[i], here)
                else:
                    self.differ(here, _at(old, i), _at(new, i))
        elif not self._alike(old, new):
            self.differ(at, old, new)

    def _objects(self, old: dict[str, Any], new: dict[str, Any], at: str) -> None:
        for key in dict.fromkeys([*old, *new]):
            here = at + pointer_to(key)
            if key == "dataset" and at.startswith("/inputs/"):
                continue  # the same content may have another id
            if key == "undefined":
                reasons = {name: why for name, why in new.get(key, {}).items() if name in old}
                self.look(old.get(key, {}), reasons, here)
            elif here in self.defaults:
                self.added.append(here)
            elif here in self._rounding and key in old:
                self.exempt += old[key] != new[key]
            elif key not in old or key not in new:
                self.differ(here, old.get(key, GONE), new.get(key, GONE))
            else:
                self.look(old[key], new[key], here)

    def _alike(self, old: Any, new: Any) -> bool:
        if isinstance(old, bool) or isinstance(new, bool):
            return old is new
        if isinstance(new, float) and isinstance(old, (int, float)):
            return math.isclose(old, new, rel_tol=self._relative)  # JSON may write 1.0 as 1
        return bool(old == new)


def _at(values: list[Any], i: int) -> Any:
    return values[i] if i < len(values) else GONE
