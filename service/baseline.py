"""Baselines: names of approved datasets, with their history."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from service.redaction import KEPT
from service.references import Model

BASELINE_NAME = r"^[a-z0-9][a-z0-9_-]{0,63}$"
BaselineName = Annotated[str, Field(pattern=BASELINE_NAME), KEPT]


class Baseline(Model):
    """What a baseline names, or named."""

    name: str
    dataset: str
    """Id of the approved dataset."""
    version: int
    """Counts what the name has stood for, from 1."""
    gate: str | None
    """Gate run it was promoted by; null where it was set by hand."""
    set_at: datetime
