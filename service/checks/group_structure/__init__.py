"""Group structure: dispersion between and within groups, in one model or several."""

from __future__ import annotations

from service.checks.group_structure.check import group_structure

__all__ = ["group_structure"]
