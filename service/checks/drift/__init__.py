"""Drift: a new batch against a baseline, unpaired."""

from __future__ import annotations

from service.checks.drift.check import drift

__all__ = ["drift"]
