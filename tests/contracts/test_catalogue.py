"""
What every check of the catalogue owes, whatever it computes.

Inputs are built from a check's declared slots, so a new check is covered when its line is added. Two
tables hold what cannot be guessed: `COLUMNS` says how to fill a column that may not hold any six
labels, and `ON_UNIT_ROWS` names the kernel of a measure that is computed on unit rows and unchanged
by an isometry of *them*, which inputs that are normalised again cannot reach.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from scipy.stats import ortho_group

import service.checks
import service.imported
import service.preparing
from service.check import ROWS_WARNINGS, Check, Context, Params, Slot
from service.checks import CATALOGUE
from service.dataset import Dataset, Labels
from service.errors import AssayError
from service.numerics.moments import Units, deviations
from service.numerics.rows import Stored
from service.relevance import Relevance

Array = NDArray[Any]
Made = dict[str, Array]
ROWS, D = 14, 5
KEY = re.compile(r"[A-Za-z0-9_@]+")
MAPS = ("row_scale", "uniform_scale", "orthogonal", "isometry", "similarity", "monotone")


def dispersion(rows: Array) -> float:
    return float(deviations(Stored(rows), Units.rows(len(rows)), 1).squares.sum() / len(rows))


ON_UNIT_ROWS: dict[tuple[str, str], Callable[[Array], float]] = {
    ("geometry", "dispersion_v"): dispersion,
}

COLUMNS: dict[tuple[str, str], Callable[[int], Any]] = {
    ("drift", "batch_units"): lambda i: f"other {i % 7}",
    ("linear_probe", "split"): lambda i: ("train", "test", "validation")[i // 6 % 3],
    ("group_structure", "strata"): lambda i: i % 2,
    ("group_structure", "units"): lambda i: i % 12,
    ("group_structure", "levels"): lambda i: i // 6 % 2,
    ("group_structure", "response"): lambda i: (i * i) % 7,
}
SMALL: dict[str, Any] = {
    "k": 3, "min_support": 2, "ks": [1, 3], "dims": [4, 2], "severities": [0.5, 0.9],
    "contrasts": [{"a": "g1", "b": "g0"}], "metrics": ["score", "loss"], "correlation": 0.3,
}  # fmt: skip
TABLES: dict[tuple[str, str], dict[str, list[Any]]] = {
    ("seed_contrasts", "runs"): {
        "condition": [f"g{i % 3}" for i in range(12)], "seed": [i // 3 for i in range(12)],
        "score": [(7 * i) % 5 for i in range(12)], "loss": [1.5] * 12,
    },
}  # fmt: skip
"""What a role that takes a table is given."""

checks = pytest.mark.parametrize("check", CATALOGUE, ids=[check.kind for check in CATALOGUE])
seeds = st.integers(0, 10**6)


def names_of(slot: Slot) -> list[str]:
    """Names of the arrays a slot holds: its own, or two models as `slot.model` or `slot.model.part`."""
    if slot.most is None:
        return [slot.name]
    ends = [""] if slot.parts == ("vectors",) else [f".{part}" for part in slot.parts]
    return [f"{slot.name}.{model}{end}" for model in ("one", "two") for end in ends]


def row_sets(check: Check) -> dict[str, list[Slot]]:
    """The vector slots of each row set."""
    found: dict[str, list[Slot]] = {}
    for slot in check.slots:
        if slot.kind == "vectors":
            for part in slot.parts:
                found.setdefault(slot.part(part).rows, []).append(slot.part(part))
    return found


def put(inputs: dict[str, Any], name: str, rows: Array) -> None:
    """Put an array where its name says."""
    *outer, last = name.split(".")
    for key in outer:
        inputs = inputs.setdefault(key, {})
    inputs[last] = Dataset(rows)


def fewest(check: Check, slot: Slot) -> int:
    """Rows a slot needs with the parameters used here."""
    return slot.fewest(check.params(**few(check)))


def make(check: Check, rng: np.random.Generator, n: int = ROWS, optional: bool = True) -> Made:
    """Random vectors for every slot: paired slots hold noisy copies of the same rows."""
    made: Made = {}
    for number, slots in enumerate(row_sets(check).values()):
        count = max(n + 3 * number, *(fewest(check, slot) for slot in slots))
        base = rng.normal(0.4, 1, size=(count, D)) * np.geomspace(1.5, 0.5, D)
        for slot in slots:
            if slot.required or optional:
                for name in names_of(slot):
                    made[name] = base + 0.4 * rng.normal(size=base.shape)
    return made


def counts(check: Check, made: Made) -> dict[str, int]:
    """Rows of each row set that is there."""
    return {
        slot.rows: len(made[name])
        for slots in row_sets(check).values()
        for slot in slots
        for name in names_of(slot)
        if name in made
    }


def columns(check: Check, made: Made) -> dict[str, list[Any]]:
    """Labels for every column of a row set that is there: six, unless `COLUMNS` says otherwise."""
    sizes = counts(check, made)
    return {
        slot.name: [
            some_documents(i, sizes[searched(check, slot.among)])
            if slot.among is not None
            else COLUMNS.get((check.kind, slot.name), lambda i: f"g{i % 6}")(i)
            for i in range(sizes[slot.rows])
        ]
        for slot in check.slots
        if slot.kind not in ("vectors", "table") and slot.rows in sizes
    }


def searched(check: Check, role: str) -> str:
    """The row set of a role, or of one matrix of its models: `models.documents`."""
    name, _, part = role.partition(".")
    return part or next(slot.rows for slot in check.slots if slot.name == name)


def some_documents(i: int, n: int) -> list[tuple[int, float]]:
    """Two documents of different grades; the same for queries of one group of six."""
    first = (i % 6) % (n // 2)
    return [(2 * first, 1.0), (2 * first + 1, 2.0)] if n > 1 else [(0, 1.0)]


def encoded(check: Check, name: str, values: list[Any]) -> Labels | Relevance:
    """A column or a relevance as a check takes it."""
    kinds = {slot.name: slot.kind for slot in check.slots}
    return Relevance.of(values) if kinds[name] == "relevance" else Labels.of(values)


def moved_to(check: Check, name: str, values: list[Any], orders: dict[str, Array]) -> list[Any]:
    """A column in another order of its rows; a relevance in another order of its documents too."""
    slot = next(slot for slot in check.slots if slot.name == name)
    values = [values[i] for i in orders[slot.rows]]
    if slot.among is None:
        return values
    place = np.argsort(orders[searched(check, slot.among)])
    return [[(int(place[row]), grade) for row, grade in some] for some in values]


def required(check: Check, made: Made) -> dict[str, list[Any]]:
    """Only the columns a check cannot do without, of the rows that are there."""
    needed = {slot.name for slot in check.slots if slot.required or slot.always}
    return {name: values for name, values in columns(check, made).items() if name in needed}


def variants(check: Check, made: Made) -> list[dict[str, list[Any]]]:
    """Without and with the optional columns."""
    every = columns(check, made)
    return [required(check, made), every] if every else [{}]


def filled(check: Check, made: Made, labels: dict[str, list[Any]] | None = None) -> Any:
    """Inputs of a check from arrays by slot, or by slot and model; tables are those of `TABLES`."""
    inputs: dict[str, Any] = {}
    for name, rows in made.items():
        put(inputs, name, rows)
    for slot in check.slots:
        if slot.kind == "table":
            found = TABLES[check.kind, slot.name].items()
            inputs[slot.name] = Dataset(None, None, {key: Labels.of(some) for key, some in found})
    for name, values in (labels or required(check, made)).items():
        inputs[name] = encoded(check, name, values)
    return check.inputs(**inputs)


def results(
    check: Check,
    made: Made,
    labels: dict[str, list[Any]] | None = None,
    seed: int = 0,
    threads: int = 1,
    params: dict[str, Any] | None = None,
    context: Context | None = None,
) -> Any:
    context = context or Context(seed=seed, threads=threads)
    params = {**few(check), **(params or {})}
    found = check.run(context, filled(check, made, labels), check.params(**params))
    assert {warned.code for warned in context.warnings} <= set(check.codes)
    return found


def few(check: Check) -> dict[str, Any]:
    """
    Small numbers where a check asks for many resamples; one thousand teach no more here.

    Those of `SMALL` are such that eight rows of five dimensions are enough.
    """
    fields = check.params.model_fields
    many = {
        name: 39
        for name, info in fields.items()
        if isinstance(info.default, int) and info.default > 50
    }
    return {**many, **{name: SMALL[name] for name in fields if name in SMALL}}


def literals(annotation: Any) -> Iterator[Any]:
    """Every named choice inside a type."""
    for inner in get_args(annotation):
        if get_origin(annotation) is Literal:
            yield inner
        else:
            yield from literals(inner)


def accepted(check: Check, name: str) -> Any:
    """A value other than nothing for a parameter that may be left out."""
    info = check.params.model_fields[name]
    options = [info.annotation, *get_args(info.annotation)]
    choices: list[Any] = [c for o in options if get_origin(o) is Literal for c in get_args(o)]
    lists = [inner for o in options if get_origin(o) is list for inner in get_args(o)]
    choices += [list(literals(inner)) for inner in lists]
    for choice in (*choices, 0.5, 7, "x"):
        try:
            check.params(**{name: choice})
        except ValidationError:
            continue
        return choice
    raise AssertionError(f"no value found for `{name}`")


def switches(check: Check) -> list[dict[str, Any]]:
    """The defaults, each yes-no or named choice turned another way, and everything optional asked."""
    found: list[dict[str, Any]] = [{}]
    for name, info in check.params.model_fields.items():
        if name in Params.model_fields:
            continue
        options = [info.annotation, *get_args(info.annotation)]
        choices = [c for o in options if get_origin(o) is Literal for c in get_args(o)]
        choices += [False, True] if info.annotation is bool else []
        found += [{name: choice} for choice in choices if choice != info.default]
    left_out = [name for name, info in check.params.model_fields.items() if info.default is None]
    asked = {name: accepted(check, name) for name in left_out}
    return [*found, asked] if asked and asked not in found else found


def at(found: Any, path: str) -> list[Any]:
    """
    What dumped results hold under a measure's path, nulls left out.

    Braces stand for any name: of a model, of a pair of models, of a condition, or a k.
    """
    reached = [found]
    for key in path.split("."):
        pattern = re.compile(re.sub(r"\{\w+\}", r"\\w+", key))
        reached = [
            inner
            for value in reached
            for name, inner in value.items()
            if inner is not None and name != "undefined" and pattern.fullmatch(name)
        ]
    return reached


def shown(found: Any, path: str) -> list[float]:
    """Every number under a measure's path, estimates with their bounds."""
    return [number for value in at(found, path) for number in numbers(value)]


