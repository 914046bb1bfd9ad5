"""What one key may ask for in a minute, and what one project may hold."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_S = 60


@dataclass(frozen=True)
class Quotas:
    """What an operator allows."""

    uploads_per_minute: int = 1_200
    submits_per_minute: int = 6_000
    """Everything that starts, stops or changes something, uploads aside."""
    polls_per_minute: int = 30_000
    project_jobs: int = 5_000
    """Jobs of one project that have not ended: below the depth of the queue, so that others fit."""
    project_bytes: int = 1 << 38
    """Size of all datasets of one project."""
    dataset_retention_s: int | None = None
    """After so long without a use a dataset that nothing needs is deleted; None keeps it."""


@dataclass(frozen=True)
class Allowance:
    """The state of a bucket that holds a minute's requests and fills at an even pace."""

    granted: bool
    left: int
    """Requests that could follow at once."""
    full_s: float
    """Until it is full again."""
    next_s: float
    """Until one more request is granted; 0 if one is left."""

    @classmethod
    def of(cls, granted: bool, tokens: float, per_minute: int) -> Allowance:
        pace = per_minute / WINDOW_S
        return cls(
            granted, int(tokens), (per_minute - tokens) / pace, max(0.0, (1 - tokens) / pace)
        )
