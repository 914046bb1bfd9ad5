"""Retrieval: does the right item come back?"""

from __future__ import annotations

from service.checks.retrieval.check import retrieval

__all__ = ["retrieval"]