def numbers(value: Any) -> list[float]:
    """A measure as numbers: the scalar, or estimate and bounds."""
    if not isinstance(value, dict):
        return [float(value)]
    interval = value["interval"] or {}
    return [
        float(number)
        for number in (value["estimate"], interval.get("low"), interval.get("high"))
        if number is not None
    ]


def walk(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a JSON value."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner)


def assert_well_formed(check: Check, found: Any) -> None:
    """JSON that can be read back, allowed keys, finite numbers, a reason beside every null."""
    text = found.model_dump_json()
    assert check.results.model_validate_json(text) == found
    assert check.results.model_validate_json(text).model_dump_json() == text
    data = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    for thing in walk(data):
        assert all(KEY.fullmatch(key) for key in thing)
        nulls = {key for key, value in thing.items() if value is None}
        assert set(thing.get("undefined", {})) == nulls
        assert thing.get("undefined") != {}
        for reason in thing.get("undefined", {}).values():
            assert re.fullmatch(r"[a-z0-9_]+", reason["code"])
            assert reason["message"].endswith(".")
    for measure in check.measures:
        estimates = [number for value in at(data, measure.path) for number in numbers(value)[:1]]
        low, high = (
            -math.inf if measure.low is None else measure.low,
            math.inf if measure.high is None else measure.high,
        )
        slack = 1e-6  # RankMe's epsilon reads .9999999 for one row
        assert all(low - slack <= value <= high + slack for value in estimates), measure.path
    assert all(line.endswith(".") and len(line) < 500 for line in found.readings())


@checks
def test_a_check_is_documented(check: Check) -> None:
    """Every description is there, in sentences; every measure says what it is and its range."""
    assert re.fullmatch(r"[a-z][a-z0-9_]*", check.kind)
    assert check.version >= 1
    assert check.title
    assert "\n\n" in check.description
    assert check.scope
    assert all(line.endswith(".") for line in (*check.scope, check.description))
    assert check.sources
    assert all(re.match(r"doi:10\.|arXiv:\d", source) for source in check.sources)
    assert all(slot.description.rstrip().endswith(".") for slot in check.slots)
    for name, info in check.params.model_fields.items():
        assert info.description, name
        assert not info.is_required(), f"`{name}` needs a default"
    assert check.measures
    paths = [measure.path for measure in check.measures]
    assert len(set(paths)) == len(paths)
    for measure in check.measures:
        assert measure.description.rstrip().endswith("."), measure.path
        assert measure.unit
        assert all(KEY.fullmatch(re.sub("[{}]", "", key)) for key in measure.path.split("."))
        assert len(set(measure.invariance)) == len(measure.invariance)
        if measure.low is not None and measure.high is not None:
            assert measure.low < measure.high


@checks
def test_results_hold_no_free_objects(check: Check) -> None:
    """Walks the JSON schema: every object is closed, or holds parts by the name of a model."""
    schema = check.results.model_json_schema(mode="serialization")
    for model in (schema, *schema.get("$defs", {}).values()):
        for thing in walk(model):
            if thing.get("type") == "object" and "properties" in thing:
                assert thing["additionalProperties"] is False
            elif thing.get("type") == "object":
                inner = thing["additionalProperties"]
                assert "$ref" in inner or "additionalProperties" in inner


def test_every_module_of_checks_is_in_the_catalogue_once() -> None:
    """Compared with the files of the package."""
    modules = {info.name for info in pkgutil.iter_modules(service.checks.__path__)}
    kinds = [check.kind for check in CATALOGUE]
    assert sorted(kinds) == sorted(modules)
    assert len(set(kinds)) == len(kinds)
    folder = Path(__file__).parent.parent / "checks"
    assert {f"test_{kind}.py" for kind in kinds} <= {path.name for path in folder.iterdir()}


@checks
def test_every_measure_is_found_where_its_path_says(check: Check) -> None:
    """Compared with a real report: no path leads nowhere, and its shape is the declared one."""
    made = make(check, np.random.default_rng(1))
    data = [
        json.loads(results(check, made, labels, params=params).model_dump_json())
        for labels in variants(check, made)
        for params in switches(check)
    ]
    for measure in check.measures:
        values = [value for found in data for value in at(found, measure.path)]
        assert values, f"`{measure.path}` is null whatever is asked"
        assert {isinstance(value, dict) for value in values} == {measure.shape != "scalar"}


@checks
@pytest.mark.parametrize("optional", [False, True])
def test_runs_and_threads_give_the_same_bytes(
    check: Check, optional: bool, small_blocks: Callable[..., None]
) -> None:
    """Compared byte for byte: two runs, and one, two and three threads over many small blocks."""
    small_blocks(16, 4)
    made = make(check, np.random.default_rng(2), n=24, optional=optional)
    for labels in variants(check, made):
        for params in switches(check):
            texts = {
                results(check, made, labels, 7, threads, params).model_dump_json()
                for threads in ((1, 3) if params else (1, 1, 2, 3))
            }
            assert len(texts) == 1


@checks
@settings(max_examples=8)
@given(seed=seeds, optional=st.booleans())
def test_results_survive_json_with_a_reason_beside_every_null(
    check: Check, seed: int, optional: bool
) -> None:
    """Compared with themselves after JSON; ranges as declared."""
    made = make(check, np.random.default_rng(seed), optional=optional)
    for labels in variants(check, made):
        for params in switches(check):
            assert_well_formed(check, results(check, made, labels, params=params))


@checks
@settings(max_examples=8)
@given(seed=seeds)
def test_the_order_of_rows_moves_nothing_but_what_the_seed_moves(check: Check, seed: int) -> None:
    """Compared with the rows in another order; what another seed moves is sampled and left out."""
    rng = np.random.default_rng(seed)
    made = make(check, rng)
    orders = {name: rng.permutation(count) for name, count in counts(check, made).items()}
    order = {
        name: orders[rows]
        for rows, slots in row_sets(check).items()
        for slot in slots
        for name in names_of(slot)
        if name in made
    }
    moved = {name: rows[order[name]] for name, rows in made.items()}
    for labels in variants(check, made):
        shuffled = {name: moved_to(check, name, values, orders) for name, values in labels.items()}
        before, after, *other_seeds = (
            json.loads(found.model_dump_json())
            for found in (
                results(check, made, labels, seed=0),
                results(check, moved, shuffled, seed=0),
                *(results(check, made, labels, seed=other) for other in (1, 2, 3)),
            )
        )
        compared = 0
        for measure in check.measures:
            one = shown(before, measure.path)
            if all(one == shown(other, measure.path) for other in other_seeds):
                compared += 1
                assert shown(after, measure.path) == pytest.approx(one, rel=1e-8, abs=1e-9), (
                    measure.path
                )
        assert compared >= len(check.measures) / 3


def stacked(check: Check, made: Made) -> Iterator[tuple[list[str], Array]]:
    """Arrays that are compared with one another, under one another, so that one map moves all."""
    several = [slot for slot in check.slots if slot.several]
    for slot in several:
        for model in ("one", "two"):
            names = [f"{slot.name}.{model}.{part}" for part in slot.parts]
            yield names, np.vstack([made[name] for name in names])
    if several:
        return
    needed = [some for some in row_sets(check).values() if any(slot.required for slot in some)]
    names = [name for some in needed for slot in some for name in names_of(slot) if name in made]
    if names:
        yield names, np.vstack([made[name] for name in names])


def unit_of(x: Array) -> Array:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def exponential(z: Array, c: float) -> Array:
    """Unit rows whose cosines are exp(c (s - 1)); equal rows stay equal bit for bit."""
    kinds, place = np.unique(z, axis=0, return_inverse=True)
    values, vectors = np.linalg.eigh(np.exp(c * (kinds @ kinds.T - 1)))
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0)))[place.ravel()])


