"""A part of a job: the arrays of some blocks, and what else its computing has brought to light."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import numpy as np

from service.blocks import Arrays
from service.context import Context, Warned
from service.references import Model
from service.report import Environment, environment

NOTES = "notes"
ARRAY = "array."
"""What the names of arrays start with in a file."""


class Notes(Model):
    """What a part adds to the report beside its arrays."""

    warnings: list[Warned]
    scope: list[str]
    stages: dict[str, float]
    effort: dict[str, int]
    run_s: float
    environment: Environment

    @classmethod
    def of(cls, context: Context, run_s: float) -> Notes:
        return cls(
            warnings=context.warnings,
            scope=context.scope,
            stages=context.stages,
            effort=context.effort,
            run_s=run_s,
            environment=environment(),
        )

    def add_to(self, context: Context) -> None:
        """As if the part had been computed with this context."""
        for warned in self.warnings:
            context.warn(warned.code, warned.message, warned.where)
        context.scope += [line for line in self.scope if line not in context.scope]
        for stage, seconds in self.stages.items():
            context.stages[stage] = context.stages.get(stage, 0.0) + seconds
        for what, count in self.effort.items():
            context.spent(what, count)


@dataclass(frozen=True)
class Part:
    """Arrays of some blocks, with notes."""

    notes: Notes
    arrays: Arrays

    def to_bytes(self) -> memoryview:
        """A .npz file without pickles."""
        file = io.BytesIO()
        notes = np.frombuffer(self.notes.model_dump_json().encode(), dtype=np.uint8)
        arrays = {ARRAY + name: array for name, array in self.arrays.items()}
        np.savez(file, allow_pickle=False, **{NOTES: notes}, **arrays)
        return file.getbuffer()


@contextmanager
def reading(file: IO[bytes]) -> Iterator[Part]:
    """A part whose arrays are read from an open file when they are asked for."""
    with np.load(file, allow_pickle=False) as stored:
        notes = Notes.model_validate_json(stored[NOTES].tobytes())
        yield Part(notes, _Stored(stored))


class _Stored(Mapping[str, np.ndarray]):
    def __init__(self, stored: Mapping[str, np.ndarray]) -> None:
        self._stored = stored

    def __getitem__(self, name: str) -> np.ndarray:
        return self._stored[ARRAY + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(ARRAY) for name in self._stored if name != NOTES)

    def __len__(self) -> int:
        return len(self._stored) - 1


def shared_environment(each: Iterable[Environment]) -> Environment:
    """One description of several machines: values that differ stand side by side."""
    dumped = [one.model_dump() for one in each]
    return Environment.model_validate(
        {field: "; ".join(sorted({one[field] for one in dumped})) for field in dumped[0]}
    )
