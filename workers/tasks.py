"""What a queued step runs: strings and numbers in, the operations do the rest."""

from __future__ import annotations

import logging

from service import logs, operations
from service.operations import Services
from service.settings import Settings
from service.wiring import build


def perform(job_id: str) -> None:
    """Run a job; called by RQ in a process of its own, like the others."""
    operations.perform(_services(), job_id)


def fetch(job_id: str) -> None:
    """Import the sources of a job."""
    operations.fetch(_services(), job_id)


def perform_shard(job_id: str, shard: int) -> None:
    """Compute one part of a job."""
    operations.perform_shard(_services(), job_id, shard)


def combine(job_id: str) -> None:
    """Make a report from the parts of a job."""
    operations.combine(_services(), job_id)


def _services() -> Services:
    settings = Settings.read()
    logs.configure(logging.getLevelNamesMapping()[settings.log_level.upper()])
    return build(settings)
