"""Files that the inputs of a request name, and the datasets they become."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay_client.payload import Array

Json = dict[str, Any]

TABLE_OPTIONS = ("vector_column", "id_column")


@dataclass(frozen=True)
class File:
    """A file to upload, and the columns its reader has to be told."""

    path: Path
    vector_column: str | None = None
    id_column: str | None = None

    @property
    def options(self) -> dict[str, str]:
        """The columns that are told."""
        named = {key: getattr(self, key) for key in TABLE_OPTIONS}
        return {key: value for key, value in named.items() if value is not None}


def arrays(inputs: Any) -> list[Array]:
    """The NumPy arrays of two dimensions among the inputs, each once."""
    found: dict[int, Array] = {}

    def note(array: Array) -> None:
        if len(array.shape) != 1:
            found[id(array)] = array

    _exchanged(inputs, note)
    return list(found.values())


def without_arrays(inputs: Any, datasets: Mapping[int, str]) -> Any:
    """The inputs with arrays as the datasets they were stored as; of one dimension, as columns."""

    def stored(array: Array) -> Json:
        if len(array.shape) == 1:
            return {"values": array.tolist()}
        return {"dataset": datasets[id(array)]}

    return _exchanged(inputs, stored)


def _exchanged(value: Any, replace: Callable[[Array], Any]) -> Any:
    if isinstance(value, Array):
        return replace(value)
    if isinstance(value, Mapping):
        return {key: _exchanged(part, replace) for key, part in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], (Mapping, Array)):
        return [_exchanged(part, replace) for part in value]
    return value


def whole_files(inputs: Any, base: Path) -> list[tuple[str, Path]]:
    """The files that are named without a column, each with the role it is given to."""
    found: list[tuple[str, Path]] = []
    for role, value in inputs.items():

        def note(one: Json, role: str = role) -> Json:
            if "column" not in one:
                found.append((role, _located(one, base).path))
            return one

        _replaced(value, note)
    return found


def spelled_out(inputs: Any, base: Path) -> Any:
    """The same; a column of a table names the columns its rows are read by, so that both are one."""
    rows: dict[Path, Json] = {}

    def note(value: Json) -> Json:
        if "column" not in value:
            rows.setdefault(_located(value, base).path, _located(value, base).options)
        return value

    def complete(value: Json) -> Json:
        told = rows.get(_located(value, base).path, {}) if "column" in value else {}
        return {**told, **value}

    _replaced(inputs, note)
    return _replaced(inputs, complete)


def files(inputs: Any, base: Path) -> dict[File, str]:
    """Every distinct file the inputs name, in order, each with the first role it is given to."""
    found: dict[File, str] = {}
    for role, value in inputs.items():

        def note(one: Json, role: str = role) -> Json:
            found.setdefault(_located(one, base), role)
            return one

        _replaced(value, note)
    return found


def resolve(inputs: Any, base: Path, datasets: Mapping[File, str]) -> Any:
    """The inputs with each file replaced by the dataset it was stored as."""

    def stored(value: Json) -> Json:
        rest = {key: part for key, part in value.items() if key not in ("path", *TABLE_OPTIONS)}
        return {"dataset": datasets[_located(value, base)], **rest}

    return _replaced(inputs, stored)


def _replaced(value: Any, replace: Callable[[Json], Json]) -> Any:
    if isinstance(value, dict):
        if "source" in value:  # a path there is one of the server's
            return value
        if isinstance(value.get("path"), str):
            return replace(value)
        return {key: _replaced(part, replace) for key, part in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_replaced(part, replace) for part in value]
    return value


def _located(value: Json, base: Path) -> File:
    told = [value.get(key) for key in TABLE_OPTIONS]
    return File((base / str(value["path"])).resolve(), *told)
