"""Everything operations need: ports, and the numbers an operator sets."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from service.allowance import Quotas
from service.errors import SourceDenied
from service.formats import Limits
from service.ports import (
    Baselines,
    Claims,
    Datasets,
    Gates,
    Jobs,
    Opened,
    Parts,
    Queue,
    Rates,
    Reports,
    Sources,
    Tell,
)
from service.source_reference import Reference


class NoSources:
    """A service nobody has named a connection for."""

    def refuse(self, project: str, reference: Reference) -> None:
        raise SourceDenied("This service reads no sources; upload the rows.")

    def open(
        self, project: str, reference: Reference, tell: Tell
    ) -> AbstractContextManager[Opened]:
        raise SourceDenied("This service reads no sources; upload the rows.")


@dataclass(frozen=True)
class Services:
    """Everything operations need: ports and the numbers an operator sets."""

    datasets: Datasets
    reports: Reports
    jobs: Jobs
    gates: Gates
    claims: Claims
    rates: Rates
    queue: Queue
    parts: Parts
    baselines: Baselines
    sources: Sources = field(default_factory=NoSources)
    limits: Limits = field(default_factory=Limits)
    quotas: Quotas = field(default_factory=Quotas)
    threads: int = 1
    deadline_s: int = 3600
    queue_depth: int = 10_000
    attempts: int = 3
    outages: tuple[type[Exception], ...] = ()
    """What the parts raise when they do not answer."""
    pauses_s: tuple[float, ...] = (1.0, 5.0, 15.0)
    """Before a job that met an outage is run again."""