def before_and_after(check: Check, kind: str, rng: np.random.Generator) -> tuple[Made, Made]:
    """
    Inputs and the same inputs after a random map of one kind.

    Rows are of length one for the maps that speak of cosines, of any length otherwise. One map moves
    all inputs. For `monotone`, rows that are a set of their own come in opposite pairs on both
    sides: their mean is nothing, so the rows finally used are the mapped ones.
    """
    made = make(check, rng)
    if kind == "similarity":
        share = rng.uniform(0.05, 1)
        base = {name: np.pad(unit_of(x), ((0, 0), (0, 1))) for name, x in made.items()}
        return base, {
            name: np.sqrt(share) * z + np.sqrt(1 - share) * np.eye(D + 1)[D]
            for name, z in base.items()
        }
    if kind == "monotone":
        c = rng.uniform(0.5, 3)
        base, mapped = {}, {}
        for names, x in stacked(check, made):
            ends = np.cumsum([0, *(len(made[name]) for name in names)])
            z = unit_of(x)
            z[:3] = z[3:6]  # ties
            y = exponential(z, c)
            for i, name in enumerate(names):
                here = slice(ends[i], ends[i + 1])
                base[name], mapped[name] = z[here], y[here]
        width = max((x.shape[1] for x in mapped.values()), default=D)
        for name in set(made) - set(base):
            half = rng.normal(size=(4, width))
            mapped[name] = np.stack([half, -half], axis=1).reshape(8, width)
            base[name] = mapped[name][:, :D]
        return base, mapped
    turn = ortho_group.rvs(D, random_state=rng)
    factor, shift = np.exp(rng.uniform(-3, 3)), 3 * rng.normal(size=D)
    maps: dict[str, Callable[[Array], Array]] = {
        "row_scale": lambda x: x * np.exp(rng.uniform(-3, 3, size=(len(x), 1))),
        "uniform_scale": lambda x: factor * x,
        "orthogonal": lambda x: x @ turn,
        "isometry": lambda x: x @ turn + shift,
    }
    return made, {name: maps[kind](x) for name, x in made.items()}


