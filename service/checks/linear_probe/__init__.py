"""Linear probe: what a classifier recovers."""

from __future__ import annotations

from service.checks.linear_probe.check import linear_probe

__all__ = ["linear_probe"]
