"""Neighbour stability: do the neighbours survive storage and arithmetic?"""

from __future__ import annotations

from service.checks.neighbour_stability.check import neighbour_stability

__all__ = ["neighbour_stability"]