@checks
@pytest.mark.parametrize("kind", MAPS)
@settings(max_examples=10)
@given(seed=seeds, optional=st.booleans())
def test_declared_maps_leave_a_measure_unchanged(
    check: Check, kind: str, seed: int, optional: bool
) -> None:
    """Compared with itself before a random map of the kind it declares, intervals included."""
    before, after = before_and_after(check, kind, np.random.default_rng(seed))
    raw = kind not in ("similarity", "monotone") and "normalise" in check.params.model_fields
    params = {"normalise": False} if raw else {}  # rows as they are, where a check can take them
    if not optional and kind != "monotone":
        kept = [name for slot in check.slots if slot.required for name in names_of(slot)]
        before, after = (
            {name: rows for name, rows in made.items() if name in kept} for made in (before, after)
        )
    for labels in variants(check, before):
        one, other = (
            json.loads(results(check, made, labels, params=params).model_dump_json())
            for made in (before, after)
        )
        for measure in check.measures:
            if kind not in measure.invariance:
                continue
            kernel = ON_UNIT_ROWS.get((check.kind, measure.path))
            if kernel is not None and kind == "isometry":
                rng = np.random.default_rng(seed)
                z = unit_of(next(iter(before.values())))
                moved = z @ ortho_group.rvs(D, random_state=rng) + rng.normal(size=D)
                assert kernel(moved) == pytest.approx(kernel(z), rel=1e-10), measure.path
                assert kernel(z) == pytest.approx(shown(one, measure.path)[0], rel=1e-10)
                continue
            assert shown(other, measure.path) == pytest.approx(
                shown(one, measure.path), rel=1e-7, abs=1e-9
            ), measure.path


