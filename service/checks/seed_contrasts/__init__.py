"""Seed contrasts: differences of training runs that share their seeds."""

from __future__ import annotations

from service.checks.seed_contrasts.check import seed_contrasts

__all__ = ["seed_contrasts"]
