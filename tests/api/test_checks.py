"""The catalogue over HTTP: complete, true to real reports, and valid JSON Schema."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from jsonschema_rs import Draft202012Validator, meta

from service.request import BY_KIND

KINDS = sorted(BY_KIND)
CHECK = {
    "kind", "title", "question", "description", "version", "roles", "row_limit", "params_schema",
    "request_schema", "results_schema", "measures", "warnings", "scope", "sources",
}  # fmt: skip


@pytest.fixture
def made(report: Any, upload: Any, roles: Any, small: Any) -> Any:
    """A real report of any check, on two matrices of sixty rows."""
    a, b = np.random.default_rng(6).normal(size=(2, 60, 5))

    def make(kind: str) -> dict[str, Any]:
        sides = [upload(rows)["id"] for rows in (a, a + 0.3 * b)]
        return dict(report(kind, roles(kind, 60, *sides), small(kind, 60)))

    return make


def test_the_catalogue_lists_every_check(door: Any) -> None:
    """Each as it is shown alone."""
    items = door.get("/v1/checks").json()["items"]
    assert sorted(item["kind"] for item in items) == KINDS
    for item in items:
        assert item.keys() == CHECK
        assert door.get(f"/v1/checks/{item['kind']}").json() == item


def test_an_unknown_check_is_not_found(door: Any, refusal: Any) -> None:
    """With what it may have been, or what there is."""
    found = refusal(door.get("/v1/checks/cosine_flor"), 404, "unknown-check")
    assert "did you mean `cosine_floor`" in found["detail"]
    found = refusal(door.get("/v1/checks/xyz"), 404, "unknown-check")
    assert "geometry" in found["detail"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_check_says_what_it_is(kind: str, door: Any) -> None:
    """Title, description, scope, sources, a description of every role, parameter and measure."""
    check = door.get(f"/v1/checks/{kind}").json()
    assert check["title"]
    assert check["question"].endswith("?")
    assert check["description"]
    assert check["scope"]
    assert all(line.endswith(".") for line in check["scope"])
    assert all(source.split(":")[0] in ("doi", "arXiv") for source in check["sources"])
    assert all(told.endswith(".") for told in check["warnings"].values())
    assert all(role["description"] for role in check["roles"])
    assert all(measure["description"] for measure in check["measures"])
    assert all(one["description"] for one in check["params_schema"]["properties"].values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["params_schema", "request_schema", "results_schema"])
def test_schemas_are_json_schema(which: str, kind: str, door: Any) -> None:
    """By the meta-schema of draft 2020-12, and closed to unknown fields."""
    schema = door.get(f"/v1/checks/{kind}").json()[which]
    meta.validate(schema)
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("kind", KINDS)
def test_a_real_report_fits_the_schemas_of_its_check(kind: str, door: Any, made: Any) -> None:
    """Results and params, by an independent validator."""
    check, found = door.get(f"/v1/checks/{kind}").json(), made(kind)
    Draft202012Validator(check["results_schema"]).validate(found["results"])
    Draft202012Validator(check["params_schema"]).validate(found["params"])
    assert check["version"] == found["kind_version"]
    assert set(check["scope"]) <= set(found["scope"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_request_schema_takes_what_the_service_takes(kind: str, door: Any) -> None:
    """A minimal body, a full one, and not one without inputs."""
    check = door.get(f"/v1/checks/{kind}").json()
    validator = Draft202012Validator(check["request_schema"])
    value = {
        "vectors": {"dataset": "ds_1"},
        "column": {"column": "g"},
        "relevance": {"values": [["a"], [["b", 2]]]},
        "table": {"columns": {"seed": [1, 2]}},
    }
    several = {slot.name: slot.few for slot in BY_KIND[kind].slots if slot.most is not None}
    inputs = {
        role["name"]: [dict.fromkeys(role["parts"], value["vectors"]) or value["vectors"]]
        * several[role["name"]]
        if role["name"] in several
        else value[role["kind"]]
        for role in check["roles"]
    }
    needed = {role["name"] for role in check["roles"] if role["required"]}
    body = {"kind": kind, "inputs": {name: inputs[name] for name in needed}}
    assert validator.is_valid(body)
    full = {**body, "inputs": inputs, "params": {}, "seed": 1, "cache": False, "tags": {"a": "b"}}
    assert validator.is_valid(full)
    assert validator.is_valid({"kind": kind}) == (not needed)
    assert not validator.is_valid({**body, "extra": 1})
    assert not validator.is_valid({**body, "seed": -1})


@pytest.mark.parametrize("kind", KINDS)
def test_every_measure_is_where_the_catalogue_says(kind: str, door: Any, made: Any) -> None:
    """Walked in the report: a number within its declared range, or an estimate, or null."""
    measures = door.get(f"/v1/checks/{kind}").json()["measures"]
    report = made(kind)
    results = report["results"]
    assert len({measure["path"] for measure in measures}) == len(measures)
    names = {"model": "model_1", "later": "model_2", "earlier": "model_1"}
    params = BY_KIND[kind].params.model_validate(report["params"])
    names |= {place: values[0] for place, values in params.names().items()}
    for measure in measures:
        node: Any = results
        for key in measure["path"].split("."):
            name = re.sub(r"\{(\w+)\}", lambda place: names[place[1]], key)
            node = None if node is None else node[name]
        if node is None:
            continue
        assert isinstance(node, dict) == (measure["shape"] != "scalar"), measure["path"]
        if isinstance(node, dict):
            assert node.keys() >= {"estimate", "interval"}, measure["path"]
            node = node["estimate"]
        if node is not None:
            assert isinstance(node, int | float)
            low, high = measure["low"], measure["high"]
            assert low is None or node >= low - 1e-12, measure["path"]
            assert high is None or node <= high + 1e-12, measure["path"]


@pytest.mark.parametrize("kind", KINDS)
def test_pairing_is_mutual(kind: str, door: Any) -> None:
    """If b is paired with a, then a with b, and never a role with itself."""
    roles = {role["name"]: role for role in door.get(f"/v1/checks/{kind}").json()["roles"]}
    for name, role in roles.items():
        assert name not in role["paired_with"]
        for other in role["paired_with"]:
            assert name in roles[other]["paired_with"]
