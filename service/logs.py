"""Structured logs on standard error: JSON lines for a service, nothing but warnings for a command."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from service.redaction import hidden


def _hide(logger: Any, method: str, line: Any) -> str:
    """Whatever a line says, no credential."""
    return hidden(str(line))


def configure(level: int = logging.INFO) -> None:
    """Call once per process, before anything is logged."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
            _hide,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
