"""Which rows are fitted on, which choose the penalty, and which are tested, from labels alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.check import Shapes
from service.checks.linear_probe.declared import LinearProbeParams
from service.dataset import Labels
from service.errors import Fault, InvalidRequest, TooFewGroups, TooFewRows
from service.numerics.holdout import held_out
from service.numerics.probe import most_codes
from service.references import Label

Codes = NDArray[np.int64]
Columns = Mapping[str, Labels]
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Dealt:
    """
    The part of each row, and its label among all labels of train and test rows.

    Attributes
    ----------
    levels : labels; those of train and test rows alike have one place
    train : (n,) rows of `rows` that the final classifier is fitted on
    validation : (n,) bool over `train`: those that choose the penalty
    codes : (n,) places of the labels of `train`
    test : (m,) rows of `rows`, or of `test` where it is given
    test_codes, test_units : (m,) places of their labels, and the unit of each
    by_group : whether units are groups
    counted : places of labels with enough test rows and a train row, ascending
    straddling : groups with both train and test rows; None unless groups of both are given
    """

    levels: tuple[Label, ...]
    train: Codes
    validation: NDArray[np.bool_]
    codes: Codes
    test: Codes
    test_codes: Codes
    test_units: Codes
    by_group: bool
    counted: Codes
    straddling: int | None


def dealt(columns: Columns, shapes: Shapes, params: LinearProbeParams, seed: int) -> Dealt:
    """
    Deal the rows out.

    Parameters
    ----------
    columns : those given of `labels`, `test_labels`, `split`, `groups` and `test_groups`
    shapes : of `rows` and, where it is given, `test`
    params : shares to hold out, and what a label needs to count
    seed : of the rows drawn where no split is given
    """
    apart = "test" in shapes
    labels = columns["labels"]
    units = _units(columns.get("groups"), len(labels))
    train, validation, test = _parts(columns, units, apart, params, seed)
    levels = dict(zip(_typed(labels), range(len(labels.levels)), strict=True))
    if apart:
        named = columns["test_labels"]
        places = [levels.setdefault(key, len(levels)) for key in _typed(named)]
        test_codes = np.array(places, np.int64)[named.codes]
        grouping = columns.get("test_groups")
        test_units = _units(grouping, len(named))
        test = np.arange(len(named))
    else:
        grouping = columns.get("groups")
        test_codes, test_units = labels.dense[test], units[test]
    codes = labels.dense[train]
    _refuse_few(codes, validation, params)
    _refuse_many(len(train), len(np.unique(codes)), shapes["rows"][1])
    support = np.bincount(test_codes, minlength=len(levels))
    trained = np.bincount(codes, minlength=len(levels))
    return Dealt(
        levels=tuple(value for _, value in levels),
        train=train,
        validation=validation,
        codes=codes,
        test=test,
        test_codes=test_codes,
        test_units=test_units,
        by_group=grouping is not None,
        counted=np.flatnonzero((support >= params.min_support) & (trained > 0)),
        straddling=_straddling(columns, train, test, apart),
    )


def _typed(labels: Labels) -> list[tuple[type, Label]]:
    """Levels that 1, true and "1" stay three among."""
    return [(type(level), level) for level in labels.levels]


def _units(groups: Labels | None, n: int) -> Codes:
    return np.arange(n) if groups is None else groups.dense


def _parts(
    columns: Columns, units: Codes, apart: bool, params: LinearProbeParams, seed: int
) -> tuple[Codes, NDArray[np.bool_], Codes]:
    """Train rows, those of them that choose the penalty, and test rows."""
    codes = columns["labels"].dense
    if (split := columns.get("split")) is not None:
        marked = {name: _marked(split, name) for name in SPLITS}
        _refuse_marks(split, marked, apart)
        train = np.flatnonzero(marked["train"] | marked["validation"])
        test = np.flatnonzero(marked["test"])
        validation = marked["validation"][train]
    else:
        out = np.zeros(len(codes), dtype=bool)
        if not apart:
            out = held_out(codes, units, params.test_share, seed, "linear_probe test")
            if not out.any():
                raise TooFewGroups(
                    "Each label has rows of one group only: no test rows can be held out.",
                    [Fault(pointer="/inputs/labels", message="give `test`, or a `split` column")],
                )
        train, test = np.flatnonzero(~out), np.flatnonzero(out)
        validation = np.zeros(len(train), dtype=bool)
    if params.strength is not None:
        validation = np.zeros(len(train), dtype=bool)
    elif not validation.any():
        share, purpose = params.validation_share, "linear_probe validation"
        validation = held_out(codes[train], units[train], share, seed, purpose)
    return train, validation, test


def _marked(split: Labels, name: str) -> NDArray[np.bool_]:
    place = split.levels.index(name) if name in split.levels else -2
    return np.asarray(split.codes == place)


def _refuse_marks(split: Labels, marked: dict[str, NDArray[np.bool_]], apart: bool) -> None:
    if unknown := [str(level)[:40] for level in split.levels if level not in SPLITS]:
        raise InvalidRequest(
            f"`split` holds `{unknown[0]}`.",
            [Fault(pointer="/inputs/split", message="use `train`, `validation` and `test`")],
        )
    for name in ("train",) if apart else ("train", "test"):
        if not marked[name].any():
            raise TooFewRows(
                f"`split` marks no row `{name}`.",
                [Fault(pointer="/inputs/split", message=f"mark some rows `{name}`")],
            )


def _refuse_few(codes: Codes, validation: NDArray[np.bool_], params: LinearProbeParams) -> None:
    if len(np.unique(codes)) < 2:
        raise TooFewGroups(
            "All train rows have the same label.",
            [Fault(pointer="/inputs/labels", message="give train rows of two labels or more")],
        )
    if params.strength is not None:
        return
    if not validation.any():
        raise TooFewGroups(
            "Each label has train rows of one group only: nothing can be held out to choose `c` by.",
            [Fault(pointer="/params/c", message="give `c`, or mark rows `validation` in `split`")],
        )
    if len(np.unique(codes[~validation])) < 2:
        raise TooFewGroups(
            "All train rows that are not held out have the same label.",
            [Fault(pointer="/params/c", message="give `c`, or mark other rows `validation`")],
        )


def _refuse_many(n: int, labels: int, d: int) -> None:
    if labels > (most := most_codes(n, d)):
        raise InvalidRequest(
            f"{labels} labels of {n} train rows of {d} dimensions are too many to fit at once.",
            [
                Fault(
                    pointer="/inputs/labels",
                    message=f"use at most {most} labels, or fewer train rows",
                    count=labels,
                )
            ],
        )


def _straddling(columns: Columns, train: Codes, test: Codes, apart: bool) -> int | None:
    """Groups that have rows on both sides."""
    groups = columns.get("groups")
    others = columns.get("test_groups") if apart else groups
    if groups is None or others is None:
        return None
    fitted = {_typed(groups)[code] for code in np.unique(groups.codes[train])}
    return len(fitted & {_typed(others)[code] for code in np.unique(others.codes[test])})
