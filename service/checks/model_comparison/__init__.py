"""Model comparison: how far models agree about the same rows."""

from __future__ import annotations

from service.checks.model_comparison.check import model_comparison

__all__ = ["model_comparison"]
