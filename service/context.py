"""What a check may use besides its inputs, and what it says besides its results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from service.references import Model


class Warned(Model):
    """Something a reader of the report should know."""

    code: str
    message: str
    where: str
    """Input or result it is about."""


@dataclass
class Context:
    """What a check may use besides its inputs: a seed, threads, and ways to say how far it is."""

    seed: int = 0
    threads: int = 1
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None
    tell: Callable[[Warned], None] = lambda warned: None
    """Takes each warning when it is new."""
    warnings: list[Warned] = field(default_factory=list)
    scope: list[str] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)
    effort: dict[str, int] = field(default_factory=dict)
    """What it took, in counts that may differ where results do not."""

    def spent(self, what: str, count: int) -> None:
        """Add to a count of what the work took."""
        self.effort[what] = self.effort.get(what, 0) + count

    def warn(self, code: str, message: str, where: str) -> None:
        """Say something once, however many parts of the work say it."""
        warned = Warned(code=code, message=message, where=where)
        if warned not in self.warnings:
            self.warnings.append(warned)
            self.tell(warned)

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """Time a part of the work; the yielded function reports how much of it is done."""
        started = time.perf_counter()
        self.progress(name, 0, 1)
        yield lambda done, total: self.progress(name, done, total)
        self.stages[name] = self.stages.get(name, 0.0) + time.perf_counter() - started
