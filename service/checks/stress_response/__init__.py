"""Stress response: which instrument reacts to which damage?"""

from __future__ import annotations

from service.checks.stress_response.check import stress_response

__all__ = ["stress_response"]
