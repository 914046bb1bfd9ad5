"""Requests: a typed union over the catalogue, and a digest that names the question."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.checks import CATALOGUE
from service.checks.cosine_floor import CosineFloorParams
from service.checks.geometry import GeometryParams
from service.errors import InvalidRequest, UnknownCheck
from service.request import (
    BY_KIND,
    REQUESTS,
    check_of,
    names_of,
    parse_request,
    pointer,
    request_digest,
)

GEOMETRY: dict[str, Any] = {"kind": "geometry", "inputs": {"vectors": {"dataset": "ds_1"}}}


def test_a_request_is_typed_by_its_kind_with_all_defaults() -> None:
    """Params, seed, cache and tags are filled in."""
    found = parse_request(GEOMETRY)
    assert type(found) is REQUESTS["geometry"]
    assert isinstance(found.params, GeometryParams)
    assert (found.seed, found.cache, found.tags) == (0, True, {})
    assert found.params.max_spectrum == 64


def test_every_check_has_a_request_of_its_own_name() -> None:
    """Names of types become names of schemas."""
    assert list(BY_KIND) == [check.kind for check in CATALOGUE]
    names = [request.__name__ for request in REQUESTS.values()]
    assert len(set(names)) == len(names)
    assert REQUESTS["cosine_floor"].__name__ == "CosineFloorRequest"


@pytest.mark.parametrize("kind", BY_KIND)
def test_every_role_and_only_declared_roles_are_fields(kind: str) -> None:
    """Required where the check says so."""
    fields = REQUESTS[kind].model_fields["inputs"].annotation.model_fields
    slots = BY_KIND[kind].slots
    assert list(fields) == [name for slot in slots for name in names_of(slot)]
    assert {name for name, field in fields.items() if field.is_required()} == {
        slot.name for slot in slots if slot.required and not slot.several
    }


@pytest.mark.parametrize(
    ("kind", "hint"),
    [("geometri", "did you mean `geometry`"), ("cosine", "cosine_floor"), ("", "geometry")],
)
def test_an_unknown_kind_gets_a_hint(kind: str, hint: str) -> None:
    """The nearest kind, or all of them."""
    with pytest.raises(UnknownCheck, match=hint):
        check_of(kind)
    with pytest.raises(UnknownCheck, match=hint):
        parse_request({**GEOMETRY, "kind": kind})


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"kind": None}, ""), ({"kind": ["geometry"]}, ""), ({"inputs": None}, "/inputs"),
        ({"inputs": {}}, "/inputs/vectors"), 
        ({"params": {"max_spectrum": 0}}, "/params/max_spectrum"),
        ({"params": {"max_spectrum": 1.5}}, "/params/max_spectrum"),
        ({"params": {"level": 1}}, "/params/level"), ({"params": {"level": 0.4}}, "/params/level"),
        ({"seed": 2**53}, "/seed"), ({"seed": "x"}, "/seed"), ({"tags": {"a": 1}}, "/tags/a"),
        ({"tags": {"a/b~": 1}}, "/tags/a~1b~0"), ({"tags": []}, "/tags"), ({"more": 1}, "/more"),
        ({"inputs": {"vectors": {"dataset": "d", "x": 1}}}, "/inputs/vectors/x"),
        ({"inputs": {"vectors": {"vectors": [[1.0], ["x"]]}}}, "/inputs/vectors/vectors/1/0"),
        ({"inputs": {"vectors": {"dataset": 1}}}, "/inputs/vectors/dataset"),
        ({"inputs": {"vectors": {"dataset": "d"}, "groups": {"column": 1}}},
         "/inputs/groups/column"),
        ({"inputs": {"vectors": {"dataset": "d"}, "groups": {"column": "g", "dataset": 1}}},
         "/inputs/groups/dataset"),
        ({"inputs": {"vectors": {"dataset": "d"}, "groups": {"values": [1, {}]}}},
         "/inputs/groups/values/1"),
    ],
    ids=str,
)  # fmt: skip
def test_faults_point_into_the_body(change: dict[str, Any], place: str) -> None:
    """A pointer of RFC 6901 that resolves in the body, or names the key that is missing there."""
    with pytest.raises(InvalidRequest) as caught:
        parse_request({**GEOMETRY, **change})
    assert place in [fault.pointer for fault in caught.value.faults]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["kind", "inputs", "params", "vectors", "dataset", "groups", "values", "column",
                     "seed", "tags", "level", "a/b", "~"],
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    )
)  # fmt: skip
def test_every_pointer_of_any_refused_body_resolves(body: Any) -> None:
    """Walked by hand to the last step, which may be the missing key."""
    whole = {**GEOMETRY, **body} if isinstance(body, dict) else body
    if isinstance(whole, dict) and not isinstance(whole.get("kind"), str):
        whole["kind"] = "geometry"
    try:
        parse_request(whole)
    except UnknownCheck:
        return
    except InvalidRequest as error:
        for fault in error.faults:
            node = whole
            steps = fault.pointer.split("/")[1:]
            for i, step in enumerate(steps):
                key = step.replace("~1", "/").replace("~0", "~")
                if isinstance(node, list):
                    node = node[int(key)]
                elif i == len(steps) - 1:
                    assert isinstance(node, dict), fault
                else:
                    node = node[key]


def test_a_refusal_lists_ten_places_and_the_rest_as_a_number() -> None:
    """Sixty wrong tags."""
    with pytest.raises(InvalidRequest, match=r"60 places.* and 50 more") as caught:
        parse_request({**GEOMETRY, "tags": {f"t{i}": 1 for i in range(60)}})
    assert len(caught.value.faults) == 10
    assert len(caught.value.detail) < 1000


def test_pointers_escape_what_rfc_6901_escapes() -> None:
    """`~` before `/`."""
    assert pointer({"a/b": {"~": [5]}}, ("a/b", "~", 0)) == "/a~1b/~0/0"
    assert pointer({}, ()) == ""


def jcs(content: Any) -> str:
    """RFC 8785 for content whose numbers Python and JavaScript write alike."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(re.sub(r"(\d)\.0(?=[,}\]])", r"\1", text).encode()).hexdigest()


