"""`assay verify`: a report recomputed from the datasets of the object store, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from service.errors import UnknownDataset
from service.settings import Settings
from service.storage.memory import memory_services
from service.storage.objects import ObjectDatasets, projects
from service.verifying import GONE, RELATIVE, Verification, verify
from workers.watched import Tell, WatchedJobs

SHOWN_DIFFERENCES = 20
SHOWN_CHARACTERS = 60


def verified(settings: Settings, data: bytes, project: str | None, tell: Tell) -> Verification:
    """What recomputing gives, in this project, or in the first that has the data."""
    missing = UnknownDataset(
        f"The store at {settings.store} holds nothing; ASSAY_STORE or ASSAY_HOME names another."
    )
    if not (known := projects(settings.store)):
        raise missing
    datasets = ObjectDatasets(settings.store)
    for name in known if project is None else [project]:
        services = memory_services(
            datasets=datasets,
            jobs=WatchedJobs(tell),
            threads=settings.threads,
            deadline_s=settings.deadline_s,
        )
        try:
            return verify(services, name, data)
        except UnknownDataset as error:
            missing = error
    raise missing


def lines(found: Verification) -> Iterator[str]:
    """The outcome for people."""
    if found.equal:
        yield f"equal: recomputing gives digest {found.digest}"
    else:
        some = len(found.differences)
        yield f"differs at {some} place{'s' if some > 1 else ''}; recomputed digest {found.digest}"
    for one in found.differences[:SHOWN_DIFFERENCES]:
        if one.pointer == "/digest":
            yield f"  /digest: {_shown(one.reported)} is not that of what the report says"
            continue
        yield f"  {one.pointer}: reported {_shown(one.reported)}, recomputed {_shown(one.recomputed)}"
    if (more := len(found.differences) - SHOWN_DIFFERENCES) > 0:
        yield f"  ... {more} more; --json lists all"
    if not found.same_place:
        yield (
            f"the environment is another: integers and texts must be equal, floats to {RELATIVE:g} of "
            f"themselves; {found.exempt} that rounding decides differ, as they may"
        )
    if found.added:
        yield f"not in the report, which is older than them: {', '.join(found.added)}"


def as_json(found: Verification) -> dict[str, Any]:
    """The outcome for programs; a side of a difference that is not there is left out."""
    differences = [
        {key: value for key, value in vars(one).items() if value is not GONE}
        for one in found.differences
    ]
    return {**asdict(found), "differences": differences, "equal": found.equal}


def _shown(value: Any) -> str:
    if value is GONE:
        return "nothing"
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