@checks
@settings(max_examples=10)
@given(seed=seeds)
def test_the_maps_are_what_they_are_called(check: Check, seed: int) -> None:
    """Compared with the definition of each map on cosines, lengths and distances."""
    for kind in MAPS:
        before, after = before_and_after(check, kind, np.random.default_rng(seed))
        for name in before:
            x, y = before[name], after[name]
            s, t = unit_of(x) @ unit_of(x).T, unit_of(y) @ unit_of(y).T
            lengths = np.linalg.norm(y, axis=1) / np.linalg.norm(x, axis=1)
            apart_x, apart_y = (
                np.linalg.norm(rows[:, None] - rows[None], axis=2) for rows in (x, y)
            )
            if kind in ("row_scale", "uniform_scale", "orthogonal"):
                np.testing.assert_allclose(t, s, atol=1e-12)
                assert np.ptp(lengths) > 0.1 if kind == "row_scale" else np.ptp(lengths) < 1e-9
                assert kind != "orthogonal" or lengths == pytest.approx(1)
            if kind in ("orthogonal", "isometry"):
                np.testing.assert_allclose(apart_y, apart_x, atol=1e-11)
                assert np.abs(x - y).max() > 0.1
            if kind == "similarity":
                np.testing.assert_allclose(np.linalg.norm(y, axis=1), 1, atol=1e-14)
                share = (1 - t[0, 1]) / (1 - s[0, 1])
                np.testing.assert_allclose(1 - t, share * (1 - s), atol=1e-12)
                assert 0 < share < 1
            if kind == "monotone" and len(x) == len(make(check, np.random.default_rng(seed))[name]):
                c = np.log(t[0, 4]) / (s[0, 4] - 1)
                np.testing.assert_allclose(t, np.exp(c * (s - 1)), atol=1e-9)
                assert np.array_equal(y[:3], y[3:6]) == np.array_equal(x[:3], x[3:6])