def test_the_digest_is_the_hash_of_the_canonical_question() -> None:
    """Computed by a canonical form written down here."""
    params = GeometryParams(level=0.9, max_spectrum=8)
    expected = jcs(
        {
            "kind": "geometry", "kind_version": 3, "inputs": {"vectors": "ab" * 32}, "seed": 5,
            "params": {
                "align_by_ids": False, "census": False, "level": 0.9, "max_spectrum": 8,
                "on_bad_rows": "error",
            },
        }
    )  # fmt: skip
    assert request_digest("geometry", 3, {"vectors": "ab" * 32}, params, 5) == expected


def test_everything_in_the_question_changes_the_digest() -> None:
    """Kind, version, each input and its role, each param, seed; the order of inputs does not."""
    base: list[Any] = ["cosine_floor", 1, {"a": "x", "b": "y"}, CosineFloorParams(), 0]
    changes = [
        (0, "geometry"), (1, 2), (2, {"a": "y", "b": "x"}), (2, {"a": "x"}),
        (2, {"a": "x", "b": "y", "fit_a": "x"}), (3, CosineFloorParams(shared_mean=True)),
        (3, CosineFloorParams(derangements=21)), (3, CosineFloorParams(level=0.9)), (4, 1),
    ]  # fmt: skip
    digests = {request_digest(*base)}
    for place, value in changes:
        digests.add(request_digest(*[*base[:place], value, *base[place + 1 :]]))
    assert len(digests) == len(changes) + 1
    turned = [*base[:2], {"b": "y", "a": "x"}, *base[3:]]
    assert request_digest(*turned) in digests
