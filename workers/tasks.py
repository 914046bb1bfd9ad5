"""What a queued job runs: one string in, the operations do the rest."""

from __future__ import annotations

import logging

from service import logs
from service.operations import perform as perform_job
from service.settings import Settings
from service.wiring import build


def perform(job_id: str) -> None:
    """Run a job; called by RQ in a process of its own."""
    settings = Settings.read()
    logs.configure(logging.getLevelNamesMapping()[settings.log_level.upper()])
    perform_job(build(settings), job_id)
