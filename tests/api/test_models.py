"""Several models in one role, and the hard cases of groups, from upload to verdict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

LABELS = [f"g{i // 6}" for i in range(36)]


@pytest.fixture
def rows() -> NDArray[np.float64]:
    """Thirty-six rows in six groups that lie apart."""
    rng = np.random.default_rng(12)
    return rng.normal(size=(36, 5)) + np.repeat(rng.normal(size=(6, 5)), 6, axis=0)


@pytest.fixture
def ids(rows: NDArray[np.float64], upload: Any) -> list[str]:
    """Three models: the rows, the rows with noise, and another dimension."""
    noise = np.random.default_rng(13).normal(size=(36, 5))
    return [upload(x)["id"] for x in (rows, rows + 2 * noise, rows[:, :3])]


def structure(*models: Any, **more: Any) -> dict[str, Any]:
    """Inputs of `group_structure`."""
    return {"models": list(models), "groups": {"values": LABELS}, **more}


def plain_r2(x: NDArray[np.float64]) -> float:
    """R2 of unit rows, from the definition."""
    z = x / np.linalg.norm(x, axis=1, keepdims=True)
    total = ((z - z.mean(0)) ** 2).sum()
    within = sum(((z[i : i + 6] - z[i : i + 6].mean(0)) ** 2).sum() for i in range(0, 36, 6))
    return float(1 - within / total)


def test_models_go_by_their_names_in_request_order(
    report: Any, ids: list[str], rows: NDArray[np.float64]
) -> None:
    """Given or `model_2`; of any dimension; differences are later minus earlier, each pair once."""
    named = [
        {"dataset": ids[0], "name": "e5"},
        {"dataset": ids[1]},
        {"dataset": ids[2], "name": "b"},
    ]
    found = report("group_structure", structure(*named))

    assert [one["name"] for one in found["inputs"]["models"]] == ["e5", "model_2", "b"]
    assert [one["d"] for one in found["inputs"]["models"]] == [5, 5, 3]
    results = found["results"]
    assert set(results["models"]) == {"e5", "model_2", "b"}
    assert {
        (later, earlier) for later, others in results["differences"].items() for earlier in others
    } == {("model_2", "e5"), ("b", "e5"), ("b", "model_2")}
    r2 = {name: model["r2"]["estimate"] for name, model in results["models"].items()}
    assert r2["e5"] == pytest.approx(plain_r2(rows), abs=1e-12)
    change = results["differences"]["model_2"]["e5"]["r2"]["estimate"]
    assert change == pytest.approx(r2["model_2"] - r2["e5"], abs=1e-12)


def test_the_names_of_models_are_part_of_the_question(report: Any, ids: list[str]) -> None:
    """So is their order; written-out default names are not."""
    one, other = {"dataset": ids[0]}, {"dataset": ids[1]}
    digests = [
        report("group_structure", structure(*models))["request_digest"]
        for models in (
            (one, other), ({**one, "name": "model_1"}, other), (other, one),
            ({**one, "name": "x"}, other), (one,),
        )
    ]  # fmt: skip
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


@pytest.mark.parametrize(
    ("models", "pointer"),
    [
        ([], "/inputs/models"),
        ([{}] * 9, "/inputs/models"),
        ([{"name": "A"}], "/inputs/models/0/name"),
        ([{}, {"name": "a.b"}], "/inputs/models/1/name"),
        ([{}, {"dataset": 5}], "/inputs/models/1/dataset"),
        ([{}, {"rows": 5}], "/inputs/models/1/rows"),
    ],
    ids=range(6),
)
def test_a_list_of_models_is_checked_one_by_one(
    models: list[dict[str, Any]], pointer: str, ask: Any, ids: list[str], refusal: Any
) -> None:
    """One to eight, each with a plain name."""
    full = [{"dataset": ids[0], **model} for model in models]
    found = refusal(ask("group_structure", structure(*full)), 422, "invalid-request")
    assert pointer in [fault["pointer"] for fault in found["errors"]]


def test_names_of_models_are_unique(ask: Any, ids: list[str], refusal: Any) -> None:
    """Also where a given name is a default one."""
    for first, second in (("x", "x"), ("model_2", None)):
        models = [{"dataset": ids[0], "name": first}, {"dataset": ids[1]}]
        if second:
            models[1]["name"] = second
        refusal(ask("group_structure", structure(*models)), 422, "invalid-request")


def test_models_are_over_the_same_rows(ask: Any, ids: list[str], upload: Any, refusal: Any) -> None:
    """Numbers of rows, ids, and bad rows, each named by the place of the model."""
    short = upload(np.eye(5))["id"]
    found = refusal(
        ask("group_structure", structure({"dataset": ids[0]}, {"dataset": short})),
        422,
        "shape-mismatch",
    )
    assert "/inputs/models/1" in [fault["pointer"] for fault in found["errors"]]

    sides = [
        upload({"vectors": np.eye(36).tolist(), "ids": [str((i * step) % 36) for i in range(36)]})
        for step in (1, 5)
    ]
    pair = structure(*({"dataset": side["id"]} for side in sides))
    (fault,) = refusal(ask("group_structure", pair), 422, "ids-mismatch")["errors"]
    assert fault["pointer"] == "/inputs/models/1"

    bad = np.ones((36, 5))
    bad[4] = np.nan
    broken = structure({"dataset": ids[0]}, {"dataset": upload(bad)["id"]})
    (fault,) = refusal(ask("group_structure", broken), 422, "non-finite-rows")["errors"]
    assert (fault["pointer"], fault["rows"]) == ("/inputs/models/1", ["4"])


def test_rows_bad_in_one_model_leave_all(
    report: Any, rows: NDArray[np.float64], upload: Any
) -> None:
    """The comparison stays paired."""
    bad = rows.copy()
    bad[[0, 7]] = np.nan
    models = [{"dataset": upload(rows)["id"]}, {"dataset": upload(bad)["id"]}]
    found = report("group_structure", structure(*models), {"on_bad_rows": "drop"})
    one, other = found["results"]["models"].values()
    assert found["results"]["n"] == 34
    assert one["r2"] == other["r2"]
    assert found["results"]["differences"]["model_2"]["model_1"]["r2"]["estimate"] == 0


def test_a_column_without_dataset_is_of_the_first_model(
    ask: Any, rows: NDArray[np.float64], ids: list[str], upload: Any
) -> None:
    """`models` -> the first."""
    first = upload({"vectors": rows.tolist(), "columns": {"g": LABELS}})["id"]
    inputs = {"models": [{"dataset": first}, {"dataset": ids[1]}], "groups": {"column": "g"}}
    job = ask("group_structure", inputs).json()
    assert job["inputs"]["groups"] == {"dataset": first, "column": "g"}
    assert [one["name"] for one in job["inputs"]["models"]] == ["model_1", "model_2"]


def test_a_gate_reads_a_difference_in_either_order(
    door: Any, ids: list[str], upload: Any, work: Any
) -> None:
    """Named the other way round the estimate changes its sign and the interval its ends."""
    columns = upload({"columns": {"g": LABELS}})["id"]
    policy = {
        "version": 1, "name": "p", "inputs": {"x": "vectors", "y": "vectors", "g": "column"},
        "checks": {"s": {"kind": "group_structure", "inputs": {
            "models": [{"name": "old", "vectors": "x"}, {"name": "new", "vectors": "y"}],
            "groups": "g"}}},
        "rules": [
            {"measure": "s.differences.new.old.r2", "at_most": 0},
            {"measure": "s.differences.old.new.r2", "at_least": 0},
            {"measure": "s.differences.old.new.r2", "at_most": 0},
            {"measure": "s.models.old.r2", "at_least": 0.2},
        ],
    }  # fmt: skip
    inputs = {
        "x": {"dataset": ids[0]}, "y": {"dataset": ids[1]},
        "g": {"dataset": columns, "column": "g"},
    }  # fmt: skip
    place = door.post("/v1/gates", json={"policy": policy, "inputs": inputs}).headers["location"]
    work()
    straight, turned, against, alone = door.get(place).json()["rules"]
    assert straight["observed"] == -turned["observed"]
    assert straight["interval"]["low"] == -turned["interval"]["high"]
    assert straight["interval"]["high"] == -turned["interval"]["low"]
    assert straight["verdict"] == turned["verdict"] == "pass"
    assert against["verdict"] == "fail"
    assert alone["observed"] > 0.2


@pytest.mark.parametrize(
    "measure",
    ["s.differences.new.new.r2", "s.differences.new.other.r2", "s.models.other.r2", "s.models.r2",
     "s.differences.new.r2", "s.models.{model}.r2"],
)  # fmt: skip
def test_a_rule_names_models_of_its_check(measure: str, door: Any, refusal: Any) -> None:
    """Unknown, equal and missing names are faults when the policy is read."""
    policy = {
        "version": 1, "name": "p", "inputs": {"x": "vectors", "y": "vectors", "g": "column"},
        "checks": {"s": {"kind": "group_structure", "inputs": {
            "models": [{"name": "old", "vectors": "x"}, {"name": "new", "vectors": "y"}],
            "groups": "g"}}},
        "rules": [{"measure": measure, "at_most": 0}],
    }  # fmt: skip
    found = refusal(door.post("/v1/gates", json={"policy": policy}), 422, "invalid-request")
    assert [fault["pointer"] for fault in found["errors"]] == ["/policy/rules/0/measure"]


def test_equal_rows_make_nulls_that_no_gate_passes(door: Any, upload: Any, work: Any) -> None:
    """CASES P02: R2, F, ICC and p are null for zero total variation, v is 0; the gate is not pass."""
    dataset = upload({"vectors": np.ones((6, 3)).tolist(), "columns": {"g": list("aaabbb")}})["id"]
    names = ("r2", "pseudo_f", "icc1", "p", "dispersion.p")
    policy = {
        "version": 1, "name": "p", "inputs": {"x": "vectors", "g": "column"},
        "checks": {"s": {"kind": "group_structure", "inputs": {
            "models": [{"name": "m", "vectors": "x"}], "groups": "g"}}},
        "rules": [{"measure": f"s.models.m.{name}", "at_most": 0.999} for name in names],
    }  # fmt: skip
    inputs = {"x": {"dataset": dataset}, "g": {"dataset": dataset, "column": "g"}}
    place = door.post("/v1/gates", json={"policy": policy, "inputs": inputs}).headers["location"]
    work()
    run = door.get(place).json()
    assert run["verdict"] == "inconclusive"
    assert [rule["verdict"] for rule in run["rules"]] == ["inconclusive"] * len(names)
    assert [rule["observed"] for rule in run["rules"]] == [None] * len(names)
    job = run["links"]["jobs"]["s"]
    model = door.get(f"{job}/report").json()["results"]["models"]["m"]
    assert model["v"]["estimate"] == 0
    assert model["r2"]["undefined"]["estimate"]["code"] == "zero_total"
    assert model["undefined"]["pseudo_f"]["code"] == "zero_total"


def test_the_layout_of_a_file_changes_no_statistic(report: Any, upload: Any) -> None:
    """CASES P08: raw F = 1.28383904 and R2 = 0.46117574 from the big-endian, Fortran-order file."""
    x = np.asfortranarray(np.random.default_rng(61).normal(size=(6, 4)).astype(">f4"))
    inputs = {"models": [{"dataset": upload(x)["id"]}], "groups": {"values": list("aabbcc")}}
    model = report("group_structure", inputs, {"normalise": False})["results"]["models"]["model_1"]
    assert model["pseudo_f"] == pytest.approx(1.28383904, rel=1e-6)
    assert model["r2"]["estimate"] == pytest.approx(0.46117574, rel=1e-6)


def test_rows_without_a_label_are_no_group(
    report: Any, ask: Any, upload: Any, refusal: Any
) -> None:
    """CASES P05: refused by default; dropped n = 10, G = 3, R2 and F as printed there."""
    x = np.random.default_rng(51).normal(size=(12, 3))
    x[4:8] += 1.5
    x[8:] -= 1.0
    labels = ["a", None, "a", "a", "b", "b", None, "b", "c", "c", "c", "c"]
    inputs = {"models": [{"dataset": upload(x)["id"]}], "groups": {"values": labels}}
    (fault,) = refusal(ask("group_structure", inputs), 422, "missing-labels")["errors"]
    assert fault["rows"] == ["1", "6"]

    params = {"normalise": False, "on_bad_rows": "drop"}
    results = report("group_structure", inputs, params)["results"]
    assert (results["n"], results["groups"]) == (10, 3)
    model = results["models"]["model_1"]
    assert model["r2"]["estimate"] == pytest.approx(0.61866343, rel=1e-6)
    assert model["pseudo_f"] == pytest.approx(5.67824386, rel=1e-6)

    text = {"values": ["None" if label is None else label for label in labels]}
    results = report("group_structure", {**inputs, "groups": text}, params)["results"]
    assert (results["n"], results["groups"]) == (12, 4)
    assert results["models"]["model_1"]["pseudo_f"] == pytest.approx(4.673129, rel=1e-6)