def with_every(check: Check, make_rows: Callable[[int], Array], n: int = 8) -> Made:
    """The same kind of rows in every required slot, as many in each set as the neediest asks."""
    slots = [slot for some in row_sets(check).values() for slot in some if slot.required]
    count = max([n, *(fewest(check, slot) for slot in slots)])
    return {name: make_rows(count) for slot in slots for name in names_of(slot)}


def answered_or_refused(question: Callable[[], Any]) -> Any:
    """The results, or the error of ours that was raised in their place."""
    try:
        return question()
    except AssayError as error:
        return error


DEGENERATE: dict[str, Callable[[int], Array]] = {
    "equal rows": lambda n: np.full((n, 3), 0.1),
    "one dimension": lambda n: np.where(np.arange(n) % 2, 1.0, -2.0)[:, None],
    "one direction": lambda n: np.arange(1.0, n + 1)[:, None] * np.ones((1, 3)),
    "opposite rows": lambda n: np.where(np.arange(n) % 2, 1.0, -1.0)[:, None] * np.eye(3)[:1],
    "a basis": lambda n: np.eye(n),
    "two points": lambda n: np.eye(2)[np.arange(n) % 2],
    "one row apart": lambda n: np.vstack([np.ones((n - 1, 2)), [[1.0, -1.0]]]),
    "many dimensions": lambda n: np.random.default_rng(0).normal(size=(n, 50)),
    "nearly equal rows": lambda n: 1 + 1e-13 * np.random.default_rng(1).normal(size=(n, 4)),
    "a far offset": lambda n: 1e9 + np.random.default_rng(2).normal(size=(n, 4)),
    "the smallest float32": lambda n: np.float32(1e-45) * (1 + np.eye(n, dtype=np.float32)),
    "the largest float32": lambda n: np.float32(1.7e38) * (1 + np.eye(n, dtype=np.float32)),
    "the largest float16": lambda n: np.float16(3e4) * (1 + np.eye(n, dtype=np.float16)),
    "integers": lambda n: (np.arange(1, 3 * n + 1) % 7 - 3).reshape(n, 3).astype(np.int8) | 1,
    "mixed lengths": lambda n: np.logspace(-30, 30, n)[:, None] * (1 + np.eye(n)),
}
GROUPINGS: dict[str, Callable[[int], list[Any]]] = {
    "no groups": lambda n: [],
    "one group": lambda n: ["a"] * n,
    "singletons": lambda n: list(range(n)),
    "two groups": lambda n: [i % 2 == 0 for i in range(n)],
    "one large group": lambda n: [min(i, n // 2) for i in range(n)],
    "half in one group": lambda n: [max(i - n // 2, 0) for i in range(n)],
}


@checks
@pytest.mark.parametrize("rows", DEGENERATE)
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("n", [8, 1])
def test_degenerate_inputs_are_answered_or_refused(
    check: Check, rows: str, grouping: str, n: int
) -> None:
    """A well-formed report or an error of ours with a code; never a crash, a warning or a NaN."""
    made = with_every(check, DEGENERATE[rows], n)
    sizes = counts(check, made)
    labels = {
        slot.name: GROUPINGS[grouping](sizes[slot.rows]) or ["a"] * sizes[slot.rows]
        for slot in check.slots
        if slot.kind == "column" and slot.rows in sizes
        if slot.required or grouping != "no groups"
    }
    labels |= {
        name: values
        for name, values in required(check, made).items()
        if isinstance(encoded(check, name, values), Relevance)
    }
    for params in switches(check):
        answer = answered_or_refused(
            lambda chosen=params: results(check, made, labels, params=chosen)
        )
        if isinstance(answer, AssayError):
            assert answer.code != "internal"
            assert str(answer).endswith(".")
            assert answer.faults
        else:
            assert_well_formed(check, answer)


@checks
@pytest.mark.parametrize("power", [-1060, -1040, -600, 300, 480, 600, 1020])
def test_float64_rows_of_any_size_are_answered_or_refused(check: Check, power: int) -> None:
    """A well-formed report or an error of ours, for rows whose squares leave the range of float64."""
    made = {
        name: np.ldexp(rows, power) for name, rows in make(check, np.random.default_rng(4)).items()
    }
    answer = answered_or_refused(lambda: results(check, made))
    if isinstance(answer, AssayError):
        assert answer.code != "internal"
    else:
        assert_well_formed(check, answer)


@checks
def test_every_warning_is_declared_and_every_declared_one_is_given(check: Check) -> None:
    """By the source: a policy names them. A code that stands in a reason is found there."""
    file = Path(inspect.getfile(check.function))
    files = [file] if file.parent == Path(service.checks.__file__).parent else file.parent.iterdir()
    warned, reasons = set[str](), set[str]()
    for source in files:
        for node in ast.walk(ast.parse(source.read_text())) if source.suffix == ".py" else ():
            if isinstance(node, ast.Call):
                of_warning = isinstance(node.func, ast.Attribute) and node.func.attr == "warn"
                for one in node.args[:1] if of_warning else ():
                    chosen = (one.body, one.orelse) if isinstance(one, ast.IfExp) else (one,)
                    warned |= {x.value for x in chosen if isinstance(x, ast.Constant)}
                    if any(isinstance(x, ast.Attribute) for x in chosen):
                        warned.add("")
                reasons |= {
                    x.value.value
                    for x in node.keywords
                    if x.arg == "code" and isinstance(x.value, ast.Constant)
                }
    literal = warned - {"", "rows_dropped"}
    assert literal <= set(check.warnings)
    assert set(check.warnings) - literal <= (reasons if "" in warned else set())
    assert all(KEY.fullmatch(code) for code in check.codes)
    assert all(told[0].isupper() or told[0] == "`" for told in check.warnings.values())
    assert all(told.endswith(".") for told in check.warnings.values())


def test_what_is_warned_of_before_a_check_begins_is_declared_for_all_with_rows() -> None:
    """By the source: what is left out when stored rows are read, and when they were imported."""
    warned = set()
    for module in (service.imported, service.preparing):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):
                warned |= {x.value for x in node.value.elts[:1] if isinstance(x, ast.Constant)}
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "Warned":
                codes = [x.value for x in node.keywords if x.arg == "code"]
                warned |= {x.value for x in codes if isinstance(x, ast.Constant)}
    assert warned == set(ROWS_WARNINGS)
    for check in CATALOGUE:
        assert (warned <= set(check.codes)) is bool(check.slots)


@checks
def test_inputs_stay_as_they_were(check: Check) -> None:
    """Compared with copies: a check writes into none of its inputs."""
    made = make(check, np.random.default_rng(5))
    copies = {name: rows.copy() for name, rows in made.items()}
    for rows in made.values():
        rows.flags.writeable = False
    results(check, made, columns(check, made))
    assert all(np.array_equal(made[name], copies[name]) for name in made)


@checks
def test_progress_is_told_within_bounds_and_every_stage_is_timed(check: Check) -> None:
    """Counted."""
    told: list[tuple[str, int, int]] = []
    context = Context(progress=lambda *step: told.append(step))
    results(check, make(check, np.random.default_rng(6)), context=context)
    assert {stage for stage, _, _ in told} == set(context.stages)
    assert all(0 <= done <= total and total >= 1 for _, done, total in told)
    assert all(seconds >= 0 for seconds in context.stages.values())


def test_results_and_parameters_are_closed_models() -> None:
    """Closed form: unknown keys are refused in both, for every check."""
    for check in CATALOGUE:
        for model in (check.results, check.params):
            assert issubclass(model, BaseModel)
            assert model.model_config["extra"] == "forbid"
            assert model.model_config["frozen"] is True
            assert model.model_config["allow_inf_nan"] is False
