"""Cosine floor: what unrelated pairs score where matched pairs score what they do."""

from __future__ import annotations

from service.checks.cosine_floor.check import cosine_floor
from service.checks.cosine_floor.declared import CosineFloorParams

__all__ = ["CosineFloorParams", "cosine_floor"]
