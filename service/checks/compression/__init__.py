"""Compression: what fewer dimensions or bits lose."""

from __future__ import annotations

from service.checks.compression.check import compression

__all__ = ["compression"]
